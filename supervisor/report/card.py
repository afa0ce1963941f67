"""The card of an incident, and the texts of `supervise why` and `supervise status`.

Pure. Texts are plain ASCII, at most 100 columns wide, without control characters and without values that look secret. Only rows
that people copy (paths, commands) may be longer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.core.model import Beginning, PlanKind, RankInfo
from supervisor.observe.processes import core_dumps
from supervisor.report.text import WHOLE_ROWS, WIDTH, clean, laid_out, more_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.actions import ReportDecision, ReportResume
    from supervisor.core.model import Change, Evidence, Plan, Verdict
    from supervisor.journal.reader import RecordedIncident, Round

CARD_WIDTH = WIDTH - len("supervise: ")
CARD_LINES = 12
WHY_LINES = 16
CARD_EVIDENCE = 3
WHY_EVIDENCE = 3
_LABEL = 12
_FOLDED = 2
#: Rows that are neither folded nor cut: a command, a path, a line that would enable a knob are there to be copied.
_COPIED = frozenset({"look", "files", "core", "note", "and"})
_WHOLE_FOLDED = 3
#: Evidence that reads well by itself, best first. Heartbeats show where it happened, and that has a line of its own.
_TELLING = ("exception", "traceback", "last_exception", "signal", "exit_code", "err", "both", "out")


@dataclass(frozen=True, slots=True)
class Status:
    """What `status` shows. supervisor_alive: None if it cannot be seen from here. exit_code: None while there is none."""

    job: str
    node: str
    run: str
    stage: str
    attempt: int
    step: int | None
    step_relative: bool
    phase: str
    ranks: tuple[RankInfo, ...]
    incident: int | None
    incidents: int
    last_decision: str
    supervisor_pid: int
    supervisor_alive: bool | None
    state_dir: str
    exit_code: int | None
    ended: bool
    numbers: str = ""
    restored: str = ""
    world_size: int = 0
    alerts: str = ""


def card(  # noqa: PLR0913 (all that the card names)
    job: str,
    decision: ReportDecision,
    resumed: ReportResume | None,
    *,
    address: str,
    node: str = "",
    state_dir: str = "",
    dumped: Sequence[Evidence] = (),
    repaired: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the card of an incident: what failed, where, the evidence, what is done, what would be next, where to look.

    `address`: the options by which our other commands find the job (Settings.address). `dumped`: what is known of the ranks' cores,
    which takes the place of a line of evidence. `repaired`: what was done to the job's checkpoints before the next attempt (path, what),
    which takes the place of another; if no line is left, only `why` shows it.
    """
    verdict, plan = decision.verdict, decision.plan
    core = _core(dumped, verdict)
    at = f" on {node}" if node else ""
    beside, step = _beside(plan), step_text(decision.step, at_least=decision.at_least)
    rows = [
        ("failed", verdict.summary),
        ("where", f"{_whose(verdict)}{at}, attempt {decision.attempt}, {step}, phase {phase_of(verdict.because)}"),
        *_labelled("evidence", _evidence(decision, verdict.because, max(1, CARD_EVIDENCE - bool(core) - len(beside) - bool(repaired)))),
        *([("core", core)] if core else []),
        ("cause", _cause(verdict)),
        ("done", _done(plan, decision.attempt)),
        *beside,
        ("next", plan.next_rung),
    ]
    if resumed is not None:
        rows.append((_beginning_label(resumed), _resumed(resumed)))
    rows.append(("look", f"supervise why {decision.incident} {address}"))
    if state_dir:
        rows.append(("files", state_dir))
    if repaired and len(rows) < CARD_LINES - 1:
        rows.insert([label for label, _ in rows].index("next") + 1, ("repaired", _first_of(repaired)))
    return _laid_out(f"incident {decision.incident} of job {job}", [(label, "", text) for label, text in rows], CARD_WIDTH, CARD_LINES)


