"""torch.distributed.checkpoint over gloo: a directory for each step, and at the start on from the one with the highest number."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torn_parts as job
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace-s", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    inner = job.Model()
    model = torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if there := sorted(int(path.name.removeprefix("step_")) for path in Path("out").glob("step_*") if path.name[5:].isdecimal()):
        weights, momentum = get_state_dict(model, optimizer)
        state = {"model": weights, "optim": momentum, "step": 0}
        dcp.load(state, checkpoint_id=f"out/step_{there[-1]}")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        first = state["step"]
    job.resumed(first)
    for step in range(first + 1, args.steps + 1):
        model(torch.full((2,), float((step + dist.get_rank()) % 97)))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.pace_s)
        if step % job.EVERY == 0:
            weights, momentum = get_state_dict(model, optimizer)
            job.saving(step)
            dcp.save({"model": weights, "optim": momentum, "step": step}, checkpoint_id=f"out/step_{step}")
            job.saved(step)
    job.final(args.steps, inner)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
