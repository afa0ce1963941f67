"""The state of a training: the same names from every wrapping, back into every other; and ranks that do not come."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpointing import apply, load_latest, save, state
from tests.support import preloaded
from tests.support.few import few_rows

HERE = Path(__file__).parent
PROGRAM = str(HERE / "stating.py")
PREFIXES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_fpw_module", "/module.")
IMPORTS = (
    *("numpy", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict"),
    *("torch._dynamo", "torch._functorch.aot_autograd", "torch._dynamo.backends.debugging"),  # the last two at the first compilation
)
UNCHANGED = " | give it the model and the optimizer of the training that the state is of; nothing was changed"

pytestmark = pytest.mark.process


def run(name: str, number: int, place: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run stating.py as so many ranks."""
    return preloaded.run(PROGRAM, name, str(place), *more, ranks=number, imports=IMPORTS)


def ranks(name: str, number: int, place: Path, *more: str) -> list[dict[str, Any]]:
    """Run stating.py as so many ranks; return what each saw."""
    done = run(name, number, place, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(number)]


@pytest.fixture(scope="module")
def whole_group(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return what each rank of one group saw in each of several functions."""
    place = tmp_path_factory.mktemp("whole-group")
    first, second = ranks("whole_group", 2, place)
    return {"place": [place], **{name: [seen, second[name]] for name, seen in first.items()}}


@pytest.mark.parametrize("more", [(), pytest.param(("all",), marks=pytest.mark.slow)], ids=["the next", "all"])
def test_the_state_of_each_wrapping_has_the_same_names_and_trains_on_alike_in_another(more: tuple[str, ...], tmp_path: Path) -> None:
    for seen in ranks("wrappings", 2, tmp_path, *more):
        assert seen["wrong"] == []
        bare = seen["keys"]["bare"]
        assert "model/1.module.weight/" in bare  # the user's own part of that name
        assert {name: keys for name, keys in seen["keys"].items() if keys != bare} == {}
        assert [key for key in bare for prefix in PREFIXES if prefix in key] == []


def test_optimizers_that_keep_nothing_or_little_for_a_parameter_work_too(whole_group: dict[str, list[Any]]) -> None:
    assert whole_group["other_optimizers"] == [{"wrong": []}] * 2


def test_each_rank_gets_its_own_generators_and_position_back_and_other_ranks_stay_fresh(whole_group: dict[str, list[Any]]) -> None:
    for rank, seen in enumerate(whole_group["own_parts"]):
        assert seen["positions"] == [rank * 10, rank * 10]
        assert (seen["whole"], seen["shards"], seen["fresh"], seen["epoch"]) == (True, True, True, 4)
        text = "checkpointing.apply: the state has the {} of 3 ranks, and there are 2 now, which {}"
        kept = {"loader": "begin anew in the data", "rng": "keep their fresh seeds"}
        assert seen["warned"] == ([] if rank else [text.format(*pair) for pair in kept.items()])


def test_an_average_that_rank_0_alone_has_is_taken_without_the_others(whole_group: dict[str, list[Any]]) -> None:
    first, second = whole_group["averages"]
    both = {"names": True, "tensors": [], "loaded": []}
    assert first == {"alone": True, "equal": [], **both}
    assert second == both


def test_a_state_that_does_not_fit_is_named_and_nothing_changes(whole_group: dict[str, list[Any]]) -> None:
    for rank, seen in enumerate(whole_group["refusals"]):
        prefix = "the state was not applied: "
        assert seen["on_one_rank"].startswith(f"{prefix}ema: " if rank else f"{prefix}rank 1: CheckpointingError: {prefix}ema: ")
        names = f"{prefix}model: 5 missing: 0.bias, 1.module.bias, 2.bias, 3.module.bias, and 1 more; 2 unexpected: a, b"
        assert seen["names"] == names + UNCHANGED
        assert seen["shapes"] == f"{prefix}model: 1 of another shape: 0.weight is (7, 5) here and (7, 6) there{UNCHANGED}"
        assert seen["optimizer"].startswith(f"{prefix}optimizer: 8 missing: 1.module.bias, ")
        assert seen["groups"] == f"{prefix}optimizer: its parameters stand in 2 groups here, and in 1 others there{UNCHANGED}"
        assert seen["moments"] == f"{prefix}optimizer: 1 of another shape: 0.weight exp_avg is (7, 5) here and (2,) there{UNCHANGED}"
        assert seen["absent"].startswith(f"{prefix}it has no ema")
        assert seen["generators"].startswith(f"{prefix}rng cannot be read: ")
        assert seen["loader_kind"].startswith(f"{prefix}loader: neither DataLoader nor its sampler has load_state_dict")
        assert seen["changed"] == []
        assert seen["early"].startswith("the state was not taken: 11 of the 11 parameters of the optimizer are not the model's | make the")
        assert seen["no_loader"].startswith("the state was not taken: neither list nor its sampler has state_dict")


# in checkpoints


@pytest.mark.parametrize(("wrapping", "number"), [("ddp", 2), pytest.param("fsdp2", 3, marks=pytest.mark.slow)])
def test_a_kill_during_a_save_costs_that_step_in_any_wrapping(wrapping: str, number: int, tmp_path: Path) -> None:
    assert run("killed", 2, tmp_path).returncode != 0
    assert not (tmp_path / "ckpt" / "step-00000003").exists()
    for rank, seen in enumerate(ranks("resumed", number, tmp_path, wrapping)):
        assert (seen["step"], seen["wrong"], seen["close"]) == (2, [], True)
        assert (seen["fresh"], len(seen["warned"])) == ((False, 0) if number == 2 else (True, rank == 0))


def test_shards_are_not_saved_as_if_those_of_rank_0_were_all(whole_group: dict[str, list[Any]]) -> None:
    first, second = whole_group["whole_file"]
    assert "the state is in shards (DTensor), and this file would hold those of rank 0 alone | give save sharded=True" in first["error"]
    assert first["error"] == second["error"]
    (place,) = whole_group["place"]
    assert (place / "averages" / "ckpt").is_dir()
    assert not (place / "whole_file").exists()


def test_one_process_without_torch_distributed_takes_and_applies_everything(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    save({**state(model, optimizer), "step": 7}, tmp_path, step=7)
    drawn = random.random(), float(torch.rand(()))  # noqa: S311 -- no secret
    other = torch.nn.Linear(2, 2)
    its_optimizer = torch.optim.Adam(other.parameters())
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    apply(checkpoint.state, other, its_optimizer)
    assert torch.equal(model.weight, other.weight)
    assert checkpoint.state["step"] == 7
    assert (random.random(), float(torch.rand(()))) == drawn  # noqa: S311 -- as above


@pytest.mark.slow
def test_taking_the_state_imports_numpy_only_if_the_script_did() -> None:
    program = "import sys\nsys.modules['numpy'] = None\nimport torch\nfrom checkpointing import state\n"
    program += "state(torch.nn.Linear(2, 2))\nassert sys.modules['numpy'] is None"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 -- ours
    assert done.returncode == 0, done.stderr


# ranks that do not come


@pytest.mark.slow
def test_a_late_rank_is_named_in_a_warning_and_all_continue(tmp_path: Path) -> None:
    first, second = ranks("late_rank", 2, tmp_path)
    (warning,) = first["warned"]
    assert warning.startswith("the state was not taken: it still waits: only 1 of 2 ranks came within ")
    assert "rank 1 did not: it is at stating.py:" in warning
    assert warning.endswith("in late_rank")
    assert (first["error"], second["error"], second["warned"]) == ("", "", [])


@pytest.mark.slow
def test_a_rank_of_which_nothing_is_proven_is_awaited_as_long_as_the_group_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_TIMEOUT_S", "4")
    *waiting, _ = ranks("absent_rank", 3, tmp_path)
    for rank, seen in enumerate(waiting):
        assert seen["s"] >= 4
        assert seen["error"].startswith(
            "CheckpointingError: the state was not taken: only 2 of 3 ranks came within 4 s; rank 2 did not: it is at stating.py:"
        )
        assert seen["error"].endswith("in _stands_here")
        assert len(seen["warned"]) == (rank == 0)  # once, for all


@pytest.mark.slow
def test_a_rank_in_a_collective_that_does_not_need_this_one_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_TIMEOUT_S", "4")
    first, *_ = ranks("rank_in_a_group", 3, tmp_path)
    assert first["s"] >= 4
    assert first["error"].startswith(
        "CheckpointingError: the state was not taken: only 1 of 3 ranks came within 4 s; rank 1 did not: it is at stating.py:"
    )
    assert "will not come" not in first["error"]


@pytest.mark.parametrize(("name", "why"), few_rows([("rank_gone", "its process is gone"), ("rank_elsewhere", "it is at stating.py:")]))
def test_a_rank_that_cannot_come_any_more_is_an_error_at_once(name: str, why: str, tmp_path: Path) -> None:
    run(name, 2, tmp_path)
    seen = json.loads((tmp_path / "rank-0.json").read_text())
    assert seen["error"].startswith("CheckpointingError: the state was not taken: only 1 of 2 ranks came within ")
    assert f"rank 1 did not: {why}" in seen["error"]
    assert seen["error"].endswith("; it will not come here")
    assert seen["s"] < 60 * 0.5  # long before the group's own time is over
