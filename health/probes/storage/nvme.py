"""The NVMe disks that the kernel has, and how they are.

Reads /sys/class/nvme. Yields, of `host`: `nvme.controllers`, a list of tables (name, model, state: live, dead, resetting, connecting, …;
transport, address, namespaces), empty where there is none; `not_supported` where the kernel has no driver for them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, Json, Reading
from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "nvme"
_FILES: Final = ("model", "state", "transport", "address")


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the list."""
    root = Path(ask.at("/sys/class/nvme"))
    rows: list[Json] = []
    try:
        for name in system_files.listed(root):
            row: dict[str, Json] = {"name": name, **{file: system_files.text(root / name / file) for file in _FILES}}
            row["namespaces"] = sum(1 for entry in system_files.listed(root / name) if re.fullmatch(r"nvme\d+(c\d+)?n\d+", entry))
            rows.append(row)
    except OSError as error:
        yield system_files.unread(NAME, HOST, "nvme.controllers", error, root)
        return
    yield Reading(NAME, HOST, "nvme.controllers", rows)
