"""When standbys are ordered and ended, and the reports about them. The agent and the guardian are simulated."""

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
from supervisor.run import standbys
from supervisor.run.standbys import MOST_LOOK_S, NOT_YET, SOON, ImportingRank, Standbys, command_line, importing_ranks
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
        loop: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: self.t), call_soon=lambda call: call(), state=self.state)
        threads: Any = SimpleNamespace(recur=lambda _name, work: work())
        self.printed = list[str]()
        reporter: Any = SimpleNamespace(note=lambda *fact: self.noted.append(fact), started=self.printed.extend)
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

    def claim(self, local_rank: int, pid: int, steps: int = 1, flags: int = 0) -> None:
        """Have a process be a local rank that made so many steps, as its instrumentation does."""
        with (self.directory / "heartbeat").open("r+b") as file:
            for word, value in ((layout.PID, pid), (layout.STEPS, steps), (layout.FLAGS, flags)):
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
    wait_for(lambda: all(command_line(process.pid) == COMMAND for process in started), "the kernel shows their words", 10)
    yield started
    for process in started:
        with process:
            process.kill()


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many GiB are free, of 64."""
    free = [60]
    monkeypatch.setattr(memory_room, "rooms", lambda: (MemoryRoom(free[0] * GIB, 64 * GIB, "the machine"),))
    return free


def test_standbys_are_ordered_once_every_rank_has_its_record(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
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


@pytest.mark.parametrize(("load", "cores"), [(1.9, 4), (2.1, 4), (0.1, 1)])
def test_standbys_are_ordered_after_the_imports_where_cores_are_idle(
    tmp_path: Path, ranks: Any, monkeypatch: pytest.MonkeyPatch, load: float, cores: int,  # noqa: ANN401
) -> None:  # fmt: skip
    monkeypatch.setattr(standbys.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(standbys.os, "sched_getaffinity", lambda _pid: set(range(cores)))
    scene = Scene(tmp_path, ranks, "auto")
    for number, rank in enumerate(ranks):
        scene.write(number)
        scene.claim(number, rank.pid, steps=0, flags=layout.FLAG_IMPORTED)
    scene.pass_time(10)
    is_early = load + len(ranks) <= cores
    assert bool(scene.sent) is is_early
    if not is_early:
        assert scene.recorded[-1].text == (
            f"not yet: the cores are busy (load {load}, {cores} cores), so standbys are prepared after the first step"
        )
        for number, rank in enumerate(ranks):
            scene.claim(number, rank.pid)
        scene.pass_time(10)
    assert scene.recorded[-1].text == f"not yet: {SOON}", "no reason that is past"
    assert scene.sent == [(1, [COMMAND, COMMAND])]


def test_a_loop_without_an_optimizer_has_them_after_its_first_round(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "auto")
    for number, rank in enumerate(ranks):
        scene.write(number)
        scene.claim(number, rank.pid, steps=0, flags=layout.FLAG_ROUNDS)
    scene.pass_time(10)
    assert scene.sent == [(1, [COMMAND, COMMAND])]


def test_the_number_of_ready_standbys_is_recorded(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.pass_time(0.2)
    scene.standbys.reported(1, [8, 9], ready=1, private_kib=155 * 1024, why="")
    assert scene.recorded[-1].text == "not yet: 1 of 2 ready, 155 MiB"
    scene.standbys.reported(1, [8, 9], ready=2, private_kib=310 * 1024, why="left to the rank: torch._dynamo")
    assert scene.recorded[-1].text == "now: 2 ready, 310 MiB; left to the rank: torch._dynamo"


def test_a_report_of_standbys_is_noted_and_recorded_once(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.pass_time(0.2)
    for _ in range(2):
        scene.standbys.reported(1, [8, 9], ready=0, private_kib=0, why="")
    scene.standbys.reported(1, [8, 9], ready=2, private_kib=310 * 1024, why="")
    assert [note.text for note in scene.recorded] == [
        f"not yet: {NOT_YET}",
        "not yet: 2 being prepared",
        "now: 2 ready, 310 MiB",
    ]
    assert scene.recorded[-1].data == {"ready": 2, "private_mib": 310, "pids": [8, 9]}
    scene.standbys.used(2, [0, 1], "")
    assert scene.noted[-1] == (
        "standby.reported", {"attempt": 1, "ready": 0, "private_mib": 0, "pids": [], "text": f"not yet: {NOT_YET}"},
    )  # fmt: skip


def used(scene: Scene) -> list[dict[str, Any]]:
    """Return what is logged of which ranks began warm."""
    return [fields for name, fields in scene.noted if name == "standby.used"]


def begin_attempt_2(scene: Scene, *uneven: int) -> None:
    """Have standbys become both ranks of attempt 2, of which these start cold in place."""
    scene.pass_time(0.2)
    scene.standbys.used(2, [0, 1], "")
    scene.state = JobState(stage=Stage.RUNNING, attempt=Attempt(number=2, ranks=scene.state.attempt.ranks))
    for local_rank in uneven:
        (scene.directory / f"uneven-{local_rank}").write_text("torch\nRUN_NAME\n")
    scene.pass_time(5)
    assert used(scene) == [], "they may still start cold in place"


def test_ranks_are_logged_as_warm_once_they_have_imported(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    begin_attempt_2(scene)
    scene.write(0)
    scene.write(1)
    scene.pass_time(5)
    assert used(scene) == [{"attempt": 2, "ranks": [0, 1], "cold": ""}]


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_rank_that_started_cold_in_place_is_not_logged_as_warm(tmp_path: Path, ranks: Any, *, ends_early: bool) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    begin_attempt_2(scene, 1)
    if ends_early:
        scene.state = JobState(stage=Stage.ENDED, attempt=scene.state.attempt)
    else:
        scene.write(0)
        scene.write(1)
    scene.pass_time(5)
    assert used(scene) == [{"attempt": 2, "ranks": [0], "cold": "before it imported torch the script had another RUN_NAME"}]


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
    assert (scene.sent, [note.text for note in scene.recorded]) == ([], [f"off: {why}"])
    assert scene.printed == ([standbys.GPU_HINT] if "GPUs" in why else [])


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
    assert (scene.sent, scene.recorded[-1].text) == (
        [], "off: the program of each rank is not the Python that runs the script",
    )  # fmt: skip


def test_a_record_that_refuses_is_the_reason(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.write(0)
    scene.write(1, refused="a debugger is attached")
    scene.pass_time(10)
    assert (scene.sent, scene.recorded[-1].text) == ([], "off: a debugger is attached")


def test_none_are_ordered_where_memory_is_short(tmp_path: Path, ranks: Any, memory: list[int]) -> None:  # noqa: ANN401
    scene = Scene(tmp_path, ranks, "on")
    scene.write(0)
    scene.write(1)
    memory[0] = 8
    scene.pass_time(60)
    assert scene.sent == []
    assert "8.0 GiB are to stay free" in scene.recorded[-1].text


def test_standbys_are_ended_when_memory_becomes_short_and_not_ordered_again(tmp_path: Path, ranks: Any, memory: list[int]) -> None:  # noqa: ANN401
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
    assert scene.recorded[-1].text.startswith("off: the machine has 3.0 GiB of 64.0 GiB free")


def test_a_stop_ends_the_standbys(tmp_path: Path, ranks: Any) -> None:  # noqa: ANN401
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
        ImportingRank(ranks[0].pid, COMMAND, "", imported=True, trains=True),
        ImportingRank(ranks[1].pid, COMMAND, "why", imported=False, trains=False),
    ]  # fmt: skip


def test_the_command_line_of_a_process() -> None:
    words = [sys.executable, "-c", "input()", "", "ä b"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:  # noqa: S603
        wait_for(lambda: command_line(process.pid) == words, "the kernel shows the words", 10)
    assert command_line(process.pid) == []
