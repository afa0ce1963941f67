"""Causes in a GPU, its links and its driver. Pure."""

from __future__ import annotations

from supervisor.core.causes.row import ENVIRONMENT, GUARDS, LAST, NATIVE, SUSPECTS, CauseRow, Family, line
from supervisor.core.model import Cause

_GPU = (*GUARDS, "exclude_gpu", "same_gpu_twice", LAST)

ROWS: dict[Cause, CauseRow] = {
    Cause.GPU_ECC: CauseRow(
        meaning="The GPU's memory is failing: errors that cannot be corrected, or too many",
        proof=(
            "Xid 48, 64, 94, 95, 140 and 172 (not corrected), 63, 92, 160, 161 and 171 (recorded) in the kernel's log, "
            "'uncorrectable ECC error encountered', NVML's counts of uncorrectable errors, of rows and of pages that moved "
            "during the attempt"
        ),
        family=Family.INFRASTRUCTURE,
        changes_job=True,
        of_gpu=True,
        ladder=_GPU,
        hints=(
            line("reset GPU {gpu} before it is used again", "find the GPU (`supervise doctor`, the kernel's log), and reset it"),
            line("replace it where rows can no longer be remapped (nvidia-smi -q -d ROW_REMAPPER)"),
        ),
    ),
    Cause.GPU_LOST: CauseRow(
        meaning="The GPU no longer answers",
        proof="Xid 79, 'GPU has fallen off the bus', 'GPU is lost' from nvidia-smi or NVML, a GPU that NVML does not list any more",
        family=Family.INFRASTRUCTURE,
        changes_job=True,
        of_gpu=True,
        ladder=_GPU,
        hints=(
            line(
                "reboot the node of GPU {gpu}; if it happens again, check power, temperature and seating, and have it replaced",
                "reboot the node; if it happens again, check power, temperature and seating of its GPUs",
            ),
        ),
    ),
    Cause.GPU_XID_OTHER: CauseRow(
        meaning="The driver reported another error of the GPU",
        proof="an Xid in the kernel's log or from NVML that is not a consequence (43 and 45 are); a recovery that the driver asks for",
        family=Family.INFRASTRUCTURE,
        changes_job=True,
        of_gpu=True,
        ladder=_GPU,
        hints=(
            line(
                "read what Xid {xid} means in the evidence: some are faults of the program, some of the hardware",
                "read the evidence: some errors are faults of the program, some of the hardware",
            ),
            line("drain the node if it comes back on GPU {gpu}", "drain the node if it comes back on one GPU"),
        ),
    ),
    Cause.NVLINK: CauseRow(
        meaning="A link between GPUs, or the fabric that joins them, failed",
        proof=(
            "Xid 74, 144 to 150 and 155, SXid records of the NVSwitch driver, 'uncorrectable NVLink error', the fabric "
            "manager's errors, a link that NVML saw go down"
        ),
        family=Family.INFRASTRUCTURE,
        changes_job=True,
        of_gpu=True,
        ladder=_GPU,
        hints=(
            line(
                "reset the GPUs of the fabric together, or reboot; check nvidia-fabricmanager and nvidia-smi nvlink -e; replace "
                "what comes back"
            ),
        ),
    ),
    Cause.GPU_DRIVER: CauseRow(
        meaning="Driver and CUDA do not match, or no driver is loaded",
        proof=("'driver version is insufficient', version mismatch, no devices, 'no kernel image is available', Failed to initialize NVML"),
        changes_job=True,
        may_be_of_cache=True,
        ladder=(*GUARDS, *ENVIRONMENT),
        hints=(
            line(
                "use another node, or install a driver that the CUDA version of torch needs; after an upgrade reload the module or "
                "reboot; check that the container sees the GPUs"
            ),
        ),
    ),
    Cause.DEVICE_ORDINAL: CauseRow(
        meaning="A rank asked for a GPU that it does not see",
        proof="'invalid device ordinal' of CUDA or HIP, 'Invalid device id' of torch; a list of GPUs that names one which is not there",
        ladder=(*SUSPECTS, *ENVIRONMENT),
        hints=(
            line(
                "start as many ranks on a node as GPUs are visible there: compare --nproc-per-node (num_processes of accelerate, slots of "
                "DeepSpeed) with CUDA_VISIBLE_DEVICES and `nvidia-smi -L`"
            ),
            line("have the script take the GPU of LOCAL_RANK, which counts on each node from 0, and not of RANK"),
        ),
    ),
    Cause.CUDA_ILLEGAL_ACCESS: CauseRow(
        meaning="A CUDA kernel accessed memory outside its allocation, or an assertion in it failed",
        proof=(
            "'an illegal memory access was encountered', 'device-side assert triggered', misaligned address, unspecified launch failure"
        ),
        family=Family.NATIVE,
        ladder=NATIVE,
        hints=(
            line("look for an index out of range in the data (labels, token ids); run once with CUDA_LAUNCH_BLOCKING=1"),
            line("suspect GPU {gpu} if it stays on that one"),
        ),
    ),
}
