"""Reads and uploads the checkpoints of a node, as a process: `python -P -m checkpointing.reader.process`, with the lines of messages.py.

It runs beside the training and must not slow it: lowest priority, caps, pages dropped from the cache, and memory that does not grow with
the size of a checkpoint. The program that runs it decides about each read and its time. It ends at the end of stdin, so it does not
outlive its supervisor; after a kill at any byte the next process gets the unanswered ones.

Mirrors that cannot be used are refused with an alert; checkpoints are read all the same.

Exit code 0 after `finish` or the end of stdin; 78 if the first line is not a configuration.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from typing import TYPE_CHECKING, Final, assert_never

import psutil

from checkpointing.io.reader import UNLIMITED, Interrupted
from checkpointing.model import CheckpointingError
from checkpointing.reader import messages
from checkpointing.reader.messages import (
    CancelRead,
    CheckpointRead,
    Configure,
    FinishUploads,
    JobBusy,
    LiftLimits,
    MirrorAlert,
    ReadCheckpoint,
    Ready,
    SendCheckpoint,
)
from checkpointing.reader.one_pass import OnePass
from checkpointing.reader.uploads import Uploads

if TYPE_CHECKING:
    from typing import TextIO

    from checkpointing.reader.messages import ReaderEvent

_NICE: Final = 19
_MIB: Final = 1 << 20
_CONFIG_EXIT: Final = 78


class ReaderProcess:
    """Owns the pass, the uploads and the output. One per process."""

    def __init__(self, out: TextIO, configuration: Configure) -> None:
        """Open the mirrors."""
        self._out = out
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._is_busy = False
        cap = configuration.read_mib_s * _MIB if configuration.read_mib_s else UNLIMITED
        self._orders: queue.SimpleQueue[tuple[ReadCheckpoint, threading.Event]] = queue.SimpleQueue()
        self._reads: dict[int, threading.Event] = {}  # of reads that are asked for, what ends each
        self._uploads: Uploads | None = None
        if configuration.mirrors:
            try:
                self._uploads = Uploads(configuration, self.emit, self._stop)
            except (CheckpointingError, OSError, TypeError) as error:
                hint = error.hint if isinstance(error, CheckpointingError) else "check the mirror's address"
                self.emit(MirrorAlert("refused", "", f"cannot mirror: {error}", hint))
        self._pass = OnePass(configuration.job, cap, lambda: self._is_busy, self._uploads)

    def emit(self, event: ReaderEvent) -> None:
        """Write an event. A closed pipe is ignored: stdin ends at the same time."""
        with self._writing, contextlib.suppress(BrokenPipeError):
            self._out.write(messages.encode(event))
            self._out.flush()

    def serve(self, lines: TextIO) -> None:
        """Execute the commands until the lines end."""
        uploads = self._uploads
        self.emit(Ready(() if uploads is None else uploads.urls))
        threading.Thread(target=self._read_all, name="pass", daemon=True).start()
        if uploads is not None:
            uploads.start()
        for line in lines:
            try:
                command = messages.command_of(line)
            except ValueError as error:
                message = f"cannot follow a command: {line.strip()[:200]}: {error}"
                self.emit(MirrorAlert("refused", "", message, "report this: the supervisor wrote a wrong command"))
                continue
            if isinstance(command, FinishUploads):
                if uploads is not None:
                    uploads.finish(command.deadline_s)
                break
            self._obey(command)
        self._stop.set()
        for read in tuple(self._reads.values()):
            read.set()
        if uploads is not None:
            uploads.join()

    def _obey(self, command: ReadCheckpoint | CancelRead | JobBusy | LiftLimits | SendCheckpoint) -> None:
        """Follow a command."""
        match command:
            case ReadCheckpoint():
                if self._uploads is not None:
                    self._uploads.drop_passed(command.key)  # a key without a request by now gets none
                self._reads[command.id] = threading.Event()
                self._orders.put((command, self._reads[command.id]))
            case CancelRead():
                if (read := self._reads.get(command.id)) is not None:
                    read.set()
            case JobBusy():
                self._is_busy = command.is_busy
            case LiftLimits():
                self._pass.lift()
            case SendCheckpoint() if self._uploads is not None:
                self._uploads.send(command)
            case SendCheckpoint():
                self.emit(MirrorAlert("refused", "", f"cannot mirror: {command.path}: no mirror can be used", "", command.path))
            case _:
                assert_never(command)

    def _read_all(self) -> None:
        while True:
            order, stopped = self._orders.get()
            try:
                answer = self._pass.read(order, stopped)
            except Interrupted:
                continue
            except Exception as error:  # noqa: BLE001 -- of a format or a library: the next checkpoint is read all the same
                answer = CheckpointRead(order.id, failure=failure_text(error))
            finally:
                self._reads.pop(order.id, None)
            self.emit(answer)


def failure_text(error: Exception) -> str:
    """Return why a read failed. A package that is missing comes with the command: the code was updated, and its packages were not."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"the package {error.name} is not installed: install supervise again, from a checkout with `pip install -e .`"
    return f"{type(error).__name__}: {error}"


def main() -> int:
    """Run the process; return its exit code."""
    os.nice(_NICE)
    with contextlib.suppress(psutil.Error, OSError, ValueError):  # where the kernel or the container lets nobody choose it
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of a library must not mix with the events
    try:
        process = ReaderProcess(out, messages.configuration_of(sys.stdin.readline()))
    except ValueError as error:
        out.write(messages.encode(MirrorAlert("refused", "", f"no configuration: {error}", "report this: the first line must be one")))
        out.flush()
        return _CONFIG_EXIT
    process.serve(sys.stdin)
    out.flush()
    os._exit(0)  # a thread may still wait for a mirror that does not answer


if __name__ == "__main__":
    sys.exit(main())
