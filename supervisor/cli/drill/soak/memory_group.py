"""A control group of the drill's own: the job's processes are in it, so that the kernel ends one of them where its memory is used up.

It is made below this process's own group, where the kernel permits that: version 1 with the right to write there; version 2 where the
memory controller may be enabled for the group's children, which takes a group without processes of its own, or the root. Elsewhere a soak
raises torch.OutOfMemoryError instead.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Final

from health.probes import control_groups, system_files
from health.probes.control_groups import ControlGroup
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from pathlib import Path


#: The memory that the job may take beyond its use when memory is to run out.
ROOM_BYTES: Final = 64 << 20
_PREFIX: Final = "supervise-drill-"
_V2: Final = 2
_NO_LIMIT: Final = {1: "-1", _V2: "max"}


class MemoryGroup(Struct, frozen=True):
    """The group."""

    group: ControlGroup

    def enter(self) -> None:
        """Move this process, and its children from now on, into the group. Raises OSError."""
        (self.group.directory / "cgroup.procs").write_text(str(os.getpid()))

    def tighten(self) -> int:
        """Let the job take ROOM_BYTES more than it uses now; return its use, with its cached files, in bytes.

        Raises OSError, ValueError.
        """
        used = int(self.group.path("memory.current", "memory.usage_in_bytes").read_text())
        self._limit.write_text(str(used + ROOM_BYTES))
        return used

    def loosen(self) -> None:
        """Take the limit away."""
        with contextlib.suppress(OSError):
            self._limit.write_text(_NO_LIMIT[self.group.version])

    def remove(self) -> None:
        """Remove the group, once nothing is in it."""
        with contextlib.suppress(OSError):
            self.group.directory.rmdir()

    @property
    def _limit(self) -> Path:
        return self.group.path("memory.max", "memory.limit_in_bytes")


def make() -> MemoryGroup | None:
    """Make the group; None where that is not permitted, or would not hold."""
    for own in (group for group in control_groups.read("memory") if group.own):  # not above it: a scheduler's limits stay in force
        for left in own.directory.glob(f"{_PREFIX}*"):  # by a drill that was killed; one with processes stays
            MemoryGroup(ControlGroup(left, own.version, own=True)).remove()
        directory = own.directory / f"{_PREFIX}{secrets.token_hex(4)}"
        try:
            if own.version == _V2 and "memory" not in system_files.text(own.directory / "cgroup.subtree_control").split():
                (own.directory / "cgroup.subtree_control").write_text("+memory")
            directory.mkdir()
        except OSError:
            continue
        group = MemoryGroup(type(own)(directory, own.version, own=True))
        if _holds(group):
            return group
        group.remove()
    return None


def _holds(group: MemoryGroup) -> bool:
    """Return whether the group takes a limit and a process, which is tried with a child."""
    try:
        group.tighten()
        with contextlib.suppress(OSError):  # there may be no swap
            group.group.path("memory.swap.max", "memory.swappiness").write_text("0")
    except (OSError, ValueError):
        return False
    group.loosen()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            group.enter()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
