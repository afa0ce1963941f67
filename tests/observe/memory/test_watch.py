"""The warnings about the memory of a node's ranks: by a fake clock, and by a real process that leaks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import Phase, RankInfo
from supervisor.core.training_events import MemoryForecast
from supervisor.core.values import replace
from supervisor.core.watch.memory import forecast_text
from supervisor.guardian.process_tree import ProcessStat
from supervisor.observe.host.memory_room import MACHINE, MemoryRoom
from supervisor.observe.memory.watch import MemoryWatch
from supervisor.observe.processes.job_processes import JobProcesses
from supervisor.observe.ranks.heartbeats import GpuMemory, RankHeartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.events import Event

MIB, GIB = 1 << 20, 1 << 30


def beat(rank: int, t: float, *, pid: int = 0, gpu: GpuMemory | None = None, phase: Phase = Phase.TRAIN) -> RankHeartbeat:
    """Return the heartbeat of a rank that makes two steps a second."""
    return RankHeartbeat(
        rank,
        rank,
        pid or os.getpid(),
        1,
        1,
        phase,
        1,
        int(2 * t),
        1,
        int(2 * t),
        "worker",
        torch_loaded=True,
        backward_seen=True,
        save_asked=False,
        gpu_memory=gpu,
    )


def forecasts(
    until_s: float,
    host: Callable[[float], float] = lambda _t: 10 * GIB,
    gpu: Callable[[float], float] | None = None,
    *,
    phase: Phase = Phase.TRAIN,
) -> list[MemoryForecast]:
    """Watch two ranks for so long, with what is used of the host's 64 GiB and of rank 1's 80 GiB; return what was posted."""
    posted: list[Event] = []
    now = [0.0]
    watching = MemoryWatch(1, posted.append, dict, rooms=lambda: [MemoryRoom(int(64 * GIB - host(now[0])), 64 * GIB, MACHINE)])
    for t in range(0, int(until_s), 10):
        now[0] = float(t)
        held = None if gpu is None else GpuMemory(t, int(gpu(t)), int(gpu(t)) + GIB, int(gpu(t)) + 3 * GIB, 0, 80 * GIB)
        watching.sample([beat(0, t, phase=phase), beat(1, t, gpu=held, phase=phase)], float(t))
    assert all(isinstance(event, MemoryForecast) for event in posted)
    return [event for event in posted if isinstance(event, MemoryForecast)]


def test_a_leak_of_the_host_is_reported_once_with_its_time_and_step() -> None:
    first, *more = forecasts(6000, lambda t: 10 * GIB + t * 54 * GIB / 7200)
    assert first.subject == "host"
    assert first.out_t == pytest.approx(7200, rel=0.02)
    assert 0 < first.doubt_s < 0.3 * (first.out_t - first.t)
    assert first.step == pytest.approx(14400, rel=0.02)
    assert more == [], "it comes as it was said"
    assert forecast_text(first, first.t) == (
        "out of memory in about 31 minutes (±3), at step ~14,400: the machine: 50.0 GiB of 64.0 GiB used, 461 MiB more each minute; "
        "in 1 h 3 min most of what grew is held by no rank of this job"
    )
    assert forecast_text(first, first.t + 1200).startswith("out of memory in about 11 minutes")
    assert first.rank is None


def test_a_moved_forecast_is_reported_again_and_a_past_one_ends() -> None:
    first, *others = forecasts(9000, lambda t: 10 * GIB + min(t, 5400) * 54 * GIB / 7200)
    assert not first.is_repeat
    assert [event.is_over for event in others][-1]
    assert all(event.is_repeat for event in others[:-1])
    assert others[-1].about == first.about


def test_the_gpu_of_a_rank_is_out_of_memory_when_its_highest_need_does_not_fit() -> None:
    (first,) = forecasts(3400, gpu=lambda t: 20 * GIB + t * 57 * GIB / 3600)
    assert (first.subject, first.rank) == ("gpu 1", 1)
    assert first.out_t == pytest.approx(3600, rel=0.03), "a step needs 3 GiB more at its height than at its end"
    assert first.text.startswith("rank 1 needs ")
    assert forecast_text(first, first.t).startswith("out of memory on the GPU of rank 1 in about ")


@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.CHECKPOINT, Phase.LOAD])
def test_only_samples_of_the_training_count(phase: Phase) -> None:
    assert forecasts(6000, lambda t: 10 * GIB + t * 54 * GIB / 7200, phase=phase) == []


def test_steps_that_are_not_absolute_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "beat", lambda *words, _beat=beat, **more: replace(_beat(*words, **more), step=None))
    (first, *_) = forecasts(6000, lambda t: 10 * GIB + t * 54 * GIB / 7200)
    assert first.step is None
    assert "step" not in forecast_text(first, first.t)


def test_no_file_cache_counts_as_used() -> None:
    """The rooms leave out what the kernel gives up before it kills (memory_room.py): a cache that grows leaves them as they are."""
    assert forecasts(9000) == []


LEAK = """
import time
held, began = [], time.monotonic()
while True:
    held.append(bytearray(b"x") * (1 << 20))
    time.sleep(max(0.0, began + 0.02 * len(held) - time.monotonic()))
