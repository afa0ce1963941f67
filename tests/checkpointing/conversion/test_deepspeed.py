"""DeepSpeed's ZeRO files, laid out as its converter documents them, become the full fp32 weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing.model import CheckpointingError
from checkpointing.verification import verify
from tests.checkpointing.conversion.converting import convert, held, rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:torch.distributed is (disabled|unavailable)")
STEP = "global_step7"


class LossScaler:
    """A class of DeepSpeed's that its optimizer states hold; it is not installed where the file is converted."""


def parameters() -> list[dict[str, torch.Tensor]]:
    """Two groups of parameters; no number of them divides by the ranks."""
    torch.manual_seed(7)
    return [{"embed.weight": torch.randn(5, 3), "fc.weight": torch.randn(3, 7)}, {"fc.bias": torch.randn(7), "scale": torch.randn(())}]


class Zero:
    """Writes the files of a training of some ranks."""

    def __init__(self, place: Path, stage: int, ranks: int) -> None:
        """Begin the directory."""
        self.place, self.stage, self.ranks = place / "run" / STEP, stage, ranks
        self.place.mkdir(parents=True)
        (self.place.parent / "latest").write_text(STEP)
        self.groups = parameters()

    def model_state(self, **more: object) -> dict[str, Any]:
        """The model's states of a rank: the 16-bit weights, or at stage 3 empty ones, and what says how they lie in the flat tensors."""
        trained = {name: tensor for group in self.groups for name, tensor in group.items()}
        module = {name: torch.empty(0) if self.stage == 3 else tensor.bfloat16() for name, tensor in trained.items()}
        module |= {"running": torch.tensor([1.5, 2.5], dtype=torch.bfloat16), "tied.weight": module["embed.weight"]}
        return {
            "module": module,
            "buffer_names": ["running"],
            "param_shapes": [{name: tensor.shape for name, tensor in group.items()} for group in self.groups],
            "shared_params": {"tied.weight": "embed.weight"},
            "frozen_param_shapes": {"frozen": torch.Size([3, 3])},
            "frozen_param_fragments": {"frozen": self.frozen()},
            "dp_world_size": self.ranks,
            "mp_world_size": 1,
            "ds_version": "0.17.0",
            "global_steps": 7,
            **more,
        }

    def frozen(self) -> torch.Tensor:
        """A parameter that is not trained."""
        return torch.arange(9.0).reshape(3, 3)

    def flat(self, rank: int) -> list[torch.Tensor]:
        """A rank's flat tensors: one for each group."""
        result = []
        for group in self.groups:
            if self.stage == 3:
                pieces = []
                for tensor in group.values():
                    each = math.ceil(tensor.numel() / self.ranks)
                    padded = torch.cat([tensor.reshape(-1), torch.zeros(each * self.ranks - tensor.numel())])
                    pieces.append(padded[rank * each : (rank + 1) * each])
                result.append(torch.cat(pieces))
                continue
            whole = torch.cat([tensor.reshape(-1) for tensor in group.values()])
            aligned = 2 * self.ranks * math.ceil(len(whole) / (2 * self.ranks))
            result.append(torch.cat([whole, torch.zeros(aligned - len(whole))]).chunk(self.ranks)[rank].clone())
        return result

    def write(self) -> Path:
        """Write all files; return the step's directory."""
        for rank in range(self.ranks):
            if self.stage == 3:
                each = math.ceil(9 / self.ranks)
                padded = torch.cat([self.frozen().reshape(-1), torch.zeros(each * self.ranks - 9)])
                fragment = {"frozen_param_fragments": {"frozen": padded[rank * each : (rank + 1) * each].clone()}}
                torch.save(self.model_state(**fragment), self.place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
            key = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
            optimizer = {"zero_stage": self.stage, "partition_count": self.ranks, key: self.flat(rank), "loss_scaler": LossScaler()}
            torch.save({"optimizer_state_dict": optimizer}, self.place / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if self.stage != 3:
            torch.save(self.model_state(), self.place / "mp_rank_00_model_states.pt")
        return self.place

    def expected(self) -> dict[str, torch.Tensor]:
        """The full weights in fp32."""
        trained = {name: tensor for group in self.groups for name, tensor in group.items()}
        return {**trained, "running": torch.tensor([1.5, 2.5]), "frozen": self.frozen(), "tied.weight": trained["embed.weight"]}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_fp32_weights_of_all_ranks_are_put_together(tmp_path: Path, stage: int, ranks: int) -> None:
    zero = Zero(tmp_path, stage, ranks)
    assert verify(str(zero.write()), own=True).verdict == "verified"
    answer = convert(zero.place, tmp_path / "b", "safetensors")
    assert held(tmp_path / "b") == rows(zero.expected())
    assert answer["left_out"][0] == "the optimizer's states of all ranks"
    assert "ds_version" in answer["left_out"]


def test_the_training_of_deepspeed_within_a_checkpoint_of_the_trainer_is_found(tmp_path: Path) -> None:
    zero = Zero(tmp_path, 3, 2)
    zero.write()
    place = tmp_path / "checkpoint-7"
    zero.place.parent.rename(place)
    (place / "trainer_state.json").write_text('{"global_step": 7}')
    (place / "config.json").write_text("{}")
    convert(place, tmp_path / "b", "hf")
    assert held(tmp_path / "b") == rows(zero.expected())


def test_a_model_without_zero_is_taken_as_it_is(tmp_path: Path) -> None:
    zero = Zero(tmp_path, 0, 2)
    torch.save({**zero.model_state(), "param_shapes": None}, zero.place / "mp_rank_00_model_states.pt")
    convert(zero.place, tmp_path / "b", "torch")
    assert held(tmp_path / "b")["embed.weight"] == rows({"": zero.groups[0]["embed.weight"].bfloat16()})[""]


@pytest.mark.parametrize("stage", [2, 3])
def test_flat_tensors_of_another_training_are_refused(tmp_path: Path, stage: int) -> None:
    zero = Zero(tmp_path, stage, 2)
    zero.write()
    zero.groups[1]["fc.bias"] = torch.zeros(70)
    for rank in (0, 1):
        torch.save(zero.model_state(), zero.place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage == 2:
        for rank in (0, 1):
            (zero.place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").unlink()
        torch.save(zero.model_state(), zero.place / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointingError, match=r"numbers, and"):
        convert(zero.place, tmp_path / "b", "torch")


@pytest.mark.parametrize(
    "name", ["mp_rank_01_model_states.pt", "layer_00-model_00-model_states.pt", "expp_rank_0_mp_rank_00_optim_states.pt"]
)
def test_a_model_that_was_split_by_more_than_zero_is_refused(tmp_path: Path, name: str) -> None:
    zero = Zero(tmp_path, 2, 2)
    zero.write()
    torch.save({"module": {}}, zero.place / name)
    with pytest.raises(CheckpointingError, match=f"split by model, pipeline or expert parallelism.*{name}"):
        convert(zero.place, tmp_path / "b", "torch")
