"""The questions to NVML about each GPU: one row a call. Data, and the shapes of the answers; nothing here calls anything.

Names are those of nvidia-ml-py. A row with several functions asks the next where the driver has no such function (names that changed with
driver 535). `static` does not change while the driver is loaded, and is asked once in a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from health.model import Json

# --- field values (nvmlDeviceGetFieldValues): one call for all ----------------------------------------------------------------------
RECOVERY_ACTION: Final = 230
#: By reading, for the whole GPU. 269-271: nanoseconds that the clocks were held back; 74, 75: the same, of older drivers.
FIELDS: Final[dict[int, str]] = {
    82: "gpu.memory_temperature_c",
    269: "gpu.sw_thermal_ns",
    270: "gpu.hw_thermal_ns",
    271: "gpu.power_brake_ns",
    74: "gpu.power_policy_ns",
    75: "gpu.thermal_policy_ns",
}
#: By link. 161-163 are of NVLink 4 and older, 208-215 of NVLink 5.
LINK_FIELDS: Final[dict[int, str]] = {161: "replay", 162: "recovery", 163: "crc", 208: "receive", 214: "recovery_failed", 215: "recovery_5"}
#: nvmlDeviceGetNvLinkErrorCounter's counters, where the fields above are not known.
LINK_COUNTERS: Final[dict[int, str]] = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data"}
MOST_LINKS: Final = 36


@dataclass(frozen=True, slots=True)
class NvmlCall:
    """One call. shape: makes a JSON value of the answer."""

    name: str
    functions: tuple[str, ...]
    arguments: tuple[int, ...] = ()
    shape: Callable[[Any], Json] | None = None
    static: bool = False


def _pair(answer: Any) -> Json:  # noqa: ANN401 -- ctypes' and pynvml's own shapes
    return [int(number) for number in answer]


def _memory(answer: Any) -> Json:  # noqa: ANN401
    return {"total": int(answer.total), "used": int(answer.used), "free": int(answer.free)}


def _busy(answer: Any) -> Json:  # noqa: ANN401
    return int(answer.gpu)


def _memory_busy(answer: Any) -> Json:  # noqa: ANN401
    return int(answer.memory)


#: In the order in which they are asked: the most informative first, in case a later one hangs.
ROWS: Final = (
    NvmlCall("gpu.remapped_rows", ("nvmlDeviceGetRemappedRows",), shape=_pair),
    NvmlCall("gpu.ecc_mode", ("nvmlDeviceGetEccMode",), shape=_pair),
    NvmlCall("gpu.ecc_uncorrected_volatile", ("nvmlDeviceGetTotalEccErrors",), (1, 0)),
    NvmlCall("gpu.ecc_uncorrected_aggregate", ("nvmlDeviceGetTotalEccErrors",), (1, 1)),
    NvmlCall("gpu.ecc_corrected_volatile", ("nvmlDeviceGetTotalEccErrors",), (0, 0)),
    NvmlCall("gpu.ecc_corrected_aggregate", ("nvmlDeviceGetTotalEccErrors",), (0, 1)),
    NvmlCall("gpu.retired_sbe", ("nvmlDeviceGetRetiredPages",), (0,), len),
    NvmlCall("gpu.retired_dbe", ("nvmlDeviceGetRetiredPages",), (1,), len),
    NvmlCall("gpu.retired_pending", ("nvmlDeviceGetRetiredPagesPendingStatus",)),
    NvmlCall("gpu.temperature_c", ("nvmlDeviceGetTemperature",), (0,)),
    NvmlCall("gpu.shutdown_c", ("nvmlDeviceGetTemperatureThreshold",), (0,), static=True),
    NvmlCall("gpu.slowdown_c", ("nvmlDeviceGetTemperatureThreshold",), (1,), static=True),
    NvmlCall("gpu.memory_max_c", ("nvmlDeviceGetTemperatureThreshold",), (2,), static=True),
    NvmlCall("gpu.max_c", ("nvmlDeviceGetTemperatureThreshold",), (3,), static=True),
    # from Ada on in place of the thresholds, which newer drivers no longer report (nvml.h at nvmlDeviceGetTemperatureThreshold)
    NvmlCall("gpu.margin_c", ("nvmlDeviceGetMarginTemperature",)),
    NvmlCall("gpu.throttle_reasons", ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")),
    NvmlCall("gpu.busy_percent", ("nvmlDeviceGetUtilizationRates",), shape=_busy),
    NvmlCall("gpu.memory_busy_percent", ("nvmlDeviceGetUtilizationRates",), shape=_memory_busy),
    NvmlCall("gpu.clock_sm_mhz", ("nvmlDeviceGetClockInfo",), (1,)),
    NvmlCall("gpu.clock_sm_max_mhz", ("nvmlDeviceGetMaxClockInfo",), (1,), static=True),
    NvmlCall("gpu.power_mw", ("nvmlDeviceGetPowerUsage",)),
    NvmlCall("gpu.power_limit_mw", ("nvmlDeviceGetEnforcedPowerLimit",)),
    NvmlCall("gpu.power_default_mw", ("nvmlDeviceGetPowerManagementDefaultLimit",), static=True),
    NvmlCall("gpu.pcie_gen", ("nvmlDeviceGetCurrPcieLinkGeneration",)),
    NvmlCall("gpu.pcie_gen_max", ("nvmlDeviceGetMaxPcieLinkGeneration",), static=True),
    NvmlCall("gpu.pcie_width", ("nvmlDeviceGetCurrPcieLinkWidth",)),
    NvmlCall("gpu.pcie_width_max", ("nvmlDeviceGetMaxPcieLinkWidth",), static=True),
    NvmlCall("gpu.pcie_replays", ("nvmlDeviceGetPcieReplayCounter",)),
    NvmlCall("gpu.persistence", ("nvmlDeviceGetPersistenceMode",)),
    NvmlCall("gpu.mig_mode", ("nvmlDeviceGetMigMode",), shape=_pair),
    NvmlCall("gpu.memory", ("nvmlDeviceGetMemoryInfo",), shape=_memory),
    NvmlCall("gpu.vbios", ("nvmlDeviceGetVbiosVersion",), static=True),
    NvmlCall("gpu.compute_capability", ("nvmlDeviceGetCudaComputeCapability",), shape=_pair, static=True),
)

# --- events (nvmlEventSetWait_v2) ---------------------------------------------------------------------------------------------------
EVENT_XID: Final = 0x8
#: Wanted where the driver knows them: registering one that it does not know fails for all.
EVENTS: Final[dict[int, str]] = {
    EVENT_XID: "xid",
    0x2: "ecc_double_bit",
    0x200: "ecc_single_bit_storm",
    0x800: "dram_retirement_failure",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action_changed",
}
