"""NVIDIA's Xid codes: what each one means for the GPU, and what a job may do about it.

A kernel line holds the number: `NVRM: Xid (PCI:0000:3d:00): 79, ...`.

Source: NVIDIA's Xid catalogue (https://docs.nvidia.com/deploy/xid-errors, the edition of 2025-10-29, as transcribed in leptonai/gpud
at 4a8de33), compared with NVIDIA/NVSentinel's mapping and facebookresearch/gcm's list; read 2026-11-21. Where they disagree the
catalogue's "immediate action" holds, except for 64: a row remap that failed is a reason for replacement, so the same GPU is not
tried again. Two limits of the numbers: 144 to 150 say IGNORE or RESET_GPU depending on further registers of the line (45 of 94 rules
say IGNORE), and from R550 on the driver itself announces the repair through Xid 154.

health/nvidia/xid_registers.py decodes the rest of a line: NVLink registers, and an announced recovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from health.model import Repair

if TYPE_CHECKING:
    from collections.abc import Mapping


class XidOrigin(StrEnum):
    """The faulty part."""

    APP = "app"
    HARDWARE = "hardware"
    FABRIC = "fabric"  # NVLink, NVSwitch, chip-to-chip: one link of it, or the peer at its other end
    DRIVER = "driver"
    EITHER = "either"  # the application or the hardware: only repetition on one GPU proves the hardware


class Action(StrEnum):
    """The repair that brings the GPU back into use. RESTART: of the job alone. DRAIN: a person must inspect it."""

    IGNORE = "ignore"
    RESTART = "restart"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN = "drain"


#: The repair for a person or a fleet.
REPAIRS: Mapping[Action, Repair] = MappingProxyType({
    Action.IGNORE: Repair.NONE,
    Action.RESTART: Repair.RESTART_JOB,
    Action.RESET: Repair.RESET_GPU,
    Action.REBOOT: Repair.REBOOT,
    Action.DRAIN: Repair.DRAIN,
})  # fmt: skip


class Retry(StrEnum):
    """Whether the same GPU may be used for the next attempt."""

    YES = "yes"
    AFTER_RESET = "after_reset"
    NO = "no"


class GpuPart(StrEnum):
    """The part of the GPU that a code is about."""

    MEMORY = "memory"
    BUS = "bus"  # the GPU as a whole is gone
    LINK = "link"
    OTHER = "other"


class Effect(StrEnum):
    """The meaning of a code for a job that was running on the GPU."""

    GPU = "gpu"  # the GPU needs a reset, a reboot or a person before it can be used
    PROCESS = "process"  # the process is ended, the GPU continues
    NOTE = "note"  # nothing is to be done
    ECHO = "echo"  # another event is the cause
    REGISTERS = "registers"  # the rest of the line decides: NVLink 5
    UNLISTED = "unlisted"  # not in the catalogue, or there as unused


@dataclass(frozen=True, slots=True)
class Xid:
    """A code. echo: it follows another event (another Xid, a kill, a peer's death) and is never a cause by itself."""

    code: int
    name: str
    meaning: str
    origin: XidOrigin
    action: Action
    retry: Retry
    part: GpuPart = GpuPart.OTHER
    echo: bool = False

    @property
    def effect(self) -> Effect:
        """The meaning of the code for a job, from the code alone."""
        if self.code in UNUSED:
            return Effect.UNLISTED
        if self.code in NVLINK_5:
            return Effect.REGISTERS
        if self.echo:
            return Effect.ECHO
        return {Action.IGNORE: Effect.NOTE, Action.RESTART: Effect.PROCESS}.get(self.action, Effect.GPU)

    @property
    def may_be_program(self) -> bool:
        """Whether a program or the hardware can cause it, so that only repetition on one GPU proves the hardware."""
        return self.origin is XidOrigin.EITHER and self.part is GpuPart.OTHER

    @property
    def concerns_process(self) -> bool:
        """Whether it concerns the process that the line names, and no other process on the GPU."""
        return self.origin in {XidOrigin.APP, XidOrigin.EITHER} or self.code == CONTAINED

    @property
    def hardware(self) -> str:
        """Whether the fault is the hardware's, from the code alone: yes, no or unknown."""
        if self.origin is XidOrigin.EITHER:
            return "unknown"
        return "yes" if self.origin in {XidOrigin.HARDWARE, XidOrigin.FABRIC} else "no"


#: The catalogue lists them as not raised by A100 and newer GPUs. On older ones they are rare; ask the vendor's support.
UNUSED = frozenset(
    {*range(1, 8), 9, 10, 12, *range(14, 25), *range(26, 31), *range(33, 37), 42, 47, *range(49, 54), *range(55, 60)}
    | {61, 65, 73, 81, 87, 90, 91, 108, *range(111, 119), *range(122, 126), 138}
)

#: The one memory error that ends only the process whose data it hit.
CONTAINED = 94
#: Digits: a text from a log may be of any length.
_LONGEST_CODE = 4

_APP, _HARDWARE, _FABRIC, _DRIVER, _EITHER = XidOrigin.APP, XidOrigin.HARDWARE, XidOrigin.FABRIC, XidOrigin.DRIVER, XidOrigin.EITHER
_IGNORE, _RESTART, _RESET, _REBOOT, _DRAIN = Action.IGNORE, Action.RESTART, Action.RESET, Action.REBOOT, Action.DRAIN
_YES, _RESET_FIRST, _NO = Retry.YES, Retry.AFTER_RESET, Retry.NO
_ECC, _LOST, _NVLINK = GpuPart.MEMORY, GpuPart.BUS, GpuPart.LINK

#: An exception in one of the GPU's engines (copy, video, JPEG, optical flow): the process is ended, the GPU continues.
_ENGINES = (
    {39: "CE0", 40: "CE1", 41: "CE2", 70: "CE3", 71: "CE4", 72: "CE5", 75: "CE6", 76: "CE7", 77: "CE8", 85: "CE9"}
    | {code: f"CE{code - 116}" for code in range(126, 136)}
    | {68: "NVDEC0", 83: "NVDEC1", 84: "NVDEC2", 88: "NVDEC3", 89: "NVDEC4", 96: "NVDEC5", 97: "NVDEC6", 98: "NVDEC7"}
    | {82: "NVJPG0"}
    | {code: f"NVJPG{code - 98}" for code in range(99, 106)}
    | {86: "OFA0", 139: "OFA1"}
)
#: NVLink 5 units; the number alone does not say whether a reset is needed.
NVLINK_5 = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}

