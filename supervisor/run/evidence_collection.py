"""Collects what the observers know of an attempt that failed, in a thread, and gives it to the core.

An attempt whose evidence comes late, because a disk did not answer, may be over when it comes: it is collected from its own watchers, and
never from those of the next attempt.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
from typing import TYPE_CHECKING

from supervisor.core.events import EvidenceCollected
from supervisor.core.model import RankInfo
from supervisor.core.state import Attempt
from supervisor.core.values import Struct
from supervisor.launch.session import Session
from supervisor.observe import collect, script_reasons
from supervisor.observe.attempt_watch import ANSWER_S, AttemptWatch, LauncherFacts
from supervisor.observe.ranks import heartbeats
from supervisor.observe.reconcile import reconciled

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.actions import CollectEvidence
    from supervisor.core.model import Evidence, Gpu, RankExit
    from supervisor.guardian.messages import StreamTail, StreamTails
    from supervisor.job.job import Job
    from supervisor.observe.processes.launched_ranks import LaunchedRanks
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.report.reporter import Reporter
    from supervisor.run.factory import JobFactory
    from supervisor.run.living_guardian import LivingGuardian
    from supervisor.run.loop import Loop
    from supervisor.run.node_requests import NodeRequests
    from supervisor.run.threads import Threads

#: The time that the guardian gets to answer with the last lines of the ranks.
ANSWER_DEADLINE_S = 1.0


class FailedAttempt(Struct, frozen=True):
    """The facts of an attempt when it fails.

    ranks_gone: set when no rank of it is left. began_ns: when it began, by CLOCK_MONOTONIC. session: None where it was not given to one.
    """

    state: Attempt
    ranks: tuple[RankInfo, ...]
    began_ns: int
    ranks_gone: threading.Event
    session: Session | None


class EvidenceCollection:
    """Collects for one job. Its methods are called on the loop's thread. distrust: called in the collection's thread, first."""

    def __init__(  # noqa: PLR0913, PLR0917  whom it asks
        self,
        job: Job,
        loop: Loop,
        reporter: Reporter,
        factory: JobFactory,
        threads: Threads,
        watch: AttemptWatch,
        node: NodeRequests,
        guardian: LivingGuardian,
        distrust: Callable[[], None],
    ) -> None:
        self._job, self._loop, self._reporter, self._factory, self._threads = job, loop, reporter, factory, threads
        self._watch, self._node, self._guardian, self._distrust = watch, node, guardian, distrust
        self._requests = itertools.count(1)
        self._tails_asked: dict[int, queue.SimpleQueue[list[StreamTail]]] = {}

    def collect(self, action: CollectEvidence, failed: FailedAttempt) -> None:
        """Collect when the ranks are gone, or at the deadline where they are not."""
        watchers = self._watch.watchers
        self._watch.read_now()
        session, ranks = failed.session, failed.ranks
        lacks_gpus = any(gpu.quarantined for gpu in self._loop.state.gpus)

        def work() -> None:
            failed.ranks_gone.wait(action.deadline_s)
            self._distrust()
            attempt = self._as_it_ended(failed.state)
            launcher = LauncherFacts(lambda: self._tails(action), lambda: session.facts if session else (), attempt.overrides)
            sources = self._watch.sources(action.attempt, watchers, ranks, failed.began_ns, attempt.deaths, launcher)
            evidence = collect.together({**sources, "nvml": lambda: self._node.health.after(self._node.ranks_on_gpus(ranks))}, ANSWER_S)
            path_faults = collect.together({"paths": lambda: self._factory.checkpoints.path_faults(action.attempt, evidence)}, ANSWER_S)
            reasons = collect.together({"script": lambda: script_reasons.of_failure(evidence)}, ANSWER_S)
            evidence = collect.without_secrets((*evidence, *path_faults, *reasons))
            beats = heartbeats.read(self._job.attempt_dir(action.attempt) / "heartbeat")
            gpus = self._node.gpus_by_ledger() if lacks_gpus else ()
            self._loop.call_soon(lambda: self._collected(action, failed, evidence, beats, watchers.rank_ends, gpus))

        self._threads.start("evidence", work, awaited=False)  # the core has a timer for it, and judges by the deaths then

    def take_tails(self, message: StreamTails) -> None:
        """Take the guardian's answer with the ranks' last lines."""
        answer = self._tails_asked.pop(message["id"], None)
        if answer is not None:
            answer.put(message["tails"])

    def _tails(self, action: CollectEvidence) -> list[StreamTail]:
        """Ask the guardian for the ranks' last lines, and wait for them. In a thread of the collection's."""
        answer: queue.SimpleQueue[list[StreamTail]] = queue.SimpleQueue()

        def ask() -> None:
            guardian = self._guardian.living
            if guardian is None:
                answer.put([])
                return
            number = next(self._requests)
            self._tails_asked = {number: answer}  # who asked before has given up, or is of an attempt that is over
            guardian.tails(number, action.attempt)

        self._loop.call_soon(ask)
        try:
            return answer.get(timeout=ANSWER_DEADLINE_S)
        except queue.Empty:
            return []

    def _as_it_ended(self, attempt: Attempt) -> Attempt:
        """Return an attempt as the state has it now; as it was, where the next one has begun meanwhile."""
        current = self._loop.state.attempt
        return current if current.number == attempt.number else attempt

    def _collected(  # noqa: PLR0913, PLR0917  all that was collected
        self,
        action: CollectEvidence,
        failed: FailedAttempt,
        evidence: list[Evidence],
        beats: tuple[RankHeartbeat, ...],
        started: LaunchedRanks | None,
        gpus: tuple[Gpu, ...],
    ) -> None:
        attempt, session = self._as_it_ended(failed.state), failed.session
        deaths: tuple[RankExit, ...] = attempt.deaths
        clock, grace_s = self._loop.clock, self._job.settings.stop.grace_s
        ends, pids = (started.ends, started.pids) if started is not None else ((), {})
        of_launcher = collect.without_secrets(collect.of_launcher(session.facts if session else (), evidence))
        of_ranks = collect.exits(deaths, clock, grace_s, ends, pids, stopped_t=attempt.stopped_t)
        facts = reconciled((*of_ranks, *evidence, *of_launcher), deaths, beats, clock)
        self._reporter.cards.evidence(action.incident, action.attempt, facts)
        jitter = random.random()  # noqa: S311 (no secret)
        event = EvidenceCollected(self._loop.clock.now(), action.attempt, action.incident, collect.trimmed(facts), jitter, gpus)
        self._loop.feed(event)