def why_text(job: str, node: str, incident: RecordedIncident, address: str, *, since: str = "") -> str:
    """Return the six steps of an incident: seen, stopped, evidence, verdict, plan, resumed.

    `since`: the job's last run. It is named if the incident belongs to another run.
    """
    last = incident.rounds[-1]
    rows: list[tuple[str, float | None, str]] = [_failed(incident, last)]
    lines_left = WHY_EVIDENCE
    if since and incident.run_id != since:
        lines_left -= 1  # the text stays as short
        rows.append(("run", None, f"{incident.run_id}, an earlier one; the last is {since}"))
        address = f"{address} --run {incident.run_id}"
    core = _core([fact for fact in last.evidence if fact.name == core_dumps.NAME], last.decision.verdict if last.decision else None)
    lines_left -= bool(core)
    lines_left -= bool(last.selected and last.selected.repaired)
    rows.append(("where", None, _where(incident, last, node)))
    if len(incident.rounds) > 1:
        tries = "; ".join(f"attempt {r.attempt}: {r.decision.verdict.summary if r.decision else 'undecided'}" for r in incident.rounds[:-1])
        rows.append(("earlier", incident.opened_t, f"{tries}. This is attempt {last.attempt}"))
    rows += _stopped(last)
    decision = last.decision
    if decision is None:
        rows += [("evidence", None, line) for line in evidence_lines(last.evidence, max(1, lines_left))]
        rows.append(("decision", None, "none is recorded"))
    else:
        facts, beside = decision.verdict.because or last.evidence, _beside(decision.plan)
        lines_left = max(1, lines_left - len(beside))
        rows += [(label, None, line) for label, line in _labelled("evidence", _evidence(decision, facts, lines_left))]
        rows.append(("verdict", last.decided_t, f"{_cause(decision.verdict)}: {decision.verdict.summary}"))
        rows.append(("plan", None, _done(decision.plan, decision.attempt)))
        rows += [(label, None, text) for label, text in beside]
        rows.append(("next time", None, decision.plan.next_rung))
    rows += [("core", None, core)] if core else []
    rows += _checkpoint(last)
    rows += _ending(incident, last)
    rows.append(("look", None, _look(address, incident, last)))
    rows = [row for row in rows if row[2]]
    if len(rows) >= WHY_LINES and last.selected and last.selected.repaired:
        rows = [row for row in rows if row[0] != "rejected"]
    date = time.strftime("%Y-%m-%d %z", time.localtime(incident.opened_t))
    head = f"incident {incident.number} of job {job}: {incident.outcome.replace('_', ' ')} ({date})"
    return _laid_out(head, [(label, _clock(t), text) for label, t, text in rows], WIDTH, WHY_LINES)


def status_text(status: Status, address: str) -> str:
    """Return the text of `supervise status`."""
    alive = {True: "alive", False: "ended" if status.ended else "died, and could not report it", None: "cannot be seen from here"}
    open_ = f"incident {status.incident} is open" if status.incident is not None else "no open incident"
    died = status.supervisor_alive is False and not status.ended
    stage = f"{status.stage}, exit code {status.exit_code}" if status.ended else f"{status.stage}{' when supervise died' if died else ''}"
    rows = [
        ("run", f"{status.run}, attempt {status.attempt}, {stage}"),
        ("progress", f"{step_text(status.step, relative=status.step_relative)}, phase {status.phase}"),
        ("ranks", _ranks(status)),
        ("incidents", f"{status.incidents} in all, {open_}"),
        ("decision", status.last_decision or "none yet"),
        ("supervise", f"pid {status.supervisor_pid}, {alive[status.supervisor_alive]}"),
        ("files", status.state_dir),
    ]
    if status.numbers:
        rows.append(("numbers", clean(status.numbers)))
    if status.alerts:
        rows.append(("alerts", f"{status.alerts}; supervise alerts list {address}"))
    if status.restored:
        rows.insert(1, ("mirror", f"gave {status.restored}"))
    if status.incidents:
        rows.append(("look", f"supervise why {address}"))
    return _laid_out(f"job {status.job} on {status.node}", [(label, "", text) for label, text in rows], WIDTH, 2 * len(rows))


