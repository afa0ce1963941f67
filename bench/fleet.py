"""Weeks of a job on 8 to 131,072 GPUs, on a virtual clock: the core's decisions beside torchrun's restarts and the scheduler's requeue.

    python bench/fleet.py                  # one JSON object on stdout, as bench.py's: a day and 54 days of 16,384 GPUs
    python bench/fleet.py --write          # play all sizes, and write the measured tables of docs/explanation/fleet.md (two minutes)
    python bench/fleet.py --write --check  # exit status 1 where they are not up to date

In: the published figures (tests/simulation/fleet/published.csv), and nothing of the machine but its CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from random import Random

from figures import Figure, at_least, at_most
from page_tables import replace_table

from tests.simulation.fleet import comparison, rates
from tests.simulation.fleet.comparison import LLAMA_GPUS, POLICIES, SIZES, Row
from tests.simulation.fleet.supervised import FleetPlay, policy_of

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "fleet.md"
DAY_LIMIT_S = 10.0


def measure() -> list[Figure]:
    """Play a day of 16,384 GPUs, and 54 days; return the figures."""
    machines = comparison.machines_of(LLAMA_GPUS, 1.0, 1, rates.llama_rate())
    began = time.process_time()
    play = FleetPlay(machines, policy_of(machines), Random(1))  # noqa: S311 (worlds, not secrets)
    play.play(1.0)
    took_s = time.process_time() - began
    whole = comparison.row(LLAMA_GPUS, "supervise")
    target = rates.figure("effective training time").value
    return [
        at_most("fleet: a day of 16,384 GPUs", took_s, DAY_LIMIT_S, "s of CPU", events=play.events),
        at_least("fleet: effective time of 16,384 GPUs", 100 * statistics.fmean(whole.effective), target, "%", seeds=whole.effective),
    ]


def written(page: str) -> str:
    """Return the page with its tables as they are now."""
    rows = [comparison.row(gpus, policy) for gpus in SIZES for policy in POLICIES]
    own_rows: list[Row] = [row for row in rows if row.policy == next(iter(POLICIES))]
    page = replace_table(PAGE, page, "policies", comparison.policies_table(rows))
    return replace_table(PAGE, page, "published", comparison.published_table(own_rows))


def main() -> int:
    """Measure and print, or write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the tables of docs/explanation/fleet.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the tables are not up to date")
    given = parser.parse_args()
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        now = written(page)
        if given.check:
            return int(now != page)
        PAGE.write_text(now, encoding="utf-8")
        return 0
    load = os.getloadavg()[0]
    figures = measure()
    for figure in figures:
        print(f"{figure.name}: {figure.measured:,.2f} {figure.unit} (target {figure.target}): {figure.result}", file=sys.stderr)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load_before": round(load, 2)}
    print(json.dumps(machine | {"parts": {"fleet": {"figures": [asdict(figure) for figure in figures]}}}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
