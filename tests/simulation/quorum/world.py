"""Hosts with an acceptor each, and proposers that read and write, on a virtual clock; all chance comes from the seed.

Messages are delayed, dropped, sent twice and reordered, and links are cut. Acceptors are killed and come back with or without their disk.
Proposers die between two steps of a call. An answer is sent only after the state is on the disk: a kill between the two is a lost answer.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisor.cluster.quorum import acceptor, proposer
from supervisor.cluster.quorum.acceptor import AcceptorAnswer
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable

if TYPE_CHECKING:
    from supervisor.cluster.quorum.acceptor import AcceptorRequest, AcceptorState

CALM_T, END_T = 5.0, 9.0
POLL_S, CALL_S, JOIN_S, PAUSE_S = 0.2, 1.0, 0.2, 0.1


@dataclass
class Operation:
    """One call of a proposer. seen: the version that was there at some time between its beginning and its end. value: at that version."""

    kind: str
    began_t: float
    version: int = 0
    value: str = ""
    ended_t: float | None = None
    seen: int | None = None
    seen_value: str | None = None


@dataclass
class Poll:
    """Answers that are awaited."""

    asked: proposer.Poll
    then: Callable[[dict[int, AcceptorAnswer]], None]
    answers: dict[int, AcceptorAnswer] = field(default_factory=dict)
    is_over: bool = False


class Host:
    """A host of the list. disk: what it holds. state: what the acceptor that runs knows, None: none runs."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index = world, index
        self.disk: AcceptorState | None = None
        self.state: AcceptorState | None = None
        self._answers: dict[int, AcceptorAnswer] = {}

    def start(self) -> None:
        """Start it, with what is on its disk."""
        if self.state is None:
            self._answers = {}
            self.world.serial += 1
            new = acceptor.new_acceptor(self.index, self.world.size, f"disk {self.world.serial}")
            self.state = self.disk = self.disk or new
            self._join(self.state.incarnations[self.index])

    def die(self, *, disk: bool) -> None:
        """Kill it."""
        self.state = None
        self.disk = self.disk if disk else None

    def ask(self, request: AcceptorRequest) -> AcceptorAnswer | None:
        """Return the answer, None where none runs."""
        if self.state is None:
            return None
        self.state, answer = acceptor.answered(self.state, request)
        self.disk = self.state
        if answer.granted and not isinstance(request, (acceptor.ReadCell, acceptor.JoinRegister)):
            self.world.on_vote(self)
        return answer

    def _join(self, life: object) -> None:
        state = self.state
        if state is None or state.votes or state.incarnations[self.index] != life:
            return
        for other in range(self.world.size):
            if other != self.index:
                self.world.send(("host", self.index), other, acceptor.join_request(state), self._on_answer(life, other))
        self.world.later(JOIN_S, self._join, life)

    def _on_answer(self, life: object, other: int) -> Callable[[AcceptorAnswer], None]:
        def take(answer: AcceptorAnswer) -> None:
            state = self.state
            if state is None or state.incarnations[self.index] != life:
                return
            self._answers[other] = answer
            self.state = self.disk = acceptor.joined(state, self._answers)
            if self.state.incarnations[self.index] != life:
                self._answers = {}
                self._join(self.state.incarnations[self.index])

        return take


