"""When a job is suspected of a hang, when two looks confirm it, and when it is cleared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.config.intervals import OVER_S
from supervisor.config.watch_settings import HangSection
from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected
from supervisor.core.model import HangKind, Phase
from supervisor.core.values import replace
from supervisor.core.watch.hangs import TORCH_ACTS_S
from supervisor.observe.hangs import procfs
from supervisor.observe.hangs.watch import RELOOK_S
from supervisor.observe.ranks.heartbeats import GpuMemory, PartTimes
from tests.support.virtual_job import VirtualJob, VirtualLook
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def job() -> VirtualJob:
    """A job of two ranks that has trained for 30 steps of a second."""
    virtual_job = VirtualJob(ranks=2)
    virtual_job.trains(30)
    return virtual_job


def suspected(job: VirtualJob) -> HangSuspected:
    (suspicion,) = [event for event in job.posted if isinstance(event, HangSuspected)]
    return suspicion


def confirmed(job: VirtualJob) -> HangConfirmed:
    (confirmation,) = [event for event in job.posted if isinstance(event, HangConfirmed)]
    return confirmation


def test_a_job_that_stands_still_is_suspected_looked_at_twice_and_confirmed(job: VirtualJob) -> None:
    stood_t = job.t
    job.passes(60)
    assert job.kinds == []
    job.passes(1)
    assert job.kinds == ["Suspected"]
    assert (suspected(job).still_s, suspected(job).limit_s, suspected(job).phase) == (61.0, 60.0, Phase.TRAIN)
    job.passes(29)
    assert job.kinds == ["Suspected"], "two looks at least CONFIRM_S apart"
    job.passes(4)
    assert job.kinds == ["Suspected", "Confirmed"]
    first, second = (t - stood_t for t in job.looked_t)
    assert (first, second - first >= 30.0) == (61.0, True)
    hang = confirmed(job).hang
    assert (hang.text, hang.calibrated, hang.busy, hang.limit_s, hang.still_s >= 91.0) == ("in train", True, False, 60.0, True)


def test_the_second_look_comes_after_half_of_a_short_limit() -> None:
    job = VirtualJob(limits=HangSection(train_s=4.0, phase_s=8.0))
    job.trains(30, 0.2)
    assert job.kinds == []
    job.passes(20)
    first, second = job.looked_t[:2]
    assert second - first <= 7.0
    assert job.kinds[:2] == ["Suspected", "Confirmed"]


def test_before_twenty_steps_a_hang_is_not_calibrated_and_takes_the_limit_of_a_phase() -> None:
    job = VirtualJob()
    job.trains(5)
    job.passes(640)
    assert suspected(job).still_s == 601.0
    assert not confirmed(job).hang.calibrated
    job.passes(600)
    assert job.kinds == ["Suspected", "Confirmed", "Confirmed"], "the first is a guess; after another limit it is none"
    job.passes(6000)
    assert len(job.posted) == 3


LIFE: dict[str, Callable[[VirtualJob], None]] = {
    "a step of one rank": lambda job: job.step(1),
    "a phase": lambda job: job.enter(Phase.CHECKPOINT, rank=1),
    "the end of a phase and its beginning": lambda job: job.enter(Phase.TRAIN),
    "worker.heartbeat": lambda job: job.set(0, step=7, step_source="worker"),
    "worker.should_save": lambda job: job.set(0, asks=True),
    "a backward pass or a collective": lambda job: job.set(1, life_ns=round(job.t * 1e9)),
}


@pytest.mark.parametrize("sign", LIFE)
def test_any_sign_of_life_of_any_rank_counts(job: VirtualJob, sign: str) -> None:
    job.passes(59)
    LIFE[sign](job)
    job.sample()
    job.passes(59)
    assert job.kinds == []


def test_measurements_of_our_own_thread_in_a_rank_are_no_sign_of_life(job: VirtualJob) -> None:
    for second in range(150):
        job.set(1, parts=PartTimes((second,)), gpu_memory=GpuMemory(*[second] * len(GpuMemory.__struct_fields__)), pinned=second)
        job.passes(1)
    assert job.kinds == ["Suspected", "Confirmed"]


def loops(job: VirtualJob, seconds: int, apart_s: int) -> None:
    """Have the ranks begin a collective so often."""
    for second in range(seconds):
        if second % apart_s == 0:
            for rank in range(job.ranks):
                job.set(rank, life_ns=round(job.t * 1e9))
        job.passes(1)


def test_a_loop_of_collectives_that_stands_still_is_a_hang_within_the_limit_of_a_training() -> None:
    job = VirtualJob(ranks=2)
    for rank in range(2):
        job.set(rank, phase=Phase.UNKNOWN, rounds=True)
    loops(job, 40, 1)
    job.passes(100)
    assert job.kinds == ["Suspected", "Confirmed"]
    assert (suspected(job).limit_s, confirmed(job).hang.calibrated) == (60.0, True)


def test_a_loop_with_long_pauses_is_no_hang_as_long_as_its_ranks_work() -> None:
    """A pause that is longer than any before it is looked at, and both looks show that the ranks continued."""
    job = VirtualJob(ranks=2)
    for rank in range(2):
        job.set(rank, phase=Phase.UNKNOWN, rounds=True)
    loops(job, 1000, 40)
    assert job.kinds == [], "the limit follows the pauses"
    for place in range(500):
        job.look = VirtualLook(f"line {place}", float(place))
        job.passes(1)
    assert "Confirmed" not in job.kinds
    assert "Suspected" in job.kinds


@pytest.mark.parametrize("after_s", [61, 70, 200], ids=["before look 1 is judged", "between the looks", "after it was confirmed"])
def test_a_sign_of_life_clears_whatever_was_suspected(job: VirtualJob, after_s: int) -> None:
    job.passes(after_s)
    job.step(1)
    job.passes(1)
    assert job.kinds[-1] == "Cleared"
    (cleared,) = [event for event in job.posted if isinstance(event, HangCleared)]
    assert (cleared.text, cleared.still_s) == ("rank 1 made a step", after_s + 1)
    job.passes(60)
    assert job.kinds[-1] == "Cleared", "the stillness began anew"
    job.passes(1.5 * after_s)
    assert job.kinds[-2:] == ["Suspected", "Confirmed"]


def test_where_the_looks_show_movement_the_patience_grows(job: VirtualJob) -> None:
    began = job.t
    for second in range(3000):
        job.look = VirtualLook(f"eval {second}", second)
        job.passes(1)
    assert set(job.kinds) == {"Suspected", "Cleared"}
    starts = [event.t for event in job.posted if isinstance(event, HangSuspected)]
    waits = [after - before for before, after in zip([began, *starts], starts, strict=False)]
    assert waits[0] == 61.0
    assert waits[1] == pytest.approx(120 + 33, abs=3)
    assert all(wait == pytest.approx(240 + 33, abs=3) for wait in waits[2:])
    assert len(job.looked_t) < 25
    job.set(0, asks=True)
    job.passes(62)
    assert job.kinds[-1] == "Suspected", "after a sign of life the limit is the limit again"


def test_a_rank_that_computes_in_one_place_is_confirmed_after_ten_times_the_limit(job: VirtualJob) -> None:
    for second in range(599):
        job.look = VirtualLook("loop", second)
        job.passes(1)
    assert job.kinds == ["Suspected"]
    assert 15 < len(job.looked_t) < 25, "many looks, so that a healthy job is seen elsewhere in one of them"
    for second in range(600, 640):
        job.look = VirtualLook("loop", second)
        job.passes(1)
    assert job.kinds == ["Suspected", "Confirmed"]
    assert confirmed(job).hang.busy


def test_a_slow_hang_is_confirmed_as_slow_and_again_once_no_byte_moves(job: VirtualJob) -> None:
    job.slow = True
    job.passes(6000)
    assert job.kinds == ["Suspected", "Confirmed"]
    assert confirmed(job).hang.slow
    job.slow = False
    job.passes(700)
    assert job.kinds == ["Suspected", "Confirmed", "Confirmed"]
    assert isinstance(job.posted[-1], HangConfirmed)
    assert not job.posted[-1].hang.slow


def test_ranks_that_only_wait_are_confirmed_before_the_first_step_too() -> None:
    job = VirtualJob(ranks=2)
    job.set(0, steps=0, last_step_ns=None)
    job.set(1, steps=0, last_step_ns=None)
    job.passes(640)
    assert job.kinds == ["Suspected", "Confirmed"]


def test_a_rank_that_computes_and_has_made_no_step_is_never_confirmed() -> None:
    job = VirtualJob(ranks=2)
    job.set(0, steps=0, last_step_ns=None)
    job.set(1, steps=0, last_step_ns=None)
    for second in range(7000):
        job.look = VirtualLook("infer", second)
        job.passes(1)
    assert job.kinds == ["Suspected"]


def test_a_rank_that_computed_and_then_stands_still_is_confirmed_without_that_wait(job: VirtualJob) -> None:
    for second in range(150):
        job.look = VirtualLook("loop", second)
        job.passes(1)
    assert job.kinds == ["Suspected"]
    job.passes(130)
    assert job.kinds == ["Suspected", "Confirmed"]
    assert not confirmed(job).hang.busy


@pytest.mark.parametrize("kind", [HangKind.WAITING, HangKind.STILL])
def test_ranks_that_may_wait_for_another_node_are_confirmed_after_ten_times_the_limit(job: VirtualJob, kind: HangKind) -> None:
    job.is_whole, job.kind = False, kind
    job.passes(600)
    assert job.kinds == ["Suspected"]
    job.passes(5)
    assert job.kinds == ["Suspected", "Confirmed"]


def test_a_rank_of_this_node_that_its_peers_wait_for_is_confirmed_as_if_there_were_no_other_node(job: VirtualJob) -> None:
    job.is_whole, job.kind = False, HangKind.LATE
    job.passes(95)
    assert job.kinds == ["Suspected", "Confirmed"]


def test_looks_are_compared_with_their_neighbour_alone(job: VirtualJob) -> None:
    job.look = VirtualLook("a", 0.0)
    job.passes(62)
    job.look = VirtualLook("a", 1.0)  # busy: a third look follows
    job.passes(60)
    assert len(job.looked_t) == 2
    job.passes(40)
    assert job.kinds == ["Suspected", "Confirmed"], "the third shows what the second showed, though not what the first did"


def test_a_confirmed_hang_that_moves_after_all_is_cleared(job: VirtualJob) -> None:
    job.passes(120)
    assert job.kinds == ["Suspected", "Confirmed"]
    job.look = VirtualLook("elsewhere", 0.0)
    job.passes(700)
    assert job.kinds[2] == "Cleared"


def test_a_hang_that_stays_is_posted_once_and_looked_at_ever_less_often(job: VirtualJob) -> None:
    job.passes(7200)
    assert job.kinds == ["Suspected", "Confirmed"]
    assert len(job.looked_t) < 20


def test_a_hang_is_posted_again_after_the_groups_timeout(job: VirtualJob) -> None:
    job.group_timeout_s = 1800.0
    stood_t = job.t
    job.passes(1889)
    assert job.kinds == ["Suspected", "Confirmed"]
    job.passes(4)
    assert job.kinds == ["Suspected", "Confirmed", "Confirmed"]
    hang = job.posted[-1].hang if isinstance(job.posted[-1], HangConfirmed) else None
    assert hang is not None
    assert hang.still_s > 1800.0 + TORCH_ACTS_S, "the core acts on it"
    assert job.posted[-1].t - stood_t == pytest.approx(hang.still_s)
    job.passes(3600)
    assert job.kinds == ["Suspected", "Confirmed", "Confirmed"]


def test_a_timeout_that_is_shorter_than_our_own_looks_is_posted_soon_after(job: VirtualJob) -> None:
    job.group_timeout_s = 5.0
    job.passes(130)
    assert job.kinds == ["Suspected", "Confirmed", "Confirmed"]


def test_a_hang_is_posted_again_when_a_later_look_shows_more(job: VirtualJob) -> None:
    job.passes(120)
    assert job.kinds == ["Suspected", "Confirmed"], "a rank's recorder did not answer"
    job.kind, job.group_timeout_s = HangKind.MISMATCH, 600.0
    job.passes(60)
    assert job.kinds == ["Suspected", "Confirmed", "Confirmed"]
    assert isinstance(job.posted[-1], HangConfirmed)
    assert job.posted[-1].hang.kind is HangKind.MISMATCH
    job.kind, job.group_timeout_s = HangKind.STILL, None
    job.passes(400)
    assert len(job.posted) == 3, "it does not answer again: that is no news"
    job.kind, job.group_timeout_s = HangKind.MISMATCH, 600.0
    job.passes(3000)
    assert len(job.posted) == 4, "the timeout that a later look showed has passed"


def overs(job: VirtualJob) -> list[float]:
    """Return when it was confirmed that the training was over."""
    return [event.t for event in job.posted if isinstance(event, HangConfirmed) and event.hang.over]


def test_ranks_behind_the_end_of_their_training_are_over_once_nothing_of_theirs_worked_for_10_minutes(job: VirtualJob) -> None:
    job.at_exit = "rank 0 stands at its exit in barrier"
    job.passes(3600)
    (over_t,) = overs(job)
    assert OVER_S <= over_t - job.looked_t[0] <= OVER_S + 3
    assert job.kinds.count("Confirmed") == 2, "at first, and as over"


def test_work_of_any_process_begins_the_10_minutes_anew(job: VirtualJob) -> None:
    job.at_exit = "rank 0 stands at its exit in barrier"
    job.passes(400)
    job.working = "rank 0 moves 4 KiB/s"
    job.passes(300)
    job.working = ""
    uploaded_t = job.t
    job.passes(3600)
    (over_t,) = overs(job)
    assert over_t - uploaded_t >= OVER_S - RELOOK_S / 2
    first_t = next(t for t in job.looked_t if t > uploaded_t)
    assert over_t > first_t


@pytest.mark.parametrize("sign", ["a step", "a phase"])
def test_a_second_phase_behind_the_declared_end_is_life(job: VirtualJob, sign: str) -> None:
    job.at_exit = "rank 0 stands at its exit in barrier"
    for _ in range(10):
        job.passes(500)
        job.step() if sign == "a step" else job.enter(Phase.EVAL, rank=1)
        job.sample()
        job.enter(Phase.TRAIN, rank=1)
    assert overs(job) == []


def test_ranks_behind_the_end_may_wait_for_one_on_another_node_which_still_trains(job: VirtualJob) -> None:
    job.at_exit, job.is_whole, job.kind = "rank 0 stands at its exit in barrier", False, HangKind.WAITING
    job.passes(7200)
    assert overs(job) == []


def test_before_calibration_a_hang_is_a_guess_whatever_a_later_look_shows() -> None:
    job = VirtualJob()
    job.trains(5)
    job.passes(700)
    assert job.kinds == ["Suspected", "Confirmed"]
    job.kind = HangKind.MISMATCH
    job.passes(400)
    assert job.kinds == ["Suspected", "Confirmed"]
    job.passes(300)
    assert job.kinds == ["Suspected", "Confirmed", "Confirmed"]


PAUSES: dict[str, Callable[[VirtualJob], None]] = {}


def pause(function: Callable[[VirtualJob], None]) -> Callable[[VirtualJob], None]:
    PAUSES[function.__name__] = function
    return function


@pause
def supervise_was_stopped(job: VirtualJob) -> None:
    job.t += 3000.0


@pause
def machine_was_suspended(job: VirtualJob) -> None:
    job.suspended_s += 40.0


@pause
def heartbeats_were_unreadable(job: VirtualJob) -> None:
    beats, job.beats = job.beats, ()
    job.passes(40)
    job.beats = beats


@pytest.mark.parametrize("kind", PAUSES)
@pytest.mark.parametrize("after_s", [50, 70], ids=["before", "while it is suspected"])
def test_after_a_pause_of_our_own_the_stillness_begins_anew(job: VirtualJob, kind: str, after_s: int) -> None:
    job.passes(after_s)
    posted = len(job.posted)
    PAUSES[kind](job)
    job.passes(60)
    assert job.kinds[posted:] == (["Cleared"] if after_s > 60 else [])
    job.passes(35)
    assert job.kinds[-2:] == ["Suspected", "Confirmed"]


def test_a_confirmed_hang_stays_one_over_a_pause(job: VirtualJob) -> None:
    job.passes(100)
    PAUSES["supervise_was_stopped"](job)
    job.passes(300)
    assert job.kinds == ["Suspected", "Confirmed"]


def test_a_pause_makes_no_step_time(job: VirtualJob) -> None:
    job.t += 1000.0
    job.step()
    job.trains(5)
    job.passes(61)
    assert suspected(job).limit_s == 60.0


def test_the_watch_does_not_use_the_wall_clock() -> None:
    source = Path(sys.modules[VirtualJob.__init__.__module__].HangWatch.__init__.__code__.co_filename).read_text(encoding="utf-8")
    assert "import time" not in source


@pytest.mark.parametrize("phase", [Phase.CHECKPOINT, Phase.LOAD])
def test_a_checkpoint_that_grows_is_life(job: VirtualJob, phase: Phase) -> None:
    job.enter(phase)
    for second in range(2000):
        job.moved_bytes[100] = second * 50_000
        job.passes(1)
    assert job.kinds == []
    job.passes(640)
    assert job.kinds == ["Suspected", "Confirmed"]


def test_a_log_that_grows_is_none(job: VirtualJob) -> None:
    job.enter(Phase.CHECKPOINT)
    for second in range(640):
        job.moved_bytes[100] = second * 10_000
        job.passes(1)
    assert job.kinds == ["Suspected", "Confirmed"]


def test_a_process_of_ours_has_read_and_written() -> None:
    before = procfs.moved_bytes(os.getpid())
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    Path(os.devnull).write_bytes(b"\0" * 100_000)
    after = procfs.moved_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before >= 100_000
    assert procfs.moved_bytes(2**22 + 1) is None


def test_a_look_counts_bytes_as_the_watch_does() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        wait_for(lambda: procfs.waits(child.pid).state == "S" and "pipe" in procfs.waits(child.pid).wchan, "the read")
        counted = procfs.counters(child.pid, 0.0)
        assert counted is not None
        assert counted.read_bytes + counted.written_bytes == procfs.moved_bytes(child.pid)


def test_a_declared_phase_has_its_own_limit(job: VirtualJob) -> None:
    job.enter(Phase.EVAL, at_most_s=900.0)
    job.passes(900)
    assert job.kinds == []
    job.passes(2)
    assert (suspected(job).phase, suspected(job).limit_s) == (Phase.EVAL, 900.0)


def test_a_declared_phase_may_be_shorter_than_the_settings(job: VirtualJob) -> None:
    job.enter(Phase.DATA, at_most_s=20.0)
    job.enter(Phase.DATA, at_most_s=20.0, rank=1)
    job.passes(40)
    assert job.kinds == ["Suspected", "Confirmed"]


@pytest.mark.parametrize("how", ["fails", "never comes"])
def test_where_no_look_can_be_had_nothing_is_confirmed(job: VirtualJob, how: str) -> None:
    job.look, job.answers = (None, True) if how == "fails" else (job.look, False)
    job.passes(2000)
    assert set(job.kinds) == {"Suspected", "Cleared"}
    assert "could not be examined" in next(event.text for event in job.posted if isinstance(event, HangCleared))


def test_a_look_that_comes_after_the_suspicion_was_cleared_is_dropped(job: VirtualJob, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[VirtualLook | None], None]] = []
    monkeypatch.setattr(job, "start", lambda _ranks, _beats, done: late.append(done))
    job.passes(62)
    job.set(0, asks=True)
    job.passes(62)
    late[0](VirtualLook("stale", 0.0))
    job.passes(5)
    assert len(late) == 2, "the stale look is no answer to the second question"


def test_ranks_without_a_heartbeat_are_not_watched() -> None:
    job = VirtualJob()
    job.beats = ()
    job.passes(5000)
    assert job.posted == []


def test_samples_that_come_too_often_are_passed_over(job: VirtualJob) -> None:
    for _ in range(1000):
        job.t += 0.2
        job.sample()
    assert job.kinds == ["Suspected", "Confirmed"]


def test_a_new_attempt_begins_anew(job: VirtualJob) -> None:
    job.passes(65)
    job.watch.watch(2)
    job.posted.clear()
    job.beats = tuple(replace(beat, pid=beat.pid + 10) for beat in job.beats)
    job.passes(500)
    assert job.posted == [], "it is not calibrated"
