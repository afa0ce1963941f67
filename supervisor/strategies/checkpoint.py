"""Rungs for a checkpoint or a piece of data under suspicion: go back one checkpoint, then go around the data.

A checkpoint may be whole, byte for byte, and still hold what kills the training: parameters that are NaN (NVIDIA/Megatron-LM #5281: 44
equal restarts from one such), or an optimizer state that crashes a kernel. A NaN loss steps back at once, because the newest checkpoint
was saved just before. Corruption and faults *while loading* step back at the second failure on the same checkpoint: the first may be the
machine's. A program's own error never steps back.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Change, Plan, PlanKind
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.rung import Rung
from supervisor.strategies.situation import FOREIGN_CHECKPOINT, LEFTOVER, LEFTOVER_IS_OURS, POINTER, RACE_WRITER, REMEDY, SET_ASIDE

if TYPE_CHECKING:
    from supervisor.core.model import CheckpointRef
    from supervisor.strategies.situation import Situation

WINDOW = "skip_window"
#: How to correct a script in which a rank reads what another one is writing.
MEND = (
    "save to a temporary name and rename it (os.replace), or with checkpointing.save; and let the ranks that load wait until the one that "
    "saves is done (torch.distributed.barrier)"
)


def foreign_checkpoint(situation: Situation) -> Plan | None:
    """Stop (65) if the attempt loaded another training's checkpoint: another attempt would load it again, and save over this run's own."""
    path = situation.fact(FOREIGN_CHECKPOINT)
    if not path:
        return None
    own = next((c.path for c in reversed(situation.verified) if c.path != path), "")
    directory, _, name = path.rpartition("/")
    notes = (
        *((f"the newest of this run: {own}",) if own else ()),
        f"to go on with this run, move the other one out of that directory: {shlex.join(['mv', path, f'{directory}-other-{name}'])}",
    )
    return Plan(
        kind=PlanKind.STOP,
        reason="the attempt trained on from another training's checkpoint, and was ended before it could save over this run's",
        next_rung="move it away, then start again; to train on from it, name its path in the command",
        strategy="foreign_checkpoint",
        exit_code=65,
        notes=notes,
        alert=situation.verdict.summary,
        alert_kind="foreign_checkpoint",
    )


def raced(situation: Situation) -> Plan | None:
    """Restart once if a rank read what another one was writing, and stop (65) if that came again without progress.

    The file is not at fault, so it is not rejected: whether it is whole is seen when it is verified before the next attempt, and no rank
    writes to it any more.
    """
    writer = situation.fact(RACE_WRITER)
    if not writer:
        return None
    finding = situation.verdict.summary
    if any(f.rung == "raced" for f in situation.unanswered):
        again = f"{finding}, again without progress in between: the script reads before the file is whole"
        return Plan(kind=PlanKind.STOP, reason=again, next_rung=MEND, strategy="raced", exit_code=65)
    plan = restart_within_budget(situation)
    if plan.kind is PlanKind.STOP:
        return replace(plan, strategy="raced", next_rung=MEND)
    return replace(plan, strategy="raced", reason=f"{finding}, which is not rejected: {plan.reason}", notes=(f"mend the script: {MEND}",))


def clear_way(situation: Situation) -> Plan | None:
    """Restart without what is in the way of a save, or with what we set aside and the script looks for; stop (65) if that cannot be done.

    The file is moved before the next attempt (checkpoints/repair.py), once no rank is alive, with a record for `undo`. If the very
    next failure is of this kind too, it did not help, or could not be done.
    """
    leftover, missed = situation.fact(LEFTOVER), situation.fact(SET_ASIDE)
    if not leftover and not missed:
        return None
    finding, command = situation.verdict.summary, situation.fact(REMEDY)
    last = situation.failures[-1] if situation.failures else None
    in_vain = last is not None and last.rung == "clear_way" and not last.is_over
    if (situation.fact(LEFTOVER_IS_OURS) or missed) and not in_vain:
        plan = restart_within_budget(situation)
        what = "it is set aside before the next attempt" if leftover else "it is moved back before the next attempt"
        return plan if plan.kind is PlanKind.STOP else replace(plan, strategy="clear_way", reason=f"{finding}: {what}; {plan.reason}")
    stays = situation.fact("stays")
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{finding}: another attempt would meet the same error" + (f"; supervise does not move it: {stays}" if stays else ""),
        next_rung="move it with the command of the note, then start again",
        strategy="clear_way",
        exit_code=65,
        notes=(f"this moves it {'back' if missed else 'to where the script does not look'}: {command}",) if command else (),
    )


def mend_pointer(situation: Situation) -> Plan | None:
    """Stop (65) where a pointer leads to no whole checkpoint: we touch no pointer, because nobody knows who wrote it."""
    pointer, command = situation.fact(POINTER), situation.fact(REMEDY)
    if not pointer:
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{situation.verdict.summary}: another attempt would meet the same error",
        next_rung="mend it with the command of the note, then start again"
        if command
        else f"let {pointer} lead to a whole checkpoint, or remove it to begin from scratch, then start again",
        strategy="mend_pointer",
        exit_code=65,
        notes=(f"this lets it lead to the newest whole one: {command}",) if command else (),
    )


def step_back(situation: Situation) -> Plan | None:
    """Reject the suspect for this run if an older good checkpoint is known; at most `steps_back` times.

    core/start.py selects the older one and reports the cost, once the checkpoints on disk are listed: the newest may be unverified still.
    """
    suspect = _suspect(situation)
    if suspect is None or situation.steps_back >= situation.policy.steps_back:
        return None
    good = [c.path for c in situation.verified]
    has_older = good.index(suspect.path) > 0 if suspect.path in good else bool(good)
    if not has_older and situation.known_good < 2:  # noqa: PLR2004 (the suspect and one more)
        return None
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"{suspect.path} is not used again in this run: back to the newest good checkpoint that remains",
        next_rung="",
        strategy="step_back",
        rejected=(suspect.path,),
    )


def _step_back_missing(situation: Situation) -> str:
    """Return why no older checkpoint is tried, if the checkpoint is the suspect."""
    suspect = _suspect(situation)
    if suspect is None:
        undeclared = situation.verdict.cause in {Cause.NAN_LOSS, Cause.CHECKPOINT_CORRUPT} and not situation.policy.checkpoints_declared
        options = "--checkpoints 'DIR/*.pt' --resume-args '--resume {resume}'"
        return f"no older checkpoint is tried, because none is declared: {options} enables it" if undeclared else ""
    if situation.steps_back >= situation.policy.steps_back:
        return f"checkpoints rejected in this run: {situation.steps_back}; restart.steps_back allows no more"
    return f"no good checkpoint older than {suspect.path} is known"


def _suspect(situation: Situation) -> CheckpointRef | None:
    if not situation.policy.checkpoints_declared:
        return None  # the script itself chooses among checkpoints in a discovered location
    if situation.verdict.cause is Cause.NAN_LOSS:
        return _newest(situation)
    resumed = situation.resume
    if resumed is None or not (situation.loading or situation.verdict.cause is Cause.CHECKPOINT_CORRUPT):
        return None
    before = (f for f in situation.unanswered if f.resumed == resumed.path and (f.loading or f.cause is Cause.CHECKPOINT_CORRUPT))
    return resumed if any(before) else None


def _newest(situation: Situation) -> CheckpointRef | None:
    """Return the newest good checkpoint; if a step is unknown, the one that was loaded."""
    resumed = situation.resume
    known = (*((resumed,) if resumed is not None else ()), *situation.verified)
    if resumed is not None and any(c.step is None for c in known):
        return resumed
    return known[-1] if known else None


def skip_window(situation: Situation) -> Plan | None:
    """Skip the data of the steps around the failure, `same_place_steps` to each side, once, if the user declared the knob (FIRST:LAST)."""
    knob, step = situation.enabled(WINDOW), situation.step
    if knob is None or step is None or situation.tried("skip_window"):
        return None
    around = situation.policy.same_place_steps
    window = f"{max(step - around, 0)}:{step + around}"
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"the data of steps {window.replace(':', ' to ')} is skipped ({knob.how})",
        next_rung="",
        strategy="skip_window",
        changes=(Change(WINDOW, knob.value, window, knob.how),),
        notes=(f"the run learns nothing from the data of steps {window.replace(':', ' to ')}",),
    )


def _skip_window_missing(situation: Situation) -> str:
    if situation.enabled(WINDOW) is None and situation.unanswered:
        return "if the script can skip data, --knob skip_window=--YOUR-FLAG has it skip the failing steps (it gets FIRST:LAST)"
    return ""


RUNGS = (
    Rung("foreign_checkpoint", foreign_checkpoint, "stop (65): the ranks loaded a checkpoint that is not of this run, and beyond it"),
    Rung("raced", raced, "a rank read what another one was writing: restart once, the file is not rejected; again: stop (65)"),
    Rung("clear_way", clear_way, "what is in a save's way is set aside, what is missed is moved back; again, or not ours: stop (65)"),
    Rung("mend_pointer", mend_pointer, "stop (65): a link, or the file that names the latest, leads to no whole checkpoint"),
    Rung(
        "step_back",
        step_back,
        "the checkpoint is rejected for this run, the one before it is taken; at most restart.steps_back times",
        changes_job=True,
        missing=_step_back_missing,
    ),
    Rung(
        "skip_window",
        skip_window,
        "the data around the failure is skipped, where declared",
        changes_job=True,
        missing=_skip_window_missing,
    ),
)
