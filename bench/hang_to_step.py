"""From SIGSTOP of a rank until somebody notices, and until both ranks step again: `supervise` with several limits, and plain torchrun.

In: --rounds N, --watch-s S. Out: one JSON object on stdout: seconds of each run, medians, and what a step costs. The runs of a round follow
each other, so that a machine that is busy is busy for all. Plain torchrun is watched for --watch-s seconds. A job of a round has two gloo
ranks with steps of 50 ms, and no checkpoints: the figure is the time to see the hang, not how fast a script loads.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import cpu_per_step
import hook_cost
from runs import JOBS, BenchError, Run, start_command

from supervisor.journal.records import EventTaken, Record, scan

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Each with the settings that differ from the defaults (hang.train_s 60).
KINDS: Mapping[str, Mapping[str, str]] = {
    "torchrun": {},
    "lowest": {"SUPERVISE_HANG_TRAIN_S": "1"},
    "drill": {"SUPERVISE_HANG_TRAIN_S": "10"},
    "default": {},
}
RANKS = 2
#: Enough for a limit that comes from the job's own steps.
WARM_STEPS = 150
JOB = ["torchrun", "--standalone", f"--nproc-per-node={RANKS}", str(JOBS / "ddp_small.py"), "--light", "--steps=100000", "--step-ms=50"]


def noticed_t(run: Run) -> float | None:
    """Return when the hang was confirmed, in Unix seconds; None while it is not."""
    records = (record for path in run.place.glob("state/*/nodes/*/journal.jsonl") for record in scan(path) if isinstance(record, Record))
    return next((record.t for record in records if isinstance(record.body, EventTaken) and record.body.event == "HangConfirmed"), None)


def first_steps_ns(run: Run, since_ns: int) -> list[int]:
    """Return the first step of each rank after this instant, of those that made one."""
    steps = [[at for _, at in run.progress(rank) if at > since_ns] for rank in range(RANKS)]
    return [min(times) for times in steps if times]


def one_run(kind: str, place: Path, watch_s: float) -> dict[str, float | None]:
    """Stop rank 1 of a job; return the seconds until it is noticed and until both ranks step again, None where that never came."""
    place.mkdir(parents=True)
    variables = {**KINDS[kind], "SUPERVISE_HANG_ACTION": "restart", "_SUPERVISE_TEST_INTERVALS": "0.04"} if kind != "torchrun" else {}
    launcher = "torchrun" if kind == "torchrun" else "supervise"
    run = start_command(launcher, place, [*JOB, "--pids=pids", "--progress=progress"], **variables)
    try:
        run.wait_for(lambda: len(run.progress(0)) > WARM_STEPS, "steps")
        rows = (line.split() for line in (place / "pids").read_text().splitlines())
        pid = next(int(pid) for rank, pid in rows if rank == "1")
        stopped_t, stopped_ns = time.time(), time.monotonic_ns()
        os.kill(pid, signal.SIGSTOP)
        settled_ns = stopped_ns + 500_000_000  # rank 0 may end the step that it is in
        if launcher == "torchrun":
            time.sleep(watch_s)
            if run.process.poll() is not None or first_steps_ns(run, settled_ns):
                raise BenchError(run.story("torchrun noticed the stopped rank"))
            os.kill(pid, signal.SIGCONT)
            return {"noticed_s": None, "stepping_s": None}
        run.wait_for(lambda: len(first_steps_ns(run, settled_ns)) == RANKS, "step after the hang", every_s=0.05)
        seen = noticed_t(run)
        stepping_s = (max(first_steps_ns(run, settled_ns)) - stopped_ns) / 1e9
        return {"noticed_s": None if seen is None else seen - stopped_t, "stepping_s": stepping_s}
    finally:
        run.stop()


def measure(place: Path, rounds: int, watch_s: float) -> dict[str, object]:
    """Run all rounds."""
    samples: dict[str, list[dict[str, float | None]]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS:
            samples[kind].append(one_run(kind, place / f"{kind}-{number}", watch_s))
            print(kind, samples[kind][-1], file=sys.stderr, flush=True)
    medians = {}
    for kind, rows in samples.items():
        for name in ("noticed_s", "stepping_s"):
            times = [row[name] for row in rows if row[name] is not None]
            medians[f"{kind}_{name}"] = round(statistics.median(times), 2) if times else None
    return {"rounds": rounds, "watched_s": watch_s, "medians": medians, "runs": samples}


def cost(place: Path, pairs: int) -> dict[str, object]:
    """Return what a step costs with everything on: our own code, and CPU seconds against plain torchrun."""
    figures = [*hook_cost.measure(place / "hook", 1), *cpu_per_step.measure(place / "cpu", pairs)]
    return {figure.name: {"measured": figure.measured, "unit": figure.unit, **figure.detail} for figure in figures}


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch-s", type=float, default=60.0, help="how long plain torchrun is watched")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs for the cost of a step; 0: not measured")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="supervise-bench-") as place:
        report = {"cpus": os.cpu_count(), "load": load, **measure(Path(place), args.rounds, args.watch_s)}
        if args.pairs:
            report["cost"] = cost(Path(place), args.pairs)
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
