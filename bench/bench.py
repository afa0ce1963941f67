"""What `supervise` costs, beside plain torchrun on the same machine in the same minutes (`make bench`).

In: --pairs N, or --quick; --only NAME, or --programs for what each program of tests/programs costs (a pair takes 40 s at most). Out: one
JSON object on stdout, a line per figure on stderr. Exit code 0 when everything was measured, whatever the figures; 1 when a run failed.
Figures of a loaded machine are still comparable, as both sides are interleaved; the load average is beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import classify
import cpu_per_step
import death_to_signal
import footprint
import hook_cost
import log_flood
import programs_cost
import restart
import status
from runs import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from figures import Figure

PARTS: dict[str, Callable[[Path, int], list[Figure]]] = {
    "death": death_to_signal.measure,
    "memory": footprint.measure,
    "logs": log_flood.measure,
    "heartbeat": hook_cost.measure,
    "classify": classify.measure,
    "status": status.measure,
    "restart": restart.measure,
    "cpu": cpu_per_step.measure,
}


def main() -> int:
    """Run the bench; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of runs for the ratio of CPU seconds")
    parser.add_argument("--quick", action="store_true", help="three pairs: to see that the bench runs, not to compare")
    parser.add_argument("--only", choices=sorted(PARTS | programs_cost.PARTS), action="append", default=None)
    parser.add_argument("--programs", action="store_true", help="each program of tests/programs, and nothing else")
    args = parser.parse_args()
    pairs = 3 if args.quick else args.pairs
    report: dict[str, Any] = {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release(), "parts": {}}
    failed = False
    with tempfile.TemporaryDirectory(prefix="supervise-bench-") as place:
        for name in args.only or (programs_cost.PARTS if args.programs else PARTS):
            load, began = os.getloadavg()[0], time.monotonic()
            part: dict[str, Any] = {"load_before": round(load, 2)}
            try:
                part["figures"] = [asdict(figure) for figure in (PARTS | programs_cost.PARTS)[name](Path(place) / name, pairs)]
            except BenchError as error:
                part["error"], failed = str(error), True
            part |= {"load_after": round(os.getloadavg()[0], 2), "took_s": round(time.monotonic() - began, 1)}
            report["parts"][name] = part
            for figure in part.get("figures", ()):
                print("{name}: {measured} {unit} (target {target}): {result}".format_map(figure), file=sys.stderr, flush=True)
            if "error" in part:
                print(f"{name}: {part['error']}", file=sys.stderr, flush=True)
    print(json.dumps(report, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
