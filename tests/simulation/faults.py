"""The evidence that observers would find of a fault, for each cause.

A Strike is a true fault: its cause, its place, and how clearly it shows. The texts are those that the programs write, and a row's claim
is that of its signature. test_faults.py proves for each row that `classify` finds the cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, Claim, Evidence, Phase, RankExit

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Weight of a claim that is read in words of a log only.
VAGUE = 0.7


@dataclass(frozen=True, slots=True)
class Kind:
    """One way in which a cause shows. `signal` or `code`: how the culprit ends; `weight` 0: its end or type says it, no signature."""

    name: str
    text: str
    weight: float = 0.95
    source: str = "error_file"
    signal: int | None = None
    code: int = 1
    transient: bool = False


#: At least three kinds of each cause that may come before the first step, so that failures of one cause can differ.
_WRITTEN: Mapping[Cause, tuple[Kind, ...]] = {
    Cause.CUDA_OOM: (
        Kind("cuda_oom.torch", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 0.97, transient=True),
        Kind("cuda_oom.cublas", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", 0.93),
    ),
    Cause.HOST_OOM: (
        Kind("oom_kill", "1 process of the cgroup was killed for memory", 0.0, "cgroup", signal=9, transient=True),
        Kind("host_oom.kernel", "Memory cgroup out of memory: Killed process 4242 (python)", 0.97, "kernel", signal=9, transient=True),
    ),
    Cause.SHM_EXHAUSTED: (
        Kind("shm_exhausted.file", "RuntimeError: unable to write to file </torch_77_1>: No space left on device (28)", 0.95),
        Kind("shm_exhausted.bus", "DataLoader worker (pid 77) is killed by signal: Bus error. insufficient shared memory (shm)", 0.95),
    ),
    Cause.DATALOADER_WORKER: (
        Kind("dataloader_worker.killed", "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.", 0.92),
        Kind("dataloader_worker.exited", "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly", 0.92),
    ),
    Cause.NCCL_TIMEOUT: (
        Kind("nccl_timeout.watchdog", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", 0.9, signal=6, transient=True),
        Kind("nccl_timeout.barrier", "DistBackendError: wait timeout after 600000 ms in barrier", 0.9, transient=True),
        Kind("nccl_timeout.allgather", "Watchdog caught collective operation timeout: ALLGATHER", 0.9, signal=6, transient=True),
    ),
    Cause.NCCL_NETWORK: (
        Kind(
            "listed.nccl_network", "DistBackendError: ncclRemoteError: A call failed possibly due to a network error", 0.92, transient=True
        ),
        Kind("nccl_network.ib", "NET/IB: Got completion from peer with status=12 opcode=1", 0.92, "tail", transient=True),
        Kind("nccl_network.system", "DistBackendError: ncclSystemError: Connection timed out", 0.9, transient=True),
    ),
    Cause.DEVICE_ORDINAL: (
        Kind("device_ordinal.set_device", "torch.AcceleratorError: CUDA error: invalid device ordinal", 0.95),
        Kind("device_ordinal.properties", "AssertionError: Invalid device id", 0.95),
        Kind("device_ordinal.old", "RuntimeError: cuda runtime error (101) : invalid device ordinal at Module.cpp:59", 0.95),
    ),
    Cause.NCCL_INIT: (
        Kind("nccl_init.duplicate", "ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000", 0.95),
        Kind("nccl_init.none", "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", 0.95),
        Kind("nccl_init.version", "Mismatched NCCL version detected : NCCL version 2.26.2 running with 2.21.5", 0.92),
    ),
    Cause.GLOO_ERROR: (
        Kind("gloo_error.closed", "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711", 0.9),
        Kind("gloo_error.mesh", "RuntimeError: Gloo connectFullMesh failed with timed out connecting", 0.92, transient=True),
        Kind("gloo_error.wait", "RuntimeError: Timed out waiting 1800000ms for recv operation to complete", 0.9),
    ),
    Cause.RENDEZVOUS: (
        Kind("exception", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError: ", 0.0, "launcher", transient=True),
        Kind("rendezvous.port", "RuntimeError: The server socket has failed to listen: EADDRINUSE", 0.93, transient=True),
        Kind("rendezvous.store", "DistNetworkError: The client socket has timed out after 60000ms", 0.93, transient=True),
    ),
    Cause.NODE_LOST: (
        Kind("node_lost.silent", "node b:1 is lost: silent for 8 s", 0.95, "launcher", transient=True),
        Kind("node_lost.gone", "node b:1 is lost: its supervise is gone for 2 s", 0.95, "launcher", transient=True),
        Kind("node_lost.left", "node b:1 left: its supervise was stopped", 0.95, "launcher", transient=True),
    ),
    Cause.GPU_ECC: (
        Kind("gpu_ecc.xid", "NVRM: Xid (PCI:0000:1b:00): 48, Double Bit ECC Error", 0.97, "kernel"),
        Kind("gpu_ecc.cuda", "RuntimeError: CUDA error: uncorrectable ECC error encountered", 0.97),
    ),
    Cause.GPU_LOST: (
        Kind("gpu_lost.xid", "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", 0.98, "kernel"),
        Kind("gpu_lost.nvml", "Unable to determine the device handle for GPU: GPU is lost.", 0.95, "host"),
    ),
    Cause.GPU_XID_OTHER: (
        Kind("gpu_xid_other.xid", "NVRM: Xid (PCI:0000:1b:00): 62, internal micro-controller halt", 0.93, "kernel"),
        Kind(
            "gpu_xid_other.xid_process",
            "NVRM: Xid (PCI:0000:1b:00): 32, pid=77, invalid push buffer stream",
            0.92,
            "kernel",
            transient=True,
        ),
    ),
    Cause.NVLINK: (
        Kind("nvlink.xid", "NVRM: Xid (PCI:0000:1b:00): 74, NVLink: fatal error detected on link 6", 0.93, "kernel"),
        Kind("nvlink.cuda", "RuntimeError: CUDA error: uncorrectable NVLink error was detected during the execution", 0.95),
    ),
    Cause.GPU_DRIVER: (
        Kind("gpu_driver.old", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)", 0.95),
        Kind("gpu_driver.nvml", "Failed to initialize NVML: Driver/library version mismatch", 0.95),
        Kind("gpu_driver.image", "RuntimeError: CUDA error: no kernel image is available for execution on the device", 0.93),
    ),
    Cause.CUDA_ILLEGAL_ACCESS: (
        Kind("cuda_illegal_access.torch", "RuntimeError: CUDA error: an illegal memory access was encountered", 0.93, transient=True),
        Kind("cuda_illegal_access.assert", "RuntimeError: CUDA error: device-side assert triggered", 0.93),
    ),
    Cause.CHECKPOINT_CORRUPT: (
        Kind(
            "checkpoint_corrupt.zip", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", 0.95
        ),
        Kind("checkpoint_corrupt.pickle", "_pickle.UnpicklingError: pickle data was truncated", 0.92),
    ),
    Cause.CHECKPOINT_MISMATCH: (
        Kind("checkpoint_mismatch.keys", "RuntimeError: Error(s) in loading state_dict for GPT: Missing key(s) in state_dict", 0.97),
        Kind("checkpoint_mismatch.groups", "ValueError: loaded state dict has a different number of parameter groups", 0.95),
        Kind(
            "checkpoint_mismatch.world_size",
            "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size is 7",
            0.95,
        ),
    ),
    Cause.CHECKPOINT_LEFTOVER: (
        Kind(
            "leftover",
            "/data/run/step-60 is in the way of the save: attempt 1 left it (a save began it and did not end)",
            0.97,
            "checkpoint",
        ),
    ),
    Cause.CHECKPOINT_POINTER: (Kind("pointer", "/data/run/latest leads to itself; no whole one lies next to it", 0.97, "checkpoint"),),
    Cause.CACHE_CORRUPT: (
        Kind("cache_corrupt.json", "json.decoder.JSONDecodeError: Extra data: line 1 column 8 (char 7)", 0.92),
        Kind("cache_corrupt.library", "ImportError: /home/me/.cache/torch_extensions/x/x.so: file too short", 0.92),
    ),
    Cause.DISK_FULL: (
        Kind("disk_full.errno", "OSError: [Errno 28] No space left on device: '/data/run/step.pt'", 0.95),
        Kind("disk_full.quota", "OSError: [Errno 122] Disk quota exceeded", 0.95),
        Kind("disk_full.writer", "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0", 0.9),
    ),
    Cause.IO_ERROR: (
        Kind("io_error.errno", "OSError: [Errno 5] Input/output error", 0.95),
        Kind("io_error.stale", "OSError: [Errno 116] Stale file handle: '/data/run'", 0.95, transient=True),
        Kind("io_error.readonly", "OSError: [Errno 30] Read-only file system: '/data/run'", 0.95),
    ),
    Cause.STORAGE_REMOTE: (
        Kind(
            "storage_remote.s3", "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL", 0.93, transient=True
        ),
        Kind("storage_remote.hub", "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url", 0.9, transient=True),
        Kind("storage_remote.dns", "socket.gaierror: [Errno -3] Temporary failure in name resolution", 0.9, transient=True),
    ),
    Cause.DATA_ERROR: (
        Kind("data_error.image", "PIL.UnidentifiedImageError: cannot identify image file '/data/1.jpg'", 0.92),
        Kind("data_error.json", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", 0.9),
    ),
    Cause.DDP_UNSYNCED: (
        Kind("ddp_unsynced.reduction", "RuntimeError: Expected to have finished reduction in the prior iteration before", 0.97),
        Kind("ddp_unsynced.shapes", "RuntimeError: Detected mismatch between collectives on ranks", 0.95),
        Kind("ddp_unsynced.parameters_differ", "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params", 0.96),
        Kind("ddp_unsynced.unused_parameters", "RuntimeError: Expected to have finished reduction in the prior iteration before", 0.96),
        Kind("ddp_unsynced.ready_twice", "RuntimeError: Expected to mark a variable ready only once", 0.96),
        Kind("ddp_unsynced.gloo_size", "RuntimeError: [gloo/transport/tcp/pair.cc:77] op.preamble.length <= op.nbytes. 16 vs 8", 0.93),
        Kind("ddp_unsynced.collectives", "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running", 0.97),
    ),
    Cause.NAN_LOSS: (
        Kind("nan_loss.check", "ValueError: loss is nan at this step, stopping training", 0.93),
        Kind("nan_loss.scale", "FloatingPointError: Minimum loss scale reached (0.0001)", 0.93),
    ),
    Cause.HANG_NO_ERROR: (
        Kind("hang_no_error.monitor", "HeartbeatMonitor: no heartbeat for 480 s, terminating the process", 0.92, "tail", signal=6),
        Kind("hang_no_error.stacks", "no progress was seen for 600 s: all ranks were asked to dump their stacks", 0.92, "host", signal=9),
    ),
    Cause.USER_CODE: (
        Kind("exception", "KeyError: 'labels'", 0.0),
        Kind("exit_code", "", 0.0, "exit", code=3),
        Kind("exception", "ZeroDivisionError: division by zero", 0.0, code=3),
        Kind("exception", "FileNotFoundError: [Errno 2] No such file or directory: '/nfs/data/index.json'", 0.0),
    ),
    Cause.DEPENDENCY: (
        Kind("dependency.symbol", "ImportError: /opt/lib/_C.so: undefined symbol: _ZN3c1010Dispatcher", 0.95),
        Kind("dependency.glibc", "ImportError: /lib/libm.so.6: version `GLIBC_2.38' not found", 0.95),
    ),
    Cause.PREEMPTED: (
        Kind(
            "preempted.limit",
            "slurmstepd: error: *** JOB 7 CANCELLED AT 12:00 DUE TO TIME LIMIT ***",
            0.97,
            "tail",
            signal=15,
            transient=True,
        ),
        Kind("preempted.slurm", "slurmstepd: error: *** STEP 7.0 CANCELLED DUE TO PREEMPTION ***", 0.97, "tail", signal=15, transient=True),
    ),
    Cause.INTERRUPTED: (
        Kind("signal", "", 0.0, "exit", signal=2, transient=True),
        Kind("interrupted.handler", "Main process received SIGINT, exiting", 0.7, "tail", signal=2, transient=True),
    ),
    Cause.SEGFAULT: (
        Kind("signal", "", 0.0, "exit", signal=11, transient=True),
        Kind("segfault.faulthandler", "Fatal Python error: Segmentation fault", 0.93, "tail", signal=11, transient=True),
    ),
    Cause.UNKNOWN_NATIVE_ABORT: (
        Kind("unknown_native_abort.glibc", "double free or corruption (!prev)", 0.92, "tail", signal=6, transient=True),
        Kind("unknown_native_abort.assert", "python: csrc/pool.cpp:77: Assertion `p != nullptr' failed.", 0.92, "tail", signal=6),
    ),
    Cause.KILLED_UNKNOWN: (
        Kind("signal", "", 0.0, "exit", signal=9, transient=True),
        Kind("signal", "", 0.0, "exit", signal=15, transient=True),
    ),
    Cause.UNKNOWN: (Kind("exit_code", "", 0.0, "exit"),),
    Cause.NONE: (Kind("last_progress", "step 3 loss 2.1", 0.0, "log", signal=None),),
}
#: A cause that is not written above shows as an error file of its own.
KINDS: Mapping[Cause, tuple[Kind, ...]] = {
    cause: _WRITTEN.get(cause, (Kind(f"{cause}.shown", row.meaning, 0.95),)) for cause, row in CAUSE_TABLE.items()
}
#: Facts without a claim that are as sure as a claim.
SURE_WITHOUT_CLAIM = frozenset({("cgroup", "oom_kill"), ("launcher", "exception")})
SIGSEGV = 11


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that ends an attempt.

    at: the absolute step that is not made any more, -1: before the first one of the attempt. sure: it shows in more than words of a log,
    and clearly. facts: from its text (bytes, Xid, GPU). gpu: UUID of the GPU at fault, "" for none. beside: what else the observers find.
    remedy: what would end it, where the laws need that beside the evidence. stepless: more than imports ran, and without an optimizer.
    """

    cause: Cause
    at: int
    phase: Phase
    rank: int = 0
    kind: int = 0
    sure: bool = True
    facts: tuple[tuple[str, str], ...] = ()
    gpu: str = ""
    beside: tuple[Evidence, ...] = ()
    remedy: str = ""
    stepless: bool = False

    @property
    def shows(self) -> Kind:
        """How it shows."""
        kinds = KINDS[self.cause]
        return kinds[self.kind % len(kinds)]

    @property
    def clear(self) -> bool:
        """Whether the evidence of it suffices to change the job: 0.9 sure, and no mere words of a log."""
        kind = self.shows
        if kind.signal == SIGSEGV or (kind.source, kind.name) in SURE_WITHOUT_CLAIM:
            return True
        return self.sure and kind.weight >= 0.9


