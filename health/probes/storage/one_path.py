"""`python -P -S one_path.py PATH BYTES SECONDS`: reads one path and writes to it, in a process that ends itself after SECONDS.

The path need not be there yet: the nearest path that exists is read. Each row is printed to stdout as soon as it is known, because
a dead server holds up the next call for ever: {"stat": {...}}, {"space": {...}}, {"write": {...}}, each with `error` and `errno` where it
failed. The file that is written has no name (O_TMPFILE), or loses its name before anything is written: however this process ends, the
kernel removes the file. It imports no other module of this project.
"""

from __future__ import annotations

import binascii
import errno
import json
import os
import secrets
import signal
import stat
import sys
import time

_ARGUMENTS = 4
_BLOCK = 1 << 20
#: The answers of a file system that knows no file without a name.
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


def main() -> None:
    """Examine the path, and print each row."""
    if len(sys.argv) != _ARGUMENTS:
        sys.exit(f"usage: {sys.argv[0]} PATH BYTES SECONDS")
    path, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    _name_myself(path)
    signal.setitimer(signal.ITIMER_REAL, seconds)  # its default action ends us: nobody may be left to do it
    try:
        directory = _nearest(path)
        info = os.stat(directory)  # noqa: PTH116 -- a name; pathlib is slow to import
    except OSError as error:
        _write_row("stat", _failed(error))
        return
    _write_row("stat", {"directory": directory, "device": info.st_dev, "there": directory == path or not stat.S_ISDIR(info.st_mode)})
    if not stat.S_ISDIR(info.st_mode):
        directory = os.path.dirname(directory) or "."  # noqa: PTH120 -- as above
    try:
        room = os.statvfs(directory)
    except OSError as error:
        _write_row("space", _failed(error))
        return
    row: dict[str, object] = {"total": room.f_blocks * room.f_frsize, "free": room.f_bavail * room.f_frsize}
    row |= {"inodes": room.f_files, "inodes_free": room.f_favail, "read_only": bool(room.f_flag & os.ST_RDONLY)}
    _write_row("space", row)
    if size:
        _write_row("write", _written(directory, size))


def mark(path: str) -> str:
    """Return the name of a process for this path: the fifteen characters that the kernel keeps of a name."""
    return f"onepath{binascii.crc32(os.fsencode(path)):08x}"


def _name_myself(path: str) -> None:
    """Take a name by which a stuck process is found again without a read of its memory, which may block too."""
    try:
        fd = os.open("/proc/self/comm", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, mark(path).encode())
    except OSError:
        pass  # it has another name, then
    finally:
        os.close(fd)


def _nearest(path: str) -> str:
    """Return the path, or the nearest above it that is there. Raises OSError for any other reason than that it is not there."""
    while True:
        try:
            os.stat(path)  # noqa: PTH116 -- as above
        except (FileNotFoundError, NotADirectoryError):
            above = os.path.dirname(path)  # noqa: PTH120 -- as above
            if above in ("", path):
                raise
            path = above
        else:
            return path


def _written(directory: str, size: int) -> dict[str, object]:
    """Write, and wait until it is on the disk. Returns the seconds of opening, writing and waiting."""
    started = time.monotonic()
    try:
        fd = _nameless(directory)
        opened = time.monotonic()
        try:
            left = size
            block = secrets.token_bytes(min(size, _BLOCK))  # zeros are compressed away
            while left > 0:
                left -= os.write(fd, block[:left])
            wrote = time.monotonic()
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        return {**_failed(error), "seconds": round(time.monotonic() - started, 6)}
    now = time.monotonic()
    times = {"open_s": opened - started, "write_s": wrote - opened, "sync_s": now - wrote, "seconds": now - started}
    return {"bytes": size, **{name: round(value, 6) for name, value in times.items()}}


def _nameless(directory: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    name = os.path.join(directory, f".supervise-probe-{secrets.token_hex(8)}")  # noqa: PTH118 -- as above
    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)  # noqa: PTH108 -- as above
    return fd


def _failed(error: OSError) -> dict[str, object]:
    return {"error": error.strerror or str(error), "errno": errno.errorcode.get(error.errno or 0, "")}


def _write_row(name: str, value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({name: value}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
