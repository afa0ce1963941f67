"""The programs that the ranks run, and their knobs: what they train with, and by which of them a script gets its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import Alert
from supervisor.core.model import RESUME, ResumeKind
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.events import ProgramIdentified, ProgramSeen
    from supervisor.core.model import Knob
    from supervisor.core.state import JobState, Step

#: `Knob.by` of a knob that the user declared.
DECLARED = "declared"
#: The exit code that asks for a requeue: the next start continues the run (docs/reference/exit-codes.md).
REQUEUE = 75
#: Exit codes of a run that HUP or TERM ended: who starts the same command again wants it to continue.
ENDED_FROM_OUTSIDE = frozenset({129, 143})


def current_knobs(state: JobState, overrides: tuple[tuple[str, str], ...]) -> tuple[Knob, ...]:
    """Return the knobs as they stand: by `overrides`, else as the command has them, else as a rank's framework reported them.

    If a rank reports another number than the command has, the program's knob does not govern it, and is not enabled.
    """
    disputed = {name for name, _, _ in state.run.disputes}
    set_now, seen_now = dict(overrides), dict(state.run.knob_values)
    return tuple(
        replace(
            knob,
            value=set_now.get(knob.name) or knob.value or (seen_now.get(knob.name, "") if may_be_seen(knob) else ""),
            seen=knob.by == DECLARED or ((knob.seen or knob.by in state.run.programs) and knob.name not in disputed),
        )
        for knob in state.run.policy.knobs
    )


def disputes(state: JobState, reported: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str, str], ...]:
    """Return (knob, value in a rank, planned value) where the two differ, once a rank has reported new values.

    Disputes of other knobs from earlier attempts stay: only a rank that trains with the planned value ends one.
    """
    overrides, seen_now = dict(state.attempt.overrides), dict(reported)
    rows = {row[0]: row for row in state.run.disputes if row[0] not in seen_now}
    for knob in state.run.policy.knobs:
        planned, seen = overrides.get(knob.name) or knob.value, seen_now.get(knob.name, "")
        is_checked = may_be_seen(knob) and knob.by in state.run.programs
        if is_checked and planned.isdigit() and seen.isdigit() and int(planned) != int(seen):
            rows[knob.name] = (knob.name, seen, planned)
    return tuple(rows.values())


def may_be_seen(knob: Knob) -> bool:
    """Whether a rank's framework holds this number itself: not a declared knob, which is the user's, and not a derived one."""
    return knob.by != DECLARED and knob.counts != "derived"


def known_programs(state: JobState) -> tuple[str, ...]:
    """Return the programs that a rank was seen to run, and those that the user names."""
    named = (knob.by for knob in state.run.policy.knobs if knob.name == RESUME and knob.seen and knob.by != DECLARED)
    return tuple(dict.fromkeys((*state.run.programs, *named)))


def with_programs(state: JobState, programs: tuple[str, ...]) -> JobState:
    """Return the state in which ranks were seen to run these programs too."""
    return state.with_run(programs=tuple(dict.fromkeys((*state.run.programs, *programs))))


def resume_knob(state: JobState) -> Knob | None:
    """Return the knob by which the next attempt gets its checkpoint: the declared one, or that of a program that a rank was seen to run."""
    programs = state.run.programs
    return next((k for k in state.run.policy.knobs if k.name == RESUME and (k.seen or k.by in programs)), None)


def resume_by(state: JobState) -> str:
    """Return whose knob that is, "" for none."""
    knob = resume_knob(state)
    return "" if knob is None else knob.by


def resume_knobs(state: JobState) -> tuple[str, ...]:
    """Return whose knobs could hand a checkpoint over, the preferred one first; the user's too where the script resumes by itself."""
    itself = (DECLARED,) if state.run.policy.resumes_itself else ()
    return (*itself, *(knob.by for knob in state.run.policy.knobs if knob.name == RESUME))


def resumes_itself(state: JobState) -> bool:
    """Whether the script finds its checkpoint by itself: the user declares it, or it is so for the program that a rank was seen to run."""
    knob = resume_knob(state)
    return state.run.policy.resumes_itself or (knob is not None and knob.counts == ResumeKind.ITSELF)


def resumes_at_next_start(state: JobState, code: int) -> bool:
    """Whether the same command, started again after this exit code, is known to continue from the newest verified checkpoint.

    A load by a program's option does not show it: the script would not find that checkpoint by itself.
    """
    knob = resume_knob(state)
    if state.run.policy.checkpoints_declared or resumes_itself(state):
        return True
    if knob is None:
        return state.attempt.loaded is not None
    return knob.seen or code in {REQUEUE, *ENDED_FROM_OUTSIDE}


def takes_own_only(state: JobState) -> bool:
    """Whether the next attempt gets only what this run saved.

    The option of a program that only its text shows continues with this training, and with no older one, unless this run continues with the
    training of the last one. The user's declarations (the option, the program, the checkpoints) hold for earlier runs' saves too.
    """
    policy = state.run.policy
    knob = resume_knob(state) or next((k for k in policy.knobs if k.name == RESUME), None)
    is_of_text = knob is not None and not knob.seen and knob.counts != ResumeKind.ITSELF
    return is_of_text and not state.run.goes_on and not policy.checkpoints_declared


def on_program_identified(state: JobState, event: ProgramIdentified) -> Step:
    """Compare the program that will run with the one that trained last."""
    trained, now = state.run.starts_with.program, dict(event.program)
    same = bool(trained) and all(now.get(name, digest) == digest for name, digest in trained)
    return state.with_attempt(program=event.program, same_program=same), ()


def on_program_seen(state: JobState, event: ProgramSeen) -> Step:
    """Record the framework that trains: its knobs become enabled, and their values are known."""
    values = tuple((dict(state.run.knob_values) | dict(event.values)).items())
    state = with_programs(state, event.programs)
    state = state.with_run(knob_values=values, batchnorm=state.run.batchnorm or event.batchnorm)
    disputed = disputes(state, event.values)
    planned = dict(state.attempt.overrides)
    new = [row for row in disputed if row[0] in planned and row not in state.run.disputes]
    texts = (f"a rank trains with {name} {seen} instead of {value}" for name, seen, value in new)
    alerts = tuple(Alert("change_ignored", state.attempt.number, text) for text in texts)
    return state.with_run(disputes=disputed), alerts
