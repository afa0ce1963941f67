"""Claims about the cause by exit code, signal, exception type and kernel counter, for failures that no signature matches.

Each table row has a case in tests/classify.
Exception types are compared by their unqualified name, because the same class travels under several module paths
(torch.OutOfMemoryError and torch.cuda.OutOfMemoryError are one).
"""

from __future__ import annotations

import re

from supervisor.core.model import Cause, Claim
from supervisor.core.values import replace

#: signal(7), Linux on x86-64 and arm64. A table, because core and classify must not import `signal`.
SIGNAL_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
SIGNAL_NUMBERS = {name: number for number, name in SIGNAL_NAMES.items()} | {"SIGIOT": 6}

#: Signals that a person, systemd or Slurm sends to end a job or to announce its end. The rank that dies of one may only be the first to
#: receive it (Slurm's --signal=USR1@60 reaches every process of a step).
END_SIGNALS = frozenset({1, 2, 10, 12, 15})

#: A shell exits with this plus the number of the signal that ended its child; so do many programs that handle a signal: 143 for TERM.
OF_A_SIGNAL = 128

#: Name of the evidence that we ended a rank, because another had failed or a stop was requested. It proves nothing about the cause.
ENDED_BY_US = "ended_by_us"

#: Causes that only say that another process failed.
OF_PEERS = (Cause.GLOO_ERROR, Cause.NCCL_TIMEOUT, Cause.NCCL_NETWORK, Cause.RENDEZVOUS, Cause.HANG_NO_ERROR, Cause.KILLED_UNKNOWN)
_OWN_CAUSES = tuple(cause.value for cause in Cause if cause not in {*OF_PEERS, Cause.USER_CODE, Cause.NONE, Cause.UNKNOWN})
ANY = ("*",)


#: Causes that make a job stand still or run in vain, so that a person interrupts it.
_BEFORE_AN_INTERRUPT = tuple(
    cause.value
    for cause in (
        *OF_PEERS,
        Cause.NCCL_INIT,
        Cause.GPU_LOST,
        Cause.GPU_ECC,
        Cause.GPU_XID_OTHER,
        Cause.NVLINK,
        Cause.DATALOADER_WORKER,
        Cause.NAN_LOSS,
    )
)
_INTERRUPT = Claim(Cause.INTERRUPTED, 0.7, transient=True, consequence_of=_BEFORE_AN_INTERRUPT)
#: The KeyboardInterrupt of one rank of several: nobody stopped the job, somebody's `kill -INT` met one process.
ONE_RANK_INTERRUPTED = replace(_INTERRUPT, cause=Cause.KILLED_UNKNOWN)

#: Exception types that prove a cause. Any other type is the user's code, unless a signature matches.
BY_EXCEPTION = {
    "ImportError": Claim(Cause.USER_CODE, 0.75, transient=False),
    "ModuleNotFoundError": Claim(Cause.DEPENDENCY, 0.9, transient=False),
    # not transient, as in the signatures: the same program asks for the same memory again
    "OutOfMemoryError": Claim(Cause.CUDA_OOM, 0.97, transient=False),
    "MemoryError": Claim(Cause.HOST_OOM, 0.9, transient=False),
    "DistNetworkError": Claim(Cause.RENDEZVOUS, 0.8, transient=True),
    "DistStoreError": Claim(Cause.RENDEZVOUS, 0.8, transient=True),
    "RendezvousConnectionError": Claim(Cause.RENDEZVOUS, 0.95, transient=True),
    "RendezvousTimeoutError": Claim(Cause.RENDEZVOUS, 0.95, transient=True),
    "RendezvousClosedError": Claim(Cause.RENDEZVOUS, 0.9, transient=True),
    "SignalException": Claim(Cause.PREEMPTED, 0.8, transient=True),
    # its message lists "potential root causes", which are no evidence
    **{
        kind: Claim(Cause.KILLED_UNKNOWN, 0.5, transient=True, consequence_of=ANY)
        for kind in ("RayActorError", "ActorDiedError", "WorkerCrashedError", "NodeDiedError")
    },
    "BrokenPipeError": Claim(Cause.USER_CODE, 0.45, transient=True, consequence_of=ANY),
    "ConnectionResetError": Claim(Cause.USER_CODE, 0.45, transient=True, consequence_of=ANY),
    "ConnectionRefusedError": Claim(Cause.USER_CODE, 0.45, transient=True, consequence_of=ANY),
    "EOFError": Claim(Cause.USER_CODE, 0.45, transient=True, consequence_of=ANY),
    # the frames above it only show what the program did at that moment (engine._exception_claim)
    "KeyboardInterrupt": _INTERRUPT,
}
ANY_EXCEPTION = Claim(Cause.USER_CODE, 0.7, transient=False)

#: Exceptions that a signal raises wherever the program is. The frames do not explain them.
SENT_FROM_OUTSIDE = frozenset({"KeyboardInterrupt"})

