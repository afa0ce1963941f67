"""What a person does about a failure: the one table of hints, each with the condition under which it is given. Pure.

A hint names an object: a loader, a remote store, a cache, a GPU. It is given only where the evidence shows that object, because a
remedy for what is not there costs a person an hour. Two things are a hint's condition: the facts that its text names, `{path}` say, and
the `Condition`s beside it. Of the alternatives of one line the first that holds is given; a line may give none.

The card, `why`, `supervise classify` and the alerts all have their remedies from here; docs/reference/causes.md lists the table.
"""

from __future__ import annotations

import re
from functools import cache
from string import Formatter
from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.classify.packages import install_text
from supervisor.core.model import Cause, HangKind, Phase, Verdict
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Holds = Callable[[Verdict], bool]

#: From this share of the GPU or this amount on, memory is worth a hint.
_LEAST_SHARE, _LEAST_BYTES = 0.1, 1 << 30
_INFINIBAND = re.compile(r"\bibv_|\bmlx\d|NET/IB|InfiniBand|Got completion with error|\bRoCE\b")
_HUB = re.compile(r"huggingface|\bhf\.co\b|HfHub|LocalEntryNotFound|CAS service|We couldn't connect to 'https://", re.IGNORECASE)
_REFUSED = re.compile(r"(?i)expired|credential|forbidden|unauthori[sz]ed|access ?denied|signature|\b40[137]\b|\b451\b")
_LOADER_FRAMES = ("torch/utils/data/dataloader.py", "torch/utils/data/_utils/")
_CLIENTS_OF_SERVERS = re.compile(
    r"vllm_client|/vllm/|/sglang/|init_communicator|weights?_update_group|(?:reward|rollout)_(?:server|client)"
)
_SAVES = re.compile(r"(?:^|_)save(?:_|$)")
_IN_DOCS = {"gpu": "ID", "hang_ranks": "N", "hang_code": "FILE:LINE", "xid": "N", "cache_variable": "VARIABLE", "cache_writer": "ATTEMPT"}
_NAMED = re.compile(r"\{(\w+)\}")


class Condition(Struct, frozen=True):
    """Whether the object of a hint was seen. words: behind "where" in docs/reference/causes.md."""

    words: str
    holds: Holds


def _fact(verdict: Verdict, name: str) -> str:
    return next((value for key, value in verdict.facts if key == name), "")


def _amount(verdict: Verdict, name: str) -> int:
    text = _fact(verdict, name)
    return int(text) if text.isdigit() else 0


def _much(verdict: Verdict, name: str) -> bool:
    amount, capacity = _amount(verdict, name), _amount(verdict, "capacity")
    return amount >= _LEAST_BYTES or (capacity > 0 and amount >= capacity * _LEAST_SHARE)


def phase_of(verdict: Verdict) -> str:
    """Return the phase of the failed rank, "" if it is not known."""
    return next((fact.text for fact in verdict.because if fact.name == "phase"), "")


def is_in_save(verdict: Verdict) -> bool:
    """Whether the failed rank was saving, and it is not known that another process of it was killed than the rank itself."""
    saves = phase_of(verdict) == Phase.CHECKPOINT or _SAVES.search(_fact(verdict, "function")) is not None
    return saves and _fact(verdict, "killed") != "child"


def has_loader(verdict: Verdict) -> bool:
    """Whether the evidence shows a DataLoader with worker processes in the failed rank."""
    if verdict.cause is Cause.DATALOADER_WORKER or any(
        (f.source, f.name, f.text) == ("heartbeat", "loader", "workers") for f in verdict.because
    ):
        return True
    return any("DataLoader worker" in f.text or any(part in f.text for part in _LOADER_FRAMES) for f in verdict.because)


def _says(pattern: re.Pattern[str]) -> Holds:
    """Whether the evidence that the verdict stands on has these words."""
    return lambda verdict: any(pattern.search(fact.text) for fact in verdict.because if fact.claim is not None or fact.name == "exception")


