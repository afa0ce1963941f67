# ruff: noqa: ANN401  values as a command takes and prints them
"""What `status` takes from where it is while a job lives: the end of its log, its ranks' heartbeats and processes, its GPUs, its saves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from health.model import Reading, Readings
from supervisor.cli.jobs import live_gpus, live_ranks
from supervisor.cli.jobs.job_files import JobFiles, view_of
from supervisor.cli.jobs.job_status import status_from, status_of
from supervisor.cli.jobs.live_gpus import LiveGpus, with_slow
from supervisor.cli.jobs.log_tail import log_tail
from supervisor.core import events
from supervisor.core.model import Gpu, Hang, HangKind, Phase, RankInfo
from supervisor.core.values import replace
from supervisor.job import identity
from supervisor.observe.hangs import procfs
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from supervisor.view.status import GpuStatus, StateWord
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.view.status import Status
    from tests.support.recorded_job import RecordedJob


def alive(written: RecordedJob, **more: Any) -> None:
    """Begin a run whose supervisor is this very process."""
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks, **more)


def read(written: RecordedJob, gpus: LiveGpus | None = None) -> Status:
    """Return where the job stands, once all that was written is on the disk."""
    assert written.journal.close(10)
    return status_of(JobFiles("train", written.node, written.directory), gpus)


def beat(rank: int, pid: int, *, still_s: float, phase: Phase = Phase.TRAIN, step: int = 5) -> RankHeartbeat:
    """Return the heartbeat of a rank that has made no step for so long."""
    since_ns = time.monotonic_ns() - int(still_s * 1e9)
    ticks = identity.start_ticks(pid)
    return RankHeartbeat(rank, rank, pid, ticks, since_ns, phase, since_ns, step, since_ns, step, "worker", True, True, False)  # noqa: FBT003


@pytest.fixture
def sleeper() -> Iterator[Callable[[], int]]:
    """Return what starts a process, gives its pid, and returns once it sleeps: a start reads files, and that is a wait as well."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        started.append(process)
        wait_for(lambda: procfs.waits(process.pid).call == "clock_nanosleep", "its sleep")
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_log_gives_the_total_and_the_losses_of_a_young_run(written: RecordedJob) -> None:
    alive(written)
    written.start(1)
    written.progress(5, 9, step=9)
    lines = b"".join(b"step %d/120 loss %.3f lr 1e-4\n" % (step, 5 - step / 10) for step in range(1, 11))
    written.log(1, "rank-0.out", b"hello\n" + lines + b"step 11/12")
    status = read(written)
    assert (status.state, status.total_steps, status.total_from) == (StateWord.TRAINING, 120, "from its log (step 10/120)")
    assert status.loss is not None
    assert (status.loss.source, status.loss.first_step, status.loss.last_step) == ("log", 1, 10)
    assert (status.loss.values[0], status.loss.values[-1]) == (4.9, 4.0)


def test_steps_that_supervise_counts_from_a_known_beginning_have_the_total_of_the_command(written: RecordedJob) -> None:
    alive(written)
    written.start(1)
    written.feed(events.ProgressObserved(written.T0 + 5, 1, None, 1, Phase.TRAIN))
    written.feed(events.ProgressObserved(written.T0 + 9, 1, None, 9, Phase.TRAIN))
    status = read(written)
    assert (status.step, status.step_relative, status.total_steps) == (9, True, None)
    view, _ = view_of(JobFiles("train", written.node, written.directory))
    assert view.run is not None
    asked = replace(view.run, command=("train.py", "--max_steps=120"))
    assert status_from(JobFiles("train", written.node, written.directory), replace(view, run=asked), alive=True).total_steps == 120
    assert view.time is not None
    view.time.base = None  # it loaded a checkpoint by itself, whose step nobody knows
    assert status_from(JobFiles("train", written.node, written.directory), replace(view, run=asked), alive=True).total_steps is None


