"""The standbys of this node's ranks: prepared while an attempt runs well, to become those of the next one.

Only torch's main thread starts them and hands ranks over, because the kernel ties the death signal of a child to the *thread* that made it.
`order` alone is called on the link's thread. Whatever goes wrong with a standby costs a cold start and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from supervisor.agent.messages import DropStandbys, PrepareStandbys, StandbysReported, StandbysUsed
from supervisor.guardian.standby import Standby, StartFacts, environment, pair
from supervisor.guardian.standby_set import StandbySet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervisor.agent.messages import AgentMessage

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)  # resolved here, not in the child between fork and exec


class AgentStandbys:
    """`send` reports to the supervisor."""

    def __init__(self, send: Callable[[AgentMessage], None]) -> None:
        self._send = send
        self._set = StandbySet()
        self._order: PrepareStandbys | DropStandbys | None = None
        self._commands: dict[int, tuple[tuple[str, ...], dict[str, str]]] = {}  # of the ranks that run, by local rank
        self._starting: dict[int, tuple[tuple[str, ...], dict[str, str]]] = {}  # of those that are being started
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by pid

    def order(self, command: PrepareStandbys | DropStandbys) -> None:
        """Take an order of the supervisor; `tick` carries it out. On the link's thread."""
        self._order = command

    def tick(self, attempt: int) -> None:
        """Carry the newest order out, and report what the standbys sent. Cheap where there is neither."""
        order, self._order = self._order, None
        if order is None and not self._set.attempt:
            return
        try:
            if isinstance(order, DropStandbys):
                self.drop()
            elif order is not None and order.attempt == attempt:
                self._prepare(order)
            news = self._set.poll()
        except Exception:  # noqa: BLE001  without standbys the job runs as well
            self.drop()
            news = {"attempt": attempt, "why": f"the agent failed: {traceback.format_exc(limit=-1)}"}
        if news is not None:
            self._send(StandbysReported(**news))

    def _prepare(self, order: PrepareStandbys) -> None:
        commands = {local_rank: args for local_rank, (args, _) in self._commands.items()}
        if commands != dict(enumerate(order.commands)):
            # a wrapper, which would run the script instead of waiting: its interpreter was started with other words
            self._set.refuse(order.attempt, "the ranks are not started as the Python that runs the script")
            return
        starts = {rank: partial(self._start, order, rank, args, env) for rank, (args, env) in self._commands.items()}
        self._set.prepare(order.attempt, starts)

    def _start(self, order: PrepareStandbys, local_rank: int, args: Sequence[str], env: Mapping[str, str]) -> Standby:
        """Start one as its rank was started, and with a link. Raises OSError."""
        facts = StartFacts(args, env, os.getcwd())  # noqa: PTH109  as text
        own_end, standby_end = pair()
        with standby_end:
            process = subprocess.Popen(  # noqa: S603  the user's own command, whose interpreter waits before it runs the script
                args=args,
                env=environment(env, standby_end.fileno(), f"{order.directory}/imports-{local_rank}.json"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[standby_end.fileno()],
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  as in spawn.py
            )
        self._processes[process.pid] = process
        return Standby(process.pid, own_end, facts)

    def take(self, local_rank: int, args: tuple[str, ...], env: dict[str, str], out: Any, err: Any) -> subprocess.Popen[bytes] | None:  # noqa: ANN401  a file, a descriptor, or None: as Popen takes them
        """Return the standby that became this rank, None where the rank must be started. out, err: as Popen takes them."""
        self._starting[local_rank] = args, env
        standby = self._set.take(local_rank, args, env, "", {0: 0, 1: _descriptor(out, 1), 2: _descriptor(err, 2)})
        return None if standby is None else self._processes.pop(standby.pid)

    def began(self, attempt: int) -> None:
        """Every rank of the attempt was started: the standbys that are left are of no use."""
        self._commands, self._starting = self._starting, {}
        if not self._set.attempt:
            return
        used, cold = self._set.began()
        self.drop()
        self._send(StandbysUsed(attempt, used, cold))

    def drop(self) -> None:
        """End them all."""
        self._set.drop()
        for process in self._processes.values():
            process.poll()
        self._processes = {}


def _descriptor(stream: Any, inherited: int) -> int:  # noqa: ANN401  as above
    if stream is None:
        return inherited
    return stream if isinstance(stream, int) else int(stream.fileno())


def die_with(parent: int) -> Callable[[], None]:
    """Runs in the child. The child is killed when the agent dies. If the agent died before the prctl, the child exits."""

    def ask() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask
