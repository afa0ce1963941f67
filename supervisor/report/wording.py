"""The words of the card, of `why`, of `status` and of the unit: the event, its place, the action, what to do. Pure.

Each function returns a text, or the facts of one label. Observers have names of their own (`error_file`, `cgroup`); here is what a
person calls them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.classify.caches import CACHE
from supervisor.core.causes import CAUSE_TABLE, MEANING
from supervisor.core.model import Beginning, Cause, Phase, PlanKind
from supervisor.core.numeric import rank_list
from supervisor.core.units import bytes_text, span_text
from supervisor.core.values import replace
from supervisor.report.layout import Fact, Tone
from supervisor.report.text import clean, cut
from supervisor.strategies.situation import FOREIGN_CHECKPOINT, MISSING_POINTER, RACE_WRITER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from supervisor.core.actions import ReportDecision, ReportResume
    from supervisor.core.model import Change, Evidence, FailureVerdict, Plan
    from supervisor.journal.records import StartTimes
    from supervisor.report.command_line import NextStart

#: The labels, in the order of the card.
WHAT, WHERE, DONE, DO, EVIDENCE, WHEN, AGAIN, FROM = "what", "where", "done", "do", "evidence", "when", "again", "from"
#: The label of what the loss rules and the pace show.
STRANGE = "strange"
#: A note that ends with a command.
_COMMAND = re.compile(r"(.*?): ((?:mkdir -p|cp -p|mv|ln -sfn|printf) .+)")
#: Evidence that reads well by itself, best first. Heartbeats show where it happened, and that has a line of its own.
_TELLING = ("exception", "traceback", "last_exception", "signal", "exit_code", "err", "both", "out")
_EXCEPTIONS = frozenset({"exception", "last_exception"})
_ENDS = frozenset({"exit", "launcher"})
_LAST_OUTPUT = "last output"
#: The name of an observer for people. Of an exception and of an end the sentence itself says it.
_OBSERVERS = {
    "error_file": "traceback",
    "tail": _LAST_OUTPUT,
    "log": "output",
    "kernel": "kernel log",
    "nvml": "NVML",
    "health": "health check",
    "cgroup": "control group",
    "host": "machine",
    "heartbeat": "heartbeat",
    "launcher": "launcher",
    "checkpoint": "checkpoint",
    "observer": "not examined",
}
#: The names of the parts of a start (report/start_times.py).
START_PARTS = {
    "supervise": "start of supervise",
    "detect": "detection",
    "teardown": "tear-down",
    "backoff": "wait",
    "selection": "checkpoint choice",
    "agent": "torchrun",
    "start": "rank start",
    "init": "process group",
    "setup": "set-up",
    "load": "checkpoint load",
    "first_step": "first step",
}
#: From so many parts on, the two longest are named first.
_MANY_PARTS = 4
#: The words of a library around the telling sentence, and the part to keep.
_ESSENCES = (
    (re.compile(r"\[\S*gloo/\S+\] ?(.*?)(?:\. .*|\.?$)"), r"gloo: \1"),
    (re.compile(r"oom-kill:.*?oom_memcg=([^,]+),.*?task=([^,]+),pid=(\d+).*"), r"OOM killer: \2 (pid \3), limit of cgroup \1"),
    (re.compile(r"(CUDA out of memory\..*? is free\.) .*"), r"\1"),
    (re.compile(r"\[enforce fail at [^\]]*\][ .]*"), ""),
    (re.compile(r"(CUDA error: [^\n]*?)(?:\n| CUDA kernel errors might| Search for `cuda| For debugging consider).*", re.DOTALL), r"\1"),
)
_NCCL_LAST = "Last error:"
#: Characters of an exception in a sentence.
_LONGEST_NAMED = 160
_PLAIN_EXIT = " exited with code 1"
#: Phases that show that no step was made. An import is not among them: a script without torch is in it while it trains.
_NO_STEP = frozenset({Phase.INIT, Phase.LOAD})
_NO_EVIDENCE = "none was found"
#: Evidence beside what the verdict is on is no longer than this: the beginning shows the kind, and the end of it which one.
_LONGEST_EVIDENCE = 400


def what_text(verdict: FailureVerdict) -> str:
    """Return what happened, in one sentence that begins with how sure it is ("Probably", "Perhaps") where that is less than 90 %."""
    if verdict.cause is Cause.NONE:
        return capital(verdict.summary)
    return CAUSE_TABLE[verdict.cause].sentence(verdict.confidence, _meaning(verdict))


def capital(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def _meaning(verdict: FailureVerdict) -> str:
    """Return what the cause means in this failure: with the exception, the path, the sizes or the peer, where these are known."""
    facts = dict(verdict.facts)
    if facts.get(RACE_WRITER):
        return "A rank read a checkpoint while another rank was writing it"
    if facts.get(FOREIGN_CHECKPOINT):
        return "The ranks loaded another training's checkpoint"
    if facts.get(MISSING_POINTER):
        return "The file that names the newest checkpoint is missing, so the script began from scratch"
    if facts.get("own_service"):
        return f"{facts['peer']}, a service of the job's own, did not answer, or refused"
    if facts.get(CACHE):
        kind = "was replaced while a rank read it" if verdict.transient else "is damaged: half-written, or of another version"
        return f"A file in the cache of {facts[CACHE]} {kind}"
    row = CAUSE_TABLE[verdict.cause]
    meaning, named = facts.get(MEANING) or row.meaning, _named(row.names, verdict, facts)
    return capital(verdict.summary) if row.names == "summary" else f"{meaning}: {named}" if named else meaning


def _named(name: str, verdict: FailureVerdict, facts: Mapping[str, str]) -> str:
    """Return what the sentence names beside the meaning: the exception, the sizes of memory, where ranks stand, or a fact."""
    if name == "hang":
        return verdict.summary if facts.get("hang_kind") else ""
    if name == "exception":
        raised = essence(verdict.summary.partition(" raised ")[2])
        return raised if len(raised) <= _LONGEST_NAMED else ""  # the evidence has it whole
    if name != "sizes":
        return facts.get(name, "")
    asked, free, capacity = (bytes_text(int(facts[key])) if facts.get(key, "").isdigit() else "" for key in ("asked", "free", "capacity"))
    return ", ".join(filter(None, (asked and f"{asked} asked for", free and capacity and f"{free} free of {capacity}")))


def judged_text(verdict: FailureVerdict) -> str:
    """Return the cause by its name in docs/reference/causes.md, and how sure it is."""
    return f"{verdict.cause.value}, {100 * verdict.confidence:.0f} % sure{', transient' if verdict.transient else ''}"


def where_facts(verdict: FailureVerdict, known: Sequence[str]) -> list[Fact]:
    """Return where it failed: rank, node and step; then the line of the user's code, and what in it explains the failure.

    known: the parts of the first line; those that are empty are left out.
    """
    code, reason = code_text(verdict), dict(verdict.facts).get("reason", "")
    place = ", ".join(filter(None, known))
    facts = [Fact(WHERE, place)] if place or not code else []
    facts += [Fact("" if facts else WHERE, code, Tone.STRONG, copied=True)] if code else []
    return [*facts, Fact("", reason, Tone.STRONG)] if reason else facts


def code_text(verdict: FailureVerdict) -> str:
    """Return the failing frame in the user's code, as FILE:LINE in FUNCTION, or where the culprits of a hang stand; "" if none is known."""
    facts = dict(verdict.facts)
    if not facts.get("file") or not facts.get("line"):
        return facts.get("hang_code", "")
    return f"{facts['file']}:{facts['line']}" + (f" in {facts['function']}" if facts.get("function") else "")


def ranks_text(verdict: FailureVerdict | None, rank: int | None) -> str:
    """Return whose failure it is: `rank 1`, or all culprits of a hang; "" if that is not known."""
    if rank is not None:
        return f"rank {rank}"
    several = dict(verdict.facts).get("hang_ranks") if verdict is not None else None
    return rank_list(map(int, several.split(","))) if several else ""


def evidence_facts(verdict: FailureVerdict, facts: Sequence[Evidence], most: int) -> list[Fact]:
    """Return the evidence: what the verdict is on, what else shows it, what merely follows from it; and the name of the cause."""
    consequences = [fact for fact in facts if is_consequence(fact, verdict)]
    own = [fact for fact in facts if fact not in consequences]
    first = [*(fact for fact in own if _NCCL_LAST in fact.text), *(fact for fact in verdict.because[:1] if fact in own)]
    lines = _whole_lines(own, first)
    summary = _in_full(verdict.summary, lines[:1])
    tells_more = summary.endswith("…") or any(_NCCL_LAST in fact.text for fact in first)
    if verdict.cause is not Cause.NONE and not (lines and tells_more):
        lines = [summary, *lines]
    lines = _distinct(map(essence, lines))
    if any(not line.endswith(_PLAIN_EXIT) and not line.startswith(_LAST_OUTPUT) for line in lines):
        lines = [line for line in lines if not line.endswith(_PLAIN_EXIT)]  # an exception says more
    sentence = what_text(verdict)
    said_before = [line for line in lines if _holds(sentence, line)]  # each fact appears once, and output shows nothing where more is known
    lines = [line for line in lines if line not in said_before and not (said_before and line.startswith(_LAST_OUTPUT))]
    lines = lines or [_NO_EVIDENCE for _ in own[:1] if not said_before]
    shown = [Fact("", cut(line, _LONGEST_EVIDENCE) if number else line) for number, line in enumerate(lines[:most])]
    shown += [Fact("", _consequence_text(consequences), Tone.FAINT)] if consequences else []
    shown += [Fact("", judged_text(verdict), Tone.FAINT)] if verdict.cause is not Cause.NONE else []
    return [replace(fact, label="" if number else EVIDENCE) for number, fact in enumerate(shown)]


def evidence_lines(facts: Iterable[Evidence], most: int) -> list[str]:
    """Return the best evidence, a line each: who saw it, of which rank, and the line that tells most."""
    lines = [cut(line, _LONGEST_EVIDENCE) for line in _distinct(map(essence, _whole_lines(facts, ())))]
    return lines[:most] or [_NO_EVIDENCE]


def _whole_lines(facts: Iterable[Evidence], first: Sequence[Evidence]) -> list[str]:
    """Return all evidence, the best first, a line each, as long as it is."""
    order = {name: i for i, name in enumerate(_TELLING)}
    readable = sorted((f for f in facts if f.name in order or f.source != "heartbeat"), key=lambda f: order.get(f.name, len(order)))
    return list(dict.fromkeys(clean(evidence_line(fact)) for fact in (*first, *readable)))


def essence(text: str) -> str:
    """Return of a library's message of several sentences the one that tells: gloo's, NCCL's, torch's of memory and of files."""
    if _NCCL_LAST in text:
        lead, last = text.partition("NCCL error in: ")[0], text.rpartition(_NCCL_LAST)[2]
        return f"{lead}NCCL: {last.strip()}"
    for pattern, shown in _ESSENCES:
        text = pattern.sub(shown, text)
    return text


def evidence_line(fact: Evidence) -> str:
    """Return one piece of evidence as a sentence."""
    rank = "" if fact.rank is None else f"rank {fact.rank}"
    if fact.source in _ENDS and fact.name in {"signal", "exit_code"}:
        how = f"was killed by {exits.signal_name(fact.text)}" if fact.name == "signal" else f"exited with code {fact.text}"
        return f"{rank or 'the command'} {how}"
    if _is_raised(fact):
        return f"{rank or 'the command'} raised {_telling_line(fact)}"
    if fact.source in _ENDS:
        return f"{rank or 'the command'}: {_telling_line(fact)}"
    observer = _OBSERVERS.get(fact.source, fact.source)
    return f"{observer}{f' of {rank}' if rank else ''}: {_telling_line(fact)}"


