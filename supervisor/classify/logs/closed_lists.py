"""Closed lists of error texts: CUDA, NCCL, errno, getaddrinfo, torch.load, the driver, container runtimes, schedulers.

Their authors wrote each of these texts once, so it means the same everywhere. They are matched in *squashed* text: small letters
without any white space, so a message may be folded at any column, also in mid-word, and written in any case. Where a text has two
meanings, the text around it decides (`beside`).

The confidence of such a finding is capped: it is a text, of which nobody knows who wrote it (MOST).

Sources, read 2026-11-30: cudaGetErrorString and cudaError_t of CUDA 12.8, ncclGetErrorString of NCCL 2.27, errno(3), getaddrinfo(3),
torch/csrc/distributed/c10d and torch/serialization.py of torch 2.13, NVML's errors, gRPC's status codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.gpu import xid
from supervisor.classify.logs.patterns import OwnPattern
from supervisor.core.model import Cause, Claim
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The most for what a closed list says: below every floor for a change of the job, and for a stop.
MOST = 0.75
#: The weight of a text that other failures bring along.
WEAK = 0.5
#: How far around a text `beside` is searched, in squashed characters.
AROUND = 160
_ANY = ("*",)


class ListedText(Struct, frozen=True):
    """A text. literal: the text to look for, squashed. beside: the text that must be around it (a pattern on squashed text), None: any."""

    literal: str
    cause: Cause
    weight: float
    beside: OwnPattern | None = None
    transient: bool = False


def squashed(text: str) -> str:
    """Return a text in small letters without white space."""
    return "".join(text.split()).lower()


def _listed(cause: Cause, weight: float, *texts: str, beside: str = "", transient: bool = False) -> tuple[ListedText, ...]:
    pattern = OwnPattern(beside) if beside else None
    listed = (text for row in texts for text in row.split(" | "))
    return tuple(ListedText(squashed(text), cause, weight, pattern, transient) for text in listed)


#: An errno's or another system's text is only as telling as its subject.
_OF_RENDEZVOUS = (
    r"c10d|tcpstore|rendezvous|rdzv|master_?addr|init_process_group|torch[./]distributed|coordinat(?:or|ion)|socket\.cpp|gai(?:error)?:"
)
_OF_REMOTE = r"https?[:_]|url|hugging ?face|amazonaws|googleapis|\bs3\b|endpoint|blob\.core|download|upload|dataset|pypi|bucket|wget|curl"
_OF_SHM = r"/dev/shm|sharedmemory|shm\b|/torch_\d|/psm_"  # noqa: S108 (a text)
_OF_DEVICES = r"cuda|gpu|hip\b|vram|\bhbm|device|nccl"
_OF_NCCL = r"nccl"

LISTS: tuple[ListedText, ...] = (
    # CUDA: texts of cudaGetErrorString, names of the runtime and of the driver. A name that is not listed: DEVICE_ERROR below.
    *_listed(Cause.GPU_ECC, 0.75, "uncorrectable ECC error encountered | cudaErrorECCUncorrectable | CUDA_ERROR_ECC_UNCORRECTABLE"),
    *_listed(
        Cause.NVLINK,
        0.75,
        "uncorrectable NVLink error detected during the execution | cudaErrorNvlinkUncorrectable",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE | Invalid access of peer GPU memory over nvlink or a hardware error",
    ),
    *_listed(
        Cause.CUDA_ILLEGAL_ACCESS,
        0.72,
        "an illegal memory access was encountered | device-side assert triggered | unspecified launch failure",
        "an illegal instruction was encountered | operation not supported on global/shared address space",
        "the launch timed out and was terminated | cudaErrorIllegalAddress | cudaErrorMisalignedAddress | cudaErrorAssert",
        "cudaErrorLaunchFailure | cudaErrorIllegalInstruction | cudaErrorInvalidPc | cudaErrorHardwareStackError",
        "cudaErrorInvalidAddressSpace | cudaErrorLaunchTimeout | CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_ASSERT | CUDA_ERROR_MISALIGNED_ADDRESS | hipErrorIllegalAddress | hipErrorLaunchFailure",
        "Memory access fault by GPU node",
    ),
    *_listed(Cause.CUDA_ILLEGAL_ACCESS, 0.72, "misaligned address | invalid program counter | hardware stack error", beside="cuda|error"),
    *_listed(
        Cause.CUDA_OOM,
        0.75,
        "CUDA out of memory | HIP out of memory | XPU out of memory | cudaErrorMemoryAllocation | CUDA_ERROR_OUT_OF_MEMORY",
        "CUBLAS_STATUS_ALLOC_FAILED | CUDNN_STATUS_ALLOC_FAILED | hipErrorOutOfMemory | CUDA error: out of memory",
        "Cuda failure 'out of memory' | Cuda failure 2 'out of memory'",
    ),
    *_listed(
        Cause.GPU_DRIVER,
        0.7,
        "no CUDA-capable device is detected | devices are busy or unavailable | device(s) is/are busy or unavailable",
        "CUDA driver version is insufficient | forward compatibility was attempted on non supported",
        "system has unsupported display driver | CUDA driver is a stub library | cudaErrorNoDevice",
        "cudaErrorInsufficientDriver | cudaErrorSystemNotReady | cudaErrorSystemDriverMismatch | cudaErrorDevicesUnavailable",
        "cudaErrorCompatNotSupportedOnDevice | cudaErrorStubLibrary | CUDA_ERROR_NO_DEVICE | CUDA_ERROR_SYSTEM_NOT_READY",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | No CUDA GPUs are available",
        "the remote procedural call between the MPS server and the MPS client failed",
        "MPS client failed to connect to the MPS control daemon",
    ),
    *_listed(Cause.GPU_DRIVER, 0.7, "system not yet initialized", beside="cuda|error802"),
    *_listed(Cause.DEVICE_ORDINAL, 0.7, "invalid device ordinal | cudaErrorInvalidDevice | CUDA_ERROR_INVALID_DEVICE"),
    *_listed(
        Cause.DEPENDENCY,
        0.7,
        "no kernel image is available for execution on the device | device kernel image is invalid",
        "cudaErrorNoKernelImageForDevice | CUDA_ERROR_NO_BINARY_FOR_GPU | hipErrorNoBinaryForGpu",
        "PTX JIT compiler library not found | the provided PTX was compiled with an unsupported toolchain",
        "CUBLAS_STATUS_ARCH_MISMATCH | CUDNN_STATUS_ARCH_MISMATCH",
    ),
    # NCCL: ncclGetErrorString, and what torch makes of it
    *_listed(Cause.NCCL_TIMEOUT, 0.75, "caught collective operation timeout | timed out in blocking wait", transient=True),
    *_listed(
        Cause.NCCL_TIMEOUT,
        0.65,
        "NCCL timeout | NCCL operation timed out | NCCL communicator timed out | due to collective timeout",
        transient=True,
    ),
    *_listed(Cause.NCCL_INIT, 0.6, "unhandled cuda error | ncclUnhandledCudaError", beside=_OF_NCCL),
    *_listed(Cause.NCCL_INIT, 0.6, "ncclInvalidUsage | ncclInvalidArgument | ncclInternalError"),
    *_listed(Cause.NCCL_NETWORK, 0.6, "ncclSystemError | ncclRemoteError | remote process exited or there was a network error"),
    *_listed(Cause.NCCL_NETWORK, 0.6, "unhandled system error", beside=_OF_NCCL),
    # memory held by others, in the words of serving engines; XLA
    *_listed(
        Cause.CUDA_OOM,
        0.65,
        "less than desired GPU memory utilization | No available memory for the cache blocks",
        "try to increase --mem-fraction-static | try increasing gpu_memory_utilization",
        "larger than the available KV cache memory | not enough GPU memory | insufficient GPU memory",
        "GPU memory is insufficient | RESOURCE_EXHAUSTED: Out of memory | RESOURCE_EXHAUSTED: Failed to allocate",
        "OOM when allocating tensor",
    ),
    *_listed(
        Cause.HOST_OOM,
        0.72,
        "OOMKilled | Memory cgroup out of memory | Out of memory: Killed process | oom-kill:constraint | oom_kill event",
        "oom-kill event | node running low on memory | low on resource: memory | killed by the OOM killer",
        "exceeded memory limit | TERM_MEMLIMIT | std::bad_alloc | DefaultCPUAllocator: can't allocate memory",
        "low memory! at or below SIGTERM | due to memory pressure | DefaultCPUAllocator: not enough memory | Cannot allocate memory",
        transient=True,
    ),
    *_listed(Cause.HOST_OOM, 0.65, "errno=12 | errno 12] | errno: 12", beside=r"alloc|memory|fork|mmap", transient=True),
    *_listed(Cause.SHM_EXHAUSTED, 0.72, "insufficient shared memory | unable to allocate shared memory | No space left on shm"),
    *_listed(Cause.SHM_EXHAUSTED, 0.72, "No space left on device | ENOSPC", beside=_OF_SHM),
    # errno
    *_listed(Cause.DISK_FULL, 0.7, "No space left on device | Disk quota exceeded | database or disk is full"),
    *_listed(Cause.DISK_FULL, 0.7, "(ENOSPC) | ENOSPC: | (EDQUOT) | errno=28 | errno: 28 | errno 28] | os error 28)"),
    *_listed(Cause.DISK_FULL, 0.7, "low on resource: ephemeral-storage | exceeds the total limit of containers ephemeral"),
    *_listed(
        Cause.IO_ERROR,
        0.7,
        "Input/output error | Read-only file system | Stale file handle | Stale NFS file handle | Structure needs cleaning",
        "Remote I/O error | (EIO) | (EROFS) | (ESTALE) | (EUCLEAN) | os error 5) | os error 30) | os error 116)",
        transient=True,
    ),
    *_listed(
        Cause.IO_ERROR,
        0.6,
        "Transport endpoint is not connected | Cannot send after transport endpoint shutdown | Host is down",
        "Too many open files | (EMFILE) | (ENFILE)",
    ),
    *_listed(
        Cause.STORAGE_REMOTE,
        0.6,
        "Connection refused | Connection timed out | Network is unreachable",
        beside=_OF_REMOTE,
        transient=True,
    ),
    *_listed(
        Cause.RENDEZVOUS,
        0.65,
        "Connection refused | Connection timed out | No route to host | Network is unreachable | Address already in use",
        "EADDRINUSE",
        beside=_OF_RENDEZVOUS,
        transient=True,
    ),
    *_listed(Cause.RENDEZVOUS, WEAK, "Address already in use | EADDRINUSE | No route to host", transient=True),
    # getaddrinfo, and the words of Go's and curl's resolvers: Kubernetes' names appear late
    *_listed(
        Cause.RENDEZVOUS,
        0.65,
        "Name or service not known | Temporary failure in name resolution | No address associated with hostname",
        "Non-recoverable failure in name resolution | nodename nor servname provided | EAI_AGAIN | EAI_NONAME | no such host",
        "Could not resolve host",
        beside=_OF_RENDEZVOUS,
        transient=True,
    ),
    *_listed(
        Cause.STORAGE_REMOTE,
        0.6,
        "Name or service not known | Temporary failure in name resolution | Could not resolve host | no such host | EAI_AGAIN",
        "EAI_NONAME | No address associated with hostname",
        transient=True,
    ),
    # rendezvous: torch, gRPC's barriers
    *_listed(
        Cause.RENDEZVOUS,
        0.7,
        "failed to connect to any network address | failed to listen on any local network address",
        "Timed out after waiting for clients | RendezvousTimeoutError | RendezvousConnectionError | RendezvousClosedError",
        "has failed to bind to | clients joined. The client socket has timed out",
        transient=True,
    ),
    *_listed(
        Cause.RENDEZVOUS,
        0.6,
        "Barrier timed out | coordination service",
        beside=r"deadline_exceeded|unavailable|error",
        transient=True,
    ),
    *_listed(Cause.RENDEZVOUS, WEAK, "client socket has timed out", transient=True),
    *_listed(Cause.GLOO_ERROR, WEAK, "gloo/transport/tcp/pair | connectFullMesh failed", transient=True),
    # torch.load, safetensors, load_state_dict
    *_listed(
        Cause.CHECKPOINT_CORRUPT,
        0.7,
        "PytorchStreamReader failed | The file might be corrupted | Invalid magic number; corrupt file",
        "MetadataIncompleteBuffer | Error while deserializing header | failed finding central directory",
    ),
    *_listed(
        Cause.CHECKPOINT_MISMATCH,
        0.7,
        "Error(s) in loading state_dict | Missing key(s) in state_dict | Unexpected key(s) in state_dict",
        "the shape in current model is",
    ),
    # the driver and its tools
    *_listed(
        Cause.GPU_DRIVER,
        0.72,
        "Driver/library version mismatch | couldn't communicate with the NVIDIA driver | driver not loaded",
        "Failed to initialize NVML | could not select device driver | nvidia-container-cli: initialization error",
        "nvidia-container-cli: device error | CUDA driver initialization failed | Found no NVIDIA driver",
    ),
    *_listed(
        Cause.GPU_LOST,
        0.72,
        "fallen off the bus | GPU is lost | Unable to determine the device handle for | RmInitAdapter failed",
        "NVMLError_GpuIsLost",
    ),
    *_listed(
        Cause.GPU_ECC,
        0.7,
        "uncorrectable ECC | double bit ECC | row remapping failure | row remapper failure | DBE detected",
        "volatile uncorrected",
    ),
    *_listed(Cause.NVLINK, 0.65, "NVLink | NVSwitch", beside=r"nv(?:link|switch)[^.;]{0,60}(?:fatal|error|down|inactive|fail)"),
    # readers of samples
    *_listed(
        Cause.DATA_ERROR,
        0.6,
        "Failed to decode | Could not decode | Invalid data found when processing input | Error opening input | moov atom not found",
        "cannot identify image file | image file is truncated | Format not recognised | is not a valid zip file | is not a valid parquet",
        "unexpected end of data | Not a gzipped file | invalid stored block lengths",
    ),
    # libraries that do not load
    *_listed(
        Cause.DEPENDENCY,
        0.65,
        "cannot open shared object file | undefined symbol: | version `GLIBC | version `CXXABI | No module named '",
        "DLL load failed while importing | No package metadata was found for | No matching distribution found for",
        "numpy.dtype size changed | Torch not compiled with CUDA enabled",
    ),
    # containers and machines: a program that is not there, an image that does not come
    *_listed(Cause.USER_CODE, 0.6, "executable file not found in $PATH | exec format error"),
    *_listed(Cause.STORAGE_REMOTE, 0.55, "ImagePullBackOff | ErrImagePull | Failed to pull image", transient=True),
    *_listed(
        Cause.PREEMPTED,
        0.7,
        "DUE TO TIME LIMIT | DUE TO PREEMPTION | TERM_RUNLIMIT | job killed: walltime | spot instance interruption",
        "instance is being preempted | was preempted | scheduled for preemption | node is being drained",
        transient=True,
    ),
    # data loaders, stores
    *_listed(Cause.DATALOADER_WORKER, 0.6, "DataLoader worker (pid", transient=True),
    *_listed(
        Cause.STORAGE_REMOTE,
        0.65,
        "Max retries exceeded with url | (SlowDown) | SlowDown: | ExpiredToken | Unable to locate credentials",
        "Please reduce your request rate | 503 Service Unavailable | 429 Too Many Requests",
        "Could not connect to the endpoint URL",
        transient=True,
    ),
    # losses
    *_listed(
        Cause.NAN_LOSS,
        0.65,
        "loss is nan | loss is inf | loss=nan, stop | NaN loss | non-finite loss | nan detected in loss | loss diverged",
        "loss spike detected | training diverged | loss exploded | non-finite gradient | gradient norm is nan",
        "grad norm is nan",
    ),
    # watchdogs of trainings
    *_listed(
        Cause.HANG_NO_ERROR,
        0.65,
        "deadlock warning | deadlock detected | hang detected | appears to be hung | appears to be stuck | watchdog triggered",
        "step watchdog",
        transient=True,
    ),
)


class ListedForm(Struct, frozen=True):
    """A text with a number in it. anchor: a literal of it."""

    anchor: str
    pattern: OwnPattern
    cause: Cause
    weight: float
    transient: bool = False


_OF_STEPS = r"(?:training|train|forward|backward|optimizer|eval(?:uation)?)?_?(?:step|iteration|batch|epoch|forward|backward|dataloader)"
FORMS: tuple[ListedForm, ...] = (
    ListedForm(
        "timeout", OwnPattern(rf"(?<![a-z]){_OF_STEPS}\w{{0,12}}:?timeout(?:after|of|:|\()\d"), Cause.HANG_NO_ERROR, 0.7, transient=True
    ),
    ListedForm("timedout", OwnPattern(rf"(?<![a-z]){_OF_STEPS}\w{{0,12}}timedoutafter\d"), Cause.HANG_NO_ERROR, 0.7, transient=True),
    ListedForm("noprogress", OwnPattern(r"noprogress(?:for|in|since)(?:more than)?\d"), Cause.HANG_NO_ERROR, 0.7, transient=True),
    ListedForm(
        "eccerror",
        OwnPattern(r"(?<!\d)[1-9]\d{0,6}(?:uncorrect\w{0,8}|volatile|aggregate|double-?bit|new|pending){0,2}eccerrors?"),
        Cause.GPU_ECC,
        0.7,
    ),
    ListedForm(
        "watchdog",
        OwnPattern(r"(?<!nccl)watchdog[^.;]{0,60}(?:step|iteration|batch)\w{0,40}for\d"),
        Cause.HANG_NO_ERROR,
        0.7,
        transient=True,
    ),
    ListedForm(
        "checkpoint",
        OwnPattern(r"checkpoint[^.;]{0,60}(?:is|are|was)(?:damaged|corrupt(?:ed)?|truncated|incomplete|unreadable|torn)(?![a-z])"),
        Cause.CHECKPOINT_CORRUPT,
        0.65,
    ),
    ListedForm("anomal", OwnPattern(r"anomal(?:y|ous)\w{0,12}[:,-]*\w{0,12}loss\w{0,8}[=:]?-?(?:\d|nan|inf)"), Cause.NAN_LOSS, 0.65),
    ListedForm("loss", OwnPattern(r"loss(?:=|:|is)?(?:nan|-?inf)[,;.]?(?:stop|abort|halt|exit|terminat)"), Cause.NAN_LOSS, 0.7),
)
_XID = OwnPattern(r"(?i)\bxids?\b[:=# (]{0,3}(?:PCI:[0-9a-f:.]{4,20}\)?[: ]{0,2})?(?P<code>\d{1,3})(?!\d)")
#: Any error of CUDA's that no list names is of the device or of its use, not a plain mistake of the program.
_DEVICE_ERROR = OwnPattern(
    r"(?<![a-z])(?:cuda(?:driver|runtime)?error[:(]|cudafailure\d|cudaerror[a-z]{4,40}\b|cuda_error_[a-z_]{4,40}\b|hiperror[:(])"
)
_DEVICE_CLAIM = Claim(Cause.CUDA_ILLEGAL_ACCESS, 0.55, consequence_of=_ANY)


class ListedHit(Struct, frozen=True):
    """A text that was found: where in the squashed text it begins, how long it is, its name and its claim."""

    start: int
    length: int
    name: str
    claim: Claim


def hits(text: str) -> Iterator[ListedHit]:
    """Yield what the lists find in a squashed text, each entry once: its first place."""
    starts: set[int] = set()
    for entry in LISTS:
        start = _place(entry, text)
        if start >= 0 and start not in starts:
            starts.add(start)
            yield ListedHit(
                start, len(entry.literal), f"listed.{entry.cause.value}", Claim(entry.cause, entry.weight, entry.transient, _ANY)
            )
    for form in FORMS:
        if form.anchor in text and (match := form.pattern.search(text)):
            starts.add(match.start())
            yield ListedHit(match.start(), 0, f"listed.{form.cause.value}", Claim(form.cause, form.weight, form.transient, _ANY))
    if (match := _DEVICE_ERROR.search(text)) and not any(match.start() - AROUND < start < match.start() + AROUND for start in starts):
        yield ListedHit(match.start(), 0, "listed.cuda_error", _DEVICE_CLAIM)


def _place(entry: ListedText, text: str) -> int:
    start = text.find(entry.literal)
    while start >= 0 and entry.beside is not None:
        if entry.beside.search(text[max(0, start - AROUND) : start + len(entry.literal) + AROUND]):
            return start
        start = text.find(entry.literal, start + 1)
    return start


def claim_of_xid(line: str) -> Claim | None:
    """Return what an Xid in a person's or a monitor's words claims, None if it is one of those that are mostly echoes."""
    match = _XID.search(line)
    reading = xid.read(f"xid {match['code']}") if match else None
    return Claim(reading[0], 0.7, consequence_of=_ANY) if reading is not None and reading[0] is not Cause.GPU_XID_OTHER else None


def claim_of(message: str, shortest: int = 0) -> Claim | None:
    """Return what the lists claim about the message of an exception, the surest first; None if it holds none of their texts.

    shortest: how long a text must be, in squashed characters.
    """
    ranked = sorted((hit for hit in hits(squashed(message)) if hit.length >= shortest), key=lambda hit: (-hit.claim.weight, hit.start))
    return ranked[0].claim if ranked else None
