"""Saving on request: all ranks at the same call, on one node and over several; and when the checkpoint counts as made."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed

from supervisor.agent import save_agreement
from supervisor.observe.ranks import heartbeats
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from supervisor.observe.ranks.progress_sampler import is_saved
from tests.jobs import light
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attempt

ROOT = str(Path(__file__).resolve().parents[2])

#: A rank in lockstep with the others; rank 1 is the slow one. It says at which call it was told, and ends when all have trained on.
RANK = """
import os, sys, time, torch
import torch.distributed as dist
from supervisor import worker
dist.init_process_group("gloo")
rank, told = dist.get_rank(), 0
for call in range(1, 4000):
    time.sleep(0.002 + 0.01 * (rank == 1))
    dist.all_reduce(torch.ones(1))
    if worker.should_save():
        told = call
        print("told", call, flush=True)
    over = torch.tensor(float(bool(told) and call > told + 20))
    dist.all_reduce(over)
    open(f"{os.environ['CALLS']}.{rank}", "w").write(str(call))
    if over == dist.get_world_size():
        break
dist.destroy_process_group()
"""
#: One process that saves as it is told, continues or not, and says so by its flags.
SAVER = f"""
{light.IMPORT}
import os, sys, torch
from supervisor import worker
how = sys.argv[1]
model = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, model.parameters())
def step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
step()
assert worker.should_save()
if "save" in how:
    torch.save(model.state_dict(), "m.pt")
if "fails" in how:
    raise ValueError("in the middle of it")
if "own" in how:
    worker.saved()
if "asks" in how:
    worker.should_save()
if "steps" in how:
    import _supervise_shim
    _supervise_shim.instrument._beat._due_ns = 0
    step()
if "dies" in how:
    os._exit(1)
