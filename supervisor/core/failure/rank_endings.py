"""How the ranks of an attempt left, and what that means: whether the training was over, or a rank left too early. Pure.

A process that ends with 0 says that it is content, not that the training is over; one that fails after the last step says nothing about
the training. So the ends of the ranks are compared with each other, with what they had trained by then, and with where the attempt began:

    rank 1 left with 0 at step 30, rank 0 waits for it in step 31        it left early: a failure, though nothing failed
    all came to the end of their scripts, rank 0 aborts in atexit        the training is over; an abort trains nothing again
    rank 0 left with 0 at step 200, rank 1 fails in a barrier            it seems to be over: one more attempt shows it
    that attempt begins at step 200, makes no step, and fails again      it is over

A rank's script is over once the interpreter leaves it without an exception, or it gives up its process group (the shim sees both), before
any rank left with a failure: after that a handler of TERM may leave in order. A rank without a heartbeat shows its exit code alone.
`KINDS` has the table of docs/explanation/recovery.md.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.core.model import Beginning, Cause, Evidence, FailureVerdict, Phase
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from supervisor.core.model import CheckpointRef
    from supervisor.core.state import JobState


class EndKind(StrEnum):
    """How the ranks of an attempt left, taken together."""

    WELL = "well"
    LATE = "late"
    HIDDEN = "hidden"
    EARLY = "early"
    SEEMS_OVER = "seems_over"
    OVER = "over"
    FAILED = "failed"


#: How the ranks left, and the action: the table of docs/explanation/recovery.md is made from it.
KINDS: dict[EndKind, tuple[str, str]] = {
    EndKind.WELL: (
        "all left with 0, at whatever step, and no rank's failure is known",
        "the run is done (0). If the last step is known and was not reached, the last line has both: `done at step 30 of 200`",
    ),
    EndKind.LATE: (
        "the training is over (the scripts are, or the last step is made and verified), and a process does not leave",
        (
            "an alert names the rank and its line. Once nothing of it has worked for 10 minutes, `--on-hang restart` ends it as "
            "`exit_stuck`: no attempt, no older checkpoint; 124, or 0 if rank 0 had left with 0"
        ),
    ),
    EndKind.HIDDEN: (
        "a rank failed, nothing trained after that, and the command left with 0 (`cmd; echo`, `cmd \\| tee`, `cmd \\|\\| true`)",
        "an incident with card and alert; a warning and the last line name rank and error. The code stays 0; nothing is restarted",
    ),
    EndKind.EARLY: (
        "a rank left with 0 while the others continued, in code or in a handler of TERM",
        "that rank is at fault, not those that lost it. Restart from the newest checkpoint; at the same step again: stop (65)",
    ),
    EndKind.SEEMS_OVER: (
        "a rank came to its end, and another one that had made as many steps failed, or waited, in a barrier or in the last save",
        "one more attempt from the last step, if it gets a checkpoint; then as below. A last save that failed: the ladder of the cause",
    ),
    EndKind.OVER: (
        "all came to their end, and one died after that; or a checkpoint holds the last step; or the attempt began there, and made none",
        (
            "stop with the failed rank's own code (124: a hang), never 75; no checkpoint is rejected. Card: `the training had "
            "ended at step N`. The cause of an abort is `exit_abort`"
        ),
    ),
    EndKind.FAILED: ("in any other way", "the ladder of the cause decides"),
}

#: torch's functions in which the ranks wait for each other when nothing is left to train.
_TEARDOWN = "in destroy_process_group"
_AT_THE_END = ("in barrier", "in monitored_barrier", _TEARDOWN)
#: The innermost function of a traceback.
_LAST_FRAME = re.compile(r'File "[^"]*", line \d+, in ([^\s]+)(?![\s\S]*File ")')
#: The summary has so many characters of a dying rank's last words.
_MOST_SAID = 160
#: Signals of native code: what a process dies of that breaks down, and not one that is asked to end.
_OF_NATIVE_CODE = frozenset({4, 6, 7, 8, 11})
#: Causes that only say that another rank is gone. Nobody is killed because another one left.
_OF_PEERS = frozenset(exits.OF_PEERS) - {Cause.KILLED_UNKNOWN}
#: Causes of a process that dies in its teardown: an abort, a crash, a peer that is gone, or nothing but a code.
_OF_TEARDOWNS = frozenset(
    {
        *exits.OF_PEERS,
        *(Cause.UNKNOWN_NATIVE_ABORT, Cause.SEGFAULT, Cause.CUDA_ILLEGAL_ACCESS, Cause.USER_CODE, Cause.UNKNOWN, Cause.NONE),
    }
) - {Cause.KILLED_UNKNOWN}
#: How sure it is that a rank which left with 0 is at fault, where nothing else is known to have failed.
SURE = 0.9
#: Before the summary of a failure after the last step.
AFTER_THE_END = "after the last step: "


class RankEnding(Struct, frozen=True):
    """How one rank left, and its training by then."""

    rank: int
    t: float = 0.0  # when, 0.0: unknown
    code: int | None = None  # with `signal` None: it did not end by itself, or that is not known
    signal: int | None = None
    steps: int = 0  # as counted in this attempt
    step: int | None = None  # absolute, None: unknown
    total: int | None = None  # with which the training ends
    script_over: bool = False  # as in RankHeartbeat
    raised: bool = False  # an uncaught exception ended it
    at_end: bool = False  # it failed, or stood, in a function that ends a training, or in a save
    in_teardown: bool = False  # its exception came from where the ranks give up their process group

    @property
    def left_well(self) -> bool:
        """Whether it left with 0."""
        return self.code == 0

    @property
    def died_natively(self) -> bool:
        """Whether native code ended it; a shell passes that on as a code."""
        return (self.signal or (self.code or 0) - exits.OF_A_SIGNAL) in _OF_NATIVE_CODE

    @property
    def failed_in_teardown(self) -> bool:
        """Whether it left with a code of its own after its last step, and no exception but one of its teardown's says why."""
        made_all = self.script_over or (self.step is not None and self.total is not None and self.step >= self.total)
        return made_all and self.code not in {None, 0} and (not self.raised or self.in_teardown)

    @property
    def came_to_its_end(self) -> bool:
        """Whether nothing was left for it to train."""
        ended_otherwise = self.code in {None, 0} or self.died_natively  # a code of its own may be an answer: sys.exit(3)
        return self.left_well or (self.script_over and not self.raised and ended_otherwise)

    def is_beyond(self, other: RankEnding) -> bool:
        """Whether it trained further than another rank; by steps of one kind alone."""
        if self.step is not None and other.step is not None:
            return self.step > other.step
        return self.steps > other.steps


