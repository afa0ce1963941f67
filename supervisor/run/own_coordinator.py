"""The coordinator of the job's nodes where it is this node: served, served again after a bug, and answered by this node's core.

Its memory is on the disk, so that the next supervisor of this node serves it at the same port.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, assert_never

from supervisor.cluster import messages as protocol
from supervisor.cluster.coordinator import new_coordinator
from supervisor.cluster.kept import KeptCoordinator, KeptFile, memory_of_the_last
from supervisor.cluster.model import AttemptEnd, CoordinatorMemory
from supervisor.cluster.reports import decode_reports
from supervisor.cluster.server import CoordinatorServer, listen
from supervisor.core import events
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.cluster.coordinator import CoordinatorInput, CoordinatorOutput
    from supervisor.cluster.kept import KeptFor
    from supervisor.cluster.model import ClusterRules
    from supervisor.run.loop import Loop

#: After so many bugs in a row that end its thread the coordinator is given up. One that comes so long after the last begins a new row.
MOST_BUGS = 3
BUGS_APART_S = 120.0
#: A coordinator whose thread died is served again at once, and once in so long: such a bug may come again each time.
SERVED_AGAIN_S = 6.0


class OwnCoordinator:
    """Methods are called on the loop's thread, but for `standings` and `failed`.

    server: None where another node is the coordinator. bugs: in a row that ended its thread here since the last decision. is_closing: it is
    served no more, once the others know how the job ended. looks: takes the looks of all nodes, on the loop's thread.
    """

    def __init__(
        self, file: KeptFile, owner: KeptFor, loop: Loop, looks: Callable[[protocol.LooksGathered], None], warn: Callable[[str], None]
    ) -> None:
        self.server: CoordinatorServer | None = None
        self.bugs = 0
        self.is_closing = False
        self._file, self._owner, self._loop, self._looks, self._warn = file, owner, loop, looks, warn
        self._bug_t = 0.0  # of the last of them
        self._serves_again_t = 0.0  # when a coordinator whose thread died may be served again
        self._began_t = loop.clock.now()

    def serve(self, node: str, rules: ClusterRules, memory: CoordinatorMemory, port: int = 0, key: str = "") -> CoordinatorServer:
        """Be the coordinator, with what the last one on this node kept, at its port if that is free; return it. node: this one."""
        key = key or secrets.token_hex(16)
        try:
            listener = listen(port)
        except OSError:  # somebody took the port: the nodes learn the new one when they meet
            listener = listen()
        own_port: int = listener.getsockname()[1]
        state = new_coordinator(node, rules, self._loop.clock.now(), memory, since_t=self._began_t)

        def keep(newest: CoordinatorMemory) -> None:
            self._file.write(KeptCoordinator(self._owner, own_port, key, newest))

        server = CoordinatorServer(listener, key, state, self._loop.clock.now, keep, self._to_judge, self._warn)
        self.server = server
        with contextlib.suppress(RuntimeError):  # no thread can be started, while loaders use up the processes: see serve_again
            server.start()
        return server

    def serve_as_before(self, node: str, rules: ClusterRules) -> CoordinatorServer | None:
        """Be the coordinator as the supervisor before this one was; return None where it was none."""
        content = self._file.read(KeptCoordinator)
        if content is None or content.owner != self._owner:
            return None
        return self.serve(node, rules, memory_of_the_last(content), content.port, content.key)

    def serve_again(self, node: str, rules: ClusterRules) -> CoordinatorServer | None:
        """Be the coordinator anew, with its memory, where its thread died of a bug or did not begin: without one nothing is decided.

        Return it; None where it serves, or is not due.
        """
        server, now = self.server, time.monotonic()
        if server is None or server.serves or now < self._serves_again_t or self.is_closing:
            return None
        self._serves_again_t = now + SERVED_AGAIN_S
        return self.serve(node, rules, server.memory, server.port, server.key)

    def failed(self) -> bool:
        """Note that a bug ended its thread; return whether it is given up. From that thread.

        A healthy attempt may last for weeks without a decision, so only those that come soon after one another count.
        """
        now = time.monotonic()
        self.bugs, self._bug_t = self.bugs + 1 if now - self._bug_t < BUGS_APART_S else 1, now
        return self.bugs >= MOST_BUGS and not self.is_closing

    def give(self, message: CoordinatorInput) -> None:
        """Give it what the core says; nothing where another node is the coordinator."""
        if self.server is not None:
            self.server.give(message)

    def standings(self) -> Mapping[str, str]:
        """Return what each node's newest beat says of it, by the name of the node; nothing where another node is the coordinator."""
        server = self.server
        return {} if server is None else server.standings()

    def _to_judge(self, output: CoordinatorOutput) -> None:
        """Take what this node is to judge, from the coordinator's thread, which waits for nothing."""
        match output:
            case protocol.JudgeReports():
                self._read_reports(output)
            case protocol.LooksGathered():
                self._loop.call_soon(lambda: self._looks(output))
            case protocol.SendToNodes():
                raise AssertionError(output)  # the server's own
            case _:
                assert_never(output)

    def _read_reports(self, output: protocol.JudgeReports) -> None:
        """Decode what the nodes reported, in a thread, and have the core judge it."""
        memory = CoordinatorMemory() if self.server is None else self.server.memory
        end, members = memory.end or AttemptEnd("", "", ""), () if memory.attempt is None else memory.attempt.members

        def work() -> None:
            reports, missing = decode_reports(output.reports, output.missing, members)
            now = self._loop.clock.now
            gathered = events.ReportsGathered(now(), output.number, reports, missing, end.kind, end.node, end.text)
            self._loop.call_soon(lambda: self._loop.feed(replace(gathered, t=now())))

        try:
            threading.Thread(target=work, name="read-reports", daemon=True).start()
        except RuntimeError:  # no thread can be started, while loaders use up the processes
            work()
