"""A gloo training that truly runs out of memory: the kernel grants each rank --room-mib more than it had before its first step.

The limit is RLIMIT_DATA, and what does not fit are the activations of a micro-batch: torch's allocator asks the kernel, is refused, and
raises "DefaultCPUAllocator: can't allocate memory". A CPU has no torch.OutOfMemoryError of its own, so that this failure is handed on as
the one that a GPU's allocator raises, in its words, with the figures of this process (--host-words: as torch says it on a CPU).

Sequences are short up to step --short, so that a micro-batch fits there which later does not, as it happens to a training whose longest
sample comes late. A sample is a function of its number: an optimizer step takes samples step x global batch and on, whichever rank and
micro-batch they come in, so that its loss is a function of the step, and of the global batch.

Rank 0 writes `--losses` with a line per optimizer step (step, micro-batch, accumulation, loss over
all ranks, its own loss, attempt, the command's --tag), and ckpt/step-*.pt every --save-every steps.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import resource
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ddp_small import light_sgd
from job_parts import append
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG, SHORT = 16384, 1024
M_MMAP_THRESHOLD = -3  # malloc.h
REFUSED = re.compile(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (\d+) bytes")
MIB = 1 << 20


def data_bytes() -> int:
    """Return what RLIMIT_DATA counts of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) << 10


@contextmanager
def as_a_gpu(limit: int, *, as_is: bool = False) -> Iterator[None]:
    """Hand a refusal of torch's CPU allocator on as what its CUDA allocator raises where a GPU of `limit` bytes is full, unless `as_is`."""
    try:
        yield
    except RuntimeError as error:
        refused = REFUSED.search(str(error))
        if refused is None or as_is:
            raise
        asked, held = int(refused[1]) / MIB, data_bytes() / MIB
        text = (
            f"CUDA out of memory. Tried to allocate {asked:.2f} MiB. GPU 0 has a total capacity of {limit / MIB:.2f} MiB of which"
            f" {limit / MIB - held:.2f} MiB is free. Including non-PyTorch memory, this process has {held:.2f} MiB memory in use. Of the"
            f" allocated memory {held - 1:.2f} MiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but unallocated. If"
            " reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
            " fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html)"
        )
        raise torch.cuda.OutOfMemoryError(text) from None


def sample(number: int, length: int) -> torch.Tensor:
    """Return sample `number`: `length` x 8, and no two alike, so that another global batch has another loss."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(length, 8, generator=generator) * (0.5 + number % 7 / 4)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--short", type=int, default=4)
    parser.add_argument("--room-mib", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--host-words", action="store_true")
    parser.add_argument("--losses", type=Path, default=Path("losses"))
    parser.add_argument("--tag", default="-")
    return parser.parse_args()


def forward_and_back(model: Any, first: int, asked: argparse.Namespace, length: int) -> float:  # noqa: ANN401  torch's own
    """Run one micro-batch; return its mean loss."""
    inputs = torch.stack([sample(first + at, length) for at in range(asked.batch_size)])
    loss = (model(inputs) - inputs).square().mean()
    (loss / asked.accum).backward()
    return float(loss.detach())


def main() -> None:
    """Train up to --steps."""
    asked = options()
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)  # each tensor by itself, given back when freed: no luck with fragments
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
    optimizer = light_sgd(torch, model.parameters())
    step = 0
    if asked.resume:
        content = torch.load(asked.resume, weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        step = content["step"]
    forward_and_back(model, 0, argparse.Namespace(batch_size=1, accum=1), SHORT)  # whatever is loaded late is here before the limit is
    optimizer.zero_grad()
    limit = data_bytes() + asked.room_mib * MIB
    if asked.room_mib:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    per_rank = asked.batch_size * asked.accum
    while step < asked.steps:
        time.sleep(asked.step_ms / 1e3)
        first = (step * world + rank) * per_rank
        length = SHORT if step < asked.short else LONG
        with as_a_gpu(limit, as_is=asked.host_words):
            losses = [forward_and_back(model, first + at * asked.batch_size, asked, length) for at in range(asked.accum)]
        own = sum(losses) / asked.accum
        loss = torch.tensor(own)
        dist.all_reduce(loss)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0:
            attempt = os.environ.get("SUPERVISE_JOB_ATTEMPT", "0")
            append(asked.losses, step, asked.batch_size, asked.accum, float(loss) / world, own, attempt, asked.tag)
            if step % asked.save_every == 0:
                path = Path("ckpt", f"step-{step:06d}.pt")
                path.parent.mkdir(exist_ok=True)
                torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path.with_suffix(".tmp"))
                path.with_suffix(".tmp").replace(path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