def _is_raised(fact: Evidence) -> bool:
    """Whether a fact is what a rank raised, as it wrote it down itself: the exception, or the signature that matches it."""
    return fact.source in {"error_file", "launcher"} and (fact.name == "exception" or fact.claim is not None)


def is_consequence(fact: Evidence, verdict: FailureVerdict) -> bool:
    """Whether a fact of another rank merely follows from the failure that the verdict names (classify/engine.py has the rules)."""
    if verdict.rank is None or fact.rank in {None, verdict.rank}:
        return False
    if fact.claim is not None:
        return "*" in fact.claim.consequence_of or fact.claim.names(verdict.cause)
    if fact.name in _EXCEPTIONS:
        killed = bool(verdict.because) and verdict.because[0].name == "signal"  # who loses its peer fails in many ways, and kills none
        return killed or exits.is_consequence(fact.text)
    first = verdict.because[0] if verdict.because else None
    return fact.source == "exit" and first is not None and fact.t >= first.t


def victims(verdict: FailureVerdict) -> list[int]:
    """Return the ranks whose exceptions merely follow from this failure: what they printed explains nothing."""
    raised = (f for f in verdict.because if f.name in _EXCEPTIONS or _is_raised(f))
    return sorted({f.rank for f in raised if f.rank is not None and is_consequence(f, verdict)})


def done_text(plan: Plan, attempt: int) -> str:
    """Return the action about the failure of `attempt`."""
    if plan.kind is PlanKind.STOP:
        return f"stopped with exit code {plan.exit_code}: {plan.reason}"
    wait = f"after {span_text(plan.delay_s)}" if plan.delay_s >= 1.0 else ""
    if plan.waits:
        return f"{plan.reason}; attempt {attempt + 1} starts {wait or 'then'}"
    colon = "" if plan.reason.startswith("from ") else ":"
    return f"restarted as attempt {attempt + 1}{f' {wait}' if wait else ''}{colon} {plan.reason}"


def done_facts(decision: ReportDecision, *, at: str = "") -> list[Fact]:
    """Return supervise's action, its change, and its notes, but for the one with a command. `at`: is before it."""
    plan = decision.plan
    is_told = all(f"{row.how} {row.old} → {row.new}" in plan.reason for row in plan.changes)
    changed = "" if is_told and plan.nproc is None else changes(plan)
    return [
        Fact(DONE, at + done_text(plan, decision.attempt), Tone.STRONG),
        *([Fact("", f"changed: {changed}")] if changed else []),
        *(Fact("", note) for note in plan.notes if not _COMMAND.fullmatch(note)),
    ]


def do_facts(plan: Plan, *, is_over: bool, waits: str = "") -> list[Fact]:
    """Return what a person does: the command, or the first thing; then what else may help.

    is_over: nobody continues with the run. waits: the automatic next step, and its time.
    """
    commands = [match.groups() for note in plan.notes if (match := _COMMAND.fullmatch(note))]
    if commands:
        first, _, rest = plan.next_ladder_step.partition("; ")
        hints = [Fact("", text) for text in (first, rest) if text and plan.kind is PlanKind.STOP]
        rows = [(Fact(DO, command, Tone.WARNING, copied=True), Fact("", text)) for text, command in commands]
        return [*(fact for row in rows for fact in row), *hints]
    todo = plan.next_ladder_step if plan.kind is PlanKind.STOP else plan.todo
    if todo:
        first, _, rest = todo.partition("; ")
        goes_on = () if is_over else (waits,) if waits else ("then the training continues by itself", plan.next_ladder_step)
        return [Fact(DO, first, Tone.WARNING), *(Fact("", text) for text in (rest, *goes_on) if text)]
    if is_over:
        return [Fact(DO, "start it again when it should continue")]
    return [Fact(DO, "nothing: the training continues", Tone.GOOD), *([Fact("", plan.next_ladder_step)] if plan.next_ladder_step else [])]


