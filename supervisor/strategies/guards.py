"""Rungs that end a run before anything else is tried: caps, recurrence, preemption, and failures that a restart would meet again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.remedies import before_the_next_start
from supervisor.core import budget
from supervisor.core.ending import ended_text
from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.strategies.consent import SURE
from supervisor.strategies.rung import Rung
from supervisor.strategies.situation import exit_code_after, exit_code_of

if TYPE_CHECKING:
    from supervisor.core.model import Failure
    from supervisor.strategies.situation import Situation

#: The rung for a program that trained before and cannot be started now. Failures that it answered are charged to no budget.
START_AGAIN = "start_again"
#: From the first such failure to the stop: a file server is back by then, or a person must look.
STARTS_AGAIN_FOR_S = 1800.0
#: The pause before the next start; it doubles from the one to the other.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 300.0
#: After so many requeues in a row without a step the run ends for good.
MOST_VAIN_REQUEUES = 3
#: Causes of a program that cannot import, or whose data cannot be read.
_OF_READS = frozenset({Cause.DEPENDENCY, Cause.DATA_ERROR})
#: Exceptions of the same, where nothing says more: those of Python, and those of the libraries that fetch and read data.
_READ_ERRORS = frozenset(
    {
        *("OSError", "IOError", "FileNotFoundError", "PermissionError", "NotADirectoryError", "IsADirectoryError", "FileExistsError"),
        *("TimeoutError", "InterruptedError", "BlockingIOError", "BrokenPipeError", "ConnectionError", "ConnectionResetError"),
        *("ConnectionRefusedError", "ConnectionAbortedError", "ImportError", "ModuleNotFoundError", "EOFError"),
        *("JSONDecodeError", "UnpicklingError", "BadZipFile", "BadGzipFile", "gaierror", "SSLError", "URLError", "HTTPError"),
        *("ConnectTimeout", "ReadTimeout", "MaxRetryError", "ChunkedEncodingError", "RemoteDisconnected", "IncompleteRead"),
        *("EndpointConnectionError", "ClientError", "HfHubHTTPError", "LocalEntryNotFoundError", "DatasetNotFoundError"),
        *("DataFilesNotFoundError", "DatasetGenerationError", "ArrowInvalid", "SafetensorError"),
    }
)


def within_cap(situation: Situation) -> Plan | None:
    """Stop if torchrun's --max-restarts (the rank's own code) or restart.max_attempts (the code of a spent budget) are used up.

    Both count charged failures alone, with progress since or without. Once one is used up, the next failure ends the run, whatever it is.
    """
    policy, cap = situation.policy, situation.policy.max_restarts
    if cap is not None and situation.charged >= cap:
        return Plan(
            kind=PlanKind.STOP,
            reason=f"--max-restarts={cap} is used up",
            next_rung="raise --max-restarts, or leave it out to let the failure budget decide",
            strategy="within_cap",
            exit_code=exit_code_of(situation.first),
        )
    capped = policy.restart.max_attempts > 0 and situation.charged >= policy.restart.max_attempts - 1
    if capped or not policy.restart.intensity:
        code, why = exit_code_after(situation, situation.failures[-policy.recurring_alert :])
        spent = f"restart.max_attempts = {policy.restart.max_attempts} is used up"
        return Plan(
            kind=PlanKind.STOP,
            reason=(spent if policy.restart.intensity else "restart.intensity = 0 allows no restart") + (f": {why}" if why else ""),
            next_rung=before_the_next_start(situation.verdict),
            strategy="within_cap",
            exit_code=code,
        )
    return None


def recurring(situation: Situation) -> Plan | None:
    """Stop without progress: with 65 at the `recurring_stop`-th equal failure, with 75 at as many of the infrastructure in a day.

    It is for failures that come so slowly that the budget's period never holds enough of them. Those of the infrastructure count together.
    Progress clears both: a link that flaps, or a host that kills, once a day for a year is a reason to have a supervisor. A failure that
    a change of the job answered does not count, because the next attempt was a different one. The core alerts at the third equal failure.
    """
    policy, verdict = situation.policy, situation.verdict
    if budget.family(verdict.cause) == "infrastructure":
        reason = budget.balance(situation.failures, verdict.cause, situation.t, policy).refusal
        next_rung, code = f"{before_the_next_start(situation.verdict)}, or the scheduler's requeue continues this run", 75
    else:
        count = len(budget.equal(situation.failures, verdict.fingerprint, situation.t)) + 1
        reason = f"failed {count} times in the same way without progress" if count >= policy.recurring_stop else ""
        next_rung, code = before_the_next_start(situation.verdict), 65
    return Plan(kind=PlanKind.STOP, reason=reason, next_rung=next_rung, strategy="recurring", exit_code=code) if reason else None


def requeue(situation: Situation) -> Plan:
    """Stop with 75: the environment takes the machine away, and the scheduler brings the job back."""
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{situation.verdict.summary}: the machine is being taken away",
        next_rung="the scheduler's requeue continues this run",
        strategy="requeue",
        exit_code=75,
    )


def interrupted(situation: Situation) -> Plan:
    """Stop with 130: a person ended the job, and nobody starts again what a person ended."""
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{situation.verdict.summary}: a person stopped it",
        next_rung="start it again where it should go on",
        strategy="interrupted",
        exit_code=130,
    )


def start_again(situation: Situation) -> Plan | None:
    """Start again where the same program trained before, and now cannot import or read its data: a file system that does not answer.

    The pause grows, for 30 minutes from the first such failure. Then it stops with 75, because another node may read what this one
    cannot. A third requeue that leads to no step ends with 65. A program that never trained, or was changed since, stops at once. So does
    what an attempt that trained to this step missed, too: it may be the end of the program, where the same file is read again.
    """
    if not situation.trained or not reads_what_is_missing(situation) or _was_missed_at_the_last_step(situation):
        return None
    waited_s = situation.t - situation.in_vain[0].t if situation.in_vain else 0.0
    missing = "what this program imports or reads is missing, and was there when it trained"
    if waited_s >= STARTS_AGAIN_FOR_S:
        over = situation.vain_requeues >= MOST_VAIN_REQUEUES
        tries = f"{len(situation.in_vain)} more starts in {waited_s / 60:.0f} min led to no step"
        return Plan(
            kind=PlanKind.STOP,
            reason=f"{missing}: {tries}" + (f", and neither did the {situation.vain_requeues} requeues before" if over else ""),
            next_rung=before_the_next_start(situation.verdict) if over else "the scheduler's requeue continues this run",
            strategy=START_AGAIN,
            exit_code=65 if over else 75,
            charged=False,
        )
    # half of it fixed, half of it jitter: never at once, and not all jobs of a cluster in the same second
    pause_s = min(FIRST_PAUSE_S * 2 ** min(len(situation.in_vain), 10), LONGEST_PAUSE_S) * (0.5 + 0.5 * situation.jitter)
    pause_s = min(pause_s, STARTS_AGAIN_FOR_S - waited_s)
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"{missing}: start again in {pause_s:.0f} s",
        next_rung="a longer wait",
        strategy=START_AGAIN,
        delay_s=pause_s,
        charged=False,
    )


def _was_missed_at_the_last_step(situation: Situation) -> bool:
    """Whether the attempt began where the one before came to, and that failed in the same way after its steps.

    A fingerprint ends with the phase, and that is another one behind the last step than before the first.
    """
    here = situation.verdict.fingerprint.rpartition(":")[0]
    alike = (f for f in situation.failures if f.fingerprint.rpartition(":")[0] == here)
    return situation.ending.at_last_step and any(not f.before_first_step for f in alike)


def reads_what_is_missing(situation: Situation) -> bool:
    """Whether an import or a read of data failed, and not the program's own arithmetic: KeyError, say, comes again."""
    return situation.verdict.cause in _OF_READS or situation.fact("exception") in _READ_ERRORS


