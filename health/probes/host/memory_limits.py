"""The host's memory, shared memory, limits, tables of processes and files, and where a core dump would go.

Yields, of `host`: `host.memory` (bytes: total, available, swap_total,
swap_free), `host.oom_kills` (since the boot), `host.shm` (bytes: total, free), `host.limits` (a table of [soft, hard], None for unlimited:
memlock in bytes, nofile, nproc, core in bytes; those that our caller's children get too), `host.pids` (used, most), `host.files` (used,
most), `host.core` (pattern, pipe, directory, free in bytes). Nothing hangs but a dump's directory on a dead file system.
"""

from __future__ import annotations

import os
import re
import resource
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import psutil_root, system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "host"
_LIMITS: Final = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,
}


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings."""
    psutil_root.use(ask)
    yield _made("host.memory", _memory())
    yield _made("host.oom_kills", system_files.table(ask.at("/proc/vmstat")).get("oom_kill"))
    yield system_files.room(NAME, HOST, "host.shm", ask.at(system_files.SHM))
    yield _made("host.limits", _limits())
    yield _made("host.pids", _pids(ask))
    yield _made("host.files", _files(system_files.text(ask.at("/proc/sys/fs/file-nr"))))
    yield _core(ask)


def _made(name: str, value: Json) -> Reading:
    return Reading(NAME, HOST, name, value, NOT_SUPPORTED if value is None else "")


def _memory() -> Json:
    try:
        with warnings.catch_warnings(action="ignore"):  # a kernel without /proc/vmstat counts no pages swapped: these are not asked for
            memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    except (OSError, KeyError):
        return None
    return {"total": memory.total, "available": memory.available, "swap_total": swap.total, "swap_free": swap.free}


def _limits() -> Json:
    """Return the limits of this process, which has those of the asker."""
    limits = {name: resource.getrlimit(limit) for name, limit in _LIMITS.items()}
    return {name: [None if value == resource.RLIM_INFINITY else value for value in values] for name, values in limits.items()}


def _pids(ask: Ask) -> Json:
    """Return how many threads there are, of how many: /proc/loadavg counts them all, `running/all`."""
    match = re.search(r" \d+/(\d+) ", system_files.text(ask.at("/proc/loadavg")))
    most = [number for number in (system_files.whole(ask.at(f"/proc/sys/kernel/{name}")) for name in ("pid_max", "threads-max")) if number]
    return {"used": int(match[1]), "most": min(most)} if match is not None and most else None


def _files(text: str) -> Json:
    words = text.split()
    return {"used": int(words[0]), "most": int(words[2])} if len(words) == 3 else None  # noqa: PLR2004 -- used, unused, most


def _core(ask: Ask) -> Reading:
    """Return where a dump goes: a file's directory, or a program that it is piped to."""
    pattern = system_files.text(ask.at("/proc/sys/kernel/core_pattern"))
    if not pattern:
        return _made("host.core", None)
    row: dict[str, Json] = {"pattern": pattern, "pipe": pattern.startswith("|"), "directory": "", "free": None}
    if pattern.startswith("|"):
        program = pattern[1:].split()[0] if pattern[1:].split() else ""
        row["program_is_there"] = os.access(ask.at(program), os.X_OK)
    else:
        # a pattern without a directory is in the process's own
        directory = str(Path(pattern).parent) if pattern.startswith("/") else os.getcwd()  # noqa: PTH109 -- a name
        row["directory"] = directory
        try:
            space = os.statvfs(ask.at(directory) if pattern.startswith("/") else directory)
            row["free"] = space.f_bavail * space.f_frsize
        except OSError as error:
            row["problem"] = error.strerror
    return Reading(NAME, HOST, "host.core", row)
