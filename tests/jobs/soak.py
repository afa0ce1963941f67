# ruff: noqa: ANN401 -- torch is imported late, so its things have no types here
"""A training of two ranks whose state at every step can be computed anew in one process: the job of tests/e2e/test_soak.py.

It runs until the file `limit` names a step that it has reached, so that a test that kills it for minutes decides when it ends. The file
`seeds` holds pairs of a step and a seed: from that step on the data come from that seed, so that two runs which resume from one
checkpoint give different models. All arithmetic is elementwise in float64, so `reference` gives the same bits as two ranks over gloo.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any

from ddp_small import light_sgd, save
from job_parts import Job, add_arguments, write_whole

WIDTH = 32
WORLD = 2


class Training:
    """The state, and what one step does to it."""

    def __init__(self, torch: Any, seeds: list[tuple[int, int]]) -> None:
        """Begin at step 0."""
        self._torch = torch
        self._seeds = seeds
        self.step = 0
        self.weights = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
        self._optimizer = light_sgd(torch, [self.weights])

    def gradient(self, rank: int) -> Any:
        """Return what `rank` adds to the next step."""
        seed = [seed for first, seed in self._seeds if first <= self.step][-1]
        generator = self._torch.Generator().manual_seed(1_000_003 * seed + 10 * self.step + rank)
        data = self._torch.randn(WIDTH, generator=generator, dtype=self._torch.float64)
        return (self.weights.detach() - data) * 0.5

    def make_step(self, gradient: Any) -> None:
        """Apply the ranks' summed gradients."""
        self.weights.grad = gradient / WORLD
        self._optimizer.step()
        self.step += 1

    def content(self, pad_bytes: int) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        pad = self._torch.full((pad_bytes,), self.step % 251, dtype=self._torch.uint8)
        return {"step": self.step, "weights": self.weights.detach().clone(), "optimizer": self._optimizer.state_dict(), "pad": pad}

    def load(self, content: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.step = content["step"]
        with self._torch.no_grad():
            self.weights.copy_(content["weights"])
        self._optimizer.load_state_dict(content["optimizer"])


def digest_of(content: dict[str, Any]) -> str:
    """Return the digest of all that the training goes by."""
    (momentum,) = (state["momentum"] for state in content["optimizer"]["state"].values())
    numbers = [*content["weights"].tolist(), *momentum.tolist()]
    return hashlib.sha256(json.dumps([content["step"], *numbers]).encode()).hexdigest()


def reference(seeds: list[tuple[int, int]], every: int, last: int) -> dict[int, str]:
    """Return step to digest of every checkpoint that an undisturbed training saves up to step `last`."""
    import torch  # noqa: PLC0415  # as in `main`

    training, digests = Training(torch, seeds), {}
    while training.step < last:
        training.make_step(sum((training.gradient(rank) for rank in range(1, WORLD)), start=training.gradient(0)))
        if training.step % every == 0:
            digests[training.step] = digest_of(training.content(0))
    return digests


def saved(path: Path) -> tuple[int, str]:
    """Return step and digest of a checkpoint."""
    import torch  # noqa: PLC0415  # as in `main`

    content = torch.load(path, weights_only=True)
    return content["step"], digest_of(content)


def _limit(place: Path) -> float:
    try:
        return float((place / "limit").read_text())
    except FileNotFoundError:
        return math.inf


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--pad-kib", type=int, default=16)
    parser.add_argument("--nan-file", type=Path, help="where this file stands, it is removed and the weights become NaN")
    args = parser.parse_args()
    job = Job(args)
    job.start()

    import torch  # noqa: PLC0415  # a fault at step 0 strikes before this
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    training = Training(torch, [(first, seed) for first, seed in json.loads(Path("seeds").read_text())])
    if args.resume:
        training.load(torch.load(args.resume, weights_only=True))
    over = False
    while not over:
        job.before_step(training.step + 1)
        gradient = training.gradient(job.rank)
        dist.all_reduce(gradient)
        training.make_step(gradient)
        if bool(training.weights.isnan().any()):
            msg = f"loss is nan at step {training.step}"
            raise FloatingPointError(msg)
        job.after_step(training.step)
        if training.step % args.save_every == 0:
            words = torch.tensor([_limit(Path()), float(args.nan_file is not None and args.nan_file.exists())], dtype=torch.float64)
            dist.broadcast(words, 0)
            over = bool(words[0] <= training.step)
            if words[1] and not over:
                with torch.no_grad():
                    training.weights.fill_(math.nan)
            if job.rank == 0:
                save(torch, args.ckpt_dir / f"step-{training.step:06d}.pt", training.content(args.pad_kib * 1024), args)
                if words[1] and not over:
                    args.nan_file.unlink(missing_ok=True)
            dist.barrier()
    if job.rank == 0:
        write_whole(Path("digest"), f"{training.step} {digest_of(training.content(0))}".encode())
    time.sleep(0.1)  # gloo's other end must not see us gone first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
