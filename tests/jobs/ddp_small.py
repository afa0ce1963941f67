# ruff: noqa: ANN401 -- torch is imported late, so its things have no types here
"""A real data-parallel training of two tiny layers over gloo, with the faults of job_parts.

By default it is plain DistributedDataParallel. --light exchanges the gradients by hand and keeps torch.optim from importing
torch._dynamo (some two CPU-seconds per rank, needed for nothing here): for tests that are about processes, not about DDP.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from job_parts import Job, add_arguments
from light import light_sgd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def plain_sgd(torch: Any, parameters: Any) -> Any:
    """Return torch's own SGD."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def save(torch: Any, path: Path, content: dict[str, Any], args: argparse.Namespace) -> None:
    """Write the checkpoint, by default beside its name; --save-ms is spent in the middle of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path if args.save_in_place else path.with_name(path.name + ".tmp")
    if args.save_in_place and args.save_ms:
        target.write_bytes(b"PK\x03\x04" + bytes(4096))  # what a reader finds while a careless script is at it
    time.sleep(args.save_ms / 1e3)
    with target.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    if not args.save_in_place:
        target.replace(path)


def _should_save() -> Callable[[], bool]:
    from supervisor.worker import should_save  # noqa: PLC0415  as a script that has it

    return should_save


def main() -> None:  # noqa: C901, PLR0915  # a training loop reads best in one piece
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--light", action="store_true", help="gradients exchanged by hand, torch._dynamo not imported")
    parser.add_argument("--loader", type=int, default=0, help="DataLoader worker processes")
    parser.add_argument("--ask", action="store_true", help="save when supervise asks for it")
    parser.add_argument("--print-losses", action="store_true")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    job = Job(args)
    job.start()

    import torch  # noqa: PLC0415  # a fault at step 0 strikes before this
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model: Any = torch.nn.Sequential(torch.nn.Linear(args.width, args.width), torch.nn.Tanh(), torch.nn.Linear(args.width, args.width))
    sgd = light_sgd if args.light else plain_sgd
    optimizer = sgd(torch, model.parameters())
    step = 0
    if args.resume:
        content = torch.load(args.resume, weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        step = content["step"]
    should_save = _should_save() if args.ask else lambda: False
    parallel = model if args.light else torch.nn.parallel.DistributedDataParallel(model)
    batches = None
    if args.loader:
        endless = torch.utils.data.TensorDataset(torch.arange(1_000_000))
        batches = iter(torch.utils.data.DataLoader(endless, batch_size=4, num_workers=args.loader, generator=torch.Generator()))

    while step < args.steps:
        job.before_step(step + 1)
        if batches is not None:
            next(batches)
        inputs = torch.randn(args.batch, args.width, generator=torch.Generator().manual_seed(1000 * step + job.rank))
        loss = (parallel(inputs) - inputs).square().mean()
        loss.backward()
        if args.light:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        job.after_step(step)
        if args.print_losses and job.rank == 0:
            sys.stdout.write(f"step {step} loss {loss.item():.6f}\n")
        stopping = False
        if args.save_on_term:
            agreed = torch.tensor(float(job.term_seen))
            dist.all_reduce(agreed)
            stopping = bool(agreed > 0)
        asked = should_save()
        if job.rank == 0 and (stopping or asked or (args.save_every and step % args.save_every == 0)):
            content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(torch, args.ckpt_dir / f"step-{step:06d}.pt", content, args)
        if stopping:
            dist.barrier()
            return
    digest = hashlib.sha256(b"".join(bytes(p.detach().flatten().view(torch.uint8).tolist()) for p in model.parameters()))
    job.end(digest.hexdigest())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
