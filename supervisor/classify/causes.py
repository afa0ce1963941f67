"""What each cause means, what proves it, and what a person does about it.

One row per cause. bench/classification.py writes the table of docs/reference/causes.md from them; `supervise classify` prints the meaning
and the remedy.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.core.model import Cause
from supervisor.core.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause in sentences. proof: the evidence that a verdict of it stands on. remedy: what a person does."""

    meaning: str
    proof: str
    remedy: str


_ROWS = {
    Cause.CUDA_OOM: Explanation(
        "The GPU ran out of memory",
        "torch's OutOfMemoryError in every wording since 0.4, cudaErrorMemoryAllocation, NCCL's or cuBLAS's own failure to allocate",
        "End other processes that hold memory; if much is reserved but unallocated, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; else halve the micro-batch and double the gradient accumulation",
    ),
    Cause.HOST_OOM: Explanation(
        "The machine or the cgroup ran out of main memory",
        "the kernel's OOM record, a cgroup's oom_kill count when a process was killed, "
        "Slurm's oom-kill, std::bad_alloc, MemoryError, torch's DefaultCPUAllocator",
        "Raise the memory limit, or use less: fewer DataLoader workers, a smaller prefetch, no whole data set in memory",
    ),
    Cause.SHM_EXHAUSTED: Explanation(
        "/dev/shm is full: DataLoader workers pass their batches through it",  # noqa: S108  a sentence
        "torch's 'unable to write to file </torch_…>', 'insufficient shared memory', No space left on device for a file in /dev/shm",
        "Give the container more (docker --shm-size, an emptyDir with medium Memory), or use fewer DataLoader workers",
    ),
    Cause.NCCL_TIMEOUT: Explanation(
        "A collective did not finish in time, and no other evidence says why: a rank did not reach it, or is far behind",
        "NCCL's watchdog: 'ran for N milliseconds before timing out', with collective and sequence number",
        "Find the missing rank: it has no timeout, or a lower sequence number; look at what it did (stack, data, I/O)",
    ),
    Cause.NCCL_NETWORK: Explanation(
        "The network between GPUs failed: InfiniBand, RoCE or sockets",
        "NCCL's remote error and system error, ibv_* failures, 'Got completion with error', a peer that closed its connection",
        "Check the port or host that the evidence names (ibstat, link counters, cabling), and NCCL_SOCKET_IFNAME and NCCL_IB_HCA",
    ),
    Cause.NCCL_INIT: Explanation(
        "NCCL could not start: versions, devices or plugins do not match",
        "invalid usage, 'Duplicate GPU detected', no CUDA device, versions that differ between nodes, a missing requested network plugin",
        "Give each rank a GPU of its own, and make driver, CUDA, NCCL and torch equal on all nodes; NCCL_DEBUG=INFO shows the rest",
    ),
    Cause.GLOO_ERROR: Explanation(
        "A gloo connection broke, and no failed peer is known",
        "gloo's 'Connection closed by peer', 'connectFullMesh failed', 'Timed out waiting'",
        "Look for the missing peer on the other nodes; name the interface with GLOO_SOCKET_IFNAME",
    ),
    Cause.RENDEZVOUS: Explanation(
        "The ranks did not find each other",
        "errors of torch's rendezvous and TCPStore, of init_process_group, of etcd; an address in use",
        "Check that MASTER_ADDR and MASTER_PORT are reachable from all nodes and free, and that all nodes start within the time allowed",
    ),
    Cause.GPU_ECC: Explanation(
        "The GPU's memory had an uncorrectable error, or so many errors that parts of it were taken out of use",
        "Xid 48, 64, 94, 95, 140 and 172 (not corrected), 63, 92, 160, 161 and 171 (recorded) in the kernel's log, "
        "'uncorrectable ECC error encountered', NVML's counts of uncorrectable errors, of rows and of pages that moved during the attempt",
        "Reset the GPU before it is used again; replace it where rows can no longer be remapped (nvidia-smi -q -d ROW_REMAPPER)",
    ),
    Cause.GPU_LOST: Explanation(
        "The GPU no longer answers",
        "Xid 79, 'GPU has fallen off the bus', 'GPU is lost' from nvidia-smi or NVML, a GPU that NVML does not list any more",
        "Reboot the node; if it happens again, check power, temperature and seating, and have the GPU replaced",
    ),
    Cause.GPU_XID_OTHER: Explanation(
        "The driver reported another error of the GPU",
        "an Xid in the kernel's log or from NVML that is no consequence (43 and 45 are); a recovery that the driver asks for",
        "Read the Xid's meaning in the evidence: some are faults of the program, some of the hardware; "
        "if it comes back on one GPU, drain the node",
    ),
    Cause.NVLINK: Explanation(
        "A link between GPUs, or the fabric that joins them, failed",
        "Xid 74, 144 to 150 and 155, SXid records of the NVSwitch driver, 'uncorrectable NVLink error', the fabric manager's errors, "
        "a link that NVML saw go down",
        "Reset the GPUs of the fabric together, or reboot; check nvidia-fabricmanager and nvidia-smi nvlink -e; replace what comes back",
    ),
    Cause.GPU_DRIVER: Explanation(
        "Driver and CUDA do not match, or no driver is loaded",
        "'driver version is insufficient', version mismatch, no devices, 'no kernel image is available', Failed to initialize NVML",
        "Install a driver that the CUDA version of torch needs; after an upgrade reload the module or reboot; "
        "check that the container sees the GPUs",
    ),
    Cause.CUDA_ILLEGAL_ACCESS: Explanation(
        "A CUDA kernel accessed memory outside its allocation, or an assertion in it failed",
        "'an illegal memory access was encountered', 'device-side assert triggered', misaligned address, unspecified launch failure",
        "Look for an index out of range in the data (labels, token ids); run once with CUDA_LAUNCH_BLOCKING=1; on "
        "one GPU only, suspect the GPU",
    ),
    Cause.CHECKPOINT_CORRUPT: Explanation(
        "A checkpoint is torn, truncated or altered",
        "torch.load's errors about the zip archive or the pickle, safetensors' header and length errors, a checksum that differs",
        "Resume from an older one; write checkpoints to a temporary name, fsync, then rename",
    ),
    Cause.CHECKPOINT_MISMATCH: Explanation(
        "A checkpoint is whole, but belongs to another model or optimizer",
        "load_state_dict's missing or unexpected keys and size mismatches, parameter groups that differ, a "
        "sharded checkpoint of another layout",
        "Resume from a checkpoint of this configuration, or convert it; strict=False hides the difference",
    ),
    Cause.CHECKPOINT_LEFTOVER: Explanation(
        "What an earlier attempt left of a save is in the way of the next one, or the script looks for a file that supervise set aside",
        "an exception that names a path in a checkpoint location, and what lies there: the rest of a save, or nothing since it was moved",
        "Move what is in the way to where the script does not look: the card has the command; let the script write to a temporary name and "
        "rename it",
    ),
    Cause.CHECKPOINT_POINTER: Explanation(
        "A link, or the file that names the latest checkpoint, leads to itself, to nothing, or to a checkpoint that is not whole",
        "an exception while a checkpoint was loaded, and the pointer on the way to it, as it is on the disk",
        "Let it lead to the newest whole checkpoint: the card has the command (ln -sfn); move it only once a save is on the disk",
    ),
    Cause.DISK_FULL: Explanation(
        "A file system, or a quota, is full",
        "No space left on device, Disk quota exceeded (ENOSPC, EDQUOT), torch's file writer with 'unexpected pos'",
        "Make room on the file system of the path in the evidence; mostly old checkpoints and caches fill it",
    ),
    Cause.IO_ERROR: Explanation(
        "A file system reported an I/O error",
        "Input/output error, Stale file handle, Read-only file system, Transport endpoint is not connected, the kernel's I/O errors, "
        "a process of the job that KILL does not end",
        "Check the mount and the device on the node (dmesg, smartctl, the server's state); "
        "a run on another node shows whether this node is at fault",
    ),
    Cause.STORAGE_REMOTE: Explanation(
        "A service that holds data, models or checkpoints did not answer, or refused",
        "errors of S3, GCS and HTTP clients, of the Hugging Face hub, of DNS; time-outs, throttling, expired credentials",
        "Renew the credentials if it refused; else try again later, and keep a local copy (HF_HUB_OFFLINE=1)",
    ),
    Cause.DATALOADER_WORKER: Explanation(
        "A DataLoader worker died or did not answer",
        "'DataLoader worker (pid N) is killed by signal', 'exited unexpectedly', its time-out; too many open files",
        "Look at the signal: KILL is memory, BUS is /dev/shm, SEGV is a library; num_workers=0 shows the real exception",
    ),
    Cause.DATA_ERROR: Explanation(
        "The program could not read the data",
        "exceptions from within DataLoader's fetch and collate, of decoders and parsers: images, JSON, Parquet, UTF-8, tokens",
        "Look at the sample or file in the message; skip or repair it",
    ),
    Cause.DDP_UNSYNCED: Explanation(
        "The ranks differ: in collectives, shapes or parameters",
        "DDP's 'Expected to have finished reduction', 'verify_params', mismatched collectives or sizes, a barrier "
        "that some ranks never reach",
        "Find where the ranks diverge: a branch on rank or data, unused parameters (find_unused_parameters=True), a shorter last batch",
    ),
    Cause.NAN_LOSS: Explanation(
        "The loss or the gradients are NaN or infinite",
        "a check that stopped the program: loss is NaN, anomaly mode, the loss scale at its minimum",
        "Go back to an earlier checkpoint; lower the learning rate, clip gradients, look at the batch of that step; bf16 instead of fp16",
    ),
    Cause.HANG_NO_ERROR: Explanation(
        "The job stood still, and no error was raised",
        "two looks at all ranks that show the same ([hangs](hangs.md)); a watchdog's or a person's stop after silence: stack dumps, "
        "heartbeat monitors, 'no progress'",
        "Look at the rank that its peers wait for, at the line that its stack names; else compare the stacks of all ranks at that time",
    ),
    Cause.USER_CODE: Explanation(
        "The training program itself failed",
        "an exception that no other cause explains, or an exit code that the program chose",
        "Correct it at the file and line that the traceback names",
    ),
    Cause.DEPENDENCY: Explanation(
        "A library is missing, or libraries do not match each other",
        "a module that is not installed, undefined symbols, GLIBC or ABI versions, a shared library that is missing, torch without CUDA, "
        "versions that a package refuses, "
        "'Illegal instruction' in the output: built for another processor",
        "Install what is missing, or versions that were built for each other, in a fresh environment",
    ),
    Cause.PREEMPTED: Explanation(
        "A scheduler, the machine or its administrator ended the job from outside",
        "Slurm's cancel, preemption and time limit, a spot notice, torchrun's or Lightning's message about a TERM",
        "Start it again: it resumes from its newest checkpoint; ask for more time if a limit ended it",
    ),
    Cause.INTERRUPTED: Explanation(
        "A person stopped the job with Ctrl-C",
        "KeyboardInterrupt as the last exception, SIGINT, torchrun's or DeepSpeed's message about an INT",
        "Nothing failed; start it again where it should go on",
    ),
    Cause.SEGFAULT: Explanation(
        "Native code accessed invalid memory",
        "SIGSEGV or SIGBUS, 'Segmentation fault', faulthandler's stacks",
        "Look at the innermost frames of faulthandler's stack (python -X faulthandler): change the library there",
    ),
    Cause.UNKNOWN_NATIVE_ABORT: Explanation(
        "Native code aborted without a known reason",
        "SIGABRT, SIGILL or SIGFPE, 'terminate called', a failed assertion in C++, glibc's 'double free'",
        "Read the lines before the abort; a core dump or gdb names the library",
    ),
    Cause.KILLED_UNKNOWN: Explanation(
        "A process was killed, and no evidence shows by whom",
        "SIGKILL (or another signal) without a record of the kernel, the cgroup or a scheduler; an INT to one rank of several",
        "Look at the kernel's log of that node and time (journalctl -k): lack of memory is the usual reason; then ask who may kill there",
    ),
    Cause.UNKNOWN: Explanation(
        "Something failed, and no evidence shows convincingly why",
        "a launcher's footer alone, an exit code 1 without a traceback, no evidence",
        "Look at the other ranks' and nodes' logs from before the first failure; classify all of them together",
    ),
    Cause.NONE: Explanation(
        "No sign of a failure",
        "a log with none of the evidence above",
        "Nothing; if the job did fail, the evidence is in another log",
    ),
}
EXPLANATIONS: Mapping[Cause, Explanation] = MappingProxyType(_ROWS)
