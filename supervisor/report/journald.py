"""Gives our lines a priority in systemd's journal: `journalctl -p err` then shows the card, `-p warning` and `-p notice` the way to it.

A line that begins with `<3>` is stored with priority 3 and without these characters (sd-daemon(3), SyslogLevelPrefix=). Elsewhere they
would be printed, so they are written to the journal alone: systemd names its connection in $JOURNAL_STREAM (systemd.exec(5)).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

#: notice: a line without "warning:" or "error:" in front of it that a person looks for, such as that of an incident.
Level = Literal["info", "notice", "warning", "error"]
#: syslog(3)'s numbers.
_PRIORITIES: Final[Mapping[Level, int]] = {"error": 3, "warning": 4, "notice": 5, "info": 6}


def is_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Return whether a descriptor leads straight to the journal."""
    stream = environ.get("JOURNAL_STREAM")
    if not stream:
        return False
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def prefix(level: Level) -> str:
    """Return what a line of this level begins with in the journal."""
    return f"<{_PRIORITIES[level]}>"
