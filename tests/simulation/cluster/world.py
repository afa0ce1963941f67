"""Machines, links and the place where agents meet, on a virtual clock. The same seed gives the same history."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

from supervisor.cluster import coordinator as coordinators
from supervisor.cluster import member as members
from supervisor.cluster import messages as protocol
from supervisor.cluster.model import ClusterRules, CoordinatorMemory, NodeMemory
from tests.simulation.cluster.core import SimulatedCore
from tests.simulation.cluster.laws import Books, demand
from tests.simulation.cluster.links import Connection, opened

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 0.5
LAST_CALL_S = 3.0
#: How long the job is watched once nothing is broken any more.
CALM_S = 520.0
MOST_EVENTS = 400_000
#: What a stopped host serves on for.
LINGER_S = 15.0
#: A machine that is gone has ended the attempt on all others after the time of the rule, and some messages.
LOSS_S = 4.0


class Machine:
    """One machine with its disk, and the supervisor that runs there or not."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index = world, index
        self.generation = 0
        self.memory = NodeMemory(f"n{index}/0")
        self.kept = CoordinatorMemory()
        self.core: SimulatedCore | None = None
        self.state: members.MemberState | None = None
        self.coordinator: coordinators.CoordinatorState | None = None
        self.life = 0  # of the coordinator
        self.links: dict[str, Connection] = {}  # of each node, at the coordinator here
        self.connection: Connection | None = None
        self.paused_until = 0.0
        self.awake_s = 0.0  # how long its supervisor ran
        self.served = 0.0  # by `awake_s`: since when the coordinator is served here
        self.silent_since: dict[str, float] = {}  # by `awake_s`: when a node was last heard, or could be reached
        self.answered = self.lost_it = 0.0  # by `awake_s`: when the coordinator last said something, and could be reached
        self.gathering = False

    @property
    def name(self) -> str:
        """The name of its node."""
        return self.memory.node

    # the supervisor

    def start(self) -> None:
        """Start the supervisor, where none runs and the job is not over for it."""
        if self.core is not None:
            return
        world = self.world
        self.state = members.new_member(self.memory, world.rules, world.t)
        self.connection, self.gathering = None, False
        self.answered = self.lost_it = self.awake_s
        if self is world.host:
            self.life += 1
            self.links, self.silent_since, self.served = {}, {}, self.awake_s
            self.coordinator = coordinators.new_coordinator(self.name, world.rules, world.t, self.kept)
        self.core = SimulatedCore.__new__(SimulatedCore)
        self.core.__init__(self)  # type: ignore[misc]  # it may speak to the protocol at once

    def die(self, *, disk: bool = True, power: bool = True) -> None:
        """The supervisor ends at once, and with it its ranks and the coordinator."""
        if self.core is not None and self.core.ranks_of:
            if self.core.stage in {"agreeing", "training"}:
                self.world.watch_loss(self, self.core.ranks_of)
            self.ranks_gone(self.core)
        self.core = self.state = self.coordinator = None
        self.gathering, self.connection, self.life = False, None, self.life + 1
        for connection in self.world.connections:
            for end, machine in ((True, connection.host), (False, connection.machine)):
                if machine is self and connection.is_open[end]:
                    connection.vanished = not power
                    if power:
                        connection.close_end(host=end, notify=False)
                    else:
                        connection.is_open[end] = False
        if power and disk and self.world.rng.random() < 0.5:
            self.world.later(self.world.rng.uniform(0.0, 0.5), self._guardian_says, self.name, self.world.host.life)
        if not disk:
            self.world.books.forgets(self.name, host=self is self.world.host)
            self.generation += 1
            self.memory, self.kept = NodeMemory(f"n{self.index}/{self.generation}"), CoordinatorMemory()

    def ranks_gone(self, core: SimulatedCore) -> None:
        """The ranks here are gone. Until `told_t` nobody told this node to end them: it was stopped, or the coordinator was."""
        told_t = max(self.paused_until, self.world.host.paused_until if self.connection is not None else 0.0)
        self.world.books.gone(self.world.t, self.name, core.ranks_of, told_t)

    def _guardian_says(self, name: str, life: int) -> None:
        host = self.world.host
        if self.core is None and host.life == life and host.coordinator is not None and self.world.passes(self.index, host.index):
            if host.paused_until > self.world.t:
                self.world.later(TICK_S, self._guardian_says, name, life)
            else:
                host.give_coordinator(protocol.FromNode(self.world.t, name, protocol.Gone(name)))

    def stops_with_75(self, since_t: float = 0.0) -> None:
        """Leave, where nothing gets on since then; the scheduler starts it again. Who serves the coordinator does so until it decided."""
        world = self.world
        demand(since_t < world.calm_t, f"{self.name} waited in vain since {since_t:.1f}, when all faults were over")
        if self.memory.attempt is not None and self.memory.acted is None:
            world.books.aside.add((self.name, self.memory.attempt.token))
        if self.core is not None and self.core.ranks_of:
            self.ranks_gone(self.core)
            self.core.ranks_of = 0
        self.give(protocol.GiveUp(world.t, "stopped with 75"))
        if self.core is not None:
            self.core.to("leaving")
            self._leaves(self.core, world.t + LINGER_S)

    def _leaves(self, core: SimulatedCore, until_t: float) -> None:
        world = self.world
        if self.core is not core:
            return
        if self.coordinator is None or (self.coordinator.open_attempt is None and world.t > until_t - LINGER_S + 1.0) or world.t >= until_t:
            world.later(0.1, self._left, core)
        else:
            world.later(TICK_S, self._leaves, core, until_t)

    def _left(self, core: SimulatedCore) -> None:
        if self.core is core:
            self.die()
            self.world.later(self.world.rng.uniform(1.0, 10.0), self.start)

    def give(self, message: members.MemberInput) -> None:
        """Give the protocol a message, and do what it asks for."""
        if self.state is None:
            return
        self.state, outputs = members.step(self.state, message)
        self.memory = self.state.memory  # on the disk before anything else happens
        if isinstance(message, protocol.FromCoordinator):
            self.answered = self.awake_s
        for output in outputs:
            if isinstance(output, protocol.SendToCoordinator):
                if self.connection is not None:
                    self.connection.send(output.message, to_host=True)
            elif self.core is not None:
                self.core.take(output)

    def give_coordinator(self, message: coordinators.CoordinatorInput) -> None:
        """Give the coordinator that is served here a message."""
        if self.coordinator is None:
            return
        before = self.coordinator
        self.coordinator, outputs = coordinators.step(before, message)
        after = self.coordinator
        self.kept = after.memory  # on the disk before anything else happens
        attempt = after.memory.attempt
        if attempt is not None and after.absences != before.absences:
            self.world.books.out[attempt.number].update(after.absences)
            for node in after.absences.keys() - before.absences.keys():
                self.world.judge_loss(self, before, node, after.absences[node])
        for output in outputs:
            if not isinstance(output, protocol.SendToNodes):
                if self.core is not None:
                    self.core.take(output)
                continue
            for node in output.nodes:
                connection = self.links.get(node)
                if connection is not None:
                    connection.send(output.message, to_host=False)

    def heard(self, node: str) -> None:
        """A node said something to the coordinator here."""
        self.silent_since[node] = self.awake_s

    def node_closed(self, node: str, unreachable_s: float) -> None:
        """The connection of a node is closed here, whose host did not answer for so long."""
        self.silent_since[node] = max(self.silent_since.get(node, self.served), self.awake_s - unreachable_s)

    def tick(self) -> None:
        """Some time has passed."""
        if self.core is None or self.world.t < self.paused_until:
            return
        self.awake_s += TICK_S
        if self.connection is None:
            opened(self.world, self)
        self.give(protocol.NodeTick(self.world.t, "", *self.core.steps()))
        if self.core is not None:
            self.core.tick()
        if self.core is not None and self.core.stage == "meeting" and not self.gathering:
            self.gathering = True
        self.give_coordinator(protocol.CoordinatorTick(self.world.t))

    def closed(self, unreachable_s: float = 0.0) -> None:
        """The connection has ended. unreachable_s: the host did not answer for so long."""
        self.connection, self.lost_it = None, max(self.answered, self.awake_s - unreachable_s)
        self.leave_meeting()
        self.give(protocol.LinkClosed(self.world.t, unreachable_s))

    def leave_meeting(self) -> None:
        """Go out of the place where the agents meet."""
        if self.gathering:
            self.gathering = False
            self.give(protocol.MeetingGivenUp(self.world.t))


