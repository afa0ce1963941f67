"""The general rules of reading a log, each with its near-miss: a log that is nearly the same and is something else.

A row is a log as a job may well write it, and what it is. No row is quoted from the corpora.
"""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.judgement.verdicts import ENDED_WELL, MID_RUN, NO_SIGN, TRAINED
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


EXIT_HANDLER = "Exception ignored in atexit callback: <function close at 0x7f>\n" + trace("KeyboardInterrupt: ")
INTERRUPTS = {
    "alone, before an exit handler's": (steps(9) + "KeyboardInterrupt\n" + EXIT_HANDLER, Cause.INTERRUPTED),
    "near: only an exit handler's": (steps(9) + EXIT_HANDLER, Cause.NONE),
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
    "a notice behind the program's last output": (steps(9) + "closing the windowAborted (core dumped)\n", Cause.UNKNOWN_NATIVE_ABORT),
    "near: such a notice within the output": (
        "Q: why does it end in Segmentation fault (core dumped)\n" + "A: a library of another version\n",
        Cause.UNKNOWN,
    ),
    "near: the word within a bar": (steps(9) + BAR.replace("loss=2.31", "name=Killed") + "\n", Cause.NONE),
    "near: a sentence behind a bar": (steps(9) + BAR + "Killed processes so far: 0\n" + steps(3, 9), Cause.NONE),
    "near: a command that names the word": (f"+ {COMMAND} --on Killed\n" + steps(9), Cause.NONE),
    "near: a list that looks like a notice": ("[1] killed bills and other laws\n" + steps(9), Cause.NONE),
}
TAGGED = "pod/train-worker-3 | "
STAMPED = "Nov 24 09:10:{:02d} node7 train.sh[3312]: "
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
MISMATCH = "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
BANNER = "Loading the data\nPatch size: 256\nBatch size: 16\nCreating the model\n"
STORE = (
    "[rank2]:[W322 13:31:40.551 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=6, addr=[n1]:5, remote=[n1]:2335): Broken pipe\n"
)
STORE_BARRIER = (
    "Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
    "(world_size=2, worker_count=4, timeout=0:02:00)"
)
UNUSED = "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has"
DRIVER = (
    "/opt/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). "
    "Please update your GPU driver\n"
)
SYMBOL = "ImportError: /opt/fused.so: undefined symbol: _ZN3c105ErrorC2E"
OF_ACTOR = 'ray.exceptions.RayTaskError(AssertionError): ray::Worker.setup() (pid=7, ip=10.0.0.7)\n  File "/w/rl.py", line 9, in setup\n'
DIED = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\nThe actor is dead "
    "because its worker process has died. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to "
    "high memory usage. (2) ray stop --force is called.\n"
)


def prefixed(prefix: str, log: str) -> str:
    return "".join(prefix.format(number % 60) + line + "\n" for number, line in enumerate(log.splitlines()))


def folded(log: str, width: int = 80) -> str:
    """A line as a terminal shows it, among others."""
    lines = ["python train.py", *(log[at : at + width] for at in range(0, len(log), width)), "$"]
    return "\n".join(lines) + "\n"


