"""What the instrumentation costs a training process, as JSON: per step, and at the start of every Python process.

own_ns: the hook's own code, called directly. life_ns: what a collective and a backward pass cost more.
step_us: one optimizer step with the hook and without, alternating in one process; the
difference holds torch's own price of calling a global hook. start_cpu_ms: an empty script, instrumented and not. All are CPU times.
Targets: own_ns ≤ 1000, life_ns ≤ 1000, the difference ≤ 10 µs, start ≤ 10 ms.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from supervisor.instrument._supervise_shim.claim import NUMBERED, ProcessIdentity, claim
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.instrument._supervise_shim.torchhooks import announce
from supervisor.observe.ranks import heartbeats

CALLS = 100_000
STEPS = 500
ROUNDS = 40
STARTS = 10


def own_ns(beat: HeartbeatWriter) -> dict[str, float]:
    """Time the hook alone, with one optimizer and with two that alternate; best and median of seven."""
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    first, second = (torch.optim.SGD([parameter], lr=0.1) for parameter in parameters)

    def alternate() -> None:
        beat.on_step(first, (), {})
        beat.on_step(second, (), {})

    single = [
        1e9 * took / CALLS for took in timeit.repeat(lambda: beat.on_step(first, (), {}), timer=time.process_time, number=CALLS, repeat=7)
    ]
    double = [1e9 * took / CALLS / 2 for took in timeit.repeat(alternate, timer=time.process_time, number=CALLS, repeat=7)]
    return {"best": min(single), "median": statistics.median(single), "two_optimizers_median": statistics.median(double)}


def life_ns(beat: HeartbeatWriter) -> dict[str, float]:
    """Time a call that is announced, less the same call that is not; medians of seven."""
    costs = {}
    for name, begins in (("collective", beat.on_collective), ("backward", beat.on_backward)):
        bare, hooked = (SimpleNamespace(call=lambda *_args, **_options: None) for _ in range(2))
        announce(hooked, "call", begins)
        announce(hooked, "call", begins)
        without, with_us = (
            statistics.median(timeit.repeat(partial(module.call, 1, async_op=True), timer=time.process_time, number=CALLS, repeat=7))
            for module in (bare, hooked)
        )
        costs[name] = 1e9 * (with_us - without) / CALLS
    return costs


def step_us(beat: HeartbeatWriter) -> dict[str, float]:
    """Time Adam's step on a small model, with and without the hook in turn; medians over the rounds."""
    layer = torch.nn.Linear(8, 8)
    layer(torch.ones(8)).sum().backward()
    optimizer = torch.optim.Adam(layer.parameters())
    took: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        took["without"].append(1e6 * timeit.timeit(optimizer.step, timer=time.process_time, number=STEPS) / STEPS)
        handle = register_optimizer_step_post_hook(beat.on_step)
        took["with"].append(1e6 * timeit.timeit(optimizer.step, timer=time.process_time, number=STEPS) / STEPS)
        handle.remove()
    pairs = [with_us - without for with_us, without in zip(took["with"], took["without"], strict=True)]
    best = min(took["with"]) - min(took["without"])  # the rest where nobody else used the processor
    return {name: statistics.median(values) for name, values in took.items()} | {
        "difference": statistics.median(pairs),
        "difference_of_best": best,
    }


def start_cpu_ms(job_dir: Path) -> dict[str, float]:
    """Take the CPU time of `python -c pass` with our folder on PYTHONPATH and without; medians over the rounds."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "PYTHON"))}
    own_variables = {"SUPERVISE_JOB_DIR": str(job_dir), "SUPERVISE_JOB_ATTEMPT": "1", "SUPERVISE_JOB_SHIM": "rank"}
    folder = Path(heartbeats.__file__).parents[1] / "instrument"
    took: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(ROUNDS // 4):
        for name, env in (("without", bare), ("with", bare | own_variables | {"PYTHONPATH": str(folder)})):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            for _ in range(STARTS):
                subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took[name].append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / STARTS)
    result = {name: statistics.median(values) for name, values in took.items()}
    return result | {"difference": result["with"] - result["without"]}


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:  # noqa: S108 - where heartbeats live
        job_dir = Path(folder)
        heartbeats.create(job_dir / "attempt-0001" / "heartbeat", 1)
        identity = ProcessIdentity("", str(job_dir / "attempt-0001"), "rank")
        beat = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
        claim(identity, beat, NUMBERED)
        figures = {"own_ns": own_ns(beat), "life_ns": life_ns(beat), "step_us": step_us(beat), "start_cpu_ms": start_cpu_ms(job_dir)}
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
