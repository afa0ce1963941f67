"""The standby of a plain command: prepared while the command runs well, to become that of the next attempt.

Only the main thread calls this, because PDEATHSIG is bound to the thread that forked. The code of a standby is imported with the first one:
most jobs need none.
"""

from __future__ import annotations

import os

from .spawn import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from .messages import GuardianEvent, StandbyRequest
    from .reactor import Reactor
    from .standby import Standby, StartFacts
    from .standby_set import StandbySet


class PlainStandby:
    """At most one. Whatever goes wrong with it costs a cold start and nothing else."""

    def __init__(self, reactor: Reactor, send: Callable[[GuardianEvent], None], ignored: Collection[int]) -> None:
        self._reactor = reactor
        self._send = send
        self._ignored = ignored
        self._set: StandbySet | None = None
        self._link = -1

    @property
    def pids(self) -> set[int]:
        """Its pid, if there is one."""
        return self._set.pids if self._set is not None else set()

    def prepare(self, message: StandbyRequest) -> None:
        """Start it. Only a malformed request raises (KeyError, TypeError, ValueError)."""
        from .standby import StartFacts  # noqa: PLC0415 - most jobs need none
        from .standby_set import StandbySet  # noqa: PLC0415 - as above

        argv, env = [str(word) for word in message["argv"]], dict(message["env"])
        env.pop("SUPERVISE_JOB_DETACH", None)  # as for the command itself
        facts, record = StartFacts(argv, env, str(message["cwd"])), str(message["record"])
        self._set = self._set or StandbySet()
        self._set.prepare(int(message["attempt"]), {0: lambda: self._start(facts, record)})
        self._poll()

    def _start(self, facts: StartFacts, record: str) -> Standby:
        """Start it. Raises OSError."""
        from .standby import Standby, environment, pair  # noqa: PLC0415 - as above

        own_end, standby_end = pair()
        null = os.open("/dev/null", os.O_WRONLY)
        try:
            env = environment(facts.env, standby_end.fileno(), record)
            pid, exec_fd = spawn(facts.argv, env, facts.cwd, outlets=[_Silence(null)], keep=[standby_end.fileno()], ignored=self._ignored)
        finally:
            standby_end.close()
            os.close(null)
        os.close(exec_fd)  # a program that is not there ends the standby
        standby = Standby(pid, own_end, facts)
        self._link = own_end.fileno()
        self._reactor.watch(self._link, self._poll)
        return standby

    def _poll(self) -> None:
        if self._set is None:
            return
        news = self._set.poll()
        if not self._set.pids:
            self._unwatch()
        if news is not None:
            self._send({"ev": "standbys", **news})  # type: ignore[arg-type] # the fields of the report

    def take(self, argv: list[str], env: Mapping[str, str], cwd: str, fds: Mapping[int, int]) -> int:
        """Return the pid of the standby that became the command, 0 where the command must be started."""
        self._unwatch()
        standby = self._set.take(0, argv, env, cwd, fds) if self._set is not None else None
        return 0 if standby is None else standby.pid

    def began(self, attempt: int) -> None:
        """The attempt's command was started: a standby that is left is of no use."""
        if self._set is None or not self._set.attempt:
            return
        ranks, cold = self._set.began()
        self._send({"ev": "standbys_used", "attempt": attempt, "ranks": list(ranks), "cold": cold})

    def drop(self) -> None:
        """End it."""
        self._unwatch()
        if self._set is not None:
            self._set.drop()

    def _unwatch(self) -> None:
        if self._link >= 0:
            self._reactor.unwatch(self._link)
            self._link = -1


class _Silence:
    """The target of a standby's own output while it waits: a CommandOutput without a reader."""

    __slots__ = ("child_fd", "serves")

    def __init__(self, null: int) -> None:
        self.child_fd = null
        self.serves: tuple[int, ...] = (1, 2)
