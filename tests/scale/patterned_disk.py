"""A disk for files of true size: a terabyte costs no room, and each byte that our code reads is there.

A file is sparse, so its size, inode and times are real, and so is what was written to it (a header). Where it has a hole, the disk gives
a pattern: 32 MiB of finite numbers, over and over, by the offset in the file. Never zeros: a hole would be read as what a crash left, and
some code skips it. The disk replaces `os.preadv` at the very edge of checkpointing/io/reader.py, the one place at which checkpoints are
read. So the digest of each part is known without reading a terabyte, and a manifest of one is true.

A path in `hung` gives no byte, as a disk of 0 B/s or a dead NFS server, until `answer` is called.
"""

from __future__ import annotations

import array
import json
import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import reader
from checkpointing.manifest import digest
from checkpointing.manifest.documents import About, File, Manifest
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

    from checkpointing.io.read_watch import ReadWatch

TIB: Final = 1 << 40
PERIOD_BYTES: Final = digest.PART_BYTES
_PAGE: Final = 4096
_FLOATS: Final = 1 << 16


def _pattern() -> bytes:
    numbers = random.Random(32)  # noqa: S311 -- no secret
    block = array.array("f", (numbers.uniform(-1.0, 1.0) for _ in range(_FLOATS))).tobytes()
    return block * (PERIOD_BYTES // len(block))


PATTERN: Final = _pattern()


class PatternedDisk:
    """The disk, while a test runs. n_read: bytes that were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give the pattern from now on."""
        self.n_read = self.n_hanging = 0
        self.hung: set[Path] = set()
        self.changed: dict[Path, int] = {}  # at this offset the byte is another one than the pattern's
        self._answers = threading.Event()
        self._real = os.preadv
        self.gives_to(monkeypatch, reader)

    def gives_to(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Give the pattern to another module that reads with os.preadv."""
        monkeypatch.setattr(module, "os", _OsOf(self))

    def answer(self) -> None:
        """Give the bytes of what hangs."""
        self.hung.clear()
        self._answers.set()

    def preadv(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        """Read as os.preadv does, with the pattern where the file has a hole."""
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path in self.hung:
            self.n_hanging += 1
            self._answers.wait()
        (buffer,) = buffers
        n_bytes = min(len(buffer), os.fstat(fd).st_size - offset)
        written_from = _seek(fd, offset, os.SEEK_DATA)
        if written_from >= offset + n_bytes:
            _fill(buffer[:n_bytes], offset)
        else:
            n_bytes = self._real(fd, [buffer[:n_bytes]], offset)
            hole = max(_seek(fd, offset, os.SEEK_HOLE), offset)
            if hole < offset + n_bytes:
                _fill(buffer[hole - offset : n_bytes], hole)
        at = self.changed.get(path, -1) - offset
        if 0 <= at < n_bytes:
            buffer[at] ^= 1
        self.n_read += n_bytes
        return n_bytes

    def passes_time_for(self, watch: ReadWatch) -> None:
        """Let the time of a watch go by while a read hangs that it has not left, and only then: a busy machine is no slow disk."""
        t = 0.0

        def wait(done: threading.Event, look_s: float) -> bool:
            nonlocal t
            if self.n_hanging > len(watch._left):  # noqa: SLF001
                t += look_s
                return done.wait(0.0005)
            return done.wait(0.01)

        watch._wait, watch._clock = wait, lambda: t  # noqa: SLF001


class _OsOf:
    """The module `os`, with the disk's preadv."""

    def __init__(self, disk: PatternedDisk) -> None:
        self.preadv = disk.preadv

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- the module's own
        return getattr(os, name)


def _seek(fd: int, offset: int, whence: int) -> int:
    try:
        return os.lseek(fd, offset, whence)
    except OSError:  # ENXIO: nothing but a hole up to the end
        return os.fstat(fd).st_size


def _fill(buffer: memoryview, offset: int) -> None:
    done = 0
    while done < len(buffer):
        begin = (offset + done) % PERIOD_BYTES
        piece = memoryview(PATTERN)[begin : begin + len(buffer) - done]
        buffer[done : done + len(piece)] = piece
        done += len(piece)


def save(path: Path, n_bytes: int, step: int, *, tensors: int = 64) -> Path:
    """Write a safetensors file of this size, with so many tensors of float32 that fill it. `n_bytes`: a multiple of the page."""
    begin = _PAGE * 4
    rows: dict[str, object] = {"__metadata__": {"step": str(step), "format": "pt"}}
    each, at = (n_bytes - begin) // tensors // _PAGE * _PAGE, 0
    for number in range(tensors):
        end = n_bytes - begin if number == tensors - 1 else at + each
        rows[f"layers.{number}.weight"] = {"dtype": "F32", "shape": [(end - at) // 4], "data_offsets": [at, end]}
        at = end
    header = json.dumps(rows).encode().ljust(begin - 8)
    assert len(header) == begin - 8
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(n_bytes)
    return path


def manifest_of(path: Path, step: int) -> Manifest:
    """Return the manifest that a verification of the whole file would have recorded: its digest follows from the pattern."""
    n_bytes, identity = path.stat().st_size, identity_of(str(path))
    assert identity is not None
    with path.open("rb") as file:
        head = file.read(_PAGE * 4)
    first = digest.of_bytes(head + PATTERN[len(head) : min(PERIOD_BYTES, n_bytes)])
    whole, rest = divmod(n_bytes, PERIOD_BYTES)
    parts = (first,) + (digest.of_bytes(PATTERN),) * (whole - 1) + ((digest.of_bytes(PATTERN[:rest]),) if rest else ())
    file = File(path.name, n_bytes, digest.combine(parts, n_bytes), parts)
    return Manifest(
        name=path.name,
        is_tree=False,
        layout="safetensors",
        files=(file,),
        path=str(path),
        identity=identity,
        host=os.uname().nodename,
        step=step,
        within=None,
        about=About(),
        made_unix_s=1,
        saved_unix_ns=identity.mtime_ns,
    )
