"""What the executor hands on of an action."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from health.model import Reading, Readings
from supervisor.checkpoints.repair import RepairPermission
from supervisor.core import actions as act
from supervisor.core.events import LauncherFellBack
from supervisor.core.model import Gpu, Launcher, RankExit
from supervisor.core.state import Attempt, JobState, Run, Stage, StopRequest
from supervisor.core.values import replace
from supervisor.job.clock import Clock
from supervisor.knobs.knob_set import AttemptCommand
from supervisor.run.executor import Executor
from tests.support.waiting import PATIENCE_S, wait_for


def test_the_world_size_reaches_what_is_written_into_files(tmp_path: Path) -> None:
    job, loop, factory = MagicMock(), SimpleNamespace(clock=Clock.start(), post=MagicMock()), MagicMock()
    executor: Any = Executor(job, loop, MagicMock(), factory)  # type: ignore[arg-type]  # a loop that keeps its state
    factory.world_size = lambda nproc: {3: 3}[nproc]
    loop.state = JobState(stage=Stage.STARTING, attempt=Attempt(number=2))
    loop.call_soon = lambda _call: None
    job.cwd, job.attempt_dir = Path.cwd(), lambda _number: tmp_path
    executor._prepare(act.BeginAttempt(2, "failure", None, (("batch_size", "2"),), nproc=3), RepairPermission())  # noqa: SLF001  in its worker thread
    assert job.knobs.apply.call_args.args[3] == 3


def prepared(state: JobState, place: Path, *, several_nodes: bool = False) -> tuple[MagicMock, AttemptCommand]:
    """Have an attempt prepared on a node with a GPU that has bf16 and one that has not; return the job, and the attempt's command."""
    job, loop, factory, done = MagicMock(), SimpleNamespace(clock=Clock.start(), post=MagicMock(), state=state), MagicMock(), []
    loop.call_soon = lambda call: call()
    factory.has_several_nodes = several_nodes
    job.cwd, job.attempt_dir = Path.cwd(), lambda _number: place
    job.knobs.apply.return_value = AttemptCommand(("torchrun", "train.py"), {"A": "1"})
    executor: Any = Executor(job, loop, MagicMock(), factory)  # type: ignore[arg-type]  # a loop that keeps its state
    capabilities = {"GPU-a": [9, 0], "GPU-b": [7, 5]}
    rows = [
        Reading("nvml", f"gpu:{uuid}", name, value)
        for uuid, c in capabilities.items()
        for name, value in (
            ("gpu.identity", {}),
            ("gpu.compute_capability", c),
        )
    ]
    executor.node.health = SimpleNamespace(last_readings=lambda: Readings([*rows, Reading("nvml", "host", "nvml.count", 2)]))
    executor._prepared = lambda *given: done.append(given[3])  # noqa: SLF001
    usable = tuple(gpu.uuid for gpu in state.gpus if not gpu.quarantined) if any(gpu.quarantined for gpu in state.gpus) else ()
    executor._prepare(act.BeginAttempt(2, "failure", None, gpus=usable), RepairPermission())  # noqa: SLF001  in its worker thread
    return job, done[0]


def test_ranks_are_given_the_precision_and_the_shares_of_the_gpus_that_are_left(tmp_path: Path) -> None:
    both = (Gpu(0, "GPU-b"), Gpu(1, "GPU-a"))
    state = JobState(stage=Stage.STARTING, attempt=Attempt(number=2), gpus=both)
    job, applied = prepared(state, tmp_path)
    assert job.knobs.apply.call_args.args[4] == (0, 1)
    assert applied.environment == {"A": "1", "SUPERVISE_JOB_PRECISION": "fp16"}
    job, applied = prepared(replace(state, gpus=(replace(both[0], quarantined="lost"), both[1])), tmp_path)
    assert job.knobs.apply.call_args.args[4] == (1,)
    assert applied.environment["SUPERVISE_JOB_PRECISION"] == "bf16"
    job, applied = prepared(state, tmp_path, several_nodes=True)
    assert job.knobs.apply.call_args.args[4] == ()
    assert applied.environment == {"A": "1"}, "what the GPUs of other nodes have is not known"


