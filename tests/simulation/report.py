"""`python -m tests.simulation`: plays seeds, and prints how often each step of each ladder answered and how to replay what was broken."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from tests.simulation.seeds import JOBS, ROWS, played, reached

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.core.model import Cause
    from tests.simulation.seeds import Outcome

#: Over all seeds, no step of any ladder may answer its cause less often.
LEAST = 5


def simulate(seeds: Sequence[int], *, verbose: bool) -> int:
    """Play seeds; return the exit code: 0 if nothing was broken, else 1."""

    def report(line: str) -> None:
        if verbose:
            stdio.write(sys.stdout, line)

    began = time.process_time()
    outcomes: list[Outcome] = []
    for number in seeds:
        outcome = played(number, report=report)
        outcomes.append(outcome)
        if outcome.broken:
            stdio.write(sys.stdout, f"seed {number} is broken: {outcome.broken}")
            stdio.write(sys.stdout, f"replay it: python -m tests.simulation --seed {number} --verbose")
    took_s = time.process_time() - began
    for line in coverage(reached(outcomes)) if len(seeds) > 1 or verbose else ():
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
    """Yield one line for each cause: its ladder, with how often each step answered."""
    ladders: dict[Cause, list[str]] = {}
    for cause, ladder_step in ROWS:
        count = counts[cause, ladder_step]
        ladders.setdefault(cause, []).append(f"{ladder_step} {count}{' (too few)' if count < LEAST else ''}")
    for cause, ladder_steps in ladders.items():
        yield f"{cause}: {' · '.join(ladder_steps)}"
