"""`python -m tests.simulation`: plays seeds, and prints how often each rung of each ladder answered and how to replay what was broken."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from tests.simulation.seeds import JOBS, ROWS, played, reached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.core.model import Cause
    from tests.simulation.seeds import Outcome

#: Over all seeds, no rung of any ladder may answer its cause less often.
LEAST = 5


def simulate(seeds: int, seed: int | None, *, verbose: bool) -> int:
    """Play `seeds` seeds from 0 on, or `seed` alone; return the exit code: 0 if nothing was broken, else 1."""

    def report(line: str) -> None:
        if verbose:
            stdio.write(sys.stdout, line)

    began = time.process_time()
    outcomes: list[Outcome] = []
    for number in range(seeds) if seed is None else (seed,):
        outcome = played(number, report=report)
        outcomes.append(outcome)
        if outcome.broken:
            stdio.write(sys.stdout, f"seed {number} is broken: {outcome.broken}")
            stdio.write(sys.stdout, f"replay it: python -m tests.simulation --seed {number} --verbose")
    took_s = time.process_time() - began
    for line in coverage(reached(outcomes)) if seed is None or verbose else ():
        stdio.write(sys.stdout, line)
    events, folded = sum(outcome.events for outcome in outcomes), sum(outcome.folded for outcome in outcomes)
    broken = sum(1 for outcome in outcomes if outcome.broken)
    codes: Counter[int] = sum((outcome.codes for outcome in outcomes), Counter())
    listed_codes = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    rate = f"{(events + folded) / took_s:,.0f} decisions per second of CPU" if took_s else "no time"
    stdio.write(sys.stdout, f"{len(outcomes)} seeds, {len(outcomes) * JOBS} jobs; exit codes {listed_codes}")
    stdio.write(sys.stdout, f"{events} events, and {folded} folded again from journals: {rate}")
    stdio.write(sys.stdout, f"{broken} seeds are broken" if broken else "every invariant held")
    return int(broken > 0)


def coverage(counts: Counter[tuple[Cause, str]]) -> Iterator[str]:
    """Yield one line for each cause: its ladder, with how often each rung answered."""
    ladders: dict[Cause, list[str]] = {}
    for cause, rung in ROWS:
        count = counts[cause, rung]
        ladders.setdefault(cause, []).append(f"{rung} {count}{' (too few)' if count < LEAST else ''}")
    for cause, rungs in ladders.items():
        yield f"{cause}: {' · '.join(rungs)}"
