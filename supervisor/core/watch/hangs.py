"""The ranks stand still: warn, or end the attempt (--on-hang). docs/explanation/hangs.md has the reasons.

A suspicion alone decides nothing: it is recorded and logged. Once two looks agree, `auto` ends only what cannot continue by itself. `warn`
ends nothing. Ranks that stand past the end of their training are not hangs of it: only `restart` ends them, once nothing of theirs has
worked for 10 minutes, and nothing is trained again. Of several nodes one acts for all; the others know of the hang, and raise no alert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import Alert, DumpStacks, KeepLook, PrintMessage
from supervisor.core.failure import rank_endings, teardown
from supervisor.core.model import Cause, Claim, Evidence, HangKind
from supervisor.core.shell import quoted
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected, StacksRequested
    from supervisor.core.model import Hang
    from supervisor.core.state import JobState, Step

#: Hangs that no rank can end by itself.
_FOR_EVER = frozenset({HangKind.GONE, HangKind.MISMATCH})
_LOCKED = "a restart would wait for the same file; --on-hang restart stops the run with 124"
_SLOW = "bytes move, so it is slow and not stuck, and a restart would begin it anew"
#: From so many steps on the step times of an attempt show which time is long for it; before that a limit is a guess.
CALIBRATION_STEPS = 20
#: Two looks are measured, not guessed.
SURE = 0.95
#: Beyond the process group's own timeout, for torch to act first: its watchdog looks about once a minute.
TORCH_ACTS_S = 90.0


def on_hang_suspected(state: JobState, _event: HangSuspected) -> Step:
    """Continue: the ranks are being examined."""
    return state.with_attempt(hang_suspected=True), ()


def on_hang_confirmed(state: JobState, event: HangConfirmed) -> Step:
    """End the attempt where that is due, else alert once for each kind of hang."""
    hang, earlier = event.hang, state.attempt.hang
    if event.acting:  # its look, and the hang in its status: another node speaks for all
        state = state.with_attempt(hang_suspected=False, hang=hang)
        return state, (KeepLook(state.attempt.number, 0),)
    if hang.kind is HangKind.EXIT or (hang.at_exit and _is_saved(state, hang)):
        return _behind_the_end(state, event)
    goes_on = why_it_goes_on(state, hang, is_first=earlier is None)
    state = state.with_attempt(hang_suspected=False, hang=hang)
    if not goes_on:
        fact = replace(hang.evidence(event.t), claim=Claim(Cause.HANG_NO_ERROR, SURE, transient=True))
        state = state.with_attempt(ended_for=(fact,))
        state, actions = teardown.stop_attempt(state, event.t, hang.text)
        return state, (KeepLook(state.attempt.number, state.incidents), *actions)
    if earlier is not None and (earlier.kind, earlier.slow) == (hang.kind, hang.slow):
        return state, ()
    text = f"no progress for {hang.still_s:.0f} s: {hang.text}; the job continues: {goes_on}{_reason(hang)}{_remedy(hang)}{_devices(hang)}"
    return state, (KeepLook(state.attempt.number, 0), _alert(state, hang, text))


def _alert(state: JobState, hang: Hang, text: str) -> Alert:
    return Alert("hang", state.attempt.number, text, culprit=(_only(hang.ranks), hang.node), code=hang.code)


def _reason(hang: Hang) -> str:
    """Return what in the script explains it."""
    return f"; {hang.reason}" if hang.reason else ""


def _devices(hang: Hang) -> str:
    """Return what the GPUs of the ranks do: it proves nothing, and a person may know its meaning."""
    return f"; {hang.devices}" if hang.devices else ""


def _remedy(hang: Hang) -> str:
    """Return what ends the wait for a file that nobody is left to remove; "" without one."""
    return f"; the wait ends once the file is gone: rm {quoted(hang.left_file)}" if hang.left_file else ""


def _is_saved(state: JobState, hang: Hang) -> bool:
    """Whether a verified checkpoint holds all that was trained: of the step at which the ranks stand, or the last one that they saved."""
    if hang.end_step is not None:
        return rank_endings.is_held(hang.end_step, state.run.verified)
    newest, progress = state.run.newest, state.attempt.progress
    return newest is not None and newest.step is not None and newest.step == state.attempt.saved_steps.highest and not progress.relative


def _behind_the_end(state: JobState, event: HangConfirmed) -> Step:
    """Report ranks that stand past the end of their training (EndKind.LATE); with --on-hang restart end them, as an incident of its own.

    Scripts that are over are reported at once, since a thread of theirs may be uploading. An end that only the declared number of steps
    shows is reported once nothing of any rank has worked for this long that nothing more can be expected.
    """
    hang, number, earlier = event.hang, state.attempt.number, state.attempt.hang
    is_first = earlier is None or earlier.kind is not HangKind.EXIT
    state = state.with_attempt(hang_suspected=False, hang=hang)
    text, look = _end_text(state, hang), KeepLook(number, 0)
    if not hang.over:
        reports = hang.kind is HangKind.EXIT and is_first
        works = f"{hang.working}, so it continues; " if hang.working else ""
        then = f"{works}--on-hang restart ends it once nothing of it has worked for 10 minutes"
        return state, (look, _alert(state, hang, f"{text}; {then}{_devices(hang)}")) if reports else (look,)
    if state.run.policy.on_hang != "restart":
        then = "nothing of it has worked for 10 minutes; --on-hang restart ends it, and trains nothing again"
        return state, () if earlier is not None and earlier.over else (look, _alert(state, hang, f"{text}; {then}{_devices(hang)}"))
    fact = Evidence(
        "hang", "at_exit", text, _only(hang.ranks), event.t, node=hang.node, claim=Claim(Cause.EXIT_STUCK, SURE, transient=False)
    )
    state = state.with_attempt(ended_for=(fact,))
    state, actions = teardown.stop_attempt(state, event.t, text)
    message = PrintMessage("warning", f"{text}; it is ended, and nothing is trained again")  # no card is printed where the code is 0
    return state, (KeepLook(number, state.incidents), message, *actions)


def _end_text(state: JobState, hang: Hang) -> str:
    """Return that the training was over, and the ranks at their exit, with their place."""
    step = hang.end_step
    if step is None and not (state.attempt.progress.relative and state.attempt.resume is not None):
        step = state.attempt.progress.step
    at = "" if step is None else f" at step {step}"
    return f"the training was over{at}; {hang.at_exit or hang.text}, for {hang.still_s:.0f} s"


def _only(ranks: tuple[int, ...]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None


def why_it_goes_on(state: JobState, hang: Hang, *, is_first: bool) -> str:
    """Return why the attempt is not ended for this hang, "" if it is. is_first: the attempt has no earlier one that still holds."""
    reason = _reason_to_go_on(state, hang, is_first=is_first)
    return _LOCKED if reason and hang.kind is HangKind.LOCK else reason


def _reason_to_go_on(state: JobState, hang: Hang, *, is_first: bool) -> str:
    policy = state.run.policy
    if hang.slow or policy.on_hang == "restart":
        return _SLOW if hang.slow else ""
    if policy.on_hang == "warn" or (not policy.on_hang and state.gpus):
        source = "" if policy.on_hang else ", the default where GPUs are visible"
        return f"--on-hang warn{source}; --on-hang auto ends what cannot continue by itself, --on-hang restart every hang"
    if hang.kind in _FOR_EVER:
        is_guess = is_first and not hang.calibrated
        return f"fewer than {CALIBRATION_STEPS} steps were seen, so the first sign is only reported" if is_guess else ""
    if state.gpus or hang.group_timeout_s is None:
        may = "where GPUs are visible --on-hang auto ends only what cannot continue by itself" if state.gpus else "it may end by itself"
        return f"{may}; --on-hang restart ends every hang"
    if hang.still_s > hang.group_timeout_s + TORCH_ACTS_S:
        return ""
    return f"torch's own timeout is {hang.group_timeout_s:.0f} s, and supervise ends what outlasts it; --on-hang restart ends every hang"


def on_hang_cleared(state: JobState, event: HangCleared) -> Step:
    """Report that a reported hang is over."""
    was_reported = state.attempt.hang is not None
    state = state.with_attempt(hang_suspected=False, hang=None)
    text = f"the job continues after {event.still_s:.0f} s without progress: {event.text}"
    return state, (PrintMessage("info", text),) if was_reported else ()


def on_stacks_requested(state: JobState, _event: StacksRequested) -> Step:
    """Have the stacks of the ranks written, and continue."""
    return state, (DumpStacks(state.attempt.number),)
