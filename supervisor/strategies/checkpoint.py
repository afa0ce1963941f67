"""Steps for a checkpoint or a piece of data under suspicion: go back one checkpoint, then go around the data.

A checkpoint may be whole, byte for byte, and still hold what kills the training: parameters that are NaN (NVIDIA/Megatron-LM #5281: 44
equal restarts from one such), or an optimizer state that crashes a kernel. A NaN loss steps back at once, because the newest checkpoint
was saved just before. Else a checkpoint is accused only on proof. Two equal failures within its load, or two equal crashes after it and
before the first step, make the run *try* the one before. If an attempt trains from that one, the other is accused: it stays out of use
beyond this run (core/attempt/resumption.py). If it fails there too, both are cleared: it is the machine, or the program. What fails in the
load of another file, and a program's own error, never steps back.
"""

from __future__ import annotations

import shlex
from itertools import takewhile
from typing import TYPE_CHECKING

from supervisor.core.budget import family
from supervisor.core.causes import Family
from supervisor.core.model import Cause, Change, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.knobs.bindings import option
from supervisor.strategies import plans
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.situation import (
    FOREIGN_CHECKPOINT,
    LEFTOVER,
    LEFTOVER_IS_OURS,
    MISSING_POINTER,
    POINTER,
    POINTER_COMMAND,
    RACE_WRITER,
    REMEDY,
    SET_ASIDE,
)

if TYPE_CHECKING:
    from supervisor.core.model import CheckpointRef, Failure
    from supervisor.strategies.situation import Situation

WINDOW = "skip_window"
STEP_BACK = "step_back"
#: How to correct a script in which a rank reads what another one is writing.
RACE_FIX_HINT = (
    "save to a temporary name and rename it (os.replace), or with checkpointing.save; and let the ranks that load wait until the one that "
    "saves is done (torch.distributed.barrier)"
)


@ladder_step("stop (65): the ranks loaded another training's checkpoint, and would save over this one's")
def foreign_checkpoint(situation: Situation) -> Plan | None:
    """Stop (65) if the attempt loaded another training's checkpoint: another attempt would load it again, and save over this run's own."""
    path = situation.fact(FOREIGN_CHECKPOINT)
    if not path:
        return None
    own = next((c.path for c in reversed(situation.verified) if c.path != path), "")
    directory, _, name = path.rpartition("/")
    notes = (
        *((f"the newest of this run: {own}",) if own else ()),
        f"to continue with this run, move the other one out of that directory: {shlex.join(['mv', path, f'{directory}-other-{name}'])}",
    )
    return plans.stop(
        "foreign_checkpoint",
        65,
        "the attempt trained on from another training's checkpoint, and was ended before it could save over this run's",
        "move it away; to train on from it, name its path in the command",
        notes=notes,
        alert=situation.verdict.summary,
        alert_kind="foreign_checkpoint",
    )


@ladder_step(
    "ranks raced for a file or a path: restart once, a checkpoint is not rejected; again: stop (65), or the next step",
    tried="a restart after a race",
    explained=True,
)
def raced(situation: Situation) -> Plan | None:
    """Restart once if a rank read what another one was writing, and stop (65) if that came again without progress.

    The file is not at fault, so it is not rejected: whether it is whole is seen when it is verified before the next attempt, and no rank
    writes to it any more. A path that a rank did not find, and that is there by now, is there from the beginning of the next attempt.
    """
    writer = situation.fact(RACE_WRITER)
    if not writer:
        return _raced_for_path(situation)
    finding = situation.verdict.summary
    if any(f.ladder_step == "raced" for f in situation.unanswered):
        again = f"{finding}, again without progress in between: the script reads before the file is whole"
        return plans.stop("raced", 65, again, RACE_FIX_HINT)
    plan = restart_within_budget(situation)
    if plan.kind is PlanKind.STOP:
        return replace(plan, strategy="raced", next_ladder_step=RACE_FIX_HINT)
    return replace(
        plan, strategy="raced", reason=f"{finding}, which is not rejected: {plan.reason}", todo=f"mend the script: {RACE_FIX_HINT}"
    )


