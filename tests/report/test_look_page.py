"""A look on a terminal of 80 columns, and in a file."""

from __future__ import annotations

from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.values import replace
from supervisor.observe.hangs.frames import StackFrame, ThreadStack
from supervisor.observe.hangs.look import Look, ProcessLook, RankLook
from supervisor.observe.hangs.procfs import FileWait, ProcessCounters, ThreadWait
from supervisor.observe.hangs.recorder import Collective, ProcessGroup, RecordedCollectives
from supervisor.report.layout import Surface
from supervisor.report.look_page import text_of

C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
FRAMES = (StackFrame(C10D, 3252, "all_reduce"), StackFrame("/me/train.py", 61, "train"))
LAST = (Collective("all_reduce", 41, done=True), Collective("all_reduce", 42, done=False, sizes=((8, 8), (8,))))
GROUP = ProcessGroup("0", (0, 1, 2), "gloo", 600.0, LAST)
PROCESS = ProcessLook(
    7, 1, "python", ThreadWait("S", "futex_do_wait"), (ThreadStack("0x1", FRAMES),), "", ProcessCounters(0, 12.34, 1, 1, 1, 1)
)
RANK = RankLook(0, 0, PROCESS, (), RecordedCollectives((GROUP,)), Phase.TRAIN, 31)
FILE = FileWait("read", "/mnt/nfs/data/shard-0007.bin", "/mnt/nfs", "nfs4")
READS = replace(PROCESS, pid=9, stacks=(), no_stacks="it waits for a file", waits=ThreadWait("D", "rpc_wait", file=FILE))
LATE = RankLook(2, 2, READS, collectives=RecordedCollectives(unreadable="it did not answer within 2 s: its GIL may be held"))
LOOK = Look(0.0, (RANK, replace(RANK, rank=1, process=replace(PROCESS, pid=8)), LATE), took_s=0.61)
TEXT = """-- hang: blocked
ranks 0-1 wait in all_reduce (seq 42, train.py:61); rank 2 is blocked in D
  state in read of /mnt/nfs/data/shard-0007.bin on /mnt/nfs (nfs4)

No progress for 95 s; the limit was 60 s.

-- ranks of this node, a look of 0.6 s
rank 0 is in all_reduce (seq 42) (train.py:61), 31 steps made, phase train
  process 7 python: state S, in futex_do_wait, 12.3 s CPU
  group 0 (gloo, ranks 0-2, timeout 600 s): in all_reduce (seq 42) of 8x8, 8,
    last over: all_reduce (seq 41)
rank 1 is in all_reduce (seq 42) (train.py:61), 31 steps made, phase train
  process 8 python: state S, in futex_do_wait, 12.3 s CPU
  group 0 (gloo, ranks 0-2, timeout 600 s): in all_reduce (seq 42) of 8x8, 8,
    last over: all_reduce (seq 41)
rank 2 is blocked in D state in read of /mnt/nfs/data/shard-0007.bin on
  /mnt/nfs (nfs4)
  process 9 python: state D, in rpc_wait, 12.3 s CPU
    read of /mnt/nfs/data/shard-0007.bin
    on /mnt/nfs nfs4
    no stacks: it waits for a file
  recorder unreadable: it did not answer within 2 s: its GIL may be held

-- stack of ranks 0, 1, the innermost call first
  /v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252 all_reduce
> /me/train.py:61 train
"""


def test_each_rank_has_its_lines_and_each_stack_stands_once() -> None:
    sentence = TEXT.partition("\n\n")[0].partition("\n")[2].replace("\n ", "")
    hang = Hang(HangKind.BLOCKED, sentence, still_s=95, limit_s=60)
    assert text_of(LOOK, hang, Surface(80)) == TEXT
    in_file = text_of(LOOK, hang)
    assert "rank 2 is blocked in D state in read of /mnt/nfs/data/shard-0007.bin on /mnt/nfs (nfs4)\n" in in_file
    assert in_file.split() == TEXT.split(), "nothing else differs"


def test_a_look_at_a_healthy_job_has_no_hang() -> None:
    assert text_of(LOOK, surface=Surface(80)) == TEXT[TEXT.index("-- ranks of") :]


def test_a_process_that_did_not_answer_is_shown_as_such() -> None:
    text = text_of(Look(0.0, (RankLook(3, 3, ProcessLook(7, 1)),)))
    assert "rank 3 is at an unknown place (it did not answer)\n  process 7: did not answer\n" in text