def death(strike: Strike, at_ns: int) -> RankExit | None:
    """Return how the culprit ends; None if no rank fails and the attempt ends without a reason."""
    if strike.cause is Cause.NONE:
        return None
    kind = strike.shows
    if kind.signal is not None:
        return RankExit(strike.rank, 100 + strike.rank, at_ns, signal=kind.signal)
    return RankExit(strike.rank, 100 + strike.rank, at_ns, code=kind.code)


def evidence(strike: Strike, t: float, evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Return what the observers give of a strike at `t`; `seen` is the culprit's last heartbeat, as far as there is one."""
    kind = strike.shows
    if strike.cause is Cause.NONE:
        return (Evidence("log", kind.name, kind.text, line=3),)
    end = kind.signal if kind.signal is not None else kind.code
    rank = None if strike.phase is Phase.UNKNOWN else strike.rank  # not even a rank was there: it is the launcher that ended
    by = (("by", "program"),) if strike.cause is Cause.USER_CODE else ()
    exit_fact = Evidence("exit", "signal" if kind.signal is not None else "exit_code", str(end), rank, t, fields=by)
    if kind.source == "exit":
        return (exit_fact, *evidence)
    claim = None
    source, free = kind.source, False
    if kind.weight:
        claim = Claim(strike.cause, kind.weight if strike.sure else VAGUE, kind.transient)
        source, free = (source, False) if strike.sure else ("log", True)
    message = Evidence(source, kind.name, kind.text, rank, t - 0.05, free, strike.facts, claim=claim)
    if strike.cause is Cause.USER_CODE:
        trace = f'File "train.py", line {20 + strike.kind}, in main'
        return (exit_fact, message, Evidence("error_file", "traceback", trace, rank, t - 0.05), *evidence)
    return (exit_fact, message, *evidence, *strike.beside)


def heartbeat(strike: Strike, step: int | None, steps: int) -> tuple[Evidence, ...]:
    """Return the culprit's last heartbeat: its phase, that an optimizer was made, the absolute step, else a count."""
    rank = strike.rank
    counted = ("step", str(step)) if step is not None else ("steps", str(steps))
    came = ("ran", "more than imports") if strike.stepless else ("optimizer", "made")
    facts = [Evidence("heartbeat", "phase", strike.phase.value, rank), Evidence("heartbeat", *came, rank)]
    if steps > 0:
        facts.append(Evidence("heartbeat", counted[0], counted[1], rank))
    return tuple(facts)
