"""Chooses the checkpoint of an attempt, here or together with the other nodes, and judges the older ones after a failure.

All of it waits for disks, and some for other nodes, so it runs in threads.
"""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING

from checkpointing.io.reader import Interrupted
from checkpointing.model import CheckpointingError
from supervisor.checkpoints import node_agreement
from supervisor.checkpoints.repair import RepairPermission
from supervisor.core import actions as act
from supervisor.core.model import Cause
from supervisor.core.values import replace
from supervisor.node.node_check import NodeCheck, NodeCheckPlace
from supervisor.node.node_environment import EnvironmentComparison
from supervisor.run.rank_requests import wall_t
from supervisor.run.threads import attempted
from supervisor.strategies.situation import LEFTOVER, LEFTOVER_IS_OURS, SET_ASIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.job.job import Job
    from supervisor.launch.session import Session
    from supervisor.report.reporter import Reporter
    from supervisor.run.factory import JobFactory
    from supervisor.run.job_nodes import JobNodes
    from supervisor.run.loop import Loop
    from supervisor.run.node_requests import NodeRequests
    from supervisor.run.threads import Threads

#: Causes that a checkpoint may have: after them no earlier verdict is trusted.
SUSPECTS = frozenset({Cause.CHECKPOINT_CORRUPT, Cause.CHECKPOINT_MISMATCH, Cause.NAN_LOSS})
#: How often the thread that waits for other nodes checks whether the attempt is still to begin.
AGREE_POLL_S = 0.5
#: How long the other nodes wait for a disk on which this one is to note that it is excluded.
LEDGER_DEADLINE_S = 10.0


class CheckpointRequests:
    """Selects checkpoints for one job. Public methods but `distrust` are called on the loop's thread.

    permission: of the newest selection to repair files. session: returns the one that runs, None for none.
    warn_once: prints a warning that was not printed before, from any thread.
    """

    def __init__(  # noqa: PLR0913, PLR0917  whom it serves, whom it asks
        self,
        job: Job,
        loop: Loop,
        reporter: Reporter,
        factory: JobFactory,
        threads: Threads,
        node: NodeRequests,
        nodes: JobNodes,
        session: Callable[[], Session | None],
        warn_once: Callable[[str], None],
    ) -> None:
        self.permission = RepairPermission()
        self._job, self._loop, self._reporter, self._factory, self._threads = job, loop, reporter, factory, threads
        self._node, self._nodes, self._session, self._warn_once = node, nodes, session, warn_once

    def select(self, action: act.SelectCheckpoint) -> None:
        """Choose what the attempt resumes from, together with the other nodes where there are some."""
        checkpoints = self._factory.checkpoints
        checkpoints.set_resume_way(action.resume_by, own_only=action.own_only)
        incident = self._loop.state.run.incident
        suspect = incident is not None and incident.verdict is not None and incident.verdict.cause in SUSPECTS
        verdict = incident.verdict if incident is not None else None
        facts = dict(verdict.facts) if verdict is not None and verdict.cause is Cause.CHECKPOINT_LEFTOVER else {}
        permission = self.permission = RepairPermission()
        checkpoints.read_while(lambda: self.permission is permission and self._loop.state.selects)
        if action.nodes:
            self._threads.start("agree", lambda: self._agree(action, suspect=suspect))
            return

        def work() -> None:
            t = self._loop.clock.now()
            try:
                event = checkpoints.select(
                    t,
                    action.attempt,
                    action.rejected,
                    suspect=suspect,
                    permission=permission,
                    reached=action.reached,
                    begun_from=action.begun_from,
                    in_the_way=facts.get(LEFTOVER, "") if facts.get(LEFTOVER_IS_OURS) else "",
                    missed=facts.get(SET_ASIDE, ""),
                )
            except Interrupted:  # nobody waits for it any more
                return
            self._loop.post(event)
            for problem in checkpoints.problems:
                self._warn_once(problem)

        self._threads.start("select", work)

    def keep_copies(self, action: act.KeepCopies) -> None:
        """Keep a copy of what the attempt loaded where it is in danger."""
        self._threads.start("keep-copies", lambda: self._factory.checkpoints.keep_unused(action.attempt), awaited=False)

    def accuse(self, action: act.AccuseCheckpoints) -> None:
        """Record what the run stepped back from, and warn of it."""

        def work() -> None:
            for text in self._factory.checkpoints.accuse(action.reason):
                self._warn_once(text)

        self._threads.start("accuse", work, awaited=False)

    def distrust(self) -> None:
        """Reject checkpoints saved while nodes trained from different states, before the run can end. Runs in a thread of the collection.

        The next agreement reads those that could not be read now, and reports them.
        """
        since_t = self._loop.state.run.diverged_since_t
        if since_t is not None:
            with contextlib.suppress(CheckpointingError, OSError):
                self._factory.checkpoints.node_offer.reject_mixed(wall_t(self._loop.clock, since_t))

    def _agree(self, action: act.SelectCheckpoint, *, suspect: bool) -> None:
        """Agree with the other nodes on what to resume from. In a thread."""

        def all_gather(number: int, text: str) -> list[str]:
            answer: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
            self._loop.call_soon(lambda: self._nodes.all_gather(action.attempt, number, text, answer.put))
            while self._loop.state.awaits_ranks(action.attempt):
                try:
                    texts = answer.get(timeout=AGREE_POLL_S)
                except queue.Empty:
                    continue
                self._factory.checkpoints.note_move()
                return texts
            raise node_agreement.AgreementCancelled

        t = self._loop.clock.now()
        if action.diverged_since_t is not None:
            action = replace(action, diverged_since_t=wall_t(self._loop.clock, action.diverged_since_t))
        session = self._session()
        comparison = EnvironmentComparison(self._node.environment.table(session.versions if session is not None else {}), self._warn_once)
        try:
            event = node_agreement.agree(
                action,
                self._factory.checkpoints.node_offer,
                all_gather,
                comparison,
                host=self._nodes.name(action.node),
                suspect=suspect,
                t=t,
                check=self._node_check(action),
            )
        except (node_agreement.AgreementCancelled, Interrupted):
            return
        self._loop.post(replace(event, t=self._loop.clock.now()))

    def _node_check(self, action: act.SelectCheckpoint) -> NodeCheck:
        """Return this node's part in a check of the nodes."""
        host, command = self._nodes.coordinator_host, self._factory.torchrun
        interpreter = command.interpreter if command is not None and command.interpreter is not None else ""
        place = NodeCheckPlace(interpreter, self._job.environ, action.gpus, host)

        def show(level: str, text: str) -> None:
            self._loop.call_soon(lambda: self._reporter.print_message(act.PrintMessage(level, text)))

        def exclude(reason: str) -> bool:
            ledger = self._factory.ledger
            problem = attempted(lambda: ledger.exclude(reason, time.time(), "node check"), LEDGER_DEADLINE_S)
            if problem:
                show("warning", f"this node is not excluded: {ledger.path}: {problem}")
            return not problem

        return NodeCheck(place, show, exclude, lambda: self._loop.state.awaits_ranks(action.attempt))
