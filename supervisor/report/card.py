"""The pages that explain one incident: the card, which a run prints at its end, and `supervise why`. Pure.

Both have the facts of report/wording.py in one order: what, where, done, do, evidence, when, again, from, and where to look. `why` has the
whole course of the incident too, with its times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.core.model import Phase, PlanKind
from supervisor.core.numeric import rank_list
from supervisor.core.units import span_text
from supervisor.core.values import replace
from supervisor.job.local_time import clock_text, zoned_text
from supervisor.observe.host import left_locks
from supervisor.observe.processes import core_dumps
from supervisor.report import wording
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.memory_section import held_facts
from supervisor.report.text import clean
from supervisor.view.joint import failure_of, host_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.core.actions import ReportDecision, ReportResume
    from supervisor.core.model import Evidence, FailureVerdict, Hang
    from supervisor.report.command_line import NextStart
    from supervisor.view.incidents import RecordedFailure, RecordedIncident

#: Lines of evidence of the failure itself, on the card and on the page of `why`; one more names its consequences, and one the cause.
ON_CARD, MOST_EVIDENCE = 2, 3
#: Nodes of a failure that are named one by one.
MOST_NODES = 8
_TONES = {"resolved": Tone.GOOD, "given_up": Tone.BAD, "supervise died": Tone.BAD}


def card(  # noqa: PLR0913 (all that the card names)
    job: str,
    decision: ReportDecision,
    resumed: ReportResume | None,
    *,
    address: str,
    failed_t: float | None = None,
    node: str = "",
    state_dir: str = "",
    left: Sequence[Evidence] = (),
    repaired: Sequence[tuple[str, str]] = (),
    stacks: str = "",
    next_start: NextStart | None = None,
    result: str = "",
) -> FactPage:
    """Return the card of an incident: what, where, done, do, the evidence, when, how to start again, where to look.

    `node`: this one; of several nodes the card names the one that failed. `address`: the options by which our other commands find the
    job (Settings.address). `failed_t`: when it failed; None: not known. `left`: what the attempt left behind: cores, locks, and who held
    the memory. `repaired`: repairs of the job's checkpoints before the next attempt (path, what). `stacks`: the file of the look at
    ranks that stood still. `next_start`: of a run that is over. `result`: the newest checkpoint of a training that was over.
    """
    verdict, plan = decision.verdict, decision.plan
    core = wording.core_text([fact for fact in left if fact.name == core_dumps.NAME], verdict)
    facts = [
        Fact(wording.WHAT, wording.what_text(verdict), Tone.BAD),
        *wording.where_facts(verdict, _place(decision, verdict.node or node, wording.phase_of(verdict.because), decision.step)),
        *wording.done_facts(decision),
        *([Fact("", f"repaired {wording.first_of(repaired)}")] if repaired else []),
        *([wording.beginning_fact(resumed)] if resumed is not None else []),
        *wording.do_facts(plan, is_over=next_start is not None or plan.kind is PlanKind.STOP),
        *held_facts(verdict.cause, verdict.rank, left),
        *wording.evidence_facts(verdict, verdict.because, ON_CARD),
        *([Fact("core", core, copied=True)] if core else []),
        *lock_facts(left, verdict),
        *([Fact("stacks", stacks, copied=True)] if stacks else []),
        *([Fact(wording.WHEN, zoned_text(failed_t))] if failed_t is not None else []),
        *(wording.again_facts(next_start) if next_start is not None else []),
        *([Fact("result", f"verified: {result}")] if result else []),
        Fact("look", f"supervise why {decision.incident} {address}", copied=True),
        *([Fact("files", state_dir, copied=True)] if state_dir else []),
    ]
    stops = plan.kind is PlanKind.STOP
    how = "waits, then" if plan.waits else "restarted as"
    is_stopped = next_start is not None and resumed is None  # before it got over this failure
    goes_on = "stopped" if is_stopped else f"{how} attempt {decision.attempt + 1}"
    end = f"given up, exit code {plan.exit_code}" if stops else goes_on
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
    next_start: NextStart | None = None,
    came_again: int = 0,
) -> FactPage:
    """Return the page of a recorded incident, from the failure to the resume.

    `last_run`: of the job. It is named if the incident belongs to another run. `stacks`, `next_start`: as in `card`. `by_node`: what the
    nodes that share the state directory have of it, by host. `is_of_another`: `node`, whose record it is, is not the one that is asked.
    `came_again`: the number of the next incident with the same failure.
    """
    last = incident.failures[-1]
    decision = last.decision
    is_earlier = bool(last_run) and incident.run_id != last_run
    look = f"{address} --run {incident.run_id}" if is_earlier else address
    core = wording.core_text([f for f in last.evidence if f.name == core_dumps.NAME], decision.verdict if decision else None)
    facts = [
        *(_undecided(incident, last, node) if decision is None else _decided(incident, last, decision, node)),
        *_beginning(incident, last),
        *do_facts(incident, is_over=next_start is not None, came_again=came_again),
        *([] if decision is None else held_facts(decision.verdict.cause, decision.verdict.rank, last.evidence)),
        *_evidence(last),
        *(Fact(wording.STRANGE, clean(text), Tone.WARNING) for text in last.warnings),
        *([Fact("core", core, copied=True)] if core else []),
        *lock_facts(last.evidence, None if decision is None else decision.verdict),
        *([Fact("stacks", stacks, copied=True)] if stacks else []),
        Fact(wording.WHEN, _when(last, _failed_t(incident, last))),
        *_earlier(incident, last),
        *(wording.again_facts(next_start) if next_start is not None else []),
        *([Fact("run", f"{incident.run_id}, an earlier one; the last is {last_run}")] if is_earlier else []),
        *_nodes(incident, last, by_node or {}),
        *_checkpoint(incident, last),
        *_start(incident),
        Fact("look", _look(look, incident, last), copied=True),
    ]
    whose = f" on {node}" if is_of_another else ""
    title = f"incident {incident.number} of job {job}{whose}: {outcome_text(incident)}"
    return FactPage(title, tuple(facts), _TONES.get(incident.outcome, Tone.WARNING))


def lock_facts(facts: Sequence[Evidence], verdict: FailureVerdict | None) -> list[Fact]:
    """Return the locks that killed builds left, and the command that removes them: only a person knows that no other job builds there.

    That for which the ranks stood still is in the verdict.
    """
    waited_for = ("path", dict(verdict.facts).get("hang_left_file", "")) if verdict is not None else ("", "")
    locks = [fact for fact in facts if fact.name == left_locks.NAME and waited_for not in fact.fields]
    rows = [Fact("lock" if number == 0 else "", clean(fact.text), Tone.WARNING) for number, fact in enumerate(locks)]
    remedy = left_locks.remedy(locks)
    return [*rows, Fact("", "see that no other job builds there, then:"), Fact("", remedy, copied=True)] if remedy else []


def outcome_text(incident: RecordedIncident) -> str:
    """Return how an incident ended: open, resolved, given up or stopped with its exit code, or supervise died."""
    code = "" if incident.exit_code is None else f", exit code {incident.exit_code}"
    return incident.outcome.replace("_", " ") + code


def hang_page(  # noqa: PLR0913  as the card
    job: str, attempt: int, address: str, hang: Hang, *, since_t: float, stacks: str, until_t: float | None = None
) -> FactPage:
    """Return the page of ranks that stand still without an incident, or did until a person stopped the run.

    since_t: when it was confirmed. until_t: when the run was stopped. stacks: the file of the look at the ranks.
    """
    began = f"since {zoned_text(since_t - hang.still_s)}"
    where = [Fact(wording.WHERE, f"{rank_list(hang.ranks)} {'is' if len(hang.ranks) == 1 else 'are'} what the others wait for")]
    code = [Fact("" if hang.ranks else wording.WHERE, hang.code, Tone.STRONG, copied=True)] if hang.code else []
    stop = f"supervise stop {address}"
    done, do = (
        ("nothing: the ranks are left as they are", [Fact(wording.DO, stop, Tone.WARNING, copied=True)])
        if until_t is None
        else ("nothing: a person stopped the run", [Fact(wording.DO, "see why that rank does not come", Tone.WARNING)])
    )
    facts = [
        Fact(wording.WHAT, wording.capital(clean(hang.text)), Tone.BAD),
        *(where if hang.ranks else []),
        *code,
        Fact(wording.DONE, done),
        *do,
        *([Fact("", "--on-hang restart lets supervise end such an attempt and start it again")] if until_t is None else []),
        Fact("stacks", stacks, copied=True),
        Fact(wording.WHEN, began),
    ]
    lasted = "" if until_t is None else f" for {span_text(hang.still_s + until_t - since_t)}, until it was stopped at {clock_text(until_t)}"
    return FactPage(f"job {job} {'stood' if lasted else 'stands'} still in attempt {attempt}{lasted}", tuple(facts), Tone.WARNING)


def _place(  # noqa: PLR0913  all that a place has
    decision: ReportDecision, node: str, phase: str, step: int | None, *, relative: bool = False, ended: str = ""
) -> list[str]:
    """Return the rank with its GPU and node, the step, the attempt and the phase. ended: who ended before the culprit, in words."""
    verdict = decision.verdict
    whose = wording.ranks_text(verdict, verdict.rank)
    gpu = verdict.gpu if verdict.gpu.startswith("GPU") or not verdict.gpu else f"GPU {verdict.gpu}"
    return [
        " on ".join(filter(None, (whose, node if whose else f"node {node}" if node else ""))),
        gpu,
        wording.step_text(step, relative=relative, at_least=decision.at_least, phase=phase),
        f"attempt {decision.attempt}",
        "" if phase in {Phase.UNKNOWN, Phase.TRAIN} else f"phase {phase}",
        ended,
    ]


def _decided(incident: RecordedIncident, last: RecordedFailure, decision: ReportDecision, node: str) -> list[Fact]:
    """Return the event, its place and the action, of a failure that was decided."""
    verdict = decision.verdict
    rank = verdict.rank if verdict.rank is not None else incident.rank
    step = decision.step if decision.step is not None else incident.progress.step
    phase = wording.phase_of(verdict.because)
    if phase == Phase.UNKNOWN:
        phase = incident.progress.phase.value
    first = incident.rank if last is incident.failures[0] else None  # the one that died first need not be the one whose fault it is
    ended = f"rank {first} ended first" if first is not None and rank is not None and first != rank else ""
    relative = incident.progress.relative and step == incident.progress.step
    has_steps = any((f.source, f.name) == ("heartbeat", "steps") and f.text != "0" for f in last.evidence)
    if relative and phase in {Phase.INIT, Phase.LOAD} and not has_steps:
        step = None  # that of the checkpoint that the attempt was to load
    if verdict.rank is None and not verdict.node:  # of a node that went no rank is named
        decision = replace(decision, verdict=replace(verdict, rank=_lone(verdict, rank)))
    return [
        Fact(wording.WHAT, wording.what_text(verdict), Tone.BAD),
        *wording.where_facts(verdict, _place(decision, verdict.node or node, phase, step, relative=relative, ended=ended)),
        *wording.done_facts(decision, at=_clock(last.decided_t)),
    ]


def _lone(verdict: FailureVerdict, rank: int | None) -> int | None:
    """Return the rank that died, unless the verdict names several."""
    return None if wording.ranks_text(verdict, None) else rank


def _undecided(incident: RecordedIncident, last: RecordedFailure, node: str) -> list[Fact]:
    """Return what happened, and where, of a failure of which no decision is recorded."""
    progress = incident.progress
    whose = f"{'' if incident.rank is None else f'rank {incident.rank} '}on {node}"
    step = wording.step_text(progress.step, relative=progress.relative, phase=progress.phase.value)
    return [
        Fact(wording.WHAT, wording.capital(incident.summary), Tone.BAD),
        Fact(wording.WHERE, f"{whose}, {step}, attempt {last.attempt}"),
        Fact(wording.DONE, "nothing is recorded"),
    ]


def _evidence(last: RecordedFailure) -> list[Fact]:
    decision = last.decision
    if decision is not None:
        return wording.evidence_facts(decision.verdict, decision.verdict.because or last.evidence, MOST_EVIDENCE)
    lines = wording.evidence_lines(last.evidence, MOST_EVIDENCE)
    return [Fact(wording.EVIDENCE if number == 0 else "", line) for number, line in enumerate(lines)]


def do_facts(incident: RecordedIncident, *, is_over: bool, came_again: int = 0) -> list[Fact]:
    """Return what a person does. is_over: nobody continues with the run. came_again: as in `why_page`."""
    last = incident.failures[-1]
    if incident.outcome == "resolved" and came_again:
        return [Fact(wording.DO, f"see incident {came_again}: the training continued, and the same failure came again", Tone.WARNING)]
    if incident.outcome == "resolved":
        return [Fact(wording.DO, "nothing: the training continued", Tone.GOOD)]
    if last.decision is None:
        return [Fact(wording.DO, "start it again: it continues with this run" if incident.died_t is not None else "wait for the decision")]
    until = clock_text(last.missing_until_t) if last.missing else ""
    nodes = f"{last.missing} more {'node' if last.missing == 1 else 'nodes'}"
    waits = f"supervise waits for {nodes} until {until}, then it stops (exit code 75)" if last.missing else ""
    is_over = is_over or incident.outcome != "open" or last.decision.plan.kind is PlanKind.STOP
    return wording.do_facts(last.decision.plan, is_over=is_over, waits=waits)


def _earlier(incident: RecordedIncident, last: RecordedFailure) -> list[Fact]:
    """Return the failures of the incident before the one that the page describes."""
    if len(incident.failures) < 2:  # noqa: PLR2004  one of them is this
        return []
    tries = "; ".join(f"attempt {r.attempt}: {r.decision.verdict.summary if r.decision else 'undecided'}" for r in incident.failures[:-1])
    return [Fact("earlier", f"{_clock(incident.opened_t)}{tries}. This is attempt {last.attempt}")]


def _failed_t(incident: RecordedIncident, last: RecordedFailure) -> float | None:
    """Return when it failed: of several failures the last one, which the page describes."""
    if last is incident.failures[0]:
        return incident.opened_t
    if last.failed_t is not None:
        return last.failed_t
    return min((t for t, _ in last.deaths), default=last.ended_t)


def _when(last: RecordedFailure, failed_t: float | None) -> str:
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


def _nodes(incident: RecordedIncident, last: RecordedFailure, by_node: Mapping[str, RecordedIncident]) -> list[Fact]:
    """Return what each node of the attempt has of the failure."""
    if len(last.members) < 2:  # noqa: PLR2004  several
        return []
    lost = last.decision.verdict if last.decision is not None and last.decision.verdict.fingerprint.startswith("node:") else None
    texts = []
    for index, member in enumerate(last.members):
        host = host_of(member)
        name, record = f"{host}:{index}", by_node.get(host)
        failure = None if record is None else failure_of(record, last)
        number = (
            f" (its incident {record.number})" if failure is not None and record is not None and record.number != incident.number else ""
        )
        if lost is not None and lost.node == name:
            texts.append(f"{name}: {lost.fingerprint.partition(':')[2]}, and its ranks with it{number}")
        elif failure is not None:
            texts.append(f"{name}: {_ends(failure)}{number}")
    unknown = len(last.members) - len(texts)
    rest = [f"{len(texts) - MOST_NODES} more"] if len(texts) > MOST_NODES else []
    rest += [f"of {unknown} there is no record here"] if unknown else []
    return [Fact("nodes", "; ".join((*texts[:MOST_NODES], *rest)))]


def _ends(failure: RecordedFailure) -> str:
    """Return how the ranks of a node ended."""
    stopped = {fact.rank for fact in failure.evidence if fact.name == exits.ENDED_BY_US}
    own = [row for row in failure.deaths if row[1].rank not in stopped]
    if not own:
        return "its ranks were stopped" if failure.ended_t is not None else "how its ranks ended is not recorded"
    _, first = min(own, key=lambda row: row[0])
    how = f"was killed by {exits.signal_name(str(first.signal))}" if first.signal is not None else f"exited with code {first.code}"
    others = len({death.rank for _, death in own}) - 1
    return f"rank {first.rank} {how}" + (f", and {others} more" if others else "")


def _checkpoint(incident: RecordedIncident, last: RecordedFailure) -> list[Fact]:
    selected, loaded = last.selected, incident.resumed is not None and bool(incident.resumed.path)
    if selected is None:
        return []
    chosen = selected.chosen
    text = f"none of {selected.n_found} is good"
    if chosen is not None:
        position = wording.position_text(chosen.shown_step, chosen.epoch) or wording.step_text(None)
        proof = "verified earlier, unchanged since" if chosen.level == "identity" else f"verified: {chosen.level}"
        text = f"{position} from {chosen.path} ({proof}; {selected.n_found} found)"
    elif not selected.n_found and selected.unused:
        unknown = "none that the script is known to load" + "".join(f"; {unused_checkpoints}" for unused_checkpoints in selected.unused)
        text = "the script chose it by itself" if loaded else unknown
    elif not selected.n_found:
        text = "none found"
    facts = [Fact("checkpoint", f"{_clock(selected.t)}{text}")]
    done = {path for path, _ in selected.repaired}  # and with it why
    for label, rows in (
        ("repaired", selected.repaired),
        ("rejected", [row for row in selected.torn if row[0] not in done]),
        ("not used", selected.dangerous),
        ("not taken", selected.not_finite),
        ("passed over", selected.passed_over),
    ):
        facts += [Fact(label, wording.first_of(rows))] if rows else []
    return facts


def _beginning(incident: RecordedIncident, last: RecordedFailure) -> list[Fact]:
    """Return how the next attempt began, and what ended the run in the middle of it."""
    facts: list[Fact] = []
    if incident.resumed is not None:
        which = "first " if len(incident.failures) > 1 else ""
        took = f"; {span_text(incident.resumed_t - incident.opened_t)} after the {which}failure"
        facts.append(wording.beginning_fact(incident.resumed, at=_clock(incident.resumed_t), after=took))
    elif last.began is not None and not last.missing:
        facts.append(Fact("", f"{_clock(last.began_t)}attempt {last.began} was ordered"))
    if incident.died_t is not None:
        facts.append(Fact("", f"{_clock(incident.died_t)}supervise itself died: this is its last record", Tone.BAD))
    return facts


def _start(incident: RecordedIncident) -> list[Fact]:
    """Return where the time of the restart went."""
    start, resumed = incident.start, incident.resumed
    is_shown = start is not None and resumed is not None and start.attempt == resumed.attempt
    return [Fact("restart", wording.start_text(start))] if is_shown and start is not None else []


def _clock(t: float | None) -> str:
    return "" if t is None else f"{clock_text(t)} "


def _look(address: str, incident: RecordedIncident, last: RecordedFailure) -> str:
    rank = last.decision.verdict.rank if last.decision else incident.rank
    return f"supervise logs {address} --attempt {last.attempt}" + ("" if rank is None else f" --rank {rank}")
