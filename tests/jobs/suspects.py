"""A gloo training whose checkpoints, data or code are at fault, at steps that a test orders; what then happens is real.

Inputs of steps --bad-data FIRST:LAST are infinite, so that the gradients' norm is no number and torch's own clip_grad_norm_ refuses it.
--spoil N: once, the checkpoint of step N is written with parameters that are numbers, and from which none come. --die-at N: each rank kills
itself before step N.
A script may import this one and hand `main` a function that is called with each step's number: the user's own code.

--skip-data FIRST:LAST skips these steps. Files: `started` (rank, step, attempt), `at_end` (rank, step), and
by rank 0 --ckpt NAME (with the step in place of {}, the attempt in place of []) every --save-every steps.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from ddp_small import light_sgd
from job_parts import append
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--save-at-start", action="store_true")
    parser.add_argument("--ckpt", default="ckpt/step-{}.pt")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--bad-data", type=window, default=range(0))
    parser.add_argument("--skip-data", type=window, default=range(0))
    parser.add_argument("--spoil", type=int, default=-1)
    parser.add_argument("--die-at", type=int, default=-1)
    parser.add_argument(
        "--hold", type=Path, help="wait before step --hold-at, in the attempt whose number this file holds, until it is gone"
    )
    parser.add_argument("--hold-at", type=int, default=1)
    return parser.parse_args()


def window(text: str) -> range:
    """Return FIRST:LAST, both included."""
    first, _, last = text.partition(":")
    return range(int(first), int(last) + 1)


def inputs_of(step: int, rank: int, bad: range) -> torch.Tensor:
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    return inputs / 0 if step in bad else inputs


def wait_until_gone(file: Path) -> None:
    while file.exists():
        time.sleep(0.01)


def main(each_step: Callable[[int], object] = lambda _step: None) -> None:  # noqa: C901  a training loop reads best in one piece
    """Train up to --steps."""
    asked = options()
    attempt = os.environ.get("SUPERVISE_JOB_ATTEMPT", "0")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = torch.nn.Linear(8, 8)
    optimizer = light_sgd(torch, model.parameters())

    def save(step: int) -> None:
        path = Path(asked.ckpt.replace("{}", f"{step:06d}").replace("[]", attempt))
        path.parent.mkdir(exist_ok=True)
        torch.save({"step": step, "model": model.state_dict()}, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    step = 0
    if asked.resume:
        content = torch.load(asked.resume, weights_only=False)
        model.load_state_dict(content["model"])
        step = content["step"]
    append(Path("started"), rank, step, attempt)
    if asked.save_at_start and rank == 0:
        save(step)
    dist.barrier()
    while step < asked.steps:
        step += 1
        if step == asked.hold_at and asked.hold and asked.hold.exists() and asked.hold.read_text() == attempt:
            wait_until_gone(asked.hold)
        if step == asked.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        each_step(step)
        if step not in asked.skip_data:
            inputs = inputs_of(step, rank, asked.bad_data)
            (model(inputs) - inputs).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            optimizer.zero_grad()
        if step == asked.spoil and attempt == "1":
            torch.nn.init.constant_(model.weight, torch.finfo(torch.float32).max)
        if rank == 0 and step % asked.save_every == 0:
            save(step)
    append(Path("at_end"), rank, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
