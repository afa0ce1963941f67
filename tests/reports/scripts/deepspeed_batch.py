"""deepspeedai/DeepSpeed#5405 (2024), a sister: the configuration holds the batch, and another micro-batch does not start.

At step 30 of the first attempt a rank has no memory left, which halves the micro-batch.
"""

from __future__ import annotations

import torch
from training import Training


def no_memory(training: Training, step: int) -> None:
    """Fail as a GPU without memory, once."""
    if step == 30 and not training.first and training.is_last:
        msg = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free."
        raise torch.OutOfMemoryError(msg)


class Fixed(Training):
    """Starts with a micro-batch of 8 alone."""

    def begin(self) -> None:
        """Compare, as DeepSpeed does."""
        super().begin()
        if self.options.micro_batch != 8:
            msg = f"Check batch related parameters. train_batch_size is not equal to {self.options.micro_batch} * 1 * 2"
            raise AssertionError(msg)


training = Fixed()
training.parser.add_argument("--micro-batch", type=int)
training.parser.add_argument("--accum", type=int)
training.run(no_memory)
