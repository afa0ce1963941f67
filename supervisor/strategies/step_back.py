"""A checkpoint under suspicion: it is poisoned for this run, and the one before it is taken.

A checkpoint may be whole, byte for byte, and still hold what kills the training: parameters that are no numbers any more
(NVIDIA/Megatron-LM #5281: 44 equal restarts from one such), an optimizer state that a kernel trips over. NaN steps back at once, for
what is in the newest checkpoint came about just before; corruption and faults *while loading* only at the second time on the same one,
for the first may be the machine's. At most `steps_back` in one run. Which one is taken, and what that costs, is known once those on disk
were looked at (core/start.py): the newest of them may not have been verified when it failed. A program's own error never steps back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Plan, PlanKind

if TYPE_CHECKING:
    from supervisor.core.model import CheckpointRef
    from supervisor.strategies.situation import Situation

NAME = "step_back"


def propose(situation: Situation) -> Plan | None:
    """Poison the suspect where an older good one is known to be there."""
    suspect = _suspect(situation)
    if suspect is None or situation.steps_back >= situation.policy.steps_back:
        return None
    older = [c for c in situation.verified if c.path != suspect.path and (c.step is None or suspect.step is None or c.step < suspect.step)]
    if not older and situation.known_good < 2:  # noqa: PLR2004 (the suspect and one more)
        return None
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"{suspect.path} is not used again in this run: back to the newest good checkpoint that remains",
        next_rung="",
        strategy=NAME,
        poison=(suspect.path,),
    )


def lacks(situation: Situation) -> str:
    """Return why nothing older is taken, where the checkpoint is what one would suspect."""
    suspect = _suspect(situation)
    if suspect is None:
        undeclared = situation.verdict.cause in {Cause.NAN_LOSS, Cause.CHECKPOINT_CORRUPT} and not situation.policy.checkpoints_declared
        return (
            "an older checkpoint could be taken: --checkpoints 'DIR/*.pt' --resume-args '--resume {resume}' arms that" if undeclared else ""
        )
    if situation.steps_back >= situation.policy.steps_back:
        return f"{situation.steps_back} older checkpoints were taken in this run, which is all that restart.steps_back allows"
    return f"no good checkpoint older than {suspect.path} is known"


def _suspect(situation: Situation) -> CheckpointRef | None:
    if not situation.policy.checkpoints_declared:
        return None  # what was only learned the script chooses itself
    if situation.verdict.cause is Cause.NAN_LOSS:
        return _newest(situation)
    resumed = situation.resume
    if resumed is None or not (situation.loading or situation.verdict.cause is Cause.CHECKPOINT_CORRUPT):
        return None
    before = (f for f in situation.unanswered if f.resumed == resumed.path and (f.loading or f.cause is Cause.CHECKPOINT_CORRUPT))
    return resumed if any(before) else None


def _newest(situation: Situation) -> CheckpointRef | None:
    """Return the good one of the greatest step; where steps are not known, what was loaded: who looks may find an older one later."""
    resumed = situation.resume
    known = (*situation.verified, resumed) if resumed is not None else situation.verified
    if resumed is not None and any(c.step is None for c in known):
        return resumed
    return max(reversed(known), key=_step) if known else None


def _step(checkpoint: CheckpointRef) -> int:
    return -1 if checkpoint.step is None else checkpoint.step
