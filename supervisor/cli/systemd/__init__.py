"""The commands below `supervise systemd`, and the units that they print and install."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Where the units find a job's configuration.
CONFIGURATION: Final = Path("/etc/supervise")
