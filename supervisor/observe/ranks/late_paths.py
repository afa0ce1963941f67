"""Finds the ranks that died because a path was not there, or was there already, although it is there by now: ranks that raced at a start.

One rank makes a directory, and another one lists it a moment before; or both see that it is missing, and the second finds it made. The next
attempt finds it there from the beginning (pytorch/torchtitan#909).
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from supervisor.core.model import Evidence
from supervisor.strategies.situation import LATE_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: How Python writes an error of the operating system that names a path; of two paths the first is the one that was used.
_OF_A_PATH = re.compile(r"(?:\w+\.)*(?P<type>\w+): \[Errno (?P<errno>\d+)\] [^'\"\n]*(?P<quote>['\"])(?P<path>.+?)(?P=quote)")
#: The path is missing, or its directory was replaced by another one on a server.
_MISSING = frozenset({errno.ENOENT, errno.ESTALE})


def evidence(cwd: Path, since_s: float, reported: Iterable[Evidence]) -> Iterator[Evidence]:
    """Yield each rank whose own exception names a path that was missing, and is there; or that was there, and was made in this attempt.

    cwd: of the command. since_s: when the attempt began, in wall seconds. reported: what the ranks wrote of their exceptions.
    """
    for fact in reported:
        match = _OF_A_PATH.match(fact.text) if (fact.source, fact.name) == ("error_file", "exception") else None
        if match is None:
            continue
        number, path = int(match["errno"]), match["path"]
        changed_s = _changed_s(cwd / path)
        if changed_s is not None and (number in _MISSING or (number == errno.EEXIST and changed_s >= since_s)):
            yield Evidence("host", LATE_PATH, path, fact.rank, fact.t)


def _changed_s(path: Path) -> float | None:
    """Return when a path was last changed, in wall seconds; None where it is not there, or cannot be read."""
    try:
        return path.stat().st_ctime
    except (OSError, ValueError):
        return None
