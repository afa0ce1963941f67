"""Has the kernel read the checkpoint of the next attempt into memory, from the failure on until its ranks read it themselves.

The background verification gives its pages back to the kernel, so that a restart would read the file from the disk after the imports. From
the first sign of a failure the newest verified checkpoint is read, while ranks are ended and the decision is made; a decision for another
one ends that. Nobody waits for it: the disk serves others first, and one that does not answer holds up nothing but this thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.io.page_cache import resident_share
from supervisor.core.values import Struct, replace
from supervisor.observe.host.memory_room import KEEP_FREE_PART, rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from supervisor.run.threads import Threads

#: One request. The kernel cuts a longer one to its read-ahead of a file, which is no less than this by default.
CHUNK_BYTES = 128 * 1024
#: So much of a file is asked about at once, whether it is in memory.
BLOCK_BYTES = 64 << 20
#: The part of the free memory that may be taken: the loading rank needs as much again.
PART = 0.5
#: Names of a rank's own file: torch's distributed checkpoints, DeepSpeed's ZeRO without tensor parallelism, the Trainer's random numbers.
_RANK_OF_FILE = re.compile(r"__(\d+)_\d+\.distcp|(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_00_\w+\.pt|rng_state_(\d+)\.pth")


class OwnRanks(Struct, frozen=True):
    """The global ranks of this node, and whether the job has others: their files are then left to their nodes."""

    ranks: frozenset[int] = frozenset()
    has_others: bool = False


class ReadAhead:
    """Reads one checkpoint at a time. Its methods are called on the loop's thread, and await nothing.

    is_disk_used: whether a rank of this node saves or loads; from any thread. has_others: the job has ranks on other nodes.
    """

    def __init__(self, threads: Threads, is_disk_used: Callable[[], bool], *, has_others: bool) -> None:
        self._threads, self._is_disk_used = threads, is_disk_used
        self._path, self._own = "", OwnRanks(has_others=has_others)
        self._ranks_run = threading.Event()
        self._ranks_run.set()

    def attempt_failed(self, ranks: Collection[int], expected: str) -> None:
        """Begin with the checkpoint that the next attempt will probably resume from; "" where none is known. ranks: this node's."""
        self._path, self._ranks_run, self._own = "", threading.Event(), replace(self._own, ranks=frozenset(ranks))
        self.decided(expected)

    def decided(self, path: str) -> None:
        """Read this one and no other; continue where it is the one. "" ends the reading."""
        if path == self._path:
            return
        self._path, ranks_run, own = path, self._ranks_run, self._own

        def is_interrupted() -> bool:
            return path != self._path or ranks_run is not self._ranks_run or (ranks_run.is_set() and self._is_disk_used())

        def work() -> None:
            lower_priority()
            with contextlib.suppress(OSError):  # the ranks meet it, and report it
                read_ahead(path, is_interrupted, own)

        if path:
            self._threads.start("read-ahead", work, awaited=False)

    def ranks_begin(self) -> None:
        """Note that the ranks of the next attempt are started: once one of them reads, the disk is theirs."""
        self._ranks_run.set()


def read_ahead(path: str, is_interrupted: Callable[[], bool], own: OwnRanks, room: Callable[[], int] | None = None) -> int:
    """Request the parts of a checkpoint's files that are not in memory, as far as memory permits; return how many bytes. Raises OSError.

    Nothing is copied. Ends early once `is_interrupted` returns True. room: bytes of memory that may be taken.
    """
    left = most = (free_room if room is None else room)()
    for file, size in files_of(Path(path), own):
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            for begin in range(0, size, BLOCK_BYTES):
                n_bytes = min(BLOCK_BYTES, size - begin)
                if resident_share(fd, begin, n_bytes) == 1.0:
                    continue
                for offset in range(begin, begin + n_bytes, CHUNK_BYTES):
                    chunk_bytes = min(CHUNK_BYTES, begin + n_bytes - offset)
                    if chunk_bytes > left or is_interrupted():
                        return most - left
                    os.posix_fadvise(fd, offset, chunk_bytes, os.POSIX_FADV_WILLNEED)
                    left -= chunk_bytes
        finally:
            os.close(fd)
    return most - left


def files_of(path: Path, own: OwnRanks) -> list[tuple[Path, int]]:
    """Return the files of a checkpoint with their sizes, in bytes: first those of this node's ranks, then what any rank may load.

    Of several nodes, a file that is another node's by its name is left out, and a file of no node is read where rank 0 is: it may load for
    all, and a thousand nodes would ask a file server for what they do not need.
    """
    rows: list[tuple[int, Path, int]] = []
    for file, size in _files(path.resolve()):
        match = _RANK_OF_FILE.fullmatch(file.name)
        rank = None if match is None else int(next(filter(None, match.groups())))
        if not own.has_others or (0 if rank is None else rank) in own.ranks:
            rows.append((0 if rank in own.ranks else 1, file, size))
    return [(file, size) for _, file, size in sorted(rows)]


def _files(path: Path) -> Iterator[tuple[Path, int]]:
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file() and not file.is_symlink():
            yield file, file.stat().st_size


def free_room() -> int:
    """Return how many bytes may be taken of the machine's memory, and of each control group that limits us; 0 where nothing is known."""
    return max(0, min((int(PART * (room.free - KEEP_FREE_PART * room.total)) for room in rooms()), default=0))


def lower_priority() -> None:
    """Give this thread the lowest priority for the disk that is not `idle`: a rank may come to await its pages.

    Not for processors: while the ranks import, it would seldom run, and might hold the interpreter's lock meanwhile.
    """
    import psutil  # noqa: PLC0415  25 ms that a start does not need

    with contextlib.suppress(OSError, psutil.Error):
        psutil.Process(threading.get_native_id()).ionice(psutil.IOPRIO_CLASS_BE, 7)
