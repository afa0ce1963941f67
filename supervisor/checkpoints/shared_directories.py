"""Finds out which nodes of a job see one directory of checkpoints, and which have one of their own.

Each node makes a file of a random name in each directory of its checkpoints, and reports them with its first row of the agreement
(node_agreement.py). With its second row it reports which of the others' files it found in its own directories, by name and content. Paths
prove nothing: `/scratch/ckpt` is another directory on each node.

A client of a network file system may not know yet what another one made. A name that nobody used before is in no client's cache, and
a directory in which this node has just made a file is read from the server. The search for missing files continues for LOOK_S.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable, leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LOOK_S: Final = 2.0
_PAUSE_S: Final = 0.1
_PREFIX: Final = ".supervise-shared-"
_TOKEN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class DirectoryMarker:
    """A file that a node made. directory: where its checkpoints are to be; name: of the file there, or in the parent that exists."""

    directory: str
    name: str
    content: str


class DirectoryMarkers:
    """The markers of one node, during one agreement. Nothing is raised: a directory in which no file can be made has none."""

    def __init__(self, directories: Callable[[], Sequence[str]]) -> None:
        """`directories` lists those of this node's checkpoints; they need not exist."""
        self._directories = directories
        self._made: list[str] = []

    @contextlib.contextmanager
    def placed(self) -> Iterator[tuple[DirectoryMarker, ...]]:
        """Make the markers, and remove them at the end."""
        try:
            yield tuple(marker for directory in self._directories() if (marker := self._make(directory)) is not None)
        finally:
            for path in self._made:
                with contextlib.suppress(OSError):
                    os.unlink(path)  # noqa: PTH108 (strings throughout)

    def seen(self, markers: Sequence[Sequence[DirectoryMarker]], node: int, limit_s: float) -> tuple[int, ...]:
        """Return the nodes all of whose markers are in directories of this node, number `node`. Look again for `limit_s`."""
        until = time.monotonic() + limit_s
        others = {number for number, own_markers in enumerate(markers) if own_markers and number != node}
        reached: set[int] = set()
        while True:
            here = {existing for directory in self._directories() if (existing := _existing(directory))}
            reached |= {number for number in others - reached if all(_is_here(marker, here) for marker in markers[number])}
            if reached == others or not here or time.monotonic() >= until:
                return tuple(sorted(reached))
            time.sleep(_PAUSE_S)

    def _make(self, directory: str) -> DirectoryMarker | None:
        place = _existing(directory)
        marker = DirectoryMarker(directory, _PREFIX + secrets.token_hex(_TOKEN_BYTES), secrets.token_hex(_TOKEN_BYTES))
        path = f"{place}/{marker.name}"
        try:
            if place is None:
                return None
            _sweep(place)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            self._made.append(path)
            with os.fdopen(fd, "wb") as file:
                file.write(marker.content.encode())
                file.flush()
                os.fsync(fd)
        except OSError:
            return None
        return marker


def groups(markers: Sequence[Sequence[DirectoryMarker]], seen: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the nodes in groups that see the same directories, () if that is not known of every node.

    markers, seen: of each node. Of two nodes it is enough that one finds the other's markers: one of them may not be allowed to write.
    """
    group = list(range(len(markers)))
    for node, others in enumerate(seen):
        for other in others:
            low, high = sorted((group[node], group[other]))
            group = [low if node == high else node for node in group]
    node_groups = tuple(tuple(node for node, of in enumerate(group) if of == first) for first in sorted(set(group)))
    return () if any(len(group) == 1 and not markers[group[0]] for group in node_groups) else node_groups


def _existing(directory: str) -> str | None:
    """Return a directory, or its nearest parent that exists: in that one a script will make it. None for the root."""
    while not os.path.isdir(directory):  # noqa: PTH112 (strings throughout)
        above = os.path.dirname(directory)  # noqa: PTH120 (as above)
        if above in {directory, ""}:
            return None
        directory = above
    return directory if directory != "/" else None


def _is_here(marker: DirectoryMarker, directories: set[str]) -> bool:
    for directory in directories:
        with contextlib.suppress(OSError):
            if durable.read(f"{directory}/{marker.name}", 2 * len(marker.content)) == marker.content.encode():
                return True
    return False


def _sweep(directory: str) -> None:
    """Remove the markers of supervisors that were killed."""
    with os.scandir(directory) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in left:
        with contextlib.suppress(OSError):
            if leftovers.is_old(path, "", leftovers.now_s(directory)):
                os.unlink(path)  # noqa: PTH108 (as above)