def again_facts(start: NextStart) -> list[Fact]:
    """Return the command that starts the job again, and the checkpoint that it would begin from."""
    text, variables = start.command.text, start.command.variables
    facts = [Fact(AGAIN, text, copied=True)] if text else []
    facts += [Fact("", f"set {', '.join(variables)} first: secrets are not shown")] if variables else []
    return [*facts, Fact(FROM, start.begins)]


def change(of: Change) -> str:
    """Return one change as a person would write it: `--batch-size 32 -> 16`."""
    old = f"{of.old} " if of.old else ""
    return clean(f"{of.how} {old}-> {of.new}")


def changes(plan: Plan) -> str:
    """Return what the next attempt changes."""
    ranks = [f"{plan.nproc} ranks on this node"] if plan.nproc is not None else []
    return ", ".join([*map(change, plan.changes), *ranks])


def beginning(report: ReportResume) -> str:
    """Return how an attempt began, in one line; an older journal has only the checkpoint that the command was given, as `path`."""
    given = report.resume_from or report.path
    if report.began is Beginning.RESUMED:
        position = position_text(report.step, report.epoch)
        name = "" if report.named is None else f", whose name says {report.named}"
        count = "" if report.counted is None else f"; the ranks count on from step {report.counted}"
        given = "" if report.given_step is None else _given_text(report, report.given_step)
        return f"resumed {f'at {position} ' if position else ''}from {report.path}{name}{count}{given}"
    if report.is_new:
        return "training started at step 0" + (f": {report.reason}" if report.reason else "")
    if report.began is Beginning.FROM_SCRATCH:
        why = report.reason or "no load of a checkpoint was seen"
        return f"STARTED FROM SCRATCH: {why}" + (f"; it was given {given}" if given else "")
    if not given and report.reason:
        return f"STARTED FROM SCRATCH? {report.reason}"
    return f"resume not confirmed: no rank was seen to load {given or 'a checkpoint'}"


def _given_text(report: ReportResume, given_step: int) -> str:
    """Return which other checkpoint the attempt was given, and the cost of loading an older one."""
    given = f", although it was given {report.resume_from} (step {given_step})"
    if report.step is None or report.step > given_step:
        return given
    again = f"steps {report.step + 1} to {given_step} are made again"
    return f"{given}: {again}, and after each restart if the command or the script names that path"


def beginning_fact(resume: ReportResume, *, at: str = "", after: str = "") -> Fact:
    """Return how the next attempt began. `at`, `after`: stand before and after it."""
    is_resumed = resume.began is Beginning.RESUMED
    colon = ":" if resume.began is Beginning.UNCONFIRMED or resume.is_new else ""
    text = f"{at}attempt {resume.attempt}{colon} {beginning(resume)}{after}"
    is_good = (is_resumed and resume.given_step is None) or resume.is_new
    return Fact("", text, Tone.GOOD if is_good else Tone.BAD)


def start_text(start: StartTimes) -> str:
    """Return where the time until an attempt's first step went, its parts in order; those that round to nothing are left out."""
    since = "the launch" if start.after == "launch" else "the failure" if start.after == "failure" else "nodes asked to join"
    known = [(took_s, f"{took_s:.2f} s {START_PARTS.get(name, name)}") for name, took_s in start.parts.items() if round(took_s, 2) > 0]
    until = "" if start.trained else ", without a first step"
    longest = [text for _, text in sorted(known, key=lambda row: -row[0])[:2]] if len(known) >= _MANY_PARTS else []
    most = f" (most: {', '.join(longest)})" if longest else ""
    return f"{start.total_s:.2f} s since {since}{until}{most}: {', '.join(text for _, text in known)}"


def consequences(verdict: FailureVerdict) -> str:
    """Return which ranks' tracebacks, which stand above this line, explain nothing."""
    ranks = victims(verdict)
    if not ranks:
        return ""
    whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:4]))}" + (" and more" if len(ranks) > 4 else "")  # noqa: PLR2004 (as many as fit a line)
    return f". The traceback of {whose} is a consequence"


