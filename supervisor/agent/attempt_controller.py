"""Carries out the supervisor's commands on the link's thread, and holds torch's main thread at a gate until an attempt is wanted.

Nothing here waits for the main thread, which may sit in a C++ store wait. An exception in one of these threads ends the process: the ranks
die with it (PDEATHSIG), and the supervisor starts another agent. One condition guards which attempt is wanted and whether to leave;
`RankMonitor` knows which ranks live.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.agent import ranks as outcomes
from supervisor.agent.messages import (
    Admit,
    AgentFailed,
    AllRanksDone,
    Complete,
    DropStandbys,
    Go,
    MissingNodesCounted,
    NodesMet,
    PrepareStandbys,
    PublishCoordinator,
    RendezvousCompleted,
    Renumber,
    Start,
    StopCommand,
    WaitingNodesCounted,
)
from supervisor.agent.ranks import RankMonitor
from supervisor.agent.rendezvous import AttemptCancelled, CoordinatorLocation, MetNode, find_coordinator, publish_coordinator
from supervisor.agent.standbys import AgentStandbys

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]  # exported where the build has it

    from supervisor.agent.link import SupervisorLink
    from supervisor.agent.messages import Command

LEAVE_S = 2.5  # from the last rank's end to the agent's, when the supervisor ordered it to leave
ORPHANED_S = 6.0  # the guardian ends us 4 s after the supervisor's end; this is for the day that it does not
POLL_S = 0.2  # between two checks whether an attempt was stopped


class AttemptController:
    """The threads beside torch's, and the gate between them."""

    def __init__(self, link: SupervisorLink, *, grace_s: float, ignore_signals: Callable[[], None]) -> None:
        """Start the watcher; the link is read from `start` on."""
        self._link = link
        self._grace_s = grace_s
        self.ignore_signals = ignore_signals
        self.over_for_all = False  # the rendezvous may be closed
        self._changed = threading.Condition()
        self._attempt = 0  # the newest that was ordered: this process does not see the supervisor's state
        self._taken = 0  # attempt that the main thread works at
        self._go: Go | None = None
        self._orders: deque[PublishCoordinator | Start | Complete] = deque()  # of the attempt that the main thread works at
        self._awaits_success = False  # our ranks exited 0, those of other nodes may still fail
        self._leave: int | None = None
        self._coordinator: CoordinatorLocation | None = None  # as the last round showed it
        self.standbys = AgentStandbys(link.send)
        self.ranks = RankMonitor(link.send, grace_s=grace_s, on_ended=self._attempt_ended, on_crash=self._crash)

    @property
    def attempt(self) -> int:
        """The newest attempt asked for."""
        return self._attempt

    def start(self) -> None:
        """Begin to read the link."""
        threading.Thread(target=self._serve, name="link", daemon=True).start()

    # --- the main thread ------------------------------------------------------------------------------------------------------------

    def wait_for_go(self) -> Go:
        """Block until an attempt is wanted. Raises SystemExit where the supervisor ordered us to leave."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._go is not None or self._leave is not None)
                if self._leave is not None:
                    raise SystemExit(self._leave)
                go, self._go = self._go, None
                if go is not None and not self.ranks.wait(go.attempt, 0):  # else it was stopped before we came here
                    self._taken = go.attempt
                    return go

    def cancelled(self) -> bool:
        """Whether the attempt that the main thread works at was stopped. Another may be wanted already."""
        with self._changed:  # it may get another number now
            return self.ranks.wait(self._taken, 0) is not None

    def met(self, rendezvous: RendezvousCompleted) -> None:
        """The rendezvous is complete."""
        self._link.send(rendezvous)

    def agree(self, store: Store, token: str, node: MetNode) -> Go:
        """Let the supervisors of the nodes that have met find each other, and agree; return how the ranks start.

        Raises AttemptCancelled where the attempt is stopped meanwhile.
        """
        place = find_coordinator(store, node, self.cancelled, self._coordinator)
        self._coordinator = place or self._coordinator
        met = NodesMet(self._taken, node.index, node.count, token, world_size=node.world_size)
        self._link.send(met if place is None else replace(met, host=place.host, port=place.port, key=place.key))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._orders), POLL_S)
                order = self._orders.popleft() if self._orders else None
            if self.cancelled():
                raise AttemptCancelled
            if isinstance(order, Start):
                return order.go
            if isinstance(order, PublishCoordinator):
                self._coordinator = CoordinatorLocation(node.address, order.port, order.key)
                publish_coordinator(store, self._coordinator)

    def await_success(self, attempt: int) -> str:
        """All ranks of this node exited 0: wait until those of all nodes have, or the attempt ends in another way; return its outcome."""
        self._awaits_success = True
        self._link.send(AllRanksDone(attempt))
        while self.ranks.wait(attempt, 0) == outcomes.ALL_EXITED_0:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._orders), POLL_S)
                order = self._orders.popleft() if self._orders else None
            if isinstance(order, Complete):
                self.over_for_all = True
                break
        self._awaits_success = False
        return self.ranks.settle(attempt)

    def nodes_waiting(self, count: int) -> None:
        """The number of nodes that want to join has changed."""
        self._link.send(WaitingNodesCounted(self._attempt, count))

    def nodes_missing(self, count: int, within_s: float) -> None:
        """The number of nodes that are missing to begin has changed."""
        self._link.send(MissingNodesCounted(self._taken, count, within_s))

    def end_ranks(self, attempt: int) -> None:
        """End what lives of the attempt, if anything does, within the grace and a little."""
        if attempt and self.ranks.wait(attempt, 0) is None:
            self.ranks.stop(attempt, signal.SIGTERM, None, outcomes.FAILED)
            self.ranks.wait(attempt, self._grace_s + outcomes.END_DEADLINE_S)

    def finish(self) -> None:
        """End the standbys."""
        self.standbys.drop()

    # --- the link's thread ----------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            for command in self._link.commands():
                self._take(command)
        except BaseException:  # noqa: BLE001  without the supervisor's commands we are of no use
            self._crash()
        time.sleep(ORPHANED_S)
        self.ranks.stop(self._attempt, signal.SIGKILL, 0.0, outcomes.STOPPED)
        self.ranks.wait(self._attempt, outcomes.END_DEADLINE_S)
        os._exit(1)

    def _take(self, command: Command) -> None:
        if command.attempt < self._attempt:
            return  # of an attempt that is over
        if isinstance(command, Go):
            if command.attempt == self._attempt:
                return
            self.ranks.begin(command.attempt)
            with self._changed:
                self._attempt, self._go = command.attempt, command
                self._orders.clear()
                self._changed.notify_all()
        elif isinstance(command, (PublishCoordinator, Start, Complete)):
            with self._changed:
                self._orders.append(command)
                self._changed.notify_all()
        elif isinstance(command, Renumber):
            with self._changed:
                self.ranks.renumber(command.attempt, command.number)
                if self._taken == command.attempt:
                    self._taken = command.number
                self._attempt = command.number
        elif isinstance(command, StopCommand):
            self._stop(command)
        elif isinstance(command, (PrepareStandbys, DropStandbys)):
            self.standbys.order(command)
        else:
            self._admit(command)

    def _admit(self, command: Admit) -> None:
        self.ranks.stop(command.attempt, signal.SIGTERM, None, outcomes.MEMBERSHIP)

    def _stop(self, command: StopCommand) -> None:
        if command.failure:
            self.ranks.fail(command.attempt, command.signum, command.grace_s, also_done=self._awaits_success)
            return
        self.over_for_all |= command.for_all
        if command.exit_code is not None:
            with self._changed:
                self._leave = command.exit_code
                self._changed.notify_all()
        under_way = self.ranks.stop(self._attempt, command.signum, command.grace_s, outcomes.STOPPED)
        if command.exit_code is not None and not under_way:
            self._leave_soon()

    # --- the watcher's thread -------------------------------------------------------------------------------------------------------

    def _attempt_ended(self, attempt: int) -> None:
        del attempt
        if self._leave is not None:
            self._leave_soon()

    def _leave_soon(self) -> None:
        """The main thread leaves by the gate; where it does not react, this does it."""
        timer = threading.Timer(LEAVE_S, lambda: os._exit(self._leave or 0))
        timer.daemon = True
        timer.start()

    def _crash(self) -> None:
        self._link.send(AgentFailed(self._attempt, traceback.format_exc()))
        os._exit(1)
