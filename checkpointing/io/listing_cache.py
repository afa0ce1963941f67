"""Remembers what a listing that is repeated every few seconds need not read again: ten thousand files would cost two calls each.

Two rules, neither of which compares a file's time with our clock for more than a guess:

A path is read again after a tenth of the time for which it stood still, at most `MOST_S`, or at once if another inode has the name.
So a save that replaces a file is seen at the next listing, and one that rewrites it in place late by a tenth of the pause between saves,
unless the caller knows of it (`forget`).
Of a directory the modification time is compared besides, so that a new entry is seen at once.
A directory's names are listed again if its modification time moved. That time may have a granularity of two seconds (FAT, old NFS), in
which a second change would not show: names that were listed sooner than `_SETTLED_S` after the time was first seen are listed again.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.model import Candidate

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_S: Final = 60.0
_SHARE: Final = 10
_SETTLED_S: Final = 3.0


@dataclass(slots=True)
class _Listed:
    mtime_ns: int
    since: float
    at: float
    entries: list[os.DirEntry[str]]


@dataclass(slots=True)
class _CachedPath:
    inode: int
    mtime_ns: int  # of a directory, 0 of anything else
    since: float
    due: float
    candidates: tuple[Candidate, ...]


class ListingCache:
    """The earlier listing of one thread. Times are monotonic seconds; `wall` only estimates how long a file was at rest before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        """Begin with nothing."""
        self._clock, self._wall = clock, wall
        self._listed: dict[str, _Listed] = {}
        self._paths: dict[str, _CachedPath] = {}
        self._used: set[str] = set()
        self._is_first = True  # the times of older entries are believed: nobody is writing them

    def entries(self, directory: str, scan: Callable[[str], list[os.DirEntry[str]]]) -> list[os.DirEntry[str]]:
        """Return the names in a directory, from `scan` unless they are known. Raises OSError."""
        now, mtime_ns = self._clock(), os.stat(directory).st_mtime_ns  # noqa: PTH116 -- strings throughout the package
        self._used.add(directory)
        known = self._listed.get(directory)
        if known is not None and known.mtime_ns == mtime_ns and known.at - known.since >= _SETTLED_S:
            return known.entries
        since = known.since if known is not None and known.mtime_ns == mtime_ns else now
        content = scan(directory)
        self._listed[directory] = _Listed(mtime_ns, since, now, content)
        return content

    def candidates(self, path: str, inode: int, read: Callable[[], tuple[Candidate, ...]]) -> tuple[Candidate, ...]:
        """Return what a matched path is: from the cache while that is fresh, else from `read`."""
        now, known = self._clock(), self._paths.get(path)
        self._used.add(path)
        mtime_ns = _directory_mtime_ns(path) if known is None or known.mtime_ns else 0
        same = known is not None and (known.inode, known.mtime_ns) == (inode, mtime_ns)
        if same and known is not None and now < known.due:
            return known.candidates
        listed = read()
        if same and known is not None and known.candidates == listed:
            since = known.since
        elif known is None and self._is_first:
            newest_ns = max((candidate.mtime_ns for candidate in listed), default=0)
            since = now - max(0.0, self._wall() - newest_ns / 1e9)
        else:
            since = now
        self._paths[path] = _CachedPath(inode, mtime_ns, since, now + min(MOST_S, (now - since) / _SHARE), listed)
        return listed

    def forget(self, path: str) -> None:
        """Read a path at the next listing: it is known to have changed."""
        self._paths.pop(path, None)

    def end_listing(self) -> None:
        """Forget the paths that were not used since the last call: they are no longer there, or no longer matched."""
        self._paths = {path: cached for path, cached in self._paths.items() if path in self._used}
        self._listed = {path: listed for path, listed in self._listed.items() if path in self._used}
        self._used = set()
        self._is_first = False


def _directory_mtime_ns(path: str) -> int:
    try:
        st = os.stat(path)  # noqa: PTH116 -- strings throughout the package
    except OSError:
        return 0
    return st.st_mtime_ns if stat.S_ISDIR(st.st_mode) else 0
