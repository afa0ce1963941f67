"""A checkpoint is in memory before its ranks ask for it."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

import pytest

from supervisor.run.read_ahead import CHUNK_BYTES, read_ahead
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)


def in_memory(file: Path) -> int:
    """How many of a file's pages are in memory."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE) as mapped:
        pages = -(-len(mapped) // PAGE)
        vector = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapped)
        failed = LIBC.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), vector)
        del first
        assert not failed, ctypes.get_errno()
        return sum(one & 1 for one in vector)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Give a checkpoint of two files that are on the disk only."""
    directory = tmp_path / "step-40"
    (directory / "shards").mkdir(parents=True)
    for name in ("model.pt", "shards/0.pt"):
        with (directory / name).open("wb") as file:
            file.write(os.urandom(9 * CHUNK_BYTES + 17))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if in_memory(directory / name) > 1:
            pytest.skip("this file system keeps its files in memory")
    return directory


def never() -> bool:
    return False


@pytest.mark.process
def test_every_page_of_a_directory_is_read(checkpoint: Path) -> None:
    size = 9 * CHUNK_BYTES + 17
    assert read_ahead(str(checkpoint), never, lambda: 1 << 40) == 2 * size
    for name in ("model.pt", "shards/0.pt"):
        wait_for(lambda name=name: in_memory(checkpoint / name) == -(-size // PAGE), f"all of {name} in memory")


@pytest.mark.process
def test_what_is_large_for_the_memory_is_left_alone_and_the_end_of_the_attempt_ends_it(checkpoint: Path) -> None:
    assert read_ahead(str(checkpoint), never, lambda: 16 * CHUNK_BYTES) == 0
    answers = iter([False, False, True])
    assert read_ahead(str(checkpoint), lambda: next(answers), lambda: 1 << 40) == 2 * CHUNK_BYTES
    assert in_memory(checkpoint / "shards" / "0.pt") <= 1
