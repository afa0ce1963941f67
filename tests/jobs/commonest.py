# ruff: noqa: ANN401  a model of any kind
"""A small training that fails in one of the commonest ways (`--fault NAME`). tests/report/recorded/record.py runs it as train.py.

What only a GPU shows is raised with the text that torch or NCCL prints there. All else is real.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is free. Including "
    "non-PyTorch memory, this process has 77.98 GiB memory in use. Of the allocated memory 76.50 GiB is allocated by PyTorch, and 512.00 "
    "MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, "
    "NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "Last error:\nsocketProgress: Connection closed by remote peer 10.0.0.8<40412>"
)
ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at some other API call."


class Texts(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of numbers, in files; one of them is damaged where the fault is `sample`."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __len__(self) -> int:
        """Return how many rows there are."""
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Read a row."""
        data = b"\xff\xfe\x00" if self.fault == "sample" and index % 500 == 77 else b"0.5 0.25"
        row = [float(word) for word in data.decode("utf-8").split()]
        return torch.tensor(row).repeat(8)


def train_step(model: Any, batch: torch.Tensor, args: argparse.Namespace, step: int) -> float:
    """Make one step; the faults of a step are in here."""
    rank = dist.get_rank()
    strikes = rank == 1 and step == args.at
    if strikes and args.fault == "bug":
        labels = {"input_ids": batch}["label_ids"]
        batch = batch + labels
    if args.fault == "oom" and step == args.at and args.per_device_batch > 8:
        raise torch.OutOfMemoryError(OOM)
    if strikes and args.fault == "nccl":
        raise dist.DistBackendError(NCCL)
    if strikes and args.fault == "ecc":
        with Path(os.environ["FAKE_NVML_STATE"]).open("a") as state:
            state.write("1.ecc_unc_vol 1\n1.ecc_unc_agg 1\n1.remap_unc 1\n1.remap_pending 1\n")
        time.sleep(1)
        raise torch.AcceleratorError(ECC)
    if strikes and args.fault == "killed" and not args.resume:
        os.kill(os.getpid(), signal.SIGKILL)
    if strikes and args.fault == "host_oom":
        held = []
        while True:
            held.append(bytearray(os.urandom(1) * (8 << 20)))
    if strikes and args.fault == "hang" and not args.resume:
        evaluate()
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return float(loss.item())


def evaluate() -> None:
    """Wait for what never comes."""
    while True:
        time.sleep(1)


def save(model: Any, step: int, args: argparse.Namespace) -> None:
    """Save a checkpoint; the padding gives it a size."""
    args.ckpt_dir.mkdir(exist_ok=True)
    torch.save({"step": step, "model": model.state_dict(), "pad": torch.zeros(args.mib << 18)}, args.ckpt_dir / f"step-{step:06d}.pt")


def load(model: Any, path: Path) -> int:
    """Load a checkpoint; return its step."""
    content = torch.load(path, weights_only=True)
    model.load_state_dict(content["model"])
    return int(content["step"])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--at", type=int, default=50)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--per_device_batch", type=int, default=4)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--mib", type=int, default=0)
    parser.add_argument("--ckpt-dir", type=Path, default=Path("ckpt"))
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = torch.nn.Linear(16, 16)
    if args.fault == "typo":
        model = build_modle(model)  # type: ignore[name-defined]  # noqa: F821  that is the fault
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = 0
    newest = sorted(args.ckpt_dir.glob("*.pt"))[-1:] if args.fault == "torn" else []
    if args.resume or newest:
        step = load(model, args.resume or newest[0])
    loader = iter(torch.utils.data.DataLoader(Texts(args.fault), batch_size=args.per_device_batch))
    while step < args.steps:
        step += 1
        loss = train_step(model, next(loader), args, step)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        if dist.get_rank() == 0:
            sys.stdout.write(f"step {step}/{args.steps} loss {loss:.4f}\n")
            if step % args.save_every == 0:
                save(model, step, args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