def started_in_vain(failures: tuple[Failure, ...], trained_in: int) -> bool:
    """Whether the last failure was answered by another start, and no step was made since."""
    return bool(failures) and failures[-1].rung == START_AGAIN and failures[-1].attempt > trained_in


def own_code_before_first_step(situation: Situation) -> Plan | None:
    """Stop with the rank's own code if the failure is proven to come before the first training step.

    A typo in an import is reported in seconds and costs no restart, which is what a person at a terminal expects. An unknown phase proves
    nothing (docs/explanation/design.md section 4). A transient failure stops too, but the plan does not claim that a restart would meet it
    again.
    """
    if not situation.before_first_step:
        return None
    transient, ending = situation.verdict.transient, situation.ending
    # nobody came to an end, so it may also be what comes before the first step that failed
    over = f" (it began at the last step of this run; if none was left, {ended_text(ending.step, situation.verified)})"
    return Plan(
        kind=PlanKind.STOP,
        reason=f"it failed before its first training step{over if ending.at_last_step else ''}: "
        + ("no restart is made there, though another try may help" if transient else "a restart would meet the same"),
        next_rung="start again once it has passed" if transient else before_the_next_start(situation.verdict),
        strategy="own_code_before_first_step",
        exit_code=exit_code_of(situation.first),
    )


