"""The driver as the system shows it, without its library: the loaded module, and the fabric manager.

Reads /sys/module/nvidia/version, the bus, /proc/*/comm. Yields `driver.loaded` (a version, `not_supported` where none is loaded),
`fabric.manager` (a table: switches on the bus, running). In a container the manager's process is hidden.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Reading
from health.probes.system_files import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "driver"
_NVIDIA, _BRIDGE = "0x10de", "0x0680"
#: The kernel keeps fifteen characters of a name.
_MANAGER: Final = "nv-fabricmanage"


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings."""
    version = text(Path(ask.at("/sys/module/nvidia/version")))
    yield Reading(NAME, HOST, "driver.loaded", version or None, "" if version else NOT_SUPPORTED)
    switches, running = 0, False
    with contextlib.suppress(OSError):
        devices = list(Path(ask.at("/sys/bus/pci/devices")).iterdir())
        switches = sum(1 for path in devices if text(path / "vendor") == _NVIDIA and text(path / "class").startswith(_BRIDGE))
    if switches:  # only then are all processes read
        with contextlib.suppress(OSError):
            # psutil reads command lines for such long names, which the kernel may not answer for a process in state D
            running = any(text(path / "comm").startswith(_MANAGER) for path in Path(ask.at("/proc")).iterdir() if path.name.isdecimal())
    yield Reading(NAME, HOST, "fabric.manager", {"switches": switches, "running": running})
