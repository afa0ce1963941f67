"""Is there a driver, and does its library speak with it? A mismatch of the two (an upgrade without a reboot) fails every CUDA program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "gpu_driver"
NEEDS = ("nvml", "pci")


_MISMATCH, _NO_LIBRARY, _NOT_LOADED = 18, 12, 9


def check(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge how the library could be opened."""
    reading = now.one("nvml.init")
    there = gpus.bus_gpus(now)
    if reading is None:
        yield CheckResult(NAME, HOST, Result.UNKNOWN, "NVML was not opened")
        return
    if reading.problem:
        result = Result.SKIPPED if there == () else Result.UNKNOWN
        yield CheckResult(NAME, HOST, result, reading.problem, command="pip install nvidia-ml-py")
        return
    told = now.table("nvml.init")
    code, words = told.get("code"), told.get("words")
    driver = now.text("nvml.driver")
    if code == 0:
        yield CheckResult(NAME, HOST, Result.OK, f"driver {driver or 'of unknown version'} answers")
    elif code == _MISMATCH:
        why = "the driver's library and its kernel module are of different versions: an upgrade without a reload of the driver"
        loaded = now.text("driver.loaded")
        evidence = (f"NVML error {code}: {words}", *((f"loaded module: {loaded}",) if loaded else ()))
        yield CheckResult(NAME, HOST, Result.FAILED, why, evidence, Repair.RESTART_DRIVER, "modprobe -r nvidia_uvm nvidia; modprobe nvidia",
                          blocks=True)  # fmt: skip
    elif code in (_NO_LIBRARY, _NOT_LOADED) and not there:
        known = "no NVIDIA GPU is on the bus" if there == () else "no NVIDIA driver"
        yield CheckResult(NAME, HOST, Result.SKIPPED, known)
    elif code == _NOT_LOADED and (loaded := _loaded(now, before)):
        why = f"the driver {loaded} is loaded and may not be used from here: a container that was given no GPU, perhaps"
        yield CheckResult(NAME, HOST, Result.UNKNOWN, why, (f"NVML error {code}: {words}",), command="ls -l /dev/nvidia*")
    elif code in (_NO_LIBRARY, _NOT_LOADED):
        count = len(there or ())
        what = "no driver is loaded" if code == _NOT_LOADED else "its library is not there"
        why = f"{count} GPU{'s are' if count != 1 else ' is'} on the bus, and {what}"
        result = Result.FAILED if code == _NOT_LOADED else Result.UNKNOWN
        yield CheckResult(NAME, HOST, result, why, (f"NVML error {code}: {words}",), Repair.RESTART_DRIVER, "modprobe nvidia; nvidia-smi")
    else:
        yield CheckResult(NAME, HOST, Result.UNKNOWN, f"NVML could not be opened: {words}", (f"NVML error {code}",), command="nvidia-smi")


def _loaded(now: Readings, before: Readings | None) -> str:
    """Return the version of the loaded module, "" for none. While a job runs it is not read again: what was, holds."""
    known = now if now.one("driver.loaded") is not None or before is None else before
    return known.text("driver.loaded")