def test_the_journal_gives_the_losses_of_a_run_that_has_them(written: RecordedJob) -> None:
    alive(written)
    written.start(1)
    for minute in range(30):
        written.feed(
            events.ProgressObserved(written.T0 + 60 * minute + 5, 1, 10 * minute, 10 * minute + 1, Phase.TRAIN, loss=5 - minute / 10)
        )
    written.log(1, "rank-0.out", b"step 290/1000 loss 9.9\n" * 50)
    loss = read(written).loss
    assert loss is not None
    assert (loss.source, loss.last_step, loss.values[-1]) == ("journal", 290, 5 - 2.9)
    assert len(loss.values) == 29


def test_a_progress_bar_and_non_numeric_losses_are_read(tmp_path: Path) -> None:
    bar = "".join(f"\r  8%|▊ | {n}/120 [00:05<00:52, loss={3 - n / 100:.2f}]" for n in (10, 10, 11, 12, 13)).encode()
    (tmp_path / "rank-0.err").write_bytes(b"\xff\xfe warning\n" + bar)
    tail = log_tail(tmp_path, 0)
    assert tail.count is not None
    assert (tail.count.done, tail.count.total) == (12, 120)
    assert [loss for _, loss in tail.losses] == [2.9, 2.89, 2.88]
    (tmp_path / "rank-1.out").write_text("val_loss 2.0\nloss nan\nloss 1.0\nstep 5/9 train loss 2\n")
    assert [str(loss) for _, loss in log_tail(tmp_path, 1).losses] == ["nan", "1.0"]
    assert log_tail(tmp_path, 7).count is None
    assert log_tail(tmp_path / "nowhere", 0).losses == ()


def test_a_long_log_is_read_at_its_end_only(tmp_path: Path) -> None:
    with (tmp_path / "rank-0.out").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nstep 10/120 loss 3.5\nstep 11/120 loss 3.4\n")
    began = time.process_time()
    assert [loss for _, loss in log_tail(tmp_path, 0).losses] == [3.5, 3.4]
    assert time.process_time() - began < 0.5


def test_a_rank_that_stands_still_shows_what_it_waits_for(written: RecordedJob, sleeper: Callable[[], int]) -> None:
    pids = [sleeper() for _ in range(3)]
    os.kill(pids[1], signal.SIGSTOP)
    alive(written)
    ranks = tuple(RankInfo(n, n, pid, identity.start_ticks(pid)) for n, pid in enumerate(pids))
    written.feed(events.AttemptStarted(written.T0 + 1, 1, ranks, 3))
    written.feed(events.HangConfirmed(written.T0 + 90, 1, Hang(HangKind.STOPPED, "rank 1 is stopped", (1,), still_s=90.0)))
    assert written.journal.close(10)
    view, _ = view_of(JobFiles("train", written.node, written.directory))
    beats = [beat(0, pids[0], still_s=90), beat(1, pids[1], still_s=90, step=4), beat(2, pids[2], still_s=1)]
    wait_for(lambda: "stopped" in (live_ranks.rank_statuses(view, beats)[1].waits or ""), "the stop")
    first, second, third = live_ranks.rank_statuses(view, beats)
    assert (first.waits, first.lag, first.phase) == ("rank 1", 0, "train")
    assert (second.waits, second.lag) == ("a signal to continue: it is stopped", 1)
    assert third.waits is None, "it made a step a moment ago"
    reducing = replace(beats[0], life_ns=time.monotonic_ns())
    assert live_ranks.rank_statuses(view, [reducing, *beats[1:]])[0].waits is None, "it began a collective a moment ago"
    assert first.phase_s is not None
    assert 89 < first.phase_s < 100
    assert first.memory_bytes


def test_a_hang_is_a_state_and_its_pace_is_0(written: RecordedJob) -> None:
    alive(written)
    written.start(1)
    for n in range(3):
        written.progress(5 + n, n + 1, step=n)
    hang = Hang(HangKind.LATE, "rank 1 waits; rank 0 does not come", (0,), still_s=95.0, code="train.py:65 in main", node="gpu-7:0")
    written.feed(events.HangConfirmed(written.T0 + 100, 1, hang))
    status = read(written)
    assert (status.state, status.steps_per_s, status.eta_s) == (StateWord.HUNG, 0.0, None)
    assert status.hang is not None
    assert status.hang.where == "rank 0 on gpu-7:0, train.py:65 in main"


