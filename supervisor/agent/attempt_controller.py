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
from supervisor.agent import round_agreement
from supervisor.agent.messages import (
    Admit,
    AgentFailed,
    AllGather,
    AllGathered,
    Broadcast,
    BroadcastReceived,
    DecisionOfPeer,
    DropStandbys,
    Go,
    NodesMet,
    PeerStopped,
    PrepareStandbys,
    Publish,
    RendezvousCompleted,
    Start,
    StopCommand,
    WaitingNodesCounted,
)
from supervisor.agent.node_messages import NodeAllGathers, NodeBroadcasts
from supervisor.agent.ranks import RankMonitor
from supervisor.agent.standbys import AgentStandbys

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]  # exported where the build has it

    from supervisor.agent.link import AgentLink
    from supervisor.agent.messages import Command

LEAVE_S = 2.5  # from the last rank's end to ours, when the supervisor ordered us to leave
ORPHANED_S = 6.0  # the guardian ends us 4 s after the supervisor's end; this is for the day that it does not
PUBLISH_S = 1.0
POLL_S = 0.2  # between two checks whether an attempt was stopped


class AttemptController:
    """The threads beside torch's, and the gate between them."""

    def __init__(self, link: AgentLink, *, grace_s: float, ignore_signals: Callable[[], None]) -> None:
        """Start the watcher; the link is read from `start` on."""
        self._link = link
        self._grace_s = grace_s
        self.ignore_signals = ignore_signals
        self.succeeded = False  # on every node
        self.over_for_all = False  # that, or some node decided the end: the rendezvous may be closed
        self._changed = threading.Condition()
        self._attempt = 0  # the newest that was ordered: this process does not see the supervisor's state
        self._taken = 0  # attempt that the main thread works at
        self._go: Go | None = None
        self._orders: deque[AllGather | Start] = deque()  # orders of the supervisor while the nodes of the attempt agree
        self._broadcasts: tuple[int, NodeBroadcasts] | None = None
        self._leave: int | None = None
        self._agreement: tuple[int, round_agreement.RoundAgreement] | None = None
        self.standbys = AgentStandbys(link.send)
        self.ranks = RankMonitor(
            link.send, grace_s=grace_s, on_failure=self._rank_failed, on_ended=self._attempt_ended, on_crash=self._crash
        )

    @property
    def attempt(self) -> int:
        """The newest attempt asked for."""
        return self._attempt

    def start(self) -> None:
        """Begin to read the link."""
        threading.Thread(target=self._serve, name="link", daemon=True).start()

    # --- the main thread ------------------------------------------------------------------------------------------------------------

    @property
    def orphaned(self) -> bool:
        """Whether the supervisor is gone. The guardian then asked the ranks to save: exit code 0 does not mean that they finished."""
        return self._link.lost()

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
                    break
            agreement, self._agreement = self._agreement, None
            broadcasts, self._broadcasts = self._broadcasts, None
        if broadcasts is not None:
            broadcasts[1].leave()
        if agreement is not None:
            agreement[1].leave()
        return go

    def cancelled(self) -> bool:
        """Whether the attempt that the main thread works at was stopped. Another may be wanted already."""
        return self.ranks.wait(self._taken, 0) is not None

    def met(self, rendezvous: RendezvousCompleted) -> None:
        """The rendezvous is complete."""
        self._link.send(rendezvous)

    def agree(self, attempt: int, store: Store, token: str, node: int, nodes: int) -> Go:
        """Carry the all-gathers of the supervisors, until ours orders how the ranks start.

        Raises AttemptCancelled where the attempt is stopped meanwhile, TimeoutError where a node is silent.
        """
        exchange = NodeAllGathers(store, token, node, nodes, self.cancelled)
        self._link.send(NodesMet(attempt, node, nodes))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._orders), POLL_S)
                order = self._orders.popleft() if self._orders else None
            if self.cancelled():
                raise round_agreement.AttemptCancelled
            if isinstance(order, Start):
                if nodes > 1:
                    broadcasts = NodeBroadcasts(store, token, node, nodes, lambda text: self._link.send(BroadcastReceived(attempt, text)))
                    with self._changed:
                        self._broadcasts = (attempt, broadcasts)
                return order.go
            exchange.beat()
            if order is not None:
                self._link.send(AllGathered(attempt, order.number, tuple(exchange.gather(order.number, order.text))))

    def nodes_waiting(self, count: int) -> None:
        """The number of nodes that want to join has changed."""
        self._link.send(WaitingNodesCounted(self._attempt, count))

    def watch_peers(self, attempt: int, store: Store, token: str, node: str, nodes: int) -> None:
        """End this round with the other nodes, and share the decision, until the next Go."""

        def on_round_ended(kind: str, peer: str, text: str) -> None:
            self._link.send(PeerStopped(attempt, peer, text, kind))  # before our own end, which it explains
            self.ranks.stop(attempt, signal.SIGTERM, None, outcomes.MEMBERSHIP if kind == "membership" else outcomes.FAILED)

        def on_decision(kind: str, exit_code: int, reason: str, changes: round_agreement.DecisionChanges | None) -> None:
            self.over_for_all |= kind == "stop"
            decision = DecisionOfPeer(attempt, kind, exit_code, reason)
            if changes is not None:
                decision = replace(decision, overrides=changes.overrides, rejected=changes.rejected, first=changes.first)
            self._link.send(decision)

        agreement = round_agreement.RoundAgreement(
            store, token, node=node, nodes=nodes, on_round_ended=on_round_ended, on_decision=on_decision
        )
        with self._changed:
            self._agreement = (attempt, agreement)

    def lose_store(self, attempt: int, error: object) -> None:
        """Begin another round, unless a node reported that it is done: whether every node's ranks ended well can no longer be known."""
        self._with_agreement(
            attempt, lambda agreement: agreement.lose(f"the agents' store was lost before every node reported success: {error}")
        )

    def end_ranks(self, attempt: int) -> None:
        """End what lives of the attempt, if anything does, within the grace and a little."""
        if attempt and self.ranks.wait(attempt, 0) is None:
            self.ranks.stop(attempt, signal.SIGTERM, None, outcomes.FAILED)
            self.ranks.wait(attempt, self._grace_s + outcomes.END_DEADLINE_S)

    def finish(self) -> None:
        """End the standbys, and write this node's last notes to the other nodes, for at most PUBLISH_S."""
        self.standbys.drop()
        with self._changed:
            agreement, self._agreement = self._agreement, None
            broadcasts, self._broadcasts = self._broadcasts, None
        if broadcasts is not None:
            broadcasts[1].leave()
        if agreement is not None:
            agreement[1].finish(PUBLISH_S, done=self.succeeded)

    # --- the link's thread ----------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            for command in self._link.commands():
                self._take(command)
        except BaseException:  # noqa: BLE001  without the supervisor's commands we are of no use
            self._crash()
        self._nobody_decides()
        time.sleep(ORPHANED_S)
        self.ranks.stop(self._attempt, signal.SIGKILL, 0.0, outcomes.STOPPED)
        self.ranks.wait(self._attempt, outcomes.END_DEADLINE_S)
        os._exit(1)

    def _nobody_decides(self) -> None:
        """The supervisor is gone: the other nodes wait for no decision of it. Ranks that live may save until the guardian ends them."""
        with self._changed:
            agreement = self._agreement
        if agreement is not None and self.ranks.alive():
            agreement[1].abandon()
        elif agreement is not None:
            agreement[1].leave(done=self.succeeded)

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
        elif isinstance(command, (AllGather, Start)):
            with self._changed:
                self._orders.append(command)
                self._changed.notify_all()
        elif isinstance(command, StopCommand):
            self._stop(command)
        elif isinstance(command, (PrepareStandbys, DropStandbys)):
            self.standbys.order(command)
        else:
            self._take_for_nodes(command)

    def _take_for_nodes(self, command: Broadcast | Admit | Publish) -> None:
        """Carry out what concerns the other nodes."""
        if isinstance(command, Broadcast):
            with self._changed:
                broadcasts = self._broadcasts
            if broadcasts is not None and broadcasts[0] == command.attempt:
                broadcasts[1].send(command.text)
        elif isinstance(command, Admit):
            self._with_agreement(command.attempt, lambda agreement: agreement.admit())
            self.ranks.stop(command.attempt, signal.SIGTERM, None, outcomes.MEMBERSHIP)
        else:
            self.over_for_all |= command.kind == "stop"
            changes = round_agreement.DecisionChanges(command.overrides, command.rejected, command.first)
            self._with_agreement(
                command.attempt, lambda agreement: agreement.publish(command.kind, command.exit_code, command.reason, changes)
            )

    def _stop(self, command: StopCommand) -> None:
        if command.failure:
            if self.ranks.fail(command.attempt, command.signum, command.grace_s):
                self._with_agreement(command.attempt, lambda agreement: agreement.fail(command.failure))
            return
        if command.exit_code is not None:
            with self._changed:
                self._leave = command.exit_code
                self._changed.notify_all()
        under_way = self.ranks.stop(self._attempt, command.signum, command.grace_s, outcomes.STOPPED)
        if command.exit_code is not None and not under_way:
            self._leave_soon()

    def _with_agreement(self, attempt: int, do: Callable[[round_agreement.RoundAgreement], None]) -> None:
        with self._changed:
            agreement = self._agreement
        if agreement is not None and agreement[0] == attempt:
            do(agreement[1])

    # --- the watcher's thread -------------------------------------------------------------------------------------------------------

    def _rank_failed(self, attempt: int, rank: int, text: str) -> None:
        del rank
        self._with_agreement(attempt, lambda agreement: agreement.fail(text))

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