def _stands_on(prefix: str) -> Holds:
    """Whether the verdict stands on a signature of this name."""
    return lambda verdict: any(fact.claim is not None and fact.name.startswith(prefix) for fact in verdict.because[:2])


def _not(condition: Condition, words: str) -> Condition:
    return Condition(words, lambda verdict: not condition.holds(verdict))


IN_SAVE = Condition("the rank was in a save", is_in_save)
NOT_IN_SAVE = _not(IN_SAVE, "it was in no save")
LOADER = Condition("a DataLoader with workers was seen", has_loader)
OTHERS_HOLD = Condition("others hold a tenth of the GPU or 1 GiB", lambda verdict: _much(verdict, "other_bytes"))
IN_PIECES = Condition("a tenth of the GPU or 1 GiB is reserved and unallocated", lambda verdict: _much(verdict, "reserved_unallocated"))
OF_NCCL = Condition("NCCL itself could not allocate", _stands_on("cuda_oom.nccl"))
SEVERAL_NODES = Condition("the job has several nodes", lambda verdict: bool(verdict.node))
OVER_INFINIBAND = Condition("the evidence is of InfiniBand", _says(_INFINIBAND))
OWN_SERVICE = Condition("the address is this machine's or of a private network", lambda verdict: bool(_fact(verdict, "own_service")))
REMOTE = _not(OWN_SERVICE, "the address is a remote one, or not known")
HUB = Condition("the Hugging Face hub is named", _says(_HUB))
REFUSED = Condition("it refused (401, 403, expired)", _says(_REFUSED))
WITH_A_SERVER = Condition(
    "the code is of a client of a server (vLLM, sglang, a reward model)",
    lambda verdict: _CLIENTS_OF_SERVERS.search(f"{_fact(verdict, 'file')}:{_fact(verdict, 'function')}") is not None,
)
NO_LEFTOVERS = Condition("no leftover of a killed save is known", lambda verdict: not _fact(verdict, "leftovers"))
UNKILLED = Condition("a process survives KILL", lambda verdict: bool(_fact(verdict, "pid")))
MISMATCH = Condition("the ranks wait in different collectives", lambda verdict: _fact(verdict, "hang_kind") == HangKind.MISMATCH)
UNUSED = Condition("DDP found parameters without a gradient", _stands_on("ddp_unsynced.unused_parameters"))
TWICE = Condition("DDP found a parameter used twice", _stands_on("ddp_unsynced.ready_twice"))
LEFT_EARLY = Condition("the rank left with 0 before the others", lambda verdict: verdict.fingerprint == "left:early")
COLLECTIVES = Condition("the collectives of the ranks differ", _stands_on("ddp_unsynced.collectives"))


