"""Time from a rank's death until its peers are signalled.

We kill a rank with SIGKILL and note the time just before; the peers note the time in their handler of SIGTERM. With four ranks the
last of the three peers counts. The machine's own delay of a signal to a sleeping Python process is in the figure.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import TYPE_CHECKING

from figures import Figure, at_most
from runs import start

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 4
LIMIT_MS = 50.0


def one_death_ms(kind: str, place: Path) -> float:
    """Return milliseconds from the kill of rank 1 to the last peer's SIGTERM handler."""
    run = start(kind, place, RANKS, "no_torch.py", "--steps=600", "--step-ms=100", "--progress=progress", "--term-file=terms")
    terms = run.place / "terms"
    try:
        run.wait_for(lambda: all(len(run.progress(rank)) > 1 for rank in range(RANKS)), "second step of every rank")
        lines = (run.place / "pids").read_text().splitlines()
        pid = next(int(line.split()[1]) for line in lines if line.startswith("1 "))
        killed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        run.wait_for(lambda: terms.exists() and terms.read_bytes().count(b"\n") >= RANKS - 1, "SIGTERM at every peer")
        return (max(int(line.split()[1]) for line in terms.read_text().splitlines()[: RANKS - 1]) - killed_ns) / 1e6
    finally:
        run.stop()


def measure(place: Path, pairs: int) -> list[Figure]:
    """Kill a rank in `pairs` runs of each kind, half as many as were asked for."""
    count = max(3, pairs // 2)
    supervised, plain = [], []
    for number in range(count):
        supervised.append(one_death_ms("supervise", place / f"{number}-ours"))
        plain.append(one_death_ms("torchrun", place / f"{number}-plain"))
    detail = {"each_ms": [round(each, 1) for each in supervised], "torchrun_median_ms": round(statistics.median(plain), 1)}
    return [at_most("death_to_peers_signalled", statistics.median(supervised), LIMIT_MS, "ms", **detail)]
