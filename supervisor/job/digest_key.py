"""The key of the digests that stand for secrets: one for each job, made by its first run, readable by its user alone, never in a bundle.

Without a key, anybody could try a dictionary on a digest of 32 bits. With one key, a job's journal, its log and its bundle show equal
values as equal, on all nodes that share the state directory.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from supervisor.classify import redact

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "digest.key"
_BYTES: Final = 32


def use(job_directory: Path, *, makes: bool = False) -> None:
    """Make this process's digests with the job's key. Where there is none and it cannot be made, the process keeps a key of its own."""
    path = job_directory / NAME
    key = _read(path)
    if not key and makes:
        with suppress(OSError):  # also where another node made it meanwhile
            _make(path)
        key = _read(path)
    if key:
        redact.use_key(key)


def _read(path: Path) -> bytes:
    """Return the key, b"" if there is none, or others could have read it or put it there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        status = os.fstat(fd)
        is_private = stat.S_ISREG(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
        key = os.read(fd, _BYTES) if is_private and status.st_size == _BYTES else b""
    except OSError:
        key = b""
    finally:
        os.close(fd)
    return key if len(key) == _BYTES else b""


def _make(path: Path) -> None:
    """Write a key under another name, and link it: nobody reads a part of it, and of two nodes one makes it. It locks nothing."""
    temporary = path.with_name(f".{NAME}.{secrets.token_hex(6)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_bytes(_BYTES))
        path.hardlink_to(temporary)
    finally:
        os.close(fd)
        temporary.unlink()
