"""Checks that every GPU is there, answers, and asks for no repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks.gpu import gpus
from health.local_time import stamped
from health.model import HOST, KERNEL, CheckResult, Repair, Result, Severity, check
from health.nvidia import recovery_actions, xid_policy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

_MISMATCH, _NO_LIBRARY, _NOT_LOADED = 18, 12, 9


@check(
    "gpu_driver",
    subject="host",
    needs=("nvml", "pci"),
    reads="NVML's start, the bus",
    failed=(
        "library and module of different versions (blocks); GPUs on the bus and no driver loaded (loaded, and not for this "
        "container: unknown)"
    ),
)
def gpu_driver(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Is there a driver, and does its library work with it? A mismatch (an upgrade without a reboot) fails every CUDA program."""
    reading = now.one("nvml.init")
    there = gpus.bus_gpus(now)
    if reading is None:
        yield CheckResult("gpu_driver", HOST, Result.UNKNOWN, "NVML was not opened")
        return
    if reading.problem:
        result = Result.SKIPPED if there == () else Result.UNKNOWN
        yield CheckResult("gpu_driver", HOST, result, reading.problem, command="pip install nvidia-ml-py")
        return
    init = now.table("nvml.init")
    code, words = init.get("code"), init.get("words")
    driver = now.text("nvml.driver")
    if code == 0:
        yield CheckResult("gpu_driver", HOST, Result.OK, f"driver {driver or 'of unknown version'} answers")
    elif code == _MISMATCH:
        why = "the driver's library and its kernel module are of different versions: an upgrade without a reload of the driver"
        loaded = now.text("driver.loaded")
        evidence = (f"NVML error {code}: {words}", *((f"loaded module: {loaded}",) if loaded else ()))
        reload = "modprobe -r nvidia_uvm nvidia && modprobe nvidia"
        yield CheckResult("gpu_driver", HOST, Result.FAILED, why, evidence, Repair.RESTART_DRIVER, reload, blocks=True)
    elif code in (_NO_LIBRARY, _NOT_LOADED) and not there:
        known = "no NVIDIA GPU is on the bus" if there == () else "no NVIDIA driver"
        yield CheckResult("gpu_driver", HOST, Result.SKIPPED, known)
    elif code == _NOT_LOADED and (loaded := _loaded_driver(now, before)):
        why = f"the driver {loaded} is loaded and may not be used from here: a container that was given no GPU, perhaps"
        yield CheckResult("gpu_driver", HOST, Result.UNKNOWN, why, (f"NVML error {code}: {words}",), look=("ls -l /dev/nvidia*",))
    elif code in (_NO_LIBRARY, _NOT_LOADED):
        count = len(there or ())
        reason = "no driver is loaded" if code == _NOT_LOADED else "its library is not there"
        why = f"{count} GPU{'s are' if count != 1 else ' is'} on the bus, and {reason}"
        result = Result.FAILED if code == _NOT_LOADED else Result.UNKNOWN
        yield CheckResult(
            "gpu_driver",
            HOST,
            result,
            why,
            (f"NVML error {code}: {words}",),
            Repair.RESTART_DRIVER,
            "modprobe nvidia",
            look=("nvidia-smi",),
        )
    else:
        yield CheckResult(
            "gpu_driver", HOST, Result.UNKNOWN, f"NVML could not be opened: {words}", (f"NVML error {code}",), look=("nvidia-smi",)
        )


def _loaded_driver(now: Readings, before: Readings | None) -> str:
    """Return the version of the loaded module, "" for none. While a job runs it is not read again, so the baseline holds."""
    known = now if now.one("driver.loaded") is not None or before is None else before
    return known.text("driver.loaded")


#: By NVML's code: result, words, repair, whether it blocks a start. A GPU off the bus answers its look-up with 999.
_ERRORS_BY_CODE = {
    8: (Result.FAILED, "it has too little power: its cables are not attached well", Repair.DRAIN, True),
    9: (Result.FAILED, "its driver is not loaded any more", Repair.RESTART_DRIVER, True),
    11: (Result.FAILED, "its interrupts do not arrive", Repair.REBOOT, True),
    14: (Result.DEGRADED, "its InfoROM is corrupted: the memory of its faults and settings", Repair.REPLACE, False),
    15: (Result.FAILED, "it is lost: it fell off the bus, or does not answer", Repair.REBOOT, True),
    16: (Result.FAILED, "it must be reset before it can be used", Repair.RESET_GPU, True),
    18: (Result.FAILED, "library and kernel module of the driver are of different versions", Repair.RESTART_DRIVER, True),
    999: (Result.FAILED, "the driver cannot say which GPU it is: it fell off the bus, or its firmware is stuck", Repair.REBOOT, True),
}
#: Worst last.
_GRAVITY = (14, 999, 11, 8, 16, 9, 18, 15)