"""


@pytest.mark.slow
def test_a_real_leak_is_forecast_within_a_fifth_and_its_rank_is_named() -> None:
    """50 MiB a second, against a limit that it reaches after about 8 s."""
    limit = 420 * MIB
    leaking = subprocess.Popen([sys.executable, "-c", LEAK])  # noqa: S603
    posted: list[MemoryForecast] = []

    def room() -> list[MemoryRoom]:
        with open(f"/proc/{leaking.pid}/statm") as file:  # noqa: PTH123
            return [MemoryRoom(limit - int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), limit, MACHINE)]

    watching = MemoryWatch(1, posted.append, dict, rooms=room, every_s=0.05)  # type: ignore[arg-type]  # it posts forecasts alone
    try:
        while room()[0].free > 0:
            t = time.monotonic()
            watching.sample([beat(0, t, pid=leaking.pid)], t)
            time.sleep(0.05)
        out_t = time.monotonic()
    finally:
        leaking.kill()
        leaking.wait()
    first = posted[0]
    assert first.out_t - first.t >= 0.5, "it was told before"
    assert abs(first.out_t - out_t) <= 0.2 * (out_t - first.t)
    assert first.rank == 0
    assert "rank 0 grew by " in first.text
    (held,) = watching.evidence()
    assert re.match(r"rank 0 4\d\d MiB \(\d+ MiB more in [\d.]+ s\)", held.text)


def test_the_memory_of_each_rank_is_kept_for_a_failure() -> None:
    watching = MemoryWatch(1, lambda _event: None, dict, rooms=lambda: [MemoryRoom(8 * GIB, 64 * GIB, MACHINE)])
    assert watching.evidence() == ()
    watching.sample([beat(0, 1.0), beat(1, 1.0)], 1.0)
    (held,) = watching.evidence()
    assert "rank 0 " in held.text
    assert [rank.rank for rank in watching.newest] == [0, 1]
    assert watching.newest[0].resident is not None
    assert watching.newest[0].gpu_allocated is None


def test_the_processes_below_a_rank_are_those_that_live() -> None:
    processes = JobProcesses(1)
    processes.set_ranks([RankInfo(5, 0, 100, 1)])
    rank, first, second = (ProcessStat(pid, ppid, 1, "S", 1, None) for pid, ppid in ((100, 1), (101, 100), (102, 101)))
    processes.add_descendants([rank, first, second])
    assert processes.below_ranks() == {5: [101, 102]}
    processes.add_descendants([rank, first])
    assert processes.below_ranks() == {5: [101]}
