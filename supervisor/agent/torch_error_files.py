"""Reads what the ranks of an ended attempt left in torch's files: the exceptions that `@record` wrote, and the ends of their logs.

The directory is the user's and may be on a file system that hangs, so a file that is not read within READ_DEADLINE_S is left out. A file
that is half-written, huge or of another form is skipped.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from supervisor.agent.messages import LogTail, TorchError

if TYPE_CHECKING:
    from collections.abc import Sequence


READ_DEADLINE_S = 1.0
MOST_BYTES = 1024 * 1024  # of an error file; what `@record` writes is an exception's text and its traceback
MESSAGE_CHARACTERS = 2 * 1024
TRACEBACK_CHARACTERS = 16 * 1024
LOG_TAIL_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class TorchErrorFiles:
    """The exceptions and the ends of the logs."""

    errors: tuple[TorchError, ...] = ()
    tails: tuple[LogTail, ...] = ()


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
    errors: list[TorchError] = []
    tails: list[LogTail] = []

    def read_all() -> None:
        for rank in ranks:
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                if rank.error_file:
                    errors.append(TorchError(rank.rank, *_recorded(rank.error_file)))
        for rank in ranks:
            for name, path in rank.logs:
                with suppress(OSError):
                    if text := _tail(path):
                        tails.append(LogTail(rank.rank, name, text))

    reader = threading.Thread(target=read_all, name="torch-error-files", daemon=True)
    reader.start()
    reader.join(READ_DEADLINE_S)
    return TorchErrorFiles(tuple(errors), tuple(tails))  # the reader may still be at it


def _recorded(path: str) -> tuple[str, str]:
    """Return the message and the traceback, as torch's ErrorHandler.record_exception wrote them (torch.distributed.elastic)."""
    with Path(path).open("rb") as file:
        recorded = json.loads(file.read(MOST_BYTES))["message"]
    message, more = recorded["message"], recorded["extraInfo"]
    return str(message)[:MESSAGE_CHARACTERS], str(more["py_callstack"])[-TRACEBACK_CHARACTERS:]


def _tail(path: str) -> str:
    with Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        return file.read(LOG_TAIL_BYTES).decode(errors="replace")
