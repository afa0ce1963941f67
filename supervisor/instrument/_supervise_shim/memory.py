"""Reads what torch's allocator holds of this process's GPU, for the heartbeat: at the end of an optimizer step, every 10 s.

So all samples are of the same phase of a step. Nothing is read before the script has initialised CUDA, and no call asks the driver or waits
for the GPU: torch answers from its own counters (0.1 ms). The largest free block is in no counter; a snapshot of all blocks would hold the
interpreter for as long as there are blocks, so the free part of split blocks (GPU_SPLIT) takes its place.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

from . import layout
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVERY_NS = 10 * 10**9


@quiet
def sample(view: memoryview) -> None:
    """Write the figures of the current device into a slot; where CUDA is not initialised, or torch does not tell, nothing."""
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return
    stats = cuda.memory_stats_as_nested_dict()
    used, device = stats["allocated_bytes"]["all"], cuda.current_device()
    view[layout.GPU_ALLOCATED] = used["current"]
    view[layout.GPU_PEAK] = used["peak"]
    view[layout.GPU_RESERVED] = stats["reserved_bytes"]["all"]["current"]
    view[layout.GPU_SPLIT] = stats["inactive_split_bytes"]["all"]["current"]
    share = quiet(_allowed_share)(cuda, device) or 1.0
    view[layout.GPU_LIMIT] = int(cuda.get_device_properties(device).total_memory * share)
    view[layout.GPU_MEMORY_NS] = monotonic_ns()
    view[layout.PINNED] = quiet(_pinned)(cuda) or 0


def _allowed_share(cuda: Any, device: int) -> float:  # noqa: ANN401 - torch is not imported here
    """Return what set_per_process_memory_fraction allows; torch tells it from 2.8 on."""
    return float(cuda.get_per_process_memory_fraction(device))


def _pinned(cuda: Any) -> int:  # noqa: ANN401 - as above
    """Return the bytes of pinned memory that torch holds, and 1; torch tells it from 2.7 on."""
    return int(cuda.host_memory_stats_as_nested_dict()["allocated_bytes"]["current"]) + 1
