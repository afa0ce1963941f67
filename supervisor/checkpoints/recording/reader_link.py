"""Runs the reader process: starts it, gives it the reads and uploads, starts it again after its death, and gives it time at the end.

Nothing that it does reaches the job. After its death a checkpoint that it had not read to the end is given to the next one; what waits for
an upload as well. The process is a session of its own, so that a terminal's Ctrl-C does not reach it, and it ends when its stdin does.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from checkpointing.io.reader import Interrupted
from checkpointing.reader.messages import (
    CancelRead,
    CheckpointRead,
    FinishUploads,
    JobBusy,
    LiftLimits,
    MirrorAlert,
    ReadCheckpoint,
    ReaderDied,
    encode,
    event_of,
)
from supervisor.guardian import ownership
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from checkpointing.reader.messages import Configure, ReaderCommand, ReaderEvent

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
_STOP_S: Final = 5.0
_LOOK_S: Final = 0.2  # between two looks whether the job saves
_REFUSED: Final = 78
_LASTED_S: Final = 60.0  # a process that lived so long is not in a loop of deaths
_MOST_DEATHS: Final = 3  # a checkpoint at which the process died so often is not given to it again


class ReadFailed(Exception):  # noqa: N818 -- a fact about the read
    """A checkpoint could not be read, for a reason outside of its formats."""


@dataclass(slots=True)
class _Read:
    order: ReadCheckpoint
    is_given: bool = False  # to the process that runs
    n_deaths: int = 0
    answer: CheckpointRead | None = None
    is_answered: threading.Event = field(default_factory=threading.Event)


class ReaderLink:
    """One reader process after another. It starts with the first checkpoint, or by `start`.

    `on_event` gets each event but the answers to reads, in a thread of its own; `on_failure` gets an exception of it, and the next event
    comes all the same. `is_busy`: whether the job saves or loads now. `unsent`: what a new process is to be given, beside the reads.
    """

    def __init__(  # noqa: PLR0913 -- its command, and its listeners
        self,
        configuration: Configure,
        environ: Mapping[str, str],
        on_event: Callable[[ReaderEvent], None],
        on_failure: Callable[[Exception], None],
        *,
        is_busy: Callable[[], bool] = lambda: False,
        unsent: Callable[[], list[ReaderCommand]] = list,
    ) -> None:
        """Nothing runs yet."""
        self.configuration = configuration
        self._environ, self._on_event, self._on_failure = environ, on_event, on_failure
        self._is_busy, self._unsent = is_busy, unsent
        self._queue: queue.SimpleQueue[ReaderCommand | None] = queue.SimpleQueue()
        self._changed = threading.Lock()
        self._numbers = itertools.count(1)
        self._reads: dict[int, _Read] = {}  # that are not answered yet
        self._was_busy = False  # the state that the process knows
        self._is_lifted = False
        self._last_error_line = ""
        self._closing = threading.Event()
        self._hurries = threading.Event()  # no training waits any more: a process that died is started again soon
        self._until = 0.0  # when it is closing: how long it may send the rest (monotonic seconds)
        self._given_up = threading.Event()
        self.process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        """Start the process, soon, unless it was started before."""
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()

    def put(self, command: ReaderCommand) -> None:
        """Give the process a command; return at once."""
        self._queue.put(command)

    def read(self, order: ReadCheckpoint, stopped: threading.Event) -> CheckpointRead:
        """Have a checkpoint read once. Raises Interrupted once `stopped` is set or the link is closed; ReadFailed."""
        read = _Read(msgspec.structs.replace(order, id=next(self._numbers)))
        with self._changed:
            self._reads[read.order.id] = read
        self.start()
        self.put(read.order)
        while not read.is_answered.wait(_LOOK_S):
            if stopped.is_set() or self.has_finished():
                with self._changed:
                    self._reads.pop(read.order.id, None)
                self.put(CancelRead(read.order.id))
                raise Interrupted
            if (is_busy := self._is_busy()) != self._was_busy:
                self._was_busy = is_busy
                self.put(JobBusy(is_busy))
        if read.answer is None:
            why = f": {self._last_error_line}" if self._last_error_line else ""
            raise ReadFailed(f"the process that reads it ended {_MOST_DEATHS} times{why}")
        if read.answer.failure:
            raise ReadFailed(read.answer.failure)
        return read.answer

    def lift(self) -> None:
        """Have it read as fast as the disk gives from now on, and wait for nobody."""
        if not self._is_lifted:
            self._is_lifted = True
            self._hurries.set()
            self.put(LiftLimits())

    def finish(self, deadline_s: float) -> None:
        """Let it send all, in so many seconds. Nothing new may be given to it."""
        self._until = time.monotonic() + deadline_s
        self._closing.set()
        self._hurries.set()
        self.put(FinishUploads(deadline_s))

    def has_finished(self) -> bool:
        """Return whether it has ended, or was never started."""
        return not self._thread.is_alive()

    def close(self, deadline_s: float) -> None:
        """Give it so many seconds to send all, then end it."""
        if not self._closing.is_set():
            self.finish(deadline_s)
        if self._thread.ident is not None:
            self._thread.join(deadline_s + _STOP_S)
        self._given_up.set()
        process = self.process
        if process is not None and process.poll() is None:
            process.kill()

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while not (self._closing.is_set() and time.monotonic() >= self._until):
            began = time.monotonic()
            try:
                code = self._serve()
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                code = None
                self._pass_on(MirrorAlert("process", "", f"the process that reads checkpoints could not be started: {error}", ""))
            closing = self._closing.is_set()
            if time.monotonic() - began > _LASTED_S:
                wait_s = FIRST_WAIT_S
            if code == _REFUSED or (closing and code == 0):
                return  # its configuration is wrong, and would be the next time; or its time to send is over
            if code is not None:
                self._pass_on(ReaderDied(code, wait_s, self._last_error_line))
                self._give_up_reads()
            # a process that died as the run ends, or a while before, is started again soon: something is still to be read or sent
            hurries = self._hurries.is_set()
            (self._given_up if hurries else self._hurries).wait(FIRST_WAIT_S if hurries else wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _give_up_reads(self) -> None:
        """Count the death against the file in reading, and give up one that kills it again and again."""
        with self._changed:
            for read in [read for read in self._reads.values() if read.is_given]:
                read.n_deaths += 1
                if read.n_deaths >= _MOST_DEATHS:
                    del self._reads[read.order.id]
                    read.is_answered.set()

    def _serve(self) -> int:
        """Run one process to its end; return its exit code. Raises OSError."""

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "checkpointing.reader.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environ,
                text=True,
                encoding="utf-8",
                errors="backslashreplace",
                start_new_session=True,
            )

        with ownership.started(start) as process:
            assert process.stdin is not None  # noqa: S101 (says it to the type checker)
            self.process = process
            listener = threading.Thread(target=self._listen, args=(process,), name="reader-out", daemon=True)
            listener.start()
            self._last_error_line = ""
            errors = threading.Thread(target=self._listen_to_errors, args=(process,), name="reader-err", daemon=True)
            errors.start()
            commands = self._first_commands()
            with contextlib.suppress(BrokenPipeError):
                while commands or (commands := [self._queue.get()]):
                    command = commands.pop(0)
                    if command is None:  # its stdout ended
                        break
                    process.stdin.write(encode(command))
                    process.stdin.flush()
            with contextlib.suppress(OSError):
                process.stdin.close()
            listener.join()
            errors.join()
            return process.wait()

    def _first_commands(self) -> list[ReaderCommand | None]:
        """Return what a new process is given: all that the one before left undone."""
        with self._changed:
            while not self._queue.empty():
                self._queue.get()
            reads = list(self._reads.values())
            for read in reads:
                read.is_given = True
            commands: list[ReaderCommand | None] = [self.configuration, *self._unsent()]
            if self._is_lifted:
                commands.append(LiftLimits())
            if self._was_busy:
                commands.append(JobBusy(is_busy=True))
            commands += [read.order for read in reads]
            if self._closing.is_set():
                commands.append(FinishUploads(max(0.0, self._until - time.monotonic())))
            return commands

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 (says it to the type checker)
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                event = event_of(line)
                if isinstance(event, CheckpointRead):
                    self._answered(event)
                else:
                    self._pass_on(event)
        self._queue.put(None)

    def _pass_on(self, event: ReaderEvent) -> None:
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001 -- without this thread nothing is read or sent any more, and nobody knows
            self._on_failure(error)

    def _answered(self, answer: CheckpointRead) -> None:
        with self._changed:
            read = self._reads.pop(answer.id, None)
        if read is not None:
            read.answer = answer
            read.is_answered.set()

    def _listen_to_errors(self, process: subprocess.Popen[str]) -> None:
        """Keep the last line: the exception of a process that ended by one."""
        assert process.stderr is not None  # noqa: S101 (says it to the type checker)
        for line in process.stderr:
            self._last_error_line = clean(line) or self._last_error_line
