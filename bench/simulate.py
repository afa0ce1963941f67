"""How many events the simulator decides in a second of CPU, by itself and beside the bare core, and how long 200 seeds take.

    python bench/simulate.py [--seeds N]

In: nothing of the machine but its CPU. Out: one JSON object on stdout, as bench.py's; CPU seconds, so that other programs count as little
as they can. The target is 100 000 events per second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict

from figures import Figure, at_least, at_most

from supervisor.core import events as core_events
from supervisor.core.machine import decide, initial
from supervisor.core.model import Phase, Policy, RankInfo
from tests.simulation.seeds import JOBS, SEEDS, played

TARGET = 100_000
WHOLE_S = 40.0
BARE = 100_000


def bare() -> float:
    """Return how many ProgressObserved per CPU second the core alone decides: what no simulator around it can exceed."""
    state, _ = decide(initial(), core_events.SupervisorStarted(0.0, "run", Policy()))
    state, _ = decide(state, core_events.AttemptStarted(1.0, 1, (RankInfo(0, 0, 1, 1),), 1))
    began = time.process_time()
    for step in range(BARE):
        state, _ = decide(state, core_events.ProgressObserved(1.0 + step, 1, step, step, Phase.TRAIN))
    return BARE / (time.process_time() - began)


def measure(seeds: int) -> list[Figure]:
    """Play the seeds; return the figures."""
    events = folded = broken = 0
    began = time.process_time()
    for seed in range(seeds):
        outcome = played(seed)
        events, folded, broken = events + outcome.events, folded + outcome.folded, broken + bool(outcome.broken)
    took_s = time.process_time() - began
    detail = {"events": events, "folded_again": folded, "jobs": seeds * JOBS, "broken": broken, "cpu_s": round(took_s, 2)}
    return [
        at_least("simulate: decisions, those folded from journals included", (events + folded) / took_s, TARGET, "1/s of CPU", **detail),
        at_least("simulate: new events alone", events / took_s, TARGET, "1/s of CPU"),
        at_least("the core alone, on heartbeats", bare(), TARGET, "1/s of CPU"),
        at_most(f"simulate: {SEEDS} seeds", took_s * SEEDS / seeds, WHOLE_S, "s of CPU"),
    ]


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    load = os.getloadavg()[0]
    figures = measure(parser.parse_args().seeds)
    for figure in figures:
        print(f"{figure.name}: {figure.measured:,.0f} {figure.unit} (target {figure.target}): {figure.result}", file=sys.stderr)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load_before": round(load, 2)}
    print(json.dumps(machine | {"parts": {"simulate": {"figures": [asdict(figure) for figure in figures]}}}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
