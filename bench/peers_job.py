# ruff: noqa: PLC0415 -- what a launcher does not use is not imported, and it runs in environments without supervise
"""A rank of bench/peers.py: DDP with AdamW over gloo, which saves every 20 steps and resumes from its last save.

It writes a line for each step, and never ends. In: torch (torchrun, DLRover, NVRx and supervise run the same script), ray (the same
loop in Ray Train's TorchTrainer), torchft (the same model under torchft's Manager; each of the two replicas is a job of its own). Out:
`progress`, with rank, step, CLOCK_MONOTONIC ns and pid of each step.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

STEP_S = 0.05
SAVE_EVERY = 20
CHECKPOINT = "checkpoint.pt"


def note(file: int, rank: int, step: int) -> None:
    """Note a step that was made."""
    os.write(file, f"{rank} {step} {time.monotonic_ns()} {os.getpid()}\n".encode())
    time.sleep(STEP_S)


def train(rank: int) -> None:
    """Train two layers in DistributedDataParallel, in the process group that the launcher or the caller has made."""
    import torch

    file = os.open("progress", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    if Path(CHECKPOINT).exists():
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while True:
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        note(file, rank, step)
        if rank == 0 and step % SAVE_EVERY == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, CHECKPOINT + ".half")
            Path(CHECKPOINT + ".half").replace(CHECKPOINT)


def with_torch() -> None:
    """Train as a script for torchrun does."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    train(dist.get_rank())


def with_ray() -> None:
    """Train in two workers of Ray Train, which starts them anew as often as it takes."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    place = str(Path.cwd())

    def loop() -> None:
        import torch.distributed as dist

        os.chdir(place)
        sys.path.insert(0, str(Path(__file__).parent))
        train(dist.get_rank())

    ray.init(num_cpus=4, include_dashboard=False)
    TorchTrainer(
        loop,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=place, failure_config=FailureConfig(max_failures=-1)),
    ).fit()


def with_torchft() -> None:
    """Train as one of two replicas; the other goes on without this one, and heals it when it is back."""
    import torch
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    rank = int(os.environ["REPLICA_GROUP_ID"])
    file = os.open("progress", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    inner = torch.optim.AdamW(layers.parameters())

    def load(state: dict[str, object]) -> None:
        layers.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": layers.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{rank}",
        timeout=timedelta(seconds=10),
    )
    model, optimizer = DistributedDataParallel(manager, layers), Optimizer(manager, inner)
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() != before:
            note(file, rank, manager.current_step())


if __name__ == "__main__":
    {"torch": with_torch, "ray": with_ray, "torchft": with_torchft}[sys.argv[1]]()