def test_an_attempt_that_waits_for_the_journal_is_stopped_at_once() -> None:
    posted: list[Any] = []
    loop = SimpleNamespace(clock=Clock.start(), post=posted.append, state=JobState(stage=Stage.STOPPING, attempt=Attempt(number=2)))
    executor: Any = Executor(MagicMock(), loop, MagicMock(), MagicMock())  # type: ignore[arg-type]  # a loop that keeps its state
    executor.perform(act.StopRanks(2, 15, 30.0, "stop"))
    assert [(event.attempt, event.outcome) for event in posted] == [(2, "stopped")]


def test_no_attempt_falls_back_to_stock_torchrun_once_a_stop_was_requested() -> None:
    loop, factory = MagicMock(), MagicMock()
    executor: Any = Executor(MagicMock(), loop, MagicMock(), factory)
    loop.state = JobState(attempt=Attempt(1), stage=Stage.STARTING)
    executor._prepared(act.BeginAttempt(1, "start", None), "", None, AttemptCommand(("torchrun", "train.py"), {}))  # noqa: SLF001  its worker's answer
    loop.state = JobState(attempt=Attempt(1), stage=Stage.STOPPING, run=Run(stop=StopRequest(15, 1, 0.0)))
    executor.fall_back(LauncherFellBack(0.0, Launcher.STOCK, "torch does not fit"))
    factory.stock_session.assert_not_called()


def test_ranks_wait_for_a_move_of_files_under_way_and_no_other_follows(tmp_path: Path) -> None:
    """A selection that was given up comes back from a disk that hung, just when the next attempt begins."""
    loop, factory, job, asked = MagicMock(), MagicMock(), MagicMock(), SimpleQueue[RepairPermission]()
    job.cwd, job.attempt_dir = Path.cwd(), lambda _number: tmp_path
    moves, moved = threading.Event(), threading.Event()

    def select(*_: object, permission: RepairPermission, **__: object) -> None:
        asked.put(permission)
        with permission.held() as allowed:
            assert allowed
            moves.set()
            moved.wait(60)

    factory.checkpoints.select, factory.checkpoints.problems = select, ()
    loop.state = JobState(stage=Stage.SELECTING)
    executor: Any = Executor(job, loop, MagicMock(), factory)
    executor.perform(act.SelectCheckpoint(0))
    assert moves.wait(PATIENCE_S)
    loop.state = JobState(stage=Stage.STARTING, attempt=Attempt(number=1))
    executor.perform(act.BeginAttempt(1, "start", None))
    loop.call_soon.assert_not_called()
    moved.set()
    wait_for(lambda: loop.call_soon.called, "the attempt is prepared", 10)
    with asked.get().held() as allowed:
        assert not allowed


def test_a_late_order_does_not_end_an_attempt_whose_nodes_have_met() -> None:
    posted: list[Any] = []
    loop, job = MagicMock(), MagicMock()
    loop.post, loop.state = posted.append, JobState(stage=Stage.STARTING, attempt=Attempt(number=1))
    executor: Any = Executor(job, loop, MagicMock(), MagicMock())
    executor._prepared(act.GatherNodes(1), "", None, None)  # noqa: SLF001  its worker's answer
    loop.state = JobState(stage=Stage.FOLLOWING, attempt=Attempt(number=1))
    executor.perform(act.BeginAttempt(1, "start", None))  # another node's rank failed while the journal was waited for
    assert posted == []


