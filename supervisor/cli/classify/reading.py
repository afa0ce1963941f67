"""Reads a log as UTF-8, block by block, whatever encoding and kind of file it has.

It waits for a pipe that nobody writes into, and a line on stderr says so. A compressed file is refused.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Larger ones leave the processor's caches, and the allocator's arena: then each costs page faults.
BLOCK_BYTES = 256 << 10
#: The first bytes of files that are not logs as they are: gzip, zstd, xz, bzip2, zip (torch's checkpoints too), ELF.
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04", b"\x7fELF")
#: How long a pipe may be silent before a line on stderr says so.
SILENT_S = 2.0

#: UTF-32's begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: In UTF-16 without a mark, mostly ASCII text has NUL at every other byte, and next to none between.
_SAMPLE_BYTES = 4096
_LEAST_SAMPLE_BYTES = 16
_MOSTLY, _HARDLY = 0.6, 0.02
#: Bytes that no text holds: control characters except those that move and colour (\a \b \t \n \v \f \r ESC).
_CONTROL = bytes(code for code in range(1, 32) if code not in b"\a\b\t\n\v\f\r\x1b") + b"\x7f"
_NOT_CONTROL = bytes(code for code in range(256) if code not in _CONTROL)
#: So much of each block is judged. A ninth of random bytes are control characters.
_JUDGED_BYTES = 16 << 10
_MOST_CONTROL = 0.05


@dataclass(slots=True)
class Texture:
    """The kind of a log's bytes. NULs count for nothing where there is text beside them: a sparse file has holes of them."""

    judged: int = 0
    nul: int = 0
    control: int = 0

    def take(self, block: bytes) -> None:
        """Judge a block by its beginning."""
        sample = block[:_JUDGED_BYTES]
        self.judged += len(sample)
        self.nul += sample.count(0)
        self.control += len(sample.translate(None, _NOT_CONTROL))

    @property
    def problem(self) -> str:
        """Why it is not text; "" where it is."""
        if self.judged and self.nul == self.judged:
            return "it holds nothing but NULs"
        return "it is not text" if self.control > _MOST_CONTROL * (self.judged - self.nul) else ""


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[int]:
    """Return the descriptor of a file, or of standard input. Raises OSError and SuperviseError."""
    if path is None:
        if sys.stdin is None:
            raise SuperviseError(
                "cannot read -: standard input is closed",
                hint="Give it a log, as in `supervise classify - < slurm-1234.out`.",
                exit_code=ExitCode.USAGE,
            )
        _await(0, "standard input")
        yield 0
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer would not even open
    try:
        _await(fd, str(path))
        os.set_blocking(fd, True)
        yield fd
    finally:
        os.close(fd)


def _await(fd: int, name: str) -> None:
    """Wait until there is something to read, or the end."""
    waiting = select.poll()
    try:
        waiting.register(fd, select.POLLIN)
        if not waiting.poll(SILENT_S * 1000):
            stdio.say(f"waiting for lines of {name}")
            waiting.poll()
    except PermissionError:  # poll knows nothing of it: it is not a pipe
        return


def blocks(fd: int, name: str) -> Iterator[bytes]:
    """Read to the end; `name` is for the error. Raises OSError, and SuperviseError where it is packed."""
    block = os.read(fd, BLOCK_BYTES)
    if block.startswith(PACKED):
        raise SuperviseError(
            f"cannot read {name}: it is packed, or a program", hint="Unpack it first, as in `zcat LOG.gz | supervise classify -`."
        )
    while 0 < len(block) < _LEAST_SAMPLE_BYTES and (more := os.read(fd, BLOCK_BYTES)):  # a pipe gives what there is
        block += more
    encoding = _encoding(block)
    if encoding is None:
        while block:
            yield block
            block = os.read(fd, BLOCK_BYTES)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while block:
        yield decoder.decode(block).encode("utf-8", "replace")
        block = os.read(fd, BLOCK_BYTES)
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _encoding(block: bytes) -> str | None:
    """Return the name of an encoding that is not made of ASCII's bytes, by the beginning of a log; None: it is as it should be."""
    if marked := next((name for mark, name in _MARKS if block.startswith(mark)), None):
        return marked
    sample = block[: min(len(block), _SAMPLE_BYTES) & ~1]
    if len(sample) < _LEAST_SAMPLE_BYTES:
        return None
    even, odd = (sample[start::2].count(0) / (len(sample) // 2) for start in (0, 1))
    if odd >= _MOSTLY and even <= _HARDLY:
        return "utf-16-le"
    return "utf-16-be" if even >= _MOSTLY and odd <= _HARDLY else None
