"""Reads whole records of the kernel from /dev/kmsg.

Only facility 0 is read, because any process may write the others. A line in several parts is joined. The caller closes the device.

Each read gives one record; a buffer that is too small gives EINVAL, so the buffer has the size of the longest record. BrokenPipeError
(EPIPE) means that records were overwritten before they were read: the next read continues after them, and the number of the next record
shows how many are missing (Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Protocol

KMSG = "/dev/kmsg"
RECORD_BYTES = 8192  # the longest that the kernel gives (CONSOLE_EXT_LOG_MAX); a smaller buffer is EINVAL

_RECORD = re.compile(rb"(?P<prefix>\d+),(?P<number>\d+),(?P<us>\d+),(?P<flags>[^,;]*)[^;]*;(?P<text>[^\n]*)")
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")


class Kmsg(Protocol):
    """An open /dev/kmsg: each read gives one record, BlockingIOError where there is none, BrokenPipeError where some were overwritten."""

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        ...

    def read(self) -> bytes:
        """Return the next record."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Device:
    """/dev/kmsg, from its end on, or with all that is still in it. Raises OSError where it cannot be opened."""

    def __init__(self, path: str | None = None, *, whole: bool = False) -> None:
        """Open it. whole: from the oldest record that is kept."""
        self._fd = os.open(path or KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.lseek(self._fd, 0, os.SEEK_SET if whole else os.SEEK_END)
        except OSError:  # another kind of file in its place
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        """See Kmsg."""
        return self._fd

    def read(self) -> bytes:
        """See Kmsg."""
        return os.read(self._fd, RECORD_BYTES)

    def close(self) -> None:
        """See Kmsg."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One record of the kernel. number: its number since boot. uptime_s: when it was written. flags: `c` and `+` mark a part of a line."""

    text: str
    flags: str
    number: int
    uptime_s: float


def parse(data: bytes) -> KmsgRecord | None:
    """Return a record of the kernel; None for another facility, or for bytes that are not records.

    The lines after the first one are key=value pairs about the device. Nothing here needs them.
    """
    match = _RECORD.match(data)
    if match is None or int(match["prefix"]) >> 3:
        return None
    text = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), match["text"]).decode("utf-8", "replace")
    return KmsgRecord(text, match["flags"].decode(), int(match["number"]), int(match["us"]) / 1e6)


class Joiner:
    """Joins the records of a line that the kernel printed in parts."""

    def __init__(self) -> None:
        self._held: KmsgRecord | None = None

    def take(self, record: KmsgRecord) -> tuple[KmsgRecord, ...]:
        """Return the lines that are whole now."""
        held, self._held = self._held, None
        if held is not None and "+" in record.flags:
            self._held = replace(held, text=held.text + record.text)
            return ()
        whole = (held,) if held is not None else ()
        if "c" in record.flags:
            self._held = record
            return whole
        return (*whole, record) if record.text else whole

    def rest(self) -> tuple[KmsgRecord, ...]:
        """Return the record that waits for further parts."""
        held, self._held = self._held, None
        return (held,) if held is not None else ()