def _raced_for_path(situation: Situation) -> Plan | None:
    path = situation.late_path
    if not path:
        return None
    plan = restart_within_budget(situation)
    why = f"{path} is there by now: another rank made it a moment too late, or a moment before"
    mend = "mend the script: one rank makes it, and the others wait for that (torch.distributed.barrier)"
    return replace(plan, strategy="raced", reason=f"{why}; {plan.reason}", notes=(mend,)) if plan.kind is PlanKind.RESTART else None


@ladder_step(
    "what blocks a save is set aside, a missing part is moved back; again, or not of this job: stop (65)",
    tried="a restart with the obstacle set aside",
)
def clear_way(situation: Situation) -> Plan | None:
    """Restart without the file in the way of a save, or with a set-aside file that the script needs; stop (65) if that cannot be done.

    The file is moved before the next attempt (checkpoints/repair.py), once no rank is alive, with a record for `undo`. If the very
    next failure is of this kind too, it did not help, or could not be done.
    """
    leftover, missed = situation.fact(LEFTOVER), situation.fact(SET_ASIDE)
    if not leftover and not missed:
        return None
    finding, command = situation.verdict.summary, situation.fact(REMEDY)
    last = situation.failures[-1] if situation.failures else None
    in_vain = last is not None and last.ladder_step == "clear_way" and not last.is_over
    if (situation.fact(LEFTOVER_IS_OURS) or missed) and not in_vain:
        plan = restart_within_budget(situation)
        remedy = "it is set aside before the next attempt" if leftover else "it is moved back before the next attempt"
        return plan if plan.kind is PlanKind.STOP else replace(plan, strategy="clear_way", reason=f"{finding}: {remedy}; {plan.reason}")
    stays = situation.fact("stays")
    return plans.stop(
        "clear_way",
        65,
        f"{finding}: another attempt would meet the same error" + (f"; supervise does not move it: {stays}" if stays else ""),
        "move it out of the way",
        notes=(f"this moves it {'back' if missed else 'to where the script does not look'}: {command}",) if command else (),
    )


@ladder_step("stop (65): the file that names the newest checkpoint is missing, or it or a link leads to no whole one")
def mend_pointer(situation: Situation) -> Plan | None:
    """Stop (65) where a pointer is missing or leads to no whole checkpoint: another attempt would begin from scratch, or fail as this one.

    We touch no pointer, because nobody knows who wrote it.
    """
    missing, pointer = situation.fact(MISSING_POINTER), situation.fact(POINTER)
    command = situation.fact(POINTER_COMMAND) if missing else situation.fact(REMEDY)
    if missing:
        reason = "the attempt trained from scratch, and was ended before it could save over the checkpoints of this run"
        note = f"{missing} is missing, though whole checkpoints lie next to it: {command}"
    elif pointer:
        reason = f"{situation.verdict.summary}: another attempt would meet the same error"
        note = f"this lets it lead to the newest whole one: {command}"
    else:
        return None
    return plans.stop(
        "mend_pointer",
        65,
        reason,
        ("mend it" if command else f"let {pointer} lead to a whole checkpoint, or remove it to begin from scratch"),
        notes=(note,) if command else (),
    )


def _step_back_missing(situation: Situation) -> str:
    """Return why no older checkpoint is tried, if the checkpoint is the suspect."""
    resumed = situation.resume
    other = "" if resumed is None or situation.verdict.cause is Cause.NAN_LOSS else _failed_on(situation, resumed)
    if other:
        return f"it failed on {other} too, so it is neither's fault: both stay in use"
    suspect = _suspect(situation)
    if suspect is None:
        undeclared = situation.verdict.cause in {Cause.NAN_LOSS, Cause.CHECKPOINT_CORRUPT} and not situation.policy.checkpoints_declared
        options = "--checkpoints 'DIR/*.pt' --resume-args '--resume {resume}'"
        return f"no older checkpoint is tried, because none is declared: {options} enables it" if undeclared else ""
    if situation.steps_back >= situation.policy.steps_back:
        return f"checkpoints rejected in this run: {situation.steps_back}; no more are allowed"
    return f"no good checkpoint older than {suspect.path} is known"


