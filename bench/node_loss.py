"""From the loss of a machine to the next step of the others: `supervise` and plain torchrun.

In: --rounds N, --only KIND. Out: one JSON object on stdout: seconds of each run and medians; null where no rank stepped again in --watch-s
seconds. Each job has three nodes in network namespaces of their own (root), one gloo rank each with steps of 20 ms, and --nnodes=2:3. A
machine is lost with its power: its link is cut and all of its processes are killed, so that nobody gets a word of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runs import JOBS, environment

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.network import Network  # noqa: E402 -- the checkout is not on the path of a script

NODES, PORT = 3, 29411
KINDS = ("torchrun", "supervise")
WARM_STEPS = 100


def command(kind: str, network: Network, node: int, place: Path) -> list[str]:
    """Return what one node runs."""
    words = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint={network.address(0)}:{PORT}", "--rdzv-id=bench"]
    words += [f"--rdzv-conf=is_host={int(node == 0)}"]
    words += [f"--local-addr={network.address(node)}", f"--nnodes=2:{NODES}", "--nproc-per-node=1", "--max-restarts=5"]
    words += [str(JOBS / "ddp_small.py"), "--light", "--steps=100000", "--step-ms=20", "--save-every=100", "--ckpt-dir=ckpt"]
    words += ["--progress=progress"]
    supervised = [
        "supervise",
        "--job",
        "bench",
        "--state-dir",
        str(place / f"state-{node}"),
        "--checkpoints",
        f"{place}/ckpt/*.pt",
        "--resume-args",
    ]
    return [
        *(["ip", "netns", "exec", network.names[node]]),
        *([*supervised, "--resume {resume}", "--"] if kind.startswith("supervise") else []),
        *words,
    ]


def steps(place: Path) -> list[tuple[int, int]]:
    """Return (rank, CLOCK_MONOTONIC ns) of each step."""
    with contextlib.suppress(FileNotFoundError):
        rows = [line.split() for line in (place / "progress").read_text().splitlines()]
        return [(int(row[0]), int(row[2])) for row in rows if len(row) == 3]  # noqa: PLR2004
    return []


def pids_of(name: str) -> list[int]:
    """Return all processes of a namespace."""
    answer = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)  # noqa: S603, S607  as above
    return [int(word) for word in answer.stdout.split()]


def kill_all(name: str) -> None:
    """End what lives in a namespace."""
    for pid in pids_of(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def one_run(kind: str, place: Path, watch_s: float) -> float | None:
    """Lose one machine of a job; return the seconds until both other ranks step again, None where they do not."""
    network = Network(NODES)
    processes = []
    try:
        for node in range(NODES):
            with (place / f"out-{node}").open("wb") as out:
                words = command(kind, network, node, place)
                variables = environment() | {"GLOO_SOCKET_IFNAME": "eth0"}
                processes.append(subprocess.Popen(words, cwd=place, env=variables, stdout=out, stderr=out))  # noqa: S603  the measured command
        deadline = time.monotonic() + 180
        while len({rank for rank, _ in steps(place)}) < NODES or len(steps(place)) < WARM_STEPS * NODES:
            if time.monotonic() > deadline:
                raise SystemExit(f"{kind}: no steps: {(place / 'out-0').read_text()[-2000:]}")
            time.sleep(0.1)
        time.sleep(8.0)  # standbys are ready, and the limits known
        lost = NODES - 1  # the first is the coordinator
        since_ns = time.monotonic_ns()
        network.cut(lost)
        kill_all(network.names[lost])
        deadline = time.monotonic() + watch_s
        while time.monotonic() < deadline:
            again = {rank: at for rank, at in reversed(steps(place)) if at > since_ns + 500_000_000}
            if len(again) >= NODES - 1:
                return (max(again.values()) - since_ns) / 1e9
            time.sleep(0.1)
        return None
    finally:
        for name in network.names:
            kill_all(name)
        for process in processes:
            process.wait(20)
        network.close()


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch-s", type=float, default=60.0)
    parser.add_argument("--only", choices=KINDS, action="append")
    args = parser.parse_args()
    kinds = args.only or KINDS
    seconds: dict[str, list[float | None]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind in kinds:
            with tempfile.TemporaryDirectory() as place:
                seconds[kind].append(one_run(kind, Path(place), args.watch_s))
            print(kind, seconds[kind][-1], file=sys.stderr, flush=True)
    medians = {
        kind: statistics.median(value for value in values if value is not None) if any(values) else None for kind, values in seconds.items()
    }
    print(json.dumps({"seconds": seconds, "medians": medians}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
