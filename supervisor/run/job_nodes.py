"""This node among those of the job: carries what the core and the agent report to the protocol (supervisor/cluster), and its answers back.

A job of one node makes none of this: no thread, no socket, no file. The rest begins when the agent reports that nodes have met, or when a
supervisor takes over from one that had met others. The node whose agent serves torch's rendezvous store is the coordinator: its core judges
what all nodes report, also while it takes no part in the attempt, or is stopping.
"""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from supervisor.cluster import messages as protocol
from supervisor.cluster import wire
from supervisor.cluster.client import CoordinatorAddress, NodeClient
from supervisor.cluster.kept import KeptFile, KeptFor, KeptNode, remembered
from supervisor.cluster.model import DONE, VOID, ClusterDecision, ClusterRules, CoordinatorMemory, SharedAttempt
from supervisor.cluster.reader import NodeStanding
from supervisor.cluster.reports import encode_report, read_text
from supervisor.cluster.server import CoordinatorServer
from supervisor.core import events
from supervisor.core.nodes.report_size import bounded
from supervisor.core.nodes.starts import began_text
from supervisor.core.state import NodeReport, Stage
from supervisor.core.stop import OUR_END_S
from supervisor.core.values import Struct
from supervisor.observe.hangs.judge import CONFIRM_S
from supervisor.run.own_coordinator import OwnCoordinator
from supervisor.run.threads import start_soon

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisor.agent.messages import NodesMet
    from supervisor.cluster.member import MemberInput, MemberOutput
    from supervisor.cluster.model import NodeMemory
    from supervisor.cluster.reports import HangNews
    from supervisor.cluster.server import CoordinatorServer
    from supervisor.core import actions as act
    from supervisor.core.model import JobDecision
    from supervisor.job.job import Job
    from supervisor.observe.pace.judge import NodePace
    from supervisor.run.loop import Loop

#: The time that the coordinator gives the other nodes to decide and to learn the job's end, and a node its last messages to leave.
LINGER_S = 15.0
GOODBYE_S = 2.0
#: All-gather 0 of the agreement is the second of the protocol, in which 0 is how the ranks began.
_FIRST_GATHER = 1


class AttemptOrders(Struct, frozen=True):
    """The protocol's orders to the session that runs the attempts, with the number of the attempt first; and to the guardian.

    publish: show the others the port and the key of the coordinator. renumber: the other number. complete: all ranks of all nodes exited 0.
    last_word: host, port and message that the guardian sends once this supervisor has died.
    """

    publish: Callable[[int, int, str], None]
    renumber: Callable[[int, int], None]
    complete: Callable[[int], None]
    last_word: Callable[[str, int, str], None]


