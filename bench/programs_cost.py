"""CPU seconds that the programs of tests/programs cost, under `supervise` against the same command without it.

Both start at the same time, with the options of the table, and with so many steps that they never end nor save while they are measured.
Of each side: the CPU seconds of all processes until rank 0 made its first step, then what a step costs (cpu_per_step.py).
"""

from __future__ import annotations

import socket
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cpu_per_step import Cost, cost_of_each, end
from figures import Figure, at_most, ratio_of_pairs
from runs import BenchError, Ranks, Run, family_cpu_s, start_command

if TYPE_CHECKING:
    from collections.abc import Sequence

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.programs.program_runs import environment, lay_out
from tests.programs.table import PROGRAMS, TrainingProgram

STEPS = 200_000
WARM_STEPS = 60
TAIL_BYTES = 4096
TURNS = 30
KINDS = ("bare", "supervise")
Pair = tuple[float, float]


def ranks_of_program(place: Path) -> Ranks:
    """Read the end of what the programs' hook wrote."""
    with (place / "events").open("rb") as file:
        begins = file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        text = file.read().decode()
    lines = text.splitlines()[1 if begins else 0 :]
    if not text.endswith("\n"):  # a line across two pages is seen in halves
        lines = lines[:-1]
    ranks = {int(rank): (int(pid), int(step)) for _, rank, step, pid in map(str.split, lines)}
    return Ranks([pid for _, (pid, _) in sorted(ranks.items())], ranks[0][1] if 0 in ranks else 0)


def begin(kind: str, program: TrainingProgram, place: Path) -> Run:
    """Start one side."""
    lay_out(program, place)
    (place / "events").touch()
    with socket.socket() as free:  # for ranks that meet at a port which their launcher fixed: both sides run at once
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    try:
        variables = environment(program)
    except pytest.skip.Exception as reason:
        raise BenchError(str(reason)) from None
    words = [word.format(steps=STEPS, every=STEPS // 4) for word in program.longer]
    return start_command(kind, place, [*program.command, *words], ranks_of_program, **variables, PROGRAM_STEPS=str(STEPS), MASTER_PORT=port)


def one_pair(program: TrainingProgram, place: Path, kinds: tuple[str, ...]) -> tuple[dict[str, float], dict[str, Cost]]:
    """Return, of each side, the CPU seconds of its start and what its steps cost."""
    runs = {kind: begin(kind, program, place / kind) for kind in kinds}
    started: dict[str, float] = {}

    def all_started() -> bool:
        for kind, run in runs.items():
            if kind not in started and run.ranks().steps:
                started[kind] = family_cpu_s(run.process.pid)
        return len(started) == len(runs)

    try:
        for run in runs.values():
            run.wait_for(all_started, "first step")
        for run in runs.values():
            run.wait_for(lambda run=run: run.ranks().steps > WARM_STEPS, "first steps")  # type: ignore[misc]
        return started, cost_of_each(runs, TURNS)
    finally:
        end(runs)


def measure(program: TrainingProgram, place: Path, pairs: int) -> list[Figure]:
    """Run `pairs` pairs of a program."""
    starts: list[Pair] = []
    ranks: list[Pair] = []
    beside: list[Pair] = []
    trees: list[Pair] = []
    for number in range(pairs):
        started, costs = one_pair(program, place / str(number), KINDS if number % 2 == 0 else KINDS[::-1])
        bare, supervised = (costs[kind] for kind in KINDS)
        starts.append((started["bare"], started["supervise"]))
        ranks.append((bare.rank_s, supervised.rank_s))
        beside.append((bare.beside_share, supervised.beside_share))
        # what runs beside the ranks costs by the clock, so both sides get the same length of a step
        plain_s, ours_s = (program.world * side.rank_s + bare.step_s * side.beside_share for side in (bare, supervised))
        trees.append((plain_s, ours_s))
    above_s = [supervised - bare for bare, supervised in starts]
    return [
        ratio_of_pairs(f"{program.name}_ranks_cpu_per_step", ranks, 1.01, 0.02, **_detail(ranks, 1e3, "ms")),
        ratio_of_pairs(
            f"{program.name}_cpu_per_step",
            trees,
            1.01,
            0.02,
            beside_the_ranks=_detail(beside, 1e3, "ms_per_s"),
            **_detail(trees, 1e3, "ms"),
        ),
        at_most(
            f"{program.name}_start_cpu_above_bare", statistics.median(above_s), 0.5, "s", each=_rounded(above_s), **_detail(starts, 1, "s")
        ),
    ]


def _detail(pairs: Sequence[Pair], factor: float, unit: str) -> dict[str, object]:
    """Return the medians of both sides, and the ratio of each pair."""
    medians = [statistics.median(side) * factor for side in zip(*pairs, strict=True)]
    named = {f"{kind}_{unit}": round(median, 4) for kind, median in zip(KINDS, medians, strict=True)}
    return named | {"ratios": _rounded([supervised / bare for bare, supervised in pairs if bare])}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


PARTS = {f"program-{program.name}": partial(measure, program) for program in PROGRAMS}