@ladder_step(
    "the checkpoint is avoided in this run, the one before it is tried; at most twice in a run",
    tried="an older checkpoint",
    changes_job=True,
    missing=_step_back_missing,
)
def step_back(situation: Situation) -> Plan | None:
    """Avoid the suspect in this run if an older good checkpoint is known; at most `steps_back` times.

    core/attempt/selection.py takes the older one and reports the cost, once the checkpoints on disk are listed: the newest may be
    unverified still.
    """
    suspect = _suspect(situation)
    if suspect is None or situation.steps_back >= situation.policy.steps_back:
        return None
    good = [c.path for c in situation.verified]
    has_older = good.index(suspect.path) > 0 if suspect.path in good else bool(good)
    if not has_older and situation.known_good < 2:  # noqa: PLR2004 (the suspect and one more)
        return None
    return plans.restart(STEP_BACK, _step_back_text(situation, suspect), rejected=(suspect.path,))


def _step_back_text(situation: Situation, suspect: CheckpointRef) -> str:
    if situation.verdict.cause is Cause.NAN_LOSS or situation.loading:
        return f"{suspect.path} is not used again in this run: back to the newest good checkpoint that remains"
    return (
        f"two attempts crashed after they had loaded {suspect.path}, which proves nothing against it: the newest good checkpoint before it "
        "is tried, and if that one trains, this one stays out of use"
    )


def _suspect(situation: Situation) -> CheckpointRef | None:
    if not situation.policy.checkpoints_declared:
        return None  # the script itself chooses among checkpoints in a discovered location
    if situation.verdict.cause is Cause.NAN_LOSS:
        return _newest(situation)
    resumed = situation.resume
    if resumed is None or _failed_on(situation, resumed):
        return None
    return resumed if any(_is_twin(situation, f) for f in situation.unanswered if f.resumed == resumed.path) else None


def _is_twin(situation: Situation, past: Failure) -> bool:
    """Whether two attempts failed alike: both within the load of what they got, or with the same crash between that and the first step."""
    if situation.loading:
        return past.loading
    # of a crash nothing shows whether the checkpoint, the program or the machine is at fault
    crashed = family(situation.verdict.cause) is Family.NATIVE and situation.loaded and situation.before_first_step
    return crashed and past.before_first_step and past.fingerprint == situation.verdict.fingerprint


def _failed_on(situation: Situation, resumed: CheckpointRef) -> str:
    """Return the other checkpoint on which the run failed alike before it went back, if no attempt trained since; "" for none.

    Failing alike on two clears both.
    """
    untrained = [f for f in takewhile(_made_no_step, reversed(situation.failures)) if not f.is_over]
    alike = (f for f in untrained if f.ladder_step == STEP_BACK and f.fingerprint == situation.verdict.fingerprint)
    return next((f.resumed for f in alike if f.resumed != resumed.path), "")


def _made_no_step(past: Failure) -> bool:
    return past.before_first_step or past.loading


def _newest(situation: Situation) -> CheckpointRef | None:
    """Return the newest good checkpoint; if a step is unknown, the one that was loaded."""
    resumed = situation.resume
    known = (*((resumed,) if resumed is not None else ()), *situation.verified)
    if resumed is not None and any(c.step is None for c in known):
        return resumed
    return known[-1] if known else None


def _skip_window_missing(situation: Situation) -> str:
    if situation.enabled(WINDOW) is None and situation.unanswered:
        enabling = option(WINDOW, situation.policy.likely)
        return f"if the script can skip data, {enabling} has it skip the failing steps (it gets FIRST:LAST)"
    return ""


@ladder_step(
    "the data around the failure is skipped, where declared",
    tried="other data",
    changes_job=True,
    wants=(WINDOW,),
    missing=_skip_window_missing,
)
def skip_window(situation: Situation) -> Plan | None:
    """Skip the data of the steps around the failure, `same_place_steps` to each side, once, if the user declared the knob (FIRST:LAST)."""
    knob, step = situation.enabled(WINDOW), situation.step
    if knob is None or step is None or situation.tried("skip_window"):
        return None
    around = situation.policy.same_place_steps
    window = f"{max(step - around, 0)}:{step + around}"
    return plans.restart(
        "skip_window",
        f"the data of steps {window.replace(':', ' to ')} is skipped ({knob.how})",
        changes=(Change(WINDOW, knob.value, window, knob.how),),
        notes=(f"the run learns nothing from the data of steps {window.replace(':', ' to ')}",),
    )
