"""Keeps the alerts that wait to be sent, one file each, so that a crash or a dead endpoint loses none. delivery.py sends and retries them.

A file is written beside its name, synced and renamed, so it is whole or not there. Sent alerts move to `sent/`, alerts refused for good to
`dead/` with the reason. The newest of both are kept, because their ids show that an alert is a repeat. A move is a rename, which needs no
free space. Of alerts that were dropped, because too many waited, the number is kept: `dropped` has one byte for each.

Every call may raise OSError and may hang as long as the disk does; outbox_thread.py calls them. File name: `<20 digits>-<event_id>.json`;
the digits are nanoseconds that never go back within a directory, and give the order.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from typing import TYPE_CHECKING

from checkpointing.io import staging
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Alerts kept unsent (delivery.py drops the oldest of more), and of those sent and refused. An attempt makes at most three.
CAP = 256
#: A file of ours is under 2 KiB; anything larger is not ours.
FILE_LIMIT_BYTES = 65536

#: The threads that the receiver of this outbox knows (threads.py).
THREADS = "threads.json"
DROPPED = "dropped"

_NAME = re.compile(r"(\d{20})-([0-9a-f]{32})\.json")


class KeptAlert(Struct, frozen=True):
    """An alert as its file holds it. t: when it was put there (Unix seconds). reason: of one that was refused."""

    event_id: str
    body: bytes
    title: str = ""
    reason: str = ""
    t: float = 0.0


class Outbox:
    """The files of one job's alerts. `cap` bounds each of sent and dead; who puts alerts here bounds those that wait."""

    def __init__(self, directory: Path, cap: int = CAP) -> None:
        """Touch nothing yet: `load` comes first."""
        self.directory = directory
        self._cap = cap
        self._last_ns = 0
        self._names: dict[str, str] = {}  # event_id -> file name, of those waiting
        self._done: dict[str, None] = {}  # ids of those sent or refused, oldest first

    def load(self) -> list[KeptAlert]:
        """Give each alert that an earlier process left unsent, oldest first; what cannot be read goes to `dead/`."""
        found: list[KeptAlert] = []
        for directory in (self.directory, self._sent, self._dead):
            directory.mkdir(parents=True, mode=0o700, exist_ok=True)
            staging.sweep(str(directory))
        for name, event_id in _entries(self.directory):
            self._last_ns = max(self._last_ns, int(name[:20]))
            kept = _read(self.directory / name)
            if kept is None:
                (self.directory / name).rename(self._dead / name)
            else:
                self._names[event_id] = name
                found.append(kept)
        self._done.update((event_id, None) for directory in (self._sent, self._dead) for _, event_id in _entries(directory))
        return found

    def knows(self, event_id: str) -> bool:
        """Tell whether this alert waits here, was sent, or was refused."""
        return event_id in self._done or event_id in self._names

    def put(self, event_id: str, body: bytes, title: str = "") -> None:
        """Make the alert durable."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        name = f"{self._last_ns:020d}-{event_id}.json"
        self._write(self.directory, name, {"event_id": event_id, "body": body.decode("ascii"), "title": title})
        self._names[event_id] = name

    def drop(self, event_ids: Sequence[str], number: int) -> None:
        """Remove the alerts that there is no room for, and record the number of all that were dropped, with or without a file."""
        try:
            descriptor = os.open(self.directory / DROPPED, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(b"." * number)
        finally:
            for event_id in event_ids:
                if name := self._names.pop(event_id, None):
                    (self.directory / name).unlink(missing_ok=True)

    def sent(self, event_id: str) -> None:
        """Take the alert out: its receiver has it."""
        self._remember(event_id)
        name = self._names.pop(event_id, None)
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                (self.directory / name).rename(self._sent / name)
            self._trim(self._sent)

    def refuse(self, event_id: str, body: bytes, reason: str, title: str = "") -> None:
        """Take the alert out: its receiver will never have it. It is kept under `dead/`, with the reason if there is room for one."""
        self._remember(event_id)
        name = self._names.pop(event_id, None) or f"{time.time_ns():020d}-{event_id}.json"
        try:
            self._write(self._dead, name, {"event_id": event_id, "body": body.decode("ascii"), "title": title, "reason": reason})
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                (self.directory / name).rename(self._dead / name)
            raise
        (self.directory / name).unlink(missing_ok=True)
        self._trim(self._dead)

    def save_threads(self, content: bytes) -> None:
        """Replace the threads that the receiver knows."""
        staging.write(str(self.directory / THREADS), content)

    @property
    def _sent(self) -> Path:
        return self.directory / "sent"

    @property
    def _dead(self) -> Path:
        return self.directory / "dead"

    def _write(self, directory: Path, name: str, record: dict[str, str]) -> None:
        staging.write(str(directory / name), json.dumps(record, separators=(",", ":")).encode("ascii"))

    def _remember(self, event_id: str) -> None:
        self._done[event_id] = None
        if len(self._done) > 4 * self._cap:
            del self._done[next(iter(self._done))]

    def _trim(self, directory: Path) -> None:
        for name, _ in list(_entries(directory))[: -self._cap]:
            (directory / name).unlink(missing_ok=True)


def _entries(directory: Path) -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir(directory)):  # noqa: PTH208 - names are what is matched
        if match := _NAME.fullmatch(name):
            yield name, match[2]


def read_threads(directory: Path) -> bytes:
    """Return what `save_threads` kept, empty where there is nothing that can be read."""
    try:
        return (directory / THREADS).read_bytes()
    except OSError:
        return b""


def outboxes(state: Path) -> list[tuple[str, Path]]:
    """Return the name and the outbox of each sink that a job has had, in its directory of kept files."""
    try:
        return sorted((place.name, place) for place in (state / "alerts").iterdir() if place.is_dir())
    except OSError:
        return []


def read_alerts(directory: Path, state: str = "") -> list[KeptAlert]:
    """Return the alerts that wait ("") or those in `sent` or `dead`, oldest first, while another process may use the outbox."""
    place = directory / state
    try:
        names = [name for name, _ in _entries(place)]
    except OSError:
        return []
    return [kept for name in names if (kept := _read(place / name)) is not None]


def count_dropped(directory: Path) -> tuple[int, float]:
    """Return how many alerts were ever dropped, and when the last one was (Unix seconds)."""
    try:
        found = (directory / DROPPED).stat()
    except OSError:
        return 0, 0.0
    return found.st_size, found.st_mtime


def move_to_sent(directory: Path, event_id: str) -> None:
    """Move a refused alert to those that were sent: its receiver has it now. Raises OSError."""
    for name, found in list(_entries(directory / "dead")):
        if found == event_id:
            (directory / "dead" / name).rename(directory / "sent" / name)


def _read(path: Path) -> KeptAlert | None:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # a FIFO would hold the thread for ever
            return None
        with path.open("rb") as file:
            text = file.read(FILE_LIMIT_BYTES + 1)
        if len(text) > FILE_LIMIT_BYTES:
            return None
        row = json.loads(text)
        title, reason = str(row.get("title", "")), str(row.get("reason", ""))
        return KeptAlert(path.name[21:53], str(row["body"]).encode("ascii"), title, reason, int(path.name[:20]) / 1e9)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