def evidence_lines(facts: Iterable[Evidence], most: int, *, first: Sequence[Evidence] = ()) -> list[str]:
    """Return the best evidence, a line each: who saw it, of which rank, and its last line of text.

    `first`: the evidence that a verdict stands on; it comes before all else.
    """
    order = {name: i for i, name in enumerate(_TELLING)}
    readable = sorted((f for f in facts if f.name in order or f.source != "heartbeat"), key=lambda f: order.get(f.name, len(order)))
    lines: list[str] = []
    for fact in (*first, *readable):
        rank = "" if fact.rank is None else f" of rank {fact.rank}"
        line = f"{fact.source}{rank}: {_telling_line(fact) if fact.name not in {'signal', 'exit_code'} else f'{fact.name} {fact.text}'}"
        if line not in lines:
            lines.append(line)
    return lines[:most] or ["none was found"]


def _evidence(decision: ReportDecision, facts: Sequence[Evidence], most: int) -> list[str]:
    """Return the lines of evidence: none if a beginning was refused, since `failed` already has the reason."""
    return [] if not facts and decision.plan.strategy == "beginning" else evidence_lines(facts, most, first=decision.verdict.because[:1])


def _core(facts: Sequence[Evidence], verdict: Verdict | None) -> str:
    """Return where the core dump is: that of the rank whose failure it was, else the first; and how many more there are."""
    dumps = sorted(facts, key=lambda fact: (verdict is None or fact.rank != verdict.rank, fact.t))
    if not dumps:
        return ""
    more = f" (and of {len(dumps) - 1} more)" if len(dumps) > 1 else ""
    return f"rank {dumps[0].rank} {dumps[0].text}{more}"


def phase_of(facts: Iterable[Evidence]) -> str:
    """Return the phase that the evidence names, or unknown."""
    return next((f.text for f in facts if f.name == "phase"), "unknown")


def _laid_out(head: str, rows: Sequence[tuple[str, str, str]], width: int, most: int) -> str:
    """Return a card: the heading and the rows (label, what stands before the text, text)."""

    def folds(label: str) -> int | None:
        if label in _COPIED:
            return None
        return _WHOLE_FOLDED if label in WHOLE_ROWS else _FOLDED if label else 0  # the first of several matters most

    page = [(label, before, clean(text)) for label, before, text in rows]
    wanted = sum(more_lines(row, width - 2 - _LABEL, folds) for row in page if row[0] in WHOLE_ROWS or row[0] == "failed")
    while most - 1 - len(page) < wanted and (less := next((row for row in reversed(page) if not row[0]), None)):
        page.remove(less)
    if most - 1 - len(page) < wanted and page[0][0] == "failed":
        page = [row for row in page if row[0] != "evidence" or not _repeats(page[0][2], row[2])]
    return laid_out(head, page, width, most, label_width=_LABEL, folds=folds)


def _repeats(failed: str, evidence: str) -> bool:
    """Whether a line of evidence (`observer: Exception: its text`) only repeats what failed."""
    text = evidence.split(": ", 2)[-1]
    return bool(text) and text in failed


def _labelled(label: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(label if i == 0 else "", line) for i, line in enumerate(lines)]


def _telling_line(fact: Evidence) -> str:
    """Return the first line of an exception, unless its text is another one's traceback; of all else the last line."""
    is_exception = fact.name in {"exception", "last_exception"} or fact.claim is not None
    first = next((line for line in fact.text.splitlines() if line.strip()), "")
    return first if is_exception and "Traceback (most recent call last)" not in fact.text else _last_line(fact.text)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _clock(t: float | None) -> str:
    return " " * 10 if t is None else time.strftime("%H:%M:%S  ", time.localtime(t))


def _whose(verdict: Verdict) -> str:
    return "no single rank" if verdict.rank is None else f"rank {verdict.rank}"


