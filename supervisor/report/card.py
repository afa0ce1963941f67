"""The pages that explain one incident: the card, which a run prints at its end, and `supervise why`. Pure.

Both have the facts of report/wording.py, in one order. `why` has the whole course of the incident too, with its times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.core.model import Phase, PlanKind
from supervisor.job.local_time import clock_text, zoned_text
from supervisor.journal.joint import host_of, round_of
from supervisor.observe.processes import core_dumps
from supervisor.report import wording
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.text import clean
from supervisor.report.wording import step_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.core.actions import ReportDecision, ReportResume
    from supervisor.core.model import Evidence, Verdict
    from supervisor.journal.history import RecordedIncident, Round

#: Lines of evidence of the failure itself; one more names its consequences.
MOST_EVIDENCE = 3
#: Nodes of a failure that are named one by one.
MOST_NODES = 8
_TONES = {"resolved": Tone.GOOD, "given_up": Tone.BAD, "supervise died": Tone.BAD}


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
    stacks: str = "",
) -> FactPage:
    """Return the card of an incident: the cause, where, the evidence, what is done, what is next, where to look.

    `node`: this one; of several nodes the card names the one that failed. `address`: the options by which our other commands find the job
    (Settings.address). `dumped`: what is known of the ranks' cores. `repaired`: what was done to the job's checkpoints before the next
    attempt (path, what). `stacks`: the file of the look at ranks that stood still.
    """
    verdict, plan = decision.verdict, decision.plan
    node = verdict.node or node
    at, step = f" on {node}" if node else "", step_text(decision.step, at_least=decision.at_least)
    whose = f"{wording.ranks_text(verdict, verdict.rank)}{at}".strip()
    phase = wording.phase_of(verdict.because)
    known = [whose, f"attempt {decision.attempt}", step, "" if phase == Phase.UNKNOWN else f"phase {phase}"]
    where = ", ".join(filter(None, known))
    core = wording.core_text(dumped, verdict)
    stops = plan.kind is PlanKind.STOP
    facts = [
        *_what(verdict, where),
        *wording.evidence_facts(verdict, verdict.because, MOST_EVIDENCE),
        *([Fact("core", core, copied=True)] if core else []),
        *([Fact("stacks", stacks, copied=True)] if stacks else []),
        *wording.plan_facts(decision),
        *([Fact("repaired", wording.first_of(repaired))] if repaired else []),
        *([wording.beginning_fact(resumed)] if resumed is not None else []),
        Fact("look", f"supervise why {decision.incident} {address}", copied=True),
        *([Fact("files", state_dir, copied=True)] if state_dir else []),
    ]
    end = f"given up, exit code {plan.exit_code}" if stops else f"restarted as attempt {decision.attempt + 1}"
    tone = Tone.BAD if stops else Tone.WARNING
    return FactPage(f"incident {decision.incident} of job {job}: {end}", tuple(facts), tone)


def why_page(  # noqa: PLR0913  as the card
    job: str,
    node: str,
    incident: RecordedIncident,
    address: str,
    *,
    last_run: str = "",
    stacks: str = "",
    by_node: Mapping[str, RecordedIncident] | None = None,
    is_of_another: bool = False,
) -> FactPage:
    """Return the page of a recorded incident, from the failure to the resume.

    `last_run`: of the job. It is named if the incident belongs to another run. `stacks`: as in `card`. `by_node`: what the nodes that share
    the state directory have of it, by host. `is_of_another`: `node`, whose record it is, is not the one that is asked.
    """
    last = incident.rounds[-1]
    decision = last.decision
    facts: list[Fact] = []
    where = _where(incident, last, node)
    if decision is None:
        facts += [Fact(wording.CAUSE, incident.summary, Tone.BAD), Fact("where", where)]
    else:
        facts += _what(decision.verdict, where)
    facts.append(Fact("when", _when(last, _failed_t(incident, last))))
    if last_run and incident.run_id != last_run:
        facts.append(Fact("run", f"{incident.run_id}, an earlier one; the last is {last_run}"))
        address = f"{address} --run {incident.run_id}"
    if len(incident.rounds) > 1:
        tries = "; ".join(f"attempt {r.attempt}: {r.decision.verdict.summary if r.decision else 'undecided'}" for r in incident.rounds[:-1])
        facts.append(Fact("earlier", f"{_clock(incident.opened_t)}{tries}. This is attempt {last.attempt}"))
    if decision is None:
        lines = wording.evidence_lines(last.evidence, MOST_EVIDENCE)
        facts += [Fact(wording.EVIDENCE if number == 0 else "", line) for number, line in enumerate(lines)]
    else:
        facts += wording.evidence_facts(decision.verdict, decision.verdict.because or last.evidence, MOST_EVIDENCE)
    facts += [Fact(wording.STRANGE, clean(text), Tone.WARNING) for text in last.warnings]
    core = wording.core_text([f for f in last.evidence if f.name == core_dumps.NAME], decision.verdict if decision else None)
    facts += [Fact("core", core, copied=True)] if core else []
    facts += [Fact("stacks", stacks, copied=True)] if stacks else []
    facts += _nodes(incident, last, by_node or {})
    facts += [Fact(wording.DECISION, "none is recorded")] if decision is None else wording.plan_facts(decision, at=_clock(last.decided_t))
    facts += [*_checkpoint(last), *_ending(incident, last), Fact("look", _look(address, incident, last), copied=True)]
    whose = f" on {node}" if is_of_another else ""
    title = f"incident {incident.number} of job {job}{whose}: {outcome_text(incident)}"
    return FactPage(title, tuple(facts), _TONES.get(incident.outcome, Tone.WARNING))


def outcome_text(incident: RecordedIncident) -> str:
    """Return how an incident ended: open, resolved, given up with its exit code, or supervise died."""
    code = "" if incident.exit_code is None else f", exit code {incident.exit_code}"
    return incident.outcome.replace("_", " ") + code


def _what(verdict: Verdict, where: str) -> list[Fact]:
    """Return the cause, where it was, the line of code, and what in the script explains it."""
    code, reason = wording.code_text(verdict), dict(verdict.facts).get("reason", "")
    facts = [Fact(wording.CAUSE, wording.cause_text(verdict), Tone.BAD), Fact("where", where)]
    facts += [Fact("code", code, Tone.STRONG)] if code else []
    return [*facts, Fact("reason", reason, Tone.STRONG)] if reason else facts


def _failed_t(incident: RecordedIncident, last: Round) -> float | None:
    """Return when it failed: of several failures the last one, which the page describes."""
    if last is incident.rounds[0]:
        return incident.opened_t
    if last.failed_t is not None:
        return last.failed_t
    return min((t for t, _ in last.deaths), default=last.ended_t)


def _when(last: Round, failed_t: float | None) -> str:
    """Return the date and time of the failure, and how long it took until no rank was left.

    Where no death was the failure, such as a hang, who died was ended by supervise, and is not counted.
    """
    at = "unknown" if failed_t is None else zoned_text(failed_t)
    if last.ended_t is None:
        return at
    first = min((t for t, _ in last.deaths), default=None)
    by_death = first is not None and (last.failed_t is None or first <= last.failed_t)
    began = first if by_death else last.failed_t
    took = "no rank was left" if began is None else f"no rank was left {max(0.0, last.ended_t - began):.1f} s later"
    peers = len({death.rank for _, death in last.deaths if death.rank >= 0}) - 1 if by_death else 0
    others = f" ({peers} more {'rank' if peers == 1 else 'ranks'} died with it)" if peers > 0 else ""
    return f"{at}; {took}{others}"


def _where(incident: RecordedIncident, last: Round, node: str) -> str:
    decision = last.decision
    rank = decision.verdict.rank if decision and decision.verdict.rank is not None else incident.rank
    step = decision.step if decision and decision.step is not None else incident.progress.step
    phase = wording.phase_of(decision.verdict.because) if decision else "unknown"
    if phase == "unknown":
        phase = incident.progress.phase.value
    named = wording.ranks_text(decision.verdict if decision else None, rank)
    whose = f"{named} " if named else ""
    relative = incident.progress.relative and step == incident.progress.step
    first = incident.rank if last is incident.rounds[0] else None  # the one that died first need not be the one whose fault it is
    ended = f"; rank {first} ended first" if first is not None and rank is not None and first != rank else ""
    at_least = decision is not None and decision.at_least
    node = (decision.verdict.node if decision is not None else "") or node
    return f"{whose}on {node}, attempt {last.attempt}, {step_text(step, relative=relative, at_least=at_least)}, phase {phase}{ended}"


def _nodes(incident: RecordedIncident, last: Round, by_node: Mapping[str, RecordedIncident]) -> list[Fact]:
    """Return what each node of the attempt has of the failure."""
    if len(last.members) < 2:  # noqa: PLR2004  several
        return []
    gone = last.decision.verdict if last.decision is not None and last.decision.verdict.fingerprint.startswith("node:") else None
    texts = []
    for index, member in enumerate(last.members):
        host = host_of(member)
        name, record = f"{host}:{index}", by_node.get(host)
        part = None if record is None else round_of(record, last)
        number = f" (its incident {record.number})" if part is not None and record is not None and record.number != incident.number else ""
        if gone is not None and gone.node == name:
            texts.append(f"{name}: {gone.fingerprint.partition(':')[2]}, and its ranks with it{number}")
        elif part is not None:
            texts.append(f"{name}: {_ends(part)}{number}")
    unknown = len(last.members) - len(texts)
    rest = [f"{len(texts) - MOST_NODES} more"] if len(texts) > MOST_NODES else []
    rest += [f"of {unknown} there is no record here"] if unknown else []
    return [Fact("nodes", "; ".join((*texts[:MOST_NODES], *rest)))]


def _ends(part: Round) -> str:
    """Return how the ranks of a node ended."""
    stopped = {fact.rank for fact in part.evidence if fact.name == exits.ENDED_BY_US}
    own = [row for row in part.deaths if row[1].rank not in stopped]
    if not own:
        return "its ranks were stopped" if part.ended_t is not None else "how its ranks ended is not recorded"
    _, first = min(own, key=lambda row: row[0])
    how = f"was killed by {exits.signal_name(str(first.signal))}" if first.signal is not None else f"exited with code {first.code}"
    others = len({death.rank for _, death in own}) - 1
    return f"rank {first.rank} {how}" + (f", and {others} more" if others else "")


def _checkpoint(last: Round) -> list[Fact]:
    selected = last.selected
    if selected is None:
        return []
    chosen = selected.chosen
    text = f"none of {selected.found} is good"
    if chosen is not None:
        position = wording.position_text(chosen.shown_step, chosen.epoch) or step_text(None)
        text = f"{position} from {chosen.path} (verified: {chosen.level}; {selected.found} found)"
    elif not selected.found:
        text = (
            "none that the script is known to load" + "".join(f"; {unused_checkpoints}" for unused_checkpoints in selected.unused)
            if selected.unused
            else "none found"
        )
    facts = [Fact("checkpoint", f"{_clock(selected.t)}{text}")]
    done = {path for path, _ in selected.repaired}  # and with it why
    for label, rows in (
        ("repaired", selected.repaired),
        ("rejected", [row for row in selected.torn if row[0] not in done]),
        ("not used", selected.dangerous),
        ("not taken", selected.not_finite),
    ):
        facts += [Fact(label, wording.first_of(rows))] if rows else []
    return facts


def _ending(incident: RecordedIncident, last: Round) -> list[Fact]:
    facts: list[Fact] = []
    if incident.resumed is not None:
        which = "first " if len(incident.rounds) > 1 else ""
        took = f"; {max(0.0, incident.resumed_t - incident.opened_t):.1f} s after the {which}failure"
        facts.append(wording.beginning_fact(incident.resumed, at=_clock(incident.resumed_t), after=took))
        start = incident.start
        facts += [Fact("of which", wording.start_text(start))] if start is not None and start.attempt == incident.resumed.attempt else []
    elif incident.outcome == "open" and last.missing:
        until = clock_text(last.missing_until_t)
        facts.append(Fact("waits", f"for {last.missing} more node(s), until {until}, then the run stops with exit code 75", Tone.WARNING))
    elif last.began is not None:
        facts.append(Fact("began", f"{_clock(last.began_t)}attempt {last.began} was ordered"))
    if incident.died_t is not None:
        facts.append(Fact("then", f"{_clock(incident.died_t)}supervise itself died: this is its last record", Tone.BAD))
    return facts


def _clock(t: float | None) -> str:
    return "" if t is None else f"{clock_text(t)} "


def _look(address: str, incident: RecordedIncident, last: Round) -> str:
    rank = last.decision.verdict.rank if last.decision else incident.rank
    return f"supervise logs {address} --attempt {last.attempt}" + ("" if rank is None else f" --rank {rank}")
