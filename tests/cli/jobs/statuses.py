"""Where jobs stand, as values: one that trains, hangs, waits for nodes, is a drill, has 512 ranks, has an open incident, has ended."""

from __future__ import annotations

from typing import Any, Final

from supervisor.core.model import Finding
from supervisor.core.values import replace
from supervisor.view.status import (
    GpuStatus,
    HangStatus,
    IncidentStatus,
    LossCurve,
    RankStatus,
    StateWord,
    Status,
    StoredCheckpoint,
    SupervisorStatus,
    WaitedNodes,
)

NOW: Final = 1_790_000_000.0 + 7265


def running(**more: Any) -> Status:  # noqa: ANN401  the fields of a Status
    """Return the status of a job in the middle of its training, but for what a test says."""
    values: dict[str, Any] = {
        "job": "bert",
        "node": "gpu-7",
        "run": "20260921T141320-4ba6",
        "state": StateWord.TRAINING,
        "stage": "running",
        "attempt": 2,
        "restarts": 1,
        "step": 1400,
        "step_relative": False,
        "phase": "train",
        "ranks": tuple(RankStatus(n, n, 4711 + n, 1403 - 3 * (n == 1), "train", 3 * (n == 1), (2 + n) << 30, 12.0) for n in range(2)),
        "incident": None,
        "incidents": 0,
        "supervisor": SupervisorStatus(4700, alive=True),
        "state_dir": "/jobs/bert/nodes/gpu-7",
        "world_size": 4,
        "now": NOW,
        "since": NOW - 7265,
        "attempt_since": NOW - 3700,
        "steps_per_s": 2.134,
        "total_steps": 10_000,
        "total_from": "from its log (step 1400/10000)",
        "eta_s": 8600 / 2.134,
        "last_step_age_s": 0.4,
        "loss": LossCurve(tuple(2.9 * 0.99**n + 0.01 * (n % 3) for n in range(60)), 1340, 1400, "journal"),
        "verified": StoredCheckpoint("/data/ckpt/step_01380.pt", 1380, 35),
        "saved": StoredCheckpoint("/data/ckpt/step_01400.pt", 1400, 3),
        "mirrored": StoredCheckpoint("/data/ckpt/step_01300.pt", 1300, 250, "s3://backup/bert"),
        "saves": "13 of 14 saves are in s3://backup/bert",
        "waiting_uploads": 1,
        "restarts_left": 2,
        "gpus": (
            GpuStatus(0, "GPU-0", None, 80 << 30, 71 << 30, 64.0),
            GpuStatus(1, "GPU-1", None, 80 << 30, 70 << 30, 61.0),
            GpuStatus(2, "GPU-2", "xid 79"),
        ),
        "health": (
            Finding("clock", "host", "degraded", "the clock is not synchronised"),
            Finding("disk", "path:/data", "degraded", "/data has 2 GiB free"),
        ),
        "examined": NOW - 3705,
        "alerts": "slack refused 1, the last at 15:01:02: status 400: no_text",
    }
    return Status(**{**values, **more})


def hung() -> Status:
    """Rank 1 does not come to the collective that rank 0 waits in."""
    text = "rank 0 waits in all_reduce (seq 58, train.py:70); rank 1 is in main (train.py:65)"
    ranks = [replace(rank, phase_s=95.0) for rank in running().ranks]
    return running(
        state=StateWord.HUNG,
        hang=HangStatus("late", text, (1,), 95.3, "rank 1, /home/ada/bert/train.py:65 in main", done="the job continues: --on-hang warn"),
        steps_per_s=0.0,
        eta_s=None,
        last_step_age_s=95.3,
        ranks=(replace(ranks[0], waits="rank 1"), ranks[1]),
    )


def many() -> Status:
    """512 ranks on one node, three of which do something else."""
    ranks = [RankStatus(n, n, 5000 + n, 1400 - n % 2, "train", n % 2, (20 + n % 3) << 30, 12.0) for n in range(512)]
    ranks[7] = replace(ranks[7], phase="checkpoint", phase_s=71.0, step=1390, lag=10, waits="write of step_01390.pt (nfs4)")
    ranks[300] = replace(ranks[300], phase="data", phase_s=9.0, step=1397, lag=3)
    ranks[301] = replace(ranks[301], phase="data", phase_s=8.0, step=1397, lag=3)
    return running(ranks=tuple(ranks), world_size=4096, nodes=tuple(f"gpu-{n}" for n in range(8)))


def restarting() -> Status:
    """An incident is open, and the next attempt makes no step yet."""
    incident = IncidentStatus(
        3,
        NOW - 12,
        "open",
        "A GPU ran out of memory (cuda_oom, 97 % sure)",
        "rank 1 on gpu-7, /home/ada/bert/train.py:57 in forward, step 1400",
        "restart as attempt 3: from the newest verified checkpoint, with half the batch",
        "nothing: it continues by itself",
        "cuda_oom",
    )
    return running(
        state=StateWord.RESTARTING,
        stage="starting",
        attempt=3,
        restarts=2,
        restarts_left=0,
        incident=3,
        incidents=3,
        last_incident=incident,
        ranks=(),
        world_size=None,
        steps_per_s=None,
        eta_s=None,
        last_step_age_s=None,
    )


STATUSES: Final = {
    "training": running,
    "hung": hung,
    "many-ranks": many,
    "restarting": restarting,
    "waiting": lambda: running(
        state=StateWord.WAITING, stage="selecting", ranks=(), world_size=None, waits=WaitedNodes(2, NOW + 600), steps_per_s=None, eta_s=None
    ),
    "drill": lambda: running(drill=True, state_dir="/jobs/.drill-x/bert/nodes/gpu-7", gpus=(), health=(), examined=None, alerts=None),
}