#: Exceptions that launchers and libraries raise because another process failed.
OF_LAUNCHERS = frozenset(
    {
        *("ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException", "ProcessFailure", "SystemExit"),
        "CheckpointException",  # torch.distributed.checkpoint's: the exceptions of the ranks follow it
    }
)

#: Ray's exceptions for what failed in another process: a task's carries that exception, an actor's only says that it died.
OF_ANOTHER_PROCESS = frozenset(
    {"RayTaskError", "RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "NodeDiedError", "OwnerDiedError"}
)

#: Exceptions of a connection that broke or could not be made.
OF_NETWORKS = frozenset(
    {
        *("TimeoutError", "timeout", "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError"),
        *(
            "BrokenPipeError",
            "RemoteDisconnected",
            "IncompleteRead",
            "SSLError",
            "SSLEOFError",
            "gaierror",
            "ReadTimeout",
            "ConnectTimeout",
        ),
        *("ReadTimeoutError", "ConnectTimeoutError", "MaxRetryError", "NewConnectionError", "ProtocolError", "ChunkedEncodingError"),
        *("ReadError", "ConnectError", "RemoteProtocolError", "ClientConnectorError", "ServerDisconnectedError", "ClientPayloadError"),
    }
)
_NETWORK = Claim(Cause.STORAGE_REMOTE, 0.75, transient=True)

#: Exceptions in a DataLoader's process if a worker dies during the transfer of a batch: the process fetches the descriptors of the batch's
#: memory from a thread of that worker (multiprocessing/resource_sharer.py). Often this is the only report, because the loader checked its
#: workers a moment too early.
OF_A_GONE_WORKER = frozenset({"ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError"})

#: What a mistake in the code of a data set, a transform or a collate function raises: no other data would help.
OF_MISTAKES = frozenset({"KeyError", "NameError", "UnboundLocalError", "AttributeError", "TypeError", "NotImplementedError"})

#: Exceptions that came through library code and that no signature knows: (part of a frame's path, exception types or none for all, claim).
#: The first that fits counts.
BY_FRAME: tuple[tuple[str, frozenset[str], Claim], ...] = (
    *(
        (part, OF_NETWORKS, _NETWORK)
        for part in ("/urllib/request.py", "/http/client.py", "/urllib3/", "/requests/", "/httpx/", "/aiohttp/")
    ),
    *((part, OF_NETWORKS, _NETWORK) for part in ("/botocore/", "/s3fs/", "/gcsfs/", "/fsspec/", "/huggingface_hub/", "/google/cloud/")),
    (
        "torch/distributed/checkpoint/filesystem.py",
        frozenset({"FileNotFoundError", "EOFError", "UnpicklingError", "BadZipFile"}),
        Claim(Cause.CHECKPOINT_CORRUPT, 0.8, transient=False),
    ),
    # struct.error and the like, where an image's bytes end too early
    ("/PIL/ImageFile.py", frozenset({"error", "EOFError", "SyntaxError", "ValueError"}), Claim(Cause.DATA_ERROR, 0.7, transient=False)),
    ("torch/utils/data/_utils/", OF_MISTAKES, Claim(Cause.USER_CODE, 0.75, transient=False)),
    ("torch/utils/data/_utils/fetch.py", frozenset(), Claim(Cause.DATA_ERROR, 0.75, transient=False)),
    ("torch/utils/data/_utils/collate.py", frozenset(), Claim(Cause.DATA_ERROR, 0.75, transient=False)),
    ("torch/utils/data/_utils/worker.py", frozenset(), Claim(Cause.DATA_ERROR, 0.7, transient=False)),
    (
        "torch/distributed/rendezvous.py",
        frozenset({"RuntimeError", "TimeoutError", "timeout", "gaierror", "DistNetworkError", "DistStoreError", "ConnectionError"}),
        Claim(Cause.RENDEZVOUS, 0.8, transient=True),
    ),
    # last: in a loader without workers, the data set's own frames stand below the loader's
    ("torch/utils/data/dataloader.py", OF_A_GONE_WORKER, Claim(Cause.DATALOADER_WORKER, 0.75, transient=True, consequence_of=_OWN_CAUSES)),
)

#: Texts within the exception of a healthy rank that lost its peer. Such a rank is the culprit only if no other rank failed: then it is a
#: network error.
CONSEQUENCES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "connectFullMesh failed",
    "Application timeout caused pair closure",
    "NCCL communicator was aborted",
    "Socket Timeout",
)
OF_A_PEER = Claim(Cause.GLOO_ERROR, 0.6, transient=True, consequence_of=ANY)

