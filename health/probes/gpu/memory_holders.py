"""Who holds a GPU's memory: processes by number, and what /proc says of each.

One table describes each process of NVML's list: pid, bytes, there, command, user, ours. `ours` is `job` (named by the caller),
or `cookie` (its environment bears the job's own SUPERVISE_JOB_COOKIE: a leftover, or what inherited it, so no proof by itself), or `other
job` (another job's cookie), or "". In a container the numbers are the host's, and may be of nobody here (there: false).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Ask, Json

COOKIE: Final = "SUPERVISE_JOB_COOKIE"


def described(held: Iterable[tuple[int, int]], ask: Ask) -> list[Json]:
    """Return a table for each process."""
    return [_row(pid, size, ask) for pid, size in held]


def _row(pid: int, size: int, ask: Ask) -> dict[str, Json]:
    proc = Path(ask.at(f"/proc/{pid}"))
    command = _bytes(proc / "comm").decode("utf-8", "replace").strip()
    row: dict[str, Json] = {"pid": pid, "bytes": size, "there": bool(command), "command": command, "ours": _ours(proc, pid, ask)}
    try:
        row["user"] = proc.stat().st_uid
    except OSError:
        row["user"] = None
    return row


def _ours(proc: Path, pid: int, ask: Ask) -> str:
    if pid in ask.pids_ours:
        return "job"
    found = environment(proc).get(COOKIE)
    if found is None:
        return ""
    return "cookie" if ask.cookie and found == ask.cookie else "other job"


def environment(proc: Path | str) -> dict[str, str]:
    """Return the variables with which a process was started, empty where they may not be read."""
    words = (word.partition("=") for word in reversed(_bytes(Path(proc, "environ")).decode("ascii", "replace").split("\0")))
    return {name: value for name, equals, value in words if equals}  # of one that is there twice the first, as getenv finds it


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
