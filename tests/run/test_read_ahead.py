"""A checkpoint is in memory before its ranks ask for it."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from supervisor.run.read_ahead import CHUNK_BYTES, OwnRanks, ReadAhead, files_of, free_room, lower_priority, read_ahead
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
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
        return sum(page & 1 for page in vector)


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
            pytest.skip("this file system keeps its files in memory: set TMPDIR to a directory on a disk")
    return directory


def never() -> bool:
    return False


SIZE = 9 * CHUNK_BYTES + 17


def pages(size: int) -> int:
    return -(-size // PAGE)


def in_files(directory: Path) -> dict[str, int]:
    return {file.name: in_memory(file) for file in directory.rglob("*") if file.is_file()}


@pytest.mark.process
def test_every_page_of_a_directory_is_read_once(checkpoint: Path) -> None:
    assert read_ahead(str(checkpoint), never, OwnRanks(), room=lambda: 1 << 40) == 2 * SIZE
    for name in ("model.pt", "shards/0.pt"):
        wait_for(lambda name=name: in_memory(checkpoint / name) == pages(SIZE), f"all of {name} in memory")
    assert read_ahead(str(checkpoint), never, OwnRanks(), room=lambda: 1 << 40) == 0, "what is in memory is not read again"


@pytest.mark.process
def test_the_read_ahead_stays_within_memory_and_ends_with_the_end(checkpoint: Path) -> None:
    assert read_ahead(str(checkpoint), never, OwnRanks(), room=lambda: 3 * CHUNK_BYTES + 1) == 3 * CHUNK_BYTES
    wait_for(lambda: in_memory(checkpoint / "model.pt") >= pages(3 * CHUNK_BYTES), "the beginning in memory")
    assert in_memory(checkpoint / "shards" / "0.pt") <= 1
    answers = iter([False, False, True])
    assert read_ahead(str(checkpoint / "shards"), lambda: next(answers), OwnRanks(), room=lambda: 1 << 40) == 2 * CHUNK_BYTES
    assert 0 <= free_room() < os.sysconf("SC_PHYS_PAGES") * PAGE


def shard_names(directory: Path, own: OwnRanks) -> list[str]:
    return [file.name for file, _ in files_of(directory, own)]


def test_a_rank_s_own_shard_is_read_first_and_of_several_nodes_no_other_node_s(tmp_path: Path) -> None:
    zero = "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
    names = [
        "__0_0.distcp",
        "__1_0.distcp",
        "__1_1.distcp",
        ".metadata",
        zero,
        "rng_state_3.pth",
    ]
    for name in (*names, "zero_pp_rank_0_mp_rank_01_optim_states.pt"):  # with tensor parallelism the name is no global rank
        (tmp_path / name).write_bytes(b"x")
    assert shard_names(tmp_path, OwnRanks(frozenset({1, 3})))[:3] == ["__1_0.distcp", "__1_1.distcp", "rng_state_3.pth"]
    assert len(shard_names(tmp_path, OwnRanks(frozenset({1, 3})))) == 7
    assert shard_names(tmp_path, OwnRanks(frozenset({2}), has_others=True)) == [zero]
    of_rank_0 = shard_names(tmp_path, OwnRanks(frozenset({0, 1}), has_others=True))
    assert of_rank_0[:3] == ["__0_0.distcp", "__1_0.distcp", "__1_1.distcp"]
    assert set(of_rank_0[3:]) == {".metadata", "zero_pp_rank_0_mp_rank_01_optim_states.pt"}, "rank 0 may load for all"


class HeldThreads:
    """Starts no thread: a test runs what was started when it likes."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def start(self, name: str, work: Callable[[], None], *, awaited: bool = True) -> None:
        """Keep the work."""
        assert (name, awaited) == ("read-ahead", False), "a restart never waits for it"
        self.work.append(work)


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)  # it lowers its own priority
    thread.start()
    thread.join()


@pytest.mark.process
@pytest.mark.parametrize("change", ["same", "another", "nothing", "ranks read", "ranks only start"])
def test_a_newer_decision_or_the_ranks_own_reading_ends_the_read_ahead(checkpoint: Path, change: str) -> None:
    threads, reads = HeldThreads(), change == "ranks read"
    ahead = ReadAhead(threads, lambda: reads, has_others=False)  # type: ignore[arg-type]  a fake edge
    ahead.attempt_failed([0], str(checkpoint))
    decided = {"another": str(checkpoint / "shards"), "nothing": ""}.get(change, str(checkpoint))
    ahead.decided(decided)
    if change.startswith("ranks"):
        ahead.ranks_begin()
    assert len(threads.work) == (2 if change == "another" else 1)
    for work in threads.work:
        in_thread(work)
    wanted = {"same": 2, "another": 1, "nothing": 0, "ranks read": 0, "ranks only start": 2}[change]
    wait_for(lambda: sum(count == pages(SIZE) for count in in_files(checkpoint).values()) == wanted, f"{wanted} files in memory")
    if change == "another":
        assert in_memory(checkpoint / "model.pt") <= 1


@pytest.mark.process
def test_the_next_failure_reads_the_same_checkpoint_again(checkpoint: Path) -> None:
    threads = HeldThreads()
    ahead = ReadAhead(threads, lambda: False, has_others=False)  # type: ignore[arg-type]  a fake edge
    for _ in range(2):
        ahead.attempt_failed([0], str(checkpoint))
        ahead.decided(str(checkpoint))
        ahead.ranks_begin()
    assert len(threads.work) == 2
    in_thread(threads.work[0])
    assert max(in_files(checkpoint).values()) <= 1, "the thread of the failure before gives up"


@pytest.mark.process
def test_the_disk_serves_others_first_and_no_other_thread_is_slower() -> None:
    before, seen = psutil.Process().ionice(), {}

    def work() -> None:
        lower_priority()
        thread = threading.get_native_id()
        seen["thread"] = (psutil.Process(thread).ionice().value, os.getpriority(os.PRIO_PROCESS, thread))

    in_thread(work)
    assert seen["thread"] == (7, os.getpriority(os.PRIO_PROCESS, 0)), "a slow thread could hold the interpreter's lock"
    assert psutil.Process().ionice() == before
