"""Which rank failed first, and of what: tables of evidence and verdicts."""

from __future__ import annotations

import pytest

from supervisor.classify import exception_table, exits
from supervisor.classify.engine import classify
from supervisor.core.model import Cause, Evidence

TRACE = """Traceback (most recent call last):
  File "/x/train.py", line 9, in main
    step()
  File "/x/model.py", line 3, in step
ValueError: bad"""


def code(rank: int, text: str, t: float) -> Evidence:
    return Evidence("exit", "exit_code", text, rank=rank, t=t)


def killed(rank: int, signum: int, t: float) -> Evidence:
    return Evidence("exit", "signal", str(signum), rank=rank, t=t)


def raised(rank: int, text: str, t: float) -> Evidence:
    return Evidence("error_file", "exception", text, rank=rank, t=t)


GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:32472"


@pytest.mark.parametrize(
    ("evidence", "cause", "rank"),
    [
        ((killed(1, 9, 5.0), raised(0, GONE, 5.1), code(0, "1", 5.3)), Cause.KILLED_UNKNOWN, 1),
        ((raised(0, GONE, 4.9), code(0, "1", 5.0), killed(1, 6, 5.2)), Cause.UNKNOWN_NATIVE_ABORT, 1),
        ((raised(0, GONE, 4.9), code(0, "1", 5.0)), Cause.GLOO_ERROR, 0),
        ((raised(1, "ValueError: bad", 4.0), code(1, "1", 6.0), code(0, "1", 5.0)), Cause.USER_CODE, 1),
        ((code(3, "42", 1.0), killed(0, 15, 1.1)), Cause.USER_CODE, 3),
        ((killed(0, 11, 1.0),), Cause.SEGFAULT, 0),
        ((killed(0, 6, 1.0),), Cause.UNKNOWN_NATIVE_ABORT, 0),
        ((raised(0, "torch.OutOfMemoryError: CUDA out of memory", 1.0), code(0, "1", 2.0)), Cause.CUDA_OOM, 0),
        ((raised(0, "torch.cuda.OutOfMemoryError: CUDA out of memory", 1.0), code(0, "1", 2.0)), Cause.CUDA_OOM, 0),
        ((raised(0, "ModuleNotFoundError: No module named 'x'", 1.0), code(0, "1", 2.0)), Cause.DEPENDENCY, 0),
        ((Evidence("launcher", "exception", "RendezvousConnectionError: no", t=1.0),), Cause.RENDEZVOUS, None),
        ((Evidence("launcher", "signal", "9", t=1.0),), Cause.KILLED_UNKNOWN, None),
        ((Evidence("heartbeat", "phase", "train", rank=0),), Cause.UNKNOWN, None),
        ((), Cause.UNKNOWN, None),
        ((code(2, "1", 1.0),), Cause.UNKNOWN, 2),
        ((code(2, "137", 1.0),), Cause.KILLED_UNKNOWN, 2),
        ((killed(2, 9, 1.0), Evidence("cgroup", "oom_kill", "1", t=1.0)), Cause.HOST_OOM, 2),
        ((raised(0, "KeyError: 'x'", 3.0), killed(1, 11, 2.0)), Cause.SEGFAULT, 1),
        ((raised(0, "KeyError: 'x'", 3.0), killed(1, 9, 33.0)), Cause.USER_CODE, 0),
    ],
)
def test_first_in_time_wins_over_loud(evidence: tuple[Evidence, ...], cause: Cause, rank: int | None) -> None:
    verdict = classify(evidence)
    assert (verdict.cause, verdict.rank) == (cause, rank)


def test_a_traceback_read_from_the_log_is_worth_less_than_the_ranks_own_file() -> None:
    evidence = Evidence("tail", "last_exception", "ImportError: x", rank=0, free_text=True)
    assert classify((code(0, "1", 1.0), evidence)).confidence < classify((raised(0, "ImportError: x", 1.0), code(0, "1", 1.0))).confidence
    assert classify((killed(0, 9, 1.0), evidence)).cause is Cause.KILLED_UNKNOWN, "a signal is no exception, whatever the log said before"


