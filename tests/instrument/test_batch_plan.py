"""worker.batch_plan: the share of each rank, and the training that the shares make together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor import worker
from supervisor.agent.batch_plan import VARIABLE
from tests.support import preloaded

HERE = Path(__file__).parent
PLAN = '{"micro":[6,3,2],"accumulation":2}'


def test_a_rank_gets_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PLAN)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    plan = worker.batch_plan()
    assert plan == worker.BatchPlan(micro_batch=3, accumulation=2, weight=9 / 22, offset=12, global_batch=22)
    assert plan is not None
    assert plan.samples == 6


def test_without_a_plan_there_is_none_and_one_of_other_ranks_is_no_plan_for_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert worker.batch_plan() is None
    monkeypatch.setenv(VARIABLE, PLAN)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="the batch plan is for 3 ranks, and there are 2"):
        worker.batch_plan()


@pytest.mark.process
@pytest.mark.parametrize(
    ("plan", "how"),
    [(PLAN, "plain"), pytest.param(PLAN, "ddp", marks=pytest.mark.slow), ('{"micro":[5,1,1],"accumulation":5}', "plain")],
)
def test_unequal_shares_train_as_one_process_with_the_whole_batch(
    plan: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, plan)
    done = preloaded.run(str(HERE / "sharing.py"), str(tmp_path), how, ranks=3)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        seen = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert seen["steps"][0] == seen["steps"][1] >= 15
        assert seen["away"] < 1e-5
        assert seen["moved"] > 0.01, "it trained"
