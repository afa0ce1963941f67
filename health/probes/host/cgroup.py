"""The control group that we are in, and those above it, as they limit us.

Reads /proc/self/cgroup, /sys/fs/cgroup, of version 2 or 1. Yields, of `host`: `cgroup.memory` (bytes: limit, used of the group with the
least left; and its path; file caches left out, which are given up before anybody is killed), `cgroup.oom_kills` (of our own group),
`cgroup.cpu` (quota in processors, None for none; periods and throttled, of the group with a quota; path), `cgroup.pids` (limit, used).
Where no controller is to be seen: `not_supported`. In a container our group is the root of what can be seen; limits above it cannot be.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import system_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "cgroup"
_ROOT: Final = "/sys/fs/cgroup"
#: Version 1 writes no limit as the largest whole number of pages.
_NO_LIMIT: Final = 1 << 60
_LEVELS: Final = 16
#: Of memory.stat; memory that is shared (/dev/shm) is in neither.
_CACHES: Final = ("inactive_file", "active_file")


def read(ask: Ask) -> Iterator[Reading]:
    """Yield what limits us."""
    second = (Path(ask.at(_ROOT)) / "cgroup.controllers").exists()
    places = {name: _places(ask, name, second=second) for name in ("memory", "cpu", "pids")}
    yield _made("cgroup.memory", _tightest(places["memory"], _names(second, "memory.max", "memory.limit_in_bytes"),
                                           _names(second, "memory.current", "memory.usage_in_bytes"),
                                           tuple(_names(second, name, f"total_{name}") for name in _CACHES)))  # fmt: skip
    yield _made("cgroup.oom_kills", _kills(places["memory"], second=second))
    yield _made("cgroup.cpu", _cpu(places["cpu"], second=second))
    yield _made("cgroup.pids", _tightest(places["pids"], "pids.max", "pids.current"))


def _made(name: str, value: Json) -> Reading:
    return Reading(NAME, HOST, name, value, NOT_SUPPORTED if value is None else "")


def _names(second: bool, new: str, old: str) -> str:  # noqa: FBT001 -- two names of one thing
    return new if second else old


def _places(ask: Ask, controller: str, *, second: bool) -> list[Path]:
    """Return the directories of our group and of those above, the nearest first."""
    mount = Path(ask.at(_ROOT)) if second else Path(ask.at(_ROOT)) / controller
    ours = ""
    for line in system_files.text(ask.at("/proc/self/cgroup")).splitlines():
        number, names, path = line.split(":", 2)
        if (second and number == "0") or (not second and controller in names.split(",")):
            ours = path
    directory = mount / ours.lstrip("/")
    if not directory.is_dir():  # a container's: its own group is the mount
        directory = mount
    found: list[Path] = []
    while len(found) < _LEVELS:
        found.append(directory)
        if directory == mount:
            break
        directory = directory.parent
    return [one for one in found if one.is_dir()]


def _tightest(places: list[Path], limit_file: str, used_file: str, caches: tuple[str, ...] = ()) -> Json:
    best: dict[str, Json] | None = None
    least = 0
    seen = False
    for place in places:
        limit, used = system_files.whole(place / limit_file), system_files.whole(place / used_file)
        seen = seen or bool(system_files.text(place / used_file))
        if limit is None or used is None or limit >= _NO_LIMIT:
            continue
        if caches:
            stat = system_files.table(place / "memory.stat")
            used -= min(used, sum(size for name in caches if isinstance(size := stat.get(name), int)))
        if best is None or limit - used < least:
            best, least = {"limit": limit, "used": used, "path": str(place)}, limit - used
    return best if best is not None else ({"limit": None, "used": None, "path": ""} if seen else None)


def _kills(places: list[Path], *, second: bool) -> Json:
    for place in places[:1]:
        return system_files.table(place / ("memory.events" if second else "memory.oom_control")).get("oom_kill")
    return None


def _cpu(places: list[Path], *, second: bool) -> Json:
    seen = False
    for place in places:
        if second:
            words = system_files.text(place / "cpu.max").split()
        else:
            words = [system_files.text(place / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        stat = system_files.table(place / "cpu.stat")
        seen = seen or bool(stat)
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):  # noqa: PLR2004 -- quota, period
            return {
                "quota": int(words[0]) / int(words[1]),
                "periods": stat.get("nr_periods"),
                "throttled": stat.get("nr_throttled"),
                "path": str(place),
            }
    return {"quota": None, "periods": None, "throttled": None, "path": ""} if seen else None
