"""Converts one checkpoint, as a process: `python -P -m checkpointing.conversion.process ORDER`, an order and answers in JSON.

The order is {"source", "target", "to", "dtype"}: the caller has verified the source, and made the directory in which the target is to lie.
A line of stdout is {"phase", "done", "total"} in bytes, then {"left_out", "notes", "tensors", "bytes"} or {"error", "hint"}.

Memory: one tensor of the source, the same in the type of the target, and what torch needs by itself. A limit of the kernel holds that.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import resource
import sys
import warnings
from typing import Any, Final

from checkpointing.model import CheckpointingError

_NICE: Final = 10  # a training may run on the node
_ROOM: Final = 1 << 30  # beside the tensors: torch's buffers, the objects of a checkpoint with many tensors
_TENSORS_HELD: Final = 4  # read, in another type, put together from a shard, and torch's copy while it writes
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _bound_memory(largest_bytes: int | None) -> None:
    """Let this process have no more private memory than it has now and the largest tensor needs: it must not push out a training.

    None lifts the limit: the kernel counts a mapped file, of which next to nothing is read, as if it were memory.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if largest_bytes is None:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        return
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123 -- strings throughout the package
        held = next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData:")), None)
    if held is not None:
        limit = held + _TENSORS_HELD * largest_bytes + _ROOM
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _failure(error: Exception) -> tuple[str, str] | None:  # noqa: PLR0911 -- each is another answer
    """Return message and hint for a fault that a person can mend; None for a program error."""
    match error:
        case CheckpointingError():
            return error.message, error.hint
        case OSError(errno=number) if number in _NO_ROOM:
            return f"no more room while the target was written: {error.strerror}", "make room, or name a target on another disk"
        case OSError():
            return f"cannot read or write: {error}", "see to the permissions and the disk of source and target"
        case MemoryError():
            return _TOO_LITTLE_MEMORY
        case RuntimeError() if "can't allocate memory" in str(error):
            return _TOO_LITTLE_MEMORY
        case ModuleNotFoundError(name="torch"):
            return (
                f"torch is not installed for {sys.executable}",
                f"install supervise where torch is, or: {sys.executable} -m pip install torch",
            )
        case _:
            return None


_TOO_LITTLE_MEMORY: Final = (
    "a tensor does not fit into memory, or a file of the format before torch 1.6 had to be loaded whole",
    "convert on a machine with more memory, or save the file again with a torch of today",
)


def main() -> int:
    """Convert as the order says; return 0, or 1 after an error."""
    order = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of a library must not mix with the answers
    os.nice(_NICE)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123 -- strings throughout
        score.write("1000")  # before any training
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")

    def emit(row: dict[str, Any]) -> None:
        out.write(json.dumps(row) + "\n")
        out.flush()

    try:
        from checkpointing.conversion.work import Conversion  # noqa: PLC0415 -- torch, and it may be missing

        emit(Conversion(emit, _bound_memory).run(order["source"], order["target"], order["to"], order["dtype"]))
    except Exception as error:
        failure = _failure(error)
        if failure is None:
            raise
        emit({"error": failure[0], "hint": failure[1]})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
