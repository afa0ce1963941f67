"""Memory of what runs beside the ranks: supervisor, guardian and agent against torchrun.

The ranks here import no torch, so no page of the agent's torch is shared with them: the figures are the worst case for both sides.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from figures import Figure, at_most
from runs import Run, descendants, memory_kib, role, start

if TYPE_CHECKING:
    from pathlib import Path

SETTLE_S = 3.0  # the figures of interest are those of a job that runs, not of its start


def beside_the_ranks(run: Run) -> dict[str, dict[str, float]]:
    """Return name of the process → RSS and PSS in MiB."""
    sizes: dict[str, dict[str, float]] = {}
    for pid in descendants(run.process.pid, but=run.rank_pids()):
        rss_kib, pss_kib = memory_kib(pid)
        sizes[role(pid)] = {"rss_mib": round(rss_kib / 1024, 1), "pss_mib": round(pss_kib / 1024, 1)}
    return sizes


def both(place: Path, nproc: int) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return what torchrun and what `supervise` use while both run.

    At the same time, because a page of torch that other processes map too counts for less: what else the machine runs then
    lowers both sides alike.
    """
    options = ["--steps=100000", "--step-ms=100", "--progress=progress"]
    runs = [start(kind, place / f"{kind}-{nproc}", nproc, "no_torch.py", *options) for kind in ("torchrun", "supervise")]
    try:
        for run in runs:
            run.wait_for(lambda run=run: all(run.progress(rank) for rank in range(nproc)), "first step of every rank")  # type: ignore[misc]
        time.sleep(SETTLE_S)
        return beside_the_ranks(runs[0]), beside_the_ranks(runs[1])
    finally:
        for run in runs:
            run.stop()


def measure(place: Path, _pairs: int) -> list[Figure]:
    """Measure both sides once with 2 and once with 8 ranks: memory hardly varies."""
    figures = []
    for nproc in (2, 8):
        plain, supervised = both(place, nproc)
        more = sum(each["pss_mib"] for each in supervised.values()) - sum(each["pss_mib"] for each in plain.values())
        figures += [
            at_most(f"supervisor_rss_{nproc}_ranks", supervised["supervisor"]["rss_mib"], 54.0, "MiB"),
            at_most(f"guardian_rss_{nproc}_ranks", supervised["guardian"]["rss_mib"], 16.0, "MiB"),
            at_most(f"pss_above_torchrun_{nproc}_ranks", round(more, 1), 69.0, "MiB", processes={**plain, **supervised}),
        ]
    return figures
