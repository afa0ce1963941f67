"""Root cause, not last line: logs in which several ranks, the launcher, the kernel and the scheduler all complain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import claims, read_text
from supervisor.config import signatures
from supervisor.core.model import Cause, Claim, Evidence

if TYPE_CHECKING:
    from pathlib import Path

CATALOGUE, _ = signatures.read()

OOM = (
    "[rank{0}]: Traceback (most recent call last):\n"
    '[rank{0}]:   File "/job/train.py", line 233, in train_step\n[rank{0}]:     loss.backward()\n'
    "[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {0} has a total capacity of 79.10 GiB of which "
    "1.12 GiB is free. Including non-PyTorch memory, this process has 77.97 GiB memory in use. Of the allocated memory 70.00 GiB is "
    "allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated.\n"
)
WATCHDOG = (
    "[rank{0}]:[E1121 01:30:33.917151 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=8120, OpType=ALLREDUCE, NumelIn=544997376, NumelOut=544997376, Timeout(ms)=1800000) "
    "ran for 1800062 milliseconds before timing out.\n"
)
ABORTED = "  rank      : {0} (local_rank: {0})\n  exitcode  : -6 (pid: 4100{0})\n  traceback : Signal 6 (SIGABRT) received by PID 4100{0}\n"
GONE = (
    '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/job/train.py", line 9, in main\n[rank{0}]:     dist.barrier()\n'
    "[rank{0}]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.{0}]:32472\n"
)
TERMINATED = "  rank      : {0} (local_rank: {0})\n  exitcode  : -15 (pid: 4200{0})\n"
XID = "[{1}.000001] NVRM: Xid (PCI:0000:{0}:00): {2}\n"
BUG = (
    '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/job/train.py", line 12, in main\n[rank{0}]:     run()\n'
    "[rank{0}]: ValueError: num_samples should be a positive integer value\n"
)
KILLED = "  rank      : {0} (local_rank: {0})\n  exitcode  : -9 (pid: 4300{0})\n"
TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n============\ntrain.py FAILED\n------------\n"
    "Root Cause (first observed failure):\n[0]:\n"
)


def peers(form: str, but: int, of: int = 8) -> str:
    return "".join(form.format(rank) for rank in range(of) if rank != but)


@pytest.mark.parametrize(
    ("log", "cause", "rank"),
    [
        (OOM.format(3) + peers(WATCHDOG, 3) + TABLE + peers(ABORTED, 3), Cause.CUDA_OOM, 3),
        (peers(GONE, 2) + OOM.format(2), Cause.CUDA_OOM, 2),
        (peers(GONE, 2) + BUG.format(2) + TABLE + "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 410)\n", Cause.USER_CODE, 2),
        (peers(WATCHDOG, 9) + TABLE + peers(ABORTED, 9), Cause.NCCL_TIMEOUT, 0),
        (peers(GONE, 5) + TABLE + KILLED.format(5).replace("-9", "-11") + peers(TERMINATED, 5), Cause.SEGFAULT, 5),
        (peers(GONE, 5) + TABLE + KILLED.format(5) + peers(TERMINATED, 5), Cause.KILLED_UNKNOWN, 5),
        (BUG.format(0) + TABLE + KILLED.format(5), Cause.KILLED_UNKNOWN, 5),
        (XID.format("9c", 1, "79, pid=1, name=python, GPU has fallen off the bus.") + peers(WATCHDOG, 9), Cause.GPU_LOST, None),
        (XID.format("9c", 1, "79, GPU has fallen off the bus.") + XID.format("9c", 2, "45, pid=1, Ch 00000008"), Cause.GPU_LOST, None),
        (
            XID.format("9c", 1, "48, pid=1, name=python, DBE (double bit error) on L2") + XID.format("9c", 2, "43, pid=1, Ch 00000008"),
            Cause.GPU_ECC,
            None,
        ),
        (
            "[100.000001] Memory cgroup out of memory: Killed process 43005 (python) total-vm:99999kB, anon-rss:670000kB\n"
            + peers(GONE, 5) + TABLE + KILLED.format(5),
            Cause.HOST_OOM,
            5,
        ),
    ],
)  # fmt: skip
def test_the_cause_is_named_and_not_its_consequence(log: str, cause: Cause, rank: int | None) -> None:
    verdict = classify(read_text(log, CATALOGUE))
    assert verdict.cause is cause, verdict
    if rank is not None:
        assert verdict.rank == rank


def test_the_verdict_names_what_followed() -> None:
    verdict = classify(read_text(OOM.format(3) + peers(WATCHDOG, 3), CATALOGUE))
    assert any("Watchdog" in fact.text for fact in verdict.because)
    assert (verdict.runner_up, verdict.rank, verdict.gpu) == (Cause.NCCL_TIMEOUT, 3, "3")
    facts = dict(verdict.facts)
    assert (facts["asked"], facts["exception"], facts["file"], facts["line"]) == (str(2 << 30), "OutOfMemoryError", "/job/train.py", "233")


def claim(cause: Cause, weight: float, t: float, rank: int = 0, after: tuple[str, ...] = ()) -> Evidence:
    return Evidence("log", f"{cause}.x", f"{cause} at {t}", rank, t, free_text=True, claim=Claim(cause, weight, consequence_of=after))


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        ((claim(Cause.NCCL_TIMEOUT, 0.95, 1.0, after=("*",)), claim(Cause.DISK_FULL, 0.6, 2.0, 1)), Cause.DISK_FULL),
        ((claim(Cause.NCCL_TIMEOUT, 0.95, 1.0, after=("*",)), claim(Cause.DISK_FULL, 0.3, 2.0, 1)), Cause.NCCL_TIMEOUT),
        ((claim(Cause.NCCL_TIMEOUT, 0.9, 2.0, after=("*",)), claim(Cause.GLOO_ERROR, 0.9, 1.0, after=("*",))), Cause.GLOO_ERROR),
        ((claim(Cause.CHECKPOINT_CORRUPT, 0.95, 1.0, after=("disk_full",)), claim(Cause.DISK_FULL, 0.9, 2.0)), Cause.DISK_FULL),
        ((claim(Cause.CHECKPOINT_CORRUPT, 0.95, 1.0, after=("disk_full",)), claim(Cause.IO_ERROR, 0.9, 2.0)), Cause.CHECKPOINT_CORRUPT),
        ((claim(Cause.DATA_ERROR, 0.9, 2.0), claim(Cause.DISK_FULL, 0.97, 1.0, 1)), Cause.DISK_FULL),
        ((claim(Cause.DATA_ERROR, 0.9, 1.0), claim(Cause.DISK_FULL, 0.97, 2.0, 1)), Cause.DATA_ERROR),
        ((claim(Cause.DATA_ERROR, 0.6, 1.0), claim(Cause.DISK_FULL, 0.97, 2.0, 1)), Cause.DISK_FULL),
        ((claim(Cause.CUDA_OOM, 0.2, 1.0),), Cause.UNKNOWN),
    ],
)
def test_causality_then_sureness_then_time(evidence: tuple[Evidence, ...], cause: Cause) -> None:
    assert classify(evidence).cause is cause
    assert classify(evidence[::-1]).cause is cause, "the order in which evidence is listed says nothing"


def test_two_causes_as_sure_as_each_other_make_the_verdict_less_sure() -> None:
    alone = classify((claim(Cause.DATA_ERROR, 0.9, 1.0),))
    disputed = classify((claim(Cause.DATA_ERROR, 0.9, 1.0), claim(Cause.DISK_FULL, 0.9, 2.0, 1)))
    assert disputed.confidence < alone.confidence
    assert (disputed.runner_up, disputed.runner_up_confidence) == (Cause.DISK_FULL, 0.9)
    assert alone.runner_up is None


def test_term_that_did_not_come_to_us_too_is_no_preemption() -> None:
    assert classify((Evidence("exit", "signal", "15", 0, 1.0),)).cause is Cause.KILLED_UNKNOWN


VALUE = "ValueError: n_embd 48 is not divisible by n_head 5"
NOTICE = Evidence("exit", "signal", "9", fields=(("line", "./launch.sh: line 14: 15944 Killed"), ("pid", "15944")), line=9)
LEFT = Evidence("exit", "exit_code", "1", 0, 12.0)


def raised(text: str, t: float, rank: int = 1) -> Evidence:
    return Evidence("error_file", "exception", text, rank, t)


def killed(t: float) -> Evidence:
    return Evidence("exit", "signal", "9", 0, t)


@pytest.mark.parametrize(
    ("evidence", "cause", "rank"),
    [
        # both ranks raised; the launcher killed the slower one, of which only the shell's notice is known
        ((raised(VALUE, 7.0), NOTICE, LEFT), "user_code", 1),
        ((raised(VALUE, 7.0), raised(VALUE, 8.0, 0), killed(8.1)), "user_code", 1),
        # one rank raised; the launcher killed the other, healthy one
        ((raised("RuntimeError: bad batch", 7.0), killed(7.002)), "user_code", 1),
        # near: the kill came first
        ((raised(VALUE, 7.0), killed(6.998)), "killed_unknown", 0),
        # near: what a rank that lost its peer may raise, and nobody knows when the peer was killed
        ((raised("RuntimeError: bad batch", 7.0), NOTICE), "killed_unknown", None),
        # near: a closed connection proves that the peer was gone before
        ((raised("RuntimeError: Connection closed by peer", 7.0), killed(7.1)), "killed_unknown", 0),
        # near: text of a log, which may have been caught
        ((Evidence("log", "exception", VALUE, 1, 7.0, free_text=True), NOTICE), "killed_unknown", None),
    ],
)  # fmt: skip
def test_a_kill_by_the_launcher_is_no_cause(evidence: tuple[Evidence, ...], cause: str, rank: int | None) -> None:
    for order in (evidence, evidence[::-1]):
        verdict = classify(order)
        assert (verdict.cause, verdict.rank) == (cause, rank)


def test_a_footer_alone_is_no_cause() -> None:
    verdict = classify(read_text(TABLE + "  rank      : 4 (local_rank: 0)\n  exitcode  : 1 (pid: 41000)\n", CATALOGUE))
    assert (verdict.cause, verdict.rank) == (Cause.UNKNOWN, 4)


UNRANKED = BUG.format(0).replace("[rank0]: ", "")
FAILED = (
    "E1121 07:51:01 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: {} (pid: 64) of binary: p\n"
)
ROW = (
    "  rank      : {0} (local_rank: {0})\n  exitcode  : -6 (pid: 6{0})  (SIGABRT)\n  traceback : Signal 6 (SIGABRT) received by PID 6{0}\n"
)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (BUG.format(0) + "terminate called without an active exception\n" + FAILED.format(0), Cause.USER_CODE),
        (BUG.format(0) + FAILED.format(0) + TABLE + ROW.format(0), Cause.USER_CODE),
        (UNRANKED + "terminate called without an active exception\n" + FAILED.format(0), Cause.USER_CODE),
        (UNRANKED + "Aborted (core dumped)\n", Cause.USER_CODE),
        (BUG.format(0) + FAILED.format(1) + TABLE + ROW.format(1), Cause.UNKNOWN_NATIVE_ABORT),
        ("Aborted (core dumped)\n" + UNRANKED, Cause.UNKNOWN_NATIVE_ABORT),
        (GONE.format(0).replace("[rank0]: ", "") + "Aborted (core dumped)\n", Cause.UNKNOWN_NATIVE_ABORT),
    ],
)
def test_an_abort_after_the_process_own_exception_is_a_consequence(log: str, cause: Cause) -> None:
    verdict = classify(read_text(log, CATALOGUE))
    assert verdict.cause is cause, verdict


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (BUG.format(8) + FAILED.format(0), Cause.USER_CODE),  # local rank 0 of the second node is rank 8
        (BUG.format(9) + FAILED.format(0) + TABLE + ROW.format(0).replace("rank      : 0 ", "rank      : 8 ").replace("pid: 60", "pid: 64"),
         Cause.UNKNOWN_NATIVE_ABORT),  # by its pid it is rank 8
        (BUG.format(0) + FAILED.format(1), Cause.UNKNOWN_NATIVE_ABORT),
    ],
)  # fmt: skip
def test_a_number_on_a_node_is_no_rank(log: str, cause: Cause) -> None:
    assert classify(read_text(log, CATALOGUE)).cause is cause


def test_fifteen_is_a_code_like_others_and_a_signal_of_the_launchers() -> None:
    lost = read_text(XID.format("9c", 1, "79, GPU has fallen off the bus."), CATALOGUE)
    assert classify((*lost, Evidence("exit", "exit_code", "15", 3, 1.0))).rank == 3
    assert classify((*lost, Evidence("exit", "signal", "15", 3, 1.0))).rank is None


def test_ends_of_one_pid_are_those_of_one_rank() -> None:
    verdict = classify(read_text(FAILED.format(0).replace("64", "63") + TABLE + ROW.format(3), CATALOGUE))
    assert verdict.rank == 3
    assert {fact.rank for fact in verdict.because} == {3}


def test_a_message_that_a_terminal_broke_in_the_middle_is_known() -> None:
    broken = "RuntimeError: The server socket has failed to listen on any local network\naddress. The server socket has failed to bind\n"
    assert classify(read_text(broken, CATALOGUE)).cause is Cause.RENDEZVOUS


def test_an_error_file_is_judged_by_the_frames_of_its_traceback_too() -> None:
    fact = Evidence("error_file", "exception", "EOFError", 0, 1.0)
    trace = 'Traceback (most recent call last):\n  File "/x/torch/serialization.py", line 9, in _load\n    x()\nEOFError'
    assert "checkpoint_corrupt.loaded" not in {claim.name for claim in claims(fact, CATALOGUE)}
    assert "checkpoint_corrupt.loaded" in {claim.name for claim in claims(fact, CATALOGUE, trace)}


STEPS = "".join(f"step {i} | loss 2.11 | lr 3e-4 | 210 ms\n" for i in range(1, 6))


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (XID.format("3b", 1, "43, pid=1, name=python, Ch 00000010") + STEPS, Cause.NONE),
        (XID.format("3b", 1, "43, pid=1, name=python, Ch 00000010"), Cause.UNKNOWN),
        (XID.format("3b", 1, "79, GPU has fallen off the bus.") + STEPS, Cause.GPU_LOST),
    ],
)
def test_an_echo_of_the_driver_is_no_cause_and_a_lost_gpu_is_one_wherever_it_was_pasted(log: str, cause: Cause) -> None:
    assert classify(read_text(log, CATALOGUE)).cause is cause


def test_a_program_that_ended_well_did_not_fail() -> None:
    assert classify(read_text(STEPS + "Process finished with exit code 0\n", CATALOGUE)).cause is Cause.NONE
    assert classify(read_text("Process finished with exit code 0\n", CATALOGUE)).cause is Cause.NONE


def test_the_facts_name_what_an_xid_means() -> None:
    facts = dict(classify(read_text(XID.format("9c", 1, "79, GPU has fallen off the bus."), CATALOGUE)).facts)
    assert (facts["xid"], facts["xid_action"], facts["xid_same_gpu"]) == ("79", "reboot", "after_reset")
    assert facts["xid_meaning"].startswith("GPU_HAS_FALLEN_OFF_THE_BUS: ")


def test_the_frames_are_those_of_the_exceptions_own_source_in_whatever_order_both_come() -> None:
    def of(source: str, path: str) -> tuple[Evidence, ...]:
        trace = Evidence(source, "traceback", f'  File "{path}", line 1, in f', 0, 1.0)
        return Evidence(source, "exception", "ValueError: bad", 0, 1.0), trace

    own, launchers = of("error_file", "/job/a.py"), of("launcher", "/job/z.py")
    verdicts = [classify(facts) for facts in ((*own, *launchers), (*own, launchers[1], launchers[0]), (own[0], launchers[1], own[1]))]
    assert {dict(verdict.facts)["file"] for verdict in verdicts} == {"/job/a.py"}
    assert len({verdict.fingerprint for verdict in verdicts}) == 1
    claim = Evidence("launcher", "x", "ValueError: bad", 0, 1.0, claim=Claim(Cause.DATA_ERROR, 0.9))
    assert dict(classify((claim, *own, *launchers)).facts)["file"] == "/job/z.py", "that of the source which the claim is of"
    assert dict(classify((*launchers, *own, claim)).facts)["file"] == "/job/z.py"


def raised_in(path: str, function: str, text: str) -> str:
    return f'Traceback (most recent call last):\n  File "{path}", line 9, in {function}\n    work()\n{text}\n'


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (raised_in("/x/torch/serialization.py", "_load", "EOFError"), Cause.CHECKPOINT_CORRUPT),
        (raised_in("/x/torch/serialization.py", "load", "OSError: [Errno 22] Invalid argument"), Cause.CHECKPOINT_CORRUPT),
        (raised_in("/x/multiprocessing/connection.py", "_recv", "EOFError"), Cause.USER_CODE),
        (raised_in("/x/multiprocessing/spawn.py", "_main", "EOFError: Ran out of input"), Cause.USER_CODE),
        ("EOFError\n", Cause.UNKNOWN),
        (
            raised_in("/job/data.py", "__getitem__", "RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive"),
            Cause.DATA_ERROR,
        ),
    ],
)
def test_no_checkpoint_is_called_torn_for_an_end_of_file_elsewhere(log: str, cause: Cause) -> None:
    assert classify(read_text(log, CATALOGUE)).cause is cause


def test_a_leftover_in_a_saves_way_explains_its_exception_and_consequences() -> None:
    evidence = Evidence("checkpoint", "leftover", "/c/step-60 is in the way", 0, 9.999, claim=Claim(Cause.CHECKPOINT_LEFTOVER, 0.97))
    raised = Evidence("error_file", "exception", "FileExistsError: /c/step-60 exists", 0, 10.0)
    caught = Evidence("log", "last_exception", "FileExistsError: /c/step-60 exists", 0, 10.0, free_text=True)
    hang = Evidence("hang", "late", "rank 0 does not come", 0, 300.0, claim=Claim(Cause.HANG_NO_ERROR, 0.95))
    closed = Evidence("error_file", "exception", GONE.format(1).rpartition("]: ")[2].strip(), 1, 9.9)
    peer = claims(closed, CATALOGUE)
    assert peer
    assert classify((raised, evidence)).cause is Cause.CHECKPOINT_LEFTOVER
    assert classify((raised, evidence, *peer)).cause is Cause.CHECKPOINT_LEFTOVER
    assert classify((caught, evidence, hang)).cause is Cause.CHECKPOINT_LEFTOVER, "only rank 0 raised, in a thread; the rest hang"


OWN = (
    '[[signature]]\nid = "our.solver"\ncause = "solver_diverged"\nwhere = ["exception", "line"]\nanchors = ["solver diverged"]\n'
    "pattern = 'solver diverged'\nweight = 0.95\n"
)
DIVERGED = BUG.replace("ValueError: num_samples should be a positive integer value", "RuntimeError: solver diverged")


@pytest.mark.parametrize("followed", [GONE, WATCHDOG, TERMINATED, ABORTED, KILLED])
def test_a_consequence_of_a_users_own_cause_is_no_cause(followed: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN)
    catalogue, problems = signatures.read([tmp_path / "mine.toml"])
    assert problems == ()
    for log in (DIVERGED.format(5) + peers(followed, 5), peers(followed, 5) + DIVERGED.format(5)):
        verdict = classify(read_text(log, catalogue))
        assert (verdict.cause, verdict.rank) == (Cause("solver_diverged"), 5)
    assert classify(read_text(DIVERGED.format(5), CATALOGUE)).cause is Cause.USER_CODE
