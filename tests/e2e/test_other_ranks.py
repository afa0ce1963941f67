"""A checkpoint that only as many ranks as saved it can load, and a GPU that is taken out of use: real torchrun, gloo, a fake NVML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_health import UUID, around, ledger, logged, torchrun
from tests.support.fake_nvml import FakeNvml
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOB = str(Path(__file__).parents[1] / "jobs" / "bound_to_ranks.py")
OPTIONS = ("--min-gpus=2", "--allow-batch-drift", "--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}")
SENTENCE = "the program saved with 3 ranks and loads with 3 only; 2 are left here"
ERRORS = {"1.ecc_unc_vol": 1, "1.ecc_unc_agg": 1}

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def three_gpus(fake_library: Path, tmp_path: Path) -> FakeNvml:
    (tmp_path / "nvml").mkdir()
    fake = FakeNvml(fake_library, tmp_path / "nvml" / "state")
    fake.set(gpus=3)
    return fake


def trained(run: Supervised) -> list[tuple[int, int, int, str, int]]:
    """Rank, step, ranks, UUID and attempt of each step that a rank wrote down."""
    file = run.place / "log"
    rows = [line.split() for line in (file.read_text().splitlines() if file.exists() else ())]
    return [(int(rank), int(step), int(ranks), uuid, int(attempt)) for rank, step, ranks, uuid, attempt in rows]


def card(run: Supervised) -> str:
    """What the terminal shows, without its line breaks."""
    return " ".join(run.stderr.split())


def begun(supervise: Callable[..., Supervised], gpus: FakeNvml) -> Supervised:
    """A job of 3 ranks that has saved twice, and then loses a GPU."""
    run = supervise(*torchrun(3), JOB, options=OPTIONS, **around(gpus))
    wait_for((run.place / "ckpt" / "step-10.pt").exists, "two checkpoints", 90, alive=run.alive)
    gpus.set(ERRORS)
    return run


def test_where_the_gpu_stays_out_of_use_the_run_ends_with_69_and_the_sentence_and_so_does_the_next_start(
    supervise: Callable[..., Supervised], three_gpus: FakeNvml
) -> None:
    run = begun(supervise, three_gpus)
    (run.place / "refuse").touch()
    assert run.exit_code() == 69
    decided = [(line["cause"], line["strategy"], line["rejected"]) for line in logged(run, "plan.decided")]
    assert decided == [("gpu_ecc", "exclude_gpu", []), ("checkpoint_mismatch", "own_change", [])]
    assert SENTENCE in card(run)
    assert "use a node with 3 GPUs" in card(run)
    assert run.attempts() == 2
    again = supervise(*torchrun(3), JOB, options=OPTIONS, **around(three_gpus))
    assert again.exit_code() == 69
    assert SENTENCE in card(again)
    assert logged(again, "plan.decided")[-1]["strategy"] == "own_change"
    assert not any(line["rejected"] for line in logged(again, "plan.decided"))
    run.wait_for_nothing_left()


def test_where_the_gpu_is_in_use_again_all_ranks_train_on(supervise: Callable[..., Supervised], three_gpus: FakeNvml) -> None:
    run = begun(supervise, three_gpus)
    wait_for(lambda: run.attempts() == 2, "the attempt with two ranks", 90, alive=run.alive)
    three_gpus.set({"1.ecc_unc_vol": 0})
    (run.place / "refuse").touch()
    assert run.exit_code() == 0
    assert run.attempts() == 3
    last = [row for row in trained(run) if row[4] == 3]
    assert {(rank, ranks) for rank, _, ranks, _, _ in last} == {(0, 3), (1, 3), (2, 3)}
    assert {uuid for _, _, _, uuid, _ in last} == {UUID.format(gpu) for gpu in range(3)}
    assert min(step for _, step, _, _, _ in last) > 10, "it was to resume from the newest checkpoint"
    assert max(step for _, step, _, _, _ in last) == 60
    assert not any(row[4] == 2 for row in trained(run))
    assert ledger(run)[-1]["by"] == "health"
    run.wait_for_nothing_left()
