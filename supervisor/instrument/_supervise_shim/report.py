"""Writes an uncaught exception to `error-*.json`, and the stacks of all threads to `stacks-*.txt` on a signal.

An error file is written whole or not at all. The user's own setup (faulthandler, an exception hook, a SIGQUIT handler) stays as it is.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import os
import sys
from _thread import get_ident
from time import monotonic_ns, time

from . import layout, torchhooks
from .claim import keeps, release
from .layout import quiet
from .values import HeldValues

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter
    from .load_log import LoadLog
    from .programs import ProgramRecognition

MESSAGE_CHARS = 2048
TRACEBACK_CHARS = 16384
SIGQUIT = 3
#: Exceptions of a launcher where a process that it started has failed.
OF_LAUNCHERS = ("CalledProcessError", "ChildFailedError", "ProcessExitedException", "ProcessRaisedException")
LOW_FDS = 100  # our descriptor is kept above, so that the script gets the numbers that it would get without us


class ExceptionReporter:
    """Holds the stacks file's descriptor, and the exception hook from `catch_exceptions` on."""

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter, programs: ProgramRecognition, load_log: LoadLog) -> None:
        self._identity = identity
        self._beat = beat
        self._programs = programs
        self._load_log = load_log
        self._main_thread = get_ident()
        self._next_hook = sys.excepthook
        self._reported = self._caught = False
        self._stacks_fd = -1
        self._owns_fatal = False
        self._signals: list[int] = []

    @quiet
    def catch_signals(self) -> None:
        """Dump all threads on the supervisor's signal, and on a fatal one unless the user enabled faulthandler."""
        low = os.open(self._identity.path("stacks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._stacks_fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, LOW_FDS)
        finally:
            os.close(low)
        if not faulthandler.is_enabled():
            faulthandler.enable(self._stacks_fd, all_threads=True)
            self._owns_fatal = True
        signums = [layout.STACKS_SIGNAL]
        if self._identity.mode == "rank" and _at_default(SIGQUIT):
            signums.append(SIGQUIT)
        for signum in signums:
            faulthandler.register(signum, self._stacks_fd, all_threads=True, chain=False)
            self._signals.append(signum)
        HeldValues(self._write_values).catch()

    def _write_values(self, line: bytes) -> None:
        os.write(self._stacks_fd, line)

    @quiet
    def follow_claim(self, unclaimed: str) -> None:
        """Give the stacks file the rank's name."""
        if self._stacks_fd >= 0:
            os.rename(unclaimed, self._identity.path("stacks"))  # noqa: PTH104 - pathlib costs 5 ms of start-up

    @quiet
    def catch_exceptions(self) -> None:
        """Set the exception hook, once; after every sitecustomize, because some replace it without calling the one before."""
        if self._caught:
            return
        self._caught = True
        self._next_hook = sys.excepthook
        sys.excepthook = self._on_exception
        atexit.register(self._at_exit)

    @quiet
    def report(self, value: BaseException) -> None:
        """Report an exception that no hook will see, because its caller catches it and ends the process."""
        self._report(value, value.__traceback__)

    @quiet
    def disable(self) -> None:
        """In a forked child: give everything back, but for its stacks, which it writes to the file of the rank that forked it."""
        for signum in self._signals:
            if signum != layout.STACKS_SIGNAL:
                faulthandler.unregister(signum)
        if self._owns_fatal:
            faulthandler.disable()
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._next_hook

    def _on_exception(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        self._report(value, trace)
        self._next_hook(kind, value, trace)

    @quiet
    def _at_exit(self) -> None:
        """Report an exception that a hook in place of the shim's kept; remove the empty stacks file of a process that was not a rank."""
        if os.getpid() != self._identity.pid:
            return
        value = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if value is not None:
            self._report(value, value.__traceback__)
        elif self._identity.hands_on:
            self._step_aside()
        self._beat.ended(monotonic_ns())
        if not self._identity.claimed and self._stacks_fd >= 0 and not os.fstat(self._stacks_fd).st_size:
            os.unlink(self._identity.path("stacks"))  # noqa: PTH108 - see above

    @quiet
    def _report(self, value: BaseException, trace: TracebackType | None) -> None:
        """Write the error file. A KeyboardInterrupt writes none: someone stopped the process."""
        process_identity = self._identity
        if self._reported or not process_identity.enabled or os.getpid() != process_identity.pid or get_ident() != self._main_thread:
            return
        if isinstance(value, KeyboardInterrupt):
            return
        self._reported = True
        if process_identity.hands_on and type(value).__name__ in OF_LAUNCHERS:
            self._step_aside()
        keeps(process_identity, self._beat)
        self._beat.ended(monotonic_ns())  # before an import of our own
        self._beat.sample_memory(monotonic_ns(), at_once=True)  # its memory when it failed
        import json  # noqa: PLC0415 - 3 ms at every start, for what most processes never need

        phase = torchhooks.died_in(trace)
        if phase is not None:
            self._beat.enter(phase)
        if phase == layout.LOAD:
            self._load_log.write_fatal()
        kind = type(value)
        record = {
            "v": 1,
            "pid": process_identity.pid,
            "start_ticks": process_identity.start_ticks,
            "rank": process_identity.rank if process_identity.claimed else None,
            "local_rank": process_identity.local_rank if process_identity.claimed else None,
            "exc_type": f"{kind.__module__}.{kind.__qualname__}",
            "message": _message(value),
            "traceback": _traceback(value, trace) or "",
            "peer": peer_of(value) or "",
            "phase": self._beat.phase,
            "steps": self._beat.steps,
            "step": self._beat.step,
            "optimizer": self._beat.optimizer_made,
            "ran": self._beat.ran,
            "t_ns": monotonic_ns(),
            "wall": time(),
        }
        path = process_identity.path("error")
        half = path + ".half"
        fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123 - see above
            json.dump(record, file)
        os.rename(half, path)  # noqa: PTH104 - see above
        self._programs.at_exception(trace)

    @quiet
    def _step_aside(self) -> None:
        """Leave the slot where a process that this one started has failed before it trained: that one was the program."""
        if any(name.startswith(f"error-{layout.UNCLAIMED}-") for name in os.listdir(self._identity.directory)):  # noqa: PTH208 - see above
            before = self._identity.path("stacks")
            release(self._identity, self._beat)
            self.follow_claim(before)


def _at_default(signum: int) -> bool:
    """Return whether a signal is neither caught nor ignored in this process."""
    fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(fd, 8192).splitlines()
    finally:
        os.close(fd)
    masks = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigIgn:", b"SigCgt:"))]
    return not any(mask >> (signum - 1) & 1 for mask in masks)


def _message(value: BaseException) -> str:
    try:
        return str(value)[:MESSAGE_CHARS]
    except Exception:  # noqa: BLE001 - the user's __str__
        return "(its message could not be made)"


@quiet
def _traceback(value: BaseException, trace: TracebackType | None) -> str:
    """Format the end of the traceback. Each piece is cut by itself: a message of megabytes must not push the frames out."""
    import traceback  # noqa: PLC0415 - as json above

    pieces = traceback.format_exception(type(value), value, trace)
    return "".join(_cut(piece, TRACEBACK_CHARS // 4) for piece in pieces)[-TRACEBACK_CHARS:]


@quiet
def peer_of(value: BaseException) -> str:
    """Return HOST:PORT of the connection that an exception, or one that led to it, is about; "" where none is known. No path, no query."""
    known: set[int] = set()
    at: BaseException | None = value
    while at is not None and id(at) not in known:
        known.add(id(at))
        owners = (at, getattr(at, "response", None), getattr(at, "request", None), getattr(at, "request_info", None))
        for owner in owners:
            url = getattr(owner, "url", None)
            if url is not None and (peer := _of_url(str(url))):
                return peer
        if peer := _of_frames(at.__traceback__):
            return peer
        at = at.__cause__ or at.__context__
    return ""


def _of_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    host = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    if not separator or not host:
        return ""
    has_port = host.rpartition(":")[2].isdigit() and not host.endswith("]")
    return host if has_port else f"{host}:{443 if scheme == 'https' else 80}"


def _of_frames(trace: TracebackType | None) -> str:
    """Return where the innermost call of socket.create_connection, urllib3's or http.client's went: their exceptions do not tell."""
    place = ""
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "create_connection" and name in {"socket", "urllib3.util.connection"}:
            address = frame.f_locals.get("address")
            place = f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) > 1 else place
        elif name == "http.client":
            connection = frame.f_locals.get("self")
            host, port = getattr(connection, "host", None), getattr(connection, "port", None)
            place = f"{host}:{port}" if isinstance(host, str) and isinstance(port, int) else place
        elif name == "urllib.request" and isinstance(host := frame.f_locals.get("host"), str) and ":" in host:
            place = host
    return place


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2] + "\n[...]\n" + text[-(most // 2) :]
