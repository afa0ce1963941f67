"""The heartbeats of a running attempt: one reading, from which progress and hangs are posted."""

from __future__ import annotations

import os
import queue
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.config.settings import Settings
from supervisor.core.checkpoint_model import CheckpointOwner, LoadedCheckpoint
from supervisor.core.events import CheckpointsLoaded, HangCleared, HangConfirmed, HangSuspected, ProgressObserved
from supervisor.core.model import RankInfo
from supervisor.core.state import Attempt, JobState, Stage
from supervisor.core.values import replace
from supervisor.instrument._supervise_shim.claim import TRAINS, ProcessIdentity, claim
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.observe.hangs import look
from supervisor.observe.hangs.watch import HangWatch
from supervisor.observe.ranks import heartbeats
from supervisor.run.rank_sampling import RankLooks, RankSampling, suspended_s
from supervisor.run.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class VirtualLoop:
    """A loop whose time is what the test sets, and whose workers run at once."""

    t: float = 1000.0
    posted: list[Any] = field(default_factory=list)
    state: Any = field(default_factory=lambda: JobState(stage=Stage.RUNNING))
    waits: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def clock(self) -> Any:  # noqa: ANN401 - stands for Clock
        """The virtual clock."""
        return SimpleNamespace(now=lambda: self.t)

    def post(self, event: object) -> None:
        """Keep what is posted."""
        self.posted.append(event)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run it."""
        call()

    def start(self, _name: str, work: Callable[[], None], *, awaited: bool) -> None:
        """Do what a thread would do; its exception is a warning (run/threads.py)."""
        assert not awaited
        try:
            work()
        except OSError as error:
            self.posted.append(error)

    def observe(self, name: str, work: Callable[[], None]) -> None:
        """As in run/threads.py."""
        Threads(self, self.posted.append).observe(name, work)  # type: ignore[arg-type]

    def recur(self, name: str, work: Callable[[], None], *, wait_s: float = 0.0) -> None:
        """Do what a thread would do while the loop waits, or beside it."""
        self.waits.append((name, wait_s > 0))
        work()


@pytest.fixture
def beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeartbeatWriter:
    """The slot of rank 0, which is this process."""
    heartbeats.create(tmp_path / "heartbeat", 2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    identity = ProcessIdentity("/nowhere", str(tmp_path), "rank")
    heartbeat_writer = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
    assert claim(identity, heartbeat_writer, TRAINS)
    return heartbeat_writer


def sampling(
    loop: VirtualLoop,
    directory: Path,
    also: Callable[[Any, float], None] = lambda _beats, _t: None,
    trained: Callable[[int, Any], None] = lambda _attempt, _moments: None,
    loaded: Callable[[int], tuple[LoadedCheckpoint, ...]] = lambda _attempt: (),
) -> RankSampling:
    job: Any = SimpleNamespace(settings=Settings(), scratch=directory, attempt_dir=lambda _attempt: directory)
    sampling = RankSampling(job, loop, loop, lambda _path: True, also, trained=trained, loaded=loaded)  # type: ignore[arg-type]
    sampling.watch(1, None)
    return sampling


def test_one_reading_serves_progress_and_hangs(tmp_path: Path, beat: HeartbeatWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, taken = VirtualLoop(), []
    (rank,) = look.with_beats((), heartbeats.read(tmp_path / "heartbeat"))
    nothing_moves = look.Look(0.0, ())
    monkeypatch.setattr(
        look,
        "take",
        lambda ranks, directory, *, beats, begun, **_: taken.append((ranks, directory, list(beats), list(begun))) or nothing_moves,
    )
    rank_sampling = sampling(loop, tmp_path)
    for step in range(1, 40):
        loop.t += 1.0
        beat.report_step(step)
        rank_sampling.sample((rank,))
    for _ in range(110):
        loop.t += 1.0
        rank_sampling.sample((rank,))
    kinds = [type(event) for event in loop.posted]
    assert ProgressObserved in kinds
    assert [kind for kind in kinds if kind is not ProgressObserved] == [HangSuspected, HangConfirmed]
    assert taken[:2] == [((rank,), tmp_path, [0], [1])] * 2
    beat.report_step(40)
    loop.t += 1.0
    rank_sampling.sample((rank,))
    assert "-- hang: still" in (tmp_path / "hang.txt").read_text(), "it is there when the hang is posted"
    assert HangCleared in {type(event) for event in loop.posted}


def test_the_moments_of_a_start_are_posted_once_when_all_ranks_have_made_a_step(tmp_path: Path, beat: HeartbeatWriter) -> None:
    loop, posted = VirtualLoop(), list[Any]()
    (rank,) = look.with_beats((), heartbeats.read(tmp_path / "heartbeat"))
    rank_sampling = sampling(loop, tmp_path, trained=lambda attempt, moments: posted.append((attempt, moments)))
    rank_sampling.sample((rank,))
    beat.report_step(1)
    rank_sampling.sample((rank,))  # the step is there before the file
    (tmp_path / "start-0.json").write_text('{"hello": 5, "first_step": 9}')
    rank_sampling.sample((rank, replace(rank, rank=1)))
    assert not posted
    for _ in range(2):
        rank_sampling.sample((rank,))
    assert posted == [(1, {"hello": 5, "first_step": 9})]
    rank_sampling.watch(2, None)
    rank_sampling.sample((rank,))
    assert posted[1:] == [(2, {"hello": 5, "first_step": 9})], "each attempt has its own directory"


def test_whose_checkpoint_was_loaded_is_asked_at_each_new_line_and_posted_where_the_answer_is_new(tmp_path: Path) -> None:
    heartbeats.create(tmp_path / "heartbeat", 2)
    asked: list[int] = []
    own = (LoadedCheckpoint("/c/1.pt", CheckpointOwner.OWN),)

    def loaded(attempt: int) -> tuple[LoadedCheckpoint, ...]:
        asked.append(attempt)
        if len(asked) == 1:
            raise OSError("no such disk")
        return own

    loop = VirtualLoop()
    rank_sampling = sampling(loop, tmp_path, loaded=loaded)
    rank_sampling.sample(())
    for _ in range(3):
        with (tmp_path / "loads-0.jsonl").open("a") as out:
            out.write("a line\n")
        for _again in range(3):
            rank_sampling.sample(())
    assert asked == [1, 1, 1]
    assert [event for event in loop.posted if isinstance(event, CheckpointsLoaded)] == [CheckpointsLoaded(loop.t, 1, own)]


def test_ranks_that_may_wait_for_another_node_get_more_time(tmp_path: Path, beat: HeartbeatWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    (rank,) = look.with_beats((), heartbeats.read(tmp_path / "heartbeat"))
    loop = VirtualLoop(state=JobState(stage=Stage.RUNNING, attempt=Attempt(1, ranks=(rank,), world_size=2)))
    monkeypatch.setattr(look, "take", lambda *_args, **_kwargs: look.Look(0.0, ()))
    rank_sampling = sampling(loop, tmp_path)
    for step in range(150):
        loop.t += 1.0
        if step < 40:
            beat.report_step(step)
        rank_sampling.sample((rank,))
    assert [type(event) for event in loop.posted if not isinstance(event, ProgressObserved)] == [HangSuspected]


def test_ranks_that_are_being_stopped_are_not_watched(tmp_path: Path, beat: HeartbeatWriter) -> None:
    loop = VirtualLoop(state=JobState(stage=Stage.STOPPING))
    rank_sampling = sampling(loop, tmp_path)
    beat.report_step(1)
    for _ in range(700):
        loop.t += 1.0
        rank_sampling.sample(())
    assert {type(event) for event in loop.posted} == {ProgressObserved}


def test_a_failing_observer_is_reported_and_the_others_continue(
    tmp_path: Path, beat: HeartbeatWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HangWatch, "sample", broken)
    loop, seen = VirtualLoop(), []
    rank_sampling = sampling(loop, tmp_path, lambda beats, _t: seen.append(beats))
    beat.report_step(1)
    rank_sampling.sample(())
    assert loop.posted[1:] == ["a part of supervise failed (hangs): ZeroDivisionError: ; the job continues"]
    assert len(seen) == 1


def test_the_last_heartbeats_on_a_disk_are_awaited_for_a_moment_and_no_others(tmp_path: Path, beat: HeartbeatWriter) -> None:
    loop = VirtualLoop()
    rank_sampling = sampling(loop, tmp_path)
    beat.report_step(1)
    rank_sampling.sample(())
    rank_sampling.sample((), last=True)
    assert [row for row in loop.waits if row[0] == "heartbeats"] == [("heartbeats", False), ("heartbeats", True)]


def test_after_the_last_attempt_nothing_is_read(tmp_path: Path, beat: HeartbeatWriter) -> None:
    loop = VirtualLoop()
    rank_sampling = sampling(loop, tmp_path)
    rank_sampling.forget()
    beat.report_step(1)
    rank_sampling.sample((), last=True)
    assert loop.posted == []


def test_a_look_that_fails_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise OSError

    monkeypatch.setattr(look, "take", broken)
    loop, answers = VirtualLoop(), queue.SimpleQueue[object]()
    looks = RankLooks(loop, loop)  # type: ignore[arg-type]
    looks.directory = tmp_path
    looks.start((), (), answers.put)
    assert answers.get_nowait() is None
    assert [type(event) for event in loop.posted] == [OSError]


def test_ranks_that_only_a_heartbeat_shows_are_examined_while_they_live(tmp_path: Path, beat: HeartbeatWriter) -> None:
    beat.report_step(1)
    (seen,) = heartbeats.read(tmp_path / "heartbeat")
    this = RankInfo(0, 0, os.getpid(), seen.start_ticks)
    assert look.with_beats((), (seen,)) == (this,)
    launcher = RankInfo(0, 0, 1, 2)
    assert look.with_beats((launcher,), (seen,)) == (launcher,)
    heartbeat_of_the_dead = heartbeats.RankHeartbeat(**{name: getattr(seen, name) for name in seen.__slots__} | {"start_ticks": 1})
    assert look.with_beats((), (heartbeat_of_the_dead,)) == ()


def test_the_machine_s_sleep_is_known() -> None:
    assert suspended_s() == pytest.approx(suspended_s(), abs=0.1)