def step_text(step: int | None, *, relative: bool = False, at_least: bool = False) -> str:
    """Return a step as a person would write it."""
    if step is None:
        return "step unknown"
    return f"step {step}" + (" or later" if at_least else "") + (" (counted from where it began)" if relative else "")


def position_text(step: int | None, epoch: int | None) -> str:
    """Return the step of a checkpoint, else its epoch; "" if neither is known."""
    return f"step {step}" if step is not None else "" if epoch is None else f"epoch {epoch}"


def _cause(verdict: Verdict) -> str:
    return f"{verdict.cause.value}, {100 * verdict.confidence:.0f} % sure" + (", transient" if verdict.transient else "")


def change(of: Change) -> str:
    """Return one change as a person would write it: `--batch-size 32 -> 16`."""
    old = f"{of.old} " if of.old else ""
    return clean(f"{of.how} {old}-> {of.new}")


def changes(plan: Plan) -> str:
    """Return what the next attempt changes."""
    ranks = [f"{plan.nproc} ranks on this node"] if plan.nproc is not None else []
    return ", ".join([*map(change, plan.changes), *ranks])


def _beside(plan: Plan) -> list[tuple[str, str]]:
    """Return the changes and the notes of a plan: two rows at most, or three with a change."""
    changed = [("changed", text)] if (text := changes(plan)) else []
    notes = [plan.notes[0], "; ".join(plan.notes[1:])] if plan.notes else []
    return [*changed, *(("note" if i == 0 else "and", text) for i, text in enumerate(notes) if text)]


def _done(plan: Plan, attempt: int) -> str:
    if plan.kind is PlanKind.STOP:
        return f"stopped with exit code {plan.exit_code}: {plan.reason}"
    wait = f" in {plan.delay_s:.1f} s" if plan.delay_s else ""
    return f"restart as attempt {attempt + 1}{wait}: {plan.reason}"


def beginning(report: ReportResume) -> str:
    """Return how an attempt began, in one line; an older journal has only the checkpoint that the command was given, as `path`."""
    given = report.resume_from or report.path
    if report.began is Beginning.RESUMED:
        return f"resumed at {position_text(report.step, report.epoch) or 'an unknown step'} from {report.path}"
    if report.is_new:
        return "begins from scratch" + (f": {report.reason}" if report.reason else "")
    if report.began is Beginning.FROM_SCRATCH:
        why = report.reason or "no load of a checkpoint was seen"
        return f"STARTED FROM SCRATCH: {why}" + (f"; it was given {given}" if given else "")
    if not given and report.reason:
        return f"STARTED FROM SCRATCH? {report.reason}"
    return f"resume not confirmed: no rank was seen to load {given or 'a checkpoint'}"


def _beginning_label(resume: ReportResume) -> str:
    return "resumed" if resume.began is Beginning.RESUMED else "began"


def _resumed(resume: ReportResume) -> str:
    colon = ":" if resume.began is Beginning.UNCONFIRMED else ""
    return f"attempt {resume.attempt}{colon} {beginning(resume)}"


def _where(incident: RecordedIncident, last: Round, node: str) -> str:
    decision = last.decision
    rank = decision.verdict.rank if decision and decision.verdict.rank is not None else incident.rank
    step = decision.step if decision and decision.step is not None else incident.progress.step
    phase = phase_of(decision.verdict.because) if decision else "unknown"
    if phase == "unknown":
        phase = incident.progress.phase.value
    whose = "" if rank is None else f"rank {rank} "
    relative = incident.progress.relative and step == incident.progress.step
    first = incident.rank if last is incident.rounds[0] else None  # the one that died first need not be the one whose fault it is
    ended = f"; rank {first} ended first" if first is not None and rank is not None and first != rank else ""
    at_least = decision is not None and decision.at_least
    if decision is not None and decision.plan.strategy == "peer":  # what failed is another node's, which decided
        node = decision.verdict.node or node
    return f"{whose}on {node}, attempt {last.attempt}, {step_text(step, relative=relative, at_least=at_least)}, phase {phase}{ended}"


