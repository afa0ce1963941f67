"""Reading a file hurts nobody: bounded in memory and rate, never blocked, and a file that moves is not judged."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.io.page_cache import resident_share
from checkpointing.io.reader import FileReader, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from pathlib import Path


def test_a_fifo_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    os.mkfifo(path)
    verification = verify(str(path))
    assert verification.verdict is Verdict.FOREIGN
    with pytest.raises(OSError, match="No such device or address"):
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # nobody reads there


def test_directories_and_devices(tmp_path: Path) -> None:
    assert verify(str(tmp_path)).verdict is Verdict.UNVERIFIABLE
    assert verify("/dev/null").verdict is Verdict.FOREIGN
    assert verify(str(tmp_path / "absent.pt")).verdict is Verdict.UNKNOWN


def test_a_file_that_grows_while_it_is_read_is_being_written(sound_file: Path) -> None:
    asked = 0

    def append_meanwhile() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            with sound_file.open("ab") as file:
                file.write(b"more")
        return False

    assert verify(str(sound_file), reading=ReadOptions(interrupted=append_meanwhile)).verdict is Verdict.WRITING
    assert asked > 3


def test_a_file_that_is_replaced_while_it_is_read_is_being_written(sound_file: Path, sound: bytes) -> None:
    asked = 0

    def replace_meanwhile() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            other = sound_file.with_name("other")
            other.write_bytes(sound)
            other.replace(sound_file)
        return False

    assert verify(str(sound_file), reading=ReadOptions(interrupted=replace_meanwhile)).verdict is Verdict.WRITING


def test_interrupted_is_unknown(sound_file: Path) -> None:
    verification = verify(str(sound_file), reading=ReadOptions(interrupted=lambda: True))
    assert (verification.verdict, verification.step) == (Verdict.UNKNOWN, 120)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose rights it drops in a thread: run as root")
def test_a_file_that_may_not_be_read_is_unknown(sound_file: Path) -> None:
    verifications = []

    def as_nobody() -> None:
        # file system rights belong to the thread: setfsuid by its number, since setuid of the C library changes all threads
        import ctypes  # noqa: PLC0415 -- needed here alone

        ctypes.CDLL(None).setfsuid(65534)
        verifications.append(verify(str(sound_file)))

    sound_file.chmod(0o600)
    for directory in (sound_file.parent, sound_file.parent.parent, sound_file.parent.parent.parent):
        directory.chmod(0o755)
    thread = threading.Thread(target=as_nobody)
    thread.start()
    thread.join()
    assert (verifications[0].verdict, verifications[0].reason) == (Verdict.UNKNOWN, "it could not be read: Permission denied")


def test_reading_keeps_to_its_rate(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.zeros(3 << 20)}, path)  # 12 MiB
    now, waits = 0.0, []

    def wait(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    throttle = Throttle(1 << 20, burst_bytes=1 << 20, clock=lambda: now, wait=wait)
    assert verify(str(path), reading=ReadOptions(throttle)).verdict is Verdict.VERIFIED
    assert 11.0 <= sum(waits) <= 12.5
    assert max(waits) <= 1.1


def test_memory_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.zeros(8 << 20)}, path)  # 32 MiB
    with FileReader(str(path)) as source:
        assert max(len(piece) for piece in source.stream(0, source.size)) <= 1 << 20


def resident_mib(path: Path) -> float:
    fd = os.open(path, os.O_RDONLY)
    try:
        return resident_share(fd, 0, path.stat().st_size) * path.stat().st_size / (1 << 20)
    finally:
        os.close(fd)


def test_the_read_drops_only_the_pages_that_it_cached(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(10 << 20)}, path)  # 40 MiB
    with path.open("rb") as file:
        os.fsync(file.fileno())
    assert resident_mib(path) > 39
    assert verify(str(path), reading=ReadOptions(drop_cache=True)).verdict is Verdict.VERIFIED
    assert resident_mib(path) > 39, "a restart reads what a rank has just written"
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert resident_mib(path) < 1
    assert verify(str(path), reading=ReadOptions(drop_cache=True)).verdict is Verdict.VERIFIED
    assert resident_mib(path) <= 3, "the directory at its end, and what the kernel read ahead of it"
    assert verify(str(path)).verdict is Verdict.VERIFIED
    assert resident_mib(path) > 39
