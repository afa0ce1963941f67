"""What a rank printed is no word of its end: of ranks that ended themselves, that we ended, and that quote the kernel."""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import Reader
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence, Phase, RankExit
from supervisor.job.clock import Clock
from supervisor.observe import collect
from supervisor.observe.log_watch import StreamRead
from supervisor.observe.processes.launched_ranks import VanishedRank
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from supervisor.observe.reconcile import reconciled

CATALOGUE, _ = signatures.read()
CLOCK = Clock(wall_at_start=1000.0, monotonic_at_start=0.0)
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)\n"
WHOLE = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 3, in main\n    step()\n' + OOM
KERNEL = "Out of memory: Killed process 4242 (mysqld) total-vm:12kB, anon-rss:12kB\n"
RAISED = Evidence("error_file", "exception", "KeyError: 'lr'", rank=0, t=1004.0)


def printed(text: str, rank: int) -> tuple[Evidence, ...]:
    """What is read of a rank's output."""
    reader = Reader(CATALOGUE, rank=rank)
    reader.feed(text.encode(), 1003.0)
    return collect.logs([StreamRead(rank, "out", reader.finish(1003.0), b"", 0, "")], launches=False)


def death(rank: int, at_s: float, *, code: int | None = None, signum: int | None = None) -> RankExit:
    return RankExit(rank, 100 + rank, int(at_s * 1e9), code, signum)


def beat(rank: int) -> RankHeartbeat:
    return RankHeartbeat(rank, rank, 100 + rank, 1, 0, Phase.TRAIN, 0, 0, None, 0, "", True, True, False)  # noqa: FBT003  its form


def cause_of(facts: tuple[Evidence, ...], deaths: list[RankExit], beats: list[RankHeartbeat]) -> tuple[Cause, int | None]:
    verdict = classify(reconciled((*collect.exits(deaths, CLOCK, 5.0), *facts), deaths, beats, CLOCK))
    return verdict.cause, verdict.rank


def test_a_rank_that_ends_itself_and_raised_nothing_printed_its_exception() -> None:
    assert cause_of(printed(OOM, 0), [death(0, 5.0, code=1)], [beat(0)]) == (Cause.UNKNOWN, 0)
    # of a program that is not ours to hook nothing is known
    assert cause_of(printed(OOM, 0), [death(0, 5.0, code=1)], []) == (Cause.CUDA_OOM, 0)
    # a whole traceback was logged before the exit, and a library's line is nobody's exception
    assert cause_of(printed(WHOLE, 0), [death(0, 5.0, code=1)], [beat(0)]) == (Cause.CUDA_OOM, 0)
    assert cause_of(printed("Loss is nan, stopping training\n", 0), [death(0, 5.0, code=1)], [beat(0)]) == (Cause.NAN_LOSS, 0)


@pytest.mark.parametrize("text", [OOM, WHOLE], ids=["a line", "a traceback"])
def test_a_rank_that_we_ended_does_not_accuse_itself(text: str) -> None:
    deaths = [death(0, 5.0, code=1), death(1, 5.1, signum=15)]
    assert cause_of((RAISED, *printed(text, 1)), deaths, [beat(0), beat(1)]) == (Cause.USER_CODE, 0)


def test_a_rank_that_vanished_ended_as_its_shell_printed() -> None:
    vanished = [VanishedRank(1, 101, 4 * 10**9), VanishedRank(0, 100, 5 * 10**9)]
    ends = collect.exits([RankExit(0, 70, 6 * 10**9, code=137)], CLOCK, 5.0, vanished, {0: 100, 1: 101})
    shell = "./launch.sh: line 12:   101 Killed     python train.py\n./launch.sh: line 14:   100 Killed     python train.py\n"
    verdict = classify(reconciled((*ends, *printed(shell, 0)), [], [], CLOCK))
    assert (verdict.cause, verdict.rank, verdict.summary) == (Cause.KILLED_UNKNOWN, 1, "rank 1 was killed by SIGKILL")