class Hint(Struct, frozen=True):
    """One thing to do. text: an imperative in lower case, with `{name}` for a fact of the verdict. when: all of them must hold."""

    text: str
    when: tuple[Condition, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The facts that it names."""
        return _names(self.text)


@cache
def _names(text: str) -> tuple[str, ...]:
    return tuple(name for _, name, _, _ in Formatter().parse(text) if name)


def _line(*alternatives: Hint | str) -> tuple[Hint, ...]:
    return tuple(Hint(alternative) if isinstance(alternative, str) else alternative for alternative in alternatives)


def _resets(what: str) -> tuple[tuple[Hint, ...], ...]:
    return (_line(f"{what} GPU {{gpu}} before it is used again", f"find the GPU (`supervise doctor`, the kernel's log), and {what} it"),)


_ROWS: dict[Cause, tuple[tuple[Hint, ...], ...]] = {
    Cause.CUDA_OOM: (
        _line(
            Hint("end process {other_pids}, which holds much of the GPU's memory", (OTHERS_HOLD,)),
            Hint("end the other processes that hold the GPU's memory", (OTHERS_HOLD,)),
        ),
        _line(Hint("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, because much is reserved in pieces too small", (IN_PIECES,))),
        _line(Hint("leave NCCL room beside torch's own memory: torch.cuda.set_per_process_memory_fraction(0.9)", (OF_NCCL,))),
        _line("halve the micro-batch and double the gradient accumulation"),
    ),
    Cause.HOST_OOM: (
        _line(
            Hint(
                "have the save need less: it held the state a second time. Save shard by shard (torch.distributed.checkpoint) or one rank "
                "after the other, and make no whole copy in memory first",
                (IN_SAVE,),
            )
        ),
        _line("raise the memory limit of {cgroup}", "raise the memory limit, or hold less in memory"),
        _line(Hint("use fewer DataLoader workers, or a smaller prefetch", (LOADER, NOT_IN_SAVE))),
    ),
    Cause.SHM_EXHAUSTED: (
        _line("give the container more (docker --shm-size, an emptyDir with medium Memory)"),
        _line(Hint("use fewer DataLoader workers", (LOADER,))),
    ),
    Cause.NCCL_TIMEOUT: (
        _line(
            Hint("make all ranks call the same collectives in the same order", (MISMATCH,)),
            "look at what rank {hang_ranks} did, at {hang_code}",
            "find the missing rank: it has no timeout, or a lower sequence number; look at what it did (stack, data, I/O)",
        ),
    ),
    Cause.NCCL_NETWORK: (
        _line(
            Hint("check the port or host that the evidence names (ibstat, link counters, cabling), and NCCL_IB_HCA", (OVER_INFINIBAND,)),
            "check the host that the evidence names, its interfaces, and NCCL_SOCKET_IFNAME",
        ),
        _line(Hint("restart the server of the other end: it keeps the communicator of a trainer that is gone", (WITH_A_SERVER,))),
    ),
    Cause.NCCL_INIT: (
        _line("give each rank a GPU of its own, and make driver, CUDA, NCCL and torch equal on all nodes; NCCL_DEBUG=INFO shows the rest"),
        _line(Hint("restart the server of the other end: it keeps the communicator of a trainer that is gone", (WITH_A_SERVER,))),
    ),
    Cause.GLOO_ERROR: (
        _line(
            Hint("look for the missing peer on the other nodes; name the interface with GLOO_SOCKET_IFNAME", (SEVERAL_NODES,)),
            "look at what rank {hang_ranks} did, at {hang_code}",
            "look for the rank that did not come: the one without a time-out of its own",
        ),
    ),
    Cause.RENDEZVOUS: (
        _line(
            "check that MASTER_ADDR and MASTER_PORT are reachable from all nodes and free, and that all nodes start within the time allowed"
        ),
    ),
    Cause.NODE_LOST: (_line("look at that node (power, kernel log, `supervise why` there), and start the same command there again"),),
    Cause.GPU_ECC: (
        *_resets("reset"),
        _line("replace it where rows can no longer be remapped (nvidia-smi -q -d ROW_REMAPPER)"),
    ),
    Cause.GPU_LOST: (
        _line(
            "reboot the node of GPU {gpu}; if it happens again, check power, temperature and seating, and have it replaced",
            "reboot the node; if it happens again, check power, temperature and seating of its GPUs",
        ),
    ),
    Cause.GPU_XID_OTHER: (
        _line(
            "read what Xid {xid} means in the evidence: some are faults of the program, some of the hardware",
            "read the evidence: some errors are faults of the program, some of the hardware",
        ),
        _line("drain the node if it comes back on GPU {gpu}", "drain the node if it comes back on one GPU"),
    ),
    Cause.NVLINK: (
        _line(
            "reset the GPUs of the fabric together, or reboot; check nvidia-fabricmanager and nvidia-smi nvlink -e; replace what comes back"
        ),
    ),
    Cause.GPU_DRIVER: (
        _line(
            "use another node, or install a driver that the CUDA version of torch needs; after an upgrade reload the module or reboot; "
            "check that the container sees the GPUs"
        ),
    ),
    Cause.CUDA_ILLEGAL_ACCESS: (
        _line("look for an index out of range in the data (labels, token ids); run once with CUDA_LAUNCH_BLOCKING=1"),
        _line("suspect GPU {gpu} if it stays on that one"),
    ),
    Cause.CHECKPOINT_CORRUPT: (
        _line("resume from a checkpoint older than {path}", "resume from an older one"),
        _line("write checkpoints to a temporary name, fsync, then rename"),
    ),
    Cause.CHECKPOINT_MISMATCH: (_line("resume from a checkpoint of this configuration, or convert it; strict=False hides the difference"),),
    Cause.CACHE_CORRUPT: (
        _line(
            "delete {path}, which {cache_writer} wrote and left half-written; it is made anew",
            "delete {path}; it is made anew",
            "delete the damaged file below ${cache_variable}, or all of that cache; it is made anew",
            "delete the damaged file in the cache of {cache}; it is made anew",
            "delete the damaged file of the cache; it is made anew",
        ),
    ),
    Cause.CHECKPOINT_LEFTOVER: (
        _line("run {remedy}, which moves it out of the script's sight", "move what is in the way out of the script's sight"),
        _line("let the script write to a temporary name and rename it"),
    ),
    Cause.CHECKPOINT_POINTER: (
        _line("run {remedy}, which lets it lead to the newest whole checkpoint", "let it lead to the newest whole checkpoint"),
        _line("move it only once a save is on the disk"),
    ),
    Cause.DISK_FULL: (
        _line("delete what killed saves of this job left there: {leftovers}"),
        _line("make room on the file system of {path}", "make room on the full file system: df -h and df -i name it, and quota -s a quota"),
        _line(Hint("look at the largest files that this job wrote there: {job_files}", (NO_LEFTOVERS,))),
    ),
    Cause.IO_ERROR: (
        _line(
            "give each node a {cache_variable} of its own, on a local disk: another machine replaced the file in the shared one",
            Hint("look at what process {pid} waits for: neither KILL nor its disk answers", (UNKILLED,)),
            "check the mount and the device of {path} on the node (dmesg, smartctl, the server's state)",
            "check the mount and the device on the node (dmesg, smartctl, the server's state)",
        ),
    ),
    Cause.STORAGE_REMOTE: (
        _line(Hint("look at {peer}, a service of the job's own: restart it where it answers with errors, or not at all", (OWN_SERVICE,))),
        _line(Hint("renew the credentials, which {peer} refused", (REFUSED, REMOTE)), Hint("renew the credentials", (REFUSED, REMOTE))),
        _line(Hint("try again later, when {peer} answers", (REMOTE,)), Hint("try again later", (REMOTE,))),
        _line(Hint("keep a local copy (HF_HUB_OFFLINE=1)", (HUB, REMOTE))),
    ),
    Cause.DATALOADER_WORKER: (
        _line("look at the signal: KILL is memory, BUS is /dev/shm, SEGV is a library; num_workers=0 shows the real exception"),
    ),
    Cause.DATA_ERROR: (_line("look at {path}; skip or repair it", "look at the sample or file in the message; skip or repair it"),),
    Cause.DDP_UNSYNCED: (
        _line(
            Hint("use them in the loss, or pass find_unused_parameters=True to DistributedDataParallel", (UNUSED,)),
            Hint("use the parameter once in a forward pass; checkpoint activations with use_reentrant=False", (TWICE,)),
            Hint(
                "make all ranks call the same collectives in the same order: none for one rank alone, equally many batches", (COLLECTIVES,)
            ),
            "find where the ranks diverge: a branch on rank or data, unused parameters (find_unused_parameters=True), a shorter last batch",
        ),
    ),
    Cause.NAN_LOSS: (
        _line(
            "go back to an earlier checkpoint; lower the learning rate, clip gradients, look at the batch of that step; "
            "bf16 instead of fp16"
        ),
    ),
    Cause.HANG_NO_ERROR: (
        _line(
            Hint("make all ranks call the same collectives in the same order", (MISMATCH,)),
            "look at what rank {hang_ranks} did, at {hang_code}",
            "compare the stacks of all ranks at that time",
        ),
    ),
    Cause.USER_CODE: (
        _line(
            Hint("see where it leaves with 0 (sys.exit, a return, a handler of TERM), and why the others do not", (LEFT_EARLY,)),
            "look at {peer}, which refused or ended the connection; else correct the program",
            "correct the program, at {file}:{line}",
            "correct the program",
        ),
    ),
    Cause.DEPENDENCY: (
        _line("run {install}", "install what provides {module}, or correct the import", "install versions that fit each other"),
    ),
    Cause.PREEMPTED: (_line("start it again: it resumes from its newest checkpoint; ask for more time if a limit ended it"),),
    Cause.INTERRUPTED: (_line("start it again where it should go on: nothing failed"),),
    Cause.SEGFAULT: (_line("look at the innermost frames of faulthandler's stack (python -X faulthandler): change the library there"),),
    Cause.UNKNOWN_NATIVE_ABORT: (_line("read the lines before the abort; a core dump or gdb names the library"),),
    Cause.KILLED_UNKNOWN: (
        _line(
            "look at the kernel's log of that node and time (journalctl -k): lack of memory is the usual reason; "
            "then ask who may kill there"
        ),
        _line(Hint("look at what the save needs: it may hold the state a second time", (IN_SAVE,))),
    ),
    Cause.UNKNOWN: (_line("look at the other ranks' and nodes' logs from before the first failure; classify all of them together"),),
    Cause.NONE: (_line("do nothing; if the job did fail, the evidence is in another log"),),
}  # fmt: skip
REMEDIES: Mapping[Cause, tuple[tuple[Hint, ...], ...]] = MappingProxyType(_ROWS)


def hints(verdict: Verdict) -> tuple[str, ...]:
    """Return what a person does about this failure, the most likely first."""
    return tuple(text for line in REMEDIES[verdict.cause] if (text := _first(line, verdict, _known(verdict))))


def general_hints(verdict: Verdict) -> tuple[str, ...]:
    """Return the hints that name no fact: for a message that may hold no path and no address."""
    return tuple(text for line in REMEDIES[verdict.cause] if (text := _first(line, verdict, {})))


def remedy(verdict: Verdict) -> str:
    """Return the hints as one text, in lower case, without a full stop."""
    return "; ".join(hints(verdict))


def before_the_next_start(verdict: Verdict) -> str:
    """Return what a person does before the next start."""
    given = remedy(verdict)
    return f"{given}{';' if ';' in given else ','} then start again"


def _known(verdict: Verdict) -> dict[str, str]:
    """Return the facts that a hint may name."""
    known = {name: value for name, value in verdict.facts if value}
    known |= {"gpu": verdict.gpu} if verdict.gpu else {}
    install = install_text(known)
    return known | ({"install": install} if install else {})


def _first(line: tuple[Hint, ...], verdict: Verdict, known: Mapping[str, str]) -> str:
    for hint in line:
        if all(name in known for name in hint.names) and all(condition.holds(verdict) for condition in hint.when):
            return hint.text.format_map(known)
    return ""


def documented(cause: Cause) -> str:
    """Return the hints of a cause with their conditions, as docs/reference/causes.md lists them."""
    return "; ".join(" / ".join(_shown(hint) for hint in line) for line in REMEDIES[cause])


def _shown(hint: Hint) -> str:
    text = _NAMED.sub(lambda match: _IN_DOCS.get(match[1], match[1].replace("_", " ").upper()), hint.text)
    words = " and ".join(condition.words for condition in hint.when)
    return f"{text} (where {words})" if words else text