class Ending(Struct, frozen=True):
    """How the ranks left, where that is a failure: WELL, LATE and HIDDEN are not, and are answered where they are seen."""

    kind: EndKind = EndKind.FAILED
    ranks: tuple[RankEnding, ...] = ()
    step: int | None = None  # the last one that is known, absolute
    early: RankEnding | None = None  # the rank that left with 0 before the others
    at_last_step: bool = False  # the attempt began at the greatest step that this run had reached, and made none

    @property
    def is_over(self) -> bool:
        """Whether the training had ended, or seems to have."""
        return self.kind in {EndKind.OVER, EndKind.SEEMS_OVER}


def of(state: JobState) -> Ending:
    """Return how the ranks of the current attempt left, by the evidence."""
    ranks = _ranks(state)
    finished = tuple(rank for rank in ranks if rank.came_to_its_end)
    others = tuple(rank for rank in ranks if not rank.came_to_its_end)
    at_last_step = _began_at_the_last_step(state)
    step = reached_step(state, None)
    if step is None and at_last_step and state.attempt.resume is not None:
        step = state.attempt.resume.shown_step
    elif step is None and state.attempt.began_as is Beginning.FROM_SCRATCH:
        step = min(beats(state, None, "steps"), default=None)
    kind = _kind(state, finished, others, at_last_step=at_last_step)
    # who left before another failed; what ranks do after the first failure is a consequence of it (observe/collect.py)
    left = sorted((rank for rank in finished if rank.left_well), key=lambda rank: rank.t)
    early = left[0] if left and kind is EndKind.EARLY else None
    return Ending(kind, ranks, step if early is None or early.step is None else early.step, early, at_last_step)


def _kind(state: JobState, finished: tuple[RankEnding, ...], others: tuple[RankEnding, ...], *, at_last_step: bool) -> EndKind:
    ranks = (*finished, *others)
    last = max((rank.total for rank in ranks if rank.total is not None), default=None)
    if (step := _made_last_step(ranks)) is not None and _holds(state, step):
        return EndKind.OVER  # else it was the last save that failed, and with it all that was trained since the one before
    early = EndKind.EARLY if any(rank.left_well for rank in finished) else EndKind.FAILED
    is_short = last is not None and any(rank.step is not None and rank.step < last for rank in finished)
    if not finished or is_short or any(other.is_beyond(rank) for other in others for rank in finished):
        return early
    all_finished = not others and len(finished) >= state.attempt.world_size
    if all_finished or at_last_step:
        return EndKind.OVER
    return EndKind.SEEMS_OVER if any(other.at_end for other in others) else early


