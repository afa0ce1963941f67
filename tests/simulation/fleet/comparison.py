"""The policies beside each other, and beside what was published: the rows of docs/explanation/fleet.md. Equal seeds give equal rows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.fleet import rates
from tests.simulation.fleet.baselines import Requeue, Torchrun, played
from tests.simulation.fleet.machines import Machines
from tests.simulation.fleet.site import Account, Course, Site
from tests.simulation.fleet.supervised import FleetPlay, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SIZES = (128, 1024, 4096, 16_384, 131_072)
SEEDS = (1, 2, 3)
#: As long as Llama 3's pre-training was watched.
DAYS = 54.0
LLAMA_GPUS = 16_384
RSC_WHY = "the rate counts the infrastructure alone, and takes all nodes for equal"


def _core(**settings: object) -> Callable[[Machines, float, Random], Account]:
    return lambda machines, days, rng: FleetPlay(machines, policy_of(machines, **settings), rng).play(days)


#: What is compared, by the name in the table.
POLICIES: dict[str, Callable[[Machines, float, Random], Account]] = {
    "supervise": _core(),
    "torchrun --max-restarts=3": lambda machines, days, _: played(machines, days, Torchrun()),
    "requeue only": lambda machines, days, _: played(machines, days, Requeue()),
}


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a policy at a size: means over the seeds. effective: of each seed. redone, standing: shares of the time."""

    gpus: int
    policy: str
    faults: float
    interruptions: float
    persons: float
    effective: tuple[float, ...]
    redone: float
    standing: float


def machines_of(gpus: int, days: float, seed: int, rate: float) -> Machines:
    """Return a job's nodes, and the faults that a seed draws for them."""
    course = Course.of(Site(), gpus, rate)
    return Machines(course, rates.drawn(gpus, days, rate, Random(seed)), Random(seed + 1))  # noqa: S311 (worlds, not secrets)


def row(gpus: int, policy: str, days: float = DAYS, seeds: Sequence[int] = SEEDS, rate: float | None = None) -> Row:
    """Play a policy at a size."""
    plays = []
    for seed in seeds:
        machines = machines_of(gpus, days, seed, rates.llama_rate() if rate is None else rate)
        plays.append((POLICIES[policy](machines, days, Random(seed + 2)), len(machines.faults)))  # noqa: S311 (worlds, not secrets)
    accounts = [account for account, _ in plays]
    mean: Callable[[Iterable[float]], float] = statistics.fmean
    return Row(
        gpus,
        policy,
        faults=mean(count for _, count in plays),
        interruptions=mean(a.interruptions for a in accounts),
        persons=mean(a.persons for a in accounts),
        effective=tuple(a.effective for a in accounts),
        redone=mean(a.redone_s / a.total_s for a in accounts),
        standing=mean(a.standing_s / a.total_s for a in accounts),
    )


def policies_table(rows: Iterable[Row]) -> str:
    """Return the table of the policies."""
    lines = ["| GPUs | policy | effective | done again | stands | interruptions | persons |", "| ---: | --- |" + " ---: |" * 5]
    for row in rows:
        effective = f"{100 * statistics.fmean(row.effective):.1f} %"
        shares = f"{100 * row.redone:.1f} % | {100 * row.standing:.1f} %"
        lines.append(f"| {row.gpus:,} | {row.policy} | {effective} | {shares} | {row.interruptions:.0f} | {row.persons:.0f} |")
    return "\n".join(lines)


def published_table(rows: Sequence[Row]) -> str:
    """Return the simulated figures beside the published ones. rows: of `supervise`, at Llama 3's rate."""
    llama = next(row for row in rows if row.gpus == LLAMA_GPUS)
    total, whole, planned = (
        rates.figure(name) for name in ("unexpected interruptions", "effective training time", "planned interruptions")
    )
    effective = 100 * statistics.fmean(llama.effective)
    reached = "reached" if effective >= whole.value else f"{whole.value - effective:.1f} points below"
    rows_of_llama = (
        (
            "faults of 16,384 GPUs in 54 days",
            f"{total.value:.0f}",
            f"{llama.faults:.0f}",
            f"{_per_cent(llama.faults, total.value)}: by chance, the rate is an input",
        ),
        (
            "interruptions by them",
            f"{total.value:.0f}",
            f"{llama.interruptions:.0f}",
            f"{_per_cent(llama.interruptions, total.value)}: a node that is broken and still in the job fails again",
        ),
        (
            "effective training time",
            f"≥ {whole.value:.0f} %",
            f"{effective:.1f} %",
            f"{reached}; {planned.value:.0f} planned interruptions are not played",
        ),
    )
    lines = ["| figure | source | published | simulated | deviation |", "| --- | --- | ---: | ---: | --- |"]
    lines += [
        f"| {quantity} | {total.source} | {published} | {simulated} | {reason} |"
        for quantity, published, simulated, reason in rows_of_llama
    ]
    for gpus in (8, 1024, 16_384, 131_072):
        known = rates.figure("mean time to failure", gpus)
        simulated_h = 24 / (rates.rsc_rate() * gpus)
        reason = "the authors projected from this rate"
        if "measured" in known.how:
            reason = f"{simulated_h / known.value:.1f} times as long as they measured: {RSC_WHY}"
        lines.append(f"| mean time to failure of {gpus:,} GPUs | {known.source} | {known.value:,.4g} h | {simulated_h:,.4g} h | {reason} |")
    return "\n".join(lines)


def _per_cent(simulated: float, value: float) -> str:
    return f"{100 * (simulated / value - 1):+.0f} %"


def faults_table() -> str:
    """Return how each published row is played."""
    lines = [
        "| published (Llama 3, table 5) | count | cause in the evidence | how it shows | stays broken | why |",
        "| --- | ---: | --- | --- | ---: | --- |",
    ]
    for kind in rates.KINDS:
        cause = "" if kind.symptom is rates.Symptom.LOST else f"`{kind.cause}`"
        lines.append(
            f"| {kind.figure} | {rates.figure(kind.figure).value:.0f} | {cause} | {kind.symptom} | {100 * kind.broken:.0f} % | {kind.why} |"
        )
    return "\n".join(lines)


def assumptions_table() -> str:
    """Return the times that are assumed."""
    lines = ["| time | value | what it is |", "| --- | ---: | --- |"]
    lines += [f"| `{name}` | {value:g} s | {why} |" for name, value, why in Site().assumptions()]
    return "\n".join(lines)
