"""What each cause means, and what proves it. What a person does about it is a table of its own: remedies.py.

One row per cause. bench/classification.py writes the table of docs/reference/causes.md from both; `supervise classify` prints the meaning.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.core.model import Cause
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping


class Explanation(Struct, frozen=True):
    """A cause in sentences. proof: the evidence that a verdict of it stands on."""

    meaning: str
    proof: str


_ROWS = {
    Cause.CUDA_OOM: Explanation(
        "The GPU ran out of memory",
        "torch's OutOfMemoryError in every wording since 0.4, cudaErrorMemoryAllocation, NCCL's or cuBLAS's own failure to allocate",
    ),
    Cause.HOST_OOM: Explanation(
        "The machine or the cgroup ran out of main memory",
        "the kernel's OOM record, a cgroup's oom_kill count when a process was killed, "
        "Slurm's oom-kill, std::bad_alloc, MemoryError, torch's DefaultCPUAllocator",
    ),
    Cause.SHM_EXHAUSTED: Explanation(
        "/dev/shm is full: ranks and DataLoader workers pass data through it",  # noqa: S108  a sentence
        "torch's 'unable to write to file </torch_…>', 'insufficient shared memory', No space left on device for a file in /dev/shm",
    ),
    Cause.NCCL_TIMEOUT: Explanation(
        "A collective did not finish in time, and no other evidence says why: a rank did not reach it, or is far behind",
        "NCCL's watchdog: 'ran for N milliseconds before timing out', with collective and sequence number",
    ),
    Cause.NCCL_NETWORK: Explanation(
        "The network between GPUs failed: InfiniBand, RoCE or sockets",
        "NCCL's remote error and system error, ibv_* failures, 'Got completion with error', a peer that closed its connection",
    ),
    Cause.NCCL_INIT: Explanation(
        "NCCL could not start: versions, devices or plugins do not match",
        "invalid usage, 'Duplicate GPU detected', no CUDA device, versions that differ between nodes, a missing requested network plugin",
    ),
    Cause.GLOO_ERROR: Explanation(
        "A gloo connection broke, and no failed peer is known",
        "gloo's 'Connection closed by peer', 'connectFullMesh failed', 'Timed out waiting'",
    ),
    Cause.RENDEZVOUS: Explanation(
        "The ranks did not find each other",
        "errors of torch's rendezvous and TCPStore, of init_process_group, of etcd; an address in use",
    ),
    Cause.NODE_LOST: Explanation(
        "A node of the job was lost, or left",
        "the store of the nodes: nothing came from it for as long as nodes.lease_s allows, or its supervise ended",
    ),
    Cause.GPU_ECC: Explanation(
        "The GPU's memory had an uncorrectable error, or so many errors that parts of it were taken out of use",
        "Xid 48, 64, 94, 95, 140 and 172 (not corrected), 63, 92, 160, 161 and 171 (recorded) in the kernel's log, "
        "'uncorrectable ECC error encountered', NVML's counts of uncorrectable errors, of rows and of pages that moved during the attempt",
    ),
    Cause.GPU_LOST: Explanation(
        "The GPU no longer answers",
        "Xid 79, 'GPU has fallen off the bus', 'GPU is lost' from nvidia-smi or NVML, a GPU that NVML does not list any more",
    ),
    Cause.GPU_XID_OTHER: Explanation(
        "The driver reported another error of the GPU",
        "an Xid in the kernel's log or from NVML that is no consequence (43 and 45 are); a recovery that the driver asks for",
    ),
    Cause.NVLINK: Explanation(
        "A link between GPUs, or the fabric that joins them, failed",
        "Xid 74, 144 to 150 and 155, SXid records of the NVSwitch driver, 'uncorrectable NVLink error', the fabric manager's errors, "
        "a link that NVML saw go down",
    ),
    Cause.GPU_DRIVER: Explanation(
        "Driver and CUDA do not match, or no driver is loaded",
        "'driver version is insufficient', version mismatch, no devices, 'no kernel image is available', Failed to initialize NVML",
    ),
    Cause.CUDA_ILLEGAL_ACCESS: Explanation(
        "A CUDA kernel accessed memory outside its allocation, or an assertion in it failed",
        "'an illegal memory access was encountered', 'device-side assert triggered', misaligned address, unspecified launch failure",
    ),
    Cause.CHECKPOINT_CORRUPT: Explanation(
        "A checkpoint is torn, truncated or altered",
        "torch.load's errors about the zip archive or the pickle, safetensors' header and length errors, a checksum that differs",
    ),
    Cause.CHECKPOINT_MISMATCH: Explanation(
        "A checkpoint is whole, but belongs to another model or optimizer",
        "load_state_dict's missing or unexpected keys and size mismatches, parameter groups that differ, a "
        "sharded checkpoint of another layout",
    ),
    Cause.CHECKPOINT_LEFTOVER: Explanation(
        "What an earlier attempt left of a save is in the way or was loaded, or the script looks for a file that supervise set aside",
        "an exception that names a path in a checkpoint location, or comes of a save, and what lies there: the rest of a save, or nothing",
    ),
    Cause.CHECKPOINT_POINTER: Explanation(
        "A link, or the file that names the latest checkpoint, leads to itself, to nothing, or to a checkpoint that is not whole",
        "an exception while a checkpoint was loaded, and the pointer on the way to it, as it is on the disk",
    ),
    Cause.CACHE_CORRUPT: Explanation(
        "A file of a library's cache is damaged: half-written, or of another version",
        "an error of a reader (library, JSON, pickle, zip, Arrow) whose path lies in a cache (torch_extensions, torchinductor, Triton, "
        "Numba, Hugging Face, __pycache__, ~/.cache), or that came through the function that reads one",
    ),
    Cause.DISK_FULL: Explanation(
        "A file system, or a quota, is full",
        "No space left on device, Disk quota exceeded (ENOSPC, EDQUOT), torch's file writer with 'unexpected pos'",
    ),
    Cause.IO_ERROR: Explanation(
        "A file system reported an I/O error",
        "Input/output error, Stale file handle, Read-only file system, Transport endpoint is not connected, the kernel's I/O errors, "
        "a process of the job that KILL does not end",
    ),
    Cause.STORAGE_REMOTE: Explanation(
        "A service that holds data, models or checkpoints did not answer, or refused",
        "errors of S3, GCS and HTTP clients, of the Hugging Face hub, of DNS; time-outs, throttling, expired credentials",
    ),
    Cause.DATALOADER_WORKER: Explanation(
        "A DataLoader worker died or did not answer",
        "'DataLoader worker (pid N) is killed by signal', 'exited unexpectedly', its time-out; too many open files",
    ),
    Cause.DATA_ERROR: Explanation(
        "The program could not read the data",
        "exceptions from within DataLoader's fetch and collate, of decoders and parsers: images, JSON, Parquet, UTF-8, tokens",
    ),
    Cause.DDP_UNSYNCED: Explanation(
        "The ranks differ: in collectives, shapes or parameters",
        "DDP's 'Expected to have finished reduction', 'verify_params', mismatched collectives or sizes, a barrier "
        "that some ranks never reach",
    ),
    Cause.NAN_LOSS: Explanation(
        "The loss or the gradients are NaN or infinite",
        "a check that stopped the program: loss is NaN, anomaly mode, the loss scale at its minimum",
    ),
    Cause.HANG_NO_ERROR: Explanation(
        "The job stood still, and no error was raised",
        "two looks at all ranks that show the same ([hangs](hangs.md)); a watchdog's or a person's stop after silence: stack dumps, "
        "heartbeat monitors, 'no progress'",
    ),
    Cause.USER_CODE: Explanation(
        "The training program itself failed",
        "an exception that no other cause explains, or an exit code that the program chose",
    ),
    Cause.DEPENDENCY: Explanation(
        "A library is missing, or libraries do not match each other",
        "a module that is not installed, undefined symbols, GLIBC or ABI versions, a shared library that is missing, torch without CUDA, "
        "versions that a package refuses, "
        "'Illegal instruction' in the output: built for another processor",
    ),
    Cause.PREEMPTED: Explanation(
        "A scheduler, the machine or its administrator ended the job from outside",
        "Slurm's cancel, preemption and time limit, a spot notice, torchrun's or Lightning's message about a TERM",
    ),
    Cause.INTERRUPTED: Explanation(
        "A person stopped the job with Ctrl-C",
        "KeyboardInterrupt as the last exception, SIGINT, torchrun's or DeepSpeed's message about an INT",
    ),
    Cause.SEGFAULT: Explanation(
        "Native code accessed invalid memory",
        "SIGSEGV or SIGBUS, 'Segmentation fault', faulthandler's stacks",
    ),
    Cause.UNKNOWN_NATIVE_ABORT: Explanation(
        "Native code aborted without a known reason",
        "SIGABRT, SIGILL or SIGFPE, 'terminate called', a failed assertion in C++, glibc's 'double free'",
    ),
    Cause.KILLED_UNKNOWN: Explanation(
        "A process was killed, and no evidence shows by whom",
        "SIGKILL (or another signal) without a record of the kernel, the cgroup or a scheduler; an INT to one rank of several",
    ),
    Cause.UNKNOWN: Explanation(
        "Something failed, and no evidence shows convincingly why",
        "a launcher's footer alone, an exit code 1 without a traceback, no evidence",
    ),
    Cause.NONE: Explanation(
        "No sign of a failure",
        "a log with none of the evidence above",
    ),
}
EXPLANATIONS: Mapping[Cause, Explanation] = MappingProxyType(_ROWS)
