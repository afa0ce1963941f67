"""Reads what the ranks of an ended attempt left in torch's files: the exceptions that `@record` wrote, and the ends of their logs.

The directory is the user's and may be on a file system that hangs, so what is not read within READ_DEADLINE_S is left out. A file that is
half-written, huge or of another form is skipped.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


READ_DEADLINE_S = 1.0
MOST_BYTES = 1024 * 1024  # of an error file; what `@record` writes is an exception's text and its traceback
MESSAGE_CHARACTERS = 2 * 1024
TRACEBACK_CHARACTERS = 16 * 1024
LOG_TAIL_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class TorchErrorFiles:
    """errors: `rank`, `message` ("Type: text"), `traceback` (its end) of each. tails: `rank`, `name` of the stream, `text`."""

    errors: list[dict[str, object]] = field(default_factory=list)
    tails: list[dict[str, object]] = field(default_factory=list)


class RankFiles(Protocol):
    """A rank, and the files that torch gave it: see MonitoredRank."""

    @property
    def rank(self) -> int:
        """Its global rank."""

    @property
    def error_file(self) -> str:
        """Where `@record` writes an exception, "" for nowhere."""

    @property
    def logs(self) -> tuple[tuple[str, str], ...]:
        """The streams that torch redirected to files: (stream name, path)."""


def read(ranks: Sequence[RankFiles]) -> TorchErrorFiles:
    """Read them, in a thread of its own."""
    found = TorchErrorFiles()

    def look() -> None:
        for rank in ranks:
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                if rank.error_file:
                    found.errors.append({"rank": rank.rank, **_recorded(rank.error_file)})
        for rank in ranks:
            for name, path in rank.logs:
                with suppress(OSError):
                    if text := _tail(path):
                        found.tails.append({"rank": rank.rank, "name": name, "text": text})

    reader = threading.Thread(target=look, name="torch-error-files", daemon=True)
    reader.start()
    reader.join(READ_DEADLINE_S)
    return TorchErrorFiles(list(found.errors), list(found.tails))  # the reader may still be at it


def _recorded(path: str) -> dict[str, object]:
    """Return an exception as torch's ErrorHandler.record_exception wrote it (torch/distributed/elastic/multiprocessing/errors)."""
    with Path(path).open("rb") as file:
        said = json.loads(file.read(MOST_BYTES))["message"]
    message, more = said["message"], said["extraInfo"]
    return {"message": str(message)[:MESSAGE_CHARACTERS], "traceback": str(more["py_callstack"])[-TRACEBACK_CHARACTERS:]}


def _tail(path: str) -> str:
    with Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        return file.read(LOG_TAIL_BYTES).decode(errors="replace")
