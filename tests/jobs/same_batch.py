"""A training whose steps depend on the global batch alone: the same samples, in the same order, on any number of ranks.

`--made` has a line per step, by rank 0: step, ranks, micro-batch, accumulation, global batch, loss.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from job_parts import Job, add_arguments, append
from light import light_sgd


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--made", type=Path, required=True)
    args = parser.parse_args()
    job = Job(args)
    job.start()

    import torch  # noqa: PLC0415  # a fault at step 0 strikes before this
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    ranks, share, width = dist.get_world_size(), args.batch_size * args.accum, 4
    weights: Any = torch.nn.Parameter(torch.zeros(width, dtype=torch.float64))
    optimizer, step = light_sgd(torch, [weights]), 0
    if args.resume:
        content = torch.load(args.resume, weights_only=True)
        weights.data.copy_(content["model"]["weights"])
        optimizer.load_state_dict(content["optimizer"])
        step = content["step"]
    while step < args.steps:
        job.before_step(step + 1)
        summed = torch.zeros(2, dtype=torch.float64)
        for part in range(args.accum):
            first = (step * ranks + job.rank) * share + part * args.batch_size
            numbers = torch.arange(first, first + args.batch_size, dtype=torch.float64)
            inputs = torch.stack([torch.sin(numbers * (k + 1)) for k in range(width)], dim=1)
            loss = (inputs @ weights - inputs.sum(dim=1)).square().sum()
            loss.backward()
            summed += torch.stack([loss.detach(), torch.tensor(float(args.batch_size), dtype=torch.float64)])
        dist.all_reduce(summed)
        dist.all_reduce(weights.grad)
        weights.grad /= summed[1]
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        job.after_step(step)
        if job.rank == 0:
            append(args.made, step, ranks, args.batch_size, args.accum, int(summed[1]), f"{float(summed[0] / summed[1]):.12g}")
            if args.save_every and step % args.save_every == 0:
                args.ckpt_dir.mkdir(parents=True, exist_ok=True)
                target = args.ckpt_dir / f"step-{step:06d}.pt"
                content = {"step": step, "model": {"weights": weights.data}, "optimizer": optimizer.state_dict()}
                torch.save(content, target.with_suffix(".tmp"))
                target.with_suffix(".tmp").replace(target)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