def test_a_launcher_that_kills_its_other_rank_is_not_the_culprit() -> None:
    """Both ranks raise at once. The launcher reaps one and kills the other, of which nobody knew that it was a rank."""
    value = WHOLE.replace(OOM, "ValueError: n_embd 48 is not divisible by n_head 5\n")
    shell = value + value + './launch.sh: line 14: 15944 Killed      OMPI_COMM_WORLD_RANK=$rank "$@"\n'
    reader = Reader(CATALOGUE)
    reader.feed(shell.encode(), 1009.0)
    output = collect.logs([StreamRead(0, "err", reader.finish(1009.0), b"", 0, "")], launches=True)
    own = Evidence("error_file", "exception", "ValueError: n_embd 48 is not divisible by n_head 5", rank=1, t=1004.0)
    deaths = [RankExit(0, 70, 9 * 10**9, code=1)]
    ends = [VanishedRank(1, 101, 9 * 10**9 + 10**6)]
    facts = (*collect.exits(deaths, CLOCK, 5.0, ends, {1: 101}), own, *output)
    verdict = classify(reconciled(facts, deaths, [], CLOCK))
    assert (verdict.cause, verdict.rank) == (Cause.USER_CODE, 1)
    # near: nobody raised
    quiet = tuple(fact for fact in facts if fact.name not in {"exception", "traceback"})
    assert classify(reconciled(quiet, deaths, [], CLOCK)).cause is Cause.KILLED_UNKNOWN


INTERRUPTED = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 3, in main\n    step()\nKeyboardInterrupt\n'


@pytest.mark.parametrize("end", [{"signum": 2}, {"code": 130}], ids=["by a signal", "by its code"])
def test_an_interrupt_of_one_rank_alone_is_a_kill(end: dict[str, int]) -> None:
    other = death(0, 5.1, signum=15)  # ours
    assert cause_of(printed(INTERRUPTED, 1), [death(1, 5.0, **end), other], [beat(0), beat(1)]) == (Cause.KILLED_UNKNOWN, 1)
    # near: all of them, and the only one
    both = (*printed(INTERRUPTED, 0), *printed(INTERRUPTED, 1))
    assert cause_of(both, [death(1, 5.0, **end), death(0, 5.1, **end)], [beat(0), beat(1)])[0] is Cause.INTERRUPTED
    assert cause_of(both, [death(1, 5.0, **end), other], [beat(0), beat(1)])[0] is Cause.INTERRUPTED, "ours met one that was still ending"
    assert cause_of(printed(INTERRUPTED, 0), [death(0, 5.0, **end)], [beat(0)]) == (Cause.INTERRUPTED, 0)


def test_a_rank_that_hung_after_its_own_failure_is_the_culprit() -> None:
    peer = Evidence("error_file", "exception", "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:3", rank=0, t=1004.0)
    own = Evidence("error_file", "exception", OOM.strip(), rank=1, t=1003.0)
    facts = (peer, own, *collect.claims((own,), lambda: (CATALOGUE, Reader(CATALOGUE)._scanner)), *printed(WHOLE, 1))  # noqa: SLF001  any will do
    deaths = [death(0, 5.0, code=1), death(1, 5.1, signum=15)]
    assert cause_of(facts, deaths, [beat(0), beat(1)]) == (Cause.CUDA_OOM, 1)


@pytest.mark.parametrize("line", [KERNEL, f"[123.456789] {KERNEL}"], ids=["bare", "with its time"])
def test_a_kernel_like_line_in_a_ranks_output_names_no_cause(line: str) -> None:
    facts = printed(line, 0)
    assert [fact.source for fact in facts if fact.name == "kernel_text"] == ["log"]
    assert cause_of((RAISED, *facts), [death(0, 5.0, code=1)], [beat(0)]) == (Cause.USER_CODE, 0)
    assert cause_of(facts, [death(0, 5.0, signum=9)], [beat(0)]) == (Cause.KILLED_UNKNOWN, 0)
