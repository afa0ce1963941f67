r"""A DDP training on unequal GPUs: each rank takes its share of the global batch, and a bad batch is left out by all of them.

    supervise --knob batch_size:8=env:SUPERVISE_JOB_BATCH_SIZE --knob grad_accum:planned:48=plan:2.5,1 \
        -- torchrun --nproc-per-node=2 examples/uneven_ddp.py

Kill a rank: the next attempt continues at the same sample. The weights are those that one process has with the whole batch, which is what
the script does when it is run by itself.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from checkpointing import UnevenSampler, load_latest, save
from supervisor import worker

GLOBAL_BATCH = 48


def even_share() -> worker.BatchPlan:
    """Return an equal share, for a run without a plan."""
    world, rank = dist.get_world_size(), dist.get_rank()
    micro = GLOBAL_BATCH // world
    return worker.BatchPlan(micro_batch=micro, accumulation=1, weight=1.0, offset=rank * micro, global_batch=micro * world)


def gradients(parallel: DistributedDataParallel, batches: list[list[torch.Tensor]], plan: worker.BatchPlan) -> bool:
    """Add up the gradients of a step; return False where some rank's batch is bad, and all left the step out."""
    for number, (inputs, targets) in enumerate(batches):
        parallel.require_backward_grad_sync = number == len(batches) - 1  # the ranks exchange gradients once per step
        loss = nn.functional.mse_loss(parallel(inputs), targets)
        if not worker.agree(bool(loss.isfinite()), "the loss is not finite"):
            return False
        (loss * plan.weight).backward()
    return True


def main() -> None:
    """Train up to --steps, from the newest checkpoint in --dir."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("ckpt"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--step-ms", type=float, default=0.0, help="how long a step takes at least")
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]  # a lazy name
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(500, 16), torch.randn(500, 1))
    model = nn.Linear(16, 1)
    parallel, optimizer = DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.05)
    plan = worker.batch_plan() or even_share()
    sampler, step = UnevenSampler(len(data), plan, seed=1), 0
    if (checkpoint := load_latest(args.dir)) is not None:
        model.load_state_dict(checkpoint.state["model"])
        sampler.load_state_dict(checkpoint.state["sampler"])
        step = checkpoint.state["step"]
    shares = f"{plan.accumulation} x {plan.micro_batch} samples"
    print(f"rank {dist.get_rank()} pid {os.getpid()} starts at step {step} with {shares}", flush=True)

    loader = DataLoader(data, batch_size=plan.micro_batch, sampler=sampler)
    batches: list[list[torch.Tensor]] = []
    while step < args.steps:
        for batch in loader:
            batches.append(batch)
            if len(batches) < plan.accumulation:
                continue
            if gradients(parallel, batches, plan):
                optimizer.step()
            optimizer.zero_grad()
            batches, step = [], step + 1
            time.sleep(args.step_ms / 1e3)
            if step % args.save_every == 0 or step == args.steps or worker.should_save():
                save({"model": model.state_dict(), "sampler": sampler.state_dict(), "step": step}, args.dir, step=step, keep=3)
                if dist.get_rank() == 0:
                    print(f"saved step {step}", flush=True)
            if step == args.steps:
                break
    print(f"rank {dist.get_rank()} done: weights {float(model.weight.detach().double().sum()):.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
