"""What must not be taken for a cause that changes a job: text that only looks like one, and errors that ended nothing.

Each row is a log as a job may well write it, and what it is. The rules are those of the head of classify/judgement/admissible.py.
"""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import read_text
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence, FailureVerdict

CATALOGUE, _ = signatures.read()


def trace(raised: str, frame: str = '"/home/user/train.py", line 10, in main') -> str:
    return f"Traceback (most recent call last):\n  File {frame}\n    step()\n{raised}\n"


def steps(count: int) -> str:
    return "".join(f"step {number} loss 2.5 lr 1e-4\n" for number in range(count))


def table(rank: int = 0, code: int = 1) -> str:
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n============\ntrain.py FAILED\n------------\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-21_08:00:00\n  host      : node1\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 12)\n  error_file: <N/A>\n============\n"
    )


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
FULL = "OSError: [Errno 28] No space left on device: '/cache/x'"
TORN = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
KILLED_OTHER = "Out of memory: Killed process 4242 (mysqld) total-vm:12kB, anon-rss:12kB\n"
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
SHAPES = 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a".'
CALLED = "subprocess.CalledProcessError: Command '['x']' returned non-zero exit status 1."
GONE = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:3"
CUT = "_pickle.UnpicklingError: pickle data was truncated"
BUG = trace("ModuleNotFoundError: No module named 'flash_attn'")
KEY = trace("KeyError: 'lr'")
CODE = {Cause.USER_CODE}
LACKS = {Cause.DEPENDENCY}
UNKNOWN = {Cause.UNKNOWN}
NONE = {Cause.NONE}
KILL = {Cause.KILLED_UNKNOWN}

