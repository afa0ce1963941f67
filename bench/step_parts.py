"""What the sampling of a rank costs a step of some 10 ms, as JSON: without it, with it, and while a profile is recorded; interleaved.

    python bench/step_parts.py [--rounds 15]

One process trains a small network; the shim's thread in it is the real one. A round has STEPS steps of each kind, in changing order.
thread: CPU time of that thread, by the kernel, as percent of the time in which the steps were made; the median of the rounds. steps: how
much more CPU time the training thread needs, the least of all rounds: what else the machine does only adds to it.
Targets of both together: at rest <= 0.3 %, while it records <= 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch

from supervisor.instrument._supervise_shim import profiles, step_parts
from supervisor.instrument._supervise_shim.background import BackgroundThread
from supervisor.instrument._supervise_shim.claim import NUMBERED, ProcessIdentity, claim
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.observe.ranks import heartbeats
from supervisor.observe.ranks.profiles import RankProfile

STEPS = 40
WIDTH, LAYERS, BATCH = 256, 12, 64


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        print(json.dumps(measured(Path(place), rounds)))


def measured(place: Path, rounds: int) -> dict[str, object]:
    """Return the microseconds of a step without sampling, and the percent that each kind costs."""
    attempt = place / "attempt-0001"
    heartbeats.create(attempt / "heartbeat", 1)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    identity = ProcessIdentity(str(place), str(attempt), "rank")
    beat = HeartbeatWriter(identity.pid, identity.start_ticks, 0)
    claim(identity, beat, NUMBERED)
    thread = BackgroundThread(identity, beat)
    model = torch.nn.Sequential(*(layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())))
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        beat.on_step(optimizer, (), {})

    for _ in range(STEPS):
        step()
    known = {path.name for path in Path("/proc/self/task").iterdir()}
    thread.start()
    while not (new := {path.name for path in Path("/proc/self/task").iterdir()} - known):
        threading.Event().wait(0.01)
    cpu = Path(f"/proc/self/task/{new.pop()}/schedstat")
    samples, is_over = step_parts.StepParts.sample, profiles.Recording.is_over
    costs: dict[str, list[float]] = {"none": [], "at rest": [], "recording": []}
    threads: dict[str, list[float]] = {kind: [] for kind in costs}
    for number in range(rounds):
        kinds = list(costs)[number % 3 :] + list(costs)[: number % 3]
        for kind in kinds:
            step_parts.StepParts.sample = (lambda *_: 1.0) if kind == "none" else samples  # type: ignore[method-assign]
            profiles.Recording.is_over = is_over if kind == "recording" else lambda *_: True  # type: ignore[method-assign]
            if kind == "recording":
                request = {"steps": None, "seconds": 600.0, "torch": ""}
                RankProfile(attempt, 0, (identity.pid, identity.start_ticks), request).begin(time.monotonic())
            threading.Event().wait(1.1)  # the thread has come to the new kind
            began, thread_ns, own = time.monotonic_ns(), int(cpu.read_text().split()[0]), time.thread_time()
            for _ in range(STEPS):
                step()
            costs[kind].append(1e6 * (time.thread_time() - own) / STEPS)
            threads[kind].append(100 * (int(cpu.read_text().split()[0]) - thread_ns) / (time.monotonic_ns() - began))
    least = {kind: min(values) for kind, values in costs.items()}
    return {
        "step_us": round(least["none"], 1),
        "thread_percent": {kind: round(statistics.median(values), 3) for kind, values in threads.items()},
        "steps_percent": {kind: round(100 * (cost / least["none"] - 1), 2) for kind, cost in least.items()},
    }


if __name__ == "__main__":
    main()