def start_tries(situation: Situation) -> Plan | None:
    """Stop with 75 once `start_tries` restarts did not lead to a first step: another machine or another hour may do."""
    if not situation.before_first_step:
        return None
    if not all(f.before_first_step for f in situation.failures):
        return None  # the run has made steps: what is between it and the next one is an outage, not a start
    current = budget.family(situation.verdict.cause)
    tries = sum(1 for f in situation.failures if budget.family(f.cause) == current)
    if tries < situation.policy.start_tries:
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"{tries} restarts did not lead to a first training step: it does not start on this machine now",
        next_rung="the scheduler's requeue continues this run",
        strategy="start_tries",
        exit_code=75,
    )


def environment_at_fault(situation: Situation) -> Plan | None:
    """Stop if driver, CUDA, NCCL and devices do not fit together: 69 for this node's driver, 78 for the set-up of the job.

    The cause must be sure and the job cannot have started, or a restart must have met the same already.
    """
    verdict = situation.verdict
    certain = situation.before_first_step and verdict.confidence >= SURE and not verdict.transient
    if not certain and not situation.unanswered:
        return None
    driver = verdict.cause is Cause.GPU_DRIVER
    out = [gpu for gpu in situation.gpus if gpu.quarantined] if verdict.cause is Cause.DEVICE_ORDINAL else []
    if out:  # our own doing: the ranks do not see them
        names = ", ".join(f"GPU {gpu.index} ({gpu.uuid}): {gpu.quarantined}" for gpu in out)
        reason = f"supervise keeps {names} out of use, so that the ranks see fewer GPUs than they take: {verdict.summary}"
        hint = f"use another node, or `{situation.policy.clears} {out[0].uuid}` where that GPU is well again"
    else:
        reason, hint = f"{'this node' if driver else 'the set-up'} does not fit: {verdict.summary}", before_the_next_start(verdict)
    return Plan(
        kind=PlanKind.STOP,
        reason=reason,
        next_rung=hint,
        strategy="environment_at_fault",
        exit_code=69 if driver or out else 78,
    )


def batches_left_out(situation: Situation) -> Plan | None:
    """Stop where the script left out more batches than guard.skips allows: a restart would leave them out again."""
    if not situation.fact("left_out"):
        return None
    return Plan(
        kind=PlanKind.STOP,
        reason=f"more batches are bad than guard.skips allows: {situation.verdict.summary}",
        next_rung=before_the_next_start(situation.verdict),
        strategy="batches_left_out",
        exit_code=65,
    )


RUNGS = (
    Rung("within_cap", within_cap, "stop: torchrun's --max-restarts or restart.max_attempts is used up"),
    Rung("recurring", recurring, "stop at the tenth equal failure (65), or tenth of the infrastructure in a day (75), without progress"),
    Rung(START_AGAIN, start_again, "start again for 30 minutes if the same program trained before and cannot read something now; then 75"),
    Rung("requeue", requeue, "leave with 75: the scheduler brings the job back"),
    Rung("interrupted", interrupted, "leave with 130: a person stopped it, and it is never requeued"),
    Rung("own_code_before_first_step", own_code_before_first_step, "stop with the rank's own code if no step was made"),
    Rung("batches_left_out", batches_left_out, "stop (65): worker.agree left out more batches than guard.skips allows"),
    Rung("start_tries", start_tries, "stop with 75 when a run's start failed three times"),
    Rung(
        "environment_at_fault",
        environment_at_fault,
        "stop: this node's driver, or a GPU out of use (69), or the set-up (78) does not fit",
    ),
)
