"""The GPUs that the bus and /dev have, whatever the driver reports.

Reads /sys/bus/pci/devices, /dev/nvidia[0-9]*. Yields `pci.gpus` (a list of tables: address, driver, current_link_width and its like),
`pci.config` with the problem GONE of subject `pci:ADDRESS` where a device's config space reads as all ones, `dev.gpus` (numbers of the
device files that we may open: a device cgroup shows all, and lets some be opened). Nothing hangs but the reading of a
device that hangs the bus.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import GONE, HOST, PERMISSION, Json, Reading
from health.probes.system_files import link_name, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "pci"
_NVIDIA: Final = "0x10de"
#: VGA and 3D controllers (PCI class 03): a GPU's audio and USB functions are others, and NVSwitches are bridges (06).
_DISPLAY: Final = ("0x0300", "0x0302")
_FILES: Final = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed", "numa_node", "local_cpulist")


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings."""
    rows: list[Json] = []
    devices = Path(ask.at("/sys/bus/pci/devices"))
    try:
        addresses = sorted(gpus(devices))
    except OSError as error:
        problem = PERMISSION if isinstance(error, PermissionError) else f"{devices}: {error.strerror}"
        yield Reading(NAME, HOST, "pci.gpus", problem=problem)
    else:
        for device in addresses:
            row: dict[str, Json] = {"address": device.name, "driver": link_name(device / "driver")}
            row.update({name: text(device / name) for name in _FILES})
            rows.append(row)
            if _fell_off(device):
                yield Reading(NAME, f"pci:{device.name}", "pci.config", problem=GONE)
        yield Reading(NAME, HOST, "pci.gpus", rows)
    numbers: list[Json] = []
    with contextlib.suppress(OSError):
        files = [(match, path) for path in Path(ask.at("/dev")).iterdir() if (match := re.fullmatch(r"nvidia(\d+)", path.name))]
        # without opening it, which wakes the GPU: the kernel asks the device cgroup here too (inode_permission)
        numbers += sorted(int(match[1]) for match, file in files if os.access(file, os.R_OK | os.W_OK))
    yield Reading(NAME, HOST, "dev.gpus", numbers)


def gpus(devices: Path) -> Iterator[Path]:
    """Yield the directories of NVIDIA's GPUs among those of all devices. Raises OSError."""
    return (path for path in devices.iterdir() if text(path / "vendor") == _NVIDIA and text(path / "class").startswith(_DISPLAY))


def _fell_off(device: Path) -> bool:
    """Tell whether the device does not answer: a read of the bus that nobody answers gives all ones."""
    try:
        with (device / "config").open("rb") as file:
            return file.read(4) == b"\xff\xff\xff\xff"
    except OSError:
        return False