_LISTED = (
    Xid(8, "FIFO_ERROR_IDLE_TIMEOUT", "the GPU stopped making progress on a channel", _EITHER, _RESTART, _YES),
    Xid(11, "GR_ERROR_MISSING_HW", "the GPU got a bad command stream", _APP, _RESTART, _YES),
    Xid(13, "GR_EXCEPTION", "a kernel's illegal instruction, out-of-range or misaligned access", _EITHER, _RESTART, _YES),
    Xid(25, "GR_ILLEGAL_NOTIFY", "an illegal command stream", _APP, _RESTART, _YES),
    Xid(31, "MMU_ERR_FLT", "a kernel or the driver touched an unmapped GPU address", _EITHER, _RESTART, _YES),
    Xid(32, "PBDMA_ERROR", "a corrupted command stream, often the quality of the PCIe link", _EITHER, _RESTART, _YES),
    Xid(37, "FECS_ERR_UNIMP_FIRMWARE_METHOD", "a firmware method that is not implemented", _DRIVER, _IGNORE, _YES),
    Xid(38, "FECS_ERR_WATCHDOG_TIMEOUT", "watchdog of the context-switch firmware", _DRIVER, _IGNORE, _YES),
    Xid(43, "RESETCHANNEL_VERIF_ERROR", "the faulting process lost its channel; the GPU is healthy", _APP, _RESTART, _YES, echo=True),
    Xid(44, "GR_FAULT_DURING_CTXSW", "a fault while contexts were switched", _EITHER, _IGNORE, _YES),
    Xid(45, "PREEMPTIVE_REMOVAL", "a process's channels torn down after an error, a kill or Ctrl-C", _APP, _IGNORE, _YES, echo=True),
    Xid(46, "GPU_TIMEOUT_ERROR", "the GPU stopped processing", _HARDWARE, _RESET, _RESET_FIRST),
    Xid(48, "GPU_ECC_DBE", "an uncorrectable memory error", _HARDWARE, _RESET, _RESET_FIRST, _ECC),
    Xid(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "the auxiliary power cable is not connected", _HARDWARE, _DRAIN, _NO),
    Xid(60, "SEC2_ERROR", "an exception of the security or video processor", _APP, _RESTART, _YES),
    Xid(62, "PMU_HALT_ERROR", "an internal micro-controller halted; may be thermal", _HARDWARE, _RESET, _RESET_FIRST),
    Xid(63, "DRAM_RETIREMENT_EVENT", "a row remap was recorded; it takes effect at the next reset", _HARDWARE, _IGNORE, _YES, _ECC),
    Xid(64, "DRAM_RETIREMENT_FAILURE", "a row remap could not be recorded: a reason for replacement", _HARDWARE, _RESET, _NO, _ECC),
    Xid(66, "FECS_ERR_REG_ACCESS_VIOLATION", "an illegal register access by the driver", _DRIVER, _IGNORE, _YES),
    Xid(67, "FECS_ERR_VERIF_VIOLATION", "an illegal register access by the driver", _DRIVER, _IGNORE, _YES),
    Xid(69, "GR_CLASS_ERROR", "a bad method or data for a graphics class", _EITHER, _RESTART, _YES),
    Xid(74, "NVLINK_ERROR", "an NVLink error on this GPU or its peer; a killed peer raises it too", _FABRIC, _DRAIN, _RESET_FIRST, _NVLINK),
    Xid(78, "VGPU_START_ERROR", "the vGPU manager could not start", _DRIVER, _DRAIN, _NO),
    Xid(79, "GPU_HAS_FALLEN_OFF_THE_BUS", "the GPU is not reachable over PCIe", _HARDWARE, _REBOOT, _RESET_FIRST, _LOST),
    Xid(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "a command stream arrived with a wrong checksum", _EITHER, _RESTART, _YES),
    Xid(92, "EXCESSIVE_SBE_INTERRUPTS", "a high rate of corrected memory errors", _HARDWARE, _IGNORE, _YES, _ECC),
    Xid(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "the InfoROM's wear limit is exceeded", _HARDWARE, _IGNORE, _YES),
    Xid(94, "CONTAINED_ERROR", "an uncorrectable memory error that hit one process only", _HARDWARE, _RESTART, _YES, _ECC),
    Xid(95, "UNCONTAINED_ERROR", "an uncorrectable memory error that may hit every process", _HARDWARE, _RESET, _RESET_FIRST, _ECC),
    Xid(106, "SMBPBI_TEST_MESSAGE", "a test message", _DRIVER, _IGNORE, _YES, echo=True),
    Xid(107, "SMBPBI_TEST_MESSAGE_SILENT", "a test message", _DRIVER, _IGNORE, _YES, echo=True),
    Xid(109, "CTXSW_TIMEOUT_ERROR", "a context switch timed out", _EITHER, _RESET, _RESET_FIRST),
    Xid(110, "SEC_FAULT_ERROR", "a security fault", _DRIVER, _RESET, _RESET_FIRST),
    Xid(
        119,
        "GSP_RPC_TIMEOUT",
        "the GPU's system processor did not answer; often the first sign of a lost GPU",
        _DRIVER,
        _RESET,
        _RESET_FIRST,
    ),
    Xid(120, "GSP_ERROR", "an exception in the GPU's system processor", _DRIVER, _RESET, _RESET_FIRST),
    Xid(121, "C2C_ERROR", "a corrected error on the chip-to-chip link", _FABRIC, _IGNORE, _YES),
    Xid(136, "ALI_TRAINING_FAIL", "an NVLink could not be trained", _FABRIC, _RESET, _RESET_FIRST, _NVLINK),
    Xid(137, "NVLINK_PRIV_ERR", "an NVLink access to memory that a peer no longer has", _EITHER, _IGNORE, _YES, _NVLINK, echo=True),
    Xid(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "an uncorrectable memory error of unknown reach", _HARDWARE, _RESET, _RESET_FIRST, _ECC),
    Xid(141, "FAST_PATH_ERROR", "an error of CUDA's fast path", _APP, _IGNORE, _YES),
    Xid(142, "NVENC3_ERROR", "an exception of video encoder 3", _EITHER, _DRAIN, _NO),
    Xid(143, "GPU_INIT_ERROR", "the GPU failed to initialise", _HARDWARE, _RESET, _RESET_FIRST),
    Xid(151, "KEY_ROTATION_ERROR", "a key rotation of confidential computing failed", _DRIVER, _REBOOT, _RESET_FIRST),
    Xid(152, "DLA_SMMU_ERROR", "an error of the deep learning accelerator", _DRIVER, _IGNORE, _YES),
    Xid(153, "DLA_TIMEOUT", "a time-out of the deep learning accelerator", _DRIVER, _IGNORE, _YES),
    Xid(154, "GPU_RECOVERY_ACTION_CHANGED", "the driver announces which recovery is needed", _DRIVER, _IGNORE, _RESET_FIRST, echo=True),
    Xid(155, "NVLINK_SW_DEFINED_ERROR", "an NVLink error that software defines", _FABRIC, _RESET, _RESET_FIRST, _NVLINK),
    Xid(156, "RESOURCE_RETIREMENT_EVENT", "a hardware resource was retired", _HARDWARE, _RESET, _RESET_FIRST),
    Xid(157, "RESOURCE_RETIREMENT_FAILURE", "a hardware resource could not be retired", _HARDWARE, _IGNORE, _YES),
    Xid(158, "GPU_FATAL_TIMEOUT", "a fatal time-out of the GPU", _HARDWARE, _RESET, _RESET_FIRST),
    Xid(159, "CHI_NON_DATA_ERROR", "an error on the interconnect of Grace", _EITHER, _RESTART, _YES),
    Xid(160, "CHANNEL_RETIREMENT_EVENT", "a memory channel is marked for repair", _HARDWARE, _IGNORE, _YES, _ECC),
    Xid(161, "CHANNEL_RETIREMENT_FAILURE", "a memory channel could not be retired", _HARDWARE, _IGNORE, _YES, _ECC),
    Xid(162, "PSHC_REENGAGED", "the power-smoothing circuit is engaged again", _HARDWARE, _IGNORE, _YES),
    Xid(163, "PSHC_DISENGAGED", "the power-smoothing circuit is disengaged", _HARDWARE, _RESET, _RESET_FIRST),
    Xid(164, "PSHC_LOW_LIFETIME", "the power-smoothing circuit is near its end of life", _HARDWARE, _IGNORE, _YES),
    Xid(165, "PSHC_ZERO_LIFETIME", "the power-smoothing circuit is at its end of life", _HARDWARE, _IGNORE, _YES),
    Xid(166, "NVLINK_SECURE_CRYPTO_ERR", "NVLink traffic before encryption was set up", _FABRIC, _RESET, _RESET_FIRST, _NVLINK),
    Xid(167, "PCIE_FATAL_TIMEOUT", "a fatal time-out on PCIe", _HARDWARE, _REBOOT, _RESET_FIRST),
    Xid(168, "REDUCED_GPU_MEMORY_CAPACITY", "a protected region lost memory: capacity is reduced", _HARDWARE, _DRAIN, _NO),
    Xid(169, "SEC2_HALT_ERROR", "the security micro-controller halted", _HARDWARE, _REBOOT, _RESET_FIRST),
    Xid(170, "NVLINK_SECURE_OTHER", "an NVLink interrupt in confidential computing", _FABRIC, _RESTART, _YES, _NVLINK),
    Xid(171, "UNCORRECTABLE_DRAM_ERROR", "where the error of Xid 48 was: in DRAM", _HARDWARE, _IGNORE, _YES, _ECC),
    Xid(172, "UNCORRECTABLE_SRAM_ERROR", "where the error of Xid 48 was: in SRAM", _HARDWARE, _RESET, _RESET_FIRST, _ECC),
    Xid(173, "C2C_FATAL_LINK_FAILURE", "the chip-to-chip link failed for good", _FABRIC, _REBOOT, _RESET_FIRST, _NVLINK),
)

TABLE: Mapping[int, Xid] = MappingProxyType(
    {
        entry.code: entry
        for entry in (
            *_LISTED,
            *(Xid(code, f"{unit}_ERROR", f"an exception in engine {unit}", _EITHER, _RESTART, _YES) for code, unit in _ENGINES.items()),
            *(
                Xid(code, f"NVLINK_{unit}_ERROR", f"an NVLink 5 error in unit {unit}", _FABRIC, _RESET, _RESET_FIRST, _NVLINK)
                for code, unit in NVLINK_5.items()
            ),
            *(Xid(code, "UNUSED", "not raised by A100 and newer GPUs", _EITHER, _DRAIN, _NO) for code in UNUSED),
        )
    }
)


def lookup(code: int) -> Xid | None:
    """Return the row of an Xid, None for a number that the catalogue does not list."""
    return TABLE.get(code)


def lookup_text(code: str) -> Xid | None:
    """Return the row of an Xid given as text; None for an unlisted number, or a text that is not a number."""
    return lookup(int(code)) if code.isascii() and code.isdigit() and len(code) <= _LONGEST_CODE else None
