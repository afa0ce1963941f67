"""The general rules of reading a log, each with its near-miss: a log that is nearly the same and is something else.

A row is a log as a job may well write it, and what it is. No row is quoted from the corpora.
"""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import read_text
from supervisor.config import signatures
from supervisor.core.model import Cause

CATALOGUE, _ = signatures.read()
FETCH = '"/opt/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch'
BAR = " 41%|████      | 410/1000 [03:21<04:50,  2.03it/s, loss=2.31]"


def trace(raised: str, *frames: str) -> str:
    shown = "".join(f"  File {frame}\n    call()\n" for frame in ('"/home/user/train.py", line 10, in <module>', *frames))
    return f"Traceback (most recent call last):\n{shown}{raised}\n"


def steps(count: int, first: int = 0) -> str:
    return "".join(f"step {number} loss 2.5 lr 1e-4\n" for number in range(first, first + count))


INTERRUPTS = {
    "within the loader's frames": (steps(9) + trace("KeyboardInterrupt", FETCH), Cause.INTERRUPTED),
    "near: an error within the loader's frames": (steps(9) + trace("ValueError: bad sample", FETCH), Cause.DATA_ERROR),
    "after a command that was refused": (
        "python: can't open file 'trian.py': [Errno 2] No such file\n" + trace("KeyboardInterrupt"),
        Cause.INTERRUPTED,
    ),
    "near: of a rank that waited for one that failed": (
        trace("ValueError: bad shape") + "the other ranks wait\n" + trace("KeyboardInterrupt"),
        Cause.USER_CODE,
    ),
    "near: of a job that stood still": (
        "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) "
        "ran for 600060 milliseconds before timing out.\n" + trace("KeyboardInterrupt"),
        Cause.NCCL_TIMEOUT,
    ),
    "told by torchrun": (
        steps(9) + trace("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2"),
        Cause.INTERRUPTED,
    ),
    "near: a TERM told by torchrun": (
        steps(9) + trace("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"),
        Cause.PREEMPTED,
    ),
    "told by DeepSpeed": (steps(9) + "[INFO] [launch.py:325:sigkill_handler] Main process received SIGINT, exiting\n", Cause.INTERRUPTED),
    "near: an interrupt that the program survived": ("Main process received SIGINT, exiting\n" + steps(9), Cause.NONE),
}
COMMAND = "python train.py " + " ".join(f"--option-{number} value" for number in range(60))
LAST_WORDS = {
    "Killed behind a bar": (steps(9) + BAR + "Killed\n", Cause.KILLED_UNKNOWN),
    "Terminated behind a bar": (steps(9) + BAR + "Terminated\n", Cause.KILLED_UNKNOWN),
    "a fault behind a bar": (steps(9) + BAR + "Segmentation fault (core dumped)\n", Cause.SEGFAULT),
    "Slurm behind a bar": (
        steps(9) + BAR + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T08:00:00 DUE TO TIME LIMIT ***\n",
        Cause.PREEMPTED,
    ),
    "a traceback behind a bar": (steps(9) + BAR + trace("MemoryError"), Cause.HOST_OOM),
    "a shell's notice with a long command": (
        steps(9) + f"{BAR}run.sh: line 12: 4711 Killed                  {COMMAND}\n",
        Cause.KILLED_UNKNOWN,
    ),
    "zsh's notice": (steps(9) + "[1]    7120 segmentation fault (core dumped)  python train.py --lr 0.1\n", Cause.SEGFAULT),
    "bash's notice of a job": (steps(9) + "[1]+  Killed                  python train.py\n", Cause.KILLED_UNKNOWN),
    "near: the word within a bar": (steps(9) + BAR.replace("loss=2.31", "name=Killed") + "\n", Cause.NONE),
    "near: a sentence behind a bar": (steps(9) + BAR + "Killed processes so far: 0\n" + steps(3, 9), Cause.NONE),
    "near: a command that names the word": (f"+ {COMMAND} --on Killed\n" + steps(9), Cause.NONE),
    "near: a list that looks like a notice": ("[1] killed bills and other laws\n" + steps(9), Cause.NONE),
}
LOGS = {f"{group}: {name}": row for group, rows in (("interrupts", INTERRUPTS), ("last words", LAST_WORDS)) for name, row in rows.items()}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_what_the_rules_say(name: str) -> None:
    log, cause = LOGS[name]
    verdict = classify(read_text(log, CATALOGUE))
    assert verdict.cause is cause, verdict
