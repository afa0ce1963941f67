"""The control groups of this process and those above it, of version 2 or 1. No probe itself; the supervisor reads them here too.

A hierarchy is found by its mount (/proc/self/mountinfo), wherever it is mounted. In a namespace of our own the root is our own group
(cgroup_namespaces(7)), as in most containers. Elsewhere version 1 counts the whole machine's kills at its root; version 2 counts nothing
there. Limits and counts above the mount's root cannot be seen.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The first cgroup namespace has this inode number on every machine (PROC_CGROUP_INIT_INO, include/linux/proc_ns.h).
FIRST_NAMESPACE: Final = "cgroup:[4026531835]"
_LEVELS: Final = 16
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One group. own: it is the group that we are in, and it holds no other job."""

    directory: Path
    version: int
    own: bool

    def path(self, v2: str, v1: str) -> Path:
        """Return the path of a file that has another name in each version."""
        return self.directory / (v2 if self.version == 2 else v1)  # noqa: PLR2004 -- the version

    def memory_events(self) -> tuple[int, int] | None:
        """Return how many processes the kernel killed here for lack of memory, and how often the limit was hit; None where unknown.

        The kernel counts a kill in the group of the killed process (since Linux 4.13).
        """
        events = system_files.table(self.path("memory.events", "memory.oom_control"))
        kills = events.get("oom_kill")
        if not isinstance(kills, int):
            return None
        hits = events.get("max", 0) if self.version == 2 else system_files.whole(self.directory / "memory.failcnt")  # noqa: PLR2004 -- as above
        return kills, hits if isinstance(hits, int) else 0


def own_path(controller: str, groups_file: str | Path = "/proc/self/cgroup") -> dict[int, str]:
    """Return the path of our group in the hierarchies that may have the controller, by version."""
    paths: dict[int, str] = {}
    for line in system_files.text(groups_file).splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            paths[1] = path
        elif number == "0" and not names:
            paths[2] = path
    return paths


def read(controller: str, root: str = "/") -> list[ControlGroup]:
    """Return our group and those above it, the nearest first, in each hierarchy that may have the controller.

    root: the directory that is treated as /.
    """
    at = root.rstrip("/")
    paths = own_path(controller, f"{at}/proc/self/cgroup")
    groups: list[ControlGroup] = []
    for version, mounted, mount in _mounts(controller, f"{at}/proc/self/mountinfo"):
        if version in paths:
            groups += _upwards(version, paths[version], mounted, Path(f"{at}{mount}"))
    return groups


def _mounts(controller: str, mountinfo: str) -> Iterator[tuple[int, str, str]]:
    """Yield (version, the group that is mounted, mount point) of each hierarchy that may have the controller: proc(5)."""
    for line in system_files.text(mountinfo).splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, more) = left.split(" "), right.partition(" ")
        if len(fields) < 5 or kind not in {"cgroup", "cgroup2"}:  # noqa: PLR2004 -- the fifth is the mount point
            continue
        if kind == "cgroup2" or controller in more.rpartition(" ")[2].split(","):
            yield 2 if kind == "cgroup2" else 1, _unescaped(fields[3]), _unescaped(fields[4])


def _upwards(version: int, path: str, mounted: str, mount: Path) -> Iterator[ControlGroup]:
    directory = mount / (path.removeprefix(mounted) if mounted != "/" else path).strip("/")
    shared = version == 1 and mounted == path == "/" and _namespace() == FIRST_NAMESPACE
    # mounted from outside of our namespace, or not as far down as where we are: it shows other groups
    if ".." in Path(mounted).parts or ".." in Path(path).parts or not directory.is_dir():
        shared, directory = True, mount
    for level in (directory, *directory.parents)[:_LEVELS]:
        yield ControlGroup(level, version, own=level == directory and not shared)
        if level == mount:
            return


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/cgroup")  # noqa: PTH115 -- a name that is not a path
    except OSError:
        return FIRST_NAMESPACE
