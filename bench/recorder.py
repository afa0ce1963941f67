"""Measure what torch's flight recorder costs a gloo rank for each collective: jobs with it and without, interleaved. Prints JSON.

    python bench/recorder.py --pairs 7 --steps 20000 [--ranks 2]

A step is one all_reduce of 1,024 floats; of one rank alone, so that the recorder is a large part of it. CPU time of the whole rank per
step, the least of all runs: what else the machine does only adds to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

RANK = """
import json, os, sys, time, torch, torch.distributed as dist
dist.init_process_group('gloo')
x = torch.ones(1024)
steps = int(sys.argv[1])
for _ in range(200):
    dist.all_reduce(x)
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(steps):
    dist.all_reduce(x)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
from torch._C._distributed_c10d import _dump_fr_trace_json
kept = len(json.loads(_dump_fr_trace_json()).get('entries') or [])
print(json.dumps([1e6 * cpu / steps, 1e6 * wall / steps, kept]))
dist.destroy_process_group()
"""


def job(entries: str, steps: int, port: int, count: int = 1) -> tuple[float, float, int]:
    """Run `count` ranks whose recorder keeps so many entries; return CPU and wall microseconds per step of rank 0, and the entries kept."""
    env = os.environ | {"TORCH_FR_BUFFER_SIZE": entries, "OMP_NUM_THREADS": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    command = [sys.executable, "-c", RANK, str(steps)]
    ranks = [subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE) for rank in range(count)]  # noqa: S603
    texts = [rank.communicate(timeout=300)[0] for rank in ranks]
    cpu_us, wall_us, kept = json.loads(texts[0])
    return cpu_us, wall_us, kept


def main() -> None:
    """Run the pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    samples: dict[str, list[tuple[float, float, int]]] = {"0": [], "2000": []}
    for pair in range(args.pairs):
        for at, entries in enumerate(("0", "2000") if pair % 2 else ("2000", "0")):
            samples[entries].append(job(entries, args.steps, 29_700 + (2 * pair + at + int(time.time())) % 250, args.ranks))
    cpu = {entries: min(row[0] for row in rows) for entries, rows in samples.items()}
    print(
        json.dumps(
            {
                "cpu_us_per_step": {"off": round(cpu["0"], 1), "on": round(cpu["2000"], 1)},
                "recorder_us": round(cpu["2000"] - cpu["0"], 2),
                "runs": {entries: [[round(value, 1) for value in row] for row in rows] for entries, rows in samples.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
