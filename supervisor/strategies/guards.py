"""Steps that end a run before anything else is tried: caps, recurrence, preemption, and failures that a restart would meet again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.remedies import remedy
from supervisor.core import budget
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.failure.rank_endings import ended_text
from supervisor.core.model import Cause, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.strategies import plans
from supervisor.strategies.consent import STOP_FLOOR, is_sure, may_stop
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.repetition import restart_within_budget
from supervisor.strategies.situation import exit_code_after, exit_code_of

if TYPE_CHECKING:
    from supervisor.core.model import Failure
    from supervisor.strategies.situation import Situation

#: The step for a program that trained before and cannot be started now. Failures that it answered are charged to no budget.
START_AGAIN = "start_again"
#: From the first such failure to the stop: a file server is back by then, or a person must look.
STARTS_AGAIN_FOR_S = 1800.0
#: The longest pause before the next start.
LONGEST_PAUSE_S = 300.0
#: After so many requeues in a row without a step the run ends for good.
MOST_VAIN_REQUEUES = 3
#: Exceptions of a program that cannot import or read something, where its cause does not say so: those of Python, and those of the
#: libraries that fetch and read data.
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


@ladder_step("stop: torchrun's --max-restarts or restart.max_attempts is used up")
def within_cap(situation: Situation) -> Plan | None:
    """Stop if torchrun's --max-restarts (the rank's own code) or restart.max_attempts (the code of a spent budget) are used up.

    Both count charged failures alone, with progress since or without. Once one is used up, the next failure ends the run, whatever it is.
    """
    policy, cap = situation.policy, situation.policy.max_restarts
    if cap is not None and situation.charged >= cap:
        return plans.stop(
            "within_cap",
            exit_code_of(situation.first),
            f"--max-restarts={cap} is used up",
            "raise --max-restarts, or leave it out to let the failure budget decide",
        )
    capped = policy.restart.max_attempts > 0 and situation.charged >= policy.restart.max_attempts - 1
    if capped or not policy.restart.intensity:
        code, why = exit_code_after(situation, situation.failures[-policy.recurring_alert :])
        spent = f"restart.max_attempts = {policy.restart.max_attempts} is used up"
        return plans.stop(
            "within_cap",
            code,
            (spent if policy.restart.intensity else "restart.intensity = 0 allows no restart") + (f": {why}" if why else ""),
            remedy(situation.verdict),
        )
    return None


@ladder_step("stop at the tenth equal failure (65), or tenth of the infrastructure in a day (75), without progress")
def recurring(situation: Situation) -> Plan | None:
    """Stop without progress: with 65 at the `recurring_stop`-th equal failure, with 75 at as many of the infrastructure in a day.

    It is for failures that come so slowly that the budget's period never holds enough of them. Those of the infrastructure count together.
    Progress clears both: a link that flaps, or a host that kills, once a day for a year is a reason to have a supervisor. A failure that
    a change of the job answered does not count, because the next attempt was a different one. The core alerts at the third equal failure.
    """
    policy, verdict = situation.policy, situation.verdict
    if budget.family(verdict.cause) == "infrastructure":
        reason = budget.balance(situation.failures, verdict.cause, situation.t, policy).refusal
        next_ladder_step, code = f"{remedy(situation.verdict)}; where a scheduler requeues the job, that start continues with this run", 75
    else:
        count = len(budget.equal(situation.failures, verdict.fingerprint, situation.t)) + 1
        reason = f"failed {count} times in the same way without progress" if count >= policy.recurring_stop else ""
        next_ladder_step, code = remedy(situation.verdict), 65
    return plans.stop("recurring", code, reason, next_ladder_step) if reason else None


@ladder_step("leave with 75: the scheduler brings the job back; where mere words say so, restart")
def requeue(situation: Situation) -> Plan:
    """Stop with 75: the environment takes the machine away, and the scheduler brings the job back."""
    if not may_stop(situation.verdict):
        return _restart_after_words("requeue", situation)
    return plans.stop(
        "requeue", 75, f"{situation.verdict.summary}: the machine is being taken away", "wait for the scheduler, which starts it again"
    )


def _restart_after_words(strategy: str, situation: Situation) -> Plan:
    """Restart where mere words say that somebody ended the job: a stop would change it on their word."""
    plan = within_cap(situation) or recurring(situation) or restart_within_budget(situation)
    return replace(plan, strategy=strategy) if plan.kind is PlanKind.RESTART else plan


@ladder_step("leave with 130: a person stopped it, and it is never requeued; where mere words say so, restart")
def interrupted(situation: Situation) -> Plan:
    """Stop with 130: a person ended the job, and nobody starts again what a person ended."""
    if not may_stop(situation.verdict):
        return _restart_after_words("interrupted", situation)
    return plans.stop("interrupted", 130, f"{situation.verdict.summary}: a person stopped it", "start it again when it should continue")


@ladder_step("start again for 30 minutes if the same program trained before and cannot read something now; then 75", tried="another start")
def start_again(situation: Situation) -> Plan | None:
    """Start again where the same program trained before, and now cannot import or read its data: a file system that does not answer.

    The pause grows, for 30 minutes from the first such failure. Then it stops with 75, because another node may read what this one
    cannot. A third requeue that leads to no step ends with 65. A program that never trained, or was changed since, is not started
    again by this. Nor is what an attempt that trained to this step missed, too: it may be the end of the program, where the same file is
    read again.
    """
    if not situation.trained or not reads_what_is_missing(situation) or _repeated_behind_the_last_step(situation):
        return None
    waited_s = situation.t - situation.in_vain[0].t if situation.in_vain else 0.0
    missing = "what this program imports or reads is missing, and was there when it trained"
    if waited_s >= STARTS_AGAIN_FOR_S:
        over = situation.vain_requeues >= MOST_VAIN_REQUEUES
        tries = f"{len(situation.in_vain)} more starts in {waited_s / 60:.0f} min led to no step"
        return plans.stop(
            START_AGAIN,
            65 if over else 75,
            f"{missing}: {tries}" + (f", and neither did the {situation.vain_requeues} requeues before" if over else ""),
            remedy(situation.verdict) if over else "wait for the scheduler, which starts it again",
            charged=False,
        )
    pause_s = plans.wait_s(situation, len(situation.in_vain), LONGEST_PAUSE_S)
    pause_s = min(pause_s, STARTS_AGAIN_FOR_S - waited_s)
    return plans.restart(START_AGAIN, f"{missing}: start again in {pause_s:.0f} s", delay_s=pause_s, charged=False)


def _repeated_behind_the_last_step(situation: Situation) -> list[Failure]:
    """Return the failures after steps that this attempt repeats, if it began at the last step of the run: its script had nothing to train.

    A fingerprint ends with the phase, and that is another one after the last step than before the first.
    """
    here = situation.verdict.fingerprint.rpartition(":")[0]
    alike = [f for f in situation.failures if f.fingerprint.rpartition(":")[0] == here and not f.before_first_step]
    return alike if situation.ending.at_last_step else []


def reads_what_is_missing(situation: Situation) -> bool:
    """Whether an import or a read of data failed, and not the program's own arithmetic: KeyError, say, comes again."""
    return CAUSE_TABLE[situation.verdict.cause].of_reads or situation.fact("exception") in _READ_ERRORS


