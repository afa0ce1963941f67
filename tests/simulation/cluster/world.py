"""Machines, links and the place where agents meet, on a virtual clock. The same seed gives the same history."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

from supervisor.cluster import messages as protocol
from supervisor.cluster import node as nodes
from supervisor.cluster import store as storage
from supervisor.cluster.model import ClusterRules
from tests.simulation.cluster.core import SimulatedCore
from tests.simulation.cluster.laws import Books, demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cluster.messages import ToNode, ToStore

TICK_S = 0.5
LAST_CALL_S = 3.0
#: How long the job is watched once nothing is broken any more.
CALM_S = 420.0
MOST_EVENTS = 400_000
#: A machine that is gone has ended the attempt on all others after so long, where nothing else happens.
LOSS_S = 12.0


class Machine:
    """One machine with its disk, and the supervisor that runs there or not."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index = world, index
        self.generation = 0
        self.memory = nodes.NodeMemory(f"n{index}/0")
        self.kept: tuple[tuple[str, str], ...] = ()
        self.core: SimulatedCore | None = None
        self.state: nodes.MemberState | None = None
        self.store: storage.StoreState | None = None
        self.stores = 0
        self.connection = 0  # its number; 0: none
        self.opened_t = 0.0
        self.paused_until = 0.0
        self.gathering = False

    @property
    def name(self) -> str:
        """The name of its node."""
        return self.memory.node

    @property
    def serves(self) -> bool:
        """Whether a store is served here."""
        return self.store is not None and self.world.t >= self.paused_until

    # the supervisor

    def start(self) -> None:
        """Start the supervisor, where none runs and the job is not over for it."""
        if self.core is not None:
            return
        world = self.world
        self.state = nodes.new_node(self.memory, world.rules, world.t)
        self.connection, self.gathering = 0, False
        if self is world.host:
            self.stores += 1
            self.store = storage.new_store(f"store {self.generation}.{self.stores}", self.name, world.rules, world.t, self.kept)
        self.core = SimulatedCore.__new__(SimulatedCore)
        self.core.__init__(self)  # type: ignore[misc]  # it may speak to the protocol at once

    def die(self, *, disk: bool = True) -> None:
        """The supervisor ends at once, and with it its ranks and the store."""
        if self.core is not None and self.core.ranks_of:
            if self.core.stage in {"agreeing", "training"}:
                self.world.watch_loss(self, self.core.ranks_of)
            self.world.books.gone(self.world.t, self.name, self.core.ranks_of, self.paused_until)
        is_host = self.store is not None
        self.core = self.state = self.store = None
        self.gathering = False
        if is_host:
            self.world.host_gone(self)
        if self.connection:
            self.world.node_gone(self)
            self.connection = 0
        if not disk:
            self.world.books.forgets(self.name, host=self is self.world.host)
            self.generation += 1
            self.memory, self.kept = nodes.NodeMemory(f"n{self.index}/{self.generation}"), ()

    def stops_with_75(self, since_t: float = 0.0) -> None:
        """Leave, where nothing gets on since then; the scheduler starts it again."""
        world = self.world
        demand(
            since_t < world.calm_t or world.books.forgotten > 0,
            f"{self.name} waited in vain since {since_t:.1f}, when all faults were over",
        )
        if self.memory.epoch is not None and self.memory.acted is None:
            world.books.aside.add((self.name, self.memory.epoch.token))
        self.give(protocol.GiveUp(self.world.t, "stopped with 75"))
        self.die()
        self.world.later(self.world.rng.uniform(1.0, 10.0), self.start)

    def give(self, message: protocol.NodeInput) -> None:
        """Give the protocol a message, and do what it asks for."""
        if self.state is None:
            return
        self.state, outputs = nodes.step(self.state, message)
        self.memory = self.state.memory  # in the journal before anything else happens
        for output in outputs:
            if isinstance(output, protocol.SendToStore):
                self.world.send_to_store(self, output.message)
            elif self.core is not None:
                self.core.take(output)

    def give_store(self, message: storage.StoreInput) -> None:
        """Give the store that is served here a message."""
        if self.store is None:
            return
        self.store, outputs = storage.step(self.store, message)
        for output in outputs:
            if isinstance(output, storage.KeepRows):
                self.kept = output.rows
            else:
                self.world.send_to_node(output.node, output.message)
        epoch = self.store.epoch
        if epoch is not None:
            for key in self.store.rows:
                if key.startswith(("lost/", "left/")):
                    _, number, node = key.split("/", 2)
                    self.world.books.out[int(number)].add(node)

    def tick(self) -> None:
        """Some time has passed."""
        if self.core is None or self.world.t < self.paused_until:
            return
        self._connect()
        self.give(protocol.NodeTick(self.world.t))
        if self.core is not None:
            self.core.tick()
        if self.core is not None and self.core.stage == "meeting" and not self.gathering:
            self.gathering = True
        self.give_store(storage.StoreTick(self.world.t))

    # its connection

    def _connect(self) -> None:
        world, state = self.world, self.state
        if state is None:
            return
        if self.connection:
            is_deaf = world.t - max(state.answered_t, self.opened_t) > world.rules.lease_s  # as a socket's keep-alive
            if is_deaf:
                world.node_gone(self)
                self.closed()
            return
        host = world.host
        if host.serves and world.passes(self.index, host.index) and world.passes(host.index, self.index):
            self.connection, self.opened_t = world.count(), world.t
            self.give(protocol.StoreOpened(world.t))

    def closed(self) -> None:
        """The connection has ended."""
        self.connection = 0
        self.leave_meeting()
        self.give(protocol.StoreClosed(self.world.t))

    def leave_meeting(self) -> None:
        """Go out of the place where the agents meet."""
        if self.gathering:
            self.gathering = False
            self.give(protocol.MeetingGivenUp(self.world.t))


