"""What two looks mean: each kind of hang with its sentence, and each thing that shows that a rank moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.values import replace
from supervisor.observe.hangs import diagnosis
from supervisor.observe.hangs.awaited import Awaited, AwaitedKind
from supervisor.observe.hangs.frames import StackFrame, ThreadStack
from supervisor.observe.hangs.look import Look, ProcessLook, RankLook
from supervisor.observe.hangs.procfs import FileWait, ProcessCounters, ThreadWait
from supervisor.observe.hangs.rank_progress import compare
from supervisor.observe.hangs.recorder import Collective, ProcessGroup, RecordedCollectives

if TYPE_CHECKING:
    from collections.abc import Callable

SITE = "/venv/lib/python3.11/site-packages"
MAIN = StackFrame("/me/train.py", 90, "<module>")
FUTEX = ThreadWait("S", "futex_do_wait", "202")
RUNS = ThreadWait("R")


def stack(*frames: StackFrame) -> tuple[ThreadStack, ...]:
    return (ThreadStack("0x1", (*frames, MAIN)),)


def torch(module: str, function: str, line: int = 7) -> StackFrame:
    return StackFrame(f"{SITE}/torch/{module}", line, function)


def user(line: int, function: str = "train", file: str = "train.py") -> StackFrame:
    return StackFrame(f"/me/{file}", line, function)


def counted(t: float, cpu_s: float = 0.0, switches: int = 0, n_bytes: int = 0, rest_s: float = 0.0) -> ProcessCounters:
    return ProcessCounters(t, 1 + cpu_s + rest_s, 1 + cpu_s, 100 + switches, 5000 + n_bytes, 0)


def process(pid: int, stacks: tuple[ThreadStack, ...], waits: ThreadWait = FUTEX) -> ProcessLook:
    return ProcessLook(pid, 1, "python", waits, stacks, "" if stacks else "no stacks", counted(0.0), counted(0.1))


def waiting(  # noqa: PLR0913, PLR0917 - what a table row names
    rank: int, operation: str = "all_reduce", sequence: int = 42, line: int = 61, ranks: tuple[int, ...] = (0, 1), group: str = "0"
) -> RankLook:
    last = (Collective("all_reduce", sequence - 1, done=True), Collective(operation, sequence, done=False))
    look = process(100 + rank, stack(torch("distributed/distributed_c10d.py", operation), user(line)))
    groups = (ProcessGroup(group, ranks, "gloo", 600.0, last),)
    return RankLook(rank, rank, look, collectives=RecordedCollectives(groups), phase=Phase.TRAIN, steps=10)


def outside(rank: int, *frames: StackFrame, waits: ThreadWait = FUTEX, workers: tuple[ProcessLook, ...] = ()) -> RankLook:
    done = ProcessGroup("0", (0, 1), "gloo", 600.0, (Collective("all_reduce", 41, done=True),))
    look = process(100 + rank, stack(*frames), waits)
    return RankLook(rank, rank, look, workers, RecordedCollectives((done,)), phase=Phase.TRAIN, steps=10)


def later(look: RankLook, **counters: float) -> RankLook:
    """Return the same rank 30 s later."""
    return replace(look, process=replace(look.process, before=counted(30.0, **counters), after=counted(30.1, **counters)))  # type: ignore[arg-type]


def judged(*ranks: RankLook) -> tuple[HangKind, str, tuple[int, ...]]:
    hang = diagnosis.hang(Look(0.0, ranks), Look(30.0, tuple(map(later, ranks))), still_s=90, limit_s=60, calibrated=True)
    return hang.kind, hang.text, hang.ranks


LOADER = torch("utils/data/dataloader.py", "_try_get_data"), user(88, "load", "data.py")
FETCH = torch("utils/data/_utils/fetch.py", "fetch")
LOCK = Awaited(AwaitedKind.FILE, "/c/lock", "the file /c/lock (3 min old; no process has it open)", is_left=True)
NFS = ThreadWait("D", "rpc_wait_bit_killable", "read", file=FileWait("read", "/mnt/nfs/x.bin", "/mnt/nfs", "nfs4"))
WORKER = process(500, stack(user(12, "__getitem__", "data.py"), FETCH, torch("utils/data/_utils/worker.py", "_worker_loop"), *LOADER))
IDLE = process(501, stack(torch("utils/data/_utils/worker.py", "_worker_loop"), *LOADER))
FSDP_HOOK = (
    torch("distributed/distributed_c10d.py", "all_gather_single"),
    torch("distributed/fsdp/_fully_shard/_fsdp_state.py", "_pre_forward"),
    torch("_dynamo/eval_frame.py", "_fn"),
    torch("nn/modules/module.py", "_call_impl"),
)
RECV = torch("distributed/distributed_c10d.py", "recv")
INIT = torch("distributed/rendezvous.py", "_create_c10d_store"), torch("distributed/distributed_c10d.py", "init_process_group")
GONE = RankLook(1, 1, ProcessLook(101, 1, waits=ThreadWait("Z"), no_stacks="it is gone"), steps=10)
GONE_IN_ORDER = replace(GONE, steps=3)
AT_EXIT = RankLook(
    0,
    0,
    process(
        100,
        (
            ThreadStack("0x1", (StackFrame("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),)),
            ThreadStack("0x2", (StackFrame("/usr/lib/python3.11/queue.py", 171, "get"), user(12, "send", "metrics.py"))),
        ),
    ),
    phase=Phase.TRAIN,
    steps=3,
)
LIBRARY = StackFrame("/usr/lib/python3.11/threading.py", 320, "wait"), StackFrame(f"{SITE}/wandb/mailbox.py", 88, "wait_all")
LATE_LOADER = (
    "rank 0 waits in all_reduce (seq 42, train.py:61); rank 1 is in DataLoader.__next__ (data.py:88), and its worker 500 is "  # and where
)
#: (name, ranks, kind, sentence, culprits)
HANGS: tuple[tuple[str, tuple[RankLook, ...], HangKind, str, tuple[int, ...]], ...] = (
    ("gone", (waiting(0), GONE), HangKind.GONE, "rank 0 waits in all_reduce (seq 42, train.py:61); rank 1 is gone", (1,)),
    ("all are gone", (GONE,), HangKind.GONE, "rank 1 is gone", (1,)),
    (
        "a rank ended in order, and another one continues",
        (outside(0), GONE_IN_ORDER),
        HangKind.STILL,
        "rank 0 is in <module> (train.py:90)",
        (0,),
    ),
    (
        "a rank is at its exit, where a thread does not end",
        (GONE_IN_ORDER, AT_EXIT),
        HangKind.EXIT,
        "rank 0 is at its exit, and a thread of it is in send (metrics.py:12)",
        (0,),
    ),
    (
        "a library waits when the script is over",
        (GONE_IN_ORDER, replace(AT_EXIT, process=process(100, (ThreadStack("0x1", LIBRARY),)), script_over=True)),
        HangKind.EXIT,
        "rank 0 is in wait_all of wandb/mailbox.py",
        (0,),
    ),
    (
        "a library waits at the exit",
        (replace(AT_EXIT, process=process(100, (ThreadStack("0x1", LIBRARY),))),),
        HangKind.STILL,
        "rank 0 is in wait_all of wandb/mailbox.py",
        (),
    ),
    (
        "a rank does not come to init_process_group",
        (replace(outside(0, *INIT), phase=Phase.IMPORT), outside(1, user(70, "download"))),
        HangKind.LATE,
        "rank 0 waits in init_process_group (train.py:90); rank 1 is in download (train.py:70)",
        (1,),
    ),
    (
        "a rank ended before init_process_group",
        (replace(outside(0, *INIT), phase=Phase.IMPORT), GONE),
        HangKind.GONE,
        "rank 0 waits in init_process_group (train.py:90); rank 1 is gone",
        (1,),
    ),
    (
        "a rank ended in order, and another one waits in a group that it is not in",
        (waiting(0, ranks=(0, 2)), GONE),
        HangKind.WAITING,
        "rank 0 waits in all_reduce (seq 42, train.py:61)",
        (),
    ),
    (
        "another operation",
        (waiting(0, "barrier", line=61), waiting(1, "all_reduce", line=75)),
        HangKind.MISMATCH,
        "rank 0 waits in barrier (seq 42, train.py:61), rank 1 in all_reduce (seq 42, train.py:75): they wait for ever",
        (0, 1),
    ),
    (
        "another number, and all of the group wait",
        (waiting(0, sequence=41), waiting(1, sequence=42)),
        HangKind.MISMATCH,
        "rank 0 waits in all_reduce (seq 41, train.py:61), rank 1 in all_reduce (seq 42, train.py:61): they wait for ever",
        (0, 1),
    ),
    (
        "another number, and a rank of the group is on another node",
        (waiting(0, sequence=41, ranks=(0, 1, 2)), waiting(1, sequence=42, ranks=(0, 1, 2))),
        HangKind.STILL,
        "rank 0 waits in all_reduce (seq 41, train.py:61), rank 1 in all_reduce (seq 42, train.py:61)",
        (),
    ),
    (
        "another operation, and a rank of the group is on another node",
        (waiting(0, "barrier", ranks=(0, 1, 2)), waiting(1, ranks=(0, 1, 2))),
        HangKind.MISMATCH,
        "rank 0 waits in barrier (seq 42, train.py:61), rank 1 in all_reduce (seq 42, train.py:61): they wait for ever",
        (0, 1),
    ),
    (
        "two groups that wait for each other",
        (waiting(0, group="1"), waiting(1, "barrier", group="2")),
        HangKind.STILL,
        "rank 0 waits in all_reduce (seq 42, train.py:61), rank 1 in barrier (seq 42, train.py:61)",
        (),
    ),
    (
        "stopped",
        (waiting(0), outside(1, waits=ThreadWait("T", "do_signal_stop"))),
        HangKind.STOPPED,
        "rank 0 waits in all_reduce (seq 42, train.py:61); rank 1 is stopped (state T)",
        (1,),
    ),
    (
        "state D",
        (*(waiting(rank, sequence=1841) for rank in range(7)), outside(7, waits=NFS)),
        HangKind.BLOCKED,
        "ranks 0-6 wait in all_reduce (seq 1841, train.py:61); rank 7 is blocked in D state in read of /mnt/nfs/x.bin on /mnt/nfs (nfs4)",
        (7,),
    ),
    (
        "a loader worker in state D",
        (waiting(0), outside(1, *LOADER, workers=(IDLE, replace(WORKER, waits=NFS, stacks=())))),
        HangKind.BLOCKED,
        LATE_LOADER + "blocked in D state in read of /mnt/nfs/x.bin on /mnt/nfs (nfs4)",
        (1,),
    ),
    (
        "a loader worker that is stopped",
        (waiting(0), outside(1, *LOADER, workers=(IDLE, replace(WORKER, waits=ThreadWait("T"), stacks=())))),
        HangKind.LATE,
        LATE_LOADER + "stopped (state T)",
        (1,),
    ),
    (
        "a loader worker in the user's code",
        (waiting(0), outside(1, *LOADER, workers=(IDLE, WORKER))),
        HangKind.LATE,
        LATE_LOADER + "in __getitem__ (data.py:12)",
        (1,),
    ),
    (
        "rank 0 saves",
        (outside(0, torch("serialization.py", "_save"), torch("serialization.py", "save"), user(90, "save")), waiting(1, "barrier")),
        HangKind.LATE,
        "rank 1 waits in barrier (seq 42, train.py:61); rank 0 is in torch.save (train.py:90)",
        (0,),
    ),
    (
        "it issued the collective, and continued to something else",
        (waiting(0), replace(waiting(1), process=process(101, stack(user(70, "evaluate")), ThreadWait("S", "hrtimer_nanosleep")))),
        HangKind.LATE,
        "rank 0 waits in all_reduce (seq 42, train.py:61); rank 1 is in evaluate (train.py:70)",
        (1,),
    ),
    (
        "one batch fewer",
        (waiting(0), replace(outside(1, user(99, "finish")), steps=9)),
        HangKind.LATE,
        "rank 0 waits in all_reduce (seq 42, train.py:61); rank 1 is in finish (train.py:99); rank 1 is one step behind",
        (1,),
    ),
    (
        "both receive: gloo's recv is in no recorder",
        (outside(0, RECV, user(61)), outside(1, RECV, user(61))),
        HangKind.STILL,
        "ranks 0, 1 wait in recv (train.py:61)",
        (),
    ),
    (
        "one receives from a rank that computes, while another operation of it is under way",
        (replace(waiting(0), process=process(100, stack(RECV, user(61)))), outside(1, user(70, "evaluate"))),
        HangKind.LATE,
        "rank 0 waits in recv (train.py:61); rank 1 is in evaluate (train.py:70)",
        (1,),
    ),
    (
        "a hook of FSDP's, which torch runs through its compiler",
        (waiting(0, "barrier"), replace(waiting(1, "all_gather"), process=process(101, stack(*FSDP_HOOK, user(75))))),
        HangKind.MISMATCH,
        "rank 0 waits in barrier (seq 42, train.py:61), rank 1 in all_gather (seq 42, train.py:75): they wait for ever",
        (0, 1),
    ),
    (
        "a monitored barrier",
        tuple(outside(rank, torch("distributed/distributed_c10d.py", "monitored_barrier"), user(61)) for rank in range(2)),
        HangKind.WAITING,
        "ranks 0, 1 wait in monitored_barrier (train.py:61)",
        (),
    ),
    ("the network", (waiting(0), waiting(1)), HangKind.WAITING, "ranks 0, 1 wait in all_reduce (seq 42, train.py:61)", ()),
    (
        "the lock of a killed build",
        (replace(outside(0, user(70, "wait")), process=replace(process(100, stack(user(70, "wait"))), awaits=(LOCK,))),),
        HangKind.LOCK,
        "rank 0 is in wait (train.py:70), waiting for the file /c/lock (3 min old; no process has it open)",
        (),
    ),
    ("alone", (outside(0, user(70, "read")),), HangKind.STILL, "rank 0 is in read (train.py:70)", ()),
)


@pytest.mark.parametrize(("ranks", "kind", "text", "culprits"), [row[1:] for row in HANGS], ids=[row[0] for row in HANGS])
def test_two_looks_show_the_kind_the_text_and_the_culprits(
    ranks: tuple[RankLook, ...], kind: HangKind, text: str, culprits: tuple[int, ...]
) -> None:
    assert judged(*ranks) == (kind, text, culprits)


def test_each_kind_has_a_row() -> None:
    assert {row[2] for row in HANGS} == set(HangKind)


def test_a_hang_has_the_code_the_phase_and_the_groups_timeout() -> None:
    first = (waiting(0), outside(1, *LOADER, workers=(WORKER,)))
    hang = diagnosis.hang(Look(0.0, first), Look(30.0, tuple(map(later, first))), still_s=90, limit_s=60, calibrated=False)
    assert (hang.code, hang.phase, hang.group_timeout_s) == ("data.py:88", Phase.DATA, 600.0)
    assert (hang.still_s, hang.limit_s, hang.calibrated, hang.busy) == (90, 60, False, False)


def test_the_code_of_several_culprits_names_their_ranks() -> None:
    first = (waiting(0, "barrier", line=61, ranks=(0, 1, 2)), *(waiting(rank, line=75, ranks=(0, 1, 2)) for rank in (1, 2)))
    hang = diagnosis.hang(Look(0.0, first), Look(30.0, tuple(map(later, first))), still_s=90, limit_s=60, calibrated=True)
    assert (hang.kind, hang.code) == (HangKind.MISMATCH, "train.py:61 (rank 0), train.py:75 (ranks 1, 2)")


def test_a_state_seen_in_only_one_look_is_not_proven() -> None:
    first, second = waiting(1, sequence=41), waiting(1, "barrier")
    hang = diagnosis.hang(Look(0, (waiting(0), first)), Look(30, (later(waiting(0)), later(second))), still_s=9, limit_s=6, calibrated=True)
    assert hang.kind is not HangKind.MISMATCH


LOOPS = outside(0, user(70, "spin"), waits=RUNS)
COMPILES = outside(0, torch("_inductor/compile_fx.py", "compile_fx"), user(70), waits=RUNS)
STUCK_COMPILER = outside(0, torch("_inductor/compile_fx.py", "compile_fx"), user(70))
IMPORTS = outside(
    0,
    torch("_dynamo/config.py", "decorated"),
    torch("_dynamo/config.py", "<module>"),
    torch("_dynamo/__init__.py", "<module>"),
    torch("nn/parallel/distributed.py", "__init__"),
    user(70),
    waits=RUNS,
)
#: What runs a model that torch compiled.
GENERATED = f"/tmp/torchinductor_me/2k/c2k{12 * 'q7xy'}.py"  # noqa: S108 - a name
COMPILED = (
    torch("_inductor/output_code.py", "__call__"),
    torch("_dynamo/eval_frame.py", "_fn"),
    torch("nn/modules/module.py", "_call_impl"),
)
JOINS = outside(0, *INIT)
#: (name, first, second, what moved, or what it does in one and the same place; "": nothing at all)
SILENT = RecordedCollectives(unreadable="it did not answer within 2 s")
MOVES: tuple[tuple[str, RankLook, RankLook, str], ...] = (
    ("a step", waiting(0), replace(later(waiting(0)), steps=11), "made steps (10 before, 11 now)"),
    ("a phase", waiting(0), replace(later(waiting(0)), phase=Phase.EVAL), "went from phase train to eval"),
    ("another collective", waiting(0), later(waiting(0, sequence=43)), "came to all_reduce (seq 43)"),
    ("its recorder did not answer before", replace(waiting(0), collectives=SILENT), later(waiting(0)), ""),
    ("its recorder does not answer now", waiting(0), replace(later(waiting(0)), collectives=SILENT), ""),
    ("another line", outside(0, user(70)), later(outside(0, user(71))), "was in train (train.py:70) and is in train (train.py:71)"),
    ("it read", outside(0, user(70)), later(outside(0, user(70)), n_bytes=3 << 20), "read 3 MiB"),
    ("it logged", outside(0, user(70)), later(outside(0, user(70)), n_bytes=3 << 10), ""),
    ("it compiles", COMPILES, later(COMPILES, cpu_s=20), "compiles"),
    ("a compilation that stands still", STUCK_COMPILER, later(STUCK_COMPILER), ""),
    ("a loop that gets no processor", LOOPS, later(LOOPS), "waits for a processor"),
    ("it imports the compiler", IMPORTS, later(IMPORTS, cpu_s=20), "uses CPU time"),
    ("another process", waiting(0), replace(waiting(0), process=replace(waiting(0).process, pid=7)), "is another process"),
    ("it ended", waiting(1), GONE, "ended"),
    ("asks the store for its peers", JOINS, later(JOINS, switches=3000, cpu_s=1.0), ""),
    ("a loop", LOOPS, later(LOOPS, cpu_s=29), "uses CPU time"),
    ("a loop, in another line", LOOPS, later(outside(0, user(71, "spin"), waits=RUNS), cpu_s=29), "uses CPU time"),
    ("another function", LOOPS, later(outside(0, user(9, "go")), cpu_s=29), "was in spin (train.py:70) and is in go (train.py:9)"),
    (
        "another layer of a model",
        outside(0, torch("nn/modules/linear.py", "forward"), torch("nn/modules/module.py", "_call_impl"), user(9, "evaluate")),
        later(outside(0, torch("nn/modules/module.py", "_call_impl"), user(9, "evaluate")), cpu_s=29),
        "computes a model in evaluate (train.py:9)",
    ),
    (
        "another part of a compiled model",
        outside(0, StackFrame(GENERATED, 40, "call"), *COMPILED, user(9, "evaluate")),
        later(outside(0, StackFrame(GENERATED, 77, "call"), *COMPILED, user(9, "evaluate")), cpu_s=29),
        "computes a model in evaluate (train.py:9)",
    ),
    (
        "the same layer of a model",
        outside(0, torch("nn/modules/linear.py", "forward"), user(9, "evaluate")),
        later(outside(0, torch("nn/modules/linear.py", "forward"), user(9, "evaluate")), cpu_s=29),
        "uses CPU time",
    ),
    ("it polls every 0.1 s", outside(0, user(70)), later(outside(0, user(70)), switches=300, cpu_s=0.08), ""),
    ("it polls every 1 ms", outside(0, user(70)), later(outside(0, user(70)), switches=27_000, cpu_s=2.2), ""),
    ("it computes for 0.3 ms in between", outside(0, user(70)), later(outside(0, user(70)), switches=21_000, cpu_s=6.6), "uses CPU time"),
    ("it polls, and other threads compute", outside(0, user(70)), later(outside(0, user(70)), switches=300, rest_s=9), "uses CPU time"),
    ("it waits in a DataLoader", outside(0, *LOADER), later(outside(0, *LOADER), switches=6), ""),
    ("other threads in a collective", waiting(0), later(waiting(0), rest_s=9), ""),
    ("other threads outside of one", outside(0, user(70)), later(outside(0, user(70)), rest_s=9), "uses CPU time"),
)  # fmt: skip


@pytest.mark.parametrize(("first", "second", "motion"), [row[1:] for row in MOVES], ids=[row[0] for row in MOVES])
def test_two_looks_show_the_rank_that_moved(first: RankLook, second: RankLook, motion: str) -> None:
    progress = compare(Look(0.0, (first,)), Look(30.0, (second,)))
    motions = ((first.rank, motion),) if motion else ()
    is_busy = motion in {"uses CPU time", "waits for a processor", "has processes that use CPU time"}
    assert (progress.moved, progress.busy) == (((), motions) if is_busy else (motions, ()))
    assert progress.text == (f"rank {first.rank} {motion}" if progress.moved else "")


SERVER = Awaited(AwaitedKind.SOCKET, "10.0.0.1:80", "10.0.0.1:80", lives=True, moved_bytes=5)
HELD = Awaited(AwaitedKind.FILE, "/c/lock", "the file /c/lock (3 min old; locked by process 9 (cc))", lives=True)
FIFO = Awaited(AwaitedKind.PIPE, "/c/fifo", "a process that opens the other end of the pipe /c/fifo")
CHILD = Awaited(AwaitedKind.PROCESS, "500", "process 500 (cc)", lives=True)


def awaiting(rank: int, *objects: Awaited) -> RankLook:
    look = outside(rank, user(70, "wait"), waits=ThreadWait("S", "hrtimer_nanosleep"))
    return replace(look, process=replace(look.process, awaits=objects))


def polling(rank: int, *objects: Awaited) -> tuple[RankLook, RankLook]:
    look = awaiting(rank, *objects)
    return look, later(look, switches=300, cpu_s=0.05)


def seen(*pairs: tuple[RankLook, RankLook]) -> Hang:
    first, second = (tuple(pair[at] for pair in pairs) for at in (0, 1))
    return diagnosis.hang(Look(0.0, first), Look(30.0, second), still_s=90, limit_s=60, calibrated=True)


def unmoved(look: RankLook) -> tuple[RankLook, RankLook]:
    return look, later(look)


def test_ranks_that_poll_wait_and_the_file_is_in_the_sentence() -> None:
    hang = seen(polling(0, LOCK), polling(1, LOCK))
    assert (hang.kind, hang.busy, hang.slow, hang.left_file) == (HangKind.LOCK, False, False, "/c/lock")
    assert hang.text == "ranks 0, 1 are in wait (train.py:70), waiting for the file /c/lock (3 min old; no process has it open)"


def test_a_file_that_only_some_of_the_ranks_wait_for_is_not_what_holds_the_job() -> None:
    assert seen(polling(0, LOCK), polling(1)).left_file == ""
    assert seen(unmoved(waiting(0)), polling(1, LOCK)).left_file == "/c/lock", "the others wait for the rank that waits for it"


def test_the_peer_of_a_socket_is_in_the_sentence() -> None:
    hang = seen(unmoved(waiting(0)), unmoved(awaiting(1, SERVER)))
    assert (hang.kind, hang.ranks) == (HangKind.LATE, (1,))
    assert hang.text.endswith("; rank 1 is in wait (train.py:70), waiting for 10.0.0.1:80")


STANDS = unmoved(outside(1))
MISSING = Awaited(AwaitedKind.FILE, "/c/part", "the file /c/part, which is not there")
STORE = replace(SERVER, text="a key of torch's store at 10.0.0.1:80", of_store=True)
OF_RANK_1 = {
    "a connection": replace(SERVER, pids=(101,), ranks=(1,)),
    "a lock that it polls": replace(HELD, pids=(101,), ranks=(1,)),
    "a queue": replace(FIFO, lives=True, pids=(101,), ranks=(1,)),
    "the store": STORE,
}


@pytest.mark.parametrize("waited", OF_RANK_1.values(), ids=OF_RANK_1)
def test_a_rank_that_waits_for_another_by_a_socket_queue_or_lock_is_not_late(waited: Awaited) -> None:
    hang = seen(unmoved(awaiting(0, waited)), STANDS)
    assert (hang.kind, hang.ranks, hang.busy) == (HangKind.LATE, (1,), False)
    assert hang.text.startswith("rank 0 is in wait (train.py:70), waiting for ")


@pytest.mark.parametrize("objects", [(), (MISSING,)], ids=["unknown", "a file"])
def test_a_polling_rank_waits_for_the_ranks_that_stand_elsewhere(objects: tuple[Awaited, ...]) -> None:
    hang = seen(polling(0, *objects), STANDS)
    assert (hang.kind, hang.ranks) == (HangKind.LATE, (1,))
    three = seen(unmoved(waiting(0)), polling(2, *objects), STANDS)
    assert (three.kind, three.ranks) == (HangKind.LATE, (1,)), "of two that are not in the collective one waits too"
    alone = seen(unmoved(waiting(0)), polling(2, *objects))
    assert (alone.kind, alone.ranks) == (HangKind.LATE, (2,)), "where nobody else stands, it is the one that does not come"


def test_a_rank_that_computes_and_also_polls_does_not_wait() -> None:
    look = awaiting(0, MISSING)
    hang = seen((look, later(look, switches=300, cpu_s=3.0)), STANDS)
    assert (hang.kind, hang.ranks) == (HangKind.STILL, ())
    assert "rank 0 is in wait (train.py:70), and uses CPU time" in hang.text


@pytest.mark.parametrize("waited", [SERVER, CHILD, replace(FIFO, lives=True, pids=(500,))], ids=["a server", "a child", "its queue"])
def test_a_rank_that_waits_for_a_server_or_its_own_child_is_late_itself(waited: Awaited) -> None:
    hang = seen(unmoved(awaiting(0, waited)), STANDS)
    assert (hang.kind, hang.ranks) == (HangKind.STILL, ())


def ends(look: RankLook) -> RankLook:
    """Return a rank that has made the last step that was named."""
    return replace(look, phase=Phase.TRAIN, step=200, total=200)


BARRIER = ends(waiting(0))
LEFT = ends(replace(GONE, script_over=True))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((BARRIER, LEFT), "rank 0 stands at its exit in all_reduce (seq 42) (train.py:61)"),
        ((BARRIER, ends(waiting(1))), "ranks 0, 1 stand at their exit in all_reduce (seq 42) (train.py:61)"),
        (
            (BARRIER, ends(outside(1))),
            "rank 0 stands at its exit in all_reduce (seq 42) (train.py:61); rank 1 stands at its exit in <module>",
        ),
        ((AT_EXIT, LEFT), "rank 0 stands at its exit: a thread of it is in send (metrics.py:12)"),
    ],
    ids=["one left", "all stand in a collective", "all stand", "a thread"],
)
def test_ranks_that_stand_after_the_end_of_the_training_are_named(ranks: tuple[RankLook, ...], text: str) -> None:
    hang = seen(*map(unmoved, ranks))
    assert hang.at_exit.startswith(text)
    assert hang.end_step == (200 if ranks[0].step else None)


def works(**changes: object) -> tuple[RankLook, RankLook]:
    """Return a rank at its end of which something changed between the two looks."""
    second = later(BARRIER)
    return BARRIER, replace(second, process=replace(second.process, **changes))


def test_a_rank_that_still_works_is_not_over() -> None:
    busy = replace(counted(30.0), cpu_s=15.0)
    writes = replace(counted(30.0), written_bytes=60_000)
    assert seen(works(), unmoved(LEFT)).working == ""
    for second in (works(socket_bytes=60_000), works(before=busy), works(before=writes), works(writing=("/c/step-200.pt.tmp",))):
        assert seen(second, unmoved(LEFT)).working.startswith("rank 0 ")
    assert seen(works(writing=("/c/train.log",)), unmoved(LEFT)).working == "", "a log stays open"
    for cpu_s, text in ((0.0, ""), (9.0, "rank 0 uses CPU time")):
        child = replace(helper(500, cpu_s), waits=FUTEX)
        first, second = (replace(look, helpers=(child,)) for look in works())
        assert seen((first, second), unmoved(LEFT)).working == text, "a child of it computes"


@pytest.mark.parametrize(
    "change",
    [{"step": 199}, {"total": None}, {"phase": Phase.EVAL}, {"phase": Phase.CHECKPOINT}],
    ids=["a step is left", "no end", "eval", "save"],
)
def test_a_rank_that_may_still_train_save_or_evaluate_is_not_over(change: dict[str, object]) -> None:
    assert seen(unmoved(replace(BARRIER, **change)), unmoved(LEFT)).at_exit == ""  # type: ignore[arg-type]  # a table


@pytest.mark.parametrize("objects", [(), (LOCK,), (FIFO,)], ids=["unknown", "a file", "a pipe"])
def test_a_rank_that_is_gone_counts_however_its_peers_wait(objects: tuple[Awaited, ...]) -> None:
    peer = unmoved(awaiting(0, *objects)) if FIFO in objects else polling(0, *objects)
    hang = seen(peer, unmoved(GONE))
    assert (hang.kind, hang.ranks) == (HangKind.GONE, (1,))
    assert hang.text.startswith("rank 0 is in wait (train.py:70)")
    assert "rank 1 is gone" in hang.text


def test_a_rank_that_polls_after_the_training_does_not_wait_for_a_finished_one() -> None:
    done = unmoved(replace(GONE, script_over=True))
    assert seen(polling(0), done).kind is HangKind.STILL
    assert seen(polling(0, LOCK), done).kind is HangKind.GONE, "a file that the other one may have had to make"
    first, second = (replace(look, script_over=True) for look in polling(0, LOCK))
    assert seen((first, second), done).kind is not HangKind.GONE, "it gave up its group"


def test_a_script_that_does_more_after_it_gave_up_its_group_is_not_over() -> None:
    export = replace(outside(0), script_over=True)
    assert seen(unmoved(GONE_IN_ORDER), unmoved(export)).kind is HangKind.STILL


@pytest.mark.parametrize("wait", [HELD, SERVER, CHILD], ids=lambda held: held.text)
def test_a_rank_that_waits_for_a_living_process_does_not_wait_for_an_ended_one(wait: Awaited) -> None:
    assert seen(polling(0, wait), unmoved(GONE_IN_ORDER)).kind is HangKind.STILL


def test_a_polling_rank_that_moves_bytes_does_not_wait_for_a_gone_one() -> None:
    first, second = polling(0)
    before = replace(second.process.before, main_bytes=600_000) if second.process.before is not None else None
    first = replace(first, process=replace(first.process, after=replace(counted(0.1), main_bytes=0)))
    hang = seen((first, replace(second, process=replace(second.process, before=before))), unmoved(GONE_IN_ORDER))
    assert (hang.kind, hang.slow) == (HangKind.STILL, True)


SLOW = {"a file": (("/nfs/x.bin", 0), ("/nfs/x.bin", 300_000), " of /nfs/x.bin"), "nothing that is known": (("/log", 5), ("/log", 5), "")}


@pytest.mark.parametrize("change", SLOW)
def test_a_few_bytes_of_the_training_thread_are_slow(change: str) -> None:
    then, now, of = SLOW[change]
    rank = outside(1, user(70, "restore"))
    first = replace(rank, process=replace(rank.process, after=replace(counted(0.1), main_bytes=0), files=(then,)))
    second = replace(rank, process=replace(rank.process, before=replace(counted(30.1), main_bytes=307_200), files=(now,)))
    hang = seen(unmoved(waiting(0)), (first, second))
    assert (hang.kind, hang.ranks, hang.slow) == (HangKind.LATE, (1,), True)
    assert hang.text.endswith(f"rank 1 is in restore (train.py:70), moving 10 KiB/s{of}")


def test_bytes_over_the_connection_that_is_waited_for_are_slow() -> None:
    first, second = unmoved(awaiting(1, SERVER))
    more = replace(SERVER, moved_bytes=SERVER.moved_bytes + 300_000)
    second = replace(second, process=replace(second.process, awaits=(more,)))
    hang = seen(unmoved(waiting(0)), (first, second))
    assert hang.slow
    assert "moving 9.8 KiB/s of 10.0.0.1:80" in hang.text


def test_bytes_of_other_threads_are_not_the_training_s() -> None:
    """A thread that shows how full the memory is reads /proc in a rank that hangs, too."""
    assert not seen(unmoved(waiting(0)), (outside(1, user(70)), later(outside(1, user(70)), n_bytes=300_000))).slow


def helper(pid: int, cpu_s: float, children_s: float = 0.0) -> ProcessLook:
    counters = [replace(counted(t, cpu), children_cpu_s=children) for t, cpu, children in ((0.1, 0.0, 0.0), (30.1, cpu_s, children_s))]
    return ProcessLook(pid, 1, "cc", ThreadWait("R"), no_stacks="it runs another program", before=counters[1], after=counters[0])


@pytest.mark.parametrize(
    ("objects", "cpu_s", "is_busy"), [((CHILD,), 1.0, True), ((), 1.0, False), ((), 6.0, True), ((CHILD,), 0.1, False)]
)
def test_the_cpu_time_of_a_process_that_a_rank_waits_for_is_work(objects: tuple[Awaited, ...], cpu_s: float, is_busy: bool) -> None:  # noqa: FBT001 - a table
    """One that it does not visibly wait for may be anything, and has to use as much as another thread."""
    first, second = unmoved(awaiting(0, *objects))
    work = helper(500, cpu_s)
    progress = compare(Look(0.0, (replace(first, helpers=(work,)),)), Look(30.0, (replace(second, helpers=(work,)),)))
    assert progress.busy == (((0, "has processes that use CPU time"),) if is_busy else ())


def test_a_build_that_starts_one_compiler_after_the_other_moves() -> None:
    first, second = unmoved(awaiting(0, CHILD))
    before, after = Look(0.0, (replace(first, helpers=(helper(500, 0.0),)),)), Look(30.0, (replace(second, helpers=(helper(501, 0.0),)),))
    assert compare(before, after).moved == ((0, "waits for a process that started or ended others"),)


@pytest.mark.parametrize(
    ("world", "text"),
    [
        (None, ""),
        (1, ""),
        (2, ": 1 of 2 ranks came; the other one is on another node, or never started"),
        (8, ": 1 of 8 ranks came; the 7 others are on other nodes, or never started"),
    ],
)
def test_how_many_ranks_came_to_the_process_group(world: int | None, text: str) -> None:
    hang = seen(unmoved(replace(outside(0, *INIT), phase=Phase.INIT, world=world)))
    assert (hang.kind, hang.text) == (HangKind.WAITING, f"rank 0 waits in init_process_group (train.py:90){text}")


def test_a_loop_is_late_and_may_continue() -> None:
    first = (waiting(1), LOOPS)
    second = (later(waiting(1)), later(LOOPS, cpu_s=29))
    hang = diagnosis.hang(Look(0.0, first), Look(30.0, second), still_s=90, limit_s=60, calibrated=True)
    assert (hang.kind, hang.ranks, hang.busy) == (HangKind.LATE, (0,), True)
    assert hang.text.endswith("rank 0 is in spin (train.py:70), and uses CPU time")


@pytest.mark.parametrize("change", [lambda w: replace(w, before=counted(30, n_bytes=2 << 20)), lambda w: replace(w, pid=9)])
def test_a_worker_that_reads_or_is_new_moves_its_rank(change: Callable[[ProcessLook], ProcessLook]) -> None:
    first = outside(0, *LOADER, workers=(WORKER,))
    second = later(replace(first, workers=(change(WORKER),)))
    assert compare(Look(0.0, (first,)), Look(30.0, (second,))).moved