def _made_last_step(ranks: Iterable[RankEnding]) -> int | None:
    """Return the step to which all ranks came, if the last one that was named is made; else None."""
    last = max((rank.total for rank in ranks if rank.total is not None), default=None)
    step = min((rank.step for rank in ranks if rank.step is not None), default=None)
    return step if last is not None and step is not None and step >= last else None


def _holds(state: JobState, step: int) -> bool:
    """Whether a verified checkpoint, on this node or on another one that saved in this attempt, holds the training up to a step."""
    return is_held(step, state.run.verified) or (state.attempt.saved_steps.highest or 0) >= step


def lacks_last_save(state: JobState) -> bool:
    """Whether the last step that was named is made, and no checkpoint of it is verified yet, though it is known where they are."""
    step, policy = _made_last_step(_ranks(state)), state.run.policy
    return step is not None and not _holds(state, step) and (policy.checkpoints_declared or policy.checkpoints_learned)


def _began_at_the_last_step(state: JobState) -> bool:
    """Whether the attempt continued from the greatest step of this run, and made none."""
    attempt, run = state.attempt, state.run
    if attempt.trains or any(fact.text != "0" for fact in _beats(state, "steps")):
        return False
    began = attempt.resume.step if attempt.resume is not None else attempt.first_step
    return began is not None and run.reached is not None and began >= run.reached


def _ranks(state: JobState) -> tuple[RankEnding, ...]:
    """Return how each rank left of which anything is known."""
    facts = state.attempt.evidence or ()
    numbers = {rank.rank for rank in state.attempt.ranks} | {
        f.rank for f in facts if f.source in {"exit", "heartbeat"} and f.rank is not None
    }
    waits = state.attempt.hang is not None and any(text in state.attempt.hang.text for text in _AT_THE_END)
    failed_t = min((fact.t for fact in facts if _is_failed_end(fact)), default=state.attempt.stopped_t)
    # whose script was over after that end was asked to end too, and may have a handler that leaves in order
    known: dict[int, list[Evidence]] = {number: [] for number in numbers}
    for fact in facts:
        if fact.rank in known and (fact.name != "script_over" or failed_t is None or fact.t <= failed_t):
            known[fact.rank].append(fact)
    return tuple(_rank(number, known[number], waits=waits) for number in sorted(numbers))


def _is_failed_end(fact: Evidence) -> bool:
    return fact.source == "exit" and (fact.name == "signal" or (fact.name == "exit_code" and fact.text != "0"))


def _rank(number: int, facts: list[Evidence], *, waits: bool) -> RankEnding:
    if not facts:
        return RankEnding(number, at_end=waits)
    beat = {fact.name: fact.text for fact in facts if fact.source == "heartbeat"}
    end = next((fact for fact in facts if fact.source == "exit" and fact.name in {"exit_code", "signal"}), None)
    trace = next((fact.text for fact in facts if fact.name == "traceback" and fact.source == "error_file"), "")
    return RankEnding(
        number,
        t=0.0 if end is None else end.t,
        code=int(end.text) if end is not None and end.name == "exit_code" else None,
        signal=int(end.text) if end is not None and end.name == "signal" else None,
        steps=_number(beat, "steps") or 0,
        step=_number(beat, "step"),
        total=_number(beat, "total"),
        script_over="script_over" in beat,
        raised=bool(trace) or any((fact.source, fact.name) == ("error_file", "exception") for fact in facts),
        at_end=waits or any(text in trace for text in _AT_THE_END) or beat.get("phase") == Phase.CHECKPOINT,
        in_teardown=_TEARDOWN in trace,
    )


def _number(beat: Mapping[str, str], name: str) -> int | None:
    return int(beat[name]) if name in beat else None


def reached_step(state: JobState, rank: int | None) -> int | None:
    """Return the absolute step to which a rank came, else the slowest rank; None where none is known.

    Counted steps become absolute if the attempt's first step is known: a rank loaded the checkpoint that it was given, or the declared
    location held none and no rank loaded one.
    """
    steps = beats(state, rank, "step")
    if steps:
        return min(steps)
    counted = beats(state, rank, "steps")
    if state.attempt.resume is not None:
        base = state.attempt.resume.shown_step if state.attempt.loaded == state.attempt.resume.path else None
    else:
        base = 0 if state.run.policy.checkpoints_declared and state.attempt.loaded is None else None
    if base is not None and counted and min(counted) > 0:
        return base + min(counted)
    return None if state.attempt.progress.relative else state.attempt.progress.step