class World:
    """A job of some nodes, one of which may be a spare."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  no secret
        rng = self.rng
        nodes = rng.randrange(2, 6)
        self.least = rng.randrange(1, nodes + 1)
        self.rules = ClusterRules(nodes=nodes, wait_s=120.0)
        self.t = 0.0
        self.books = Books()
        self.queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = itertools.count(1)
        self.machines = [Machine(self, index) for index in range(nodes + (rng.random() < 0.3))]
        self.connections: list[Connection] = []
        self.cut: set[tuple[int, int]] = set()  # from, to
        self.meeting_since: float | None = None
        self.round: dict[int, SimulatedCore] = {}
        self.delay_s = rng.choice((0.01, 0.1, 0.5))
        self.step_s = rng.choice((0.5, 0.5, 5.0, 20.0))
        self.shows = rng.choice(("all", "all", "first", "none"))  # whose ranks let their node see that a step ended
        self.steps: dict[str, list[float]] = defaultdict(list)  # by the token of the attempt: when its steps ended
        self.books.overlap_s = max(self.rules.closed_s, 2 * self.step_s) + 14.0
        self.calm_t = rng.uniform(60.0, 160.0)
        self.work_s = rng.choice(((60.0, 300.0), (60.0, 300.0), (10.0, 60.0)))
        self.stops_in = rng.choice((0, 0, 0, 2, 3, 5))  # the attempt in which the core decides a stop
        self.triggers: list[tuple[str, int, Callable[[Machine], None]]] = []
        self.seen: dict[str, int] = defaultdict(int)
        self.faults = 0

    @property
    def host(self) -> Machine:
        """The machine whose supervisor serves the coordinator."""
        return self.machines[0]

    def count(self) -> int:
        """Return a number that no other call returned."""
        return next(self._count)

    def later(self, after_s: float, do: Callable[..., None], *args: object) -> None:
        """Do something in a while."""
        heapq.heappush(self.queue, (self.t + after_s, self.count(), do, args))

    def passes(self, sender: int, receiver: int) -> bool:
        """Whether a message comes through now."""
        return (sender, receiver) not in self.cut

    def way_s(self) -> float:
        """Return how long a message is under way."""
        return self.rng.expovariate(1 / self.delay_s) + 0.001 if self.t < self.calm_t else 0.005

    def machine_of(self, node: str) -> Machine | None:
        """Return the machine of a node; None where it was replaced."""
        return next((machine for machine in self.machines if machine.name == node), None)

    # laws about losses

    def watch_loss(self, lost: Machine, number: int) -> None:
        """Demand that the others end the attempt of a machine that is gone, where this is all that happens."""
        self.faults += 1
        after_s = 6.0 + max(self.rules.closed_s, 2 * self.step_s) + LOSS_S + 4 * self.delay_s
        if lost is not self.host:
            self.later(after_s, self._lost, lost, number, self.faults, after_s)

    def _lost(self, lost: Machine, number: int, faults: int, after_s: float) -> None:
        for machine in self.machines:
            core = machine.core
            if core is None or faults != self.faults or self.cut or machine is lost:
                continue
            if any(self.t < other.paused_until + after_s for other in (machine, self.host)):
                continue
            trains = core.ranks_of == number and core.stage in {"agreeing", "training"}
            demand(
                not trains or machine.connection is None,
                f"{machine.name} trains on in attempt {number}, {after_s} s after {lost.name} was lost",
            )

    def judge_loss(self, host: Machine, before: coordinators.CoordinatorState, node: str, why: str) -> None:
        """Demand of a loss that the coordinator was not away, and that no steps are made."""
        attempt = before.memory.attempt
        if attempt is None or before.running_attempt is None or " for " not in why or not why.startswith("lost: "):
            return
        rules = self.rules
        silent_s = host.awake_s - host.silent_since.get(node, host.served)
        least_s = rules.silent_s if "silent for" in why else rules.closed_s
        demand(silent_s >= least_s - 2 * TICK_S, f"{node} is {why}, and the coordinator was there for {silent_s} s of that")
        if "silent for" in why:
            return
        limit_s, slack_s = max(rules.closed_s, 2 * self.step_s), rules.beat_s + 2 * TICK_S + 8 * self.delay_s
        for name in attempt.members:
            other = self.machine_of(name)
            if other is None or name == node or name in before.absences or name not in host.links or other.core is None:
                continue
            if not other.core.shows_steps or self.t < other.paused_until or other.core.stage != "training":
                continue
            recent = [t for t in self.steps[attempt.token] if self.t - limit_s + slack_s < t < self.t - slack_s]
            demand(not recent, f"{node} is {why}, while ranks of {name} end steps: {recent[-3:]}, now {self.t}")

    def happened(self, step: str, machine: Machine) -> None:
        """Note a step of the protocol: faults may wait for it."""
        self.seen[step] += 1
        for name, nth, do in self.triggers:
            if name == step and nth == self.seen[step] and self.t < self.calm_t - 1.0:
                self.later(0.0 if self.rng.random() < 0.7 else self.rng.uniform(0.0, 0.3), do, machine)

    # the place where the agents meet: torch's rendezvous, beside the coordinator

    def _meet(self) -> None:
        here = [machine for machine in self.machines if machine.gathering and machine.core is not None and machine.connection is not None]
        ready = [m for m in here if m.state is not None and m.state.meeting is None and m.core is not None and m.core.stage == "meeting"]
        for index, core in list(self.round.items()):
            machine = self.machines[index]
            reached = self.passes(machine.index, self.host.index) and machine.core is core
            if machine in ready or not reached or core.stage in {"meeting", "stopped", "done", "leaving"}:
                del self.round[index]
        if len(ready) < self.least or self.round:
            self.meeting_since = None
            if ready and 0 < len(self.round) < self.rules.nodes and self.rng.random() < (0.02 if self.t < self.calm_t else 0.1):
                cores = list(self.round.values())
                if self.rng.choice((True, False)):
                    self.rng.choice(cores).admits()
                else:
                    for core in cores:
                        self.later(self.rng.uniform(0.0, 3.0), core.saves, core.ranks_of)
            return
        since = self.meeting_since = self.t if self.meeting_since is None else self.meeting_since
        if len(ready) >= self.rules.nodes or self.t - since >= LAST_CALL_S:
            self.meeting_since = None
            token = f"meeting {self.count()}"
            self.rng.shuffle(ready)
            ready = ready[: self.rules.nodes]  # the others are spares
            for index, machine in enumerate(ready):
                assert machine.core is not None
                self.round[machine.index] = machine.core
                number = machine.core.next_number
                self.later(self.rng.uniform(0.0, 0.2), self._met, machine, machine.core, token, index, len(ready), number)

    def _met(self, machine: Machine, core: object, token: str, index: int, count: int, number: int) -> None:  # noqa: PLR0913, PLR0917
        if machine.core is core and machine.core is not None and machine.core.stage == "meeting" and machine.gathering:
            machine.give(protocol.NodesTogether(self.t, token, index, count, number))
            self.happened("met", machine)

    def _still_meeting(self) -> None:
        for machine in self.machines:
            if machine.core is not None and machine.core.stage != "meeting":
                machine.gathering = False

    # the ranks

    def _train(self) -> None:
        """Let the ranks of an attempt end steps: all of them train, and reach each other. A stopped supervisor does not hold them up."""
        training: dict[str, set[int]] = defaultdict(set)
        sizes: dict[str, int] = {}
        for machine in self.machines:
            core, attempt = machine.core, machine.memory.attempt
            if core is not None and attempt is not None and core.stage == "training" and core.ranks_of == attempt.number:
                training[attempt.token].add(machine.index)
                sizes[attempt.token] = len(attempt.members)
        for token, nodes in training.items():
            ended = self.steps[token]
            reach = all(self.passes(a, b) for a in nodes for b in nodes)
            if len(nodes) == sizes[token] and reach and (not ended or self.t - ended[-1] >= self.step_s):
                ended.append(self.t)
                stopped = [index for index in nodes if self.t < self.machines[index].paused_until]
                if not stopped:
                    machine = self.machines[min(nodes)]
                    assert machine.core is not None
                    self.books.steps(self.t, machine.name, machine.core.ranks_of)

    # the history

    def play(self) -> None:
        """Play from the start to the end. Raises LawBroken."""
        for machine in self.machines:
            self.later(self.rng.uniform(0.0, 5.0), machine.start)
        self.later(0.0, self._tick)
        end_t, events = self.calm_t + CALM_S, 0
        while self.queue and self.t < end_t:
            self.t, _, do, args = heapq.heappop(self.queue)
            do(*args)
            events += 1
            demand(events < MOST_EVENTS, "no end")
            if self.t > self.calm_t and self.t % 10 < TICK_S and self._is_settled():
                return
        demand(self._is_settled(), f"not settled: {[(m.name, m.core and (m.core.stage, m.core.ranks_of)) for m in self.machines]}")

    def _tick(self) -> None:
        for machine in self.machines:
            machine.tick()
        self.connections = [connection for connection in self.connections if not connection.is_over]
        for connection in self.connections:
            if self.cut or connection.vanished or connection.cut_t[True] is not None:
                connection.tick()
        self._still_meeting()
        self._meet()
        self._train()
        self.later(TICK_S, self._tick)

    def _is_settled(self) -> bool:
        """Whether all nodes train in one attempt, but for spares, or all have stopped, or all are done."""
        cores = [machine.core for machine in self.machines]
        ways = {(core.stage, core.ranks_of if core.stage == "training" else 0) if core else None for core in cores}
        spares = sum(core is not None and core.stage == "meeting" for core in cores)
        if spares == len(cores) - self.rules.nodes and any(way is not None and way[0] == "training" for way in ways):
            ways.discard(("meeting", 0))
        return len(ways) == 1 and next(iter(ways)) is not None and next(iter(ways))[0] in {"training", "stopped", "done"}  # type: ignore[index]
