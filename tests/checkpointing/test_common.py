"""What several nodes have, and what is taken: the newest checkpoint that every node has, proven to be one."""

from __future__ import annotations

import pytest

from checkpointing.common import NodeCheckpoint, Proof, accepted, candidates, is_shared, reads, summary


def shared(step: int | None, name: str = "") -> NodeCheckpoint:
    """A file on storage that all nodes see."""
    name = name or f"{step}.pt"
    return NodeCheckpoint(f"/shared/{name}", name, step, 100 + (step or 0), 5, 1000 + (step or 0))


def own(node: int, step: int | None, digest: str = "", written_in: int = 0, name: str = "") -> NodeCheckpoint:
    """A file on a disk of the node's own."""
    name = name or f"{step}.pt"
    return NodeCheckpoint(f"/local/{name}", name, step, 100, 10 * node, 7, digest, written_in)


ROWS = [
    ("all see the newest", [[shared(60), shared(40)]] * 3, 60),
    ("one does not see the newest yet", [[shared(60), shared(40)], [shared(60), shared(40)], [shared(40)]], 40),
    ("the first node does not see it yet", [[shared(40)], [shared(60), shared(40)]], 40),
    ("one has it on a disk of its own, as a copy", [[own(0, 60, "d")], [own(1, 60, "d")]], 60),
    ("each wrote its own shard of one save", [[own(0, 60, "d", 3)], [own(1, 60, "e", 3)]], 60),
    ("the same step of another save", [[own(0, 60, "d", 3), own(0, 40, "c")], [own(1, 60, "e", 2), own(1, 40, "c")]], 40),
    ("the same path and step, and other bytes", [[own(0, 60, "d")], [own(1, 60, "e")]], None),
    ("one path, two steps", [[own(0, 60, "d", name="last.pt")], [own(1, 40, "c", name="last.pt")]], None),
    ("only the node of rank 0 writes", [[own(0, 60), own(0, 40)], []], None),
    ("no node has any", [[], []], None),
    ("a file without a step that all see", [[shared(None, "last.pt")]] * 2, "last.pt"),
]


@pytest.mark.parametrize(("held", "taken"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_newest_that_every_node_has_is_taken(held: list[list[NodeCheckpoint]], taken: int | str | None) -> None:
    whole = [
        rows
        for rows in candidates(held)
        if not accepted(rows, [Proof("", row.step, row.digest) if reads(rows, node) else Proof("") for node, row in enumerate(rows)])
    ]
    first = whole[0] if whole else None
    assert (first and (first[0].step or first[0].name)) == taken
    if first is not None:
        assert len(first) == len(held)


def test_the_order_is_that_of_one_node_whichever_it_is() -> None:
    held = [[shared(40), shared(60)], [shared(60), shared(40), shared(20)], [shared(20), shared(40), shared(60)]]
    for orderer, steps in enumerate(([40, 60], [60, 40], [40, 60])):
        choices = candidates(held, orderer)
        assert [rows[0].step for rows in choices] == steps
        assert all(rows[node] in held[node] for rows in choices for node in range(3)), "the rows are in the order of the nodes"


def test_one_node_reads_a_shared_file_and_one_refusal_ends_it_for_all() -> None:
    (rows,) = candidates([[shared(60)]] * 3)
    assert is_shared(rows)
    assert [reads(rows, node) for node in range(3)] == [True, False, False]
    assert not accepted(rows, [Proof("", 60), Proof(""), Proof("")])
    assert accepted(rows, [Proof("", 60), Proof(""), Proof("it is gone")]) == "node 2: it is gone"
    assert accepted(rows, [Proof("torn"), Proof(""), Proof("")]) == "node 0: torn"


def test_two_files_are_one_checkpoint_by_what_was_read_and_not_by_their_names() -> None:
    (rows,) = candidates([[own(0, 60)], [own(1, 60)]])  # nobody knows yet what they hold
    assert [reads(rows, node) for node in range(2)] == [True, True]
    assert not accepted(rows, [Proof("", 60, "d"), Proof("", 60, "d")])
    assert "different files" in accepted(rows, [Proof("", 60, "d"), Proof("", 60, "e")])
    assert "different files" in accepted(rows, [Proof("", 60, ""), Proof("", 60, "")])
    assert "node 0 has step 60 and node 1 has step 40" in accepted(rows, [Proof("", 60, "d"), Proof("", 40, "d")])


def test_a_message_names_what_a_node_has() -> None:
    assert summary([shared(60), shared(40), shared(20)]) == "step 60, /shared/60.pt and 2 older"
    assert summary([shared(None, "last.pt")]) == "/shared/last.pt"