class JobNodes:
    """The nodes of one job, as this one sees them. Public methods are called on the loop's thread.

    rdzv_id: under which they meet. warn: prints a line at the terminal, from any thread.
    """

    def __init__(self, job: Job, rdzv_id: str, loop: Loop, orders: AttemptOrders, warn: Callable[[str], None]) -> None:
        self._job, self._loop, self._orders, self._warn = job, loop, orders, warn
        self._owner = KeptFor(job.run_id, rdzv_id)
        self._directory: Path = job.state / "cluster"
        self._node_file = KeptFile(self._directory / "node.json", warn)
        file = KeptFile(self._directory / "coordinator.json", warn)
        self._coordinator = OwnCoordinator(file, self._owner, loop, lambda looks: self.looks(looks), warn)  # noqa: PLW0108  set later
        self._client: NodeClient | None = None
        self._meeting_attempt = 0  # the number that the attempt had here when its nodes met
        self._world_size = 0  # of all nodes that met
        self.returning = 0  # nodes of the last attempt that come to the next meeting, 0: not known
        self._closed_without_us: tuple[str, JobDecision | None] | None = None  # how the job ended, until the core can take it
        self._cut_off: tuple[str, bool] | None = None  # why this node can take part no more, and whether it is refused, until likewise
        #: The part that takes the looks of this node, and judges those of all. Called on the loop's thread.
        self.looks: Callable[[protocol.LookWanted | protocol.LooksGathered | HangNews], None] = lambda _output: None
        self._last_word_to: CoordinatorAddress | None = None
        self._awaited: dict[int, Callable[[list[str]], None]] = {}  # by the number of the all-gather
        self._taken_over: MemberOutput | None = None  # what the report of the attempt that was taken over is answered with, at once

    # the beginning

    def take_over(self) -> None:
        """Continue where the supervisor of this run before this one left the other nodes, if it had met any."""
        content = self._node_file.read(KeptNode) if self._directory.exists() else None
        if content is not None and content.owner != self._owner:
            content = None
        self._taken_over = self._known_about(None if content is None else content.memory)
        if content is None:
            return
        self.returning = content.memory.returning
        client = self._connected(content)
        self._serve_or_find(client)
        shared, state = content.memory.attempt, self._loop.state
        is_known = (
            shared is not None and state.attempt.is_shared and state.attempt.number == shared.number and state.stage is not Stage.ENDED
        )
        if shared is not None and not is_known:  # it has ended for this node, before this was recorded
            client.give(protocol.GiveUp(self._now(), "its supervise ended"))

    def _serve_or_find(self, client: NodeClient) -> None:
        """Be the coordinator as the supervisor before this one was, or go where that found it."""
        server = self._coordinator.serve_as_before(client.name, self._rules())
        if server is not None:
            _find_own(client, server)
        elif client.address is not None:
            client.find_at(client.address)

    def _known_about(self, memory: NodeMemory | None) -> MemberOutput | None:
        """Return the facts of the attempt of the journal, None where the nodes have to decide about it, or it is over.

        The supervisor before this one may have ended between the decision and its record. Or its file is not there: it could not be
        written, or the journal came along from another node. Then nobody awaits a report of this node.
        """
        attempt, stage = self._loop.state.attempt, self._loop.state.stage
        if not attempt.is_shared or stage is Stage.ENDED:
            return None
        shared = None if memory is None else memory.attempt
        if memory is None or shared is None or shared.number != attempt.number or memory.aside:
            return protocol.StepAside(SharedAttempt(attempt.number, attempt.members, "", ""))
        return None if memory.acted is None else protocol.ActOn(shared, memory.acted, memory.returning)

    def _connected(self, content: KeptNode | None) -> NodeClient:
        """Return the client, starting it where none runs."""
        if self._client is None:
            memory, address = remembered(content, self._owner, f"{self._job.node}/{secrets.token_hex(4)}")
            client = self._client = NodeClient(memory, self._rules(), self._now, self._keep, self._emitted, address)
            client.start()
        return self._client

    def _rules(self) -> ClusterRules:
        settings = self._job.settings
        looks_apart_s = min(CONFIRM_S, settings.hang.train_s / 2)
        return ClusterRules(self._loop.state.run.policy.nodes, wait_s=settings.nodes.wait_s, looks_apart_s=looks_apart_s)

    def _keep(self, memory: NodeMemory, address: CoordinatorAddress | None) -> None:
        self._node_file.write(KeptNode(self._owner, memory, address))

    def _now(self) -> float:
        return self._loop.clock.now()

    # from the agent

    def met(self, message: NodesMet) -> None:
        """The agents have met; their supervisors find the coordinator, and get a number for the attempt."""
        if not self._loop.state.awaits_ranks(message.attempt):
            return  # a stop came meanwhile
        client = self._connected(None)
        self._find_coordinator(message, client)
        self._meeting_attempt, self._world_size, self._awaited = message.attempt, message.world_size, {}
        client.give(protocol.NodesTogether(self._now(), message.token, message.node, message.nodes, message.attempt))

    def _find_coordinator(self, message: NodesMet, client: NodeClient) -> None:
        """Be the coordinator where this node's agent serves torch's store; else go where that is."""
        server = self._coordinator.server
        if not message.port:
            server = server or self._coordinator.serve(client.name, self._rules(), CoordinatorMemory())
            _find_own(client, server)
            self._orders.publish(message.attempt, server.port, server.key)
            return
        if server is not None and message.key == server.key:  # torch's store has what this node published
            return
        if server is not None:  # another node of this meeting is a newer one
            start_soon(self._loop, "close-coordinator", functools.partial(server.close, 0.0), self._warn)
            self._coordinator.server = None
        client.find_at(CoordinatorAddress(message.host, message.port, message.key))

    def coordinator_failed(self) -> bool:
        """Note that a bug ended the coordinator's thread here; return whether it is given up. From that thread."""
        return self._coordinator.failed()

    def done(self, attempt: int) -> None:
        """All ranks of this node exited 0: they are done, or they left after the save that was requested of them for nodes that join."""
        admission = self._loop.state.attempt.admission
        if self._is_current(attempt):
            is_for_others = admission is not None and admission.save_requested
            self._give(protocol.RanksSaved(self._now()) if is_for_others else protocol.RanksDone(self._now()))

    @property
    def coordinator_host(self) -> str | None:
        """Where the coordinator is, as this node reaches it; "" on its own node, None where that is not known."""
        if self._coordinator.server is not None:
            return ""
        address = None if self._client is None else self._client.address
        return None if address is None else address.host

    def standings(self) -> Mapping[str, str]:
        """Return what each node's newest beat says of it, by the name of the node, on the coordinator's; else nothing. From any thread."""
        return self._coordinator.standings()

    # from the core and the executor

    def tick(self, stepped_s: float | None = None, step_s: float | None = None, pace: NodePace | None = None) -> None:
        """Let time pass. stepped_s: since a rank of this node last ended a step. step_s: its usual step. None: not known.

        pace: of the ranks of this node.
        """
        client = self._client
        if client is not None:
            server = self._coordinator.serve_again(client.name, self._rules())
            if server is not None:
                _find_own(client, server)
            client.give(protocol.NodeTick(self._now(), NodeStanding.of(self._loop.state, pace).text(), stepped_s, step_s))
            self._prepare_last_word(client)
            self._end_as_the_others()
            self._end_cut_off()

    def _prepare_last_word(self, client: NodeClient) -> None:
        """Have the guardian tell a coordinator on another node if this supervisor dies."""
        address = client.address
        if address is not None and address != self._last_word_to and self._coordinator.server is None:
            self._last_word_to = address
            self._orders.last_word(address.host, address.port, wire.last_word(address.key, client.name))

    def no_meeting(self) -> None:
        """The attempt has ended here before its nodes had a number for it, or with it."""
        if self._client is not None and self._meeting_attempt:
            self._meeting_attempt = 0
            self._client.give(protocol.MeetingGivenUp(self._now()))

    def end_attempt(self, action: act.EndForAll) -> None:
        """End the attempt on all nodes."""
        self._give(protocol.EndAttempt(self._now(), action.kind, action.text))

    def report(self, action: act.ReportAttempt) -> None:
        """Send what this node saw, as the state has it."""
        state, client, answer = self._loop.state, self._client, self._taken_over
        if answer is not None:
            self._taken_over = None
            self._emitted(answer)
            return
        if client is None or not self._is_current(action.attempt):
            return
        report = bounded(NodeReport(client.name, state.attempt, state.gpus, state.run))
        client.give(protocol.AttemptReport(self._now(), encode_report(report, client.offset_s)))

    def saved(self, action: act.ReportSaved) -> None:
        """All ranks of this node have saved as requested."""
        if self._is_current(action.attempt):
            self._give(protocol.RanksSaved(self._now()))

    def propose(self, action: act.ProposeDecision) -> None:
        """Have all nodes act on this."""
        text = "" if action.decision is None else json.dumps(msgspec.to_builtins(action.decision))
        self._coordinator.give(protocol.DecisionProposed(self._now(), action.attempt, ClusterDecision(action.kind, text)))

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

    def ask_looks(self, text: str) -> None:
        """Have all nodes look at their ranks: those of this one make no progress. text: why, for people."""
        self._give(protocol.AskLooks(self._now(), text))

    def look_taken(self, look: int, text: str) -> None:
        """Answer LookWanted."""
        self._give(protocol.LookTaken(self._now(), look, text))

    def want_looks(self, attempt: int) -> None:
        """Have all nodes look at their ranks once more; where this node is the coordinator."""
        self._coordinator.give(protocol.LooksDue(self._now(), attempt))

    def tell_hang(self, attempt: int, text: str) -> None:
        """Tell all nodes what their looks showed; where this node is the coordinator."""
        self._coordinator.give(protocol.LooksJudged(self._now(), attempt, text))

    @property
    def own_name(self) -> str:
        """The protocol's name of this node; "" before nodes have met."""
        return "" if self._client is None else self._client.name

    @property
    def coordinated(self) -> tuple[str, ...]:
        """The nodes of the newest attempt, where this one is the coordinator."""
        server = self._coordinator.server
        shared = None if server is None else server.memory.attempt
        return () if shared is None else shared.members

    def close(self, reason: str, then: Callable[[], None]) -> None:
        """Leave the other nodes; `then` is called on the loop's thread once those that wait for this one know how the job ended."""
        client, server = self._client, self._coordinator.server
        if client is None:
            then()
            return
        if self._coordinator.is_closing:
            return
        self._coordinator.is_closing = True
        self._give(protocol.GiveUp(self._now(), reason))
        linger_s = self._linger_s()

        def work() -> None:
            client.close(GOODBYE_S)
            if server is not None:
                server.close(linger_s)
            self._loop.call_soon(then)

        start_soon(self._loop, "leave-nodes", work, self._warn)

    def _linger_s(self) -> float:
        """Return for how long the coordinator may continue: not until the environment kills this process, for its exit code counts."""
        stop = self._loop.state.run.stop
        left_s = None if stop is None else stop.left_s
        return LINGER_S if stop is None or left_s is None else max(0.0, min(LINGER_S, stop.left_from_t + left_s - self._now() - OUR_END_S))

    def _give(self, message: MemberInput) -> None:
        if self._client is not None:
            self._client.give(message)

    def _is_current(self, attempt: int) -> bool:
        return self._loop.state.attempt.number == attempt and bool(self._loop.state.attempt.members)

    # from the protocol

    def _emitted(self, output: MemberOutput | protocol.Refusal) -> None:
        """Take an answer of the protocol, from the client's thread, which reads what another node wrote."""
        try:
            row = read_text(output)
        except (ValueError, TypeError, LookupError) as error:  # msgspec's errors are ValueErrors
            self._warn(f"a message of another node cannot be read, as of another version of supervise: {error}")
            if isinstance(output, protocol.Peer | protocol.Looked):
                return
            output = protocol.Refusal(
                f"its decision cannot be read ({error}): install the same supervise on all nodes, and start this one again"
            )
            row = None
        self._loop.call_soon(lambda: self._take(output, row))

    def _take(self, output: MemberOutput | protocol.Refusal, row: Any) -> None:  # noqa: ANN401, PLR0912, C901 (what read_text returned; a row for each kind)
        now, attempt = self._now(), self._loop.state.attempt.number
        match output:
            case protocol.Began(shared):
                self._began(shared)
            case protocol.Ended(number, end):
                if end.kind != DONE:
                    self._loop.feed(events.AttemptEndedByPeer(now, number, end.node, end.text, end.kind))
            case protocol.ActOn(shared, decision, returning):
                self.returning, self._coordinator.bugs = returning, 0
                self._loop.feed(events.DecisionMade(now, shared.number, decision.kind, row))
            case protocol.StepAside(shared):
                self.returning = 0
                self._loop.feed(events.LeftBehind(now, shared.number))
            case protocol.ClosedWithoutUs(_, decision):
                self._closed_without_us = decision.kind, row
                self._end_as_the_others()
            case protocol.CoordinatorSilent(number, text):
                self._loop.feed(events.CoordinatorFellSilent(now, number, text))
            case protocol.CoordinatorGone(text):
                self._cut_off = text, False  # ranks that train are ended before, by CoordinatorSilent
                self._end_cut_off()
            case protocol.Refusal(text):
                self._cut_off = text, True
                self._end_cut_off()
            case protocol.MeetingFailed(_, text):
                self._meeting_attempt = 0
                self._loop.feed(events.AttemptEndedByPeer(now, attempt, self._job.node, text, VOID))
            case protocol.Gathered(_, number, texts):
                received = self._awaited.pop(number, None)
                if received is not None:
                    received(list(texts))
            case protocol.Peer():
                self._loop.feed(events.NodeBegan(now, attempt, *row))
            case protocol.LookWanted():
                self.looks(output)
            case protocol.Looked():
                self.looks(row)
            case protocol.SendToCoordinator():
                raise AssertionError(output)  # the client's own
            case _:
                assert_never(output)

    def _end_as_the_others(self) -> None:
        """Tell the core how the job ended without this node, once it waits for the others: it may still look at its GPUs."""
        closed, state = self._closed_without_us, self._loop.state
        if closed is not None and state.waits_to_meet:
            self._closed_without_us = None
            self._loop.feed(events.DecisionMade(self._now(), state.attempt.number, *closed, elsewhere=True))

    def _end_cut_off(self) -> None:
        """Tell the core that this node can take part no more, once none of its ranks is left."""
        cut_off, state, client = self._cut_off, self._loop.state, self._client
        if cut_off is None or state.stage not in {Stage.STARTING, Stage.FOLLOWING}:
            return
        self._cut_off = None
        text, is_refused = cut_off
        if is_refused or client is None or client.offset_s is None:  # else a coordinator answers again
            self._loop.feed(events.NodeCutOff(self._now(), state.attempt.number, text, is_refused))

    def _began(self, shared: SharedAttempt) -> None:
        """The attempt has its number. Where it has ended here meanwhile, no rank of it starts anywhere."""
        client, meeting_attempt, members = self._client, self._meeting_attempt, shared.members
        self._meeting_attempt, self.returning = 0, 0
        if client is None:
            return
        if not meeting_attempt or not self._loop.state.awaits_ranks(meeting_attempt):
            client.give(protocol.EndAttempt(self._now(), VOID, f"node {client.name} had given the meeting up"))
            return
        if shared.number != meeting_attempt:
            self._orders.renumber(meeting_attempt, shared.number)
        index, size = members.index(client.name), len(members)
        gathered = events.NodesGathered(self._now(), meeting_attempt, index, size, shared.number, members, self._world_size, shared.host)
        self._loop.feed(gathered)


def _find_own(client: NodeClient, server: CoordinatorServer) -> None:
    """Have this node's client connect to the coordinator here."""
    client.find_at(CoordinatorAddress("127.0.0.1", server.port, server.key))