BY_SIGNAL = {
    1: Claim(Cause.KILLED_UNKNOWN, 0.55, transient=True, consequence_of=ANY),
    2: replace(_INTERRUPT, weight=0.55, consequence_of=ANY),
    4: Claim(Cause.UNKNOWN_NATIVE_ABORT, 0.8, transient=True, consequence_of=_OWN_CAUSES),
    6: Claim(Cause.UNKNOWN_NATIVE_ABORT, 0.7, transient=True, consequence_of=(*_OWN_CAUSES, Cause.NCCL_TIMEOUT, Cause.NCCL_NETWORK)),
    7: Claim(Cause.SEGFAULT, 0.7, transient=True, consequence_of=_OWN_CAUSES),
    8: Claim(Cause.UNKNOWN_NATIVE_ABORT, 0.8, transient=True, consequence_of=_OWN_CAUSES),
    11: Claim(Cause.SEGFAULT, 0.9, transient=True, consequence_of=_OWN_CAUSES),
    15: Claim(Cause.KILLED_UNKNOWN, 0.55, transient=True, consequence_of=ANY),
}
ANY_SIGNAL = Claim(Cause.KILLED_UNKNOWN, 0.6, transient=True, consequence_of=_OWN_CAUSES)

#: An exit code that the program chose. A plain 1 proves nothing: every kind of failure ends with it.
OWN_EXIT_CODE = Claim(Cause.USER_CODE, 0.5, transient=False)
PLAIN_EXIT_CODE = Claim(Cause.UNKNOWN, 0.3, transient=False)

#: Facts of other observers, as (source, name). A count has this name only if a process of the job was killed at that time
#: (observe/reconcile.py).
BY_FACT = {
    ("cgroup", "oom_kill"): Claim(Cause.HOST_OOM, 0.97, transient=True),
    ("exit", "vanished"): Claim(Cause.KILLED_UNKNOWN, 0.5, transient=True, consequence_of=_OWN_CAUSES),
    ("host", "shm_full"): Claim(Cause.SHM_EXHAUSTED, 0.6, transient=True),
}

#: OutOfMemoryError of a device's allocator; other libraries have classes of the same name.
_OF_DEVICES = re.compile(r"(?:torch|cupy)\.|(?:[\w.]*[.(])?OutOfMemoryError\)?:.{0,40}\b(?:CUDA|HIP|XPU|NPU|GPU)\b", re.DOTALL)
#: A MemoryError of an allocator: mostly empty, or with these words. Programs raise it for other things that they call memory.
_OF_ALLOCATORS = re.compile(
    r"[\w.]*MemoryError(?::\s*$|$|:.*(?:alloc|[Oo]ut of memory|[Nn]ot enough memory|[Ii]nsufficient memory))", re.DOTALL
)
#: Messages that say that another process failed, or where to read about it.
_REFERS_ELSEWHERE = re.compile(
    r"(?i)\b(?:see|check|refer to|inspect)\b.{0,60}\b(?:above|logs?|trace(?:back)?s?|output|root cause|worker|stderr)\b"
    r"|\b(?:worker|rank|actor|engine|child|sub|job|node)(?:[ _-]?process(?:es)?|s)?\b.{0,40}"
    r"\b(?:died|dead|failed|crashed|terminated|exited|exit code|aborted|raised)\b"
    r"|\bnon-?zero exit\b|\bexit (?:code|status) -?\d"
)

LONGEST_NUMBER = 4
_LONGEST_HINT = 400
_BRACKETS = re.compile(r"\w+\((?P<inside>[\w.]+)\)$")


def passes_on(kind: str) -> bool:
    """Whether an exception of this type, with modules, carries or reports the failure of another process."""
    return kind.partition("(")[0].rsplit(".", 1)[-1] in OF_ANOTHER_PROCESS


def signal_name(signum: int | str) -> str:
    """Return "SIGKILL" for 9 or "9", "signal 40" for a signal without a name."""
    if isinstance(signum, str):
        if len(signum) > LONGEST_NUMBER or not (signum.isascii() and signum.isdigit()):
            return f"signal {signum}"
        signum = int(signum)
    return SIGNAL_NAMES.get(signum, f"signal {signum}")


def was_asked(code: int | None, signum: int | None) -> bool:
    """Whether someone asked the process to end: it died of an end signal, or its handler exited with 128 plus the signal."""
    return signum in END_SIGNALS or (code is not None and code - OF_A_SIGNAL in END_SIGNALS)


def exception_type(text: str) -> str:
    """Return the unqualified type of "package.module.Type: message"; for Ray's "RayTaskError(Type)" the inner type."""
    kind = text.split(":", 1)[0].split("\n", 1)[0].strip()
    if match := _BRACKETS.search(kind[-_LONGEST_HINT:]):
        kind = match["inside"]
    return kind.rsplit(".", 1)[-1]


def by_exception(text: str) -> Claim | None:
    """Return the claim of an exception's type, None if the type proves nothing."""
    kind = exception_type(text)
    if (kind == "OutOfMemoryError" and not _OF_DEVICES.match(text)) or (kind == "MemoryError" and not _OF_ALLOCATORS.match(text)):
        return ANY_EXCEPTION
    return BY_EXCEPTION.get(kind)


def refers_elsewhere(text: str) -> bool:
    """Whether an exception only says that something else failed."""
    return exception_type(text) in OF_LAUNCHERS or _REFERS_ELSEWHERE.search(text[:_LONGEST_HINT]) is not None


def is_consequence(text: str) -> bool:
    """Whether an exception only says that a peer is gone."""
    return any(phrase in text for phrase in CONSEQUENCES)
