"""From `kill -9` of one of two ranks until both make the same new step, and how many steps are made again: `supervise` and its peers.

In: --venv NAME=DIRECTORY for each launcher that has an environment of its own (torchrun-newest*, dlrover, nvrx, ray, torchft), and
--repetitions N. Out: one JSON object on stdout: versions, medians, ranges, every run, and which runs failed. The launchers of a
repetition follow each other, so that a machine that is busy is busy for all. All run the same model with the same steps and saves
(peers_job.py), and the kill comes ten steps after a save. `alone_s`: from the kill until the other rank makes a step that it had not made,
which only torchft's makes alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import restart
from peers_job import SAVE_EVERY
from runs import BenchError, Run, start_command

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB = str(Path(__file__).with_name("peers_job.py"))
TORCHRUN = f"torchrun --nproc-per-node=2 --max-restarts=1000 {JOB} torch"
#: Launcher to its shell command; PORT is a free port.
LAUNCHERS = {
    "torchrun": TORCHRUN,
    "torchrun-own-store": TORCHRUN,
    "torchrun-newest": TORCHRUN,
    "torchrun-newest-own-store": TORCHRUN,
    "supervise-cold": f"exec supervise --job bench --state-dir state --standby off -- {TORCHRUN}",
    "supervise": f"exec supervise --job bench --state-dir state --standby on -- {TORCHRUN}",
    "dlrover": (
        "python -m dlrover.python.master.main --platform local --port PORT --node_num 1 --job_name bench & sleep 3; "
        "DLROVER_MASTER_ADDR=127.0.0.1:PORT NODE_RANK=0 NODE_NUM=1 "
        f"dlrover-run --nnodes=1 --nproc-per-node=2 --max-restarts=1000 {JOB} torch & wait"
    ),
    "nvrx": f"ft_launcher --nproc-per-node=2 --max-restarts=1000 {JOB} torch",
    "ray": f"python {JOB} ray",
    "torchft": (
        "torchft_lighthouse --bind 127.0.0.1:PORT --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 1000 & "
        "for group in 0 1; do TORCHFT_LIGHTHOUSE=http://127.0.0.1:PORT REPLICA_GROUP_ID=$group NUM_REPLICA_GROUPS=2 "
        f"torchrun --standalone --nproc-per-node=1 --max-restarts=1000 {JOB} torchft & done; wait"
    ),
}
PACKAGES = ("torch", "dlrover", "nvidia-resiliency-ext", "ray", "torchft")
LAUNCHED_WITHIN_S = 240.0
BACK_WITHIN_S = 90.0
RANKS = 2


def versions(python: str) -> dict[str, str]:
    """Return the versions of the compared packages that an environment has."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    by_package = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)  # noqa: S603
    return {name: by_package[name] for name in PACKAGES if name in by_package}


def begin(name: str, place: Path, venv: Path) -> Run:
    """Start the job under a launcher."""
    place.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        command = LAUNCHERS[name].replace("PORT", str(free.getsockname()[1]))
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if name.endswith("own-store") else "0"}
    variables["PATH"] = f"{venv / 'bin'}:{os.environ['PATH']}"
    return start_command("peer", place, ["sh", "-c", command], restart.newest_ranks, **variables)


def again_at(lines: list[restart.StepLine], killed_ns: int, dead: int) -> tuple[int, int] | None:
    """Return when both ranks have made the first step of rank 1's next process, and that step; None: not yet."""
    first = next((line for line in lines if line.rank == 1 and line.pid != dead and line.at_ns > killed_ns), None)
    if first is None:
        return None
    other = next((line for line in lines if line.rank == 0 and line.at_ns > killed_ns and line.step == first.step), None)
    return None if other is None else (max(first.at_ns, other.at_ns), first.step)


def one_run(name: str, place: Path, venv: Path) -> dict[str, float]:
    """Launch a job, kill its rank 1 ten steps after a save, and end it."""
    launched_ns = time.monotonic_ns()
    run = begin(name, place, venv)
    try:
        run.wait_for(lambda: len(restart.first_steps(run)) == RANKS, "first steps", within_s=LAUNCHED_WITHIN_S)
        launch_s = (max(line.at_ns for line in restart.first_steps(run)) - launched_ns) / 1e9
        restart.wait_ready("standby" if name == "supervise" else "", run, 1)
        settled_ns = time.monotonic_ns() + int(restart.TRAINS_S * 1e9)
        run.wait_for(
            lambda: time.monotonic_ns() > settled_ns and restart.step_lines(place)[-1].step % SAVE_EVERY == SAVE_EVERY // 2,
            "a step to die at",
        )
        pids = run.rank_pids()
        killed_ns = time.monotonic_ns()
        os.kill(pids[1], signal.SIGKILL)
        last = max(line.step for line in restart.step_lines(place) if line.rank == 1)
        run.wait_for(
            lambda: again_at(restart.step_lines(place), killed_ns, pids[1]) is not None, "same step of both", within_s=BACK_WITHIN_S
        )
        back = again_at(restart.step_lines(place), killed_ns, pids[1])
        assert back is not None  # noqa: S101 - awaited above
        alone = [line.at_ns for line in restart.step_lines(place) if line.rank == 0 and line.at_ns > killed_ns and line.step > last + 1]
        return {
            "launch_s": launch_s,
            "back_s": (back[0] - killed_ns) / 1e9,
            "alone_s": (min(alone) - killed_ns) / 1e9 if alone and min(alone) < back[0] else (back[0] - killed_ns) / 1e9,
            "again": max(0, last + 1 - back[1]),
        }
    finally:
        run.stop()


def spread(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return median, least and most of each figure."""
    return {name: [round(of([run[name] for run in runs]), 3) for of in (statistics.median, min, max)] for name in (runs[0] if runs else ())}


def compare(place: Path, venvs: Mapping[str, Path], repetitions: int) -> dict[str, Any]:
    """Run each launcher so often, in turns."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in venvs}
    failed: dict[str, list[str]] = {name: [] for name in venvs}
    for number in range(repetitions):
        names = list(venvs)[number % len(venvs) :] + list(venvs)[: number % len(venvs)]
        for name in names:
            try:
                runs[name].append(one_run(name, place / f"{name}-{number}", venvs[name]))
                print(f"{name}: {runs[name][-1]} load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            except (BenchError, OSError, IndexError) as error:
                failed[name].append(str(error)[:3000])
                print(f"{name}: failed: {failed[name][-1]}", file=sys.stderr, flush=True)
    return {
        name: {"versions": versions(str(venvs[name] / "bin/python")), **spread(of), "runs": of, "failed": failed[name]}
        for name, of in runs.items()
    }


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--venv", action="append", default=[], metavar="NAME=DIRECTORY", help="of " + ", ".join(LAUNCHERS))
    parser.add_argument("--only", default="", help="launchers, with commas between them")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    own = Path(sys.executable).parents[1]
    venvs = dict.fromkeys(("torchrun", "torchrun-own-store", "supervise-cold", "supervise"), own)
    venvs |= {name: Path(directory).absolute() for name, directory in (each.split("=", 1) for each in args.venv)}
    if args.only:
        venvs = {name: venvs[name] for name in args.only.split(",")}
    loads = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="supervise-bench-", ignore_cleanup_errors=True) as place:
        results = compare(Path(place), venvs, args.repetitions)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"cpus": os.cpu_count(), "load": loads, "until_load": os.getloadavg(), "launchers": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
