"""Processes that are dead and not gone (zombies), and those that are deaf in the kernel (state D), with their age.

Reads /proc. Yields, of `host`: `processes.zombies` and `processes.stuck`, lists of tables (pid, parent, command, age_s since its start,
since_s, wchan, ours), the oldest MOST first, and `processes.counts` (all, zombies, stuck). A disk makes processes wait in state D all the
time, so that one counts as stuck only if it did not run between two looks, LOOK_S apart, and ALONE_S where nobody looks again
(ask.lasting). For how long the kernel does not tell: `since_s` is since it was first seen so, which a session remembers, of zombies too.
Threads of the kernel's own are left out: some rest in state D for ever.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from health.model import HOST, Json, Reading
from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "processes"
MOST: Final = 20
LOOK_S: Final = 0.2
ALONE_S: Final = 1.0
#: The parent of the kernel's own threads.
_KERNEL: Final = 2


@dataclass(frozen=True, slots=True)
class _ProcessState:
    """One process. switches: what moves whenever one in state D runs."""

    pid: int
    parent: int
    command: str
    state: str
    begun_s: float
    switches: str
    path: str


def read(ask: Ask) -> Iterator[Reading]:
    """Yield what is seen in two looks."""
    return Processes().read(ask)


def session() -> Processes:
    """Return what remembers since when each has been stuck or dead."""
    return Processes()


class Processes:
    """Looks, and remembers: first seen so at, by (pid, start, switches)."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, float, str], float] = {}

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield what is seen now."""
        try:
            seen = _look(ask)
        except OSError as error:
            yield system_files.unread(NAME, HOST, "processes.counts", error, ask.at("/proc"))
            return
        zombies = [one for one in seen if one.state == "Z"]
        stuck = [one for one in seen if one.state == "D" and one.parent != _KERNEL]
        if stuck:
            time.sleep(LOOK_S)
            stuck = _still(stuck)
        if stuck and not ask.lasting:
            time.sleep(ALONE_S - LOOK_S)
            stuck = _still(stuck)
        now, up = time.monotonic(), _uptime(ask)
        self._since = {_key(one): self._since.get(_key(one), now) for one in (*stuck, *zombies)}
        ours = frozenset(ask.pids_ours)
        yield Reading(NAME, HOST, "processes.counts", {"all": len(seen), "zombies": len(zombies), "stuck": len(stuck)})
        for name, some in (("processes.zombies", zombies), ("processes.stuck", stuck)):
            rows: list[Json] = []
            for one in sorted(some, key=lambda one: one.begun_s)[:MOST]:
                row: dict[str, Json] = {
                    "pid": one.pid,
                    "parent": one.parent,
                    "command": one.command,
                    "age_s": round(max(0.0, up - one.begun_s), 1),
                    "since_s": round(now - self._since.get(_key(one), now), 1),
                    "ours": one.pid in ours,
                    "wchan": system_files.text(f"{one.path}/wchan").strip("0"),
                }
                rows.append(row)
            yield Reading(NAME, HOST, name, rows)

    def close(self) -> None:
        """Nothing is open."""


def _look(ask: Ask) -> list[_ProcessState]:
    proc = ask.at("/proc")
    return [one for name in os.listdir(proc) if name.isdecimal() and (one := _one(f"{proc}/{name}")) is not None]  # noqa: PTH208 -- names


def _still(stuck: list[_ProcessState]) -> list[_ProcessState]:
    """Return those that did not run meanwhile."""
    return [again for one in stuck if (again := _one(one.path)) is not None and _key(again) == _key(one) and again.state == "D"]


def _one(path: str) -> _ProcessState | None:
    stat = system_files.text(f"{path}/stat")
    head, _, tail = stat.rpartition(")")
    words = tail.split()
    if len(words) < 20:  # noqa: PLR2004 -- it is gone; the twentieth is when it began
        return None
    pid, _, command = head.partition(" (")
    # user and system time too, where a kernel does not count switches: neither moves in one that is stuck
    switches = f"{words[11]} {words[12]} " + _switches(path) if words[0] == "D" else ""
    return _ProcessState(int(pid), int(words[1]), command, words[0], int(words[19]) / os.sysconf("SC_CLK_TCK"), switches, path)


def _switches(path: str) -> str:
    return " ".join(line.split()[1] for line in system_files.text(f"{path}/status").splitlines() if "ctxt_switches" in line)


def _key(one: _ProcessState) -> tuple[int, float, str]:
    return one.pid, one.begun_s, one.switches


def _uptime(ask: Ask) -> float:
    words = system_files.text(ask.at("/proc/uptime")).split()
    return float(words[0]) if words else 0.0
