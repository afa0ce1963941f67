"""The control group that we are in, and those above it, as they limit us.

Yields, of `host`: `cgroup.memory` (bytes: limit, used of the group with the least left; and its path; file caches left out, which the
kernel gives up before it kills), `cgroup.oom_kills` (of our own group), `cgroup.cpu` (quota in processors, None for none; periods and
throttled, of the group with a quota; path), `cgroup.pids` (limit, used). Where no controller is visible: `not_supported`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import control_groups, system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask
    from health.probes.control_groups import ControlGroup

    Names = tuple[str, str]

NAME: Final = "cgroup"
#: Version 1 writes no limit as the largest whole number of pages.
_NO_LIMIT: Final = 1 << 60
# File names in version 2 and in version 1.
_MEMORY_LIMIT: Final = ("memory.max", "memory.limit_in_bytes")
_MEMORY_USED: Final = ("memory.current", "memory.usage_in_bytes")
_PIDS_LIMIT: Final = ("pids.max", "pids.max")
_PIDS_USED: Final = ("pids.current", "pids.current")
#: Keys of memory.stat; shared memory (/dev/shm) is in neither.
_CACHES: Final = (("inactive_file", "active_file"), ("total_inactive_file", "total_active_file"))


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """A limit of a control group and how much of it is in use: bytes, or pids."""

    limit: int
    used: int
    path: str


def read(ask: Ask) -> Iterator[Reading]:
    """Yield what limits us."""
    memory, cpu, pids = (control_groups.read(controller, ask.root) for controller in ("memory", "cpu", "pids"))
    yield _made("cgroup.memory", _row(*_tightest(memory, _MEMORY_LIMIT, _MEMORY_USED, less_caches=True)))
    counts = next((counts for group in memory if group.own and (counts := group.memory_events()) is not None), None)
    yield _made("cgroup.oom_kills", counts[0] if counts is not None else None)
    yield _made("cgroup.cpu", _cpu(cpu))
    yield _made("cgroup.pids", _row(*_tightest(pids, _PIDS_LIMIT, _PIDS_USED)))


def memory_limits(root: str = "/") -> list[GroupLimit]:
    """Return every memory limit, in bytes, of our group and those above it, the nearest first."""
    return _limits(control_groups.read("memory", root), _MEMORY_LIMIT, _MEMORY_USED, less_caches=True)[0]


def _made(name: str, value: Json) -> Reading:
    return Reading(NAME, HOST, name, value, NOT_SUPPORTED if value is None else "")


def _tightest(
    groups: list[ControlGroup], limit_names: Names, used_names: Names, *, less_caches: bool = False
) -> tuple[GroupLimit | None, bool]:
    """Return the limit that leaves the least, None where nothing limits us, and whether any group counts."""
    limits, seen = _limits(groups, limit_names, used_names, less_caches=less_caches)
    return min(limits, key=lambda limit: limit.limit - limit.used, default=None), seen


def _limits(
    groups: list[ControlGroup], limit_names: Names, used_names: Names, *, less_caches: bool = False
) -> tuple[list[GroupLimit], bool]:
    """Return the limits, and whether any group counts."""
    limits: list[GroupLimit] = []
    seen = False
    for group in groups:
        limit, used = system_files.whole(group.path(*limit_names)), system_files.whole(group.path(*used_names))
        seen = seen or used is not None
        if limit is None or used is None or limit >= _NO_LIMIT:
            continue
        if less_caches:
            stat = system_files.table(group.directory / "memory.stat")
            used -= min(used, sum(size for name in _CACHES[group.version == 1] if isinstance(size := stat.get(name), int)))
        limits.append(GroupLimit(limit, used, str(group.directory)))
    return limits, seen


def _row(best: GroupLimit | None, seen: bool) -> Json:  # noqa: FBT001 -- as _tightest returns them
    if best is not None:
        return {"limit": best.limit, "used": best.used, "path": best.path}
    return {"limit": None, "used": None, "path": ""} if seen else None


def _cpu(groups: list[ControlGroup]) -> Json:
    seen = False
    for group in groups:
        if group.version == 1:
            words = [system_files.text(group.directory / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        else:
            words = system_files.text(group.directory / "cpu.max").split()
        stat = system_files.table(group.directory / "cpu.stat")
        seen = seen or bool(stat)
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):  # noqa: PLR2004 -- quota, period
            return {
                "quota": int(words[0]) / int(words[1]),
                "periods": stat.get("nr_periods"),
                "throttled": stat.get("nr_throttled"),
                "path": str(group.directory),
            }
    return {"quota": None, "periods": None, "throttled": None, "path": ""} if seen else None
