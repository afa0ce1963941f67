"""Starts, signals and reaps the commands that the supervisor asked for.

Adopted orphans are reaped here too. Only the main thread calls this, because PDEATHSIG is bound to the thread that forked.
"""

from __future__ import annotations

import os
import time

from . import ownership, process_tree, protocol
from .plain_standby import PlainStandby
from .spawn import CommandOutput, SpawnedCommand, open_outlets, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Sequence

    from .messages import GuardianEvent, SpawnRequest
    from .outputs import Outputs
    from .reactor import Reactor


class Children:
    """The guardian's commands.

    `job_dir`: job directory of the last command, "" before the first. `detach_requests`: processes that asked to be left alone.
    `childless`: the last `reap` found no child.
    """

    def __init__(self, reactor: Reactor, send: Callable[[GuardianEvent], None], outputs: Outputs, ignored: Collection[int]) -> None:
        self.job_dir = ""
        self.childless = True
        self.detach_requests = ownership.DetachRequests()
        self._reactor = reactor
        self._send = send
        self._outputs = outputs
        self._ignored = ignored
        self.standby = PlainStandby(reactor, send, ignored)
        self._commands: dict[int, SpawnedCommand] = {}

    @property
    def pids(self) -> set[int]:
        """The pids of the living commands."""
        return set(self._commands)

    def spawn(self, message: SpawnRequest, fds: list[int]) -> None:
        """Start a command. A failure is reported to the supervisor; only a malformed request raises (KeyError, TypeError, ValueError)."""
        attempt, kind, env = int(message["attempt"]), str(message["kind"]), dict(message["env"])
        cwd, show = str(message["cwd"]), bool(message["show"])
        self._outputs.set_log_dir(attempt, str(message["log_dir"]))
        self.job_dir = env.get("SUPERVISE_JOB_DIR", "")
        # The variable exempts one process and what descends from it; on the command it would exempt the whole job.
        env.pop("SUPERVISE_JOB_DETACH", None)
        argv, keep, outlets = [str(word) for word in message["argv"]], list(fds), list[CommandOutput]()
        ends: tuple[socket.socket, ...] = ()
        try:
            if kind == "agent":
                ends = protocol.pair()
                keep.append(ends[1].fileno())
                descriptors = {"{link_fd}": str(fds[0]) if fds else "", "{output_fd}": str(ends[1].fileno())}
                argv = [descriptors.get(word, word) for word in argv]
            outlets = open_outlets(ptys=kind == "plain")
            pid, exec_fd = self._take_standby(kind, argv, env, cwd, outlets), -1
            if not pid:
                pid, exec_fd = spawn(argv, env, cwd, outlets=outlets, keep=keep, ignored=self._ignored)
        except OSError as error:  # no free descriptor or process
            protocol.close([outlet.read_fd for outlet in outlets])
            self._send({"ev": "spawn_failed", "attempt": attempt, "kind": kind, "errno": error.errno, "text": str(error)})
            return
        finally:
            protocol.close([outlet.child_fd for outlet in outlets])
            if ends:
                ends[1].close()
        process = process_tree.read(pid)  # still in /proc even if it ended, because only we reap it
        command = SpawnedCommand(attempt, kind, pid, exec_fd, process.start_ticks if process else 0)
        self._commands[pid] = command
        self.childless = False
        if exec_fd >= 0:
            self._reactor.watch(exec_fd, lambda: self._read_exec_result(command))
        else:
            self._send_spawned(command)
        self._outputs.take_outlets(outlets, attempt, rank=-1 if kind == "agent" else 0, show=show)
        if ends:
            self._outputs.take_link(ends[0])
        self.standby.began(attempt)

    def _take_standby(self, kind: str, argv: list[str], env: dict[str, str], cwd: str, outlets: Sequence[CommandOutput]) -> int:
        """Return the pid of the standby that became the command, 0 where the command must be started."""
        if kind != "plain":
            return 0
        return self.standby.take(argv, env, cwd, {0: 0, **{fd: outlet.child_fd for outlet in outlets for fd in outlet.serves}})

    def reap(self) -> None:
        """Collect every child that ended. Only the end of a command is reported; the end of an adopted orphan is not."""
        self.childless = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid in self._commands:
                self._read_exec_result(self._commands[pid])
            if pid in self._commands:  # else the exec had failed, which is reported already
                self._send_exit(self._commands.pop(pid), status)

    def signal(self, signum: int, *, to_all: bool, group_received_at: float = 0.0) -> None:
        """Signal the commands, or every proven descendant that did not ask to be left alone.

        group_received_at: the time at which we received this signal, 0.0 if we did not. If we did, a terminal or scheduler signalled the
        whole group, so commands in our group are skipped. A second signal would interrupt a save that KeyboardInterrupt has just begun.
        """
        processes = process_tree.snapshot()
        if to_all:
            detached = self.detach_requests.detached(process_tree.below(os.getpid(), processes))
            targets = process_tree.below(os.getpid(), processes, detached)
        else:
            commands = [command for command in self._commands.values() if command.pid in processes]
            targets = [
                processes[command.pid]
                for command in commands
                if command.forked_at > group_received_at or os.getpgid(command.pid) != os.getpgrp()
            ]
        for process in targets:
            ownership.send(process, signum)

    def _read_exec_result(self, command: SpawnedCommand) -> None:
        """Report whether the exec succeeded, once that is known."""
        if command.exec_fd < 0:
            return
        try:
            report = os.read(command.exec_fd, 4096)
        except BlockingIOError:
            return
        self._reactor.unwatch(command.exec_fd)
        os.close(command.exec_fd)
        command.exec_fd = -1
        attempt, kind = command.attempt, command.kind
        if report:
            del self._commands[command.pid]
            number, _, text = report.decode("utf-8", "replace").partition(" ")
            why = text or os.strerror(int(number))
            self._send({"ev": "spawn_failed", "attempt": attempt, "kind": kind, "errno": int(number), "text": why})
        else:
            self._send_spawned(command)

    def _send_spawned(self, command: SpawnedCommand) -> None:
        attempt, kind = command.attempt, command.kind
        self._send({"ev": "spawned", "attempt": attempt, "kind": kind, "pid": command.pid, "start_ticks": command.start_ticks})

    def _send_exit(self, command: SpawnedCommand, status: int) -> None:
        self._send(
            {
                "ev": "exited",
                "attempt": command.attempt,
                "kind": command.kind,
                "pid": command.pid,
                "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                "core_dumped": os.WIFSIGNALED(status) and os.WCOREDUMP(status),
                "at_ns": time.monotonic_ns(),
            }
        )
