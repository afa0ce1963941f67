"""Ranks agree on bad batches, and wait for each other by name: worker.agree and worker.barrier, on real gloo groups."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import worker
from supervisor.agent import step_agreement
from supervisor.agent.step_agreement import BUDGET_VARIABLE, StepAgreement, TooManyBatchesLeftOut
from tests.support import preloaded

HERE = Path(__file__).parent

SLOW = pytest.mark.slow
GOOD, BAD = True, False

pytestmark = pytest.mark.process


def ranks(name: str, number: int, place: Path, *more: str) -> list[dict[str, Any]]:
    """Run agreeing.py as so many ranks; return what each saw."""
    done = preloaded.run(str(HERE / "agreeing.py"), name, str(place), *more, ranks=number)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(number)]


@pytest.mark.parametrize(("number", "seeds"), [(2, 2), pytest.param(3, 50, marks=SLOW), pytest.param(4, 50, marks=SLOW)])
def test_faults_at_random_leave_the_weights_of_a_training_without_those_batches(number: int, seeds: int, tmp_path: Path) -> None:
    assert [seen["different"] for seen in ranks("seeds", number, tmp_path, str(seeds))] == [[]] * number


@pytest.mark.slow
def test_the_same_script_without_agree_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_TIMEOUT_S", "3")
    done = preloaded.run(str(HERE / "agreeing.py"), "without", str(tmp_path), ranks=2)
    assert done.returncode != 0
    assert "timed out" in (done.stdout + done.stderr).lower()


def test_a_step_costs_one_all_reduce_of_four_bytes(tmp_path: Path) -> None:
    assert ranks("messages", 2, tmp_path) == [{"all": True, "count": 100, "bytes": [4]}] * 2


def test_ranks_agree_whatever_the_default_device_of_the_script_is(tmp_path: Path) -> None:
    assert ranks("elsewhere", 2, tmp_path) == [{"answers": [True, False]}] * 2


def test_with_one_bad_batch_more_than_the_budget_every_rank_raises_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUDGET_VARIABLE, "3")
    text = (
        "4 batches were left out within 1000 steps, and guard.skips allows 3; "
        "the last at call 16 of worker.agree by rank 1: the loss is nan"
    )
    assert ranks("budget", 2, tmp_path) == [{"left_out": 3, "error": text}] * 2


@pytest.mark.parametrize("timeouts", ["1", "20,1"])  # all at once; rank 0 only learns that rank 1 has closed its connections
def test_a_rank_that_never_agrees_is_named_with_its_line(timeouts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_TIMEOUT_S", timeouts)
    *waiting, _ = ranks("absent", 3, tmp_path)
    for seen in waiting:
        assert "RuntimeError: worker.agree: not every rank made call 2: rank 2 did not: it is at agreeing.py:" in seen["error"]


def test_a_barrier_names_who_is_missing_and_where_it_stands(tmp_path: Path) -> None:
    *waiting, _ = ranks("barriers", 3, tmp_path)
    text = "TimeoutError: worker.barrier('evaluation'): only 2 of 3 ranks came within 0 s; rank 2 did not: it is at agreeing.py:"
    for seen in waiting:
        assert text in seen["error"]
        assert "in _waits_for_the_end" in seen["error"]


def test_outside_of_torch_distributed_the_answer_is_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BUDGET_VARIABLE, raising=False)
    assert worker.agree(GOOD)
    assert [worker.agree(BAD, "nan") for _ in range(50)] == [BAD] * 50  # without supervise nothing is counted
    worker.barrier("alone")


def test_the_budget_is_of_the_last_1000_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUDGET_VARIABLE, "1")
    agreement = StepAgreement()
    assert not agreement.agree(BAD, "nan", None)
    assert all(agreement.agree(GOOD, "", None) for _ in range(999))
    assert not agreement.agree(BAD, "nan", None)  # the first is 1,000 calls ago
    with pytest.raises(TooManyBatchesLeftOut, match=r"2 batches .* by rank 0: no reason given"):
        agreement.agree(BAD, "", None)


def test_a_roll_call_asks_the_store_once_for_each_rank_that_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand ranks ask it at once."""
    asked = Counter[str]()
    store = SimpleNamespace(set=lambda _key, _text: None, check=lambda keys: asked.update(keys) or not keys[0].endswith("/7"))
    c10d = SimpleNamespace(_get_default_store=lambda: store, get_world_size=lambda: 1000)
    monkeypatch.setattr(step_agreement, "ROLL_CALL_S", 0.3)
    agreement = StepAgreement()
    agreement._own_task = SimpleNamespace(task="calls")  # noqa: SLF001  as it is while the rank waits
    assert agreement._absence(c10d, 0).startswith("worker.agree: not every rank made call 0: rank 7 did not")  # noqa: SLF001
    assert asked.pop("calls/7") > 1
    assert {count for key, count in asked.items() if key.startswith("calls/")} == {1}
