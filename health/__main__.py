"""`python -m health`: the faults of this node, or of the one whose kernel log was saved."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE: Final = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, 69 where something is FAILED (of a log: critical), 64 for what cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m health", description="Examine this node, and print its faults and their repair.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="as JSON: with --kernel-log one object for each finding")
    parser.add_argument("--all", action="store_true", dest="in_full", help="good results, too")
    parser.add_argument("--watch", type=_seconds, metavar="S", dest="watch_s", help="examine again every S seconds")
    parser.add_argument("--kernel-log", metavar="FILE", help="judge a saved kernel log instead of this node; - for standard input")
    options = parser.parse_args(arguments)
    if options.kernel_log is None:
        return _examine(as_json=options.as_json, in_full=options.in_full, watch_s=options.watch_s)
    if options.in_full or options.watch_s is not None:
        parser.error("--kernel-log does not examine this node: leave out --all and --watch")
    return _kernel_log(options.kernel_log, as_json=options.as_json)


def _examine(*, as_json: bool, in_full: bool, watch_s: float | None) -> int:
    from health import Ask, Doctor, render  # noqa: PLC0415  not for --help

    doctor = Doctor(Ask(paths=(os.getcwd(),), environ=dict(os.environ)), lasting=watch_s is not None)  # noqa: PTH109  strings
    return render.run(doctor, sys.stdout, as_json=as_json, in_full=in_full, watch_s=watch_s)


def _kernel_log(path: str, *, as_json: bool) -> int:
    from health.kernellog import file_report  # noqa: PLC0415  for this option only

    try:
        return file_report.report(path, sys.stdout, as_json=as_json)
    except (file_report.LogUnreadableError, file_report.LogFormError) as error:
        sys.stderr.write(f"python -m health: {error}: {error.hint}\n")
        return USAGE


def _seconds(word: str) -> float:
    if not float(word) >= 0.1:  # noqa: PLR2004  not NaN either
        raise argparse.ArgumentTypeError("0.1 seconds at least")
    return float(word)


if __name__ == "__main__":
    sys.exit(main())
