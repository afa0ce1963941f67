"""From the death of a rank to the first step of the new ones: plain torchrun, `supervise`, and `supervise` with standbys.

In: --repetitions N, --jobs, --kinds, --flat N. Out: one JSON object on stdout: medians and ranges, every run, which runs failed, and what
was left out and why. The kinds of a repetition follow each other in turns, so that a busy machine is busy for all. One run gives four
figures: launch → first step of the last rank, kill -9 of rank 1 → first step of both new ranks, SIGTERM → no process left, and how long the
steps are that the job makes while standbys start next to it. CPU seconds are those of all processes of a run.

--flat N kills a rank of one job N times, and counts memory, descriptors and threads of supervisor, guardian and agent after each restart.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import select
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from figures import Figure, at_most, quantile
from runs import DEADLINE_S, BenchError, Ranks, Run, descendants, family_cpu_s, role, start_command

from supervisor.config.settings import ROWS

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support import frameworks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RANKS = 2
REPETITIONS = 7
#: The store of its own is what plain torchrun needs to restart at all where its store fault strikes.
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
STANDBY = next((row for row in ROWS if row.flag == "--standby"), None)
KINDS: Mapping[str, Mapping[str, str]] = {
    "torchrun": {OWN_STORE: "0"},
    "torchrun_own_store": {OWN_STORE: "1"},
    "cold": {OWN_STORE: "0", **({STANDBY.env: "off"} if STANDBY else {})},
    "standby": {OWN_STORE: "0", **({STANDBY.env: "on"} if STANDBY else {})},
}
JOBS = ("allreduce", "ddp", "demo", "hf")
#: (job, kind) to the seconds from the kill to the first step that are aimed at on an idle machine.
LIMITS_S = {("allreduce", "standby"): 0.15, ("ddp", "standby"): 0.2, ("demo", "standby"): 0.3}
#: A restart that takes longer has failed: plain torchrun's ranks may look for a store that is gone, until their own deadline.
RESTARTS_WITHIN_S = 90.0
#: The least time that a job trains before its rank is killed.
TRAINS_S = 4.0
#: Steps at the beginning of a job that say nothing about its pace.
WARM_STEPS = 20
#: Beside the measured work each step is a line in a file.
JOB = [str(Path(__file__).with_name("restart_job.py"))]


class MissingError(BenchError):
    """What a run needs is not on this machine, or not in this supervise."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step of a rank. at_ns: CLOCK_MONOTONIC."""

    rank: int
    step: int
    at_ns: int
    pid: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run showed. None: not known. parts: of launch and restart, as `supervise` splits them; empty for plain torchrun.

    beside_cpu_s: from the first step to the kill, of all processes but the ranks: the start of standbys is in it.
    """

    launch_s: float
    launch_cpu_s: float
    beside_cpu_s: float
    restart_s: float
    restart_cpu_s: float
    stop_s: float
    step_ms: dict[str, float]
    parts: list[dict[str, Any]] = field(default_factory=list)


def step_lines(place: Path) -> list[StepLine]:
    """Return the steps that the ranks made, in order."""
    with contextlib.suppress(FileNotFoundError):
        lines = (place / "progress").read_text(encoding="ascii").splitlines(keepends=True)
        return [StepLine(*map(int, line.split())) for line in lines if line.endswith("\n")]
    return []


def newest_ranks(place: Path) -> Ranks:
    """Return the newest process of each rank, and the steps that rank 0 made."""
    lines = step_lines(place)
    return Ranks([pid for _, pid in sorted({line.rank: line.pid for line in lines}.items())], sum(line.rank == 0 for line in lines))


def needed(kind: str, job: str) -> dict[str, str]:
    """Return the variables that a job needs; its imports are installed first. Raises MissingError where something is missing."""
    if kind == "standby" and STANDBY is None:
        raise MissingError("this supervise has no --standby")
    try:
        return {**frameworks.variables("huggingface"), "HF_HUB_OFFLINE": "1"} if job == "hf" else {}
    except pytest.skip.Exception as reason:
        raise MissingError(str(reason)) from None


def begin(kind: str, job: str, place: Path, *options: str, **variables: str) -> Run:
    """Start a job."""
    place.mkdir(parents=True)
    words = ["torchrun", f"--nproc-per-node={RANKS}", "--max-restarts=1000", *JOB, job, *options]
    launcher = "torchrun" if kind.startswith("torchrun") else "supervise"
    return start_command(launcher, place, words, newest_ranks, **KINDS[kind], **variables)


def log_rows(run: Run, event: str) -> list[dict[str, Any]]:
    """Return the lines of this event in the log of a supervised run."""
    lines = [line for path in run.place.glob("state/*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [row for row in map(json.loads, lines) if row.get("event") == event]


def first_steps(run: Run, old: Sequence[int] = ()) -> list[StepLine]:
    """Return the first step of each rank's newest process, of those that are not `old`."""
    lines_by_rank: dict[int, StepLine] = {}
    for line in step_lines(run.place):
        if line.pid not in old:
            lines_by_rank.setdefault(line.rank, line)
    return list(lines_by_rank.values())


