"""Shared by the checks of GPUs: names and commands for a GPU, and results for missing readings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Final

from health.model import GONE, HOST, NOT_SUPPORTED, PERMISSION, CheckResult, Readings, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNKNOWN: Final = 999
_LOOKED_UP: Final = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Makes the results of one check for one GPU. Each reason begins with the GPU's name."""

    check: str
    now: Readings
    subject: str

    def ok(self, words: str, evidence: tuple[str, ...] = ()) -> CheckResult:
        """Return a healthy result."""
        return self._made(Result.OK, words, evidence)

    def failed(self, words: str, evidence: tuple[str, ...], repair: Repair, command: str = "", look: tuple[str, ...] = ()) -> CheckResult:
        """Return a failure. command: repairs it. look: show more."""
        return replace(self._made(Result.FAILED, words, evidence), repair=repair, command=command, look=look)

    def degraded(self, words: str, evidence: tuple[str, ...], repair: Repair, command: str = "", look: tuple[str, ...] = ()) -> CheckResult:
        """Return a lesser fault."""
        return replace(self._made(Result.DEGRADED, words, evidence), repair=repair, command=command, look=look)

    def skipped(self, words: str, evidence: tuple[str, ...]) -> CheckResult:
        """Return that this GPU cannot be judged by the check."""
        return self._made(Result.SKIPPED, words, evidence)

    def _made(self, result: Result, words: str, evidence: tuple[str, ...]) -> CheckResult:
        return CheckResult(self.check, self.subject, result, f"{label(self.now, self.subject)}: {words}", evidence)


def subjects(now: Readings) -> Iterator[str]:
    """Yield the subjects of all GPUs, in the driver's order."""
    for reading in now.of("gpu.identity"):
        yield reading.subject


def all_named(now: Readings) -> bool:
    """Return whether every GPU that the driver counts has a name. If not, the driver hung, and a missing GPU may exist."""
    return now.count("nvml.count") == len(now.of("gpu.identity"))


def label(now: Readings, subject: str) -> str:
    """Return the name of a GPU for people: the number that NVML and nvidia-smi give it, its UUID and its PCI address."""
    identity = now.table("gpu.identity", subject)
    uuid = subject.removeprefix("gpu:")
    known = ", ".join(str(word) for word in ("" if uuid.startswith("#") else uuid, identity.get("pci")) if word)
    return f"GPU {identity.get('index', '?')}" + (f" ({known})" if known else "")


def address(now: Readings, subject: str) -> str:
    """Return the argument of nvidia-smi -i: the PCI address, else the UUID or number."""
    pci = now.table("gpu.identity", subject).get("pci")
    return quote(str(pci) if pci else subject.removeprefix("gpu:").removeprefix("#"))


def reset_command(now: Readings, subject: str) -> str:
    """Return the command that resets a GPU."""
    return f"nvidia-smi --gpu-reset -i {address(now, subject)}"


#: Where the driver writes what happened to a GPU.
LOG_COMMAND: Final = "dmesg -T | grep -i -e nvrm -e xid"


def answers(now: Readings, subject: str) -> bool:
    """Return whether a GPU answers. Another check (gpu_errors) reports one that is lost or not permitted."""
    return not errors(now, subject) & {15, 999} and not now.table("gpu.identity", subject).get("refused")


def errors(now: Readings, subject: str) -> set[int]:
    """Return NVML's errors about a GPU. 999 counts only from its look-up, where it means that the GPU is off the bus."""
    rows = now.rows("gpu.errors", subject)
    return {code for row in rows if isinstance(code := row.get("code"), int) and (code != _UNKNOWN or row.get("call") in _LOOKED_UP)}


def unread(check: str, now: Readings, name: str, subject: str) -> CheckResult | None:
    """Return the result for a reading without a value: SKIPPED if it cannot exist here, else UNKNOWN. None if it has a value."""
    reading = now.one(name, subject)
    if reading is None:
        return CheckResult(check, subject, Result.UNKNOWN, f"{name} was not read")
    if not reading.problem:
        return None
    if reading.problem == NOT_SUPPORTED:
        return CheckResult(check, subject, Result.SKIPPED, f"{name}: this GPU or its driver does not report it")
    words = {PERMISSION: "not permitted", GONE: "the GPU does not answer"}.get(reading.problem, reading.problem)
    return CheckResult(check, subject, Result.UNKNOWN, f"{name} could not be read: {words}")


def bus_gpus(now: Readings) -> tuple[str, ...] | None:
    """Return the addresses of the GPUs that the bus has, None where that was not read."""
    if now.one("pci.gpus") is None or now.problem("pci.gpus", HOST):
        return None
    return tuple(str(row.get("address")) for row in now.rows("pci.gpus"))
