"""A run about which everything is known: each metric has a sample."""

from __future__ import annotations

import dataclasses

from health.model import Reading, Readings, Result
from supervisor.core.model import Gpu, Hang, HangKind, Phase, Progress, RankInfo, RankMemory
from supervisor.core.state import Attempt, JobState, Run, Stage
from supervisor.core.step_shares import StepShares
from supervisor.core.training_events import MemoryForecast
from supervisor.core.values import replace
from supervisor.journal.records import RunBegan
from supervisor.report.metrics.facts import LiveFacts, MirrorFacts
from supervisor.view.counters import RunCounters
from supervisor.view.job_view import JobView
from supervisor.view.run_time import RunTime
from supervisor.view.spans import PaceSample, RunLedger, TimeSpan, TimeState

T0 = 1_000_000.0
NOW = T0 + 100.0
UUID = "GPU-0000"
_VALUES = {
    "gpu.identity": {"index": 3, "pci": "0000:3b:00.0", "name": "H100"},
    "gpu.power_mw": 350_000,
    "gpu.power_limit_mw": 700_000,
    "gpu.temperature_c": 61,
    "gpu.busy_percent": 97,
    "gpu.clock_sm_mhz": 1980,
    "gpu.ecc_uncorrected_volatile": 2,
    "gpu.memory": {"total": 80 << 30, "used": 20 << 30, "free": 60 << 30},
}


def readings(t: float = NOW - 10) -> Readings:
    """Return what NVML says of one GPU."""
    return Readings(Reading("nvml", f"gpu:{UUID}", name, value, t=t) for name, value in _VALUES.items())


def live() -> LiveFacts:
    """Return a run in its second attempt, which hangs."""
    attempt = Attempt(
        2,
        ranks=(RankInfo(0, 0, 11, 1), RankInfo(1, 1, 12, 1)),
        world_size=4,
        progress=Progress(1200, phase=Phase.TRAIN),
        hang=Hang(HangKind.LATE, "rank 1 does not come", (1,), still_s=700.0, limit_s=600.0),
        warnings=(("loss", "loss is NaN"), ("pace straggler 5 43", "node 5 is slow"), ("pace straggler 6 -", "node 6 is slow")),
    )
    forecasts = (MemoryForecast(NOW - 60, 2, "gpu 1", "x", NOW + 2400, 240.0, 12_400, 1),)
    attempt = replace(attempt, forecasts=forecasts)
    state = JobState(Run("run-1"), attempt, Stage.RUNNING, gpus=(Gpu(3, UUID, quarantined="xid 79"),))
    return LiveFacts(
        NOW,
        "bert",
        "run-1",
        "gpu-7",
        "1.2.3",
        state,
        last_progress_t=NOW - 5,
        mirror=MirrorFacts(2, 1 << 30, 12.5, failing=True),
        checks={"gpu_ecc": Result.FAILED, "disk_space": Result.OK, "gpu_nvlink": Result.SKIPPED},
        readings=readings(),
        memory=(RankMemory(1, 2 << 30, 3 << 30, 60 << 30, 70 << 30, 65 << 30, 80 << 30), RankMemory(0, 1 << 30)),
    )


def recorded() -> JobView:
    """Return what its journal has."""
    ledger = RunLedger("run-1", T0, NOW, goes_on=True, attempts=2, reached=1200)
    ledger.spans = [
        TimeSpan(T0, T0 + 20, TimeState.START_AND_LOAD, 1),
        TimeSpan(T0 + 20, T0 + 80, TimeState.PRODUCTIVE, 1, first_step=0, last_step=1100),
        TimeSpan(T0 + 80, NOW, TimeState.REWORK, 2, 1, first_step=1000, last_step=1100),
    ]
    ledger.samples = [PaceSample(NOW - 15, 2, 1100, 0.1, 2.5), PaceSample(NOW - 5, 2, 1200, 0.1, 2.25)]
    counters = RunCounters("run-1")
    counters.restarts["cuda_oom"], counters.incidents["cuda_oom"] = 1, {"restart": 1}
    counters.recoveries, counters.recovery_s = 1, 7.5
    counters.verified, counters.verified_t, counters.verified_step, counters.mirrored_t = 3, NOW - 60, 1000, NOW - 50
    return JobView(run=RunBegan("run-1"), time=RunTime(ledger, NOW), counters=counters, step_shares=StepShares((20, 50, 20, 5, 0, 0, 5), 2))


def healthy() -> LiveFacts:
    """Return the same run without a hang."""
    facts = live()
    return dataclasses.replace(facts, state=replace(facts.state, attempt=replace(facts.state.attempt, hang=None)))
