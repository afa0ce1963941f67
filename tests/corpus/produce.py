# ruff: noqa: T201  a command: it prints
"""Produce the corpus: run every case for real and store its output.

    python tests/corpus/produce.py [--into DIR] [ID…]     # logs of all cases, or of those named, into DIR (default: a new directory)
    python tests/corpus/produce.py --update [ID…]         # into tests/corpus/logs, and their rows of labels.toml
    python tests/corpus/produce.py --list

Each case of cases/*.toml makes <id>.log and a line on stdout. The exit status is 1 if a case did not do what it is there for (a failure
that ended with 0, a near-miss that did not, words that should stand in the log and do not). A case whose needs this machine lacks is named
and left out. One case runs at a time, niced.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import tomllib
from dataclasses import asdict
from pathlib import Path

from stage import HERE, Case, Run, lacks, run

LABELS = HERE / "labels.toml"
HEADER = "# What each log of logs/ is an example of. Written by `produce.py --update` from cases/*.toml and from how the runs ended.\n"


def cases() -> dict[str, Case]:
    """All cases by id, in the order of their files."""
    rows = [Case(**row) for file in sorted((HERE / "cases").glob("*.toml")) for row in tomllib.loads(file.read_text())["case"]]
    return {case.id: case for case in rows}


def flaw(case: Case, outcome: Run) -> str:
    """Why a run is no example of what its case is there for, "" where it is one."""
    if outcome.status is None:
        return f"cut off after {case.limit_s:g} s"
    if (outcome.status == 0) != (case.label == "none"):
        return f"labelled {case.label}, ended with {outcome.status}"
    return "" if case.shows in outcome.log else f"{case.shows!r} is not in the log"


def write_labels(new: dict[str, Run], known: dict[str, Case]) -> None:
    """Write labels.toml: what the cases say of themselves, and how their runs ended, which is taken over where they did not run now."""
    rows = tomllib.loads(LABELS.read_text())["log"] if LABELS.exists() else []
    ends = {row["id"]: {"exit": row["exit"], "cut": row["cut"]} for row in rows}
    ends |= {name: {"exit": outcome.status, "cut": outcome.cut} for name, outcome in new.items()}
    blocks = []
    for case in (case for case in known.values() if case.id in ends):
        fields = {key: value for key, value in asdict(case).items() if key in {"id", "label", "alt", "secondary", "near_miss_of"} and value}
        # JSON's strings, numbers, booleans and lists of strings are TOML's too
        blocks.append("[[log]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in (fields | ends[case.id]).items()))
    LABELS.write_text("\n".join([HEADER, *blocks]))


def main() -> int:
    """Run the cases that are asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the case that runs is ended and cleared away
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--into", type=Path, metavar="DIR")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    known = cases()
    if unknown := sorted(set(args.ids) - set(known)):
        parser.error(f"no such case: {', '.join(unknown)}")
    if args.list:
        print("\n".join(f"{case.id:45} {case.label:20} {case.near_miss_of and 'near-miss'}" for case in known.values()))
        return 0
    into = HERE / "logs" if args.update else args.into or Path(tempfile.mkdtemp(prefix="corpus-logs-"))
    into.mkdir(parents=True, exist_ok=True)
    flaws, good = 0, {}
    for case in (known[name] for name in args.ids or known):
        if missing := lacks(case):
            print(f"{case.id}: left out: needs {missing}", flush=True)
            continue
        outcome = run(case)
        wrong = flaw(case, outcome)
        flaws += bool(wrong)
        name = f"{case.id}.flawed.log" if wrong and args.update else f"{case.id}.log"
        destination = Path(tempfile.gettempdir(), name) if wrong and args.update else into / name
        destination.write_text(outcome.log, errors="surrogateescape")
        if not wrong:
            good[case.id] = outcome
        verdict = f"FLAWED: {wrong}: see {destination}" if wrong else "ok"
        print(f"{case.id}: {verdict} (exit {outcome.status}, {outcome.seconds:.1f} s, {len(outcome.log)} characters)", flush=True)
    if args.update:
        write_labels(good, known)
    print(f"{len(good)} logs in {into}, {flaws} flawed")
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
