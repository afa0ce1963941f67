"""A rank that prints 100 MB/s for ten seconds: the time that this adds to its steps, and whether the dropped lines were counted.

On both sides stdout is a regular file, as under nohup or Slurm. Under `supervise` the bytes go through a pipe and the guardian, and
into the job's own bounded logs besides.
"""

from __future__ import annotations

import itertools
import json
import statistics
from typing import TYPE_CHECKING, Any

from figures import Figure, at_most, quantile
from runs import start

if TYPE_CHECKING:
    from pathlib import Path

MIB_S = 100e6 / 2**20
STEP_MS = 10.0
SECONDS = 10.0


def step_times_ms(kind: str, place: Path, mib_s: float) -> list[float]:
    """Return the step times of rank 0, the one that prints."""
    steps = int(SECONDS / STEP_MS * 1e3)
    options = [f"--steps={steps}", f"--step-ms={STEP_MS}", f"--flood-mib-s={mib_s}", "--progress=progress"]
    run = start(kind, place, 2, "no_torch.py", *options)
    run.finish()
    stamps = [at for _, at in run.progress(0)]
    return [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(stamps)]


def account(place: Path) -> dict[str, int]:
    """Return what became of the bytes that rank 0 printed under `supervise`; remove the large files."""
    (node,) = (place / "state" / "bench" / "nodes").iterdir()
    events = [json.loads(line) for line in (node / "supervise.log").read_text().splitlines()]
    dropped = [event["dropped_bytes"] for event in events if event["event"] == "output.dropped"]
    logs = [path for path in node.glob("attempts/*/rank-0.*") if path.suffix != ".times"]
    counts = {
        "printed": int(MIB_S * STEP_MS / 1e3 * 8192) * 128 * int(SECONDS / STEP_MS * 1e3),
        "shown": (place / "stdout").stat().st_size,
        "in_log_files": sum(path.stat().st_size for path in logs),
        "dropped_and_told": dropped[-1] if dropped else 0,
    }
    for path in [place / "stdout", *logs]:
        path.unlink()
    return counts


def measure(place: Path, pairs: int) -> list[Figure]:
    """Run each of the four cases a few times, interleaved; judge the added time at the median and at the 99th percentile."""
    cases: dict[str, list[float]] = {"torchrun": [], "torchrun flood": [], "supervise": [], "supervise flood": []}
    bytes_of = []
    for number in range(max(1, min(3, pairs // 3))):
        for case in cases:
            kind, _, flood = case.partition(" ")
            where = place / f"{number}-{case.replace(' ', '-')}"
            cases[case] += step_times_ms(kind, where, MIB_S if flood else 0.0)
            if case == "supervise flood":
                bytes_of.append(account(where))
            else:
                (where / "stdout").unlink()
    summary: dict[str, Any] = {
        case: {"median_ms": round(statistics.median(times), 3), "p99_ms": round(quantile(times, 0.99), 3), "max_ms": round(max(times), 1)}
        for case, times in cases.items()
    }
    supervised, plain = cases["supervise flood"], cases["torchrun flood"]
    return [
        at_most("flood_median_step_added", statistics.median(supervised) - statistics.median(plain), 0.5, "ms", cases=summary),
        at_most("flood_p99_step_added", quantile(supervised, 0.99) - quantile(plain, 0.99), 2.0, "ms", bytes=bytes_of),
    ]
