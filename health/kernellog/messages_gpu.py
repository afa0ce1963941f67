"""What the kernel and its drivers say of GPUs and NVSwitches. One row for each form; see forms.py.

The samples in tests/health/kernellog name where each form was met.
"""

# ruff: noqa: E501  (a pattern is read in one piece)

from __future__ import annotations

from typing import Final

from health.kernellog.message_form import PCI, Form, Role, form
from health.kernellog.model import Severity
from health.model import Repair

_INFO, _WARNING, _ERROR, _CRITICAL = Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.CRITICAL
_NONE, _JOB, _GPU, _DRIVER, _REBOOT, _DRAIN = (
    Repair.NONE,
    Repair.RESTART_JOB,
    Repair.RESET_GPU,
    Repair.RESTART_DRIVER,
    Repair.REBOOT,
    Repair.DRAIN,
)
#: PCI: is missing in old drivers; a MIG instance stands behind the address.
_XID_HEAD = r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F]+(?::[0-9a-fA-F]+)+(?:\.[0-7])?)(?:[ ,]+(?P<mig>GPU-I:\d+))?(?:[ ,]+GPU-CI:\d+)?\): (?P<number>\d+)\b"
_XID_WHO = r"(?:, *pid=(?:(?P<pid>\d+)|'?<unknown>'?))?(?:, *name=(?P<process>[^,]{1,64}))?"