class World:
    """The hosts and the proposers of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311
        self.t, self.serial = 0.0, 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.size = self.rng.choice((3, 3, 3, 5))
        self.hosts = [Host(self, index) for index in range(self.size)]
        self.cut: set[tuple[object, int]] = set()
        self.operations: list[Operation] = []
        self.loss = self.rng.choice((0.0, 0.05, 0.2))
        self.slow = self.rng.choice((0.0, 0.1, 0.3))
        self.votes_to_loss = 0  # at this vote its acceptor loses its disk
        self.is_storm = self.rng.random() < 0.2  # and again and again
        self.deaths = self.rng.choice((0.0, 0.03))
        self.known: dict[int, int] = {}  # the version that each proposer saw last
        for host in self.hosts:
            self.later(self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, 1.0))), host.start)
        for name in range(self.rng.choice((2, 3))):
            self.later(0.1, self._next, name)

    def later(self, s: float, do: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        """Do something in `s` seconds."""
        self.serial += 1
        heapq.heappush(self._queue, (self.t + s, self.serial, do, arguments))

    def play(self) -> None:
        """Play until the end."""
        while self._queue and self._queue[0][0] < END_T:
            self.t, _, do, arguments = heapq.heappop(self._queue)
            do(*arguments)

    def on_vote(self, host: Host) -> None:
        """A host has voted, and its answer is on its way."""
        self.votes_to_loss -= 1
        if self.votes_to_loss == 0:
            self.later(0.0, self.loses_disk, host, 0.001)
        if self.votes_to_loss <= 0 and self.is_storm and self.t < CALM_T:
            self.votes_to_loss = self.rng.randrange(1, 9)

    def loses_disk(self, host: Host, s: float) -> None:
        """The list can do without a minority; more disks are lost than that, and the register is, too."""
        without = sum(one is not host and (one.disk is None or not one.disk.votes) for one in self.hosts)
        if without < (self.size - 1) // 2:
            host.die(disk=False)
            self.later(s, host.start)

    # the network

    def send(self, source: object, index: int, request: AcceptorRequest, take: Callable[[AcceptorAnswer], None]) -> None:
        """Send a request to a host; `take` gets its answer, if it comes."""

        def arrives() -> None:
            answer = self.hosts[index].ask(request)
            if answer is not None:
                self._carry(source, index, lambda: take(answer))

        self._carry(source, index, arrives)

    def _carry(self, source: object, index: int, arrives: Callable[[], None]) -> None:
        rng, is_calm = self.rng, self.t >= CALM_T
        for _ in range(1 if is_calm or rng.random() > self.loss else 2):
            if is_calm or ((source, index) not in self.cut and rng.random() >= self.loss):
                is_slow = not is_calm and rng.random() < self.slow
                self.later(rng.uniform(0.03, rng.choice((0.2, 2.0))) if is_slow else rng.uniform(0.001, 0.03), arrives)

    # the proposers

    def _next(self, name: int) -> None:
        """Begin the next call of a proposer."""
        self.serial += 1
        call = proposer.RegisterCall(f"call {self.serial}", self.size, self.rng.choice((0, self.serial // 50)))
        is_read = self.rng.random() < 0.4 if self.t < CALM_T else len(self.operations) % 3 == 0  # in the end, both kinds for certain
        if is_read or name not in self.known:
            operation = Operation("read", self.t)
            steps: Any = call.read()
        else:
            operation = Operation("write", self.t, self.known[name], f"value {self.serial}")
            steps = call.write(operation.value, operation.version)
        self.operations.append(operation)
        self.later(CALL_S, self._gives_up, name, operation, steps)
        self._step(name, operation, steps, None)

    def _step(self, name: int, operation: Operation, steps: Any, answers: dict[int, AcceptorAnswer] | None) -> None:  # noqa: ANN401
        if operation.ended_t is not None:
            return
        if self.t < CALM_T and self.rng.random() < self.deaths:  # it dies, and another one comes
            operation.ended_t = float("inf")
            self.known.pop(name, None)
            self.later(self.rng.uniform(0.1, 1.0), self._next, name)
            return
        try:
            asked = steps.send(answers)
        except StopIteration as end:
            self._ended(name, operation, end.value)
        except RegisterChanged:
            self._ended(name, operation, None)
        except RegisterUnreachable:
            self._gives_up(name, operation, steps)
        else:
            if isinstance(asked, proposer.Pause):
                self.later(self.rng.uniform(0.0, PAUSE_S), self._step, name, operation, steps, None)
            else:
                self._poll(name, Poll(asked, lambda found: self._step(name, operation, steps, found)))

    def _poll(self, name: int, poll: Poll) -> None:
        def over() -> None:
            if not poll.is_over:
                poll.is_over = True
                poll.then(poll.answers)

        def take(index: int, answer: AcceptorAnswer) -> None:
            poll.answers.setdefault(index, answer)
            if not poll.is_over and (len(poll.answers) == self.size or poll.asked.enough(poll.answers)):
                over()

        for index in range(self.size):
            self.send(("proposer", name), index, poll.asked.request, lambda answer, index=index: take(index, answer))  # type: ignore[misc]
        self.later(POLL_S, over)

    def _ended(self, name: int, operation: Operation, result: Registered | int | None) -> None:
        operation.ended_t = self.t
        if isinstance(result, Registered):
            operation.seen, operation.seen_value = result.version, result.value
        elif result is not None:
            operation.seen, operation.seen_value = result, operation.value
        else:
            operation.kind, operation.seen = "changed", operation.version + 1
        self.known[name] = operation.seen
        if operation.kind == "changed":
            del self.known[name]
        self.later(self.rng.uniform(0.0, 0.1 if self.is_storm else 0.6), self._next, name)

    def _gives_up(self, name: int, operation: Operation, steps: Any) -> None:  # noqa: ANN401
        if operation.ended_t is None:
            operation.ended_t = float("inf")
            steps.close()
            self.known.pop(name, None)
            self.later(self.rng.uniform(0.0, 0.6), self._next, name)
