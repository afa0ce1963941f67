"""The common part of probes: small files of /proc and /sys as text, the room of a file system, why one is unread. No probe itself."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import NOT_SUPPORTED, PERMISSION, Reading

if TYPE_CHECKING:
    from health.model import Json

SHM: Final = "/dev/shm"  # noqa: S108 -- measured, not written to
_WHOLE = re.compile(r"-?\d+")


def text(path: str | Path) -> str:
    """Return a file's text without blanks around it, "" where it cannot be read."""
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def whole(path: str | Path) -> int | None:
    """Return a file's whole number, None where there is none."""
    content = text(path)
    return int(content) if _WHOLE.fullmatch(content) else None


def link_name(path: str | Path) -> str:
    """Return the name of what a symbolic link leads to, as /sys links a device's driver; "" where there is none."""
    try:
        return Path(path).readlink().name
    except OSError:
        return ""


def listed(path: str | Path) -> list[str]:
    """Return the sorted names in a directory. Raises OSError."""
    return sorted(os.listdir(path))  # noqa: PTH208 -- names are wanted


def problem(error: OSError, subject: str | Path = "") -> str:
    """Return the problem of a reading: not permitted, not there, or the error's words."""
    if isinstance(error, PermissionError):
        return PERMISSION
    if isinstance(error, FileNotFoundError):
        return NOT_SUPPORTED
    words = error.strerror or str(error)
    return f"{subject}: {words}" if str(subject) else words


def unread(probe: str, subject: str, name: str, error: OSError, path: str | Path = "") -> Reading:
    """Return the reading of what could not be read."""
    return Reading(probe, subject, name, None, problem(error, path))


def room(probe: str, subject: str, name: str, path: str) -> Reading:
    """Return a reading of the size and the free part of the file system at a path, in bytes. On a dead one it hangs."""
    try:
        space = os.statvfs(path)
    except OSError as error:
        return unread(probe, subject, name, error, path)
    return Reading(probe, subject, name, {"total": space.f_blocks * space.f_frsize, "free": space.f_bavail * space.f_frsize})


def table(path: str | Path) -> dict[str, Json]:
    """Return the numbers of a file with lines `name value` or `name: value kB`, by name; empty where it cannot be read."""
    rows: dict[str, Json] = {}
    for line in text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and _WHOLE.fullmatch(words[1]):
            rows[words[0]] = int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
    return rows