LOGS = {
    # the exception that ended a rank outranks what else its output says
    "a printed line": (steps(9) + f"sample: how to fix this\n{OOM}\n" + BUG + table(), LACKS),
    "a printed traceback": (steps(9) + trace(OOM, '"/home/poster/a.py", line 1, in f') + "please help me\n" + BUG + table(), LACKS),
    "printed by a rank": (f"[rank0]: {OOM}\n[rank0]: " + BUG.strip().replace("\n", "\n[rank0]: ") + "\n" + table(), LACKS),
    "a caught error": (trace(FULL) + "falling back to no cache\n" + BUG + table(), LACKS),
    "a checkpoint that was passed over": (trace(TORN) + "falling back to ckpt-100\n" + KEY, CODE),
    "a second try without strict": (trace(SHAPES) + "loading with strict=False\n" + KEY + table(), CODE),
    "a library's word": (steps(9) + "wandb.errors.CommError: No space left on device\n" + BUG + table(), LACKS),
    "a thread": ("Exception in thread Thread-1 (upload):\n" + trace(FULL) + KEY, CODE),
    "the kernel's words as data": (steps(9) + "sample:\n" + KILLED_OTHER + BUG + table(), LACKS),
    "an Xid as data": (LOST + steps(600) + KEY, CODE),
    "another program's Xid": (f"[12.345678] {LOST}" + steps(9) + KEY + table(), CODE),
    "another program's kill": (steps(9) + "[123.456789] " + KILLED_OTHER + KEY + table(), CODE),
    "Slurm's words as data": (steps(9) + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0\nwhy?\n" + BUG + table(), LACKS),
    # a signal is no exception
    "a printed line and SEGV": (steps(9) + OOM + "\nSegmentation fault (core dumped)\n", {Cause.SEGFAULT}),
    "a printed line and KILL": (steps(9) + OOM + "\nKilled\n", KILL),
    # what training went on after
    "survived, then killed": (trace(OOM) + "retrying with half the batch\n" + steps(300) + "Killed\n", KILL),
    "survived, then an exit": (trace(OOM) + "retrying with half the batch\n" + steps(300) + table(), UNKNOWN),
    "survived for long": (OOM + "\n" + steps(9000) + "Segmentation fault (core dumped)\n", {Cause.SEGFAULT}),
    "survived, then a bug": (trace(FULL) + "no cache then\n" + steps(2000) + BUG + table(), LACKS),
    "told in no known form": (trace(OOM) + "retrying\n" + "[1] ppl=12.1 wps=1000\n" * 3000 + BUG + table(), LACKS),
    # a log that ended well
    "ended well": (steps(9) + f"eval samples:\n{OOM}\nplease help\nTraining finished\n", NONE),
    "ended well after a traceback": (steps(9) + trace(OOM) + "please help\nTraining finished\n", UNKNOWN),
    "evaluated": (steps(9) + KILLED_OTHER + "Eval finished. acc 0.9\n", NONE),
    "the kernel's words long ago": (KILLED_OTHER + steps(3000) + "done\n", NONE),
    "an Xid long ago": (LOST + steps(3000) + "done\n", NONE),
    # the run before
    "the run before": (trace(OOM) + table() + "=== attempt 2 ===\n" + BUG + table(), LACKS),
    "the run before, and no word": (trace(OOM) + table() + "=== attempt 2 ===\n" + steps(400) + table(), UNKNOWN),
    # what a value is
    "a label": (trace("ValueError: unknown class label 'No space left on device'") + table(), CODE),
    "a key": (trace("KeyError: 'No space left on device'"), CODE),
    "an expectation": (trace("AssertionError: expected 'Disk quota exceeded' in message, got ''"), CODE),
    "a report": (trace("RuntimeError: training job on node7 reported No space left on device"), CODE),
    "quoted on the next line": (trace(f"ValueError: bad sample: 'help'\n{FULL}"), CODE),
    "an OOM quoted on the next line": (
        trace("ValueError: could not parse line\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB"),
        CODE,
    ),
    **{
        raised: (trace(raised), CODE)
        for raised in (
            "AssertionError: loss is nan? no: shapes differ",
            "ValueError: column 'loss' contains NaN in /data/history.csv row 12",
            "ValueError: loss weight is inf in config.yaml, must be finite",
            "ValueError: unknown reduction for loss: NaN-safe",
            "AssertionError: grad is nan-safe only for fp32",
            "ValueError: label for loss contains NaN in sample 12",
            "ValueError: early stopping metric val_loss is inf at start; pass patience",
            # of whose memory
            "__main__.OutOfMemoryError: replay buffer: 200 of 200 slots in use",
            "redis.exceptions.OutOfMemoryError: command not allowed when used memory > 'maxmemory'.",
            "java.lang.OutOfMemoryError: Java heap space",
            "MemoryError: replay memory holds no transitions yet",
        )
    },
    # which file
    "a vocabulary": (trace("_pickle.UnpicklingError: invalid load key, '<'.", '"/x/vocab.py", line 5, in load_vocab'), {Cause.DATA_ERROR}),
    "an empty vocabulary": (trace("EOFError: Ran out of input", '"/x/vocab.py", line 5, in load_vocab'), {Cause.DATA_ERROR}),
    "features": (
        trace("EOFError: Ran out of input", '"/x/dataset.py", line 3, in __init__\n  File "/v/torch/serialization.py", line 1300, in load'),
        {Cause.DATA_ERROR},
    ),
    "a seek": (trace("ValueError: negative seek value -22", '"/x/tail_log.py", line 3, in tail'), CODE),
    "other metadata": (
        trace("FileNotFoundError: [Errno 2] No such file or directory: '/data/audio/.metadata'", '"/x/data.py", line 3, in read_meta'),
        {Cause.USER_CODE, Cause.DATA_ERROR},
    ),
    # prose
    **{
        prose: (steps(9) + prose + "\nhow do I fix it?\n" + BUG, LACKS)
        for prose in (
            "I saw: Task was killed due to the node running low on memory, why?",
            "the pod text: The node was low on resource: memory. please help",
            "reason: OOMKilled",
            "my post: could not allocate pinned host memory of size: 12",
            "Answer: slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2026-11-21T08:00:00 DUE TO PREEMPTION ***",
        )
    },
    # and the rest
    "an interrupt": (trace("KeyboardInterrupt"), {Cause.INTERRUPTED}),
    "a cut traceback": ("Traceback (most recent call last):\n  File ", UNKNOWN),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_line_that_only_resembles_a_cause_is_none(name: str) -> None:
    log, causes = LOGS[name]
    assert classify(read_text(log, CATALOGUE)).cause in causes


FOUND = {
    "a worker's line and an exit": (f"ERROR worker: gave up\n{OOM}\n" + table(), Cause.CUDA_OOM),
    "a launcher's exception last": (trace(OOM) + trace(CALLED), Cause.CUDA_OOM),
    "a traceback that hands on": (
        "(worker pid=7) " + trace(OOM).strip().replace("\n", "\n(worker pid=7) ")
        + "\n" + trace("RuntimeError: Engine core initialization failed. See root cause above."),
        Cause.CUDA_OOM,
    ),
    "a library's line and ABRT": ("  what():  " + OOM.partition(": ")[2] + "\nAborted (core dumped)\n", Cause.CUDA_OOM),
    "a traceback and SEGV at the end": (steps(9) + trace(OOM) + "Segmentation fault (core dumped)\n", Cause.CUDA_OOM),
    "a step of a peer afterwards": (trace(OOM) + steps(2) + table(), Cause.CUDA_OOM),
    "the shell says done": (trace(OOM) + "done\nJob finished at 10:00\n", Cause.CUDA_OOM),
    "a peer's end": (trace(OOM) + trace(GONE), Cause.CUDA_OOM),
    "two nodes' tables": (trace(OOM) + table(0) + BUG.replace("main", "other") + table(8), Cause.CUDA_OOM),
    "a table printed twice": (trace(OOM) + table() + table(), Cause.CUDA_OOM),
    "pytest": (f"E   {OOM}\n", Cause.CUDA_OOM),
    "the kernel's log without times": (LOST + "NVRM: Xid (PCI:0000:3b:00): 45, pid=1, Ch 00000008\n", Cause.GPU_LOST),
    "the kernel and a worker": (
        "[1.000001] " + KILLED_OTHER + trace("RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed."),
        Cause.HOST_OOM,
    ),
    "a loss": (trace("ValueError: step 12: training loss is nan, stopping"), Cause.NAN_LOSS),
    "no finite loss": (trace("RuntimeError: NaN or Inf found in gradients"), Cause.NAN_LOSS),
    "a file of HDF5": (trace("OSError: Can't write data (errno = 28, error message = 'No space left on device')"), Cause.DISK_FULL),
    "a checkpoint": (trace(CUT, '"/x/train.py", line 5, in load_checkpoint'), Cause.CHECKPOINT_CORRUPT),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_a_cause_that_is_logged_before_a_general_end_is_found(name: str) -> None:
    log, cause = FOUND[name]
    assert classify(read_text(log, CATALOGUE)).cause is cause


def of(*facts: Evidence) -> FailureVerdict:
    return classify(facts)


def test_an_error_file_outranks_what_its_rank_printed() -> None:
    printed = read_text(OOM + "\n", CATALOGUE)
    raised = Evidence("error_file", "exception", "KeyError: 'lr'", rank=0, t=9.0)
    verdict = of(raised, *printed)
    assert (verdict.cause, verdict.rank, verdict.runner_up) == (Cause.USER_CODE, 0, Cause.CUDA_OOM)


def test_a_rank_that_we_ended_is_not_the_culprit_by_what_it_printed() -> None:
    printed = tuple(
        Evidence(f.source, f.name, f.text, 1, 1.0, f.free_text, f.fields, f.line, f.node, f.claim) for f in read_text(OOM, CATALOGUE)
    )
    raised = Evidence("error_file", "exception", "KeyError: 'lr'", rank=0, t=9.0)
    verdict = of(raised, Evidence("exit", "exit_code", "1", 0, 9.1), Evidence("exit", "ended_by_us", "15", 1, 9.2), *printed)
    assert (verdict.cause, verdict.rank) == (Cause.USER_CODE, 0)
