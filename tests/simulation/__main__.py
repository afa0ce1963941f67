"""`python -m tests.simulation`: plays seeds from the command line (docs/explanation/simulation.md)."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.report import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Let random jobs fail, and check every decision.")
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="from which seed on (default: 0)")
    parser.add_argument("--seed", type=int, help="one seed only, to replay it")
    parser.add_argument("--verbose", action="store_true", help="one line for each job")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.seeds) if given.seed is None else (given.seed,)
    return simulate(numbers, verbose=given.verbose)


if __name__ == "__main__":
    sys.exit(main())
