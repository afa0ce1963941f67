"""The processes that hold a GPU's memory, each as psutil describes it.

One table describes each process of NVML's list: pid, bytes, there, command, user, ours. `ours` is `cookie` (its environment has the
job's own SUPERVISE_JOB_COOKIE: a leftover, or what inherited it, so no proof by itself), `other job` (another job's cookie), or "". In a
container the pids are the host's and may not exist here (there: false).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psutil

from health.probes import psutil_root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Ask, Json

COOKIE: Final = "SUPERVISE_JOB_COOKIE"


def described(held: Iterable[tuple[int, int]], ask: Ask) -> list[Json]:
    """Return a table for each process."""
    psutil_root.use(ask)
    return [_row(pid, size, ask) for pid, size in held]


def _row(pid: int, size: int, ask: Ask) -> dict[str, Json]:
    row: dict[str, Json] = {"pid": pid, "bytes": size, "there": False, "command": "", "user": None}
    try:
        process = psutil.Process(pid)
        row |= {"there": True, "command": process.name(), "user": process.uids().effective}
    except (psutil.Error, OSError):  # it is gone, or nobody's here
        pass
    return row | {"ours": _ours(pid, ask)}


def _ours(pid: int, ask: Ask) -> str:
    cookie = environment(pid).get(COOKIE)
    if cookie is None:
        return ""
    return "cookie" if ask.cookie and cookie == ask.cookie else "other job"


def environment(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started, empty where they may not be read."""
    try:
        return dict(psutil.Process(pid).environ())
    except (psutil.Error, OSError):
        return {}
