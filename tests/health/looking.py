"""Which commands only look: for the tests of what a result offers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from health.model import CheckResult

#: By their beginning. An operator may type these while a job runs.
_LOOKS = re.compile(
    r"nvidia-smi(?: (?:-L|-q|nvlink -s -e|topo|--query)|$)|nvme list|dmesg|lspci|lscpu|ibstat|mlxlink|df|du|ls|cat|ps|fuser -v|getent"
    r"|nc -vz|ip (?:route get|link show|address show)|ss|mtr|iostat|nfsiostat|quota|timedatectl|systemctl status|sysctl [\w.-]+$|ethtool"
    r"|ipmitool sdr|findmnt|git -C \S+ diff|python -c|supervise doctor --json"
)


def are_apart(result: CheckResult) -> bool:
    """Return whether its command changes something, and those under `look` do not."""
    return not _LOOKS.match(result.command) and all(
        _LOOKS.match(command) and "; " not in command.partition(" -c ")[0] for command in result.look
    )