def core_text(facts: Sequence[Evidence], verdict: FailureVerdict | None) -> str:
    """Return where the core dump is: that of the rank whose failure it was, else the first; and how many more there are."""
    dumps = sorted(facts, key=lambda fact: (verdict is None or fact.rank != verdict.rank, fact.t))
    if not dumps:
        return ""
    more = f" (and of {len(dumps) - 1} more)" if len(dumps) > 1 else ""
    return f"rank {dumps[0].rank} {dumps[0].text}{more}"


def first_of(repairs: Sequence[tuple[str, str]]) -> str:
    """Return the first (path, action or finding) as a text, and how many more there are."""
    path, repair = repairs[0]
    more = f", and {len(repairs) - 1} more" if len(repairs) > 1 else ""
    return f"{path}: {repair}{more}"


def phase_of(facts: Iterable[Evidence]) -> str:
    """Return the phase that the evidence names, or unknown."""
    return next((f.text for f in facts if f.name == "phase"), "unknown")


def pace_text(steps_per_s: float) -> str:
    """Return a pace in the unit that gives a number above 0.1."""
    return f"{steps_per_s:.3g} steps/s" if steps_per_s >= 0.1 else f"{1 / steps_per_s:.3g} s/step"  # noqa: PLR2004  ten seconds a step


def step_text(step: int | None, *, relative: bool = False, at_least: bool = False, phase: str = "") -> str:
    """Return a step as a person would write it. phase: where it is known, one before the first step says that there was none."""
    if step is None:
        return "before its first step" if phase in _NO_STEP else "step unknown"
    return f"step {step}" + (" or later" if at_least else "") + (" (counted by supervise)" if relative else "")


def position_text(step: int | None, epoch: int | None) -> str:
    """Return the step of a checkpoint, else its epoch; "" if neither is known."""
    return f"step {step}" if step is not None else "" if epoch is None else f"epoch {epoch}"


def _consequence_text(facts: Sequence[Evidence]) -> str:
    """Return the consequences in one line: the one that tells most, and which other ranks had some."""
    (line,) = evidence_lines(facts, 1)
    teller = next((fact.rank for fact in facts if cut(essence(clean(evidence_line(fact))), _LONGEST_EVIDENCE) == line), None)
    others = len({fact.rank for fact in facts} - {teller})
    more = f" (and {others} more {'rank' if others == 1 else 'ranks'})" if others else ""
    return f"a consequence: {line}{more}"


def _in_full(summary: str, first: Sequence[str]) -> str:
    """Return the summary of a failure, with all of its text: the line that it was shortened from may have more."""
    lead, raised, text = summary.removesuffix("…").partition(" raised ")
    line = first[0] if first else ""
    return f"{lead}{raised}{line[line.index(text) :]}" if raised and text in line else summary


def _distinct(lines: Iterable[str]) -> list[str]:
    """Return the lines without those whose text an earlier one holds."""
    kept: list[str] = []
    for line in lines:
        if not any(_holds(other, line) for other in kept):
            kept.append(line)
    return kept


def _holds(line: str, other: str) -> bool:
    """Whether `line` says what `other` says: `rank 1 raised E: text` holds `output of rank 1: E: text`."""
    text = clean(other).removesuffix("…")
    return bool(text) and (
        text in line or any(text_part in line for text_part in (text.partition(": ")[2], text.partition(" raised ")[2]) if text_part)
    )


def _telling_line(fact: Evidence) -> str:
    """Return the first line of an exception, unless its text is another one's traceback; of all else the last line."""
    if _NCCL_LAST in fact.text:
        return clean(fact.text)
    is_exception = fact.name in _EXCEPTIONS or fact.claim is not None
    first = next((line for line in fact.text.splitlines() if line.strip()), "")
    return first if is_exception and "Traceback (most recent call last)" not in fact.text else _last_line(fact.text)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