def _failed(incident: RecordedIncident, last: Round) -> tuple[str, float | None, str]:
    """Return what failed: of several failures the last one, which the rows below it describe."""
    if last is incident.rounds[0]:
        return "failed", incident.opened_t, incident.summary
    died_t = min((t for t, _ in last.deaths), default=last.ended_t)
    return "failed", died_t, last.decision.verdict.summary if last.decision else "undecided"


def _stopped(last: Round) -> list[tuple[str, float | None, str]]:
    if last.ended_t is None:
        return []
    first = min((t for t, _ in last.deaths), default=None)
    took = "" if first is None else f", {max(0.0, last.ended_t - first):.1f} s after the first death"
    peers = len({death.rank for _, death in last.deaths if death.rank >= 0}) - 1
    others = f" ({peers} more {'rank' if peers == 1 else 'ranks'} died with it)" if peers > 0 else ""
    return [("stopped", last.ended_t, f"no rank was left{took}{others}")]


def _checkpoint(last: Round) -> list[tuple[str, float | None, str]]:
    selected = last.selected
    if selected is None:
        return []
    chosen = selected.chosen
    text = f"none of {selected.found} is good"
    if chosen is not None:
        position = position_text(chosen.step, chosen.epoch) or step_text(None)
        text = f"{position} from {chosen.path} (verified: {chosen.level}; {selected.found} found)"
    elif not selected.found:
        text = "none that the script is known to load" + "".join(f"; {one}" for one in selected.unused) if selected.unused else "none found"
    rows: list[tuple[str, float | None, str]] = [("checkpoint", selected.t, text)]
    if selected.repaired:
        rows.append(("repaired", None, _first_of(selected.repaired)))
    done = {path for path, _ in selected.repaired}  # and with it why
    torn = [row for row in selected.torn if row[0] not in done]
    if torn:
        rows.append(("rejected", None, _first_of(torn)))
    if selected.dangerous:
        rows.append(("not used", None, _first_of(selected.dangerous)))
    if selected.not_finite:
        rows.append(("not taken", None, _first_of(selected.not_finite)))
    return rows


def _first_of(repairs: Sequence[tuple[str, str]]) -> str:
    """Return the first path with its repair, and how many more there are."""
    path, what = repairs[0]
    more = f", and {len(repairs) - 1} more" if len(repairs) > 1 else ""
    return f"{path}: {what}{more}"


def _ending(incident: RecordedIncident, last: Round) -> list[tuple[str, float | None, str]]:
    rows: list[tuple[str, float | None, str]] = []
    if incident.resumed is not None:
        which = "first " if len(incident.rounds) > 1 else ""
        took = f"; {max(0.0, incident.resumed_t - incident.opened_t):.1f} s after the {which}failure"
        rows.append((_beginning_label(incident.resumed), incident.resumed_t, _resumed(incident.resumed) + took))
    elif last.began is not None:
        rows.append(("began", last.began_t, f"attempt {last.began} was ordered"))
    if incident.died_t is not None:
        rows.append(("then", incident.died_t, "supervise itself died: this is its last record"))
    elif incident.exit_code is not None:
        rows.append(("end", incident.closed_t, f"given up, exit code {incident.exit_code}"))
    return rows


def _look(address: str, incident: RecordedIncident, last: Round) -> str:
    rank = last.decision.verdict.rank if last.decision else incident.rank
    return f"supervise logs {address} --attempt {last.attempt}" + ("" if rank is None else f" --rank {rank}")


def _ranks(status: Status) -> str:
    if not status.ranks:
        return "none runs"
    some = ", ".join(f"{r.rank} (pid {r.pid})" for r in status.ranks[:6])
    more = f" and {len(status.ranks) - 6} more" if len(status.ranks) > 6 else ""  # noqa: PLR2004 (as many as fit a line)
    return some + more + (f", of {status.world_size}" if status.world_size > len(status.ranks) else "")
