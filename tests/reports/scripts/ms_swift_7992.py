"""modelscope/ms-swift#7992 (2026): the training is done, the model is saved, and then the teardown dies.

`--how`: abort in atexit, a crash in atexit, a crash right after the last save, or the watchdog's abort with its text.
"""

import atexit
import ctypes
import os
import sys

import torch.distributed as dist
from training import Training

training = Training()
training.parser.add_argument("--how", default="abort")
training.parser.add_argument("--rank", type=int, default=0)
training.run()


def watchdog() -> None:
    """End as torch's watchdog does."""
    sys.stderr.write(
        f"[rank{dist.get_rank()}]:[E1129 06:00:00.000000 ProcessGroupNCCL.cpp:1614] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. "
        "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n"
    )
    sys.stderr.flush()
    os.abort()


WAYS = {"abort": os.abort, "segfault": lambda: ctypes.string_at(0), "watchdog": watchdog}
if training.rank == training.options.rank:
    if training.options.how == "at once":
        ctypes.string_at(0)
    atexit.register(WAYS[training.options.how])