PREFIXES = {
    "a container's tag": (prefixed(TAGGED, steps(9) + trace(OOM)), Cause.CUDA_OOM),
    "the journal's": (prefixed(STAMPED, "starting\nloading\nrunning\n" + trace(OOM)), Cause.CUDA_OOM),
    "near: a logger's lines after a traceback": (
        prefixed("2026-11-24 09:10:{:02d},120 ", "INFO start\n" * 9)
        + trace("KeyError: 'lr'")
        + f"2026-11-24 09:11:00,120 INFO sample: {OOM}\n",
        Cause.USER_CODE,
    ),
}
FOLDED = {
    "at a word": (trace(MISMATCH.replace("doesn't match", "doesn't\nmatch")), Cause.CHECKPOINT_MISMATCH),
    "anywhere": (trace(MISMATCH.replace("doesn't match", "does\nn't match")), Cause.CHECKPOINT_MISMATCH),
    "by the terminal, behind a rank's prefix": (
        folded(f"[rank1]: RuntimeError: {UNUSED} parameters that were not used"),
        Cause.DDP_UNSYNCED,
    ),
    "by the terminal, a line of a library": (folded(STORE_BARRIER, 64), Cause.RENDEZVOUS),
    "near: short lines, equal by chance": (
        STORE_BARRIER[:70] + "\n" + STORE_BARRIER[70:140] + "\nshort\n" + "x" * 90 + "\n",
        Cause.UNKNOWN,
    ),
    "near: a value in further lines": (trace(f"ValueError: bad config\n{OOM}"), Cause.USER_CODE),
}
RUNS = {
    "the last one goes well": (BANNER + trace("KeyError: 'lr'") + BANNER + "Testing\nmIoU: 0.64\n", Cause.NONE),
    "near: the last one fails": (BANNER + trace("KeyError: 'lr'") + BANNER + trace(OOM), Cause.CUDA_OOM),
    "near: other lines follow": (
        BANNER + trace("KeyError: 'lr'") + "closing the tracker\nsaved the profile\nPatch size: 256\nbye\n",
        Cause.USER_CODE,
    ),
}
CONSEQUENCES = {
    "a store that is gone": (steps(9) + STORE, Cause.UNKNOWN),
    "near: its exception": (steps(9) + trace("torch.distributed.DistNetworkError: Connection reset by peer"), Cause.RENDEZVOUS),
}
WARNINGS = {
    "of the driver, and trained on": (DRIVER + steps(9), Cause.NONE),
    "of the driver, then another end": (DRIVER + trace("KeyError: 'lr'"), Cause.USER_CODE),
    "near: the driver's error": (
        steps(9) + trace(DRIVER.replace("/opt/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: ", "RuntimeError: ").strip()),
        Cause.GPU_DRIVER,
    ),
}
WRAPPERS = {
    "Ray's task around a worker's cause": (
        prefixed("(Worker pid=7) ", trace(SYMBOL)) + trace(OF_ACTOR + "AssertionError: no engine registered"),
        Cause.DEPENDENCY,
    ),
    "near: a cause that the driver survived": (
        trace(SYMBOL) + "using the slow kernel\n" + steps(9) + trace("KeyError: 'lr'"),
        Cause.USER_CODE,
    ),
    "an actor that died without a reason": (steps(9) + trace(DIED), Cause.KILLED_UNKNOWN),
    "near: an actor that died of its own exception": (
        prefixed("(Worker pid=7) ", trace(OOM)) + trace(DIED),
        Cause.CUDA_OOM,
    ),
}
NO_NUMBERS = {
    "the last losses": (steps(9) + "".join(f"iter {number}: loss nan, time 9ms\n" for number in range(5)), Cause.NAN_LOSS),
    "near: one of them": (steps(9) + "iter 9: loss nan, time 9ms\n" + steps(9, 10), Cause.NONE),
    "near: beside one that is a number": ("".join(f"epoch {number} loss 0.5 val_loss nan\n" for number in range(9)), Cause.NONE),
    "near: a metric": ("".join(f"epoch {number} loss 0.5 iou nan\n" for number in range(9)), Cause.NONE),
}
GLUED = "Loading checkpoint shards:   0%|          | 0/2 [00:00<?, ?it/s]ERROR:torch.distributed.elastic.multiprocessing.api:failed "
RENDEZVOUS = '"/opt/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 143, in _env_rendezvous_handler'
CANCELLED = "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-03-17T20:59:53 ***\n"
HYDRA = "Error executing job with overrides: ['seed=0']\n"
HYDRA_END = "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
IMAGE = '"/opt/lib/python3.11/site-packages/PIL/ImageFile.py", line 237, in load'
ENDS = {
    "in the frames that decode an image": (
        trace("struct.error: unpack_from needs a buffer of 4 bytes", IMAGE),
        Cause.DATA_ERROR,
    ),
    "near: a struct of the program": (trace("struct.error: unpack_from needs a buffer of 4 bytes"), Cause.USER_CODE),
    "a launcher's record before a header in its line": (
        GLUED
        + '(exitcode: -9) local_rank: 0 (pid: 81) of binary: /bin/py Traceback (most recent call last):\n  File "t.py", line 8, in m\n',
        Cause.KILLED_UNKNOWN,
    ),
    "near: a bar before a header in its line": (BAR + trace("KeyError: 'lr'"), Cause.USER_CODE),
    "a script's own usage error": ("train.py: error: argument --fp16: Truthy value expected: got s\n", Cause.USER_CODE),
    "near: a compiler's error": ("kernel.cu: error: identifier is undefined\n" + steps(9), Cause.NONE),
    "Hydra's short report": (
        steps(9) + HYDRA + "Error locating target 'src.net.Net', see chained exception above." + HYDRA_END,
        Cause.USER_CODE,
    ),
    "near: Hydra's report before a traceback": (steps(9) + HYDRA + trace(OOM), Cause.CUDA_OOM),
    "a script that Slurm cannot execute": (
        "slurmstepd: error: execve(): /home/u/run.sh: No such file or directory\n"
        + CANCELLED
        + "srun: error: n1: tasks 0-15: Exited with exit code 2\n",
        Cause.USER_CODE,
    ),
    "near: a step that was cancelled": (CANCELLED, Cause.PREEMPTED),
    "in the rendezvous' frames": (trace("RuntimeError: connect() timed out.", RENDEZVOUS), Cause.RENDEZVOUS),
    "near: a wrong setting in the rendezvous' frames": (trace("KeyError: 'RANK'", RENDEZVOUS), Cause.USER_CODE),
    "a message whose type another rank's line took": (
        "RuntimeErrorpred = model(imgs)\n: \n" + UNUSED + " parameters\n",
        Cause.DDP_UNSYNCED,
    ),
    "near: a comment about the message": ("# this avoids: " + UNUSED + "\n" + steps(9), Cause.NONE),
    "one rank twice": (
        "n1:1:2 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in\n",
        Cause.NCCL_INIT,
    ),
}
LAUNCHERS = {
    "a launcher of its own": (steps(9) + "ERROR launch: worker 2 died, status 139; stopping the others\n", Cause.SEGFAULT),
    "near: training goes on with another worker": (
        steps(9) + "ERROR launch: worker 2 died, status 139; starting it again\n" + steps(9, first=9),
        Cause.NONE,
    ),
    "a sentence without a code": (steps(9) + "the process of host 5 has died, leaving\n", Cause.UNKNOWN),
    "near: a sentence that supposes it": (steps(9) + "start again by hand if the process of host 5 has died\n", Cause.NONE),
    "a batch system's own code": ("Job 7 is over\nExited with exit code 1.\nCPU time: 3 s\n", Cause.UNKNOWN),
}
GROUPS = {
    "ends": ENDS,
    "launchers": LAUNCHERS,
    "interrupts": INTERRUPTS,
    "last words": LAST_WORDS,
    "prefixes": PREFIXES,
    "folded": FOLDED,
    "several runs": RUNS,
    "consequences": CONSEQUENCES,
    "warnings": WARNINGS,
    "wrappers": WRAPPERS,
    "no numbers": NO_NUMBERS,
}
LOGS = {f"{group}: {name}": row for group, rows in GROUPS.items() for name, row in rows.items()}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_what_the_rules_say(name: str) -> None:
    log, cause = LOGS[name]
    verdict = classify(read_text(log, CATALOGUE))
    assert verdict.cause is cause, verdict


