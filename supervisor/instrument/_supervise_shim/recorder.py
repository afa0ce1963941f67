"""Writes this rank's collectives when the supervisor asks: its process groups, and what torch's flight recorder holds, as JSON.

The answer is a file beside the FIFO (background.py), whole or not there: the newest words, the groups as Python knows them, then a line for
each recorder of torch. Several may ask at once: an answer holds for each word in it.

Older torch has recorders under other names, or none (docs/explanation/hangs.md). Pickles are left alone: the supervisor would have to load
them.
"""

from __future__ import annotations

import os
import sys

from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Functions of torch._C._distributed_c10d that return JSON: NCCL's recorder, and that of all other backends.
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


@quiet
def answer(path: str, words: list[bytes]) -> None:
    """Write the answer to the newest words into a file."""
    import json  # noqa: PLC0415 - torch has it by now

    recorded = [text for text in (quiet(_dumped)(name) for name in DUMPS) if text]
    lines = [b" ".join(words), json.dumps({"groups": quiet(_groups)() or {}}).encode(), *recorded]
    write(path, b"\n".join(lines))


def write(path: str, data: bytes) -> None:
    """Write a file that is whole or not there. Raises OSError."""
    fd = os.open(path + ".half", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 - pathlib costs 5 ms of start-up
        file.write(data)
    os.rename(path + ".half", path)  # noqa: PTH104 - see above


def _dumped(name: str) -> bytes | None:
    """Return what one recorder of torch holds; None where this torch has none of that name."""
    dump = getattr(sys.modules["torch._C._distributed_c10d"], name, None)
    return None if dump is None else dump().replace(b"\n", b" ")


def _groups() -> dict[str, dict[str, Any]]:
    """Return the process groups of this rank, by torch's name."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world  # noqa: SLF001 - torch has no public list
    groups = {}
    for group in list(world.pg_map):
        groups[str(world.pg_names[group])] = {
            "ranks": sorted(world.pg_group_ranks[group]),
            "backend": str(world.pg_map[group][0]),
            "timeout_s": quiet(_timeout_s)(group),
        }
    return groups


def _timeout_s(group: Any) -> float:  # noqa: ANN401 - torch is not imported here
    """Return the longest timeout of a group's backends."""
    backends = [group._get_backend(device) for device in group._device_types]  # noqa: SLF001 - as above
    return float(max(backend.options._timeout.total_seconds() for backend in backends))  # noqa: SLF001 - as above
