"""Nodes, each with its own state directory and checkpoints of torch's, agree on what to resume from."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
import torch

from checkpointing.io import reader
from supervisor.checkpoints import node_agreement, shared_directories
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.node_offer import NodeOffer
from supervisor.config.settings import Checkpoints, Settings
from supervisor.core.actions import SelectCheckpoint
from supervisor.core.model import Cause, Failure, Knob, PastFailures
from supervisor.core.setup_model import HeldBatch
from supervisor.core.values import replace
from supervisor.job.job import Job
from supervisor.knobs.knob_set import KnobSet, ResumeWay
from supervisor.node.node_check import NodeCheckResult
from supervisor.node.node_environment import EnvironmentComparison

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.io.read_watch import ReadWatch
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.core.events import CheckpointSelected

DEADLINE_S = 60.0
SWITCH = ResumeWay(Knob("resume", "", "--init_from=resume", by="nanogpt", counts="switch"), "--init_from=resume")


def ignore(_report: CheckpointReport) -> None:
    """Nobody reads these reports."""


class Nodes:
    """So many nodes; `shared`: their checkpoints lie in one directory, else each has one of its own. pattern: of these below it."""

    def __init__(self, place: Path, count: int, *, shared: bool, pattern: str = "*.pt", mirror: tuple[str, ...] = (), **keep: int) -> None:
        self.directories = [place / "ckpt" if shared else place / f"ckpt-{node}" for node in range(count)]
        self.nodes = []
        self.environments: dict[int, str] = {}
        self.check: Any = None
        self.warned: list[str] = []
        self.on_gathered: Callable[[int, list[str]], None] = lambda _number, _texts: None
        for node, directory in enumerate(self.directories):
            directory.mkdir(exist_ok=True)
            settings = Settings(checkpoints=Checkpoints(paths=(f"{directory}/{pattern}",), mirror=mirror, **keep))
            # a directory above it is not shared: a node learns from those beside its own which attempts there were
            state, here = place / f"node-{node}" / "state", directory if mirror else place
            run, environ = f"run-{node}" if mirror else "run", dict(os.environ)
            job = Job("job", run, f"n{node}", ("torchrun",), here, environ, settings, state, state, "cookie")
            self.nodes.append(JobCheckpoints(job, ignore, several_nodes=bool(mirror)))
            self.nodes[-1].node_offer.look_s = 0.0  # of a local disk all is seen at once

    def saved(self, step: int, *nodes: int) -> None:
        """Save the same content on some nodes."""
        for node in nodes:
            torch.save({"step": step, "w": torch.full((8,), float(step))}, self.directories[node] / f"step-{step}.pt")

    def torn(self, step: int, node: int) -> None:
        """Leave a save of a node half written."""
        path = self.directories[node] / f"step-{step}.pt"
        self.saved(step, node)
        path.write_bytes(path.read_bytes()[:-100])

    def recognised(self, *nodes: int) -> None:
        """Have the commands of some nodes show that they resume by a program's option."""
        for node, checkpoints in enumerate(self.nodes):
            job = replace(checkpoints.records.job, knobs=KnobSet(resume=(SWITCH,) if node in nodes else ()))
            self.nodes[node] = JobCheckpoints(job, ignore)
            self.nodes[node].node_offer.look_s = 0.0

    def agree(self, *request: SelectCheckpoint) -> list[CheckpointSelected]:
        """Let all agree, each in a thread of its own, and return what each came to."""
        count = len(self.nodes)
        texts: dict[int, list[str]] = {}
        barrier = threading.Barrier(count, timeout=DEADLINE_S)
        selections: dict[int, CheckpointSelected] = {}

        def run(node: int) -> None:
            def say(number: int, text: str) -> list[str]:
                texts.setdefault(number, [""] * count)[node] = text
                barrier.wait()
                if node == 0:
                    self.on_gathered(number, texts[number])
                return texts[number]

            action = request[node] if request else SelectCheckpoint(1, nodes=count, node=node)
            comparison = EnvironmentComparison(self.environments.get(node, ""), self.warned.append)
            selections[node] = node_agreement.agree(
                action,
                self.nodes[node].node_offer,
                say,
                comparison,
                host=f"n{node}",
                suspect=False,
                t=5.0,
                check=self.check,
            )

        threads = [threading.Thread(target=run, args=(node,)) for node in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        return [selections[node] for node in range(count)]

    def steps(self, selections: list[CheckpointSelected]) -> list[int | None]:
        """Return the step of each node's choice, which lies in its own directory."""
        for selection, directory in zip(selections, self.directories, strict=True):
            assert selection.chosen is None or selection.chosen.path.startswith(f"{directory}/")
        return [selection.chosen.step if selection.chosen else None for selection in selections]


def test_of_a_shared_directory_all_take_the_newest_and_one_reads_it(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3, shared=True)
    nodes.saved(40, 0)
    nodes.saved(60, 0)
    selections = nodes.agree()
    assert nodes.steps(selections) == [60, 60, 60]
    assert [selection.chosen and selection.chosen.level for selection in selections] == ["structure", "identity", "identity"]
    assert [[ref.step for ref in selection.older] for selection in selections] == [[40]] * 3
    assert {selection.agreement for selection in selections} == {1}


class SlowDisk:
    """The reads of a node's checkpoints continue by one piece each time that it is allowed, or never return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.goes_on, self.n_asked = threading.Event(), threading.Event(), 0
        real = os.preadv

        def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
            if Path(f"/proc/self/fd/{fd}").readlink().name == "step-60.pt":
                self.n_asked += 1
                self.asked.set()
                self.goes_on.wait(DEADLINE_S)
            return real(fd, buffers, offset)

        monkeypatch.setattr(reader.os, "preadv", preadv)

    def hangs_for(self, watch: ReadWatch) -> None:
        """Let the time of this watch go by while a read hangs that it has not left, and only then."""
        t = 0.0

        def wait(done: threading.Event, look_s: float) -> bool:
            nonlocal t
            if self.n_asked > len(watch._left):  # noqa: SLF001
                t += look_s
                return done.wait(0.0005)
            return done.wait(0.01)

        watch._wait, watch._clock = wait, lambda: t  # noqa: SLF001


def test_a_node_that_still_reads_is_waited_for_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: the nodes ask each other again, so that none of them thinks that nothing moves."""
    monkeypatch.setattr(node_agreement, "READING_S", 0.02)
    disk, nodes = SlowDisk(monkeypatch), Nodes(tmp_path, 2, shared=True)
    nodes.saved(40, 0)
    nodes.saved(60, 0)
    rounds: list[int] = []

    def moves() -> None:
        disk.asked.wait(DEADLINE_S)
        while len(rounds) < 5:  # bytes come, and the checkpoint is not read to its end
            nodes.nodes[0].note_move()
            time.sleep(0.005)
        disk.goes_on.set()

    def gathered(number: int, _texts: list[str]) -> None:
        if number > node_agreement._FIRST_PROOF:  # noqa: SLF001
            rounds.append(number)

    nodes.on_gathered = gathered
    mover = threading.Thread(target=moves)
    mover.start()
    selections = nodes.agree()
    mover.join()
    assert nodes.steps(selections) == [60, 60]
    assert len(rounds) >= 5
    assert [selection.silent for selection in selections] == [(), ()]


def test_where_no_byte_comes_to_one_node_all_take_the_older_one_and_where_none_is_left_all_know_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, nodes = SlowDisk(monkeypatch), Nodes(tmp_path, 2, shared=True)
    disk.hangs_for(nodes.nodes[0].records.reads)  # of a shared file the first node reads the bytes
    nodes.saved(60, 0)
    none = nodes.agree()
    assert [(selection.chosen, selection.silent) for selection in none] == [(None, none[0].silent)] * 2
    assert "no byte" in str(none[0].silent)
    nodes.saved(40, 0)
    selections = nodes.agree()
    disk.goes_on.set()
    assert nodes.steps(selections) == [40, 40]
    assert all("step-60.pt" in str(selection.silent) for selection in selections)


def test_a_torn_one_is_passed_over_by_all_and_says_so(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    nodes.saved(40, 0)
    nodes.torn(60, 0)
    selections = nodes.agree()
    assert nodes.steps(selections) == [40, 40]
    assert all("step-60.pt" in str(selection.refused) for selection in selections)


def test_a_newer_one_that_a_node_cannot_read_is_named_by_it(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.saved(40, 0, 1)
    nodes.saved(60, 0)
    loop = nodes.directories[1] / "step-60.pt"
    loop.symlink_to(loop)
    selections = nodes.agree()
    assert nodes.steps(selections) == [40, 40]
    ((path, reason),) = selections[1].passed_over
    assert (path, "Too many levels of symbolic links" in reason) == (str(loop), True)
    assert selections[0].passed_over == (), "the copy of the first node is whole, and no other node has it"


def test_nodes_with_the_same_copies_on_their_own_disks_take_the_newest_that_both_have(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.saved(40, 0, 1)
    nodes.saved(60, 0, 1)
    nodes.saved(80, 0)
    assert nodes.steps(nodes.agree()) == [60, 60]
    nodes.torn(60, 1)
    assert nodes.steps(nodes.agree()) == [40, 40]


def test_the_same_name_and_step_with_other_bytes_is_another_checkpoint(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.saved(60, 0)
    torch.save({"step": 60, "w": torch.zeros(8)}, nodes.directories[1] / "step-60.pt")
    selections = nodes.agree()
    assert nodes.steps(selections) == [None, None]
    assert "different files" in str(selections[0].node_offers)


def test_with_a_checkpoint_on_one_node_alone_none_begins_and_the_offers_are_shown(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.saved(60, 0)
    selections = nodes.agree()
    assert nodes.steps(selections) == [None, None]
    assert [selection.node_offers for selection in selections] == [
        (("n0", f"step 60, {nodes.directories[0]}/step-60.pt"), ("n1", "none"))
    ] * 2


def test_where_none_has_any_all_begin_from_scratch_unless_one_knew_better(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    assert [(selection.chosen, selection.n_found, selection.node_offers) for selection in nodes.agree()] == [(None, 0, ())] * 2
    known = nodes.agree(SelectCheckpoint(1, nodes=2, node=0), SelectCheckpoint(1, nodes=2, node=1, had_checkpoint=True))
    assert [bool(selection.node_offers) for selection in known] == [True, True]


def test_a_node_that_joins_takes_the_knobs_and_leaves_out_what_the_others_do(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    for step in (40, 60):
        nodes.saved(step, 0)
    bad = f"{nodes.directories[0]}/step-60.pt"
    failed = Failure(8, 0.0, Cause.NAN_LOSS, "nan", 60, before_first_step=False, charged=True)
    past = PastFailures((failed,), failed=3, charged=1, recurrences=(("nan", 2),))
    joins = SelectCheckpoint(9, nodes=2, node=0, overrides=(("batch_size", "64"),), past=PastFailures())
    went_on = SelectCheckpoint(9, (bad,), nodes=2, node=1, last_agreement=8, overrides=(("batch_size", "16"),), past=past)
    selections = nodes.agree(joins, went_on)
    assert nodes.steps(selections) == [40, 40]
    assert [selection.past for selection in selections] == [past] * 2, "the budgets are the job's"
    assert [(selection.agreement, selection.overrides, selection.rejected) for selection in selections] == [
        (9, (("batch_size", "16"),), (bad,))
    ] * 2


def test_the_batch_of_those_that_left_at_the_first_meeting_is_held_though_the_first_node_did_not_see_them_leave(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    batches = HeldBatch(2), HeldBatch(3, (("grad_accum", "3"),))
    selections = nodes.agree(*(SelectCheckpoint(2, nodes=2, node=node, batch=batches[node]) for node in range(2)))
    assert [selection.batch for selection in selections] == [batches[1]] * 2


def test_a_node_that_missed_that_the_batch_was_halved_does_not_undo_it_though_it_knows_of_more_ranks(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    halved, before = (("batch_size", "4"),), (("batch_size", "8"),)
    acted = SelectCheckpoint(6, nodes=2, node=0, last_agreement=5, overrides=halved, batch=HeldBatch(2))
    missed = SelectCheckpoint(6, nodes=2, node=1, last_agreement=5, overrides=before, batch=HeldBatch(3))
    assert [(selection.overrides, selection.batch) for selection in nodes.agree(acted, missed)] == [(halved, HeldBatch(2))] * 2


def test_a_node_that_missed_the_newest_attempt_does_not_tell_the_others_which_checkpoint_is_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what node 0 knows, step 60 was there before its first attempt, and step 40 is of that attempt."""
    nodes, now = Nodes(tmp_path, 2, shared=True), time.time()
    for step, at in ((60, now + 1), (40, now + 3)):
        nodes.saved(step, 0)
        os.utime(nodes.directories[0] / f"step-{step}.pt", (at, at))
    for node, attempt, at in ((1, 2, now), (0, 1, now + 2)):
        with monkeypatch.context() as clock:
            clock.setattr("supervisor.checkpoints.origin.order.time.time_ns", lambda at=at: int(at * 1e9))
            nodes.nodes[node].began(attempt)
    missed = SelectCheckpoint(3, nodes=2, node=0, last_agreement=1)
    assert nodes.steps(nodes.agree(missed, SelectCheckpoint(3, nodes=2, node=1, last_agreement=2))) == [60, 60]
    assert nodes.steps(nodes.agree(missed, SelectCheckpoint(3, nodes=2, node=1, last_agreement=1))) == [40, 40], "as node 0 has it"


@pytest.mark.parametrize(("least", "most", "leaves"), [(2, 3, True), (3, 3, False), (3, 4, True)])
def test_a_joining_node_without_the_others_checkpoint_leaves_where_they_can_continue(
    tmp_path: Path,
    least: int,
    most: int,
    leaves: bool,  # noqa: FBT001  a column of the table
) -> None:
    """Of three that are needed, where a fourth may come, two wait for it."""
    nodes = Nodes(tmp_path, 3, shared=False)
    nodes.saved(60, 1, 2)
    requests = [
        SelectCheckpoint(5, nodes=3, node=n, last_agreement=4 * bool(n), had_checkpoint=bool(n), least_nodes=least, most_nodes=most)
        for n in range(3)
    ]
    selections = nodes.agree(*requests)
    assert [selection.this_node_leaves for selection in selections] == [leaves, False, False]
    assert [selection.peer_leaves for selection in selections] == [False, leaves, leaves]
    assert nodes.steps(selections) == [None] * 3


def test_of_two_joining_nodes_only_the_one_without_the_checkpoint_leaves(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3, shared=False)
    nodes.saved(60, 0, 1)
    requests = [
        SelectCheckpoint(5, nodes=3, node=n, last_agreement=4 * (not n), had_checkpoint=not n, least_nodes=1, most_nodes=3)
        for n in range(3)
    ]
    assert [selection.this_node_leaves for selection in nodes.agree(*requests)] == [False, False, True]


@pytest.mark.parametrize(("by", "leaves"), [((), [False, False]), (("nanogpt",), [False, True])])
def test_where_the_script_finds_its_checkpoint_by_itself_a_node_that_knows_of_none_joins(
    tmp_path: Path, by: tuple[str, ...], leaves: list[bool]
) -> None:
    """Nothing is declared, and a node that joins has seen no save yet: it does not know where they are."""
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.saved(60, 0)
    requests = [
        SelectCheckpoint(5, nodes=2, node=n, last_agreement=4 * (not n), least_nodes=1, most_nodes=2, programs=by, resume_knobs=by)
        for n in range(2)
    ]
    selections = nodes.agree(*requests)
    assert [selection.this_node_leaves for selection in selections] == leaves
    assert [selection.peer_leaves for selection in selections] == leaves[::-1]


def test_a_node_with_an_empty_disk_leaves_whatever_it_agreed_on_before(
    tmp_path: Path,
) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.saved(60, 1)
    requests = [SelectCheckpoint(5, nodes=2, node=n, last_agreement=4, had_checkpoint=True, least_nodes=1, most_nodes=2) for n in range(2)]
    assert [(selection.this_node_leaves, selection.peer_leaves) for selection in nodes.agree(*requests)] == [(True, False), (False, True)]
    nodes.saved(80, 0)
    selections = nodes.agree(*requests)
    assert not any(selection.this_node_leaves or selection.peer_leaves for selection in selections), "nobody knows whose is the job's"


def test_a_save_made_while_nodes_trained_from_different_states_is_never_taken(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    for step in (40, 60, 80):
        nodes.saved(step, 0)
    old = nodes.directories[0] / "step-40.pt"
    os.utime(old, (1000.0, 1000.0))
    began = (nodes.directories[0] / "step-60.pt").stat().st_mtime
    requests = [SelectCheckpoint(2, nodes=2, node=n, last_agreement=1, diverged_since_t=began if n else None) for n in range(2)]
    selections = nodes.agree(*requests)
    assert nodes.steps(selections) == [40, 40]
    assert "different states" in str(selections[0].torn)
    assert nodes.steps(nodes.agree()) == [40, 40]  # also without being told again
    alone = nodes.nodes[0].select(1.0, 3).chosen
    assert alone is not None
    assert alone.step == 40


def test_a_checkpoint_that_changes_during_the_agreement_is_not_taken(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    for step in (40, 60):
        nodes.saved(step, 0)
    newest = nodes.directories[0] / "step-60.pt"
    offer = nodes.nodes[1].node_offer.list_checkpoints

    def offered(*args: object) -> object:
        selections = offer(*args)  # type: ignore[arg-type]
        os.utime(newest, ns=(7, 7))  # the others' pruning, say
        return selections

    nodes.nodes[1].node_offer.list_checkpoints = offered  # type: ignore[assignment, method-assign]
    assert nodes.steps(nodes.agree()) == [40, 40]


def test_all_nodes_know_that_the_ranks_of_one_were_seen_to_load(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    requests = [SelectCheckpoint(2, nodes=2, node=n, ever_loaded=not n) for n in range(2)]
    assert [selection.ever_loaded for selection in nodes.agree(*requests)] == [True, True]
    nodes.saved(40, 0)
    assert [selection.ever_loaded for selection in nodes.agree(*requests)] == [True, True]


def test_all_nodes_know_whether_the_ranks_of_any_were_seen_to_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    seen = [False, False]
    monkeypatch.setattr(NodeOffer, "has_saved", property(lambda offer: seen[[node.node_offer for node in nodes.nodes].index(offer)]))
    assert [event.has_saved for event in nodes.agree()] == [False, False]
    seen[1] = True
    assert [event.has_saved for event in nodes.agree()] == [True, True]


@pytest.mark.parametrize("seen", [0, 1])
def test_all_nodes_add_a_programs_option_once_one_of_them_saw_it_run(tmp_path: Path, seen: int) -> None:
    """A node that joins has seen none yet. Without this only the others would resume."""
    nodes = Nodes(tmp_path, 2, shared=True)
    nodes.recognised(0, 1)
    nodes.saved(40, 0)
    requests = [SelectCheckpoint(2, nodes=2, node=n, programs=("nanogpt",) * (n == seen), resume_knobs=("nanogpt",)) for n in range(2)]
    selections = nodes.agree(*requests)
    assert [(selection.programs, selection.resume_differs) for selection in selections] == [(("nanogpt",), False)] * 2
    assert nodes.steps(selections) == [40, 40]
    assert all(node.records.script_chooses for node in nodes.nodes)


NANOGPT, DECLARED = ("nanogpt",), ("declared",)


@pytest.mark.parametrize(
    ("knobs", "texts"),
    [
        ((NANOGPT, ()), ("by nanogpt's option", "nothing is added to its command")),
        (((), NANOGPT, DECLARED), ("nothing is added to its command", "by nanogpt's option", "by its command")),
        ((NANOGPT, DECLARED), ()),  # all resume
        (((), DECLARED), ()),  # what the user writes is the user's
        (((), ()), ()),
    ],
)
def test_a_programs_option_that_only_some_commands_can_take_stops_all_nodes(
    tmp_path: Path, knobs: tuple[tuple[str, ...], ...], texts: tuple[str, ...]
) -> None:
    nodes = Nodes(tmp_path, len(knobs), shared=True)
    requests = [
        SelectCheckpoint(2, nodes=len(knobs), node=n, programs=NANOGPT, resume_knobs=selection) for n, selection in enumerate(knobs)
    ]
    assert not any(selection.resume_differs for selection in nodes.agree(*requests)), "there is nothing to resume from"
    nodes.saved(40, 0)
    selections = nodes.agree(*requests)
    assert nodes.steps(selections) == [None if texts else 40] * len(knobs)
    assert [selection.resume_differs for selection in selections] == [bool(texts)] * len(knobs)
    assert {selection.node_offers for selection in selections} == {tuple((f"n{node}", text) for node, text in enumerate(texts))}


def test_a_node_that_cannot_look_holds_the_others_back_and_says_why(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    nodes.saved(60, 0)

    def broken(*_: object) -> object:
        raise OSError(5, "Input/output error")

    nodes.nodes[1].node_offer.list_checkpoints = broken  # type: ignore[assignment, method-assign]
    selections = nodes.agree()
    assert nodes.steps(selections) == [None, None]
    assert all("Input/output error" in str(selection.node_offers) for selection in selections)


def test_nodes_that_cannot_work_together_look_at_no_checkpoint_and_all_learn_why(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3, shared=True)
    nodes.saved(40, 0)
    for node, level in enumerate(("INFO", "INFO", "DETAIL")):
        nodes.environments[node] = json.dumps({"env.versions": {"torch": "2"}, "env.variables": {"TORCH_DISTRIBUTED_DEBUG": level}})
    selections = nodes.agree()
    assert nodes.steps(selections) == [None, None, None]
    assert len({selection.cannot_work for selection in selections}) == 1
    assert "TORCH_DISTRIBUTED_DEBUG differs: DETAIL on n2; INFO on n0, n1" in selections[0].cannot_work[0]
    assert not any(selection.this_node_leaves or selection.peer_leaves for selection in selections)
    assert {selection.agreement for selection in selections} == {1}


@pytest.mark.parametrize(
    ("agreed", "leaves"), [((4, 4, 0), [False, False, True]), ((4, 0, 0), [False, False, True]), ((0, 0, 4), [True, True, False])]
)
def test_a_node_that_joins_with_an_environment_of_its_own_goes_and_ends_no_job(
    tmp_path: Path, agreed: tuple[int, ...], leaves: list[bool]
) -> None:
    nodes = Nodes(tmp_path, 3, shared=True)
    nodes.saved(40, 0)
    for node, level in enumerate(("INFO", "INFO", "DETAIL")):
        nodes.environments[node] = json.dumps({"env.versions": {"torch": "2"}, "env.variables": {"TORCH_DISTRIBUTED_DEBUG": level}})
    requests = [SelectCheckpoint(5, nodes=3, node=n, last_agreement=last, least_nodes=1, most_nodes=3) for n, last in enumerate(agreed)]
    selections = nodes.agree(*requests)
    assert [selection.this_node_leaves for selection in selections] == leaves
    assert [selection.peer_leaves for selection in selections] == [not selection for selection in leaves]
    assert all(selection.cannot_work for selection in selections)


def test_a_node_that_joins_with_another_command_goes_and_ends_no_job(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3, shared=True)
    nodes.saved(40, 0)
    knobs = (NANOGPT, NANOGPT, ())
    requests = [
        SelectCheckpoint(
            5, nodes=3, node=n, last_agreement=4 * (n < 2), least_nodes=2, most_nodes=3, programs=NANOGPT, resume_knobs=selection
        )
        for n, selection in enumerate(knobs)
    ]
    selections = nodes.agree(*requests)
    assert [(selection.this_node_leaves, selection.peer_leaves) for selection in selections] == [
        (False, True),
        (False, True),
        (True, False),
    ]
    assert all(selection.resume_differs for selection in selections)


def test_a_node_that_compares_nothing_leaves_the_agreement_as_it_is(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    nodes.saved(40, 0)
    nodes.environments[0] = json.dumps({"env.versions": {"torch": "2"}})
    assert nodes.steps(nodes.agree()) == [40, 40]
    assert not nodes.warned


def test_directories_that_are_not_shared_are_named_before_anything_is_saved(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    first, other = nodes.agree()
    assert first.notes == other.notes
    assert [f"n{node}: {directory}" in first.notes[0] for node, directory in enumerate(nodes.directories)] == [True, True]
    assert [selection.notes for selection in nodes.agree()] == [(), ()], "once"
    assert [list(directory.iterdir()) for directory in nodes.directories] == [[], []], "the markers are gone"


def test_a_shared_directory_gets_no_note_and_no_file(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3, shared=True)
    nodes.directories[0].rmdir()  # the script makes it
    assert [(selection.notes, selection.chosen) for selection in nodes.agree()] == [((), None)] * 3
    assert not list(tmp_path.glob(".supervise-*"))
    nodes.directories[0].mkdir()
    nodes.saved(60, 0)
    assert [selection.notes for selection in nodes.agree()] == [()] * 3
    assert [path.name for path in nodes.directories[0].iterdir()] == ["step-60.pt"]


def test_the_same_path_on_two_machines_is_no_shared_directory_and_another_path_to_one_directory_is(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.directories[1].rmdir()
    nodes.directories[1].symlink_to(nodes.directories[0])  # as a mount has another name on each node
    assert [selection.notes for selection in nodes.agree()] == [()] * 2


def test_a_client_that_sees_late_what_another_made_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    real, n_looks = shared_directories.durable.read, 0

    def read(path: str, most: int = -1) -> bytes:
        nonlocal n_looks
        n_looks += 1
        if n_looks <= 6:
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, most)

    for node in nodes.nodes:
        node.node_offer.look_s = 20.0
    monkeypatch.setattr(shared_directories.durable, "read", read)
    assert [selection.notes for selection in nodes.agree()] == [()] * 2
    assert n_looks > 6


def test_a_node_without_the_newest_checkpoint_gets_the_command_that_copies_it(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=False)
    nodes.saved(60, 0)
    source, target = f"{nodes.directories[0]}/step-60.pt", f"{nodes.directories[1]}/"
    for selection in nodes.agree():
        assert "the nodes have directories of their own" in selection.remedy
        assert f"on n1: rsync -a --ignore-existing n0:{source} {target}" in selection.remedy


def test_a_marker_of_a_killed_supervisor_goes_after_a_day(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, shared=True)
    old, young = (nodes.directories[0] / f".supervise-shared-{name}" for name in ("old", "young"))
    for path in (old, young):
        path.touch()
    os.utime(old, (1000.0, 1000.0))
    nodes.agree()
    assert list(nodes.directories[0].iterdir()) == [young]


@pytest.mark.parametrize("unfit", [(), ((1, "rank 1 fails"),)], ids=["all are well", "one fails"])
def test_a_node_check_for_one_node_runs_on_all_and_an_unfit_node_stops_all(tmp_path: Path, unfit: tuple[tuple[int, str], ...]) -> None:
    nodes = Nodes(tmp_path, 3, shared=True)
    nodes.saved(40, 0)
    requests = [SelectCheckpoint(1, nodes=3, node=node, check=why) for node, why in enumerate(("start", "", "doubt"))]
    nodes.check = MagicMock()
    nodes.check.run.return_value = NodeCheckResult(unfit, may_leave=True)
    selections = nodes.agree(*requests)
    assert sorted(call.args[1:] for call in nodes.check.run.call_args_list) == [(node, "doubt") for node in range(3)]
    assert [selection.unfit for selection in selections] == [unfit] * 3
    assert nodes.steps(selections) == ([None] * 3 if unfit else [40] * 3)
    nodes.check.reset_mock()
    nodes.agree()
    assert not nodes.check.run.called


@pytest.mark.parametrize(
    ("least", "unfit", "may_leave", "leaves"),
    [
        (2, (1,), True, [False, True, False]),
        (1, (0, 2), True, [True, False, True]),
        (3, (1,), True, [False] * 3),
        (2, (0, 1), True, [False] * 3),
        (2, (1,), False, [False] * 3),
    ],
    ids=["one", "two", "all are needed", "too few are left", "the others need it, or it would come back"],
)
def test_a_node_that_fails_the_node_check_goes_alone_where_the_others_are_enough(
    tmp_path: Path,
    least: int,
    unfit: tuple[int, ...],
    may_leave: bool,  # noqa: FBT001  a column of the table
    leaves: list[bool],
) -> None:
    nodes = Nodes(tmp_path, 3, shared=True)
    nodes.saved(40, 0)
    nodes.check = MagicMock()
    stays = () if may_leave else unfit
    nodes.check.run.return_value = NodeCheckResult(tuple((node, "it fails") for node in unfit), stays, may_leave)
    batch = HeldBatch(3)
    requests = [SelectCheckpoint(1, nodes=3, node=node, check="start", least_nodes=least, most_nodes=4, batch=batch) for node in range(3)]
    selections = nodes.agree(*requests)
    assert [selection.this_node_leaves for selection in selections] == leaves
    assert [selection.peer_leaves for selection in selections] == [any(leaves) and not selection for selection in leaves]
    assert [selection.not_excluded for selection in selections] == [stays] * 3
    assert [selection.batch.ranks for selection in selections] == [3] * 3, "the batch that is held is that of all who met"
    assert nodes.steps(selections) == [None] * 3


def test_a_directory_whose_name_is_not_utf_8_is_refused_on_all_nodes_and_ends_none(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"\xe9t\xe9")
    place.mkdir()
    nodes = Nodes(place, 2, shared=True)
    nodes.saved(40, 0)
    assert [[why for _, why in selection.refused] for selection in nodes.agree()] == [["its name is not UTF-8"]] * 2
