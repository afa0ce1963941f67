"""What the elastic session makes of the agent's words and of its end, which come by two ways and in any order."""

# ruff: noqa: D102, ANN401  the stand-ins' methods say it by their names; what a loop posts has no one type

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from supervisor.agent.messages import (
    Complete,
    Go,
    NodesMet,
    PublishCoordinator,
    RanksStarted,
    RanksStopped,
    Renumber,
    ScriptArgs,
    SpawnedRank,
    Start,
    StopCommand,
    TorchError,
    decode_command,
    encode,
)
from supervisor.config.settings import Settings
from supervisor.core.actions import BeginAttempt, GatherNodes, StopRanks
from supervisor.core.events import AttemptEnded, AttemptStarted, LauncherExited, LauncherFellBack, LauncherStarted, NodesMissing, RankExited
from supervisor.core.model import CheckpointRef
from supervisor.core.state import Attempt, JobState, Run, StopRequest
from supervisor.core.state import Stage as JobStage
from supervisor.core.values import replace
from supervisor.guardian.messages import EVENTS
from supervisor.knobs.knob_set import AttemptCommand
from supervisor.launch.elastic_session import ElasticSession, decode, exception_line
from supervisor.launch.session import SessionContext
from tests.support.idle_job import make_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisor.agent.messages import Command

PID = 4711
BEGIN = BeginAttempt(1, "start", None)
COMMAND = ("torchrun", "train.py", "--bs", "32")
AS_WRITTEN = AttemptCommand(COMMAND, {})
SPAWNED = {"ev": "spawned", "attempt": 1, "kind": "agent", "pid": PID, "start_ticks": 1}
EXITED = {**SPAWNED, "ev": "exited", "code": None, "signal": None, "core_dumped": False, "at_ns": 1}
HELLO = {"ev": "hello", "attempt": 0, "pid": PID, "nnodes": [1, 2], "nproc": 3, "max_restarts": None}
RANKS = [{"rank": 0, "local_rank": 0, "pid": 1, "start_ticks": 1}]
STARTED = {"ev": "started", "attempt": 1, "world_size": 1, "ranks": RANKS}
DIED = {"ev": "rank_exited", "attempt": 1, "rank": 0, "pid": 1, "at_ns": 1, "code": 3, "signal": None, "core_dumped": False}


AGENT = ["agent"]


