"""Starts standbys and hands ranks over to them: the parent's side of instrument/_supervise_shim/standby.py.

Used by the rank's future parent (the agent, or the guardian for a plain command), on its main thread. A standby that died, hangs,
is stopped or refuses costs a cold start and nothing else: each way out of `hand_over` but True leaves no process behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time

from . import ownership, process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREPARING, READY, REFUSED, GONE = "preparing", "ready", "refused", "gone"
VARIABLE = "SUPERVISE_JOB_STANDBY"
#: Variables that every attempt gets anew, and that no library reads while it is imported.
RENEWED = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RESTART_COUNT",
        "SUPERVISE_JOB_ATTEMPT",
        "SUPERVISE_JOB_BATCH_PLAN",
        "SUPERVISE_JOB_BATCH_SIZE",
        "SUPERVISE_JOB_COOKIE",
        "SUPERVISE_JOB_DIR",
        "SUPERVISE_JOB_GRAD_ACCUM",
        "SUPERVISE_JOB_LINEBUF",
        "SUPERVISE_JOB_PRECISION",
        "SUPERVISE_JOB_REASON",
        "SUPERVISE_JOB_RESUME_FROM",
        "SUPERVISE_JOB_RESUME_STEP",
        "SUPERVISE_JOB_RUN",
    }
)
KILLED_S = 0.5
_PACKET = 4096
#: State that a process inherits beside its environment. A change of these means that a cold rank would start with other ones.
_STATUS = ("Umask:", "Uid:", "Gid:", "Groups:", "SigBlk:", "SigIgn:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Cpus_allowed:")
_INHERITED = ("limits", "cgroup", "oom_score_adj")


class StartFacts:
    """The command and the environment of a standby.

    `renewed`: variables that may change: RENEWED, and those that its imports may read and did not (MAY_CHANGE in the shim's standby.py).
    """

    __slots__ = ("argv", "cwd", "env", "fixed", "inherited", "renewed")

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.argv = list(argv)
        self.env = dict(env)
        self.cwd = cwd
        self.renewed = RENEWED
        self.inherited = inherited()
        self.fixed = len(self.argv)  # so many words cannot change; the standby knows how many once it is ready


def refusal(at_start: StartFacts, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    """Return why a rank of this command needs a cold start, "" if the standby that was started so can be the rank."""
    if list(argv[: at_start.fixed]) != at_start.argv[: at_start.fixed]:
        return "the command is another"
    for name in sorted({*at_start.env, *env} - at_start.renewed):
        if at_start.env.get(name) != env.get(name):
            return f"{name} is another"
    return "the working directory is another" if cwd != at_start.cwd else ""


def inherited() -> dict[str, str]:
    """Return what a child of the calling thread inherits, by name, as /proc words it."""
    values = {name: _read(name) for name in _INHERITED}
    for line in _read("status").splitlines():
        name, _, value = line.partition("\t")
        if name in _STATUS:
            values[name] = value
    values["nice"] = str(os.getpriority(os.PRIO_PROCESS, 0))
    return values


def pair() -> tuple[socket.socket, socket.socket]:
    """Make the two ends of a standby's link; the second is for the child, which must inherit it."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def environment(env: Mapping[str, str], child_end: int, record: str) -> dict[str, str]:
    """Return a rank's environment for a standby of it. `record`: the path of imports-N.json, which a rank of this command wrote."""
    return {**env, VARIABLE: f"{child_end}||||{record}"}


class Standby:
    """One waiting interpreter, a child of this process. `why`: of "refused"; `note`: why it imports only a part in advance, or ""."""

    __slots__ = ("_process", "_sock", "_state", "facts", "note", "pid", "private_kib", "start_ticks", "why")

    def __init__(self, pid: int, sock: socket.socket, facts: StartFacts) -> None:
        """Take a child that was just started with `environment`, and is not reaped."""
        self.pid = pid
        self.facts = facts
        self.why = self.note = ""
        self.private_kib = 0
        self._process = process_tree.read(pid)
        self.start_ticks = self._process.start_ticks if self._process else 0
        self._sock = sock
        self._state = PREPARING

    def fileno(self) -> int:
        """The link's descriptor: readable when `poll` would return something else."""
        return self._sock.fileno()

    def poll(self) -> str:
        """Return PREPARING, READY, REFUSED or GONE. Never blocks."""
        if self._state in (PREPARING, READY):
            try:
                packet = self._sock.recv(_PACKET, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return self._state
            except OSError:
                packet = b""
            self._take(packet)
        return self._state

    def _take(self, packet: bytes) -> None:
        try:
            message = json.loads(packet) if packet else None
            if message is None:
                self._state = GONE
            elif message["ready"]:
                self._state, self.note = READY, str(message["note"])
                self.private_kib, self.facts.fixed = int(message["private_kib"]), int(message["fixed"])
                self.facts.renewed |= frozenset(map(str, message["may_change"]))
            else:
                self._state, self.why = REFUSED, str(message["why"])
        except (ValueError, KeyError, TypeError):
            self._state = GONE

    def hand_over(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str = "", *, fds: Mapping[int, int], deadline_s: float = 1.0
    ) -> bool:
        """Have it run as the rank now. False: it is gone, `why` says why, and the rank must start cold.

        cwd: "" where a cold rank inherits it. fds: number in the rank -> descriptor here; they stay open here.
        """
        if self.poll() != READY:
            self.why = self.why or f"it is {self._state}"
        else:
            self.why = refusal(self.facts, argv, env, cwd or self.facts.cwd) or self._why_not(argv, env, cwd, fds, deadline_s)
        if self.why:
            self.drop()
            return False
        self._sock.close()
        self._state, self._process = GONE, None  # it is a rank now: `drop` leaves it alone
        return True

    def _why_not(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, fds: Mapping[int, int], deadline_s: float) -> str:
        """Ask it, and return why it is not the rank now, or ""."""
        now = inherited()
        changed = [name.rstrip(":") for name, value in self.facts.inherited.items() if now.get(name) != value]
        if changed:
            return f"{', '.join(changed)} of its parent changed"
        process = process_tree.read(self.pid)
        if process is None or not process.alive or process.start_ticks != self.start_ticks:
            return "it died"
        if process.stopped or process.state == "D":
            return f"it does not run (state {process.state})"
        message = {"argv": list(argv), "env": dict(env), "cwd": cwd, "fds": list(fds)}
        body = os.memfd_create("hand-over", os.MFD_CLOEXEC)
        try:
            rest = memoryview(json.dumps(message).encode())
            while rest:
                rest = rest[os.write(body, rest) :]
            socket.send_fds(self._sock, [b"H"], [body, *fds.values()], socket.MSG_DONTWAIT)
            return self._answer(deadline_s)
        except OSError as error:
            return f"it does not answer: {error.strerror}"
        finally:
            os.close(body)

    def _answer(self, deadline_s: float) -> str:
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        if not poller.poll(deadline_s * 1000):
            return f"it does not answer within {deadline_s:g} s"
        packet = self._sock.recv(_PACKET)
        if packet == b"A":
            return ""
        return packet[1:].decode("utf-8", "replace") or "it ended at the hand-over"

    def drop(self) -> None:
        """End it, unless it is a rank by now: kill it, and reap it where that takes no longer than KILLED_S."""
        self._sock.close()
        self._state = GONE
        if self._process is None or _reaped(self.pid):
            return
        ownership.send(self._process, signal.SIGKILL)
        until = time.monotonic() + KILLED_S
        while not _reaped(self.pid) and time.monotonic() < until:
            time.sleep(0.002)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # reaped by another part of this process
        return True


def _read(name: str) -> str:
    try:
        with open(f"/proc/thread-self/{name}", "rb") as file:  # noqa: PTH123 - pathlib is too big for the guardian
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