def test_saves_of_mixed_attempts_are_found_after_the_wall_clock_was_set_back() -> None:
    """The times of files follow the wall clock; the loop's clock takes no notice of who sets it."""
    loop, factory = MagicMock(), MagicMock()
    an_hour_ahead = Clock(time.time() + 3600.0, time.monotonic())
    loop.clock, loop.state = an_hour_ahead, JobState(run=Run(diverged_since_t=an_hour_ahead.now() - 60.0))
    executor: Any = Executor(MagicMock(), loop, MagicMock(), factory)
    executor._checkpoints.distrust()  # noqa: SLF001  in a thread of the collection's
    (since_t,) = factory.checkpoints.node_offer.reject_mixed.call_args.args
    assert abs(since_t - (time.time() - 60.0)) < 30.0, "an hour, and not what a busy machine takes"


def ending(executor: Any) -> list[Any]:  # noqa: ANN401  a part of it
    """Have the executor's loop keep what it is to do, and return that."""
    calls: list[Any] = []
    executor._loop.call_soon = calls.append  # noqa: SLF001
    return calls


def test_processes_of_a_guardian_that_dies_during_the_finish_are_ended() -> None:
    loop, factory = MagicMock(), MagicMock()
    loop.state = JobState(attempt=Attempt(1))
    executor: Any = Executor(MagicMock(), loop, MagicMock(), factory)
    executor.guardian()
    executor.perform(act.Finish(65, "a failure"))
    factory.start_guardian.return_value.end.assert_called_once()
    factory.start_guardian.return_value.exit_status.return_value = None, 9
    calls = ending(executor)
    executor._guardian._ended()  # noqa: SLF001  as its client reports
    wait_for(lambda: calls, "the sweep", 10)
    factory.end_orphans.assert_called_once_with()
    executor.nodes.close.assert_not_called()
    for _, late in [call.args for call in loop.call_later.call_args_list]:
        late()  # the deadline for the guardian's answer
    executor.nodes.close.assert_not_called()
    calls.pop()()
    executor.nodes.close.assert_called_once()


def test_the_nodes_hear_of_an_attempts_end_on_the_loops_thread() -> None:
    loop = MagicMock()
    loop.state = JobState(attempt=Attempt(1))
    executor: Any = Executor(MagicMock(), loop, MagicMock(), MagicMock())
    calls = ending(executor)
    executor.perform(act.EndLauncher(1, "the guardian ended"))
    wait_for(lambda: calls, "the sweep", 10)
    executor.nodes.no_meeting.assert_not_called()
    loop.post.assert_not_called()
    calls.pop()()
    executor.nodes.no_meeting.assert_called_once_with()
    assert [(event.attempt, event.outcome) for (event,), _ in loop.post.call_args_list] == [(1, "failed")]


def test_late_evidence_belongs_to_its_attempt_and_not_to_the_next() -> None:
    """The disk did not answer: the core judged by the deaths, and began the next attempt."""
    loop, reporter = MagicMock(clock=Clock.start()), MagicMock()
    executor: Any = Executor(MagicMock(), loop, reporter, MagicMock())
    begin, deaths = act.BeginAttempt(1, "start", None), (RankExit(0, 100, 5, signal=9),)
    loop.state = JobState(stage=Stage.STARTING, attempt=Attempt(1))
    executor._prepared(begin, "", None, None)  # noqa: SLF001
    loop.state = JobState(stage=Stage.TEARDOWN, attempt=Attempt(1, deaths=deaths))
    watchers, asked, calls = executor.watch.watchers, SimpleQueue[Any](), ending(executor)
    executor.watch.sources = lambda *args: asked.put(args) or {}
    executor.perform(act.CollectEvidence(1, 1, 0.2))
    loop.state = JobState(stage=Stage.STARTING, attempt=Attempt(2))
    executor._prepared(act.BeginAttempt(2, "failure", None), "", None, None)  # noqa: SLF001
    assert executor.watch.watchers is not watchers
    number, given, _, _, of_deaths, _ = asked.get(timeout=PATIENCE_S)
    assert (number, given, of_deaths) == (1, watchers, deaths)
    wait_for(lambda: calls, "the evidence", 10)
    executor.watch.stop()