class Stage:
    """A session between a guardian and an agent that the test plays; `events` are what it posted, in order."""

    def __init__(self, directory: Path, *, early: bool = False) -> None:
        self.events: list[Any] = []
        self.of_nodes: list[Any] = []
        self.ended: list[str] = []
        self.graces: list[float] = []
        self.agent: socket.socket | None = None
        self.spawned = 0
        self.returning = 2  # of the other nodes
        self.log_dirs: list[object] = []
        self.t = 0.0
        self.state = JobState(stage=JobStage.STARTING, attempt=Attempt(number=1))
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._soon: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.clock = self
        context = SessionContext(
            loop=cast("Any", self),
            guardian=lambda: cast("Any", self),
            job=make_job(directory, Settings(), *COMMAND, CUDA_VISIBLE_DEVICES="0,1,2"),
            last_sample=lambda: None,
            ended=lambda: None,
            fall_back=self.events.append,
            note=lambda *_: None,
            left=lambda *_: None,
            standbys=self,
            nodes=self,
        )
        link = None
        if early:
            link, self.agent = socket.socketpair()
        started = cast("Any", SimpleNamespace(guardian=self, link=link)) if early else None
        self.session = ElasticSession(context, AGENT, shim="off", script_args=COMMAND[2:], early=started)
        self.session.begin(BEGIN, AS_WRITTEN)
        self.from_guardian(**SPAWNED)

    # who orders standbys

    def reported(self, attempt: int, pids: Any, *, ready: int, private_kib: int, why: str) -> None:
        self.events.append((attempt, tuple(pids), ready, private_kib, why))

    def used(self, attempt: int, ranks: Any, cold: str) -> None:
        self.events.append((attempt, tuple(ranks), cold))

    # the other nodes

    def met(self, message: NodesMet) -> None:
        self.of_nodes.append(message)

    def done(self, attempt: int) -> None:
        self.of_nodes.append(attempt)

    # the loop

    def post(self, event: Any) -> None:
        self.events.append(event)

    feed = post

    def now(self) -> float:
        return self.t

    def at_monotonic_ns(self, _ns: int) -> float:
        return self.t

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.put(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._later.append((self.t + delay_s, call))

    def take(self, count: int) -> None:
        """Run what the reader thread has posted, waiting for it."""
        for _ in range(count):
            self._soon.get(timeout=120)()

    def pass_time(self, seconds: float) -> None:
        self.t += seconds
        due = [call for at, call in self._later if at <= self.t]
        self._later = [(at, call) for at, call in self._later if at > self.t]
        for call in due:
            call()

    # the guardian

    def spawn(self, *, fds: list[int], **_: object) -> None:
        if self.agent is not None:
            self.agent.close()
        self.spawned += 1
        self.agent = socket.socket(fileno=os.dup(fds[0]))

    def log_dir(self, attempt: int, _log_dir: str) -> None:
        self.log_dirs.append(attempt)

    def end(self, scope: str, *, grace_s: float, **_: object) -> None:
        self.ended.append(scope)
        self.graces.append(grace_s)

    def from_guardian(self, **message: Any) -> None:
        self.session.on_guardian(msgspec.convert(message, EVENTS[message["ev"]]))

    def agent_exits(self, code: int) -> None:
        self.from_guardian(**{**EXITED, "code": code})

    # the agent

    def says(self, *messages: dict[str, Any]) -> None:
        assert self.agent is not None
        self.agent.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def hears(self) -> Command:
        """Return the next command to the agent."""
        assert self.agent is not None
        with self.agent.makefile("rb") as lines:
            return decode_command(lines.readline())

    def hangs_up(self) -> None:
        assert self.agent is not None
        self.agent.close()
        self.agent = None

    def posted(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Give a session whose agent was spawned."""
    stage = Stage(tmp_path)
    yield stage
    stage.session.on_guardian_died(None, 9)
    if stage.agent is not None:
        stage.hangs_up()


def test_an_agent_that_runs_already_has_the_first_attempt_and_one_in_its_place_is_spawned(tmp_path: Path) -> None:
    stage = Stage(tmp_path, early=True)
    assert (stage.spawned, stage.log_dirs) == (0, [1])
    stage.says(HELLO)
    stage.take(1)
    assert isinstance(stage.hears(), Go)
    stage.agent_exits(1)
    stage.hangs_up()
    stage.take(1)
    assert len(stage.posted(LauncherExited)) == 1
    stage.state = replace(stage.state, attempt=Attempt(number=2))
    stage.session.begin(replace(BEGIN, attempt=2), AS_WRITTEN)
    assert (stage.spawned, stage.log_dirs) == (1, [1])
    stage.session.on_guardian_died(None, 9)
    stage.hangs_up()


def test_a_job_that_is_done_is_done_whichever_is_heard_first_its_words_or_its_exit_code(stage: Stage) -> None:
    stage.agent_exits(0)
    stage.says(STARTED, {"ev": "finished", "attempt": 1})
    stage.hangs_up()
    stage.take(3)
    assert [event.outcome for event in stage.posted(AttemptEnded)] == ["succeeded"]
    stage.pass_time(10)
    assert stage.posted(LauncherExited) == []


def test_the_agents_report_of_a_ranks_death_comes_before_the_agents_own(stage: Stage) -> None:
    stage.agent_exits(1)
    stage.says(STARTED, DIED)
    stage.hangs_up()
    stage.take(3)
    assert [type(event) for event in stage.events[-2:]] == [RankExited, LauncherExited]


def test_an_agents_end_is_reported_though_a_process_holds_its_link_open(stage: Stage) -> None:
    stage.says({"ev": "finished", "attempt": 1})
    stage.take(1)
    stage.agent_exits(0)
    assert stage.posted(AttemptEnded) == []
    stage.pass_time(1.0)
    assert [event.outcome for event in stage.posted(AttemptEnded)] == ["succeeded"]
    stage.hangs_up()
    stage.take(1)
    assert len(stage.posted(AttemptEnded)) == 1


def test_an_attempt_that_begins_before_the_last_words_were_read_gets_an_agent_of_its_own(stage: Stage) -> None:
    stage.agent_exits(1)
    first = stage.agent
    stage.state = JobState(stage=JobStage.STARTING, attempt=Attempt(number=2))
    stage.session.begin(BeginAttempt(2, "failure", None), AS_WRITTEN)
    assert stage.agent is not first
    stage.pass_time(10)
    assert stage.posted(LauncherExited) == []


def test_half_a_line_of_a_killed_agent_says_nothing_and_the_rest_is_heard(stage: Stage) -> None:
    assert stage.agent is not None
    stage.says(STARTED, DIED)
    stage.agent.sendall(b'{"ev": "stopped", "att')
    stage.hangs_up()
    stage.take(3)  # two messages, and the end
    assert len(stage.posted(RankExited)) == 1
    stage.agent_exits(1)
    assert len(stage.posted(LauncherExited)) == 1


def test_an_agent_that_ends_before_its_first_word_is_no_fault_of_the_jobs(stage: Stage) -> None:
    stage.hangs_up()
    stage.take(1)
    stage.agent_exits(1)
    (fell,) = stage.posted(LauncherFellBack)
    assert "could not start under agent (exit code 1" in fell.reason
    assert stage.posted(LauncherExited) == []


def test_an_agent_that_dies_without_a_word_is_started_again(stage: Stage) -> None:
    stage.hangs_up()
    stage.take(1)
    stage.from_guardian(**{**EXITED, "signal": 9})
    assert len(stage.posted(LauncherExited)) == 1
    stage.state = JobState(stage=JobStage.STARTING, attempt=Attempt(number=2))
    stage.session.begin(BeginAttempt(2, "failure", None), AS_WRITTEN)
    stage.from_guardian(**SPAWNED)
    stage.says(STARTED)
    stage.take(1)
    stage.hangs_up()
    stage.take(1)
    stage.agent_exits(1)
    assert len(stage.posted(LauncherExited)) == 2
    assert stage.posted(LauncherFellBack) == []


def test_torch_says_how_many_nodes_and_ranks_there_are_and_an_attempt_as_written_changes_nothing(stage: Stage) -> None:
    stage.says(HELLO)
    stage.take(1)
    assert stage.posted(LauncherStarted) == [LauncherStarted(0.0, PID, None, 2, 3, 1)]
    go = stage.hears()
    assert isinstance(go, Go)
    assert (go.attempt, go.nproc, go.script_args) == (1, None, None)
    assert "CUDA_VISIBLE_DEVICES" not in go.env  # the user's own stays


def test_the_changes_of_a_plan_go_to_the_agent_with_the_attempt(stage: Stage) -> None:
    stage.says(HELLO)
    stage.take(1)
    stage.hears()
    applied = AttemptCommand((*COMMAND[:3], "16", "--accum=2"), {"SUPERVISE_JOB_BATCH_SIZE": "16", "PYTHONPATH": "theirs"})
    stage.state = JobState(attempt=Attempt(2), stage=JobStage.STARTING)
    stage.session.begin(BeginAttempt(2, "failure", None, (("batch_size", "16"),), gpus=("GPU-a", "GPU-c"), nproc=2), applied)
    go = stage.hears()
    assert isinstance(go, Go)
    assert go.script_args == ScriptArgs(("--bs", "32"), ("--bs", "16", "--accum=2"))
    assert go.nproc == 2
    assert go.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-c"
    assert go.env["SUPERVISE_JOB_BATCH_SIZE"] == "16"
    assert go.env["SUPERVISE_JOB_ATTEMPT"] == "2"
    assert go.env["PYTHONPATH"] == "theirs"


def test_a_failure_unknown_to_the_agent_is_sent_to_it(stage: Stage) -> None:
    stage.says(HELLO)
    stage.take(1)
    stage.hears()
    stage.session.stop(StopRanks(1, 15, 5.0, "failure", "health: GPU 1 fell off the bus"))
    assert stage.hears() == StopCommand(1, 15, 5.0, exit_code=None, failure="health: GPU 1 fell off the bus")


def test_a_change_of_torchruns_own_arguments_is_refused_aloud(stage: Stage) -> None:
    stage.says(HELLO)
    stage.take(1)
    stage.hears()
    stage.state = JobState(attempt=Attempt(2), stage=JobStage.STARTING)
    stage.session.begin(BeginAttempt(2, "failure", None), AttemptCommand(("torchrun", "other.py", "--bs", "16"), {}))
    assert [(event.attempt, event.code) for event in stage.posted(LauncherExited)] == [(2, 1)]
    assert any("torchrun's own arguments" in fact.text for fact in stage.session.facts)


def test_a_command_that_cannot_be_made_ends_the_attempt_with_its_reason(stage: Stage) -> None:
    stage.session.refuse(2, "OSError: no space left", "the making of the attempt's command")
    assert [(event.attempt, event.process) for event in stage.posted(LauncherExited)] == [(2, "command")]
    assert [fact.text for fact in stage.session.facts if fact.name == "exception"] == ["OSError: no space left"]


def test_a_stop_before_the_agents_first_word_kills_it_at_once_and_a_late_word_starts_nothing(stage: Stage) -> None:
    stage.state = JobState(stage=JobStage.STOPPING, attempt=Attempt(number=1), run=Run(stop=StopRequest(15, 1, 0.0)))
    stage.session.stop(StopRanks(1, 15, 30.0, "stop"))
    assert (stage.ended, stage.graces) == (["all"], [0.0])
    stage.says(HELLO)
    stage.take(1)
    assert stage.agent is not None
    stage.agent.settimeout(0.0)
    with pytest.raises(BlockingIOError):
        stage.agent.recv(1)
    stage.from_guardian(ev="ended", what="all", killed=0, left=[])
    assert [event.outcome for event in stage.posted(AttemptEnded)] == ["stopped"]


def test_nodes_meet_and_start_under_the_number_that_they_agreed_on(stage: Stage) -> None:
    stage.says(HELLO)
    stage.take(1)
    stage.hears()
    stage.state = JobState(stage=JobStage.STARTING, attempt=Attempt(number=2))
    stage.session.gather(GatherNodes(2, nproc=2))
    assert stage.hears() == Go(2, nproc=2, returning=2)
    stage.says({"ev": "gathered", "attempt": 2, "node": 1, "nodes": 2, "token": "t", "host": "a", "port": 4711, "key": "k"})
    stage.take(1)
    assert stage.of_nodes == [NodesMet(2, 1, 2, "t", "a", 4711, "k")]
    stage.says({"ev": "nodes_missing", "attempt": 2, "count": 1, "within_s": 600.0})
    stage.take(1)
    assert [(event.count, event.within_s) for event in stage.posted(NodesMissing)] == [(1, 600.0)]
    stage.session.publish_coordinator(2, 4712, "k")
    assert stage.hears() == PublishCoordinator(2, 4712, "k")
    stage.session.renumber(2, 7)
    assert stage.hears() == Renumber(2, 7)
    stage.session.begin(BeginAttempt(7, "failure", CheckpointRef("c.pt", 7, "digest")), AS_WRITTEN)
    started = stage.hears()
    assert isinstance(started, Start)
    assert (started.attempt, started.go.env["SUPERVISE_JOB_RESUME_FROM"]) == (7, "c.pt")
    stage.says({**DIED, "attempt": 2}, {**STARTED, "attempt": 7}, {"ev": "ranks_done", "attempt": 7})
    stage.take(3)
    assert [type(event) for event in stage.events] == [LauncherStarted, NodesMissing, AttemptStarted], (
        "what comes under the old number is void"
    )
    assert stage.of_nodes[1:] == [7], "all of its ranks exited 0"
    stage.session.complete(7)
    assert stage.hears() == Complete(7)


def test_the_last_order_tells_whether_any_node_continues(stage: Stage) -> None:
    stage.says(HELLO)
    stage.take(1)
    stage.hears()
    for for_all in (False, True):
        stage.session.leave(65, for_all=for_all)
        assert stage.hears() == StopCommand(1, 15, 0.0, 65, for_all=for_all)


HEADER = 'Traceback (most recent call last):\n  File "run.py", line 1, in main\n    run()\n'


@pytest.mark.parametrize(
    ("traceback", "text"),
    [
        (f"{HEADER}RuntimeError: no port\n", "RuntimeError: no port"),
        (f"{HEADER}RuntimeError: no port\nand a second line\n", "RuntimeError: no port"),
        (f"{HEADER}a.ChildFailedError: \n=====\ntrain.py FAILED\n=====\n", "a.ChildFailedError: train.py FAILED"),
        (f"{HEADER}RuntimeError: \n=====\n", "RuntimeError"),
        (f"{HEADER}KeyError: 1\n\nDuring handling of it:\n\n{HEADER}ValueError: 2\n", "ValueError: 2"),
        ("torchrun could not start\n-----\n", "torchrun could not start"),
        ("=====\n\n", "unknown"),
    ],
)
def test_a_traceback_is_shown_by_its_exception_and_never_by_a_rule(traceback: str, text: str) -> None:
    assert exception_line(traceback) == text


def test_a_line_that_is_no_message_is_refused() -> None:
    for line in (b'{"ev": "rank_exited", "attempt": "one"}', b'{"ev": "dance", "attempt": 1}', b"[]", b"{"):
        with pytest.raises(msgspec.DecodeError):
            decode(line)


def test_a_message_is_read_as_the_agent_wrote_it() -> None:
    spawned = (SpawnedRank(0, 0, 11, 12), SpawnedRank(1, 1, 13, 14))
    for message in (RanksStarted(2, spawned, 4), RanksStopped(2, "failed", (TorchError(1, "cannot decode \udcff.pt", "Traceback"),))):
        assert decode(encode(message)) == message


def test_an_agents_link_is_read_once_a_thread_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, ["agent-link"]

    def started(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    stage = Stage(tmp_path)
    assert not refused
    stage.says(HELLO)
    stage.pass_time(2.0)
    stage.take(1)
    assert [type(event) for event in stage.events] == [LauncherStarted]
    stage.session.on_guardian_died(None, 9)
    stage.hangs_up()
