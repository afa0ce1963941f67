"""goodfire-ai/spd#677, #741 (2026): a save flag that is looked at between steps alone: no preemption in an evaluation saved anything.

Each rank asks worker.should_save before each step; rank 0 evaluates for long before step 30, the other waits for it in a barrier.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path

import torch.distributed as dist
from training import Training

from supervisor import worker


def evaluate(seconds: float, *, declared: bool) -> None:
    """Judge the model for long, without a look at anything else."""
    until = time.monotonic() + seconds
    with worker.phase("eval", at_most_s=900) if declared else nullcontext():
        while time.monotonic() < until:
            time.sleep(0.05)


def main() -> None:
    """Train, evaluate in between, save on request."""
    training = Training()
    training.parser.add_argument("--eval-s", type=float, default=60.0)
    training.parser.add_argument("--declare", action="store_true")

    def before_step(_training: Training, step: int) -> None:
        if worker.should_save() and training.rank == 0:
            training.save(Path("ckpt") / f"step-{step - 1}.pt", step - 1)
        if step == 30:
            if training.rank == 0:
                Path("evaluating").touch()
                evaluate(training.options.eval_s, declared=training.options.declare)
            dist.barrier()

    training.run(before_step)


main()
