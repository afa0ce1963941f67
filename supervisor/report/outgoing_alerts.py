"""Makes an alert of each event that the reporter reports, and gives it to the router, if a sink is configured.

Loop's thread only. Nothing here blocks or fails (supervisor/alerts/router.py). The alerts' model is imported with the first alert: a job
without a sink saves its memory.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from supervisor.classify.remedies import general_hints
from supervisor.core.events import AttemptEnded, NodesGathered
from supervisor.core.model import Cause, PlanKind
from supervisor.core.training_events import STRAGGLER, LossChanged, MemoryForecast, PaceChanged
from supervisor.core.watch.memory import MEMORY_FORECAST
from supervisor.job import identity
from supervisor.report import wording
from supervisor.report.text import clean

if TYPE_CHECKING:
    from supervisor.alerts.router import AlertRouter
    from supervisor.core.actions import ReportDecision
    from supervisor.core.events import Event
    from supervisor.job.clock import Clock
    from supervisor.job.job import Job

#: The alerts of strange changes of a running training. The node that compared the ranks, or the nodes, sends STRAGGLER.
OF_TRAINING = ("strange_loss", "slow_training", STRAGGLER, MEMORY_FORECAST)
FROM_SCRATCH = "started_from_scratch"
#: Alerts whose text another line prints already: the decision's, or how the attempt began.
ALREADY_PRINTED = frozenset({"batch_changed", FROM_SCRATCH, "resume_suspect", "foreign_checkpoint"})
#: The alerts that follow from no decision: a rank ignores a change, a process survives KILL, the node or the training became worse, or
#: checkpoints are at risk.
WITHOUT_DECISION = frozenset(
    {
        "change_ignored",
        "unkilled",
        FROM_SCRATCH,
        "node_health",
        "hang",
        "strange_loss",
        "slow_training",
        STRAGGLER,
        MEMORY_FORECAST,
        "heartbeat_failing",
        "mirror_failing",
        "mirror_recovered",
        "mirror_behind",
        "only_here",
        "disk_filling",
        "not_finite",
        "no_copy",
        "no_checkpoint",
        "resume_suspect",
        "save_gone",
    }
)
#: The alerts that every node of a job would send alike: the first node of the attempt sends them.
OF_ALL_NODES = frozenset({"run_started", "run_finished", FROM_SCRATCH, "resume_suspect", "no_checkpoint", "strange_loss", "slow_training"})
#: Lines of evidence that an alert may carry, if its sink asks for them.
MOST_LINES = 5


class OutgoingAlerts:
    """The alerts of one run. `router` is None if no sink is configured: then no alert is made.

    node: number of this node among those of the attempt.
    """

    def __init__(self, job: Job, clock: Clock) -> None:
        self.router: AlertRouter | None = None
        self.node = 0
        self._job = job
        self._clock = clock
        self._strange: dict[str, set[str]] = {kind: set() for kind in OF_TRAINING}  # the strange facts of the training now

    def took(self, event: Event) -> None:
        """Note a strange fact of the training: its alert is over with the last such fact, or with the attempt."""
        if isinstance(event, NodesGathered):
            self.node = event.node
        elif isinstance(event, AttemptEnded):
            for kind, strange in self._strange.items():
                strange.clear()
                self.clear(kind)
        if isinstance(event, LossChanged):
            kind = "strange_loss"
        elif isinstance(event, PaceChanged):
            kind = STRAGGLER if event.kind == STRAGGLER else "slow_training"
        elif isinstance(event, MemoryForecast):
            kind = MEMORY_FORECAST
        else:
            return
        if not event.is_over:
            self._strange[kind].add(event.about)
            return
        self._strange[kind].discard(event.about)
        if not self._strange[kind]:
            self.clear(kind)

    def send(  # noqa: PLR0913 (what an event is made of)
        self,
        event_name: str,
        *,
        incident: int,
        attempt: int,
        step: int | None,
        decision: ReportDecision | None,
        began: str,
        about: str = "",
        subject: str = "",
        exit_code: int | None = None,
        culprit: tuple[int | None, str] | None = None,
        code: str | None = None,
        when: str = "",
    ) -> None:
        """Send one event. `decision`: the newest of the run. `began`: how its last restart began, in the alerts' words.

        when: the time of a forecast. culprit: rank and node. code: their place in the user's code. Without the last two, the decision's.
        """
        if self.router is None or (self.node and event_name in OF_ALL_NODES):
            return
        from supervisor.alerts.model import INCIDENT, RESTARTING, AlertAction, AlertEvent, OutgoingAlert  # noqa: PLC0415 (only where a sink is configured)

        event = AlertEvent(event_name)
        stop = decision is not None and decision.plan.kind is PlanKind.STOP
        is_beginning = event in {AlertEvent.RESOLVED, AlertEvent.STARTED_FROM_SCRATCH}
        if culprit is None:
            culprit = (None, "") if decision is None else (decision.verdict.rank, decision.verdict.node)
        is_over = event in {AlertEvent.GIVEN_UP, AlertEvent.FOREIGN_CHECKPOINT, AlertEvent.STOPPED}
        if is_beginning:
            action = AlertAction(began)
        elif is_over or (stop and event.row.thread == INCIDENT):
            action = AlertAction.STOP
        else:
            action = AlertAction.RESTART if event in RESTARTING else AlertAction.NONE
        self.router.enqueue(
            OutgoingAlert(
                run_id=self._job.run_id,
                job=self._job.name,
                event=event,
                severity=event.row.severity,
                incident=incident,
                attempt=attempt,
                ts=self._clock.now(),
                cause=Cause.NONE if decision is None else decision.verdict.cause,
                action=action,
                rank=culprit[0],
                step=step,
                about=about,
                node=self._job.settings.alerts.alias_of(self._job.node),
                failed_on=self._name_of(culprit[1]),
                confidence=None if decision is None or not decision.verdict.confidence else decision.verdict.confidence,
                subject=subject,
                exit_code=exit_code,
                hints=general_hints(decision.verdict) if decision is not None and incident else (),
                when=when,
                place=code_place(decision) if code is None else _place(code),
                sentence=clean(wording.what_text(decision.verdict)) if decision is not None and incident else "",
                lines=_lines(decision if incident else None, about),
                state_dir=str(identity.state_root(self._job.state)),
            )
        )

    def _name_of(self, node: str) -> str:
        """Return the name of the failed node in alerts (`HOST:NUMBER`), "" if the job has one node. An alias hides all host names."""
        host, _, number = node.rpartition(":")
        if not host:
            return ""
        return f"node {number}" if self._job.settings.alerts.node else f"{host.partition('.')[0]}:{number}"

    def clear(self, event_name: str, subject: str = "") -> None:
        """Note that the reason for the alerts of this event is over (alerts/threads.py). subject: the GPU, if the alert is about one."""
        if self.router is not None:
            from supervisor.alerts.model import AlertEvent  # noqa: PLC0415 (only where a sink is configured)

            self.router.clear(AlertEvent(event_name).row.thread, self._clock.now(), subject)

    def tick(self, now: float) -> None:
        """Send the due messages."""
        if self.router is not None:
            self.router.tick(now)

    def close(self, deadline_s: float) -> list[str]:
        """Try once more to send the waiting alerts. Return a line for each sink that did not get all."""
        if self.router is None:
            return []
        self.router.close(self._clock.now(), deadline_s)
        lines = []
        for left in self.router.undelivered():
            number = "1 alert was" if left.count == 1 else f"{left.count} alerts were"
            kept = f"kept in {left.file}" if left.saved else "and could not be kept"
            dropped = f"; {left.dropped} older ones were dropped, because too many waited" if left.dropped else ""
            lines.append(f"{number} not delivered to {left.host}: {left.reason}; {kept}{dropped}")
        return lines


def code_place(decision: ReportDecision | None) -> str:
    """Return FILE:LINE of the user's code, the file without its directory; "" where it is not known."""
    return _place(wording.code_text(decision.verdict)) if decision is not None else ""


def _place(code: str) -> str:
    """Return the FILE:LINE with which a text begins, the file without its directory; "" where there is none."""
    file, _, line = re.split(r",? ", code, maxsplit=1)[0].rpartition(":")
    return f"{clean(os.path.basename(file))}:{line}" if file and line.isdigit() else ""  # noqa: PTH119 (text)


def _lines(decision: ReportDecision | None, about: str) -> tuple[str, ...]:
    """Return the lines that an alert carries if its sink asks for lines: the text of the event, and the evidence."""
    lines = [about]
    if decision is not None:
        lines += [decision.verdict.summary, decision.plan.reason, *wording.evidence_lines(decision.verdict.because, MOST_LINES)]
    return tuple(dict.fromkeys(clean(line) for line in lines if line))
