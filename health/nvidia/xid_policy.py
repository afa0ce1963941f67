"""The one judge of Xids and SXids: severity, repair, and whether the GPU may be used again.

The rules, in this order: registers that need no action; an echo of another event; the driver's announcement (Xid 154); the catalogue's
immediate action; then the history: five times on one GPU, repeated on one GPU only, or spread over several.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from health.model import Repair, Severity
from health.nvidia import sxids, xid_history, xid_registers, xids
from health.nvidia.xid_history import Recurrence, XidEvent
from health.nvidia.xid_registers import RegisterVerdict
from health.nvidia.xids import Action, Retry, XidOrigin

if TYPE_CHECKING:
    from health.nvidia.xids import Xid

_SEVERITIES: Final = {
    Action.IGNORE: Severity.INFO,
    Action.RESTART: Severity.ERROR,
    Action.RESET: Severity.CRITICAL,
    Action.REBOOT: Severity.CRITICAL,
    Action.DRAIN: Severity.CRITICAL,
}
_ANNOUNCES: Final = 154
_REMAPPED: Final = 63


@dataclass(frozen=True, slots=True)
class XidJudgement:
    """The judgement of one event. origin: app, hardware, fabric, driver or either."""

    severity: Severity
    repair: Repair
    meaning: str
    reason: str = ""
    same_gpu: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Around:
    """Other events near an Xid. past: this code within 24 h. before: the event that it follows, if any. announced: by an Xid 154."""

    past: Recurrence
    before: XidEvent | None = None
    announced: Repair | None = None
    previous: str = ""  # "caused by previous Xid N"


def judge(code: int, rest: str, around: Around) -> XidJudgement:
    """Return the judgement of an Xid. rest: the line after its number."""
    entry = xids.lookup(code)
    if entry is None:
        return _unlisted(code, around)
    base = _by_catalogue(entry)
    decoded = xid_registers.decode(code, rest)
    if code == _ANNOUNCES:
        return _announcement(base, decoded)
    if entry.echo or code in xid_history.DETAIL_OF:
        return _echo(entry, base, around)
    if decoded is not None:
        base = _by_registers(base, decoded, around)
        if decoded.verdict in {RegisterVerdict.IGNORE, RegisterVerdict.ECHO} and base.severity is Severity.INFO:
            return base
    return _with_memory(entry, base, around)


def _unlisted(code: int, around: Around) -> XidJudgement:
    repair = Repair.RESET_GPU if around.announced is None else around.announced
    severity = Severity.INFO if repair is Repair.NONE else Severity.CRITICAL
    reason = "as the driver announced" if around.announced is not None else "a reset is the safe answer"
    return XidJudgement(severity, repair, f"Xid {code} is newer than this table", reason, Retry.AFTER_RESET.value, XidOrigin.EITHER.value)


def _by_catalogue(entry: Xid) -> XidJudgement:
    severity = _SEVERITIES[entry.action]
    if entry.action is Action.IGNORE and not entry.echo and entry.origin in {XidOrigin.HARDWARE, XidOrigin.FABRIC}:
        severity = Severity.WARNING
    reason = "have the GPU reset when the job is started again" if entry.code == _REMAPPED else ""
    if entry.code in xids.UNUSED:
        reason = "not raised by A100 and newer GPUs: ask the vendor's support"
    return XidJudgement(
        severity, xids.REPAIRS[entry.action], f"{entry.name}: {entry.meaning}", reason, entry.retry.value, entry.origin.value
    )


def _announcement(base: XidJudgement, decoded: xid_registers.Decoded | None) -> XidJudgement:
    if decoded is None:
        return replace(base, reason="`nvidia-smi -q` shows which")
    severity = Severity.INFO if decoded.repair is Repair.NONE else Severity.CRITICAL
    retry = Retry.YES if decoded.repair is Repair.NONE else Retry.AFTER_RESET
    return replace(base, severity=severity, repair=decoded.repair, reason=decoded.reason, same_gpu=retry.value)


def _echo(entry: Xid, base: XidJudgement, around: Around) -> XidJudgement:
    """Judge a code that follows another event. If that event is known, it is the one to act on."""
    follows = around.previous or (str(around.before.code) if around.before is not None else "")
    if follows:
        return replace(base, severity=Severity.INFO, repair=Repair.NONE, reason=f"follows Xid {follows}: act on that one")
    return replace(base, reason="follows an event that this log does not show") if entry.echo and entry.action is Action.IGNORE else base


def _by_registers(base: XidJudgement, decoded: xid_registers.Decoded, around: Around) -> XidJudgement:
    verdict, reason = decoded.verdict, decoded.reason
    if verdict is RegisterVerdict.IGNORE or (verdict is RegisterVerdict.ECHO and around.before is not None):
        return replace(base, severity=Severity.INFO, repair=Repair.NONE, reason=reason, same_gpu=Retry.YES.value)
    if verdict is RegisterVerdict.FOLLOW or (not decoded.known and around.announced is not None):
        if around.announced is not None:
            severity = Severity.INFO if around.announced is Repair.NONE else Severity.CRITICAL
            return replace(base, severity=severity, repair=around.announced, reason=f"{reason}; the driver announced it")
        return replace(base, severity=Severity.ERROR, repair=Repair.RESTART_JOB, reason=reason, same_gpu=Retry.YES.value)
    if verdict is RegisterVerdict.RESET:
        return replace(base, severity=Severity.CRITICAL, repair=Repair.RESET_GPU, reason=reason)
    return replace(base, reason=reason)


def _with_memory(entry: Xid, base: XidJudgement, around: Around) -> XidJudgement:
    past = around.past
    if base.repair is Repair.NONE:
        return base
    if entry.origin is not XidOrigin.APP and past.same >= xid_history.FIVE and past.gpus == 1:
        reason = f"{past.same} times within 24 h on this GPU: it is to be replaced"
        return replace(
            base, severity=Severity.CRITICAL, repair=Repair.REPLACE, reason=reason, same_gpu=Retry.NO.value, origin=XidOrigin.HARDWARE.value
        )
    if entry.may_be_program and past.gpus > 1:
        return replace(base, reason=f"on {past.gpus} GPUs within 24 h: the application is suspected", origin=XidOrigin.APP.value)
    if is_repeated(entry, past):
        reason = f"{past.place} times within 24 h on this GPU and on no other: its hardware is suspected, run `dcgmi diag -r 3`"
        return replace(
            base, severity=Severity.CRITICAL, repair=Repair.DRAIN, reason=reason, same_gpu=Retry.NO.value, origin=XidOrigin.HARDWARE.value
        )
    return base


def is_repeated(entry: Xid, past: Recurrence) -> bool:
    """Whether a code that a program can cause came again in the same place of one GPU, which makes the hardware the suspect."""
    return entry.may_be_program and past.gpus == 1 and past.place >= xid_history.REPEATED


def judge_number(code: int) -> XidJudgement:
    """Return the judgement of an Xid by its number alone, as NVML reports it."""
    return judge(code, "", Around(Recurrence(same=1, gpus=1, place=1)))


def judge_switch(code: int, severity_word: str, rest: str) -> XidJudgement:
    """Return the judgement of an SXid. severity_word: `Fatal`, `Non-fatal` or "" in the line. rest: its text, for unlisted codes."""
    entry = sxids.lookup(code)
    meaning = entry.name if entry is not None else rest.strip(" ,") or f"SXid {code}"
    fatal = entry.fatal if entry is not None else sxids.Fatal.MAY_BE
    if severity_word == "Fatal" or (not severity_word and fatal is sxids.Fatal.ALWAYS):
        return XidJudgement(
            Severity.CRITICAL,
            Repair.REBOOT,
            meaning,
            "the fabric has to be reset, and all GPUs with it",
            Retry.AFTER_RESET.value,
            XidOrigin.FABRIC.value,
        )
    if severity_word == "Non-fatal" or fatal is sxids.Fatal.NEVER:
        severity = Severity.INFO if entry is not None and not entry.reboot and fatal is sxids.Fatal.NEVER else Severity.WARNING
        return XidJudgement(severity, Repair.NONE, meaning, "", Retry.YES.value, XidOrigin.FABRIC.value)
    reboot = entry is None or entry.reboot
    return XidJudgement(
        Severity.ERROR if reboot else Severity.WARNING,
        Repair.REBOOT if reboot else Repair.NONE,
        meaning,
        "fatal on a trunk port, or for one GPU on an access port",
        Retry.AFTER_RESET.value,
        XidOrigin.FABRIC.value,
    )
