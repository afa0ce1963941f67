"""The supervisor's side of the guardian: starts it, sends it requests, passes its events on.

Requests come from any thread and never block. `on_event` and `on_died` are called in the reader thread and must return at once. Only the
link binds the guardian to us: however this process dies, the link ends, and the guardian ends the job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.io import typed
from supervisor.errors import ExitCode, SuperviseError
from supervisor.guardian import ownership, protocol
from supervisor.guardian.libc import become_subreaper
from supervisor.guardian.messages import EVENTS, GuardianEvent, GuardianRequest, SpawnRequest, StreamTail

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

OnEvent = Callable[[GuardianEvent], None]

LOG_BYTES = 64 * 1024 * 1024  # per file; five are kept per rank
HELLO_WITHIN_S = 10.0
EXIT_WITHIN_S = 1.0  # its link ends with the process itself, save for the microseconds between
NO_HELLO = f"it sent no hello within {HELLO_WITHIN_S:g} s"
START_TRIES = 3  # a kill from outside, for example by the OOM killer, may come before its hello
TERM = int(signal.SIGTERM)
PROGRAM = Path(__file__).parent.parent / "guardian"
#: Python itself ignores these two from its first moment; the earlier setting can no longer be read.
_PYTHONS_OWN = frozenset({signal.SIGPIPE, signal.SIGXFSZ})


def ignored_signals() -> frozenset[int]:
    """Read which signals were ignored when we were started (nohup). To be asked before any handler is installed.

    psutil knows no signal masks.
    """
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as file:
        mask = next((int(line.split()[1], 16) for line in file if line.startswith("SigIgn:")), 0)
    return frozenset(number for number in range(1, signal.NSIG) if mask >> (number - 1) & 1) - _PYTHONS_OWN


class GuardianClient:
    """A running guardian. `pid` names it."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket, on_event: OnEvent, on_died: Callable[[], None]) -> None:
        self.pid = process.pid
        self._process = process
        self._link = link
        self._on_event = on_event
        self._on_died = on_died
        self._tails: dict[int, list[StreamTail]] = {}
        self._hello = threading.Event()
        self._ended = threading.Event()
        self._started = False  # its end is to be reported
        self._dismissed = False
        self._backlog: deque[tuple[GuardianRequest, list[int]]] = deque()
        self._sending = threading.Condition()
        threading.Thread(target=self._read, name="guardian-events", daemon=True).start()
        threading.Thread(target=self._write, name="guardian-requests", daemon=True).start()

    @classmethod
    def start(
        cls,
        on_event: OnEvent,
        on_died: Callable[[], None],
        *,
        ignored: Collection[int] = (),
        log_bytes: int = LOG_BYTES,
    ) -> GuardianClient:
        """Start it and wait for its hello: not on the loop's thread, because a disk may hold up its program.

        Raises SuperviseError, and RuntimeError where no thread can be had.
        ignored: what `ignored_signals` answered. log_bytes: size of one log file; five are kept of each.
        """
        _become_subreaper()
        ownership.collect_zombies()
        options = ["--ignored", ",".join(str(int(number)) for number in sorted(ignored))]
        options += ["--log-bytes", str(log_bytes)]
        tries = 0
        while True:
            tries += 1
            process, link = _launch(options)
            try:
                guardian = cls(process, link, on_event, on_died)
            except RuntimeError:
                _end(process, link)
                raise
            if guardian._await_hello():
                return guardian
            code, signum = guardian.exit_status()
            guardian._process.kill()
            guardian._process.wait()
            if signum is None:
                raise _no_start(NO_HELLO if code is None else f"it ended at once, with exit code {code}")
            if tries == START_TRIES:
                raise _no_start(f"signal {signum} ended it at once, {tries} times")

    def _await_hello(self) -> bool:
        """Wait for its hello. True: it lives, and from now on its end is reported."""
        self._hello.wait(HELLO_WITHIN_S)
        with self._sending:
            self._started = self._hello.is_set() and not self._ended.is_set()
            return self._started

    def spawn(  # noqa: PLR0913 - the facts of a command
        self,
        *,
        attempt: int,
        kind: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        log_dir: str,
        show: bool = True,
        fds: Sequence[int] = (),
    ) -> None:
        """Start the command of an attempt; answered by spawned or spawn_failed.

        kind: plain, or agent: then fds[0] is the agent's end of its link, and "{link_fd}" and "{output_fd}" in argv become its
        descriptors. The caller keeps (and closes) its fds. env: the complete environment. show: pass its output through.
        """
        request: SpawnRequest = {
            "do": "spawn",
            "attempt": attempt,
            "kind": kind,
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "log_dir": log_dir,
            "show": show,
        }
        self._request(request, fds)

    def prepare_standby(self, *, attempt: int, argv: Sequence[str], env: Mapping[str, str], cwd: str, record: str) -> None:
        """Start a standby for the command of the attempt after `attempt`; answered by standbys, and at the next spawn by standbys_used."""
        self._request(
            {
                "do": "standby",
                "attempt": attempt,
                "argv": list(argv),
                "env": dict(env),
                "cwd": cwd,
                "record": record,
            }
        )

    def drop_standby(self) -> None:
        """End the standby."""
        self._request({"do": "drop_standby"})

    def log_dir(self, attempt: int, log_dir: str) -> None:
        """Log the streams of a new attempt of a living agent there."""
        self._request({"do": "log_dir", "attempt": attempt, "log_dir": log_dir})

    def exit_status(self) -> tuple[int | None, int | None]:
        """Return (code, signal) of a guardian whose link has ended; one of them is None, and both while it still lives."""
        status = self._process.poll()
        if status is None:
            return None, None
        return (status, None) if status >= 0 else (None, -status)

    @property
    def has_ended(self) -> bool:
        """Whether its link has ended: it takes no request any more."""
        return self._ended.is_set()

    def kill(self) -> None:
        """End a guardian that does not answer; its children end with it, or are swept."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def signal(self, signum: int, to: str = "command") -> None:
        """Signal the command, or ("all") every process that is proven to descend from the guardian."""
        self._request({"do": "signal", "signum": int(signum), "to": to})

    def end(self, scope: str, *, grace_s: float, signum: int = TERM) -> None:
        """End orphans (all but the command and what descends from it), the command (all but a standby) or all; answered by ended."""
        self._request({"do": "end", "what": scope, "grace_s": grace_s, "signum": int(signum)})

    def tails(self, request_id: int, attempt: int | None = None) -> None:
        """Ask for the last output of each stream, of one attempt or of the last two; answered by one tails event of this id."""
        self._request({"do": "tails", "id": request_id, "attempt": attempt})

    def last_word(self, host: str, port: int, message: str) -> None:
        """Have it send `message` there once this process has died and all that it ran is ended."""
        self._request({"do": "last_word", "host": host, "port": port, "message": message})

    def finish(self) -> None:
        """Declare the run over: nothing is killed from now on. Answered by survivors; the guardian's end is not reported after that."""
        self._dismissed = True
        self._request({"do": "finish"})

    def _request(self, request: GuardianRequest, fds: Sequence[int] = ()) -> None:
        """Send at once, so that it arrives before any later message to the agent; later where the guardian is too busy."""
        with self._sending:
            if not self._backlog:
                with contextlib.suppress(BlockingIOError):
                    self._send(request, fds, wait=False)
                    return
            self._backlog.append((request, [os.dup(fd) for fd in fds]))
            self._sending.notify()

    def _send(self, request: GuardianRequest, fds: Sequence[int], *, wait: bool) -> None:
        try:
            protocol.send(self._link, request, fds, wait=wait)
        except BlockingIOError:
            raise
        except OSError:
            return  # it is gone, which the reader reports

    def _write(self) -> None:
        while True:
            with self._sending:
                while not self._backlog and not self._ended.is_set():
                    self._sending.wait()
                if not self._backlog:
                    self._link.close()
                    return
                request, fds = self._backlog[0]
            self._send(request, fds, wait=True)
            protocol.close(fds)
            with self._sending:
                self._backlog.popleft()

    def _read(self) -> None:
        try:
            self._receive()
        finally:  # a failure in there is treated as the guardian's end: without its events the client is of no use
            self._link_ended()

    def _receive(self) -> None:
        while True:
            try:
                received = protocol.receive(self._link)
            except ValueError:
                continue
            except OSError:
                return
            if received is None:
                return
            event, fds = received
            protocol.close(fds)
            self._take(typed.converted(event, EVENTS[event["ev"]]))

    def _link_ended(self) -> None:
        with self._sending:
            self._ended.set()
            is_reported = self._started
            self._sending.notify()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_WITHIN_S)
        self._hello.set()
        if is_reported and not self._dismissed:
            self._on_died()

    def _take(self, event: GuardianEvent) -> None:
        if event["ev"] == "hello":
            self._hello.set()
        elif event["ev"] == "tails":
            tails = self._tails.setdefault(event["id"], [])
            tails += event["tails"]
            if event["more"]:
                return
            event = {**event, "tails": self._tails.pop(event["id"])}
        self._on_event(event)