def wait_first_steps(run: Run, old: Sequence[int] = ()) -> int:
    """Await the first step of both ranks; return when the last of the two was made, CLOCK_MONOTONIC ns."""
    within_s = RESTARTS_WITHIN_S if old else DEADLINE_S
    run.wait_for(lambda: len(first_steps(run, old)) == RANKS, f"first step of {RANKS} ranks", every_s=0.02, within_s=within_s)
    return max(line.at_ns for line in first_steps(run, old))


def wait_ready(kind: str, run: Run, attempt: int) -> None:
    """Await that both standbys of this attempt are ready."""
    if kind == "standby":
        run.wait_for(
            lambda: any((row.get("attempt"), row.get("ready")) == (attempt, RANKS) for row in log_rows(run, "standby.reported")),
            "ready standbys",
            every_s=0.1,
        )


def kill_rank_1(run: Run) -> tuple[list[int], int]:
    """Kill rank 1; return the pids of the ranks, and when, CLOCK_MONOTONIC ns."""
    pids = run.rank_pids()
    killed_ns = time.monotonic_ns()
    os.kill(pids[1], signal.SIGKILL)
    return pids, killed_ns


def stop_s(run: Run) -> float:
    """Ask the run to end, and return the seconds until none of its processes is left."""
    family = set(descendants(run.process.pid)) - {run.process.pid}
    held = []
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            held.append(os.pidfd_open(pid))
    asked = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    run.process.wait(60)
    for handle in held:
        select.select([handle], [], [], 30.0)
        os.close(handle)
    return time.monotonic() - asked


def step_ms(run: Run, until_ns: int) -> dict[str, float]:
    """Return median, 99th percentile and longest of rank 0's steps until then, in ms."""
    at_ns = [line.at_ns for line in step_lines(run.place) if line.rank == 0 and line.at_ns <= until_ns][WARM_STEPS:]
    times = [(after - before) / 1e6 for before, after in itertools.pairwise(at_ns)]
    if not times:
        return {}
    return {"median": round(statistics.median(times), 3), "p99": round(quantile(times, 0.99), 3), "longest": round(max(times), 3)}


