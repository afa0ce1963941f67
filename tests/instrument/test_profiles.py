"""A running rank records a profile when it is asked for, and trains on: its stacks, a trace that is JSON, or why there is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.observe.ranks.profiles import RankProfile
from tests.instrument import forked
from tests.jobs import light
from tests.support.small_disks import small_disk
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Attempt

    from supervisor.observe.ranks.heartbeats import RankHeartbeat

pytestmark = pytest.mark.process
TRAIN = f"""
{light.IMPORT}
import pathlib, time, torch
parameter = torch.nn.Parameter(torch.zeros(3))
optimizer = light_sgd(torch, [parameter])
exec(compile("def slow_part(): time.sleep(0.01)", "a;b\\n<c>.py", "exec"))
if pathlib.Path("profiled").exists(): torch.autograd.profiler.profile().__enter__()
while not pathlib.Path("end").exists():
    slow_part()
    parameter.sum().backward()
    optimizer.step()
"""


@contextmanager
def training(attempt: Attempt, *, fork: bool = True) -> Iterator[RankHeartbeat]:
    """Run a rank that trains until the file `end` is there, as a fork that has torch; yield its heartbeat after some steps."""
    environ = attempt.env(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    rank: forked.Fork | subprocess.Popen[bytes] = (
        forked.start("-c", TRAIN, environ=environ, cwd=attempt.job_dir, descriptors=(0, 1, 2))
        if fork
        else subprocess.Popen([sys.executable, "-c", TRAIN], env=environ, cwd=attempt.job_dir)  # noqa: S603
    )
    try:
        yield wait_for(lambda: next((beat for beat in attempt.beats() if beat.steps > 3), None), "steps", 60)
    finally:
        rank.kill()
        rank.wait()


@pytest.fixture(scope="module")
def trained(make_attempt: Callable[[Path], Attempt], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Attempt, RankHeartbeat]]:
    """Give a rank that trains, to all who only ask it; each import of torch takes seconds."""
    attempt = make_attempt(tmp_path_factory.mktemp("trained"))
    with training(attempt) as beat:
        yield attempt, beat


def recorded(attempt: Attempt, beat: RankHeartbeat, **asked: Any) -> RankProfile:  # noqa: ANN401 - what is asked, as JSON
    """Ask the rank, and return the recording when it is over."""
    profile = RankProfile(attempt.directory, 0, (beat.pid, beat.start_ticks), {"steps": None, "seconds": None, "torch": "", **asked})
    profile.begin(time.monotonic())

    def look() -> bool:
        profile.look(time.monotonic())
        return profile.is_over

    wait_for(look, "the recording", 60)
    profile.close()
    return profile


def test_a_rank_records_stacks_and_a_trace_and_trains_on(trained: tuple[Attempt, RankHeartbeat], tmp_path: Path) -> None:
    attempt, beat = trained
    trace = tmp_path / "trace.json"
    profile = recorded(attempt, beat, steps=5, torch=str(trace))
    steps = attempt.beats()[0].steps
    wait_for(lambda: attempt.beats()[0].steps > steps, "more steps", 20)
    answer = profile.answer
    assert answer is not None, profile.failure
    assert answer.trace is not None
    assert (answer.trace.steps, answer.trace.error, answer.cuda) == (5, "", False)
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum("Optimizer.step" in event.get("name", "") for event in events) == 5
    assert "Optimizer.step#LightSGD.step" in {name for name, *_ in answer.trace.operators}
    assert not list(attempt.directory.glob("profile-*"))


def test_stacks_name_the_functions_from_the_outermost_on(trained: tuple[Attempt, RankHeartbeat]) -> None:
    profile = recorded(*trained, seconds=0.5)
    assert profile.answer is not None, profile.failure
    stacks = profile.answer.stacks
    assert sum(stacks.values()) == profile.answer.samples
    slow = {stack: count for stack, count in stacks.items() if stack.endswith(";slow_part (a,b?<c>.py:1)")}
    assert sum(slow.values()) > profile.answer.samples / 3
    assert all(stack.startswith("<module> (tests/support/forks.py:") for stack in slow)
    assert all(stack.split(";")[-2].startswith("<module> (<string>:") for stack in slow)
    assert "_supervise_shim" not in "".join(stacks)


def test_a_trace_that_cannot_be_written_is_an_answer_and_replaces_nothing(trained: tuple[Attempt, RankHeartbeat], tmp_path: Path) -> None:
    """Torch's own export only prints that a disk is full, and replaces a file that is there."""
    there = tmp_path / "there.json"
    there.write_text("kept")
    with small_disk(tmp_path / "disk", "size=8k") as disk:
        paths = (there / "trace.json", there, disk / "trace.json")
        answers = [recorded(*trained, steps=2, torch=str(path)).answer for path in paths]
        assert not list(disk.iterdir())
    assert [answer and answer.trace and answer.trace.error for answer in answers] == [
        "Not a directory",
        "File exists",
        "the trace was cut off when it was written: the disk is full",
    ]
    assert all(answer is not None and answer.stacks for answer in answers)
    assert there.read_text() == "kept"


@pytest.mark.slow
def test_a_recording_that_nobody_waits_for_any_more_makes_way_for_the_next(attempt: Attempt, tmp_path: Path) -> None:
    """Ctrl-C in `supervise profile` removes the question."""
    with training(attempt) as beat:
        asked = {"steps": None, "seconds": 600.0, "torch": str(tmp_path / "trace.json")}
        left = RankProfile(attempt.directory, 0, (beat.pid, beat.start_ticks), asked)
        left.begin(time.monotonic())
        wait_for(lambda: left.look(time.monotonic()) or left.is_recording, "the recording", 20)
        assert recorded(attempt, beat, seconds=0.1).failure.startswith("another profile of it is being recorded")
        left.close()
        profile = wait_for(lambda: seen if (seen := recorded(attempt, beat, seconds=0.1)).answer else None, "the next recording", 30)
    assert profile.answer.trace is None
    assert not list(attempt.directory.glob("profile-*"))
    assert recorded(attempt, beat, seconds=0.1).failure == "it does not answer", "it is gone"


@pytest.mark.slow
def test_a_script_that_profiles_itself_continues_and_the_refusal_is_the_answer(attempt: Attempt, tmp_path: Path) -> None:
    (attempt.job_dir / "profiled").touch()
    with training(attempt, fork=False) as beat:
        profile = recorded(attempt, beat, steps=2, torch=str(tmp_path / "trace.json"))
        steps = attempt.beats()[0].steps
        wait_for(lambda: attempt.beats()[0].steps > steps, "more steps", 20)
    assert profile.answer is not None
    assert profile.answer.trace is not None
    assert profile.answer.trace.error.startswith("RuntimeError: the script runs torch's profiler itself")


def is_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs any more: SIGSTOP is over before all of them have noticed it."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def test_a_rank_that_does_not_answer_is_named_with_the_reason(trained: tuple[Attempt, RankHeartbeat]) -> None:
    attempt, beat = trained
    os.kill(beat.pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(beat.pid), "every thread of it to stop")
    silent = recorded(attempt, beat, seconds=0.1)
    os.kill(beat.pid, signal.SIGCONT)
    assert silent.failure.startswith("it did not answer within 5 s: C code holds its GIL, or it is stopped")


def test_a_rank_that_never_began_to_answer_is_named_with_the_reason(attempt: Attempt) -> None:
    never = RankProfile(attempt.directory, 1, (1, 1), {"steps": None, "seconds": 1.0, "torch": ""})
    never.begin(0.0)
    assert never.failure == "it has no process group and made no step, or is not instrumented"
