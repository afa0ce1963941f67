"""Memory that does not hold a micro-batch above 8, for scripts of frameworks: the kernel refuses, torch's allocator raises, CUDA's words.

Each micro-batch asks for 16 MiB a sample while the process may get 192 MiB more than it had at its first (RLIMIT_DATA). `shapes` has a
line per micro-batch that fitted (rank, samples, attempt).
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch
from job_parts import append
from memory import MIB, as_a_gpu, data_bytes


class SmallGpu:
    """Owns the limit, which is set at the first micro-batch: what is imported and made before does not count."""

    def __init__(self) -> None:
        self.limit = 0

    def hold(self, samples: int) -> None:
        """Ask for what a micro-batch of `samples` needs; raise torch.OutOfMemoryError where that is too much."""
        if not self.limit:
            self.limit = data_bytes() + 192 * MIB
            resource.setrlimit(resource.RLIMIT_DATA, (self.limit, self.limit))
        with as_a_gpu(self.limit):
            torch.empty(samples, 16 * MIB, dtype=torch.uint8)
        append(Path("shapes"), os.environ.get("RANK", "0"), samples, os.environ.get("SUPERVISE_JOB_ATTEMPT", "0"))
