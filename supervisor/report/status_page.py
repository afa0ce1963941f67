"""What `supervise status` shows: where a job stands, how fast it goes, and what it can resume from. Pure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Finding, Gpu, Hang
from supervisor.core.time_text import span_text
from supervisor.core.values import Struct, replace
from supervisor.job import identity
from supervisor.job.local_time import clock_text, second_text, zoned_text
from supervisor.report import wording
from supervisor.report.card import outcome_text
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.strategies.situation import memory_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.journal.history import RecordedIncident  # noqa: TC004  not for --help
    from supervisor.journal.records import StartTimes  # noqa: TC004  likewise

#: Ranks that are listed one by one; of more, those that differ.
_MOST_LISTED = 8
#: Alerts that a page has; the JSON has all.
_MOST_ALERTS = 50


class RankStatus(Struct, frozen=True):
    """One rank of this node that lives. None: not known. lag: steps behind the rank of this node that is furthest."""

    rank: int
    local_rank: int
    pid: int
    step: int | None = None
    phase: str = "unknown"
    lag: int | None = None
    memory_bytes: int | None = None


class StoredCheckpoint(Struct, frozen=True):
    """The newest checkpoint that was verified, or that a mirror holds. t: when that was. place: the mirror, "" for this node's disk."""

    path: str
    step: int | None
    t: float
    place: str = ""


class StandbyStatus(Struct, frozen=True):
    """The standbys of this node's ranks. text: how many, or why none."""

    text: str
    ready: int
    private_mib: int
    pids: tuple[int, ...]


class ListedAlert(Struct, frozen=True):
    """An alert that an outbox of the job holds. t: when it was put there."""

    t: float
    sink: str
    state: str  # sent, refused, waiting
    title: str
    answer: str  # of the service that refused it
    event_id: str


class AlertList(Struct, frozen=True):
    """A job's alerts on this node, the oldest first. dropped: for each sink how many, because too many waited."""

    alerts: tuple[ListedAlert, ...]
    dropped: dict[str, int]