def test_the_newest_save_is_shown_before_it_is_verified(written: RecordedJob, tmp_path: Path) -> None:
    alive(written, scratch=str(tmp_path / "scratch"))
    written.start(1)
    written.progress(5, 9, step=9)
    written.verify("/ckpt/step-5.pt", 5, 6)
    directory = identity.attempt_dir(tmp_path / "scratch", 1)
    directory.mkdir(parents=True)
    rows = [{"what": "ended", "well": True, "path": f"/ckpt/step-{step}.pt", "t": written.T0 + step, "steps": step} for step in (5, 7)] + [
        {"what": "ended", "well": True, "path": "/logs/metrics-9.pt", "t": written.T0 + 99, "steps": 9},
        {"what": "ended", "well": True, "path": "/ckpt/.step-8.tmp", "t": written.T0 + 8.1, "steps": 8},
        {"what": "renamed", "was": "/ckpt/.step-8.tmp", "path": "/ckpt/step-8.pt", "t": written.T0 + 8.2},
        {"what": "began", "path": "/ckpt/step-9.pt", "t": written.T0 + 100, "steps": 9},
    ]
    (directory / "saves-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"what": "en')
    status = read(written)
    assert status.saved is not None
    assert (status.saved.path, status.saved.step) == ("/ckpt/step-8.pt", 8)
    assert status.verified is not None
    assert status.verified.path == "/ckpt/step-5.pt"


class Nvml:
    """A prober of NVML that answers, or hangs until it is told to end."""

    hangs: threading.Event | None = None
    closed = 0

    def sample(self, names: tuple[str, ...], _ask: object) -> Readings:
        """Answer for one GPU."""
        assert names == ("nvml",)
        if self.hangs is not None:
            self.hangs.wait(30)
        memory = Reading("nvml", "gpu:GPU-a", "gpu.memory", {"total": 80 << 30, "used": 71 << 30})
        return Readings([memory, Reading("nvml", "gpu:GPU-a", "gpu.temperature_c", 64)])

    def close(self) -> None:
        """Count it."""
        type(self).closed += 1


def with_gpus(written: RecordedJob) -> None:
    alive(written)
    written.feed(events.GpusListed(written.T0, (Gpu(0, "GPU-a"), Gpu(1, "GPU-b", quarantined="xid 79"))))
    written.start(1)


def test_the_memory_of_gpus_is_read_from_nvml_while_the_job_runs(written: RecordedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("health.probing.runner.Runner", Nvml)
    with_gpus(written)
    with LiveGpus() as gpus:
        status = read(written, gpus)
    first, second = status.gpus
    assert (first.memory_used_bytes, first.memory_bytes, first.temperature_c) == (71 << 30, 80 << 30, 64)
    assert (second.quarantined, second.memory_bytes) == ("xid 79", None)
    assert Nvml.closed == 1
    written = type(written)(written.directory.parents[2])
    written.begin(continues=True)
    written.end(0)
    with LiveGpus() as gpus:
        assert read_again(written, gpus).gpus[0].memory_bytes is None, "the job has ended: nobody asks"


def test_a_gpu_with_a_low_clock_is_slow_and_an_idle_one_is_not() -> None:
    clocks = {"a": (1980, 98), "b": (1410, 99), "c": (1950, 97), "d": (345, 0)}
    gpus = [GpuStatus(0, uuid, clock_mhz=clock, busy_percent=busy) for uuid, (clock, busy) in clocks.items()]
    assert [gpu.uuid for gpu in with_slow(gpus) if gpu.slow] == ["b"]
    assert not any(gpu.slow for gpu in with_slow(gpus[1:2]))


def read_again(written: RecordedJob, gpus: LiveGpus) -> Status:
    return status_of(JobFiles("train", written.node, written.directory), gpus)


def test_a_driver_that_hangs_holds_no_page_up(written: RecordedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    monkeypatch.setattr(Nvml, "hangs", hang)
    monkeypatch.setattr("health.probing.runner.Runner", Nvml)
    monkeypatch.setattr(live_gpus, "_DEADLINE_S", 0.05)
    with_gpus(written)
    try:
        with LiveGpus() as gpus:
            assert [gpu.memory_bytes for gpu in read(written, gpus).gpus] == [None, None]
    finally:
        hang.set()