def _launch(options: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    own_end, guardian_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-I", "-S", str(PROGRAM), "--link-fd", str(guardian_end.fileno()), *options]
    try:
        # the job inherits what the user's shell gave us (a job server, a log on fd 3)
        process = ownership.started(lambda: subprocess.Popen(argv, pass_fds=[guardian_end.fileno(), *_inheritable_fds()]))  # noqa: S603 - our own program
    except OSError as error:
        own_end.close()
        raise _no_start(error.strerror or str(error)) from error
    finally:
        guardian_end.close()
    return process, own_end


def _end(process: subprocess.Popen[bytes], link: socket.socket) -> None:
    """End a guardian that has no client; one of the client's two threads may run."""
    link.shutdown(socket.SHUT_RDWR)
    process.kill()
    process.wait()
    link.close()


def _become_subreaper() -> None:
    try:
        become_subreaper()
    except OSError as error:
        raise _no_start(str(error)) from error


def _inheritable_fds() -> list[int]:
    fds = []
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers; psutil lists regular files only
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if fd > 2 and os.get_inheritable(fd):  # noqa: PLR2004 - stderr
                fds.append(fd)
    return fds


def _no_start(cause: str) -> SuperviseError:
    return SuperviseError(
        f"the guardian does not start: {sys.executable} {PROGRAM}: {cause}",
        hint="Run that command by hand to see why, and report its output.",
        exit_code=ExitCode.BUG,
    )
