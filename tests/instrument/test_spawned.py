"""Processes that torch.multiprocessing starts: the ranks among them are seen; helpers, and the command itself, stay out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Attempt

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, sys
import torch
import torch.multiprocessing as mp

def train(index, steps, bad=None):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight])
    for step in range(1, steps + 1):
        weight.sum().backward()
        optimizer.step()
        if index == bad and step == 3:
            raise ValueError(f"sample {step}")
    if bad is None:
        torch.save(weight, f"rank-{index}.pt")

def helper(index):
    with open(f"helper-{index}", "w") as file:
        json.dump('_supervise_shim' in sys.modules, file)

def shim_variables():
    return [os.environ.get(name) for name in ("PYTHONPATH", "SUPERVISE_JOB_SHIM")]

if __name__ == "__main__":
    exec(sys.argv[1])
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.slow
def test_ranks_that_the_command_starts_by_torch_multiprocessing_are_ranks(attempt: Attempt, script: str, tmp_path: Path) -> None:
    done = attempt.run(script, "mp.spawn(train, (5,), nprocs=2)\nprint(shim_variables())", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[None, None]\n"), done.stderr
    assert [(beat.local_rank, beat.rank, beat.steps, beat.step) for beat in attempt.beats()] == [(0, 0, 5, 5), (1, 1, 5, 5)]
    saved = [json.loads(line)["path"] for rank in (0, 1) for line in (attempt.directory / f"saves-{rank}.jsonl").read_text().splitlines()]
    assert {Path(path).name for path in saved} == {"rank-0.pt", "rank-1.pt"}


@pytest.mark.slow
def test_an_exception_of_a_spawned_rank_is_reported_as_its_own(attempt: Attempt, script: str) -> None:
    done = attempt.run(script, "mp.spawn(train, (5, 1), nprocs=2)")
    assert "ProcessRaisedException" in done.stderr
    (error,) = attempt.errors().errors
    assert (error.rank, error.message, error.step, error.steps) == (1, "sample 3", 3, 3)
    assert "in train" in error.traceback


@pytest.mark.slow
def test_helpers_claim_nothing_and_the_command_that_trains_has_the_slot(attempt: Attempt, script: str, tmp_path: Path) -> None:
    done = attempt.run(script, "mp.spawn(helper, nprocs=2)\ntrain(0, 5)\nprint(os.getpid(), shim_variables())", cwd=tmp_path)
    (beat,) = attempt.beats()
    assert done.stdout == f"{beat.pid} [None, None]\n", done.stderr
    assert (beat.local_rank, beat.steps) == (0, 5)
    assert [name for name in attempt.names() if name.startswith("stacks-")] == [f"stacks-0-{beat.pid}.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "train(0, 5)\n"], ids=["numbered by a launcher", "trained before"])
def test_a_rank_keeps_its_slot_and_its_children_are_helpers(attempt: Attempt, script: str, tmp_path: Path, before: str) -> None:
    env = attempt.env() if before else attempt.env("launcher", RANK="0", LOCAL_RANK="0")
    done = attempt.run(script, before + "mp.spawn(helper, nprocs=1)\nprint(os.getpid())", env=env, cwd=tmp_path)
    assert [beat.pid for beat in attempt.beats()] == [int(done.stdout)], done.stderr
    assert json.loads((tmp_path / "helper-0").read_text()) is False


BY_ITSELF = """
import multiprocessing, sys
import torch
import torch.distributed as dist

def train(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight])
    for _ in range(3 + rank):
        weight.sum().backward()
        optimizer.step()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train, args=(rank,)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
"""


@pytest.mark.slow
def test_ranks_that_a_script_starts_and_numbers_by_itself_are_ranks(attempt: Attempt, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BY_ITSELF)
    done = attempt.run(str(path), str(tmp_path / "store"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(beat.local_rank, beat.rank, beat.steps) for beat in attempt.beats()] == [(0, 0, 3), (1, 1, 4)]
