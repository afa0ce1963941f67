"""What observers bring together, and what a fact is worth beside the others."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from health.probes.control_groups import ControlGroup
from health.probes.host import cgroup
from supervisor.classify import exits
from supervisor.classify.engine import classify
from supervisor.config import signatures
from supervisor.core.model import Cause, Claim, Evidence, Phase, RankExit
from supervisor.core.values import replace
from supervisor.job.clock import Clock
from supervisor.observe import collect
from supervisor.observe.anchor_scanner import scanner
from supervisor.observe.host import oom_kills, resources
from supervisor.observe.log_watch import StreamRead
from supervisor.observe.processes.launched_ranks import VanishedRank
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from supervisor.observe.reconcile import MOST_OF_LOGS, reconciled
from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.observe.log_watch import Signatures

CLOCK = Clock(wall_at_start=1000.0, monotonic_at_start=0.0)  # monotonic second 7 is 1007
OOM = Claim(Cause.CUDA_OOM, 0.97)


def death(rank: int, at_s: float, *, code: int | None = None, signum: int | None = None) -> RankExit:
    return RankExit(rank, 100 + rank, int(at_s * 1e9), code, signum)


def beat(rank: int, last_step_s: float | None) -> RankHeartbeat:
    last = None if last_step_s is None else int(last_step_s * 1e9)
    return RankHeartbeat(rank, rank, 100 + rank, 1, 0, Phase.TRAIN, 0, 5, last, 5, "optimizer", True, True, False)  # noqa: FBT003  its form


def log(name: str, *, rank: int | None = 0, t: float = 1005.0, claim: Claim | None = None, final: bool = False) -> Evidence:
    return Evidence("log", name, name, rank=rank, t=t, free_text=not final, line=3, claim=claim)


@pytest.fixture(scope="module")
def known() -> Signatures:
    catalogue, _ = signatures.read()
    pair = catalogue, scanner(catalogue.anchors)
    return lambda: pair


# --- what is expected of us


def test_every_fact_that_means_a_cause_by_itself_is_reported_by_an_observer() -> None:
    group = ControlGroup(Path("/job"), 2, own=True)
    none, one_kill = (oom_kills.GroupCounts(n, n) for n in (0, 1))
    counted = oom_kills.killed({group: none}, {group: one_kill}, 7.0)
    evidence = resources.evidence((), 0, (death(0, 7.0, signum=7),))
    gone = collect.exits((), CLOCK, 5.0, [VanishedRank(1, 101, 7)])
    assert set(exits.BY_FACT) <= {(fact.source, fact.name) for fact in (*counted, *evidence, *gone)}


# --- asking


@pytest.mark.bench
def test_a_failing_or_silent_source_holds_up_no_other() -> None:
    never = threading.Event()

    def fails() -> Iterable[Evidence]:
        message = "no such file"
        raise FileNotFoundError(message)

    def hangs() -> Iterable[Evidence]:
        never.wait(60)
        return ()

    began = time.monotonic()
    evidence = collect.together({"disk": hangs, "files": fails, "exits": lambda: (Evidence("exit", "signal", "9", 3),)}, 1.0)
    assert within(3, since=began)
    assert [(fact.source, fact.name) for fact in evidence] == [("observer", "failed"), ("exit", "signal"), ("observer", "overdue")]
    assert "files: no such file" in evidence[0].text
    assert evidence[2].text == "disk"
    never.set()


# --- ends


def test_ranks_that_we_ended_after_the_first_failure_did_not_fail() -> None:
    deaths = [death(2, 9.0, signum=9), death(0, 4.1, signum=15), death(1, 4.0, code=1), death(3, 4.2, signum=9), death(-1, 3.0, code=1)]
    evidence = collect.exits(deaths, CLOCK, 5.0)
    assert [(fact.rank, fact.name, fact.text, round(fact.t, 6)) for fact in evidence] == [
        (1, "exit_code", "1", 1004.0),
        (0, "ended_by_us", "15", 1004.1),  # by TERM
        (3, "signal", "9", 1004.2),  # before the grace was over: not our KILL
        (2, "ended_by_us", "9", 1009.0),
    ]
    verdict = classify(evidence[:2])
    assert (verdict.cause, verdict.rank) == (Cause.UNKNOWN, 1)  # and not that rank 0 was killed


def test_ranks_that_we_ended_without_a_failure_did_not_fail() -> None:
    deaths = [death(0, 3.9, code=1), death(1, 4.2, signum=15), death(2, 9.3, signum=9)]
    evidence = collect.exits(deaths[1:], CLOCK, 5.0, stopped_t=1004.0)
    assert [(fact.rank, fact.name) for fact in evidence] == [(1, "ended_by_us"), (2, "ended_by_us")]
    assert [fact.name for fact in collect.exits(deaths[1:2], CLOCK, 5.0, stopped_t=1005.0)] == ["signal"]  # before we did
    assert [fact.name for fact in collect.exits(deaths[:2], CLOCK, 5.0, stopped_t=1004.0)] == ["exit_code", "ended_by_us"]


# --- logs and tails


def stream(rank: int, name: str, *facts: Evidence, end: bytes = b"", skipped: int = 0, problem: str = "") -> StreamRead:
    return StreamRead(rank, name, facts, end, skipped, problem)


def test_a_line_is_of_the_rank_whose_file_it_is_in_unless_that_is_a_launchers() -> None:
    read = [stream(0, "both", log("a", rank=None), log("b", rank=6)), stream(-1, "err", log("c", rank=None))]
    assert [fact.rank for fact in collect.logs(read, launches=False)] == [0, 6, None]
    assert [fact.rank for fact in collect.logs(read, launches=True)] == [None, 6, None]


def test_lines_of_two_streams_of_a_rank_are_kept_apart() -> None:
    evidence = Evidence("log", "exception", "ValueError: x", line=3)
    claim = replace(evidence, name="nan_loss.own", text="loss is nan", claim=Claim(Cause.NAN_LOSS, 0.9))
    facts = collect.logs([stream(0, "err", evidence), stream(0, "out", claim), stream(-1, "out", evidence)], launches=False)
    assert len({fact.line for fact in facts}) == 3


def test_unread_output_is_reported() -> None:
    evidence = collect.logs([stream(1, "out", skipped=7), stream(2, "err", problem="Input/output error: rank-2.err")], launches=False)
    assert [(fact.source, fact.name, fact.rank) for fact in evidence] == [("observer", "skipped", 1), ("observer", "failed", 2)]


def tail(text: str, rank: int = 0, name: str = "err") -> dict[str, Any]:
    return {"rank": rank, "name": name, "text": text}


def test_last_words_that_no_disk_took_are_read_from_memory(known: Signatures) -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError: Unable to allocate 9.00 GiB\n'
    whole = stream(0, "err", end=b"before it\n" + text.encode())
    assert [fact.name for fact in collect.tails([tail(text)], [whole], known, 1007.0)] == ["err"]
    for read in (
        [],
        [replace(whole, end=b"before it\n")],
        [replace(whole, problem="No space left on device")],
        [replace(whole, name="out")],
    ):
        evidence = collect.tails([tail(text)], read, known, 1007.0)
        assert {"err", "exception", "traceback"} <= {fact.name for fact in evidence}
        assert all(fact.t == 1007.0 for fact in evidence if fact.source == "log")
        assert classify(evidence).cause is Cause.HOST_OOM


# --- worth


def test_a_line_is_not_later_than_its_writers_death() -> None:
    (fact,) = reconciled([log("x", rank=1, t=1006.0)], [death(1, 5.5, code=1)], [], CLOCK)
    assert fact.t == 1005.5


def test_steps_after_the_first_failure_prove_nothing() -> None:
    facts = [log("progress", rank=2, t=1003.0), log("progress", rank=2, t=1005.0), log("recent_progress", rank=2, t=1006.0)]
    assert [fact.t for fact in reconciled(facts, [death(1, 4.0, code=1)], [], CLOCK)] == [1003.0]


@pytest.mark.parametrize(
    ("cause", "stays"), [(Cause.CUDA_OOM, False), (Cause.USER_CODE, False), (Cause.HOST_OOM, True), (Cause.PREEMPTED, True)]
)
def test_no_error_message_explains_a_kill(cause: Cause, stays: bool) -> None:  # noqa: FBT001  a parameter
    logged_evidence = [log("line", claim=Claim(cause, 0.97)), log("exception", final=True), log("exception"), log("traceback")]
    deaths = [death(0, 6.0, signum=9)]
    left = reconciled([*collect.exits(deaths, CLOCK, 5.0), *logged_evidence], deaths, [], CLOCK)
    assert [(fact.name, fact.free_text) for fact in left] == [("signal", False), *([("line", True)] if stays else [])]


@pytest.mark.parametrize("how", [{"code": 1}, {"signum": 6}, {"signum": 11}, {"signum": 15}])
def test_a_last_traceback_stands_however_its_process_came_to_its_end(how: dict[str, int]) -> None:
    logged_evidence = (log("exception", final=True), log("line", claim=OOM))
    deaths = [death(1, 5.9, code=1), death(0, 6.0, **how)]
    assert reconciled(logged_evidence, deaths, [], CLOCK) == logged_evidence


def test_a_rank_killed_by_us_keeps_its_own_reasons() -> None:
    logged_evidence = (log("exception", final=True),)
    deaths = [death(1, 2.0, code=1), death(0, 8.0, signum=9)]
    left = reconciled([*collect.exits(deaths, CLOCK, 5.0), *logged_evidence], deaths, [], CLOCK)
    assert [fact.name for fact in left] == ["exit_code", "ended_by_us", "exception"]


def test_an_event_after_which_every_rank_trained_on_was_no_cause() -> None:
    xid = Evidence("kernel", "gpu_lost.xid", "NVRM: Xid", t=1005.0, claim=Claim(Cause.GPU_LOST, 0.95))
    facts = [xid, log("line", claim=OOM), log("exception", claim=OOM, final=True)]
    ends = [death(0, 60.0, code=1)]
    later = reconciled(facts, ends, [beat(0, 40.0), beat(1, 30.0)], CLOCK)
    assert [(fact.name, fact.claim is not None) for fact in later] == [("survived", False), ("exception", True)]
    for beats in ([], [beat(0, 40.0), beat(1, 5.5)], [beat(0, 40.0), beat(1, None)]):
        assert reconciled(facts, ends, beats, CLOCK) == tuple(facts)


def counted(t: float) -> Evidence:
    return Evidence("cgroup", "oom_kill", "the kernel killed 1 process of /job for want of memory", t=t)


WORKER = Evidence("log", "dataloader_worker.killed", "DataLoader worker (pid 7) is killed by signal: Killed. ", rank=0, t=1060.0, line=9)
POOL = Evidence("error_file", "exception", "concurrent.futures.process.BrokenProcessPool: A process was terminated", rank=0, t=1060.0)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ((Evidence("exit", "signal", "9", rank=1, t=1060.0), counted(1059.0)), Cause.HOST_OOM),
        ((Evidence("exit", "signal", "9", rank=1, t=1060.0), counted(1061.0)), Cause.HOST_OOM),  # read a moment later
        ((Evidence("exit", "signal", "9", rank=1, t=501_000.0), counted(1059.0)), Cause.KILLED_UNKNOWN),  # another process, days ago
        ((Evidence("exit", "exit_code", "137", rank=1, t=1060.0), counted(1059.0)), Cause.HOST_OOM),  # a shell's word for it
        ((Evidence("launcher", "signal", "9", rank=1), counted(1059.0)), Cause.HOST_OOM),  # no time is told
        ((replace(WORKER, claim=Claim(Cause.DATALOADER_WORKER, 0.9, consequence_of=("host_oom",))), counted(1050.0)), Cause.HOST_OOM),
        ((POOL, counted(1050.0)), Cause.HOST_OOM),
        ((replace(POOL, text="KeyError: 'x'"), counted(1059.5)), Cause.USER_CODE),  # nobody is gone for it
        ((replace(POOL, text="KeyError: 'x'", t=501_000.0), counted(1005.0)), Cause.USER_CODE),
        ((Evidence("exit", "signal", "11", rank=1, t=1060.0), counted(1059.0)), Cause.SEGFAULT),
    ],
    ids=["rank", "later", "long ago", "shell", "launcher", "worker", "pool", "beside", "beside long ago", "another signal"],
)
def test_a_counted_kill_is_the_cause_where_the_log_names_a_process_that_was_killed_then(facts: tuple[Evidence, ...], cause: Cause) -> None:
    deaths = [death(1, 60.0, code=1)]
    verdict = classify(reconciled(facts, deaths, [], CLOCK))
    assert verdict.cause is cause


def test_a_counted_kill_that_training_outlived_was_no_cause() -> None:
    facts = (Evidence("exit", "signal", "9", rank=0, t=1060.0), counted(1005.0))
    assert [fact.name for fact in reconciled(facts, [death(0, 60.0, signum=9)], [beat(0, 40.0)], CLOCK)] == ["signal", "oom_kill_survived"]
    assert [fact.name for fact in reconciled(facts, [death(0, 60.0, signum=9)], [beat(0, 10.0)], CLOCK)] == ["signal", "oom_kill"]


def test_a_journal_holds_the_most_telling_of_many_findings() -> None:
    many = [log(f"noise {i}", t=1001 + i / 1e6) for i in range(5000)]
    facts = [*many, log("cuda_oom.torch", claim=OOM, t=1004.0), log("exception", final=True, t=1004.5)]
    evidence = reconciled(facts, [death(0, 6.0, code=1)], [], CLOCK)
    assert len(evidence) == MOST_OF_LOGS + 1
    assert {"cuda_oom.torch", "exception", "left_out"} <= {fact.name for fact in evidence}


def test_a_long_exception_is_cut_at_its_end_and_a_tail_at_its_beginning() -> None:
    long = "begin" + "x" * 9000 + "end"
    exception, tail_ = collect.trimmed([Evidence("error_file", "exception", long), Evidence("tail", "err", long)])
    assert exception.text.startswith("begin")
    assert tail_.text.endswith("end")
    assert max(len(exception.text), len(tail_.text)) <= collect.RECORDED_CHARACTERS + 1


# --- the machine


def test_the_machines_state_goes_with_a_failure_and_is_no_cause(tmp_path: Path) -> None:
    places = [("checkpoints", str(tmp_path / "not" / "there")), ("state", str(tmp_path))]
    evidence = resources.evidence(places, 5 << 30, [death(0, 1.0, signum=7)])
    assert [fact.name for fact in evidence] == ["memory_available", "disk_free", "shm_free"]  # one disk, told once
    assert classify(evidence).cause in {Cause.UNKNOWN, Cause.NONE}


def test_the_memory_that_is_available_is_what_the_control_group_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [cgroup.GroupLimit(4 << 40, 0, "/"), cgroup.GroupLimit(64 << 20, 60 << 20, "/group")]
    monkeypatch.setattr(cgroup, "memory_limits", lambda _root: limits)
    (evidence,) = resources.evidence((), None, ())
    assert evidence.text == "4 MiB of 64 MiB memory available, by the limit of /group"
    assert dict(evidence.fields) == {"available": str(4 << 20), "total": str(64 << 20)}


def test_a_bus_error_with_full_shared_memory_is_its_want() -> None:
    ends = [death(3, 1.0, signum=7)]
    facts = (*collect.exits(ends, CLOCK, 5.0), *resources.evidence([], 4096, ends))
    verdict = classify(facts)
    assert (verdict.cause, verdict.rank) == (Cause.SHM_EXHAUSTED, 3)
    assert classify((*collect.exits(ends, CLOCK, 5.0), *resources.evidence([], 1 << 30, ends))).cause is Cause.SEGFAULT


def test_the_least_that_was_free_lately_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    shm, free = resources.SharedMemory(), 7
    monkeypatch.setattr("os.statvfs", lambda _path: SimpleNamespace(f_bavail=free, f_frsize=1))
    assert shm.least is None
    for t, free, least in ((100.0, 7, 7), (101.0, 3, 3), (102.0, 9, 3), (111.0, 9, 3), (121.5, 9, 9)):  # noqa: B007  read by statvfs
        shm.measure(t)
        assert shm.least == least


# --- what signatures say of exceptions


LOADED = """Traceback (most recent call last):
  File "train.py", line 9, in resume
    torch.load(path)
  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1530, in load
    return _load(opened)
EOFError
"""


@pytest.mark.parametrize(("through", "cause"), [(LOADED, Cause.CHECKPOINT_CORRUPT), ("", Cause.UNKNOWN)], ids=["torch.load", "who knows"])
def test_an_exception_is_judged_by_the_frames_that_it_came_through(known: Signatures, through: str, cause: Cause) -> None:
    facts = (
        Evidence("exit", "exit_code", "1", rank=0, t=1007.1),
        Evidence("error_file", "exception", "EOFError", rank=0, t=1007.0),
        Evidence("error_file", "traceback", through, rank=0, t=1007.0),
    )
    assert classify((*facts, *collect.claims(facts, known))).cause is cause


@pytest.mark.parametrize(("pid", "cause"), [(100, Cause.USER_CODE), (999, Cause.KILLED_UNKNOWN)], ids=["its own", "a shell's"])
def test_an_exit_code_of_137_is_a_signal_only_from_a_shell(pid: int, cause: Cause) -> None:
    exits = (Evidence("exit", "exit_code", "137", rank=0, t=1007.0),)
    facts = reconciled(exits, (death(0, 7.0, code=137),), (replace(beat(0, None), pid=pid),), CLOCK)
    assert classify(facts).cause is cause
