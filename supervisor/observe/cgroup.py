"""Counts how often the kernel killed for want of memory in our control group and those above it.

It reads memory.events (version 2), or memory.oom_control and memory.failcnt (version 1). The kernel counts a kill in the group of the
killed process (since Linux 4.13): our own group's count is about us, and a count above it may be about a neighbour. A count has no times,
so it is read repeatedly while an attempt runs: this tells a kill that training survived from one that ended it (reconcile.py).
`OomKillCounter` may be used by several threads.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_LEVELS = 16
#: Between two readings of a tick's: each is a file or two of the kernel's own memory.
LOOK_S = 1.0
#: How many changes are kept, the last ones: what was long ago was outlived.
MOST_KEPT = 32
#: The first cgroup namespace has this inode number on every machine (PROC_CGROUP_INIT_INO, include/linux/proc_ns.h).
FIRST_NAMESPACE = "cgroup:[4026531835]"
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """One group's figures. `own`: it is the one that we are in, and it holds no other job. `limit_hits`: how often memory ran short."""

    own: bool
    oom_kills: int
    limit_hits: int


class OomKillCounter:
    """What is counted from now on, until an attempt has ended."""

    def __init__(self) -> None:
        self._first = self._last = read()
        self._found: deque[Evidence] = deque(maxlen=MOST_KEPT)
        self._looked = 0.0
        self._lock = threading.Lock()

    def look(self, t: float, *, now: bool = False) -> None:
        """Read the counts again, at `t`; only where the last look is some time ago, unless it must be `now`."""
        with self._lock:
            if not now and 0.0 <= t - self._looked < LOOK_S:
                return
            self._looked = t
            counts = again(self._last)
            self._found += killed(self._last, counts, t)
            self._last = {**self._last, **counts}

    def finish(self, t: float) -> tuple[Evidence, ...]:
        """Return what was counted."""
        self.look(t, now=True)
        with self._lock:
            return (*self._found, *short(self._first, self._last))


def read(cgroup_file: Path = Path("/proc/self/cgroup"), mountinfo: Path = Path("/proc/self/mountinfo")) -> dict[str, GroupCounts]:
    """Return the counts of our group and of those above it, by directory; nothing where there are none."""
    found: dict[str, GroupCounts] = {}
    for mount, directory, ours in _places(cgroup_file, mountinfo):
        level = directory
        for _ in range(MOST_LEVELS):
            counts = _counts(level, own=level == directory and ours)
            if counts is not None:
                found[str(level)] = counts
            if level == mount:
                break
            level = level.parent
    return found


def again(counts: Mapping[str, GroupCounts]) -> dict[str, GroupCounts]:
    """Return the counts of the same groups now, but for those that are gone."""
    now = ((path, _counts(Path(path), own=was.own)) for path, was in counts.items())
    return {path: found for path, found in now if found is not None}


def killed(before: Mapping[str, GroupCounts], after: Mapping[str, GroupCounts], t: float) -> tuple[Evidence, ...]:
    """Return the kills that have been counted since, for groups that were there both times; `t` is the time of the later reading."""
    found = []
    for path, now in after.items():
        was = before.get(path)
        kills = now.oom_kills - was.oom_kills if was is not None else 0
        if was is None or kills <= 0:
            continue
        text = f"the kernel killed {kills} process{'' if kills == 1 else 'es'} of {path} for want of memory"
        fields = (("cgroup", path), ("kills", str(kills)), ("limit_hits", str(now.limit_hits - was.limit_hits)))
        found.append(Evidence("cgroup", "oom_kill" if now.own else "oom_kill_above", text, t=t, fields=fields))
    return tuple(found)


def short(before: Mapping[str, GroupCounts], after: Mapping[str, GroupCounts]) -> tuple[Evidence, ...]:
    """Return where memory of our own ran short in between, and nobody was killed for it."""
    found = []
    for path, now in after.items():
        was = before.get(path)
        if was is not None and now.own and now.oom_kills == was.oom_kills and now.limit_hits > was.limit_hits:
            hits = now.limit_hits - was.limit_hits
            fields = (("cgroup", path), ("kills", "0"), ("limit_hits", str(hits)))
            found.append(Evidence("cgroup", "limit_hit", f"memory ran short {hits} times in {path}", fields=fields))
    return tuple(found)


def _places(cgroup_file: Path, mountinfo: Path) -> list[tuple[Path, Path, bool]]:
    """Return, for each hierarchy that counts memory: its mount point, our directory in it or the nearest, and whether that is ours alone.

    In a namespace of our own the root is our own group (cgroup_namespaces(7)), as in most containers. Elsewhere version 1 counts the
    whole machine's kills at its root; version 2 counts nothing there.
    """
    path_of: dict[str, str] = {}
    try:
        for group in cgroup_file.read_text(errors="replace").splitlines():
            number, names, path = group.split(":", 2)
            if "memory" in names.split(",") or (number == "0" and not names):
                path_of["cgroup" if names else "cgroup2"] = path
        mounts = mountinfo.read_text(errors="replace").splitlines()
    except (OSError, ValueError):
        return []
    found = []
    shared = _namespace() == FIRST_NAMESPACE
    for line in mounts:
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in path_of:  # noqa: PLR2004 (proc(5))
            continue
        if kind[0] == "cgroup" and "memory" not in kind[2].split(","):
            continue
        root, mount = _unescaped(fields[3]), Path(_unescaped(fields[4]))
        path = path_of[kind[0]]
        inside = path.removeprefix(root) if root != "/" else path
        directory = mount / inside.strip("/")
        whole = kind[0] == "cgroup" and shared and root == path == "/"
        # mounted from outside of our namespace, or not as far down as where we are: what it shows has other groups in it
        if ".." in Path(root).parts or ".." in directory.parts or not directory.is_dir():
            whole, directory = True, mount
        found.append((mount, directory, not whole))
    return found


def _counts(directory: Path, *, own: bool) -> GroupCounts | None:
    events = _table(directory / "memory.events")
    if "oom_kill" in events:
        return GroupCounts(own, events["oom_kill"], events.get("max", 0))
    control = _table(directory / "memory.oom_control")
    if "oom_kill" not in control:
        return None
    try:
        hits = int((directory / "memory.failcnt").read_text())
    except (OSError, ValueError):
        hits = 0
    return GroupCounts(own, control["oom_kill"], hits)


def _table(path: Path) -> dict[str, int]:
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}  # noqa: PLR2004 (name and figure)
    except (OSError, ValueError):
        return {}


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/cgroup")  # noqa: PTH115 (a name that is no path)
    except OSError:
        return FIRST_NAMESPACE