def test_equal_failures_have_equal_fingerprints_whatever_their_line_numbers() -> None:
    def verdict(trace: str, message: str) -> str:
        return classify((raised(0, f"ValueError: {message}", 1.0), Evidence("error_file", "traceback", trace, rank=0))).fingerprint

    assert verdict(TRACE, "bad row 7") == verdict(TRACE.replace("line 9", "line 12"), "bad row 8")
    assert verdict(TRACE, "bad") != verdict(TRACE.replace("in step", "in load"), "bad")


@pytest.mark.parametrize("name", exception_table.BY_CLASS)
def test_every_row_of_an_exception_is_reached(name: str) -> None:
    text = {"OutOfMemoryError": "CUDA out of memory", "MemoryError": "Unable to allocate 9.00 GiB"}.get(name, "text")
    assert classify((raised(0, f"some.module.{name}: {text}", 1.0),)).cause is exception_table.BY_CLASS[name].cause


@pytest.mark.parametrize("signum", exits.BY_SIGNAL)
def test_every_row_of_a_signal_is_reached(signum: int) -> None:
    verdict = classify((killed(0, signum, 1.0),))
    assert verdict.cause is exits.BY_SIGNAL[signum].cause
    assert exits.SIGNAL_NAMES[signum] in verdict.summary


@pytest.mark.parametrize("phrase", exits.CONSEQUENCES)
def test_every_consequence_gives_way_to_a_cause(phrase: str) -> None:
    assert classify((raised(0, f"RuntimeError: {phrase}", 1.0), killed(1, 9, 2.0))).rank == 1


@pytest.mark.parametrize(
    ("ended", "shown"),
    [(killed(1, 9, 5.0), True), (raised(1, "ValueError: bad", 5.0), False)],
    ids=["killed by nobody knows whom", "its own exception"],
)
def test_a_kernel_log_that_could_not_be_read_stands_beside_a_signal_that_it_may_explain(*, ended: Evidence, shown: bool) -> None:
    unread = Evidence("kernel", "not_observed", "no log to read")
    assert (unread in classify((ended, unread)).because) is shown


def test_the_last_output_of_a_rank_that_ended_without_an_exception_stands_beside_its_exit_code() -> None:
    last = "no such file: a.yaml"
    tails = [Evidence("tail", name, text, rank=rank) for rank, name, text in ((0, "err", "other"), (1, "out", "step 3"), (1, "err", last))]
    verdict = classify((code(1, "1", 5.0), *tails))
    assert (verdict.cause, [fact.text for fact in verdict.because]) == (Cause.UNKNOWN, ["1", last])
    by_exception = classify((raised(1, "ValueError: bad", 4.9), code(1, "1", 5.0), *tails))
    assert last not in [fact.text for fact in by_exception.because]


@pytest.mark.parametrize(
    ("raised", "confidence"),
    [
        *[(f"{kind}: text", 0.85) for kind in ("ValueError", "NameError", "NotADirectoryError", "ImportError")],
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x17 and 16x32)", 0.85),
        ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cpu!", 0.85),
        ("RuntimeError: the licence server is busy", 0.7),
        ("OSError: text", 0.7),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/nfs/index.json'", 0.7),
    ],
)
def test_a_mistake_that_a_rank_wrote_down_itself_is_sure(raised: str, confidence: float) -> None:
    own = classify((Evidence("error_file", "exception", raised, 0, 1.0),))
    text = classify((Evidence("log", "exception", raised, 0, 1.0, free_text=True),))
    assert (own.cause, own.confidence) == (Cause.USER_CODE, confidence)
    assert text.cause is Cause.USER_CODE
    assert text.confidence < 0.8


def test_a_rank_that_raised_the_same_is_shown_with_that_and_no_consequence() -> None:
    evidence = (raised(0, "KeyError: 'x'", 4.9), raised(1, "KeyError: 'x'", 4.95), code(0, "1", 5.0), code(1, "1", 5.1))
    verdict = classify(evidence)
    assert (verdict.cause, verdict.rank) == (Cause.USER_CODE, 0)
    assert [fact.name for fact in verdict.because if fact.rank == 1] == ["exception"]
