"""When standbys are ordered, when they are ended, and what is reported of them. The agent and the guardian are played here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.config.settings import Settings, with_values
from supervisor.core.model import Gpu, Launcher, Policy, RankInfo
from supervisor.core.state import Attempt, JobState, Run, Stage, StopRequest
from supervisor.instrument._supervise_shim import layout
from supervisor.observe.host import memory_room
from supervisor.observe.host.memory_room import MemoryRoom
from supervisor.observe.ranks import heartbeats
from supervisor.run.standbys import MOST_LOOK_S, ImportingRank, Standbys, command_line, importing_ranks
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GIB = 1 << 30


class Scene:
    """A job whose ranks are real processes; `sent` has the orders, `noted` and `recorded` what was reported of them."""

    def __init__(self, directory: Path, ranks: Sequence[subprocess.Popen[bytes]], mode: str, impossible: str = "") -> None:
        self.t, self.sent, self.noted, self.recorded = 0.0, list[tuple[Any, ...]](), list[tuple[str, Any]](), list[Any]()
        self.directory, self.ranks = directory, ranks
        infos = tuple(RankInfo(number, number, rank.pid, 1) for number, rank in enumerate(ranks))
        self.state = JobState(stage=Stage.RUNNING, attempt=Attempt(number=1, ranks=infos))
        loop: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: self.t), call_soon=lambda call: call())
        threads: Any = SimpleNamespace(recur=lambda _name, work: work())
        reporter: Any = SimpleNamespace(note=lambda *fact: self.noted.append(fact))
        job: Any = SimpleNamespace(settings=with_values(Settings(), {"standby.mode": mode}, {}), attempt_dir=lambda _number: directory)
        self.standbys = Standbys(job, loop, threads, lambda: self, impossible, reporter)  # type: ignore[arg-type, return-value]  # what a session needs
        self.standbys.record = self.recorded.append
        heartbeats.create(directory / "heartbeat", len(ranks))
        for number, rank in enumerate(ranks):
            self.claim(number, rank.pid)

    def prepare_standbys(self, attempt: int, directory: str, commands: Sequence[Sequence[str]]) -> None:
        """Take an order, as a session does."""
        assert directory == str(self.directory)
        self.sent.append((attempt, [list(command) for command in commands]))

    def drop_standbys(self) -> None:
        """Take an order, as a session does."""
        self.sent.append(("drop",))

    def write(self, local_rank: int, **fields: Any) -> None:  # noqa: ANN401  JSON
        """Write a rank's record."""
        row = {"refused": "", "modules": [["sys", "built-in", True]], **fields}
        (self.directory / f"imports-{local_rank}.json").write_text(json.dumps(row))

    def claim(self, local_rank: int, pid: int, steps: int = 1) -> None:
        """Have a process be a local rank that made so many steps, as its instrumentation does."""
        with (self.directory / "heartbeat").open("r+b") as file:
            for word, value in ((layout.PID, pid), (layout.STEPS, steps)):
                file.seek((1 + local_rank) * layout.SLOT_BYTES + 8 * word)
                file.write(value.to_bytes(8, sys.byteorder))

    def pass_time(self, seconds: float) -> None:
        """Tick as the loop does."""
        until = self.t + seconds
        while self.t < until:
            self.standbys.tick(self.state)
            self.t += 0.2
        self.standbys.tick(self.state)


COMMAND = [sys.executable, "-c", "input()"]


