"""The connections between the nodes and the coordinator: as TCP's, over links that are cut and healed.

Over one connection everything arrives once and in order. Where the link is cut it waits, and arrives when the link is whole again, unless
an end has given up the connection meanwhile: then all that was under way is lost with it. Each end gives up for itself, and a process that
is stopped keeps its connections.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from supervisor.cluster.coordinator import NodeClosed
from supervisor.cluster.messages import FromCoordinator, FromNode, Join, LinkOpened

if TYPE_CHECKING:
    from tests.simulation.cluster.world import Machine, World

#: A cut link shows itself after so long (TCP_USER_TIMEOUT, keep-alive); at each end by itself.
DEAD_S = (3.0, 6.0)
#: How often it is tried to send over a link that is cut.
AGAIN_S = 0.2
_CLOSE = object()


class Connection:
    """One connection of a node. host_life: the coordinator that it leads to."""

    def __init__(self, world: World, machine: Machine, host: Machine) -> None:
        self.world, self.machine, self.host = world, machine, host
        self.core, self.host_life = machine.core, host.life
        self.node = ""  # since its Join
        self.queues: dict[bool, deque[object]] = {True: deque(), False: deque()}  # to the host, to the node
        self.is_open = {True: True, False: True}  # at the host, at the node
        self.cut_t: dict[bool, float | None] = {True: None, False: None}
        self.vanished = False  # the machine of an end lost its power, and says nothing
        self.dead_s = {True: world.rng.uniform(*DEAD_S), False: world.rng.uniform(*DEAD_S)}

    def send(self, message: object, *, to_host: bool) -> None:
        """Send a message; it is lost where this end is closed."""
        if not self.is_open[not to_host]:
            return
        queue = self.queues[to_host]
        queue.append(message)
        if len(queue) == 1:
            self.world.later(self.world.way_s(), self._arrives, to_host)

    def _arrives(self, to_host: bool) -> None:  # noqa: FBT001
        """Hand over what is first under way, when the link is whole and the receiver runs."""
        world, queue = self.world, self.queues[to_host]
        if not queue or not self.is_open[to_host]:
            queue.clear()
            return
        sender, receiver = (self.machine, self.host) if to_host else (self.host, self.machine)
        wait_s = receiver.paused_until - world.t
        if not world.passes(sender.index, receiver.index):
            world.later(AGAIN_S, self._arrives, to_host)
        elif wait_s > 0.0:
            world.later(min(wait_s, AGAIN_S), self._arrives, to_host)
        else:
            message = queue.popleft()
            if queue:
                world.later(world.way_s() / 4, self._arrives, to_host)
            self._hand_over(message, to_host=to_host)

    def _hand_over(self, message: object, *, to_host: bool) -> None:
        if message is _CLOSE:
            self.close_end(host=to_host)
        elif not to_host:
            if self.machine.core is self.core:
                self.machine.give(FromCoordinator(self.world.t, message))  # type: ignore[arg-type]
        elif self.host.life == self.host_life and self.host.coordinator is not None:
            if isinstance(message, Join):
                self.node = message.node
                before = self.host.links.get(self.node)
                self.host.links[self.node] = self
                if before is not None and before is not self:
                    before.is_open[True] = False  # a node that opens a second connection has lost the first
                    before.send_close(to_host=False)
            self.host.heard(self.node)
            self.host.give_coordinator(FromNode(self.world.t, self.node, message))  # type: ignore[arg-type]

    def send_close(self, *, to_host: bool) -> None:
        """Let the other end learn that this one is closed, as soon as the link lets it."""
        queue = self.queues[to_host]
        queue.append(_CLOSE)
        if len(queue) == 1:
            self.world.later(self.world.way_s(), self._arrives, to_host)

    def close_end(self, *, host: bool, notify: bool = True, unreachable_s: float = 0.0) -> None:
        """One end is closed; its process learns it, if it lives and runs. unreachable_s: the other end did not answer for so long."""
        if not self.is_open[host]:
            return
        self.is_open[host] = False
        self.queues[host].clear()
        self.send_close(to_host=not host)
        if notify:
            self._tell(host, unreachable_s)

    def _tell(self, host: bool, unreachable_s: float = 0.0) -> None:  # noqa: FBT001
        world = self.world
        process = self.host if host else self.machine
        if process.paused_until > world.t:
            world.later(AGAIN_S, self._tell, host, unreachable_s)
        elif not host:
            if self.machine.core is self.core and self.machine.connection is self:
                self.machine.closed(unreachable_s)
        elif self.host.life == self.host_life and self.node and self.host.links.get(self.node) is self:
            del self.host.links[self.node]
            self.host.node_closed(self.node, unreachable_s)
            self.host.give_coordinator(NodeClosed(world.t, self.node, unreachable_s))

    def tick(self) -> None:
        """Give up an end whose link has been cut for too long."""
        world, a, b = self.world, self.machine.index, self.host.index
        is_cut = self.vanished or not (world.passes(a, b) and world.passes(b, a))
        for host in (True, False):
            if not is_cut:
                self.cut_t[host] = None
            elif self.cut_t[host] is None:
                self.cut_t[host] = world.t
            elif world.t - (self.cut_t[host] or 0.0) > self.dead_s[host]:
                self.close_end(host=host, unreachable_s=self.dead_s[host])

    @property
    def is_over(self) -> bool:
        """Whether both ends are closed."""
        return not (self.is_open[True] or self.is_open[False])

    def reset(self) -> None:
        """Both ends are closed at once, and what is under way is lost."""
        for queue in self.queues.values():
            queue.clear()
        for host in (True, False):
            if self.is_open[host]:
                self.is_open[host] = False
                self._tell(host)


def opened(world: World, machine: Machine) -> None:
    """Let a machine connect to the coordinator, if its host lets it in: also one that is stopped does."""
    host = world.host
    if host.coordinator is None or not (world.passes(machine.index, host.index) and world.passes(host.index, machine.index)):
        return
    connection = machine.connection = Connection(world, machine, host)
    world.connections.append(connection)
    machine.give(LinkOpened(world.t))
