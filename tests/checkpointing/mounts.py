"""Real file systems of a chosen kind and size, for a test's time. Needs root, and what makes the file system; else the test is skipped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = Path(__file__).parents[1] / "support" / "file_server.py"


def _ran(*argv: object) -> bool:
    return subprocess.run([str(argument) for argument in argv], check=False, capture_output=True).returncode == 0  # noqa: S603 -- the test's own


@contextlib.contextmanager
def tmpfs(place: Path, n_bytes: int, inodes: int = 0) -> Iterator[Path]:
    """Mount a file system in memory that is full after `n_bytes`."""
    place.mkdir()
    if os.geteuid() != 0 or not _ran("mount", "-t", "tmpfs", "-o", f"size={n_bytes},nr_inodes={inodes}", "none", place):
        pytest.skip("needs the right to mount: run as root (in a container: --privileged)")
    try:
        yield place
    finally:
        _ran("umount", place)


@contextlib.contextmanager
def dead(place: Path) -> Iterator[None]:
    """Mount over `place` what answers nothing, as NFS whose server is away: a FUSE file system that nobody serves."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("needs /dev/fuse, readable and writable (in a container: --device /dev/fuse)")
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"dead", os.fsencode(place), b"fuse", 0, options) != 0:
        os.close(fd)
        pytest.skip("needs the right to mount: run as root (in a container: --privileged)")
    try:
        yield
    finally:
        os.close(fd)  # who waits for it gets an error
        libc.umount2(os.fsencode(place), 2)  # MNT_DETACH


@contextlib.contextmanager
def served(place: Path, behind: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Mount over `place` what a process serves from `behind` (tests/support/file_server.py): slow, without locks, or hung while stopped."""
    behind.mkdir(mode=0o700, exist_ok=True)
    place.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-I", "-S", str(SERVER), str(place), str(behind), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603 -- the test's own
        try:
            assert server.stdout is not None
            if server.stdout.readline() != "ready\n":
                server.kill()
                assert server.stderr is not None
                pytest.skip(f"needs root and /dev/fuse: {server.stderr.read().strip().rpartition(chr(10))[2]}")
            yield server
        finally:
            server.kill()  # stopped or not: who waits for it gets an error
            _ran("umount", "-l", place)


def hang(server: subprocess.Popen[str], place: Path) -> None:
    """Have what `served` serves at `place` hang, while the server has taken no request: no signal ends the wait for one that it took."""
    threads = list(Path(f"/proc/{server.pid}/task").iterdir())
    connections = place.with_name("connections")
    connections.mkdir()
    if not _ran("mount", "-t", "fusectl", "none", connections):
        pytest.skip("needs fusectl, which counts a file system's requests: run as root on a kernel with CONFIG_FUSE_FS")
    waiting = connections / str(os.minor(place.stat().st_dev)) / "waiting"

    def is_idle() -> bool:
        server.send_signal(signal.SIGSTOP)
        wait_for(lambda: all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads), "it to stop", 10)
        if waiting.read_text() == "0\n":
            return True
        server.send_signal(signal.SIGCONT)
        return False

    try:
        wait_for(is_idle, "a moment without a request", 30)
    finally:
        _ran("umount", connections)


class FreezableFs:
    """A file system at `place`. While it is frozen, who writes there sleeps uninterruptibly: KILL does not end it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def freeze(self) -> None:
        """Have it answer no write from now on."""
        if not _ran("fsfreeze", "-f", self.place):
            pytest.skip("needs fsfreeze (Debian: apt-get install util-linux), and the right to freeze: run as root")

    def thaw(self) -> None:
        """Let all writes continue."""
        _ran("fsfreeze", "-u", self.place)


@contextlib.contextmanager
def freezable(place: Path) -> Iterator[FreezableFs]:
    """Mount a file system that can be frozen."""
    place.mkdir()
    image = place.with_suffix(".image")
    image.touch()
    os.truncate(image, 16 << 20)
    if (
        os.geteuid() != 0
        or shutil.which("mkfs.ext4") is None
        or not _ran("mkfs.ext4", "-q", image)
        or not _ran("mount", "-o", "loop", image, place)
    ):
        pytest.skip("needs mkfs.ext4 (Debian: apt-get install e2fsprogs), and the right to mount a file: run as root with loop devices")
    file_system = FreezableFs(place)
    try:
        yield file_system
    finally:
        file_system.thaw()
        _ran("umount", "-l", place)


@contextlib.contextmanager
def btrfs(place: Path, n_bytes: int = 160 << 20) -> Iterator[Path]:
    """Mount a file system whose files can share blocks."""
    place.mkdir()
    image = place.with_suffix(".image")
    image.touch()
    os.truncate(image, n_bytes)
    if (
        os.geteuid() != 0
        or shutil.which("mkfs.btrfs") is None
        or not _ran("mkfs.btrfs", "-q", image)
        or not _ran("mount", "-o", "loop", image, place)
    ):
        pytest.skip("needs mkfs.btrfs (Debian: apt-get install btrfs-progs), and the right to mount: run as root with loop devices")
    try:
        yield place
    finally:
        _ran("umount", place)


@contextlib.contextmanager
def ext4(place: Path, n_bytes: int = 32 << 20) -> Iterator[Path]:
    """Mount a file system that `fsfreeze` can freeze: who writes to it then waits in state D. It is thawed at the end."""
    place.mkdir()
    image = place.with_suffix(".image")
    image.touch()
    os.truncate(image, n_bytes)
    if os.geteuid() != 0 or not _ran("mkfs.ext4", "-q", image) or not _ran("mount", "-o", "loop", image, place):
        pytest.skip("needs mkfs.ext4 (Debian: apt-get install e2fsprogs), and the right to mount: run as root with loop devices")
    try:
        yield place
    finally:
        _ran("fsfreeze", "-u", place)
        _ran("umount", "-l", place)


def freeze(place: Path) -> None:
    """Freeze what `ext4` mounted."""
    if not _ran("fsfreeze", "-f", place):
        pytest.skip("needs fsfreeze (Debian: apt-get install util-linux)")


def thaw(place: Path) -> None:
    """Thaw it."""
    assert _ran("fsfreeze", "-u", place)