FULL = BAR.replace("41%", "100%").replace("410/1000", "1000/1000")
#: Logs without a sign of a failure, the surest first.
HEALTHY = {
    "a good end": steps(9) + "Training completed successfully.\n",
    "training, and more after it": steps(9) + FULL + "\nsaved model.pt\n",
    "it stops in mid-run": steps(9) + BAR,
}


def test_a_healthy_log_is_as_surely_healthy_as_its_end_shows() -> None:
    verdicts = [classify(read_text(log, CATALOGUE)) for log in HEALTHY.values()]
    assert {verdict.cause for verdict in verdicts} == {Cause.NONE}
    assert [verdict.confidence for verdict in verdicts] == [ENDED_WELL, TRAINED, MID_RUN]
    assert [verdict.summary for verdict in verdicts] == [*["no sign of a failure"] * 2, "no sign of a failure; the log stops in mid-run"]


@pytest.mark.parametrize(
    "log",
    [
        "reading 5 files\nsaved model.pt\n",
        "Loading checkpoint shards: 100%|##########| 4/4 [00:02<00:00,  1.9it/s]\nmodel is on cuda:0\n",
        "building GPT model ...\nnum_epochs: 10\nmax_steps=400\n",
    ],
    ids=["neither training nor an end", "a bar of other work", "settings"],
)
def test_that_nothing_failed_is_earned_by_training_or_by_a_good_end(log: str) -> None:
    verdict = classify(read_text(log, CATALOGUE))
    assert (verdict.cause, verdict.confidence) == (Cause.UNKNOWN, NO_SIGN)
    assert classify(read_text(log + steps(2), CATALOGUE)).cause is Cause.NONE
    assert classify(read_text(log + "Training finished after 3 epochs\n", CATALOGUE)).cause is Cause.NONE
