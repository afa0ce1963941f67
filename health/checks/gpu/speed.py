"""Checks of what slows a GPU down: heat, power brakes, clocks and power limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks.gpu import gpus
from health.model import CheckResult, Repair, check, delta, elapsed_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds


@check(
    "gpu_temperature",
    subject="gpu",
    needs=("nvml",),
    reads="core and memory, the vendor's limits, or what the driver says is left to them (from Ada on)",
    degraded="within 2 °C of slowing down; memory at its limit",
)
def gpu_temperature(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is a GPU, or its memory, near the heat at which it slows itself down? The vendor's own limits decide."""
    for subject in gpus.subjects(now):
        core, memory = now.number("gpu.temperature_c", subject), now.number("gpu.memory_temperature_c", subject)
        if core is None:
            continue
        slow, memory_max = now.number("gpu.slowdown_c", subject), now.number("gpu.memory_max_c", subject) or limits.hbm_max_c
        gpu, look = gpus.GpuReport("gpu_temperature", now, subject), (f"nvidia-smi -q -d TEMPERATURE -i {gpus.address(now, subject)}",)
        margin = now.number("gpu.margin_c", subject) if slow is None else slow - core
        at = core + (margin or 0.0)
        memory_text = "" if memory is None else f", memory {memory:.0f} of {memory_max:.0f} °C"
        evidence = (f"{core:.0f} °C{'' if margin is None else f' of {at:.0f} °C'}{memory_text}",)
        if margin is not None and margin <= limits.gpu_slowdown_margin_c:
            why = f"{core:.0f} °C, and it slows itself down at {at:.0f} °C: check its cooling"
            yield gpu.degraded(why, evidence, Repair.DRAIN, look=look)
        elif memory is not None and memory >= memory_max:
            why = f"its memory is at {memory:.0f} °C, its limit is {memory_max:.0f} °C: check its cooling"
            yield gpu.degraded(why, evidence, Repair.DRAIN, look=look)
        elif margin is None:
            why = f"{core:.0f} °C; this GPU or its driver does not report at which temperature it slows down"
            yield gpu.skipped(why, evidence) if memory is None else gpu.ok(why, evidence)
        else:
            yield gpu.ok(f"{core:.0f} °C", evidence)


#: nvmlClocksEventReasons. 0x4 (power cap) is how a busy GPU runs, and no fault.
_THROTTLE_REASONS = {0x8: "a slowdown by hardware", 0x20: "heat (driver)", 0x40: "heat (hardware)", 0x80: "a power brake"}
_THROTTLE_COUNTERS = {"gpu.sw_thermal_ns": "heat (driver)", "gpu.hw_thermal_ns": "heat (hardware)", "gpu.power_brake_ns": "a power brake"}


@check(
    "gpu_throttle",
    subject="gpu",
    needs=("nvml",),
    reads="reasons, and time held back",
    degraded="heat or a power brake for more than 5 % of the time",
)
def gpu_throttle(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is a GPU held back by heat or by a power brake? By the share of time since the job's start, where the driver counts it."""
    for subject in gpus.subjects(now):
        reasons = now.count("gpu.throttle_reasons", subject)
        if reasons is None:
            continue
        gpu = gpus.GpuReport("gpu_throttle", now, subject)
        look = (f"nvidia-smi -q -d PERFORMANCE -i {gpus.address(now, subject)}",)
        held: dict[str, float] = {}
        for name, words in _THROTTLE_COUNTERS.items():
            grown, seconds = delta(now, before, name, subject), elapsed_s(now, before, name, subject)
            if grown is not None and seconds is not None:
                held[words] = grown / 1e9 / seconds
        at_present = [words for bit, words in _THROTTLE_REASONS.items() if reasons & bit]
        evidence = (f"reasons {reasons:#x}", *(f"{words}: {share:.1%} of the time" for words, share in held.items()))
        long = [words for words, share in held.items() if share > limits.throttled_share]
        if long or (at_present and not held):
            power = "a power brake" in (long or at_present)
            why = f"held back by {', '.join(long or at_present)}: check its {'power' if power else 'cooling'}"
            yield gpu.degraded(why, evidence, Repair.DRAIN, look=look)
        else:
            yield gpu.ok("not held back", evidence)


@check(
    "gpu_clocks",
    subject="gpu",
    needs=("nvml",),
    reads="clock under load",
    degraded="below 75 % of its siblings'",
)
def gpu_clocks(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Does a GPU under load run as fast as its siblings? One that is slower slows down all ranks."""
    shares: dict[str, float] = {}
    for subject in gpus.subjects(now):
        clock, most = now.number("gpu.clock_sm_mhz", subject), now.number("gpu.clock_sm_max_mhz", subject)
        if clock and most and (now.number("gpu.busy_percent", subject) or 0) >= limits.load_percent:
            shares[subject] = clock / most
    usual = sorted(shares.values())[len(shares) // 2] if shares else 0.0
    for subject, share in shares.items():
        gpu = gpus.GpuReport("gpu_clocks", now, subject)
        evidence = (f"{now.number('gpu.clock_sm_mhz', subject):.0f} of {now.number('gpu.clock_sm_max_mhz', subject):.0f} MHz under load",)
        if share < limits.clock_share_under_load * usual:
            why = f"runs at {share:.0%} of its clock under load, its siblings at {usual:.0%}"
            look = (f"nvidia-smi -q -d CLOCK,PERFORMANCE -i {gpus.address(now, subject)}",)
            yield gpu.degraded(why, evidence, Repair.RESET_GPU, gpus.reset_command(now, subject), look)
        else:
            yield gpu.ok(f"runs at {share:.0%} of its clock", evidence)


@check(
    "gpu_power",
    subject="gpu",
    needs=("nvml",),
    reads="enforced and default limit",
    degraded="limited below the default",
)
def gpu_power(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is a GPU's power limited below its design? That is a setting, and all ranks wait for the slowest."""
    for subject in gpus.subjects(now):
        limit, usual = now.number("gpu.power_limit_mw", subject), now.number("gpu.power_default_mw", subject)
        if not limit or not usual:
            continue
        gpu, evidence = gpus.GpuReport("gpu_power", now, subject), (f"{limit / 1000:.0f} W of {usual / 1000:.0f} W",)
        if limit < limits.power_cap_share * usual:
            why = f"its power is limited to {limit / 1000:.0f} W, its default is {usual / 1000:.0f} W"
            command = f"nvidia-smi -pl {usual / 1000:.0f} -i {gpus.address(now, subject)}"
            yield gpu.degraded(why, evidence, Repair.CONFIGURE, command)
        else:
            yield gpu.ok(f"{limit / 1000:.0f} W", evidence)
