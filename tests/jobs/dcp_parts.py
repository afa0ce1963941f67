# ruff: noqa: ANN401 -- torch is imported late, so its things have no types here
"""A data-parallel training over gloo whose ranks save together with torch.distributed.checkpoint, each a shard below its --ckpt-dir.

--save-ms is spent when the shards are there and the metadata is not.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from typing import Any

from job_parts import Job, add_arguments
from light import light_sgd


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args()
    job = Job(args)
    job.start()

    import torch  # noqa: PLC0415  # a fault at step 0 strikes before this
    import torch.distributed as dist  # noqa: PLC0415
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415

    class SlowWriter(dcp.FileSystemWriter):
        """Waits before it writes the metadata, on the coordinator."""

        def finish(self, metadata: Any, results: Any) -> None:
            """Write the metadata."""
            time.sleep(args.save_ms / 1e3)
            super().finish(metadata, results)

    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model: Any = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16))
    optimizer = light_sgd(torch, model.parameters())
    step = 0
    if args.resume:
        momentum = [torch.zeros_like(p) for p in model.parameters()]
        state = {"model": model.state_dict(), "momentum": momentum, "step": 0}
        dcp.load(state, checkpoint_id=str(args.resume))
        model.load_state_dict(state["model"])
        for parameter, buffer in zip(model.parameters(), state["momentum"], strict=True):
            optimizer.state[parameter]["momentum"] = buffer
        step = state["step"]
    while step < args.steps:
        job.before_step(step + 1)
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + job.rank))
        (model(inputs) - inputs).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        job.after_step(step)
        if args.save_every and step % args.save_every == 0:
            momentum = [optimizer.state[parameter]["momentum"] for parameter in model.parameters()]
            state = {"model": model.state_dict(), "momentum": momentum, "step": step}
            dcp.save(state, storage_writer=SlowWriter(str(args.ckpt_dir / f"step_{step}")))
    digest = hashlib.sha256(b"".join(bytes(p.detach().flatten().view(torch.uint8).tolist()) for p in model.parameters()))
    job.end(digest.hexdigest())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
