"""torchrun's agent, started before most of supervise is imported: it imports torch meanwhile, which takes a second.

It has no attempt yet, and runs nothing of the user's before its first order. The guardian keeps its output until the first attempt
names a log folder. If the run ends before that, `close` kills the guardian, and the agent goes with it (PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

from supervisor.guardian import ownership
from supervisor.knobs import torchrun
from supervisor.launch.environment import job_environment
from supervisor.launch.guardian_client import GuardianClient

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from supervisor.config.settings import Settings
    from supervisor.guardian.messages import GuardianEvent
    from supervisor.job.job import Job
    from supervisor.knobs.torchrun import Torchrun
    from supervisor.launch.guardian_client import OnEvent


class EarlyAgent:
    """An agent that nobody listens to yet, with its guardian. `link`: our end of its link. `orphans`: made before the first child."""

    def __init__(self, job: Job, argv: list[str], ignored: Collection[int]) -> None:
        """Start both. Raises SuperviseError where the guardian does not start."""
        self.orphans = ownership.Orphans(job.cookie)
        self._held: list[Callable[[], None]] = []
        self._on_event: OnEvent | None = None
        self._on_died: Callable[[], None] | None = None
        self._turn = threading.Lock()
        self.guardian = GuardianClient.start(self._event, self._died, ignored=ignored)
        self.link, agent_end = socket.socketpair()
        with agent_end:
            environ, cwd = agent_environment(job), str(job.cwd)
            self.guardian.spawn(attempt=0, kind="agent", argv=argv, env=environ, cwd=cwd, log_dir="", fds=[agent_end.fileno()])

    def listen(self, on_event: OnEvent, on_died: Callable[[], None]) -> GuardianClient:
        """Return the guardian, whose events go there from now on; those that came before are repeated."""
        with self._turn:
            self._on_event, self._on_died = on_event, on_died
            for repeat in self._held:
                repeat()
        return self.guardian

    def close(self) -> None:
        """Kill both, unless somebody listens."""
        if self._on_event is None:
            self.guardian.kill()
            with contextlib.suppress(OSError):
                self.link.close()

    def _event(self, event: GuardianEvent) -> None:
        with self._turn:
            if self._on_event is not None:
                self._on_event(event)
            else:
                self._held.append(lambda: self._on_event and self._on_event(event))

    def _died(self) -> None:
        with self._turn:
            if self._on_died is not None:
                self._on_died()
            else:
                self._held.append(lambda: self._on_died and self._on_died())


def start(job: Job, ignored: Collection[int]) -> EarlyAgent | None:
    """Start the agent of a torchrun command; None for another command."""
    argv = agent_argv(job.settings, torchrun.recognise(job.command, path=job.environ.get("PATH")))
    return None if argv is None else EarlyAgent(job, argv, ignored)


def agent_argv(settings: Settings, command: Torchrun | None) -> list[str] | None:
    """Return what runs our agent in torchrun's place; None where that is not possible. The guardian fills {link_fd} and {output_fd} in."""
    if command is None or command.interpreter is None:
        return None
    return torchrun.agent_argv(
        command,
        command.interpreter,
        link_fd="{link_fd}",
        output_fd="{output_fd}",
        grace_s=settings.stop.grace_s,
        streams=_streams(),
        window=_window(),
    )


def agent_environment(job: Job) -> dict[str, str]:
    """Return the agent's environment. Further variables of an attempt's ranks come with the attempt."""
    environ = job_environment(job.environ)
    environ |= {"SUPERVISE_JOB_COOKIE": job.cookie, "SUPERVISE_JOB_DIR": str(job.scratch)}
    environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    return environ


def _streams() -> str:
    """Return how the supervisor's stdout and stderr relate, as the agent names it (supervisor/agent/spawn.py)."""
    try:
        out, err = os.fstat(1), os.fstat(2)
    except OSError:
        return "two"
    if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino):
        return "tty" if os.isatty(1) else "one"
    return "tty-out" if os.isatty(1) else "tty-err" if os.isatty(2) else "two"


def _window() -> tuple[int, int]:
    """Return rows and columns of the terminal itself; the ranks inherit COLUMNS and LINES."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            return size.lines, size.columns
    return 24, 80
