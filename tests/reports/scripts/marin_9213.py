"""marin-community/marin#9213, #9209 (2026): the upload of one rank fails, it logs that and continues, and its peer waits for it.

`--said LINE`: what rank 1 logs; `--fails-at STEP`: after which step; `--dies-at STEP`: after which one rank 0 waits in a barrier.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import torch.distributed as dist
from training import Training

SAID = "upload of step %d failed: An error occurred (SlowDown) when calling the PutObject operation: Please reduce your request rate"
log = logging.getLogger("uploads")


def main() -> None:
    training = Training()
    training.parser.add_argument("--said", default=SAID)
    training.parser.add_argument("--fails-at", type=int, default=20)
    training.parser.add_argument("--dies-at", type=int, default=20)
    training.parser.add_argument("--format", default="%(asctime)s %(levelname)s %(name)s: %(message)s")
    training.begin()
    asked = training.options
    logging.basicConfig(format=asked.format)
    uploads = dist.new_group(timeout=timedelta(seconds=3))
    for step in range(training.first + 1, asked.steps + 1):
        training.step()
        if training.rank == 1 and step == asked.fails_at:
            log.error(asked.said % step if "%d" in asked.said else asked.said)  # and it continues, without the barrier
        elif step == asked.dies_at and training.rank == 0:
            dist.barrier(group=uploads)


if __name__ == "__main__":
    main()