def started_in_vain(failures: tuple[Failure, ...], trained_in: int) -> bool:
    """Whether the last failure was answered by another start, and no step was made since."""
    return bool(failures) and failures[-1].ladder_step == START_AGAIN and failures[-1].attempt > trained_in


@ladder_step("stop with the rank's own code if no step was made, and the cause is sure and stays, or came again")
def own_code_before_first_step(situation: Situation) -> Plan | None:
    """Stop with the rank's own code if the failure is proven to come before the first training step, and a restart cannot mend it.

    A typo in an import is reported in seconds and costs no restart, which is what a person at a terminal expects. A cause that is not sure,
    or may pass, gets one restart: it costs a minute, and a wrong stop costs the night. An unknown phase proves nothing.
    """
    verdict, ending = situation.verdict, situation.ending
    if not situation.before_first_step:
        return None
    lasts = verdict.confidence >= STOP_FLOOR and not verdict.transient
    alike = [f for f in situation.unanswered if f.before_first_step and f.fingerprint == verdict.fingerprint and not f.changed]
    alike = alike or _repeated_behind_the_last_step(situation)
    if not lasts and not alike:
        return None
    # nobody came to an end, so it may also be what comes before the first step that failed
    over = f" (it began at the last step of this run; if none was left, {ended_text(ending.step, situation.verified)})"
    return plans.stop(
        "own_code_before_first_step",
        exit_code_of(situation.first),
        f"it failed before its first step{over if ending.at_last_step else ''}"
        + (": the same error would come again" if lasts else f", as attempt {alike[-1].attempt} did"),
        remedy(verdict),
    )


@ladder_step("stop with 75 when a run's start failed three times")
def start_tries(situation: Situation) -> Plan | None:
    """Stop with 75 once `start_tries` restarts did not lead to a first step: another machine or another hour may do."""
    if not situation.before_first_step:
        return None
    if not all(f.before_first_step for f in situation.failures):
        return None  # the run has made steps: the obstacle to the next one is an outage, not a start
    current = budget.family(situation.verdict.cause)
    tries = sum(1 for f in situation.failures if budget.family(f.cause) == current)
    if tries < situation.policy.start_tries:
        return None
    return plans.stop(
        "start_tries",
        75,
        f"{tries} restarts did not lead to a first training step: it does not start on this machine now",
        "wait for the scheduler, which starts it again",
    )


@ladder_step("stop: this node's driver, or a GPU out of use (69), or the set-up (78) does not fit")
def environment_at_fault(situation: Situation) -> Plan | None:
    """Stop if driver, CUDA, NCCL and devices do not fit together: 69 for this node's driver, 78 for the set-up of the job.

    The cause must be sure and the job cannot have started, or a restart must have met the same already.
    """
    verdict = situation.verdict
    certain = situation.before_first_step and is_sure(verdict.cause, verdict.confidence) and not verdict.transient
    if not certain and not situation.unanswered:
        return None
    driver = verdict.cause is Cause.GPU_DRIVER
    out = [gpu for gpu in situation.gpus if gpu.quarantined] if verdict.cause is Cause.DEVICE_ORDINAL else []
    if out:  # our own doing: the ranks do not see them
        names = ", ".join(f"GPU {gpu.index} ({gpu.uuid}): {gpu.quarantined}" for gpu in out)
        reason = f"supervise keeps {names} out of use, so that the ranks see fewer GPUs than they take: {verdict.summary}"
        hint = f"use another node, or `{situation.policy.clears} {out[0].uuid}` where that GPU is well again"
    else:
        reason, hint = f"{'this node' if driver else 'the set-up'} does not fit: {verdict.summary}", remedy(verdict)
    return plans.stop("environment_at_fault", 69 if driver or out else 78, reason, hint)


@ladder_step("stop (65): worker.agree left out more batches than guard.skips allows")
def batches_left_out(situation: Situation) -> Plan | None:
    """Stop where the script left out more batches than guard.skips allows: a restart would leave them out again."""
    if not situation.fact("left_out"):
        return None
    return plans.stop(
        "batches_left_out",
        65,
        f"more batches are bad than guard.skips allows: {situation.verdict.summary}",
        remedy(situation.verdict),
    )
