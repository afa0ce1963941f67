"""Where a step goes, sampled in real torch processes: each part by itself, and over the ranks of a job by gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.core.step_shares import PARTS, StepShares, compared
from supervisor.observe.hangs.procfs import io_bytes
from supervisor.observe.ranks import heartbeats
from supervisor.observe.ranks.step_parts import shares_of
from tests.instrument.test_torch import LOOK
from tests.jobs import light
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Attempt

pytestmark = pytest.mark.process
JOB = Path(__file__).resolve().parents[1] / "jobs" / "step_parts.py"

#: One step, and what takes long in it by turns. `long` gives the part that grew most meanwhile, and the line that waits for the GPU.
ONE_RANK = """
import io, json, time, torch
parameter = torch.nn.Parameter(torch.zeros(3))
optimizer = light_sgd(torch, [parameter])
class Long(torch.nn.Module):
    def forward(self, x): time.sleep(0.3); return x
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): time.sleep(0.3); return torch.ones(1)
class File(io.BytesIO):
    def write(self, data): time.sleep(0.05); return super().write(data)
class Gpu:
    item = staticmethod(time.sleep)
def get_batch(): time.sleep(0.3)
def step():
    parameter.sum().backward(); optimizer.step()
names = ("data", "compute", "communication", "optimizer", "checkpoint", "gpu", "rest")
def long(call):
    before = look().parts.parts_ns if look().parts else (0,) * 7
    call(); step()
    grown = [now - was for now, was in zip(look().parts.parts_ns, before)]
    return names[grown.index(max(grown))], round(sum(grown) / 1e9, 1)
step(); time.sleep(0.2); step(); time.sleep(0.5); step()
found = {
    'loader': long(lambda: list(torch.utils.data.DataLoader(Samples()))),
    'get_batch': long(get_batch),
    'forward': long(lambda: Long()(1)),
    'save': long(lambda: torch.save({str(n): torch.ones(1) for n in range(4)}, File())),
    'rest': long(lambda: time.sleep(0.3)),
}
torch.cuda._initialized = True
found['forward with CUDA'] = long(lambda: Long()(1))
found['loader with CUDA'] = long(lambda: list(torch.utils.data.DataLoader(Samples())))
found['sync'] = long(lambda: Gpu().item(0.3))
print(json.dumps({'found': found, 'place': look().parts.place}), flush=True)
os._exit(0)
"""


def test_each_long_part_of_a_step_is_named_but_no_forward_pass_with_cuda(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(light.IMPORT + LOOK + ONE_RANK)
    done = attempt.run_forked(str(script), env=attempt.env(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert {name: part for name, (part, _) in shown["found"].items()} == {
        "loader": "data",
        "get_batch": "data",
        "forward": "compute",
        "save": "checkpoint",
        "rest": "rest",
        "forward with CUDA": "rest",
        "loader with CUDA": "data",
        "sync": "gpu",
    }
    line = next(number for number, text in enumerate(script.read_text().splitlines(), 1) if "Gpu().item" in text)
    assert shown["place"] == f"train.py:{line}"


@contextmanager
def job(attempt: Attempt, way: str, ranks: int) -> Iterator[None]:
    """Run a job of so many ranks of which rank 1 is slow in this way; end it."""
    port = str(free_port())
    environments = [
        attempt.env(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank in range(ranks)
    ]
    processes = [
        subprocess.Popen([sys.executable, str(JOB), way], env=environment, cwd=attempt.job_dir)  # noqa: S603  our own script
        for environment in environments
    ]
    try:
        yield
    finally:
        (attempt.job_dir / "end").touch()
        for process in processes:
            process.kill()
            process.wait()


def shares(attempt: Attempt, ranks: int, least_s: float) -> StepShares | None:
    """Return where the steps of a job went, once so many seconds of each rank are known."""
    beats = attempt.beats()
    known = {beat.rank: beat.parts for beat in beats if beat.parts is not None and sum(beat.parts.parts_ns) >= least_s * 1e9}
    rows = {rank: row for rank, parts in known.items() if (row := shares_of(parts)) is not None}
    return compared(rows) if len(rows) == ranks else None


SLOW = {
    "workers": "data",
    "peer": "compute",
    "save": "checkpoint",
    "disk": "data",
}


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("way", SLOW)
def test_the_slow_rank_is_named_with_what_it_does(attempt: Attempt, way: str) -> None:
    ranks = 3 if way == "peer" else 2
    with job(attempt, way, ranks):
        # on a busy machine the first seconds may show the machine
        seen = wait_for(lambda: row if (row := shares(attempt, ranks, 8)) and row.rank == 1 else None, "the slow rank", 240)
    assert (seen.rank, seen.reason is not None and PARTS[seen.reason]) == (1, SLOW[way]), seen
    assert ("on a disk" in seen.sentence) == (way == "disk"), seen.sentence
    assert seen.sentence.endswith("for rank 1")


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_of_ranks_that_are_alike_none_is_named(attempt: Attempt) -> None:
    with job(attempt, "none", 2):
        seen = wait_for(lambda: shares(attempt, 2, 15), "the shares of all ranks", 240)
    assert seen.rank is None, seen


@pytest.mark.slow
def test_ranks_that_stand_still_are_sampled_and_read_nothing(attempt: Attempt) -> None:
    """One stands in its loader, the other waits for it: what looks for hangs counts the bytes that they read."""

    def looks() -> list[tuple[int, int, tuple[int, int] | None]]:
        """Return pid, sampled time, and bytes read and written of each rank."""
        return [(beat.pid, sum(beat.parts.parts_ns) if beat.parts else 0, io_bytes(beat.pid)) for beat in attempt.beats()]

    def stood() -> bool:
        before = looks()
        wait_for(lambda: all(new[1] > old[1] for old, new in zip(before, looks(), strict=True)), "samples")
        return [io for _, _, io in before] == [io for _, _, io in looks()]

    with job(attempt, "still", 2):
        wait_for(lambda: len(beats := attempt.beats()) == 2 and all(beat.steps >= 10 for beat in beats), "steps", 60)
        wait_for(stood, "ranks that stand still, are sampled, and read nothing", 60)


def test_a_place_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    from supervisor.instrument._supervise_shim import layout, step_parts  # noqa: PLC0415

    path = tmp_path / "heartbeat"
    heartbeats.create(path, 1)
    data = bytearray(path.read_bytes())
    slot = memoryview(data)[layout.SLOT_BYTES :].cast("q")
    slot[layout.PID], slot[layout.PARTS_NS] = 1, 10**9
    step_parts.write_place(slot, "a_directory/with_a_very_long_name_for_a_script.py:57")
    path.write_bytes(data)
    (beat,) = heartbeats.read(path)
    assert beat.parts is not None
    assert beat.parts.place == "with_a_very_long_name_for_a_script.py:57"
    slot[layout.PLACE + 1] += 1
    path.write_bytes(data)
    (beat,) = heartbeats.read(path)
    assert beat.parts is not None
    assert beat.parts.place == ""