def beats(state: JobState, rank: int | None, name: str) -> list[int]:
    """Return what a rank's last heartbeat held, else what those of all ranks did."""
    facts = _beats(state, name)
    return [int(f.text) for f in facts if f.rank == rank] or [int(f.text) for f in facts]


def _beats(state: JobState, name: str) -> list[Evidence]:
    return [f for f in state.attempt.evidence or () if (f.source, f.name) == ("heartbeat", name)]


def explained(state: JobState, verdict: FailureVerdict, ending: Ending) -> FailureVerdict:
    """Return the verdict with what the ends of the ranks, as `of` has them, add to it.

    Where it only says that ranks lost a peer, the one that left with 0 is at fault; after the end of the training, a waiting rank.
    """
    early = ending.early
    if early is not None and verdict.cause in _OF_PEERS:
        at = "" if ending.step is None else f" at step {ending.step}"
        return _of_exit(early, f"rank {early.rank} left with 0{at}, the others continued", "left:early", verdict)
    if not ending.is_over or verdict.cause is Cause.EXIT_STUCK or verdict.summary.startswith(AFTER_THE_END):
        return verdict
    well = next((rank for rank in ending.ranks if rank.left_well), None)
    dead = next((rank for rank in ending.ranks if rank.died_natively), None)
    failed = dead or next((rank for rank in ending.ranks if rank.failed_in_teardown), None)
    if ending.kind is EndKind.OVER and failed is not None and verdict.cause in _OF_TEARDOWNS:
        verdict = _of_teardown(state, failed, verdict)
    elif well is not None and verdict.cause in _OF_PEERS:
        waiter = next((rank for rank in ending.ranks if not rank.came_to_its_end), None)
        waiter = waiter or next((rank for rank in ending.ranks if not rank.left_well), well)
        verdict = _of_exit(waiter, f"rank {waiter.rank} waited for rank {well.rank}, which had left with 0", "left:last", verdict)
    return replace(verdict, summary=f"{AFTER_THE_END}{verdict.summary}")


def _of_teardown(state: JobState, rank: RankEnding, verdict: FailureVerdict) -> FailureVerdict:
    """Return the verdict on a rank that died once nothing was left to train, and in what: no collective that a training needs failed."""
    signum = rank.signal or (rank.code or 0) - exits.OF_A_SIGNAL
    how = f"was killed by {exits.signal_name(signum)}" if rank.died_natively else f"left with {rank.code}"
    facts = [fact for fact in state.attempt.evidence or () if fact.rank in {rank.rank, None}]
    frame = next((match[1] for fact in facts if fact.name == "traceback" and (match := _LAST_FRAME.search(fact.text))), "")
    claim_text = next((fact.text for fact in facts if fact.claim is not None and fact.source != "exit"), "")
    place = f"in {frame}" if frame else "in its teardown"
    summary = f"rank {rank.rank} {how} {place}" + (f": {claim_text[:_MOST_SAID]}" if claim_text else "")
    return replace(verdict, cause=Cause.EXIT_ABORT, summary=summary, rank=rank.rank, transient=False)


def _of_exit(rank: RankEnding, summary: str, fingerprint: str, verdict: FailureVerdict) -> FailureVerdict:
    """Return the verdict on a rank whose way to leave explains what another verdict only saw the consequences of."""
    fact = Evidence("exit", "left", summary, rank.rank, rank.t)
    others = tuple(other for other in verdict.because if other.name != exits.ENDED_BY_US)
    return FailureVerdict(
        Cause.USER_CODE,
        SURE,
        summary,
        fingerprint,
        rank=rank.rank,
        because=(fact, *others)[:10],
        facts=() if rank.code is None else (("exit_code", str(rank.code)),),
        node=verdict.node if verdict.rank == rank.rank else "",
        runner_up=verdict.cause if verdict.cause not in {Cause.UNKNOWN, Cause.NONE} else None,
        runner_up_confidence=verdict.confidence,
    )


def ended_text(step: int | None, verified: Iterable[CheckpointRef]) -> str:
    """Return that the training had ended, and where; and that a checkpoint of that step is verified, if it is by now."""
    if step is None:
        return "the training had ended"
    return f"the training had ended at step {step}" + (", checkpoint verified" if is_held(step, verified) else "")


def is_held(step: int, verified: Iterable[CheckpointRef]) -> bool:
    """Whether a verified checkpoint holds the training up to a step."""
    return any(c.shown_step is not None and c.shown_step >= step for c in verified)
