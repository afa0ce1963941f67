"""The answer of a rank: our line, and the JSON of torch's recorders, of each backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.observe.hangs.recorder import Collective, ProcessGroup, read

OURS: dict[str, Any] = {"groups": {"0": {"ranks": [0, 1], "backend": "cpu:gloo,cuda:nccl", "timeout_s": 600.0}}}


def entry(name: str, sequence: int, **more: object) -> dict[str, object]:
    known = {"collective_seq_id": sequence, "p2p_seq_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": name}
    return {**known, "is_p2p": False, "state": "scheduled", "retired": False, "input_sizes": [[2, 3]], "timeout_ms": 77000, **more}


def answer(*recorders: object, own: object = OURS) -> bytes:
    return b"\n".join(json.dumps(recorder).encode() for recorder in (own, *recorders))


def test_both_recorders_of_one_group_are_two() -> None:
    nccl = {
        "entries": [entry("nccl:all_reduce", 1, state="completed"), entry("nccl:_all_gather_base", 2, state="started")],
    }
    gloo = {"entries": [entry("gloo:barrier", 1, retired=True, input_sizes=[])]}
    recording = read(answer(nccl, gloo))
    assert recording.unreadable == ""
    assert [(group.name, group.backend, group.ranks, group.timeout_s) for group in recording.groups] == [
        ("0", "nccl", (0, 1), 600.0),
        ("0", "gloo", (0, 1), 600.0),
    ]
    assert recording.groups[0].pending == Collective("_all_gather_base", 2, done=False, sizes=((2, 3),), timeout_s=77.0)
    assert recording.groups[1].pending is None


def test_a_group_without_a_collective_is_named() -> None:
    (group,) = read(answer({"entries": []})).groups
    assert (group.name, group.ranks, group.last) == ("0", (0, 1), ())


def test_a_recorder_that_is_off_and_none_at_all() -> None:
    assert read(answer({"version": "2.10"})).unreadable == ""
    assert read(answer()).unreadable == "its torch has no recorder that writes JSON"


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"no json", answer([1]), answer({"entries": [{}]}), answer(own={"groups": [1]})])
def test_an_unexpected_document_is_unreadable_and_raises_nothing(text: bytes) -> None:
    assert "not as expected" in read(text).unreadable


@pytest.mark.parametrize(("backend", "pending"), [("nccl", None), ("gloo", 1)])
def test_the_parts_of_a_coalesced_collective_of_nccl_are_over_with_it(backend: str, pending: int | None) -> None:
    group = ProcessGroup("0", backend=backend, last=(Collective("all_reduce", 1, done=False), Collective("coalesced", 2, done=True)))
    assert (group.pending and group.pending.sequence) == pending