GPU_FORMS: Final[tuple[Form, ...]] = (
    form("xid", "", "NVRM: Xid (", _XID_HEAD + _XID_WHO + r"(?:,\s*(?P<rest>.*))?", _ERROR, _NONE, "an Xid"),
    form(
        "sxid",
        "",
        "SXid (",
        r"(?P<subject>nvidia-nvswitch\d+): SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<number>\d+)\b(?:, *(?P<fatal>Non-fatal|Fatal))?(?:, *Link (?P<link>\d+))?(?P<rest>.*)",
        _ERROR,
        _NONE,
        "an error of an NVSwitch",
    ),
    form(
        "nvrm",
        "api_mismatch",
        "API mismatch",
        r"NVRM: API mismatch: the client(?: '(?P<process>[^']*)' \(pid (?P<pid>\d+)\)| has the version (?P<client>[\d.]+))?",
        _CRITICAL,
        _DRIVER,
        "the libraries and the kernel module of the driver are of different versions",
    ),
    form(
        "nvrm",
        "gpu_lost",
        "fallen off the bus",
        rf"NVRM: (?:.*?\b(?:PCI:)?{PCI})?.*\bfallen off the bus",
        _CRITICAL,
        _REBOOT,
        "the GPU is not reachable over PCIe",
    ),
    form(
        "nvrm",
        "gpu_lost",
        "GPU is lost",
        rf"NVRM: (?:.*?\b(?:PCI:)?{PCI})?.*\bGPU is lost",
        _CRITICAL,
        _REBOOT,
        "the GPU is not reachable over PCIe",
    ),
    form(
        "nvrm",
        "gpu_init_failed",
        "nit",
        rf"NVRM: (?:GPU )?(?:(?:at )?(?:PCI:)?{PCI}: ?)?(?:RmInitAdapter failed|rm_init_adapter\(?\)? ?failed|rm_init_private_state\(?\)? ?failed)",
        _CRITICAL,
        _GPU,
        "the GPU could not be initialised",
    ),
    form(
        "nvrm",
        "gpu_init_failed",
        "NVIDIA",
        r"NVRM: (?:None of the NVIDIA (?:graphics adapters|devices) were initialized|The NVIDIA probe routine failed for \d+ device)",
        _CRITICAL,
        _DRIVER,
        "the driver could not use a GPU that is there",
    ),
    form(
        "nvrm",
        "gpu_init_failed",
        "probe",
        rf"nvidia(?:: probe of)? {PCI}(?:: probe)?(?: with driver nvidia)? failed with error -\d+",
        _CRITICAL,
        _DRIVER,
        "the driver could not use a GPU that is there",
    ),
    form(
        "nvrm",
        "gpu_unsupported",
        "NVRM: The NVIDIA GPU",
        rf"NVRM: The NVIDIA GPU (?:at )?(?:PCI:)?{PCI}(?! .*fallen off)",
        _ERROR,
        Repair.CONFIGURE,
        "the driver does not support a GPU that is there, or wants its other kernel modules",
    ),
    form(
        "nvrm",
        "bar_invalid",
        "This PCI I/O region",
        r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid",
        _CRITICAL,
        Repair.CONFIGURE,
        "the firmware gave a GPU no valid address range",
    ),
    form(
        "nvrm",
        "gsp_heartbeat_timeout",
        "eartbeat",
        rf"NVRM: (?:GPU ?(?P<subject>\d+) |GPU (?:at )?(?:PCI:)?{PCI}:? )?.*[Hh]eartbeat(?: has)? (?:timed out|timeout)",
        _CRITICAL,
        _GPU,
        "the GPU's system processor (GSP) does not answer",
    ),
    form(
        "nvrm",
        "gsp_crash",
        "GSP",
        rf"NVRM: (?:GPU ?(?P<subject>\d+) |GPU (?:at )?(?:PCI:)?{PCI}:? )?.*(?:GSP-CrashCat Report|GSP (?:task|firmware) (?:exception|crash)|GSP-RM (?:has )?(?:crashed|halted))",
        _CRITICAL,
        _GPU,
        "the GPU's system processor (GSP) crashed",
    ),
    form(
        "nvrm",
        "gsp_timeout",
        "imeo",
        rf"NVRM: (?:GPU ?(?P<subject>\d+) |GPU (?:at )?(?:PCI:)?{PCI}:? )?.*(?:rpcRecvPoll timed ?out|_kgspRpcRecvPoll.*(?:[Tt]imeout|timed ?out)|GSP Timeout)",
        _CRITICAL,
        _GPU,
        "the GPU's system processor (GSP) does not answer",
    ),
    form(
        "nvrm",
        "crash_dump",
        "crash dump",
        r"NVRM: A GPU crash dump has been created",
        _WARNING,
        _NONE,
        "the driver kept a crash dump of a GPU; nvidia-bug-report.sh collects it",
        Role.PART,
    ),
    form(
        "nvrm",
        "gpu_uuid",
        "NVRM: GPU at",
        rf"NVRM: GPU at (?:PCI:)?{PCI}: (?P<uuid>GPU-[0-9a-f-]+)",
        _INFO,
        _NONE,
        "the driver names a GPU, which it does before its first Xid",
        Role.PART,
    ),
    form(
        "peermem",
        "invalid_context",
        "peermem",
        r"nvidia[-_]peermem .*ERROR",
        _WARNING,
        _NONE,
        "GPUDirect RDMA memory was freed while it was still registered",
    ),
    form(
        "amdgpu",
        "uncorrectable",
        "uncorrectable hardware error",
        rf"amdgpu {PCI}: .*(?<!\b0 )(?<!\b0 new )uncorrectable hardware error",
        _CRITICAL,
        _GPU,
        "an uncorrectable error in an AMD GPU",
    ),
    form(
        "amdgpu",
        "correctable",
        " correctable hardware error",
        rf"amdgpu {PCI}: .*\b[1-9]\d* (?:new )?correctable hardware error",
        _INFO,
        _NONE,
        "corrected errors in an AMD GPU",
    ),
    form(
        "amdgpu",
        "ring_timeout",
        "timeout",
        rf"(?:amdgpu {PCI}: )?(?:amdgpu: )?(?:\[drm(?::amdgpu_job_timedout \[amdgpu\])?\] )?(?:\*ERROR\* )?ring (?P<subject>\S+) timeout",
        _ERROR,
        _GPU,
        "an AMD GPU stopped processing",
    ),
    form(
        "amdgpu",
        "reset_failed",
        "reset",
        rf"amdgpu {PCI}: .*(?:GPU reset end with ret = -\d+|GPU reset\(\d+\) failed|GPU Recovery Failed)",
        _CRITICAL,
        _REBOOT,
        "an AMD GPU could not be reset",
    ),
    form(
        "amdgpu",
        "reset_begin",
        "GPU reset begin",
        rf"amdgpu {PCI}: .*GPU reset begin",
        _ERROR,
        _JOB,
        "an AMD GPU is reset: what ran on it is lost",
    ),
    form(
        "amdgpu",
        "reset_begin",
        "GPU reset",
        rf"amdgpu {PCI}: .*GPU reset(?:\(\d+\))? succeeded",
        _ERROR,
        _JOB,
        "an AMD GPU was reset: what ran on it is lost",
        Role.PART,
    ),
    form(
        "amdgpu", "vram_lost", "VRAM is lost", rf"(?:amdgpu {PCI}: )?.*VRAM is lost", _ERROR, _JOB, "an AMD GPU lost its memory in a reset"
    ),
    form(
        "amdgpu",
        "page_fault",
        "page fault",
        rf"amdgpu {PCI}: .*page fault \(src_id",
        _ERROR,
        _JOB,
        "a kernel touched an unmapped address of an AMD GPU",
    ),
    form(
        "amdgpu",
        "fatal_init",
        "Fatal error during GPU init",
        rf"amdgpu {PCI}: .*Fatal error during GPU init",
        _CRITICAL,
        _REBOOT,
        "an AMD GPU could not be initialised",
    ),
    form(
        "amdgpu",
        "preemption_failed",
        "unrecoverable state",
        r"(?:amdgpu.*|kfd.*)?The cp might be in an unrecoverable state",
        _ERROR,
        _GPU,
        "an AMD GPU's queues could not be taken off it",
    ),
)