@check(
    "gpu_errors",
    subject="gpu",
    needs=("nvml",),
    reads="NVML's errors of a GPU",
    degraded="InfoROM corrupted (14)",
    failed=(
        "lost (15), cannot be looked up (999), reset required (16), too little power (8), no interrupts (11), driver gone (9) "
        "or of another version (18): all block. The driver refuses to look it up: unknown"
    ),
)
def gpu_errors(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Does a GPU answer? NVML's own errors are verdicts: lost, reset required, mismatch, corrupted InfoROM."""
    for subject in gpus.subjects(now):
        rows = now.rows("gpu.errors", subject)
        evidence = tuple(f"{row.get('call')}: NVML error {row.get('code')}: {row.get('words')}" for row in rows)
        refused = now.table("gpu.identity", subject).get("refused")
        if not rows and refused:
            yield CheckResult("gpu_errors", subject, Result.UNKNOWN, f"{gpus.label(now, subject)}: access is not permitted: {refused}")
            continue
        if not rows:
            yield CheckResult("gpu_errors", subject, Result.OK, f"{gpus.label(now, subject)} answers")
            continue
        result, words, repair, blocks = Result.UNKNOWN, "one call failed, and the driver gives no reason", Repair.NONE, False
        if codes := gpus.errors(now, subject):
            result, words, repair, blocks = _ERRORS_BY_CODE.get(max(codes, key=_gravity), _ERRORS_BY_CODE[999])
        command = gpus.reset_command(now, subject) if repair is Repair.RESET_GPU else ""
        why, look = f"{gpus.label(now, subject)}: {words}", ("nvidia-smi -L", gpus.LOG_COMMAND)
        yield CheckResult("gpu_errors", subject, result, why, evidence, repair, command, blocks, look=look)


def _gravity(code: int) -> int:
    return _GRAVITY.index(code) if code in _GRAVITY else -1


@check(
    "gpu_recovery",
    subject="gpu",
    needs=("nvml",),
    reads="field 230, the driver's own verdict",
    degraded="drain peers (3), drain and reset (4), IMEX (5), an action we do not know",
    failed="GPU reset (1), reboot (2, 7), bus reset (6): all block",
)
def gpu_recovery(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Which repair does the driver ask for (NVML field 230)? It is a state, so it is known even if no one saw the event."""
    for subject in gpus.subjects(now):
        if not gpus.answers(now, subject):
            continue
        unread = gpus.unread("gpu_recovery", now, "gpu.recovery_action", subject)
        if unread is not None:
            yield unread
            continue
        action = now.count("gpu.recovery_action", subject) or 0
        if action == recovery_actions.NONE:
            yield CheckResult("gpu_recovery", subject, Result.OK, f"{gpus.label(now, subject)}: none needed")
            continue
        asked = recovery_actions.asked(action)
        command, look = (
            gpus.reset_command(now, subject) if asked.repair is Repair.RESET_GPU else "",
            (f"nvidia-smi -q -i {gpus.address(now, subject)}",),
        )
        why = f"{gpus.label(now, subject)}: the driver asks for {asked.words}"
        result = Result.FAILED if asked.now else Result.DEGRADED
        yield CheckResult("gpu_recovery", subject, result, why, (f"recovery action {action}",), asked.repair, command, asked.now, look=look)


@check(
    "gpu_count",
    subject="host",
    needs=("nvml", "pci"),
    reads="driver, bus, device files, the job's start",
    failed=(
        "one is missing, does not answer on the bus, or is unknown to the driver (blocks). A driver that hung before it named all: unknown"
    ),
)
def gpu_count(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Are all GPUs there? The driver's count against the bus, the device files and the job's start."""
    if now.table("nvml.init").get("code") != 0:
        return  # gpu_driver says why
    seen = {subject: str(now.table("gpu.identity", subject).get("pci") or "") for subject in gpus.subjects(now)}
    there, files = gpus.bus_gpus(now), now.value("dev.gpus")
    evidence = (
        f"driver: {len(seen)}",
        f"bus: {'not read' if there is None else len(there)}",
        f"/dev/nvidia*: {len(files) if isinstance(files, list) else 'not read'}",
    )
    all_named = gpus.all_named(now)  # if not, a missing GPU may exist
    look = ("nvidia-smi -L", "lspci -d 10de:", gpus.LOG_COMMAND)
    missing = [old for old in gpus.subjects(before) if old not in seen] if all_named and before is not None else []
    missing = missing[sum(not pci for pci in seen.values()) :]  # a GPU without a name is one of them
    for old in missing:
        why = f"{gpus.label(before or now, old)}: it was there when the job started, and is gone"
        yield CheckResult("gpu_count", old, Result.FAILED, why, evidence, Repair.REBOOT, blocks=True, look=look)
    if missing:
        return
    lost = {reading.subject.removeprefix("pci:"): "and does not answer" for reading in now.of("pci.config") if reading.problem}
    if all_named and not _is_container(now, files, seen):
        lost = dict.fromkeys((pci for pci in there or () if pci not in seen.values()), "and unknown to the driver") | lost
    for subject, words in _not_in_errors(now, seen, lost).items():
        pci = seen.get(subject, subject.removeprefix("pci:"))
        yield CheckResult(
            "gpu_count", subject, Result.FAILED, f"on the bus, {words}: {pci}", evidence, Repair.REBOOT, blocks=True, look=look
        )
    if not lost and all_named:
        yield CheckResult("gpu_count", HOST, Result.OK if seen else Result.SKIPPED, f"{len(seen)} GPUs", evidence)
    elif not lost:
        yield CheckResult("gpu_count", HOST, Result.UNKNOWN, "the driver hung before it had named all GPUs", evidence)


def _not_in_errors(now: Readings, seen: dict[str, str], lost: dict[str, str]) -> dict[str, str]:
    """Return the lost GPUs that gpu_errors does not report, by subject. lost: words by PCI address."""
    ill = {seen[subject]: subject for subject in seen if now.rows("gpu.errors", subject)}
    named = {pci: subject for subject, pci in seen.items() if pci and pci not in ill}
    unreported = {named.get(pci, f"pci:{pci}"): words for pci, words in lost.items() if pci not in ill}
    unnamed = sum(not seen[subject] for subject in seen if now.rows("gpu.errors", subject))
    strangers = [subject for subject in unreported if subject.startswith("pci:")][:unnamed]
    return {subject: words for subject, words in unreported.items() if subject not in strangers}


def _is_container(now: Readings, files: object, seen: dict[str, str]) -> bool:
    """Return whether this container or cgroup has only some of the GPUs: it may open only their files, but sees all buses."""
    given = [subject for subject, pci in seen.items() if pci or now.rows("gpu.errors", subject)]
    return isinstance(files, list) and len(files) == len(given)


#: Two processes stamp the log and the event of one Xid, each when it reads it.
_SAME_EVENT_S = 5.0
_EVENT_KINDS = {
    "ecc_double_bit": (Result.FAILED, "an uncorrectable memory error", Repair.RESET_GPU),
    "ecc_single_bit_storm": (Result.DEGRADED, "a storm of corrected memory errors", Repair.NONE),
    "dram_retirement_failure": (Result.FAILED, "memory could not be retired", Repair.REPLACE),
    "poison_fatal": (Result.FAILED, "poisoned data was used", Repair.RESET_GPU),
    "gpu_unavailable": (Result.FAILED, "it is no longer available", Repair.REBOOT),
    "recovery_action_changed": (Result.DEGRADED, "the driver changed the recovery that it asks for", Repair.NONE),
}


@check(
    "gpu_events",
    subject="gpu",
    needs=("nvml",),
    reads="NVML's events while we listen",
    degraded="Xids that ask for a restart, storms of corrected errors",
    failed="Xids that ask for a reset, reboot or drain; double-bit errors, poison",
)
def gpu_events(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Which events did the driver report? They come even if the kernel's log cannot be read.

    Each comes once, without text. If the kernel's log has the same Xid, checks/kernel_log.py reports it, with its text and repetition.
    """
    for reading in now.of("gpu.events"):
        for event in now.rows("gpu.events", reading.subject):
            if _is_logged(now, event):
                continue
            result, words, repair = _event_meaning(event)
            why = f"{gpus.label(now, reading.subject)}: {words}"
            t = event.get("t")
            at = float(t) if isinstance(t, int | float) else None
            times = event.get("times")
            often = f", {times} times since the first look, this is the newest" if isinstance(times, int) and times > 1 else ""
            evidence = (f"{stamped(at)}{event.get('kind')} {event.get('data')}, {event.get('pci')}{often}",)
            command, look = gpus.reset_command(now, reading.subject) if repair is Repair.RESET_GPU else "", (gpus.LOG_COMMAND,)
            about = f"{event.get('kind')} {event.get('data')}" if event.get("kind") == "xid" else str(event.get("kind"))
            yield CheckResult("gpu_events", reading.subject, result, why, evidence, repair, command, event=about, look=look, t=at)


def _is_logged(now: Readings, event: dict[str, Json]) -> bool:
    """Return whether the kernel's log has the same Xid of the same GPU at the same time."""
    reading = now.one("kernel.findings", KERNEL)
    at, pci = event.get("t"), str(event.get("pci"))
    if reading is None or event.get("kind") != "xid" or not isinstance(at, int | float):
        return False
    for row in now.rows("kernel.findings", KERNEL):
        age, row_pci = row.get("age_s"), str(row.get("pci") or "nowhere")
        same = (row.get("kind"), row.get("code")) == ("xid", event.get("data")) and pci.startswith(row_pci)
        if same and isinstance(age, int | float) and abs(reading.t - age - at) <= _SAME_EVENT_S:
            return True
    return False


def _event_meaning(event: dict[str, Json]) -> tuple[Result, str, Repair]:
    kind, code = str(event.get("kind")), event.get("data")
    if kind != "xid" or not isinstance(code, int):
        return _EVENT_KINDS.get(kind, (Result.DEGRADED, f"event {kind}", Repair.NONE))
    judged = xid_policy.judge_number(code)
    result = {Severity.CRITICAL: Result.FAILED, Severity.INFO: Result.OK}.get(judged.severity, Result.DEGRADED)
    return result, f"Xid {code}: {judged.meaning}", judged.repair