class World:
    """A job of some nodes."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  no secret
        rng = self.rng
        nodes = rng.randrange(2, 6)
        self.least = rng.randrange(1, nodes + 1)
        self.rules = ClusterRules(nodes=nodes)
        self.t = 0.0
        self.books = Books()
        self.queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = itertools.count(1)
        self.machines = [Machine(self, index) for index in range(nodes)]
        self.cut: set[tuple[int, int]] = set()  # from, to
        self.meeting_since: float | None = None
        self.round: dict[int, SimulatedCore] = {}
        self.loss = rng.choice((0.0, 0.0, 0.05, 0.2))
        self.delay_s = rng.choice((0.01, 0.1, 0.5))
        self.calm_t = rng.uniform(60.0, 160.0)
        self.work_s = rng.choice(((60.0, 300.0), (60.0, 300.0), (10.0, 60.0)))
        self.stops_in = rng.choice((0, 0, 0, 2, 3, 5))  # the epoch in which the leader decides a stop
        self.triggers: list[tuple[str, int, Callable[[Machine], None]]] = []
        self.seen: dict[str, int] = defaultdict(int)
        self.faults = 0

    @property
    def host(self) -> Machine:
        """The machine whose supervisor serves the store."""
        return self.machines[0]

    def count(self) -> int:
        """Return a number that no other call returned."""
        return next(self._count)

    def later(self, after_s: float, do: Callable[..., None], *args: object) -> None:
        """Do something in a while."""
        heapq.heappush(self.queue, (self.t + after_s, self.count(), do, args))

    def watch_loss(self, lost: Machine, number: int) -> None:
        """Demand that the others end the attempt of a machine that is gone, where this is all that happens."""
        self.faults += 1
        if self.loss == 0.0 and lost is not self.host:
            self.later(LOSS_S, self._lost, lost, number, self.faults)

    def _lost(self, lost: Machine, number: int, faults: int) -> None:
        for machine in self.machines:
            core = machine.core
            if (
                core is not None
                and faults == self.faults
                and not self.cut
                and machine is not lost
                and self.t >= machine.paused_until + LOSS_S
            ):
                trains = core.ranks_of == number and core.stage in {"agreeing", "training"}
                demand(
                    not trains or not machine.connection,
                    f"{machine.name} trains on in epoch {number}, {LOSS_S} s after {lost.name} was lost",
                )

    def happened(self, what: str, machine: Machine) -> None:
        """Note a step of the protocol: faults may wait for it."""
        self.seen[what] += 1
        for name, nth, do in self.triggers:
            if name == what and nth == self.seen[what] and self.t < self.calm_t - 1.0:
                self.later(0.0 if self.rng.random() < 0.7 else self.rng.uniform(0.0, 0.3), do, machine)

    # messages

    def passes(self, sender: int, receiver: int) -> bool:
        """Whether a message comes through now."""
        return (sender, receiver) not in self.cut

    def _copies(self) -> int:
        if self.t >= self.calm_t:
            return 1
        if self.rng.random() < self.loss:
            return 0
        return 2 if self.rng.random() < self.loss else 1

    def _way_s(self) -> float:
        return self.rng.expovariate(1 / self.delay_s) + 0.001 if self.t < self.calm_t else 0.005

    def send_to_store(self, machine: Machine, message: ToStore) -> None:
        """Send a message of a node over its connection."""
        host, store = self.host, self.host.store
        for _ in range(self._copies() if machine.connection else 0):
            self.later(self._way_s(), self._at_store, machine.index, host, store and store.name, message)

    def _at_store(self, sender: int, host: Machine, store: str | None, message: ToStore) -> None:
        if host.store is None or host.store.name != store or not self.passes(sender, host.index):
            return
        if not host.serves:
            self.later(TICK_S, self._at_store, sender, host, store, message)
        else:
            host.give_store(storage.FromNode(self.t, message))

    def send_to_node(self, node: str, message: ToNode) -> None:
        """Send a message of the store."""
        machine = next((one for one in self.machines if one.name == node), None)
        for _ in range(self._copies() if machine is not None and machine.connection else 0):
            assert machine is not None
            self.later(self._way_s(), self._at_node, machine, machine.core, machine.connection, message)

    def _at_node(self, machine: Machine, core: object, connection: int, message: ToNode) -> None:
        if machine.core is not core or machine.connection != connection or not self.passes(self.host.index, machine.index):
            return
        if self.t < machine.paused_until:
            self.later(TICK_S, self._at_node, machine, core, connection, message)
        else:
            machine.give(protocol.FromStore(self.t, message))

    def host_gone(self, host: Machine) -> None:
        """The store is gone: who is connected and can be reached notices it."""
        for machine in self.machines:
            if machine is not host and machine.connection and self.passes(host.index, machine.index):
                self.later(self._way_s(), self._reset, machine, machine.connection)

    def _reset(self, machine: Machine, connection: int) -> None:
        if machine.connection == connection and machine.core is not None:
            machine.closed()

    def node_gone(self, machine: Machine) -> None:
        """A node's end of its connection is closed."""
        host = self.host
        if self.passes(machine.index, host.index):
            self.later(self._way_s(), self._closed_at_store, host, host.store and host.store.name, machine.name)

    def _closed_at_store(self, host: Machine, store: str | None, node: str) -> None:
        machine = next((one for one in self.machines if one.name == node), None)
        is_gone = machine is None or not machine.connection
        if host.store is not None and host.store.name == store and is_gone:
            host.give_store(storage.NodeClosed(self.t, node))

    # the place where the agents meet: torch's rendezvous, beside the store

    def _meet(self) -> None:
        here = [machine for machine in self.machines if machine.gathering and machine.core is not None and machine.connection]
        ready = [m for m in here if m.state is not None and m.state.meeting is None and m.core is not None and m.core.stage == "meeting"]
        for index, core in list(self.round.items()):
            machine = self.machines[index]
            reached = self.passes(machine.index, self.host.index) and machine.core is core
            if machine in ready or not reached or core.stage in {"meeting", "stopped", "done"}:
                del self.round[index]
        if len(ready) < self.least or self.round:
            self.meeting_since = None
            if ready and self.round and self.rng.random() < (0.02 if self.t < self.calm_t else 0.1):
                cores = list(self.round.values())
                if self.rng.choice((True, False)):
                    self.rng.choice(cores).admits()
                else:
                    for core in cores:
                        self.later(self.rng.uniform(0.0, 3.0), core.saves, core.ranks_of)
            return
        since = self.meeting_since = self.t if self.meeting_since is None else self.meeting_since
        if len(ready) == len(self.machines) or self.t - since >= LAST_CALL_S:
            self.meeting_since = None
            token = f"meeting {self.count()}"
            self.rng.shuffle(ready)
            for index, machine in enumerate(ready):
                assert machine.core is not None
                self.round[machine.index] = machine.core
                number = machine.core.next_number
                self.later(self.rng.uniform(0.0, 0.2), self._met, machine, machine.core, token, index, len(ready), number)

    def _met(self, machine: Machine, core: object, token: str, index: int, count: int, number: int) -> None:  # noqa: PLR0913, PLR0917
        if machine.core is core and machine.core is not None and machine.core.stage == "meeting" and machine.gathering:
            machine.give(protocol.NodesTogether(self.t, token, index, count, number))

    def _still_meeting(self) -> None:
        for machine in self.machines:
            if machine.core is not None and machine.core.stage != "meeting":
                machine.gathering = False

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
        self._still_meeting()
        self._meet()
        self.later(TICK_S, self._tick)

    def _is_settled(self) -> bool:
        """Whether all nodes train in one epoch, or all have stopped, or all are done."""
        cores = [machine.core for machine in self.machines]
        ways = {(core.stage, core.ranks_of if core.stage == "training" else 0) if core else None for core in cores}
        return len(ways) == 1 and ways.pop() is not None and cores[0] is not None and cores[0].stage in {"training", "stopped", "done"}
