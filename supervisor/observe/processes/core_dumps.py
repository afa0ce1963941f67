"""Finds the core dumps of an attempt's ranks.

For each rank that dumped core the fact names the file of this very death, or the program that the kernel gave the dump to (core(5)), or
only states the dump. Such a fact is never a cause. A core file elsewhere (the rank changed its directory) is not searched for. A disk may
hang this: call it under a deadline.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from typing import TYPE_CHECKING

from supervisor.core.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from supervisor.core.model import RankExit
    from supervisor.job.clock import Clock

#: Name of the fact, whose text is for people.
NAME = "core_file"
KERNEL = "/proc/sys/kernel"
#: A core is written while its process dies. A file that was last changed earlier is of another death. File systems have other clocks.
EARLIER_S = 60.0
_SPECIFIER = re.compile(r"%(.?)")


def evidence(deaths: Iterable[RankExit], cwd: Path, clock: Clock, kernel: str = KERNEL) -> tuple[Evidence, ...]:
    """Return what there is of each core; `kernel` is the directory with core_pattern and core_uses_pid."""
    dumped = [death for death in deaths if death.core_dumped]
    if not dumped:
        return ()
    pattern = _line(f"{kernel}/core_pattern")
    uses_pid = _line(f"{kernel}/core_uses_pid") not in {"", "0"}
    facts = []
    for death in dumped:
        t = clock.at_monotonic_ns(death.at_ns)
        path = "" if pattern.startswith("|") else _file(pattern, death.pid, cwd, t, uses_pid=uses_pid)
        fields = (("path", path),) if path else ()
        facts.append(Evidence("host", NAME, _described(pattern, death.pid, path), rank=death.rank, t=t, fields=fields))
    return tuple(facts)


def _described(pattern: str, pid: int, path: str) -> str:
    if path:
        return f"dumped core: {path}"
    if pattern.startswith("|"):
        program = os.path.basename(pattern[1:].strip().split(" ", 1)[0])  # noqa: PTH119 (a word out of a text)
        if program == "systemd-coredump":
            return f"dumped core: coredumpctl info {pid}"
        return f"dumped core, which the kernel gave to {program}"
    return "dumped core"


def _file(pattern: str, pid: int, cwd: Path, t: float, *, uses_pid: bool) -> str:
    """Return the newest file that the pattern can mean and that was written when the process died; "" where none is."""
    if not pattern:
        return ""
    text = pattern + (".%p" if uses_pid and "%p" not in pattern else "")
    words, at = [], 0
    for match in _SPECIFIER.finditer(text):
        words += [glob.escape(text[at : match.start()]), {"p": str(pid), "%": "%", "": ""}.get(match[1], "*")]
        at = match.end()
    wanted = os.path.join(glob.escape(str(cwd)), "".join((*words, glob.escape(text[at:]))))  # noqa: PTH118 (a pattern)
    written = {path: changed for path in glob.iglob(wanted) if (changed := _changed(path)) >= t - EARLIER_S}  # noqa: PTH207 (as above)
    return max(written, key=lambda path: written[path], default="")


def _changed(path: str) -> float:
    """When a plain file that holds something was last changed; 0 for anything else."""
    try:
        info = os.lstat(path)
    except OSError:
        return 0.0
    return info.st_mtime if stat.S_ISREG(info.st_mode) and info.st_size else 0.0


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 (a name)
            return file.read().strip()
    except OSError:
        return ""
