"""CPU seconds that a step costs, under `supervise` against the same command without it.

Both jobs of a pair live at the same time, and take turns: one side's ranks are stopped (SIGSTOP) while the other's run for a fraction
of a second. So whatever else the machine does falls on both alike, which pairs of whole runs do not reach: they differed by several
per cent on a busy machine. The rest is the luck of each process (where its memory lies), and for that there are many pairs.
Each rank's CPU time is read from its CPU clock by us, at the end of a step; the number of steps is read from a file that rank 0 writes.
What runs beside the ranks (launcher, agent, supervisor, guardian) is never stopped: its CPU time counts per second of the clock.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from figures import Figure, quantile, ratio_of_pairs
from runs import Run, cpu_s, family_cpu_s, start

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("torchrun", "supervise")
TURNS = 40
TURN_S = 0.15
SETTLE_S = 0.03
POLL_S = 0.0005
WARM_STEPS = 300


@dataclass(frozen=True, slots=True)
class Cost:
    """One side of a pair.

    rank_s: CPU seconds per step and rank. beside_share: CPU seconds per second of what runs beside the ranks. step_s: the time of a step.
    """

    rank_s: float
    beside_share: float
    step_s: float


def signal_ranks(run: Run, signum: int) -> None:
    """Send a signal to all ranks."""
    for pid in run.rank_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def pin_ranks(run: Run) -> None:
    """Give each rank one processor, all its threads: where the scheduler happens to put them is worth several per cent."""
    usable = sorted(os.sched_getaffinity(0))
    for rank, pid in enumerate(run.rank_pids()):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {usable[rank % len(usable)]})


def at_a_step(run: Run) -> tuple[int, float, float]:
    """Await the end of a step; return its number, the CPU seconds of the ranks by then, and the time."""
    before = run.ranks().steps
    run.wait_for(lambda: run.ranks().steps > before, "step", every_s=POLL_S)
    ranks = run.ranks()
    return ranks.steps, sum(map(cpu_s, ranks.pids)), time.monotonic()


def turn(run: Run) -> tuple[float, float]:
    """Let the ranks run for a moment; return the CPU seconds per step, averaged over the ranks, and the seconds that a step took."""
    signal_ranks(run, signal.SIGCONT)
    time.sleep(SETTLE_S)
    step, cpu, at = at_a_step(run)
    time.sleep(TURN_S)
    last, cpu_then, then = at_a_step(run)
    signal_ranks(run, signal.SIGSTOP)
    return (cpu_then - cpu) / len(run.rank_pids()) / (last - step), (then - at) / (last - step)


def cost_of_each(runs: Mapping[str, Run], turns: int = TURNS) -> dict[str, Cost]:
    """Return what each side of a pair costs: medians over the turns, some of which a stranger spoils."""
    samples: dict[str, list[tuple[float, float]]] = {kind: [] for kind in runs}
    for run in runs.values():
        signal_ranks(run, signal.SIGSTOP)
        pin_ranks(run)
    before = {kind: family_cpu_s(run.process.pid, but=run.rank_pids()) for kind, run in runs.items()}
    began = time.monotonic()
    for number in range(turns):
        for kind in runs if number % 2 == 0 else reversed(list(runs)):
            samples[kind].append(turn(runs[kind]))
    took_s = time.monotonic() - began
    beside_s = {kind: family_cpu_s(run.process.pid, but=run.rank_pids()) - before[kind] for kind, run in runs.items()}
    return {
        kind: Cost(
            rank_s=statistics.median(rank_s for rank_s, _ in kind_samples),
            beside_share=beside_s[kind] / took_s,
            step_s=quantile([step_s for _, step_s in kind_samples], 0.25),  # a stranger can only make it longer
        )
        for kind, kind_samples in samples.items()
    }


def end(runs: Mapping[str, Run]) -> None:
    """End both sides."""
    for run in runs.values():
        signal_ranks(run, signal.SIGCONT)
        run.stop()


def one_pair(place: Path) -> tuple[float, float]:
    """Return CPU seconds per step and rank, of torchrun and of `supervise`."""
    options = ["--steps=1000000000", "--width=256", "--batch=128", "--counter=counter"]
    runs = {kind: start(kind, place / kind, 2, "ddp_small.py", *options) for kind in KINDS}
    try:
        for run in runs.values():
            run.wait_for(lambda run=run: run.ranks().steps > WARM_STEPS, "first steps")  # type: ignore[misc]
        costs = cost_of_each(runs)
    finally:
        end(runs)
    return costs["torchrun"].rank_s, costs["supervise"].rank_s


def measure(place: Path, pairs: int) -> list[Figure]:
    """Run `pairs` pairs."""
    measured = [one_pair(place / str(number)) for number in range(pairs)]
    plain_ms, ours_ms = (round(statistics.median(side) * 1e3, 4) for side in zip(*measured, strict=True))
    each = [round(supervised / plain, 4) for plain, supervised in measured]
    return [ratio_of_pairs("cpu_per_step", measured, 1.02, 0.02, median_ms={"torchrun": plain_ms, "supervise": ours_ms}, each=each)]