@pytest.fixture
def ranks() -> Any:  # noqa: ANN401  a generator of two processes
    started = [subprocess.Popen(COMMAND, stdin=subprocess.PIPE) for _ in range(2)]  # noqa: S603
    wait_for(lambda: all(command_line(one.pid) == COMMAND for one in started), "the kernel shows their words", 10)
    yield started
    for one in started:
        with one:
            one.kill()


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many GiB are free, of 64."""
    free = [60]
    monkeypatch.setattr(memory_room, "rooms", lambda: (MemoryRoom(free[0] * GIB, 64 * GIB, "the machine"),))
    return free


def test_they_are_ordered_once_every_rank_has_its_record(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "auto")
    scene.write(0)
    scene.pass_time(5)
    assert scene.sent == [], "rank 1 still imports"
    scene.write(1)
    scene.pass_time(1)
    assert scene.sent == [], "it has only just begun to train"
    scene.pass_time(30)
    assert scene.sent == [(1, [COMMAND, COMMAND])], "once for the attempt"


def test_a_record_from_before_the_first_step_counts_only_where_no_step_is_seen(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    """It is written at the first collective, and again at the first step: DDP and the optimizer import as much as torch itself."""
    scene = Scene(tmp_path, ranks, "auto")
    scene.write(0)
    scene.write(1)
    scene.claim(1, ranks[1].pid, steps=0)
    scene.pass_time(18)
    assert scene.sent == []
    scene.pass_time(20)
    assert len(scene.sent) == 1


def test_what_is_reported_is_noted_and_recorded_once(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.pass_time(0.2)
    for _ in range(2):
        scene.standbys.reported(1, [8, 9], ready=0, private_kib=0, why="")
    scene.standbys.reported(1, [8, 9], ready=2, private_kib=310 * 1024, why="")
    assert [note.text for note in scene.recorded] == ["2 being prepared", "2 ready, 310 MiB"]
    assert scene.recorded[-1].data == {"ready": 2, "private_mib": 310, "pids": [8, 9]}
    scene.standbys.used(2, [0, 1], "")
    assert scene.noted[-2:] == [
        ("standby.used", {"attempt": 2, "ranks": [0, 1], "cold": ""}),
        ("standby.reported", {"attempt": 1, "ready": 0, "private_mib": 0, "pids": [], "text": "none: the attempt has just begun"}),
    ]


def test_the_reason_of_a_cold_start_is_logged_once(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    for attempt in (2, 3):
        scene.standbys.used(attempt, [], "WORLD_SIZE differs")
    assert [fields for name, fields in scene.noted if name == "standby.used"] == [{"attempt": 2, "ranks": [], "cold": "WORLD_SIZE differs"}]


@pytest.mark.parametrize(
    ("mode", "changes", "why"),
    [
        ("auto", {"gpus": (Gpu(0, "GPU-0"),)}, "GPUs are visible (--standby on has them there)"),
        ("on", {"run": Run(policy=Policy(launcher=Launcher.STOCK))}, "stock torchrun runs the ranks"),
        ("on", {}, "the command starts its ranks by itself"),
    ],
)
def test_why_a_job_has_none_is_shown_and_nothing_is_ordered(
    tmp_path: Path, ranks: Any, mode: str, changes: dict[str, Any], why: str,  # noqa: ANN401
) -> None:  # fmt: skip
    scene = Scene(tmp_path, ranks, mode, impossible="" if changes else why)
    scene.state = JobState(**{"stage": Stage.RUNNING, "attempt": scene.state.attempt, **changes})
    scene.write(0)
    scene.write(1)
    scene.pass_time(60)
    assert (scene.sent, [note.text for note in scene.recorded]) == ([], [f"none: {why}"])


def test_off_says_nothing(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "off")
    scene.write(0)
    scene.write(1)
    scene.pass_time(30)
    assert (scene.sent, scene.recorded) == ([], [])


def test_a_rank_that_is_not_what_was_started_has_none(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    """A wrapper script started the rank: a second start of it would train beside the job."""
    scene = Scene(tmp_path, ranks, "on")
    scene.write(0)
    scene.write(1)
    scene.claim(1, os.getpid())
    scene.pass_time(10)
    assert (scene.sent, [note.text for note in scene.recorded]) == (
        [], ["none: what is started for each rank is not the Python that runs the script"],
    )  # fmt: skip


def test_a_record_that_refuses_is_the_reason(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.write(0)
    scene.write(1, refused="a debugger is attached")
    scene.pass_time(10)
    assert (scene.sent, [note.text for note in scene.recorded]) == ([], ["none: a debugger is attached"])


def test_none_are_ordered_where_memory_is_short(tmp_path: Path, ranks: Any, memory: list[int]) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.write(0)
    scene.write(1)
    memory[0] = 8
    scene.pass_time(60)
    assert scene.sent == []
    assert "8192 MiB are to stay free" in scene.recorded[-1].text


def test_they_are_ended_when_memory_becomes_short_and_not_ordered_again(tmp_path: Path, ranks: Any, memory: list[int]) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.write(0)
    scene.write(1)
    scene.pass_time(10)
    scene.standbys.reported(1, [8, 9], ready=2, private_kib=310 * 1024, why="")
    memory[0] = 5
    scene.pass_time(10)
    assert scene.sent[1:] == [], "more than half of the 8 GiB is left"
    memory[0] = 3
    scene.pass_time(10)
    memory[0] = 60
    scene.pass_time(60)
    assert scene.sent[1:] == [("drop",)]
    assert scene.recorded[-1].text.startswith("none: the machine has 3072 of 65536 MiB free")


def test_a_stop_ends_them(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.pass_time(0.2)
    scene.standbys.reported(1, [8, 9], ready=2, private_kib=0, why="")
    scene.state = JobState(
        stage=Stage.RUNNING, attempt=scene.state.attempt, run=Run(stop=StopRequest(15, 1, 0.0, ranks_not_yet_signalled=True))
    )
    scene.pass_time(10)
    assert scene.sent == [("drop",)]


def test_ranks_that_write_no_record_are_asked_less_and_less_often(tmp_path: Path, ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    looks: list[float] = []
    monkeypatch.setattr("supervisor.run.standbys.importing_ranks", lambda *_: looks.append(scene.t))
    scene.pass_time(600)
    assert len(looks) < 60
    assert looks[-1] - looks[-2] >= MOST_LOOK_S


def test_records_are_whole_and_of_every_rank(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.write(0)
    (tmp_path / "imports-1.json").write_text('{"refused": 1}')
    assert importing_ranks(tmp_path, 2) is None
    scene.write(1, refused="why")
    scene.claim(1, ranks[1].pid, steps=0)
    assert importing_ranks(tmp_path, 2) == [
        ImportingRank(ranks[0].pid, COMMAND, "", trains=True), ImportingRank(ranks[1].pid, COMMAND, "why", trains=False),
    ]  # fmt: skip


def test_the_command_line_of_a_process() -> None:
    words = [sys.executable, "-c", "input()", "", "ä b"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:  # noqa: S603
        wait_for(lambda: command_line(process.pid) == words, "the kernel shows the words", 10)
    assert command_line(process.pid) == []
