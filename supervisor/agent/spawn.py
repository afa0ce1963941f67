"""Starts one rank: torch's own handler, with our pipes where torch would let the rank write to torchrun's output.

Main thread only: the kernel ties the death signal of a child to the *thread* that made it. The read ends of the pipes go to the guardian.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from supervisor.agent.ranks import MonitoredRank, spawned
from supervisor.agent.standbys import AgentStandbys, die_with
from supervisor.guardian.messages import RankStream

PIPE_BYTES = 1 << 20

# Our stdout and stderr:
ONE = "one"  # are one open file
TWO = "two"  # are two open files
TTY = "tty"  # are one terminal
TTY_OUT = "tty-out"  # stdout is a terminal, stderr something else
TTY_ERR = "tty-err"  # stderr is a terminal, stdout something else
#: For TTY_OUT and TTY_ERR: the stream that is the terminal.
_TERMINALS = {TTY_OUT: "out", TTY_ERR: "err"}


@dataclass(frozen=True, slots=True)
class OutputChannel:
    """Where the ranks' streams go: `sock` leads to the guardian; `streams` is one of the constants above; `window` is (rows, columns)."""

    sock: socket.socket
    streams: str
    window: tuple[int, int] = (24, 80)

    def hand_over(self, fd: int, stream: RankStream) -> None:
        """Send the read end `fd` to the guardian and close it here."""
        try:
            socket.send_fds(self.sock, [json.dumps(stream).encode()], [fd])
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class AttemptEnvironment:
    """The settings of an attempt that its ranks start with."""

    attempt: int
    env: Mapping[str, str]
    unset: tuple[str, ...]
    terminal: bool  # local rank 0 may have a pseudo-terminal
    on_started: Callable[[MonitoredRank], None]
    standbys: AgentStandbys


@dataclass(frozen=True, slots=True)
class _OutputEnds:
    """The child's stdout and stderr (None: as torch opened it, or inherited), and the read ends that go to the guardian."""

    out: int | None
    err: int | None
    for_guardian: tuple[tuple[int, RankStream], ...]
    linebuf: bool

    def close(self) -> None:
        for fd in {self.out, self.err} - {None}:
            os.close(fd)  # type: ignore[arg-type]  # None was just taken out


class RankHandler(SubprocessHandler):
    """torch's handler of one rank, which starts the process our way. torch calls `_popen` from its constructor."""

    def __init__(self, output: OutputChannel, environment: AttemptEnvironment, **asked: Any) -> None:  # noqa: ANN401  torch's arguments differ by version
        """Start the process at once, as torch's does."""
        self._output = output
        self._environment = environment
        self._asked = asked
        super().__init__(**asked)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        env = {**env, **self._environment.env}
        for name in self._environment.unset:
            env.pop(name, None)
        rank, local_rank = int(env["RANK"]), int(self._asked["local_rank_id"])
        paths = {"out": self._asked["stdout"] or "", "err": self._asked["stderr"] or ""}
        ends = self._ends(paths, rank, local_rank)
        if ends.linebuf:
            env["SUPERVISE_JOB_LINEBUF"] = "1"
        out = self._stdout if ends.out is None else ends.out
        err = self._stderr if ends.err is None else ends.err
        try:
            proc = self._environment.standbys.take(local_rank, args, env, out, err) or subprocess.Popen(  # noqa: S603  the user's own command
                args=args,
                env=env,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  one prctl, its symbol resolved before the fork; see docs/explanation/elastic-agent.md
            )
        except BaseException:
            for fd, _ in ends.for_guardian:
                os.close(fd)
            raise
        finally:
            ends.close()
        logs = tuple((name, path) for name, path in paths.items() if path not in ("", os.devnull))
        self._environment.on_started(spawned(proc.pid, rank, local_rank, env.get("TORCHELASTIC_ERROR_FILE", ""), logs))
        for fd, stream in ends.for_guardian:
            self._output.hand_over(fd, stream)
        return proc

    def _ends(self, paths: Mapping[str, str], rank: int, local_rank: int) -> _OutputEnds:
        """Make a pipe for each stream that torch would let through or send to /dev/null.

        Streams that the filter (--local-ranks-filter) sends to /dev/null get a pipe too: logged, not shown.
        """

        def stream(name: str, *, show: bool, to: int, terminal: bool) -> RankStream:
            return {"attempt": self._environment.attempt, "rank": rank, "name": name, "show": show, "to": to, "pty": terminal}

        shown = {name: path != os.devnull for name, path in paths.items() if path in ("", os.devnull)}
        streams = self._output.streams
        terminal = self._environment.terminal and local_rank == 0
        if streams == TTY and terminal and len(shown) == len(paths) and all(shown.values()):
            master, slave = _terminal(self._output.window)
            return _OutputEnds(slave, os.dup(slave), ((master, stream("both", show=True, to=1, terminal=True)),), linebuf=False)
        linebuf = streams in {TTY, TTY_OUT}
        if streams in {ONE, TTY} and len(shown) == len(paths) and len(set(shown.values())) == 1:
            read, write = _pipe()
            return _OutputEnds(write, os.dup(write), ((read, stream("both", show=shown["out"], to=1, terminal=False)),), linebuf=linebuf)
        written: dict[str, int] = {}
        for_guardian: list[tuple[int, RankStream]] = []
        for name, show in shown.items():
            is_terminal = terminal and show and _TERMINALS.get(streams) == name
            read, written[name] = _terminal(self._output.window) if is_terminal else _pipe()
            for_guardian.append((read, stream(name, show=show, to=1 if name == "out" else 2, terminal=is_terminal)))
        return _OutputEnds(written.get("out"), written.get("err"), tuple(for_guardian), linebuf=linebuf)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # EPERM past the user's share of pipe pages: 64 KiB then
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read, write


def _terminal(window: tuple[int, int]) -> tuple[int, int]:
    """Open a pseudo-terminal without output processing (OPOST): the user's terminal does that, and twice would be wrong."""
    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *window, 0, 0))
    return master, slave
