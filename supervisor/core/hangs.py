"""The ranks stand still: warn, or end the attempt (--on-hang). docs/explanation/hangs.md has the reasons.

A suspicion alone decides nothing: it is recorded and logged. Once two looks agree, `auto` ends only what cannot go on by itself. `warn`
ends nothing. Ranks whose scripts are over are no hang of the training: `restart` ends them, and the run is done. Of several nodes one acts
for all; the others know of the hang, and raise no alert.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from supervisor.core import failure, sharing
from supervisor.core.actions import SIGTERM, Alert, KeepLook, PrintMessage, StopRanks
from supervisor.core.model import Cause, Claim, HangKind
from supervisor.core.numeric import rank_list
from supervisor.core.state import JobState, Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.events import HangCleared, HangConfirmed, HangSuspected
    from supervisor.core.model import Hang
    from supervisor.core.state import Step

#: What no rank can end by itself.
_FOR_EVER = frozenset({HangKind.GONE, HangKind.MISMATCH})
_SLOW = "bytes move, so it is slow and not stuck, and a restart would begin it anew"
#: From so many steps on the step times of an attempt show what is long for it; before that a limit is a guess.
CALIBRATION_STEPS = 20
#: Two looks are measured, not guessed.
SURE = 0.95
#: Beyond the process group's own timeout, for torch to act first: its watchdog looks about once a minute.
TORCH_ACTS_S = 90.0


def on_hang_suspected(state: JobState, _event: HangSuspected) -> Step:
    """Go on: the ranks are being examined."""
    return replace(state, attempt=replace(state.attempt, hang_suspected=True)), ()


def on_hang_confirmed(state: JobState, event: HangConfirmed) -> Step:
    """End the attempt where that is due, else alert once for each kind of hang."""
    hang, before = event.hang, state.attempt.hang
    if event.acting:  # its look, and the hang in its status: another node speaks for all
        state = replace(state, attempt=replace(state.attempt, hang_suspected=False, hang=hang))
        return state, (KeepLook(state.attempt.number, 0),)
    if hang.kind is HangKind.EXIT:
        return _late(state, event, is_first=before is None or before.kind is not HangKind.EXIT)
    goes_on = why_it_goes_on(state, hang, is_first=before is None)
    state = replace(state, attempt=replace(state.attempt, hang_suspected=False, hang=hang))
    if not goes_on:
        fact = replace(hang.evidence(event.t), claim=Claim(Cause.HANG_NO_ERROR, SURE, transient=True))
        state = replace(state, attempt=replace(state.attempt, ended_for=(fact,)))
        state, actions = failure.stop_attempt(state, event.t, hang.text)
        return state, (KeepLook(state.attempt.number, state.incidents), *actions)
    if before is not None and (before.kind, before.slow) == (hang.kind, hang.slow):
        return state, ()
    text = f"no progress for {hang.still_s:.0f} s: {hang.text}; the job goes on: {goes_on}{_remedy(hang)}"
    return state, (KeepLook(state.attempt.number, 0), Alert("hang", state.attempt.number, text, culprit=_culprit(hang)))


def _culprit(hang: Hang) -> tuple[int | None, str]:
    return hang.ranks[0] if len(hang.ranks) == 1 else None, hang.node


def _remedy(hang: Hang) -> str:
    """Return what ends the wait for a file that nobody is left to remove; "" without one."""
    return f"; the wait ends once the file is gone: rm {shlex.quote(hang.left_file)}" if hang.left_file else ""


def _late(state: JobState, event: HangConfirmed, *, is_first: bool) -> Step:
    """Report ranks that do not leave though their scripts are over (EndKind.LATE); with --on-hang restart end them: the run is done.

    On several nodes none ends for another: they decide together, and only once all ranks have left.
    """
    hang, number = event.hang, state.attempt.number
    state = replace(state, attempt=replace(state.attempt, hang_suspected=False, hang=hang))
    step = None if state.attempt.progress.relative and state.attempt.resume is not None else state.attempt.progress.step
    at = "" if step is None else f" at step {step}"
    have = "has" if len(hang.ranks) == 1 else "have"
    text = f"training ended{at}; {rank_list(hang.ranks)} {have} not left for {hang.still_s:.0f} s: {hang.text}"
    look = KeepLook(number, 0)
    if state.run.policy.on_hang != "restart" or state.attempt.is_shared:
        alert = Alert("hang", number, f"{text}; --on-hang restart ends it, and counts the run as done", culprit=_culprit(hang))
        return state, (look, alert) if is_first else ()
    state = replace(state, stage=Stage.TEARDOWN, token=state.token + 1, attempt=replace(state.attempt, late=True, over_t=event.t))
    stop = StopRanks(number, SIGTERM, state.run.policy.stop.grace_s, "failure", text)
    alert = Alert("hang", number, f"{text}; it is ended, and the run is done", culprit=_culprit(hang))
    return state, (look, alert, stop, sharing.teardown_timer(state, state.token))


def why_it_goes_on(state: JobState, hang: Hang, *, is_first: bool) -> str:
    """Return why the attempt is not ended for this hang, "" if it is. is_first: the attempt has no earlier one that still holds."""
    policy = state.run.policy
    if hang.slow or policy.on_hang == "restart":
        return _SLOW if hang.slow else ""
    if policy.on_hang == "warn" or (not policy.on_hang and state.gpus):
        source = "" if policy.on_hang else ", the default where GPUs are visible"
        return f"--on-hang warn{source}; --on-hang auto ends what cannot go on by itself, --on-hang restart every hang"
    if hang.kind in _FOR_EVER:
        is_guess = is_first and not hang.calibrated
        return f"fewer than {CALIBRATION_STEPS} steps were seen, so the first sign is only reported" if is_guess else ""
    if hang.group_timeout_s is None:
        return "it may end by itself; --on-hang restart ends every hang"
    if hang.still_s > hang.group_timeout_s + TORCH_ACTS_S:
        return ""
    return f"torch's own timeout is {hang.group_timeout_s:.0f} s, and supervise ends what outlasts it; --on-hang restart ends every hang"


def on_hang_cleared(state: JobState, event: HangCleared) -> Step:
    """Report that a reported hang is over."""
    was_reported = state.attempt.hang is not None
    state = replace(state, attempt=replace(state.attempt, hang_suspected=False, hang=None))
    text = f"the job goes on after {event.still_s:.0f} s without progress: {event.text}"
    return state, (PrintMessage("info", text),) if was_reported else ()