def one_run(kind: str, job: str, place: Path) -> Sample:
    """Launch a job, kill its rank 1 once, and end it."""
    variables = needed(kind, job)
    launched_ns = time.monotonic_ns()
    run = begin(kind, job, place, **variables)
    try:
        stepping_ns = wait_first_steps(run)
        pid = run.process.pid
        launch_cpu_s = family_cpu_s(pid)
        beside_s = family_cpu_s(pid, but=run.rank_pids())
        wait_ready(kind, run, 1)
        time.sleep(max(0.0, TRAINS_S - (time.monotonic_ns() - stepping_ns) / 1e9))
        beside_s, before_s = family_cpu_s(pid, but=run.rank_pids()) - beside_s, family_cpu_s(pid)
        pids, killed_ns = kill_rank_1(run)
        again_ns = wait_first_steps(run, pids)
        cpu_s = family_cpu_s(pid) - before_s
        time.sleep(0.5)  # the supervisor reads the heartbeats five times a second
        ended_s = stop_s(run)
        parts = [{name: row[name] for name in ("after", "total_s", "parts")} for row in log_rows(run, "attempt.timed")]
        return Sample(
            launch_s=(stepping_ns - launched_ns) / 1e9,
            launch_cpu_s=launch_cpu_s,
            beside_cpu_s=beside_s,
            restart_s=(again_ns - killed_ns) / 1e9,
            restart_cpu_s=cpu_s,
            stop_s=ended_s,
            step_ms=step_ms(run, killed_ns),
            parts=parts,
        )
    finally:
        run.stop()


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return median and range of each figure, and the median of each part of launch and restart."""
    names = ("launch_s", "launch_cpu_s", "beside_cpu_s", "restart_s", "restart_cpu_s", "stop_s")
    fields: dict[str, Any] = {name: _spread([getattr(sample, name) for sample in samples]) for name in names}
    fields["longest_step_ms"] = _spread([sample.step_ms["longest"] for sample in samples if sample.step_ms])
    fields["p99_step_ms"] = _spread([sample.step_ms["p99"] for sample in samples if sample.step_ms])
    for after in ("launch", "failure"):
        rows = [row["parts"] for sample in samples for row in sample.parts if row["after"] == after]
        known = list(dict.fromkeys(name for row in rows for name in row))
        fields[f"parts_after_{after}_s"] = {name: round(statistics.median(row[name] for row in rows if name in row), 3) for name in known}
    return fields


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": round(statistics.median(values), 4), "least": round(min(values), 4), "most": round(max(values), 4)}


def compare(place: Path, repetitions: int, jobs: Sequence[str], kinds: Sequence[str]) -> dict[str, Any]:
    """Run each kind of each job so often, in turns. What cannot run is left out with its reason."""
    results: dict[str, Any] = {}
    for job in jobs:
        samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
        left_out: dict[str, str] = {}
        failed: dict[str, list[str]] = {}
        for number in range(repetitions):
            for kind in (*kinds[number % len(kinds) :], *kinds[: number % len(kinds)]):
                if kind in left_out:
                    continue
                try:
                    samples[kind].append(one_run(kind, job, place / f"{job}-{kind}-{number}"))
                except MissingError as error:
                    left_out[kind] = str(error)
                except BenchError as error:
                    failed.setdefault(kind, []).append(str(error))
                    print(f"{job} {kind}: failed: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
                else:
                    sample = samples[kind][-1]
                    text = f"launch {sample.launch_s:.2f} s, restart {sample.restart_s:.3f} s, stop {sample.stop_s:.2f} s"
                    print(f"{job} {kind}: {text}", file=sys.stderr, flush=True)
        rows = {kind: {**summary(of), "runs": [asdict(sample) for sample in of]} for kind, of in samples.items() if of}
        results[job] = {"kinds": rows, "failed": failed, "left_out": left_out}
    return results


# the flatness check


def footprint(run: Run) -> dict[str, dict[str, int]]:
    """Return what each of our processes uses: resident KiB, descriptors, threads; and how many processes the run has."""
    sizes: dict[str, dict[str, int]] = {}
    family = descendants(run.process.pid)
    for pid in family:
        with contextlib.suppress(OSError, KeyError):
            name = role(pid)
            if name not in {"supervisor", "guardian", "agent"}:
                continue
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            count = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            sizes[name] = {"rss_kib": int(status["VmRSS"].split()[0]), "descriptors": count, "threads": int(status["Threads"])}
    return {**sizes, "run": {"processes": len(family)}}


def flat(place: Path, kind: str, restarts: int) -> dict[str, Any]:
    """Restart one job so often; return what its processes use after the first tenth of the restarts and after the last tenth."""
    settings = {"_SUPERVISE_TEST_INTERVALS": "0.04", "SUPERVISE_RESTART_MAX_ATTEMPTS": "100000"}
    run = begin(kind, "allreduce", place, "--go-on", **needed(kind, "allreduce"), **settings)
    rows: list[dict[str, dict[str, int]]] = []
    times: list[float] = []
    try:
        wait_first_steps(run)
        for number in range(restarts):
            begun = len(step_lines(run.place))
            run.wait_for(lambda begun=begun: len(step_lines(run.place)) > begun + 100, "steps")  # type: ignore[misc]
            wait_ready(kind, run, number + 1)
            old = {line.pid for line in step_lines(run.place)}
            _, killed_ns = kill_rank_1(run)
            times.append((wait_first_steps(run, list(old)) - killed_ns) / 1e9)
            wait_ready(kind, run, number + 2)
            rows.append(footprint(run))
            print(f"flat {kind} {number + 1}: {times[-1]:.3f} s {rows[-1]}", file=sys.stderr, flush=True)
    finally:
        run.stop()
    tenth = max(1, len(rows) // 10)
    grown = {name: {key: _grown([row[name][key] for row in rows], tenth) for key in values} for name, values in rows[-1].items()}
    return {"restarts": restarts, "restart_s": _spread(times), "first_and_last_tenth": grown}


def _grown(values: Sequence[int], tenth: int) -> list[float]:
    return [statistics.median(values[:tenth]), statistics.median(values[-tenth:])]


def measure(place: Path, pairs: int) -> list[Figure]:
    """Return the figures of `make bench`: each restart, launch and stop beside the same job under torchrun with a store of its own."""
    repetitions = min(pairs, REPETITIONS)
    figures: list[Figure] = []
    for job, result in compare(place, repetitions, JOBS, tuple(KINDS)).items():
        rows = result["kinds"]
        plain = rows.get("torchrun_own_store")
        for kind, why in result["left_out"].items():
            figures.append(Figure(f"restart_{job}_{kind}", 0.0, "s", "-", "not measured", {"reason": why[-500:]}))
        for kind in ("cold", "standby"):
            if kind not in rows or plain is None:
                continue
            compared = ("restart_s", "restart_cpu_s", "launch_s", "stop_s")
            detail: dict[str, Any] = {name: {each: row[name] for each, row in rows.items()} for name in compared}
            detail["failed_runs"] = {each: len(of) for each, of in result["failed"].items()}
            own_row = rows[kind]
            share = own_row["restart_s"]["median"] / plain["restart_s"]["median"]
            aim = 0.8 if kind == "cold" else 0.12 if job == "hf" else 0.08
            figures.append(
                at_most(f"restart_{job}_{kind}_of_torchrun", share, aim, "ratio", **detail, parts=own_row["parts_after_failure_s"])
            )
            if (job, kind) in LIMITS_S:
                figures.append(at_most(f"restart_{job}_{kind}", own_row["restart_s"]["median"], LIMITS_S[job, kind], "s"))
            launch = own_row["launch_s"]["median"] / plain["launch_s"]["median"]
            figures.append(at_most(f"launch_{job}_{kind}_of_torchrun", launch, 1.0, "ratio", parts=own_row["parts_after_launch_s"]))
            stop = own_row["stop_s"]["median"] / plain["stop_s"]["median"]
            figures.append(at_most(f"stop_{job}_{kind}_of_torchrun", stop, 0.3, "ratio"))
        if "standby" in rows and "cold" in rows:
            slowest, usual = rows["standby"]["longest_step_ms"]["median"], rows["cold"]["p99_step_ms"]["median"]
            figures.append(at_most(f"longest_step_{job}_beside_standbys", slowest, usual, "ms", p99_without_ms=usual))
    return figures


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="runs of each kind and job; 0: only --flat")
    parser.add_argument("--jobs", default=",".join(JOBS), help="of " + ", ".join(JOBS))
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--flat", type=int, default=50, help="restarts in a row of one job; 0: not measured")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    kinds = tuple(args.kinds.split(","))
    with tempfile.TemporaryDirectory(prefix="supervise-bench-") as place:
        report: dict[str, Any] = {"cpus": os.cpu_count(), "load": load, "repetitions": args.repetitions}
        if args.repetitions:
            report["jobs"] = compare(Path(place), args.repetitions, args.jobs.split(","), kinds)
        report["flat"] = {}
        for kind in [kind for kind in ("cold", "standby") if args.flat and kind in kinds]:
            try:
                report["flat"][kind] = flat(Path(place) / f"flat-{kind}", kind, args.flat)
            except BenchError as error:
                report["flat"][kind] = {"left_out": str(error)}
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
