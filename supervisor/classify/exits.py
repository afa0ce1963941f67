"""Claims about the cause by exit code, signal and kernel counter, for failures that no signature matches.

Each table row has a case in tests/classify. exception_table.py has the meaning of each exception class.
"""

from __future__ import annotations

from supervisor.classify.expressions import expression
from supervisor.core.causes import causes_where
from supervisor.core.model import ANY_OWN_CAUSE, Cause, Claim
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
OF_PEERS = causes_where(lambda row: row.of_peers)
OWN_CAUSES = (
    *(cause.value for cause in Cause if cause not in {*OF_PEERS, Cause.USER_CODE, Cause.NONE, Cause.UNKNOWN}),
    ANY_OWN_CAUSE,
)
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
INTERRUPT = Claim(Cause.INTERRUPTED, 0.7, transient=True, consequence_of=_BEFORE_AN_INTERRUPT)
#: The KeyboardInterrupt of one rank of several: nobody stopped the job, somebody's `kill -INT` met one process.
ONE_RANK_INTERRUPTED = replace(INTERRUPT, cause=Cause.KILLED_UNKNOWN)

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
    2: replace(INTERRUPT, weight=0.55, consequence_of=ANY),
    4: Claim(Cause.UNKNOWN_NATIVE_ABORT, 0.8, transient=True, consequence_of=OWN_CAUSES),
    6: Claim(Cause.UNKNOWN_NATIVE_ABORT, 0.7, transient=True, consequence_of=(*OWN_CAUSES, Cause.NCCL_TIMEOUT, Cause.NCCL_NETWORK)),
    7: Claim(Cause.SEGFAULT, 0.7, transient=True, consequence_of=OWN_CAUSES),
    8: Claim(Cause.UNKNOWN_NATIVE_ABORT, 0.8, transient=True, consequence_of=OWN_CAUSES),
    11: Claim(Cause.SEGFAULT, 0.9, transient=True, consequence_of=OWN_CAUSES),
    15: Claim(Cause.KILLED_UNKNOWN, 0.55, transient=True, consequence_of=ANY),
}
ANY_SIGNAL = Claim(Cause.KILLED_UNKNOWN, 0.6, transient=True, consequence_of=OWN_CAUSES)

#: An exit code that the program chose. A plain 1 proves nothing: every kind of failure ends with it.
OWN_EXIT_CODE = Claim(Cause.USER_CODE, 0.5, transient=False)
PLAIN_EXIT_CODE = Claim(Cause.UNKNOWN, 0.3, transient=False)

#: Facts of other observers, as (source, name). A count has this name only if a process of the job was killed at that time
#: (observe/reconcile.py).
BY_FACT = {
    ("cgroup", "oom_kill"): Claim(Cause.HOST_OOM, 0.97, transient=True),
    ("exit", "vanished"): Claim(Cause.KILLED_UNKNOWN, 0.5, transient=True, consequence_of=OWN_CAUSES),
    ("host", "shm_full"): Claim(Cause.SHM_EXHAUSTED, 0.6, transient=True),
}

#: Messages that say that another process failed, or where to read about it.
_REFERS_ELSEWHERE = expression(
    r"(?i)\b(?:see|check|refer to|inspect)\b.{0,60}\b(?:above|logs?|trace(?:back)?s?|output|root cause|worker|stderr)\b"
    r"|\b(?:worker|rank|actor|engine|child|sub|job|node)(?:[ _-]?process(?:es)?|s)?\b.{0,40}"
    r"\b(?:died|dead|failed|crashed|terminated|exited|exit code|aborted|raised)\b"
    r"|\bnon-?zero exit\b|\bexit (?:code|status) -?\d"
)

LONGEST_NUMBER = 4
_LONGEST_HINT = 400
_BRACKETS = expression(r"\w+\((?P<inside>[\w.]+)\)$")


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


def qualified_type(text: str) -> str:
    """Return the type of "package.module.Type: message" with its module; for Ray's "RayTaskError(Type)" the inner type."""
    kind = text.split(":", 1)[0].split("\n", 1)[0].strip()
    match = _BRACKETS.search(kind[-_LONGEST_HINT:])
    return match["inside"] if match else kind


def exception_type(text: str) -> str:
    """Return the type of an exception's text without its module."""
    return qualified_type(text).rsplit(".", 1)[-1]


def refers_elsewhere(text: str) -> bool:
    """Whether an exception only says that something else failed."""
    return exception_type(text) in OF_LAUNCHERS or _REFERS_ELSEWHERE.search(text[:_LONGEST_HINT]) is not None


def is_consequence(text: str) -> bool:
    """Whether an exception only says that a peer is gone."""
    return any(phrase in text for phrase in CONSEQUENCES)
