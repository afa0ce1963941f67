"""This node among those of the job: carries what the core and the agent report to the protocol (supervisor/cluster), and its answers back.

A job of one node makes none of this: no thread, no socket, no file. The rest begins when the agent reports that nodes have met, or when a
supervisor takes over from one that had met others. The node whose agent serves torch's rendezvous store serves the control store too.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

import msgspec

from supervisor.cluster import messages as protocol
from supervisor.cluster.client import NodeClient, StoreAddress
from supervisor.cluster.kept import KeptFile, KeptFor, KeptNode, KeptStore, RowsOnDisk, remembered, rows_of_the_last
from supervisor.cluster.model import DONE, VOID, ClusterDecision, ClusterRules, Epoch, EpochEnd
from supervisor.cluster.reader import NodeStanding
from supervisor.cluster.server import StoreServer, listen
from supervisor.cluster.store import new_store
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.gathering import began_text
from supervisor.core.lifecycle import OUR_END_S
from supervisor.core.model import Evidence, JobDecision
from supervisor.core.report_size import bounded
from supervisor.core.state import Attempt, NodeReport, Stage
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.agent.messages import NodesMet
    from supervisor.cluster.messages import NodeOutput
    from supervisor.cluster.node import NodeMemory
    from supervisor.job.job import Job
    from supervisor.run.loop import Loop

#: What the host of the store gives the other nodes to decide and to learn how the job ended, and a node gives its last messages to leave.
LINGER_S = 15.0
GOODBYE_S = 2.0
#: After so many bugs in a row that end its thread the store is given up. One that comes so many leases after the last begins a new row.
MOST_STORE_BUGS = 3
STORE_WELL_LEASES = 20
#: All-gather 0 of the agreement is the second of the protocol, in which 0 is how the ranks began.
_FIRST_GATHER = 1


class AttemptOrders(Struct, frozen=True):
    """What the protocol orders of the session that runs the attempts, with the number of the attempt first.

    serve: show the others the port and the key of the store. renumber: the other number. complete: all ranks of all nodes exited 0.
    """

    serve: Callable[[int, int, str], None]
    renumber: Callable[[int, int], None]
    complete: Callable[[int], None]


class JobNodes:
    """The nodes of one job, as this one sees them. Public methods are called on the loop's thread.

    rdzv_id: under which they meet. warn: prints a line at the terminal, from any thread.
    """

    def __init__(self, job: Job, rdzv_id: str, loop: Loop, orders: AttemptOrders, warn: Callable[[str], None]) -> None:
        self._job, self._loop, self._orders = job, loop, orders
        self._owner = KeptFor(job.run_id, rdzv_id)
        self._directory: Path = job.state / "cluster"
        self._node_file = KeptFile(self._directory / "node.json", warn)
        self._store_file = KeptFile(self._directory / "store.json", warn)
        self._client: NodeClient | None = None
        self._server: StoreServer | None = None  # of the control store, where this node serves it
        self._rows: RowsOnDisk | None = None  # of that store
        self._serves_again_t = 0.0  # when a store whose thread dies may be served again
        self._store_bugs = 0  # in a row that ended the store's thread here since the last decision
        self._store_bug_t = 0.0  # of the last of them
        self._met_for = 0  # the number that the attempt had here when its nodes met
        self._met_ranks = 0  # of all nodes that met
        self.returning = 0  # nodes of the last attempt that come to the next meeting, 0: not known
        self._began_t = time.monotonic()
        self._end = EpochEnd("", "", "")  # of the newest epoch
        self._closed_without_us: ClusterDecision | None = None  # how the job ended, until the core can take it
        self._awaited: dict[int, Callable[[list[str]], None]] = {}  # by the number of the all-gather
        self._is_closing = False
        self._taken_over: NodeOutput | None = None  # what the report of the attempt that was taken over is answered with, at once

    # the beginning

    def take_over(self) -> None:
        """Go on where the supervisor of this run before this one left the other nodes, if it had met any."""
        kept = self._node_file.read(KeptNode) if self._directory.exists() else None
        if kept is not None and kept.owner != self._owner:
            kept = None
        self._taken_over = self._known_about(None if kept is None else kept.memory)
        if kept is None:
            return
        self.returning = kept.memory.returning
        client = self._connected(kept)
        self._serve_or_find(client)
        epoch, state = kept.memory.epoch, self._loop.state
        is_known = epoch is not None and state.attempt.is_shared and state.attempt.number == epoch.number and state.stage is not Stage.ENDED
        if epoch is not None and not is_known:  # it has ended for this node, before this was recorded
            client.give(protocol.GiveUp(self._now(), "its supervise ended"))

    def _serve_or_find(self, client: NodeClient) -> None:
        """Serve the control store as the supervisor before this one did, or go where that found it."""
        served = self._store_file.read(KeptStore)
        if served is not None and served.owner == self._owner:
            self._serve(replace(served, rows=rows_of_the_last(served)), client)
        elif client.address is not None:
            client.find_at(client.address)

    def _known_about(self, memory: NodeMemory | None) -> NodeOutput | None:
        """Return what is known about the attempt of the journal, None where the nodes have to decide about it, or it is over.

        The supervisor before this one may have ended between the decision and its record. Or what it kept is not there: it could not be
        written, or the journal came along from another node. Then nobody awaits a report of this node.
        """
        attempt, stage = self._loop.state.attempt, self._loop.state.stage
        if not attempt.is_shared or stage is Stage.ENDED:
            return None
        epoch = None if memory is None else memory.epoch
        if memory is None or epoch is None or epoch.number != attempt.number or memory.aside:
            return protocol.StepAside(Epoch(attempt.number, attempt.members, "", ""))
        return None if memory.acted is None else protocol.ActOn(epoch, memory.acted, memory.returning)

    def _connected(self, kept: KeptNode | None) -> NodeClient:
        """Return the client, starting it where none runs."""
        if self._client is None:
            memory, known = remembered(kept, self._owner, f"{self._job.node}/{secrets.token_hex(4)}")
            client = self._client = NodeClient(memory, self._rules(), self._now, self._keep, self._emitted, known)
            client.start()
        return self._client

    def _serve(self, kept: KeptStore | None, client: NodeClient) -> StoreServer:
        """Serve the control store here, with what the last one on this node kept, at its port if that is free; return it."""
        key = kept.key if kept is not None else secrets.token_hex(16)
        try:
            listener = listen(kept.port if kept is not None else 0)
        except OSError:  # somebody took the port: the nodes learn the new one when they meet
            listener = listen()
        rows = () if kept is None else kept.rows
        state = new_store(secrets.token_hex(8), client.name, self._rules(), time.monotonic(), rows, since_t=self._began_t)
        port: int = listener.getsockname()[1]
        self._rows = RowsOnDisk(self._store_file, KeptStore(self._owner, port, key, rows))
        server = self._server = StoreServer(listener, key, state, self._rows.keep)
        with contextlib.suppress(RuntimeError):  # no thread to be had, where loaders use up the processes for a moment: see _serve_again
            server.start()
        client.find_at(StoreAddress("127.0.0.1", port, key))
        return server

    def _serve_again(self, client: NodeClient) -> None:
        """Serve the store anew, with its rows, where its thread died of a bug or did not begin: without a store nothing is decided.

        Once in a lease: such a bug may come again with each store.
        """
        server, rows, now = self._server, self._rows, time.monotonic()
        if server is not None and rows is not None and not server.serves and now >= self._serves_again_t and not self._is_closing:
            self._serves_again_t = now + self._rules().lease_s
            self._serve(rows.kept, client)

    def _rules(self) -> ClusterRules:
        lease_s, rules = self._job.settings.nodes.lease_s, ClusterRules()
        return ClusterRules(
            self._loop.state.run.policy.nodes,
            beat_s=lease_s / 3,
            lease_s=lease_s,
            disconnect_timeout_s=min(rules.disconnect_timeout_s, lease_s / 3),
            rejoin_window_s=max(rules.rejoin_window_s, 2 * lease_s),
            meeting_s=max(rules.meeting_s, 4 * lease_s),
        )

    def _keep(self, memory: NodeMemory, address: StoreAddress | None) -> None:
        self._node_file.write(KeptNode(self._owner, memory, address))

    def _now(self) -> float:
        return self._loop.clock.now()

    # from the agent

    def met(self, message: NodesMet) -> None:
        """The agents have met; their supervisors find each other, and get a number for the attempt."""
        if not self._loop.state.awaits_ranks(message.attempt):
            return  # a stop came meanwhile
        client = self._connected(None)
        self._find_store(message, client)
        self._met_for, self._met_ranks, self._awaited = message.attempt, message.world_size, {}
        client.give(protocol.NodesTogether(self._now(), message.token, message.node, message.nodes, message.attempt))

    def _find_store(self, message: NodesMet, client: NodeClient) -> None:
        """Serve the control store where this node's agent serves torch's; else go where that node serves it."""
        if not message.port:
            server = self._server or self._serve(None, client)
            self._orders.serve(message.attempt, server.port, server.key)
            return
        if self._server is not None and message.key != self._server.key:  # another node of this meeting serves a newer one
            threading.Thread(target=self._server.close, args=(0.0,), name="close-store", daemon=True).start()
            self._server = None
        client.find_at(StoreAddress(message.host, message.port, message.key))

    def store_failed(self) -> bool:
        """Note that a bug ended the thread of the store here; return whether it is given up. From that thread.

        A healthy attempt may last for weeks without a decision, so only those that come soon after one another count.
        """
        now = time.monotonic()
        is_next = now - self._store_bug_t < STORE_WELL_LEASES * self._rules().lease_s
        self._store_bugs, self._store_bug_t = self._store_bugs + 1 if is_next else 1, now
        return self._store_bugs >= MOST_STORE_BUGS and not self._is_closing

    def done(self, attempt: int) -> None:
        """All ranks of this node exited 0: they are done, or they left after the save that was requested of them for nodes that join."""
        admission = self._loop.state.attempt.admission
        if self._is_current(attempt):
            is_for_others = admission is not None and admission.save_requested
            self._give(protocol.RanksSaved(self._now()) if is_for_others else protocol.RanksDone(self._now()))

    @property
    def store_host(self) -> str | None:
        """Where the control store is served, as this node reaches it; "" on the node that serves it, None where that is not known."""
        if self._server is not None:
            return ""
        address = None if self._client is None else self._client.address
        return None if address is None else address.host

    # from the core and the executor

    def tick(self) -> None:
        """Let time pass."""
        if self._client is not None:
            self._serve_again(self._client)
            self._client.give(protocol.NodeTick(self._now(), NodeStanding.of(self._loop.state).text()))
            self._end_as_the_others()

    def no_meeting(self) -> None:
        """The attempt has ended here before its nodes had a number for it, or with it."""
        if self._client is not None and self._met_for:
            self._met_for = 0
            self._client.give(protocol.MeetingGivenUp(self._now()))

    def end_epoch(self, action: act.EndForAll) -> None:
        """End the attempt on all nodes."""
        self._give(protocol.EndEpoch(self._now(), action.kind, action.text))

    def report(self, action: act.ReportEpoch) -> None:
        """Send what this node saw, as the state has it."""
        state, client, known = self._loop.state, self._client, self._taken_over
        if known is not None:
            self._taken_over = None
            self._loop.call_soon(lambda: self._take(known))
            return
        if client is None or not self._is_current(action.attempt):
            return
        row = {"offset_s": client.offset_s, "report": msgspec.to_builtins(bounded(NodeReport(client.name, state.attempt, state.gpus)))}
        client.give(protocol.EpochReport(self._now(), json.dumps(row)))

    def saved(self, action: act.ReportSaved) -> None:
        """All ranks of this node have saved as requested."""
        if self._is_current(action.attempt):
            self._give(protocol.RanksSaved(self._now()))

    def propose(self, action: act.ProposeDecision) -> None:
        """Have all nodes act on this."""
        text = "" if action.decision is None else json.dumps(msgspec.to_builtins(action.decision))
        self._give(protocol.DecisionProposed(self._now(), action.attempt, ClusterDecision(action.kind, text)))

    def complete(self, action: act.CompleteAttempt) -> None:
        """All ranks of all nodes exited 0."""
        self._orders.complete(action.attempt)

    def name(self, node: int) -> str:
        """Return what the other nodes call this one, which is `node` among them."""
        return f"node {node} ({self._job.node})"

    def broadcast(self, action: act.BroadcastStart) -> None:
        """Send the other nodes how the ranks of this one began."""
        text = f"{self.name(action.node)} {began_text(action.first_step, action.loaded_step)}"
        row = {"text": text, "first_step": action.first_step, "loaded_step": action.loaded_step}
        self._give(protocol.NodeText(self._now(), 0, json.dumps(row)))

    def all_gather(self, attempt: int, number: int, text: str, received: Callable[[list[str]], None]) -> None:
        """Give `text` to all-gather `number` of the nodes that have met. `received` gets the texts of all, in the order of the nodes."""
        if self._is_current(attempt):
            self._awaited[number + _FIRST_GATHER] = received
            self._give(protocol.NodeText(self._now(), number + _FIRST_GATHER, text))

    def close(self, reason: str, then: Callable[[], None]) -> None:
        """Leave the other nodes; `then` is called on the loop's thread once those that wait for this one know how the job ended."""
        client, server = self._client, self._server
        if client is None:
            then()
            return
        if self._is_closing:
            return
        self._is_closing = True
        self._give(protocol.GiveUp(self._now(), reason))
        linger_s = self._linger_s()

        def work() -> None:
            client.close(GOODBYE_S)
            if server is not None:
                server.close(linger_s)
            self._loop.call_soon(then)

        threading.Thread(target=work, name="leave-nodes", daemon=True).start()

    def _linger_s(self) -> float:
        """Return for how long the store may be served on: not until the environment kills this process, for its exit code counts."""
        stop = self._loop.state.run.stop
        left_s = None if stop is None else stop.left_s
        return LINGER_S if stop is None or left_s is None else max(0.0, min(LINGER_S, stop.left_from_t + left_s - self._now() - OUR_END_S))

    def _give(self, message: protocol.NodeInput) -> None:
        if self._client is not None:
            self._client.give(message)

    def _is_current(self, attempt: int) -> bool:
        return self._loop.state.attempt.number == attempt and bool(self._loop.state.attempt.members)

    # from the protocol

    def _emitted(self, output: NodeOutput) -> None:
        """Take an answer of the protocol, from the client's thread."""
        self._loop.call_soon(lambda: self._take(output))

    def _take(self, output: NodeOutput) -> None:  # noqa: PLR0912, C901 (a row for each kind)
        now, attempt = self._now(), self._loop.state.attempt.number
        match output:
            case protocol.EpochBegan(epoch):
                self._began(epoch.number, epoch.members)
            case protocol.EpochEnded(number, end):
                self._end = end
                if end.kind != DONE:
                    self._loop.feed(events.AttemptEndedByPeer(now, number, end.node, end.text, end.kind))
            case protocol.JudgeReports(number, reports, missing):
                end, read = self._end, tuple(self._read_report(text) for _, text in reports)
                self._loop.feed(events.ReportsGathered(now, number, read, missing, end.kind, end.node, end.text))
            case protocol.ActOn(epoch, decision, returning):
                self.returning, self._store_bugs = returning, 0
                self._loop.feed(events.DecisionMade(now, epoch.number, decision.kind, _decision(decision)))
            case protocol.StepAside(epoch):
                self.returning = 0
                self._loop.feed(events.LeftBehind(now, epoch.number))
            case protocol.ClosedWithoutUs(_, decision):
                self._closed_without_us = decision
                self._end_as_the_others()
            case protocol.StoreSilent(number):
                self._loop.feed(events.StoreFellSilent(now, number))
            case protocol.MeetingFailed(_, text):
                self._met_for = 0
                self._loop.feed(events.AttemptEndedByPeer(now, attempt, self._job.node, text, VOID))
            case protocol.TextsGathered(number, texts):
                received = self._awaited.pop(number, None)
                if received is not None:
                    received(list(texts))
            case protocol.PeerText(_, text):
                row = json.loads(text)
                self._loop.feed(events.NodeBegan(now, attempt, str(row["text"]), row["first_step"], row["loaded_step"]))
            case protocol.SendToStore():
                raise AssertionError(output)  # the client's own
            case _:
                assert_never(output)

    def _end_as_the_others(self) -> None:
        """Tell the core how the job ended without this node, once it waits for the others: it may still look at its GPUs."""
        decision, state = self._closed_without_us, self._loop.state
        if decision is not None and state.waits_to_meet:
            self._closed_without_us = None
            kind = decision.kind
            self._loop.feed(events.DecisionMade(self._now(), state.attempt.number, kind, _decision(decision), elsewhere=True))

    def _began(self, number: int, members: tuple[str, ...]) -> None:
        """The attempt has its number. Where it has ended here meanwhile, no rank of it starts anywhere."""
        client, met_for = self._client, self._met_for
        self._met_for, self._end, self.returning = 0, EpochEnd("", "", ""), 0
        if client is None:
            return
        if not met_for or not self._loop.state.awaits_ranks(met_for):
            client.give(protocol.EndEpoch(self._now(), VOID, f"node {client.name} had given the meeting up"))
            return
        if number != met_for:
            self._orders.renumber(met_for, number)
        index = members.index(client.name)
        self._loop.feed(events.NodesGathered(self._now(), met_for, index, len(members), number, members, self._met_ranks))

    def _read_report(self, text: str) -> NodeReport:
        """Return a report with its times by this node's clock."""
        row = json.loads(text)
        node_report = msgspec.convert(row["report"], NodeReport)
        own_s, theirs_s = None if self._client is None else self._client.offset_s, row["offset_s"]
        known = own_s is not None and theirs_s is not None  # else their clocks are taken for equal
        return replace(node_report, attempt=_shifted(node_report.attempt, theirs_s - own_s)) if known else node_report


def _decision(decision: ClusterDecision) -> JobDecision | None:
    return msgspec.convert(json.loads(decision.text), JobDecision) if decision.text else None


def _shifted(attempt: Attempt, by_s: float) -> Attempt:
    """Return what a node saw, with its times moved by the difference of two clocks."""

    def moved(t: float | None) -> float | None:
        return None if t is None else t + by_s

    def facts(found: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
        return tuple(replace(fact, t=fact.t + by_s) if fact.t else fact for fact in found)

    return replace(
        attempt,
        began_t=attempt.began_t + by_s,
        started_t=moved(attempt.started_t),
        over_t=moved(attempt.over_t),
        evidence=None if attempt.evidence is None else facts(attempt.evidence),
        ended_for=facts(attempt.ended_for),
    )
