"""A training that saves weights and optimizer in files of their own, in one of the layouts of LAYOUTS, and resumes from --resume DIR.

At --tear-at the last member of the set is half written when rank 0 is killed, once.
Without --resume it begins from scratch and saves over what is there, as scripts do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from light import light_sgd
from safetensors.torch import load_file, save_file

#: layout → the directory of a step, and its members in the order of saving; `{rank}`: one for each rank
LAYOUTS = {
    "pair": ("ckpt/step-{step}", ("model.pt", "optim.pt")),
    "safetensors": ("ckpt/step-{step}", ("model.safetensors", "optimizer.pt")),
    "nested": ("ckpt/epoch_{step}", ("model/weights.pt", "optim/state.pt")),
    "ranks": ("ckpt/step-{step}", ("rank{rank}/x.pt",)),
    "ranks_": ("ckpt/step-{step}", ("rank_{rank}/x.pt",)),
    "json": ("ckpt/step-{step}", ("meta.json", "model.pt", "scheduler.bin")),
}


def content(step: int, weights: torch.Tensor) -> dict[str, object]:
    """Return what a member holds."""
    return {"at": torch.tensor(step), "weights": weights}


def write(path: Path, step: int, weights: torch.Tensor) -> None:
    """Write one member in the way that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps({"at": step}))
    elif path.suffix == ".safetensors":
        save_file({name: tensor for name, tensor in content(step, weights).items() if isinstance(tensor, torch.Tensor)}, path)
    else:
        torch.save(content(step, weights), path)


def read(path: Path) -> int:
    """Return the step that a member holds."""
    if path.suffix == ".json":
        return int(json.loads(path.read_text())["at"])
    return int((load_file(path) if path.suffix == ".safetensors" else torch.load(path))["at"])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--resume")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--pace-s", type=float, default=0.05)
    parser.add_argument("--tear-at", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    directory, members = LAYOUTS[args.layout]
    own = [name.format(rank=rank) for name in members if "{rank}" in name or rank == 0]
    first = 0
    model = torch.nn.Linear(4, 4)
    if args.resume:
        names = [name.format(rank=rank) for name in members]
        steps = {read(Path(args.resume) / name) for name in names}
        first = steps.pop()
        assert not steps, "members of two saves"
    if rank == 0:
        sys.stdout.write(f"resumed at {first} from {args.resume}\n")
        sys.stdout.flush()
    optimizer = light_sgd(torch, model.parameters())
    for step in range(first + 1, args.steps + 1):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(args.pace_s)
        if step % args.every:
            continue
        place = Path(directory.format(step=step))
        is_torn = step == args.tear_at and not Path("torn").exists()
        for name in own:
            if is_torn and rank == 0 and name == own[-1]:
                dist.barrier()  # what the other rank saves is whole
                Path("torn").touch()
                write(place / name, step, torch.full((8192,), float(step)))
                os.truncate(place / name, 700)
                os.kill(os.getpid(), signal.SIGKILL)
            write(place / name, step, torch.full((8192,), float(step)))
        dist.barrier()
    dist.destroy_process_group()


main()