class Status(Struct, frozen=True):
    """What `status` shows. Times are Unix seconds; None is not known.

    supervisor_alive: None if it cannot be seen from here. exit_code: None while there is none. now: when it was read. steps_per_s: of the
    last minute or so. hang: that holds, and when it was confirmed. total_steps: the script's own. step_t: when the rank that is furthest
    behind ended its last step. missing: how many nodes are waited for, and until when. warnings: what is strange about the loss and the
    pace. start: where the time of the attempt's start went. alerts: what is wrong with those of this run. alert_list: None if nobody asked.
    """

    job: str
    node: str
    run: str
    stage: str
    attempt: int
    step: int | None
    step_relative: bool
    phase: str
    ranks: tuple[RankStatus, ...]
    incident: int | None
    incidents: int
    last_decision: str
    supervisor_pid: int
    supervisor_alive: bool | None
    state_dir: str
    exit_code: int | None
    ended: bool
    numbers: str = ""
    left_out: int = 0  # batches that all ranks of the attempt left out (worker.agree)
    restored: str = ""
    world_size: int = 0
    alerts: str = ""
    now: float = 0.0
    since_t: float | None = None
    ended_t: float | None = None
    attempt_t: float | None = None
    steps_per_s: float | None = None
    total_steps: int | None = None
    step_t: float | None = None
    verified: StoredCheckpoint | None = None
    mirrored: StoredCheckpoint | None = None
    saves: str = ""
    restarts_left: int | None = None
    last_incident: RecordedIncident | None = None
    gpus: tuple[Gpu, ...] = ()
    findings: tuple[Finding, ...] = ()
    examined_t: float | None = None
    hang: tuple[float, Hang] | None = None
    warnings: tuple[str, ...] = ()
    start: StartTimes | None = None
    standbys: StandbyStatus | None = None
    missing: tuple[int, float] | None = None
    alert_list: AlertList | None = None

    @property
    def died(self) -> bool:
        """Whether the supervisor is gone without an end record."""
        return self.supervisor_alive is False and not self.ended

    @property
    def runs(self) -> bool:
        """Whether it may still write."""
        return not self.ended and self.supervisor_alive is not False

    @property
    def restarts(self) -> int:
        """How often the ranks were started again."""
        return max(0, self.attempt - 1)

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last step at this pace, where the total is known."""
        if not (self.runs and self.total_steps and self.steps_per_s and self.step is not None) or self.step_relative:
            return None
        return max(0.0, (self.total_steps - self.step) / self.steps_per_s)


def status_page(status: Status, address: str) -> FactPage:
    """Return the page. `address`: the options by which our other commands find the job."""
    stage = f"ended, exit code {status.exit_code}" if status.ended else status.stage
    title = f"job {status.job} on {status.node}: {stage}{' when supervise died' if status.died else ''}"
    facts = [
        Fact("since", _since(status)),
        *([Fact("mirror", f"gave {status.restored}")] if status.restored else []),
        *_missing(status),
        Fact("progress", _progress(status), Tone.STRONG),
        *([Fact("start", f"attempt {status.attempt}: {wording.start_text(status.start)}")] if status.start else []),
        *_hang(status),
        *(Fact(wording.STRANGE, text, Tone.WARNING) for text in (status.warnings if status.runs else ())),
        Fact("checkpoint", _stored(status.verified, status.now, "verified") or "none was verified in this run"),
        *([Fact("mirrored", _stored(status.mirrored, status.now, ""))] if status.mirrored else []),
        *([Fact("saves", status.saves)] if status.saves else []),
        *([Fact("numbers", status.numbers, Tone.WARNING)] if status.numbers else []),
        *_left_out(status),
        Fact("restarts", _restarts(status)),
        *_ranks(status),
        *([Fact("standby", status.standbys.text)] if status.standbys is not None and status.runs else []),
        *_node(status),
        *_alerts(status, address),
        *incident_facts(status),
        Fact("supervise", f"pid {status.supervisor_pid}, {_alive(status)}", Tone.BAD if status.died else Tone.PLAIN),
        Fact("files", status.state_dir, copied=True),
        *([Fact("look", f"supervise why {address}", copied=True)] if status.incidents else []),
    ]
    bad = status.died or bool(status.exit_code)
    tone = Tone.BAD if bad else Tone.WARNING if status.incident is not None else Tone.GOOD
    return FactPage(title, tuple(facts), tone)


def _alive(status: Status) -> str:
    return {True: "alive", False: "ended" if status.ended else "died, and could not report it", None: "cannot be seen from here"}[
        status.supervisor_alive
    ]


def _since(status: Status) -> str:
    if status.since_t is None:
        return f"run {status.run}"
    at = zoned_text(status.since_t)
    lasted = span_text((status.ended_t or status.now) - status.since_t)
    return f"{at} ({lasted}{' until it ended' if status.ended_t else ''}), run {status.run}"


def _progress(status: Status) -> str:
    total = f" of {status.total_steps}" if status.total_steps and status.step is not None and not status.step_relative else ""
    parts = [wording.step_text(status.step, relative=status.step_relative) + total]
    parts.append(f"phase {status.phase}")
    if status.runs and status.steps_per_s:
        parts.append(wording.pace_text(status.steps_per_s))
    if status.runs and status.step_t is not None:
        parts.append(f"last step {span_text(status.now - status.step_t)} ago")
    if status.eta_s is not None:
        parts.append(f"about {span_text(status.eta_s)} left")
    if not status.attempt:
        return "no attempt yet"
    began = f", since {clock_text(status.attempt_t)}" if status.attempt_t and status.runs else ""
    return f"attempt {status.attempt}{began}: {', '.join(parts)}"


def _hang(status: Status) -> list[Fact]:
    """Return that the ranks stand still, and where their stacks are."""
    if status.hang is None or not status.runs:
        return []
    t, hang = status.hang
    text = f"no progress for {span_text(hang.still_s + status.now - t)}: {hang.text}"
    stacks = identity.look_path(Path(status.state_dir), status.attempt)
    return [Fact("hang", text, Tone.WARNING), Fact("stacks", str(stacks), copied=True)]


def _stored(found: StoredCheckpoint | None, now: float, how: str) -> str:
    if found is None:
        return ""
    step = wording.step_text(found.step) if found.step is not None else "step unknown"
    place = f" in {found.place}" if found.place else ""
    return f"{step}, {how + ' ' if how else ''}{span_text(now - found.t)} ago{place}: {found.path}"


def _missing(status: Status) -> list[Fact]:
    """Return what the attempt waits for, where fewer nodes are there than it needs."""
    if status.missing is None or not status.runs:
        return []
    count, until_t = status.missing
    return [
        Fact("waits", f"for {count} more node(s), until {time.strftime('%H:%M', time.localtime(until_t))}, then it stops", Tone.WARNING)
    ]


def _restarts(status: Status) -> str:
    if status.restarts_left is None or not status.runs:
        return str(status.restarts)
    if status.missing is not None:
        return f"{status.restarts}; the next one waits for the nodes"
    left = "it stops at the next failure" if not status.restarts_left else f"{status.restarts_left} left without progress, then it stops"
    return f"{status.restarts}; {left}"


def _left_out(status: Status) -> list[Fact]:
    count = status.left_out
    text = f"{count} batch{'es' * (count > 1)} on all ranks, by worker.agree"
    return [Fact("left out", text, Tone.WARNING)] if count else []


def _ranks(status: Status) -> list[Fact]:
    if not status.ranks:
        return [Fact("ranks", "none runs")] if status.runs else []
    here = len(status.ranks)
    count = f"{here} of {status.world_size} on this node" if status.world_size > here else f"{here}"
    if here <= _MOST_LISTED:
        return [Fact("ranks", f"{count}: {'; '.join(_rank(rank) for rank in status.ranks)}")]
    behind = sorted((rank for rank in status.ranks if rank.lag), key=lambda one: -(one.lag or 0))[:3]
    memory = [rank.memory_bytes for rank in status.ranks if rank.memory_bytes is not None]
    texts = [count, *(_rank(rank_status) for rank_status in behind)]
    if memory:
        texts.append(f"memory {memory_text(min(memory))} to {memory_text(max(memory))} each, {memory_text(sum(memory))} together")
    return [Fact("ranks", "; ".join(texts))]


def _rank(one: RankStatus) -> str:
    known = [
        f"pid {one.pid}",
        *([f"{one.lag} {'step' if one.lag == 1 else 'steps'} behind"] if one.lag else []),
        *([memory_text(one.memory_bytes)] if one.memory_bytes is not None else []),
    ]
    return f"rank {one.rank} ({', '.join(known)})"


def _node(status: Status) -> list[Fact]:
    """Return the GPUs that the job may use, and what the last examination of this node found."""
    facts: list[Fact] = []
    if status.gpus:
        out = [f"GPU {gpu.index} is out of use: {gpu.quarantined}" for gpu in status.gpus if gpu.quarantined]
        used = _numbers([gpu.index for gpu in status.gpus if not gpu.quarantined])
        facts.append(Fact("GPUs", "; ".join([used or "none in use", *out]), Tone.WARNING if out else Tone.PLAIN))
    if status.examined_t is not None:
        bad = [finding for finding in status.findings if finding.result != "ok"]
        at = clock_text(status.examined_t)
        text = "; ".join(map(_finding, bad)) or "nothing wrong was found"
        facts.append(Fact("health", f"{text} (examined at {at})", Tone.WARNING if bad else Tone.PLAIN))
    return facts


def _finding(found: Finding) -> str:
    """Return a finding as a sentence: what it is about stands once."""
    subject = found.subject.removeprefix("path:")
    return f"{found.result}: {found.reason if subject in found.reason else f'{subject}: {found.reason}'}"


def _numbers(found: Sequence[int]) -> str:
    """Return numbers as `0-3, 5`."""
    runs: list[list[int]] = []
    for number in sorted(found):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _alerts(status: Status, address: str) -> list[Fact]:
    """Return what is wrong with this run's alerts; in its place, where it was asked for, a line for each alert of the job."""
    if status.alert_list is None:
        return [Fact("alerts", f"{status.alerts}; supervise status -v {address}", Tone.WARNING)] if status.alerts else []
    alerts, dropped = status.alert_list.alerts, status.alert_list.dropped
    facts = []
    if len(alerts) > _MOST_ALERTS:
        facts.append(Fact("", f"{len(alerts) - _MOST_ALERTS} older ones: --json lists all"))
    facts += [Fact("", _alert(alert), Tone.WARNING if alert.state == "refused" else Tone.PLAIN) for alert in alerts[-_MOST_ALERTS:]]
    facts += [Fact("", f"{number} for {name} were dropped: too many waited", Tone.WARNING) for name, number in dropped.items()]
    facts = facts or [Fact("", "none so far; `supervise alerts test` sends one")]
    return [replace(facts[0], label="alerts"), *facts[1:]]


def _alert(alert: ListedAlert) -> str:
    answer = f" ({alert.answer})" if alert.answer else ""
    return f"{second_text(alert.t)} {alert.sink} {alert.state}{answer}: {alert.title}"


def incident_facts(status: Status) -> list[Fact]:
    """Return how many incidents there were, and of the last one the cause, the decision and what is next."""
    last = status.last_incident
    if last is None:
        return [Fact("incidents", str(status.incidents) if status.incidents else "none")]
    at = clock_text(last.opened_t)
    facts = [Fact("incidents", f"{status.incidents}, the last is incident {last.number} at {at}: {outcome_text(last)}")]
    decided = next((one.decision for one in reversed(last.rounds) if one.decision is not None), None)
    over = last.outcome == "resolved"
    tone = Tone.FAINT if over else Tone.BAD
    if decided is None:
        return [*facts, Fact(wording.CAUSE, last.summary, tone)]
    facts.append(Fact(wording.CAUSE, wording.cause_text(decided.verdict), tone))
    facts.append(Fact(wording.DECISION, wording.decision_text(decided.plan, decided.attempt), Tone.FAINT if over else Tone.STRONG))
    return facts if over else [*facts, Fact(wording.NEXT, decided.plan.next_rung)]