"""


@pytest.mark.process
@pytest.mark.slow  # tests/e2e/test_preemption.py has two ranks of one job
def test_the_ranks_of_two_nodes_see_the_request_at_the_same_call(attempt: Attempt, tmp_path: Path) -> None:
    port, world, nodes = free_port(), 2, 2
    jobs = [attempt.job_dir, *(tmp_path / f"job-{node}" for node in range(1, nodes))]
    for job in jobs[1:]:
        heartbeats.create(job / "attempt-0001" / "heartbeat", 4)
    ranks = []
    for rank in range(world):
        job = jobs[rank % nodes]
        places = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank // nodes, "LOCAL_WORLD_SIZE": world // nodes}
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CALLS": tmp_path / "calls", "SUPERVISE_JOB_DIR": job}
        environment = attempt.env(pythonpath=ROOT, **{name: str(value) for name, value in (places | shared).items()})
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=environment, stdout=subprocess.PIPE, text=True))  # noqa: S603
    try:
        for number, job in enumerate(jobs):  # not every node hears of the end at the same moment
            at = 10 + 40 * number
            wait_for(
                lambda at=at: int((tmp_path / "calls.0").read_text() or 0) >= at if (tmp_path / "calls.0").exists() else 0, f"call {at}"
            )
            (job / "save-now").touch()
        outputs = [process.communicate(timeout=PATIENCE_S)[0].split() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == "told"
    assert len(outputs[0]) == 2  # once
    assert int(outputs[0][1]) > 50


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "went_on", "saved"),
    [
        ("save", True, True),  # and ends in order
        pytest.param("save dies", False, False, marks=pytest.mark.slow),
        pytest.param("asks", True, False, marks=pytest.mark.slow),
        pytest.param("own dies", True, True, marks=pytest.mark.slow),
        pytest.param("save steps", True, True, marks=pytest.mark.slow),
        pytest.param("save fails", False, False, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_is_made_when_the_script_continues_after_its_save(
    attempt: Attempt, tmp_path: Path, how: str, *, went_on: bool, saved: bool
) -> None:
    (attempt.job_dir / "save-now").touch()
    run = attempt.run if "fails" in how else attempt.run_forked  # an exception ends a fork in another way
    run("-c", SAVER, how, env=attempt.env(pythonpath=ROOT), cwd=tmp_path)
    (beat,) = attempt.beats()
    assert beat.asks
    assert beat.save_asked
    assert (beat.went_on, beat.saved) == (went_on, saved)


def beat(rank: int, *, save_asked: bool = True, went_on: bool = False, saved: bool = False, alive: bool = True) -> RankHeartbeat:
    """A rank that asks; one that is not alive has a pid that nobody has."""
    pid = os.getpid() if alive else 2**22 + 1
    ticks = int(Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19])
    return RankHeartbeat(rank, rank, pid, ticks, 0, None, 0, 1, None, None, None, True, True, save_asked, True, went_on, saved)  # type: ignore[arg-type]  # noqa: FBT003


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        pytest.param([], False, id="nobody asks"),
        pytest.param([beat(0, save_asked=False)], False, id="nobody was told"),
        pytest.param([beat(0), beat(1, went_on=True)], False, id="rank 0 is saving"),
        pytest.param([beat(0, went_on=True, saved=True), beat(1, went_on=True)], True, id="rank 0 saved for all"),
        pytest.param([beat(0, went_on=True, saved=True), beat(1)], False, id="another still saves"),
        pytest.param([beat(0, went_on=True, saved=True), beat(1, alive=False)], True, id="another is gone"),
        pytest.param([beat(0, went_on=True), beat(1, went_on=True)], False, id="no save was seen"),
        pytest.param([beat(2, went_on=True), beat(3, went_on=True)], True, id="rank 0 is on another node"),
        pytest.param([beat(0, alive=False)], False, id="it died of it"),
    ],
)
def test_when_the_nodes_checkpoint_counts_as_made(beats: list[RankHeartbeat], *, expected: bool) -> None:
    assert is_saved(beats) is expected


def test_a_rank_that_finds_the_call_behind_it_does_not_see_the_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPERVISE_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("SUPERVISE_JOB_ATTEMPT", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    (tmp_path / "attempt-0001").mkdir()
    asking = save_agreement.SaveAgreement()
    assert not any(asking.should_save(None) for _ in range(5))
    (tmp_path / "attempt-0001" / "save-0-at").write_text("5 2")
    (tmp_path / "save-now").touch()
    assert not asking.should_save(None)
    assert (tmp_path / "attempt-0001" / "save-0-outcome").read_text() == "no", "nobody else saves at that one either"


class Ranks:
    """Two ranks on one node or on two, each in a thread of its own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch, *, nodes: int) -> None:
        """Set the environment that both have."""
        self.flag = place / "save-now"
        (place / "attempt-0001").mkdir()
        environment = {
            "SUPERVISE_JOB_DIR": str(place),
            "SUPERVISE_JOB_ATTEMPT": "1",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": str(2 // nodes),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        if nodes > 1:
            store = torch.distributed.HashStore()
            group = SimpleNamespace(get_world_size=lambda: 2, _get_default_store=lambda: store)
            monkeypatch.setattr(save_agreement, "_group", lambda: group)
        monkeypatch.setattr(save_agreement, "LOOK_S", 0.0)  # calls of microseconds would be proposed hundreds ahead
        monkeypatch.setattr(save_agreement, "AHEAD_S", 0.0)
        self.asking = [save_agreement.SaveAgreement(), save_agreement.SaveAgreement()]

    def call(self, rank: int, times: int = 1) -> list[bool]:
        """Have one rank ask."""
        return [self.asking[rank].should_save(None) for _ in range(times)]

    def together(self, *loops: Callable[[], object]) -> list[Any]:
        """Run each in its own thread."""
        with ThreadPoolExecutor(len(loops)) as pool:
            return [future.result(30) for future in [pool.submit(loop) for loop in loops]]


@pytest.fixture(params=[1, 2], ids=["one node", "two nodes"])
def two(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(tmp_path, monkeypatch, nodes=request.param)


def test_two_ranks_in_step_see_the_request_at_the_same_call(two: Ranks) -> None:
    step, calls = Barrier(2), ([], [])  # type: tuple[list[int], list[int]]

    def train(rank: int) -> None:
        for number in range(1, 20):
            step.wait(20)
            if number == 5 and not rank:
                two.flag.touch()
            if two.call(rank) == [True]:
                calls[rank].append(number)

    two.together(lambda: train(0), lambda: train(1))
    assert calls[0] == calls[1]
    assert len(calls[0]) == 1


def test_a_rank_that_passes_the_proposed_call_unseen_leaves_no_other_alone_in_a_save(two: Ranks) -> None:
    two.call(0, 4)
    two.call(1, 4)
    two.flag.touch()
    two.together(lambda: two.call(0), lambda: two.call(1))
    two.asking[1]._calls += 40  # noqa: SLF001 - it ran ahead while it was looked for: the proposal is behind it
    ahead, behind = two.together(lambda: two.call(1, 30), lambda: two.call(0, 70))
    assert sum(ahead) == sum(behind) == 1
    assert 46 + ahead.index(True) == 6 + behind.index(True)


def test_a_rank_that_does_not_come_is_waited_for_a_while_and_nobody_saves_alone(two: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_agreement, "WAIT_S", 0.05)
    two.flag.touch()
    two.together(lambda: two.call(0), lambda: two.call(1))
    assert not any(two.call(0, 12))
    assert not any(two.call(1)), "and when it comes, it finds that the others have continued"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_all_ranks_or_none_see_the_request_at_any_timing(two: Ranks, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_agreement, "WAIT_S", 0.3)
    chance = random.Random(seed)  # noqa: S311 - the same again for a seed
    pauses = [[chance.choice([0, 0, 0.0005, 0.004]) for _ in range(200)] for _ in range(2)]
    begins = chance.randrange(1, 30)

    def train(rank: int) -> list[int]:
        calls = []
        for number, pause in enumerate(pauses[rank], 1):
            time.sleep(pause)
            if number == begins and not rank:
                two.flag.touch()
            if two.call(rank) == [True]:
                calls.append(number)
        return calls

    first, second = two.together(lambda: train(0), lambda: train(1))
    assert first == second


def test_a_single_rank_sees_the_request_at_once_and_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPERVISE_JOB_DIR", str(tmp_path))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    asking = save_agreement.SaveAgreement()
    assert not asking.should_save(None)
    (tmp_path / "save-now").touch()
    assert [asking.should_save(None) for _ in range(3)] == [True, False, False]
    assert [asking.save_requested(None) for _ in range(2)] == [True, True]


@pytest.mark.bench("only")
def test_a_question_costs_a_few_microseconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPERVISE_JOB_DIR", str(tmp_path))
    asking = save_agreement.SaveAgreement()
    asking.should_save(None)
    began = time.thread_time()
    for _ in range(1000):
        asking.should_save(None)
    assert time.thread_time() - began < 0.02  # 20 µs each, for a loaded machine
