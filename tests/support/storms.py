"""What a node sees when a collective of many ranks times out, at its true size: some 150 KB of evidence for eight ranks.

The lines are those of torch 2.6's watchdog with four process groups, as each rank prints them before it aborts. The real reader makes
evidence of them; the other facts are those that every attempt leaves.
"""

from __future__ import annotations

from functools import cache

from supervisor.classify.logs.match import Reader
from supervisor.config.settings import Settings
from supervisor.config.signatures import configured
from supervisor.core.model import Evidence, RankExit, RankInfo
from supervisor.core.state import Attempt, NodeReport
from supervisor.core.values import replace

RANKS = 8
_FRAMES = (
    "c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >)",
    "c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >)",
    "c10d::ProcessGroupNCCL::watchdogHandler()",
    "c10d::ProcessGroupNCCL::ncclCommWatchdog()",
    "<unknown function>",
    "clone",
)
_TRACE = "".join(
    f"frame #{n}: {name} + 0x{n + 1:x}b6 (0x7f1234{n:06x} in /usr/local/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so)\n"
    for n, name in enumerate(_FRAMES)
)
_NO_TRACE = (
    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled."
    " You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
)
_CORRUPTED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,"
    " subsequent GPU operations might run on corrupted/incomplete data."
)


def storm(rank: int, groups: int = 4) -> str:
    """Return what a rank prints whose collectives in so many process groups time out."""
    place = f"[rank{rank}]:[E1129 01:20:00.123456789 ProcessGroupNCCL.cpp"
    lines = []
    for group in range(groups):
        work = (
            f"WorkNCCL(SeqNum={1000 + group}, OpType=ALLREDUCE, NumelIn=4096000, NumelOut=4096000, Timeout(ms)=600000)"
            " ran for 600055 milliseconds before timing out."
        )
        head = f"[PG ID {group} PG GUID {group}(mesh_{group}) Rank {rank}]"
        status = f"last enqueued work: {1003 + group}, last completed work: {999 + group}"
        raised = (
            f"{head} Process group watchdog thread terminated with exception: {head} Watchdog caught collective operation timeout: {work}"
        )
        raised += f"\nException raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:635:\n{_TRACE}\n"
        lines += [
            f"{place}:632] {head} Watchdog caught collective operation timeout: {work}\n",
            f"{place}:2268] {head}  failure detected by watchdog at work sequence id: {1000 + group} PG status: {status}\n",
            f"{place}:670] {_NO_TRACE}\n",
            f"{place}:2103] {head} First PG on this rank to signal dumping.\n",
            f"{place}:684] {head} {_CORRUPTED}\n",
            f"{place}:698] {head} To avoid data inconsistency, we are taking the entire process down.\n",
            f"{place}:1896] {raised}",
        ]
        if group == groups - 1:
            lines.append(f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {raised}\n")
    return "".join(lines)


@cache
def _facts_of_rank(rank: int) -> tuple[Evidence, ...]:
    catalogue, _ = configured(Settings())
    text = storm(rank)
    progress = "".join(
        f"step {step} loss {1 / (step + 1):.4f} lr 1e-4 grad_norm 0.123 tokens/s 12345 mem 61.2 GiB\n" for step in range(0, 60, 5)
    )
    reader = Reader(catalogue)
    reader.feed(progress.encode(), 1000.0)
    reader.feed(text.encode(), 1010.0 + rank / 1000)
    return (
        Evidence("exit", "signal", "6", rank=rank, t=1011.0 + rank / 1000, fields=(("pid", str(4000 + rank)),)),
        Evidence("heartbeat", "phase", "train", rank=rank),
        Evidence("heartbeat", "steps", "60", rank=rank),
        Evidence("heartbeat", "optimizer", "made", rank=rank),
        Evidence("heartbeat", "ran", "more than imports", rank=rank),
        *(replace(fact, rank=rank) for fact in reader.finish(1010.0) if fact.name not in {"read", "last_progress"}),
        Evidence("tail", "out", progress, rank=rank, free_text=True),
        Evidence("tail", "err", text[-2000:], rank=rank, free_text=True),
    )


def node_report(node: int, ranks: int = RANKS, *, culprit: int | None = None) -> NodeReport:
    """Return the report of node number `node`, whole. culprit: a rank of the whole job that raised before the others waited in vain."""
    facts: list[Evidence] = []
    first = node * ranks
    for local in range(ranks):
        rank = first + local
        if rank == culprit:
            pid = (("pid", str(4000 + local)),)
            trace = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 112, in step\n    raise ValueError(x)\n'
            facts += [
                Evidence("exit", "exit_code", "1", rank=rank, t=400.0, fields=pid),
                Evidence("error_file", "exception", "ValueError: the batch 81 has no labels", rank=rank, t=399.0),
                Evidence("error_file", "traceback", f"{trace}ValueError: the batch 81 has no labels\n", rank=rank, t=399.0),
                Evidence("heartbeat", "phase", "train", rank=rank),
                Evidence("heartbeat", "steps", "12", rank=rank),
            ]
            continue
        facts += (replace(fact, rank=rank) for fact in _facts_of_rank(local))
    facts += [
        Evidence("network", "interface", "interface eth0 is up, 7 of 7 other nodes answer", fields=(("name", "eth0"), ("state", "up"))),
        Evidence("host", "disk_free", "/ has 200,000 MiB free", fields=(("path", "/"), ("free", str(200_000 << 20)))),
        Evidence("host", "shm_free", "/dev/shm had 60,000 MiB free at its fullest", fields=(("least", str(60_000 << 20)),)),  # noqa: S108
    ]
    infos = tuple(RankInfo(first + local, local, 4000 + local, 7) for local in range(ranks))
    deaths = tuple(RankExit(first + local, 4000 + local, 10**9, signal=6) for local in range(ranks))
    members = (f"node{node:04d}/a1b2c3d4",)
    attempt = Attempt(
        3, began_t=100.0, me=members[0], node=node, ranks=infos, world_size=ranks, deaths=deaths, ended=True, evidence=tuple(facts)
    )
    return NodeReport(members[0], attempt)


__all__ = ["RANKS", "node_report", "storm"]
