"""Reports one run to people in four places: the terminal, the incident's files, the log, the alerts.

It takes the core's reporting actions, and each event that the core took. Nothing in here blocks or fails: the terminal, the log, the alerts
and the incident's files each have their own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.actions import ReportDecision
from supervisor.core.model import Beginning, Cause, PlanKind
from supervisor.core.training_events import STRAGGLER
from supervisor.core.units import span_text
from supervisor.core.values import asdict
from supervisor.core.watch.memory import MEMORY_FORECAST
from supervisor.node.gpu_quarantine import QUARANTINE_DAYS
from supervisor.report import unit_status, wording
from supervisor.report.attempt_summary import AttemptSummary, logged_fields
from supervisor.report.incident_cards import IncidentCards
from supervisor.report.log_events import LogEvent
from supervisor.report.logged_events import LOGGED, NOTED, gpu_fields
from supervisor.report.outgoing_alerts import ALREADY_PRINTED, FROM_SCRATCH, WITHOUT_DECISION, OutgoingAlerts
from supervisor.report.process_reports import ProcessReports
from supervisor.report.restart_line import restart_line
from supervisor.report.start_lines import StartLines
from supervisor.report.start_times import StartClock, launched_t, note_of
from supervisor.report.text import clean
from supervisor.report.vitals import Vitals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervisor.core.events import Event
    from supervisor.core.state import Incident
    from supervisor.job.clock import Clock
    from supervisor.job.job import Job
    from supervisor.job.sd_notify import Notifier
    from supervisor.journal.records import Note, StartTimes
    from supervisor.node.gpu_quarantine import QuarantinedGpu
    from supervisor.report.event_log import EventLog
    from supervisor.report.journald import Level
    from supervisor.report.log_events import LogLevel
    from supervisor.report.terminal import TerminalWriter

STOP_MARGIN_S = 20.0  # what a stop takes beyond the ranks' own deadline, for systemd's timeout


class Reporter:
    """Reports one run. Its methods are called on the loop's thread."""

    def __init__(self, job: Job, clock: Clock, terminal: TerminalWriter, log: EventLog, notifier: Notifier) -> None:
        self.alerts = OutgoingAlerts(job, clock)
        self._job = job
        self._clock = clock
        self._terminal = terminal
        self._log = log
        self._notifier = notifier
        self.processes, self.cards = ProcessReports(job, terminal, log), IncidentCards(job, log)
        self.vitals = Vitals(expects_checkpoints=bool(job.settings.checkpoints.paths))
        self._decision: act.ReportDecision | None = None  # of the incident that is open
        self._last: act.ReportDecision | None = None  # of the incident before, when none is
        self._pending_alerts: list[act.Alert] = []  # reported with the decision
        self._attempt = AttemptSummary()
        self._launched_t = launched_t(clock)
        self.starts = StartClock(clock, self._launched_t, self._start_timed)
        self.start_lines = StartLines(clock, terminal)
        self.record_note: Callable[[Note], None] = lambda _note: None  # in the journal
        self._opened_t: dict[int, float] = {}
        self._opened: set[int] = set()
        self._began_t: float | None = None
        self._began = "restart"  # how the last restart began, in the alerts' words, where it was seen
        self._awaits_nodes = False  # to alert that the run began

    # the run

    def started(self, lines: Sequence[str]) -> None:
        """Print the lines that open every run."""
        for line in lines:
            self._terminal.message(line)

    def took(self, event: Event) -> None:
        """Log an event that the core took, and keep systemd's status line true."""
        name = LOGGED.get(type(event))
        if name is not None:
            self._log.write(name, **logged_fields(event))
        self._sum_up(event)
        self.vitals.took(event)
        self._clear_alerts(event)
        if isinstance(event, events.CheckpointSelected):
            self.cards.selected(event)
        elif isinstance(event, events.StopRequested):
            self._notifier.extend_timeout(self._job.settings.stop.deadline_s + STOP_MARGIN_S)
        self._notify_systemd(event)

    def _notify_systemd(self, event: Event) -> None:
        """Keep the unit's status line true, and report READY once the ranks run."""
        status = unit_status.status_line(event)
        if isinstance(event, events.AttemptStarted):
            self._notifier.ready(status)
        elif status:
            self._notifier.status(status)

    def _sum_up(self, event: Event) -> None:
        """Store the facts for the attempt's last line, and log the exit of each rank."""
        attempt = self._attempt
        attempt.took(event)
        self.starts.took(event)
        self.start_lines.took(event)
        if isinstance(event, events.RankExited):
            rank_exit = event.exit
            self._log.write(LogEvent.RANK_EXITED, None if rank_exit.failed else "info", attempt=event.attempt, **asdict(rank_exit))
        elif isinstance(event, events.AttemptEnded):
            level: LogLevel | None = None if event.outcome == "failed" else "info"
            self._log.write(LogEvent.ATTEMPT_ENDED, level, **attempt.fields(event.outcome, event.t) | {"attempt": event.attempt})

    def _clear_alerts(self, event: Event) -> None:
        """Note for the alerts what an event ends: a new run that trains ends what an earlier one gave up."""
        self.alerts.took(event)
        if isinstance(event, events.NodesGathered) and self._awaits_nodes:
            self.run_started(continues=False)
        elif isinstance(event, events.CheckpointVerified):
            self.alerts.clear("no_checkpoint")
        elif isinstance(event, events.NewestSaveGone) and event.is_over:
            self.alerts.clear("save_gone")
        elif isinstance(event, events.HealthChanged) and all(finding.result == "ok" for finding in event.findings):
            self.alerts.clear("node_health")
        elif isinstance(event, events.HangCleared | events.AttemptEnded):
            self.alerts.clear("hang")
        elif isinstance(event, events.ProgressObserved) and event.trains and self._decision is None:
            self.alerts.clear("opened")

    def print_message(self, action: act.PrintMessage) -> None:
        """Print one line at the terminal."""
        self._terminal.message(action.text, _level(action.level))

    def gathering(self, action: act.GatherNodes) -> None:
        """Note that an attempt begins with a meeting of its nodes: if it ends there, the summary line has nothing of the attempt before."""
        self._attempt = AttemptSummary(action.attempt)
        self._notifier.status(f"attempt {action.attempt} waits for the other nodes")

    def beginning(self, action: act.BeginAttempt) -> None:
        """Note that an attempt was ordered."""
        self.starts.reached("ordered")
        for alert in self._take_pending_alerts():  # raised before the attempt, and followed by no decision
            self._report_alert(alert, self._last)
        self._began_t, self._began = self._clock.now(), "restart"
        resume = action.resume
        path, step = (resume.path, resume.step) if resume else (None, None)
        self._attempt = AttemptSummary(action.attempt, action.reason, path, step)
        self._notifier.status(f"attempt {action.attempt} starts its ranks")
        self.start_lines.ordered(action)
        fields = LogEvent.ATTEMPT_BEGUN.fields_of(action) | {"overrides": {name: clean(value) for name, value in action.overrides}}
        self._log.write(LogEvent.ATTEMPT_BEGUN, **fields, resume_from=path, resume_step=step)

    def goes_on(self, incident: Incident | None, node: int = 0) -> None:
        """Take over the incident that a predecessor left open, so that its end is reported too. node: as in OutgoingAlerts."""
        self.alerts.node = node
        if incident is None or incident.verdict is None or incident.plan is None:
            return
        if incident.alerts:
            self._opened.add(incident.number)
        self._opened_t[incident.number] = incident.opened_t
        self._decision = self._last = ReportDecision(incident.number, incident.attempt, incident.verdict, incident.plan, None)

    # incidents

    def opened(self, action: act.OpenIncident) -> None:
        """Log it. The terminal, the card and the alert wait for the decision, a moment later."""
        self.starts.incident_opened(action.attempt)
        self.start_lines.failed(action)
        self._opened_t[action.incident] = self._clock.now()
        self._log.write(LogEvent.INCIDENT_OPENED, **LogEvent.INCIDENT_OPENED.fields_of(action))

    def decided(self, action: act.ReportDecision) -> None:
        """One line, the card, the alert."""
        self.starts.reached("decided")
        self.start_lines.decided()
        before = self._decision  # no attempt was begun since
        is_same_wait = before is not None and (before.incident, before.attempt) == (action.incident, action.attempt)
        self._decision = self._last = action
        verdict, plan = action.verdict, action.plan
        self._log.write(
            LogEvent.PLAN_DECIDED,
            **LogEvent.PLAN_DECIDED.fields_of(plan)
            | LogEvent.PLAN_DECIDED.fields_of(action)
            | _judged(action)
            | {"next": plan.next_ladder_step, "changes": [wording.change(change) for change in plan.changes]},
        )
        if plan.kind is PlanKind.RESTART:
            text = restart_line(action, self._clock.now(), is_same_wait=is_same_wait)
            self._terminal.message(text + wording.consequences(verdict), "notice")
            self._notifier.status(text)
        for line in (*plan.notes, *([plan.todo] if plan.todo else [])) if not is_same_wait else ():
            self._terminal.message(clean(line))
        self.cards.decided(action, self._attempt.failed_t or self._clock.now())
        is_open = action.incident in self._opened
        if action.alerts and not is_open and verdict.cause is not Cause.INTERRUPTED:  # who pressed Ctrl-C knows it
            self._opened.add(action.incident)
            self._alert("opened", action.incident, action.attempt, action.step)
        self._report_pending_alerts(action)

    def _start_timed(self, times: StartTimes) -> None:
        self._log.write(LogEvent.ATTEMPT_TIMED, **asdict(times))
        self.record_note(note_of(times))

    def resumed(self, action: act.ReportResume) -> None:
        """Report how the attempt began."""
        self._began = action.began.value
        began_t = self._began_t  # None: a predecessor began it
        since, start = (self._launched_t, "launch") if action.attempt == 1 else (began_t, f"the start of attempt {action.attempt}")
        took = "" if began_t is None or since is None else f" ({span_text(self._clock.now() - since)} after {start})"
        is_resumed = action.began is Beginning.RESUMED and action.given_step is None
        expected = is_resumed or action.is_new
        self._terminal.message(wording.beginning(action) + took, "info" if expected else "warning")
        self._log.write(LogEvent.RESUME_CONFIRMED, **LogEvent.RESUME_CONFIRMED.fields_of(action))
        if self._decision is not None:
            self.cards.resumed(self._decision, action)
        if is_resumed:
            for kind in (FROM_SCRATCH, "resume_suspect"):
                self.alerts.clear(kind)
        elif action.began is not Beginning.FROM_SCRATCH and action.resume_from:
            self.alerted(act.Alert("resume_suspect", action.attempt, wording.beginning(action)))

    def closed(self, action: act.CloseIncident) -> None:
        """Log it, and alert that it is over, one way or the other."""
        now = self._clock.now()
        decision = self._decision if self._decision is not None and self._decision.incident == action.incident else None
        self._log.write(
            LogEvent.INCIDENT_CLOSED,
            None if action.outcome == "given_up" else "info",
            **LogEvent.INCIDENT_CLOSED.fields_of(action),
            took_s=round(now - self._opened_t.pop(action.incident, now), 3),
            **_judged(decision),
        )
        if action.incident in self._opened:
            self._alert(action.outcome, action.incident, action.attempt, action.step)
        if action.outcome == "resolved":
            self._decision, self.cards.last = None, None

    def alerted(self, action: act.Alert) -> None:
        """Report what no incident reports, in all places, after the decision that it belongs to."""
        self._log.write(LogEvent.ALERT_RAISED, kind=action.kind, attempt=action.attempt, text=clean(action.text))
        if action.kind in WITHOUT_DECISION:
            self._report_alert(action, self._last)
            return
        self._pending_alerts.append(action)
        if self._decision is not None and self._decision.attempt == action.attempt:
            self._report_pending_alerts(self._decision)

    def _report_pending_alerts(self, decision: act.ReportDecision) -> None:
        for action in self._take_pending_alerts():
            self._report_alert(action, decision)

    def _take_pending_alerts(self) -> list[act.Alert]:
        pending, self._pending_alerts = self._pending_alerts, []
        return pending

    def _report_alert(self, action: act.Alert, decision: act.ReportDecision | None) -> None:
        if action.kind not in ALREADY_PRINTED:
            self._terminal.message(clean(action.text), "warning")
        incident, step = (decision.incident, decision.step) if decision is not None else (0, None)
        if action.kind in WITHOUT_DECISION:
            step = self._attempt.step
        follows_from_none = action.kind in {"hang", STRAGGLER, MEMORY_FORECAST}
        place = {"culprit": action.culprit, "code": action.code} if follows_from_none else {}
        self._alert(action.kind, incident, action.attempt, step, about=action.text, subject=action.subject, when=action.when, **place)

    def quarantined(self, action: act.Quarantine) -> None:
        """Report how a GPU that is put out of use comes back into use."""
        gpu = action.gpu
        name = gpu.uuid or gpu.pci
        self._log.write(LogEvent.GPU_QUARANTINED, attempt=action.attempt, **gpu_fields(action))
        command = self._job.settings.clear_gpu_command(name)
        self._terminal.message(f"GPU {name} is left out on this node for {QUARANTINE_DAYS} days; once it is repaired: {command}", "warning")

    def released(self, entry: QuarantinedGpu) -> None:
        """Report that a GPU is back in use, because it was reset and is well."""
        self._log.write(LogEvent.GPU_RELEASED, uuid=entry.uuid, pci=entry.pci, reason=clean(entry.reason))
        self.alerts.clear("gpu_quarantined", entry.uuid)
        self._terminal.message(f"GPU {entry.name} is back in use: it was reset since ({clean(entry.reason)}), and NVML finds it well")

    def saving(self, action: act.RequestSave) -> None:
        """Log that a save was requested. Before a stop ask systemd for the time, which may be longer than the stop deadline."""
        self._log.write(LogEvent.SAVE_REQUESTED, attempt=action.attempt, left_s=action.left_s)
        if action.left_s is None:
            return
        stop = self._job.settings.stop
        self._notifier.extend_timeout(max(stop.deadline_s, action.left_s + stop.grace_s) + STOP_MARGIN_S)

    def note(self, name: str, fields: Mapping[str, Any]) -> None:
        """Log a fact that no decision needs."""
        self.starts.noted(str(fields.get("ev", name)))
        row = {"request" if key == "do" else key: value for key, value in fields.items() if key != "ev"}
        if name in NOTED:
            self._log.write(NOTED[name], **row)
        else:
            self._log.write(LogEvent.AGENT_REPORTED, what=str(fields.get("ev", name)), **row)

    def close_alerts(self, deadline_s: float) -> None:
        """Try once more to send what waits, and print each alert that was not delivered."""
        for line in self.alerts.close(deadline_s):
            self._terminal.message(line, "warning")

    # how

    def end_status(self, exit_code: int) -> str:
        """Return the unit's last status line."""
        return unit_status.end_line(self._job.name, exit_code, self._decision)

    def run_started(self, *, continues: bool, meets: bool = False) -> None:
        """Alert that the run began, where a sink asks for that. meets: once its nodes have met, because one of them alerts."""
        self._awaits_nodes = meets and not continues
        if not continues and not meets:
            self._alert("run_started", 0, 1, None)

    def run_finished(self, exit_code: int, attempt: int) -> None:
        """Alert that the run ended; after 0 no thread of it fires any longer."""
        self._alert("run_finished", 0, attempt, self._attempt.step, exit_code=exit_code)

    def alert_over(self, kind: str, text: str, subject: str = "") -> None:
        """Report that what an alert of this kind (and subject) was raised for is over."""
        self._terminal.message(clean(text))
        self.alerts.clear(kind, subject)

    def _alert(self, event: str, incident: int, attempt: int, step: int | None, **more: Any) -> None:  # noqa: ANN401 (as OutgoingAlerts.send has them)
        self.alerts.send(event, incident=incident, attempt=attempt, step=step, decision=self._last, began=self._began, **more)


def _judged(decision: act.ReportDecision | None) -> dict[str, object]:
    """Return a decision as a line: the cause, its rank, and the answer; None if nothing was decided."""
    verdict, plan = (decision.verdict, decision.plan) if decision is not None else (None, None)
    return {
        "cause": verdict and verdict.cause.value,
        "confidence": verdict and verdict.confidence,
        "rank": verdict and verdict.rank,
        "plan": plan and plan.kind.value,
        "strategy": plan and plan.strategy,
        "exit_code": plan.exit_code if plan is not None and plan.kind is PlanKind.STOP else None,
    }


def _level(level: str) -> Level:
    return cast("Level", level) if level in {"info", "warning", "error"} else "info"
