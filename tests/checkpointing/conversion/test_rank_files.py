"""What ranks of FSDP and of torch.distributed.checkpoint really save, two of them over gloo, becomes whole again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpointing.model import CheckpointingError
from checkpointing.verification import verify
from tests.checkpointing.conversion.converting import convert, held, rows
from tests.support import preloaded

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:torch.distributed is (disabled|unavailable)"),
]
PROGRAM = Path(__file__).with_name("sharded_saves.py")


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what two ranks saved, each way in a directory of its own, and the full weights."""
    place = tmp_path_factory.mktemp("saves")
    done = preloaded.run(str(PROGRAM), str(place), ranks=2)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fsdp1_sharded", "dtensor", "fsdp1_dcp", "fsdp2_dcp", "replicated"])
def test_the_files_of_two_ranks_become_one_whole_checkpoint(saves: Path, tmp_path: Path, way: str) -> None:
    assert verify(str(saves / way), own=True).verdict == "verified"
    expected = rows(torch.load(saves / "full.pt", weights_only=True))
    for to in ("torch", "dcp", "safetensors", "hf"):
        answer = convert(saves / way, tmp_path / to, to)
        assert held(tmp_path / to) == expected
        assert answer["left_out"] == []


@pytest.mark.slow
def test_a_local_state_dict_is_refused_with_what_to_save_instead(saves: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointingError, match="local state dict of FSDP") as caught:
        convert(saves / "fsdp1_local", tmp_path / "b", "torch")
    assert "torch.distributed.checkpoint" in caught.value.hint


@pytest.mark.slow
def test_the_file_of_one_rank_alone_is_refused(saves: Path, tmp_path: Path) -> None:
    for way in ("fsdp1_sharded", "dtensor"):
        with pytest.raises(CheckpointingError, match="one rank's shards"):
            convert(saves / way / "model_rank0.pt", tmp_path / "b", "torch")


def test_the_file_of_a_rank_that_is_missing_leaves_a_gap(tmp_path: Path) -> None:
    place = tmp_path / "ranks"
    place.mkdir()
    for rank in (0, 1):
        torch.save({"w": torch.ones(2), **({"only": torch.ones(1)} if rank else {"only_0": torch.ones(1)})}, place / f"model_rank{rank}.pt")
    with pytest.raises(CheckpointingError, match="only_0 is not in the file of rank 1"):
        convert(place, tmp_path / "b", "torch")


def test_plain_tensors_that_differ_between_ranks_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "ranks"
    place.mkdir()
    for rank in (0, 1):
        torch.save({"w": torch.full((2,), float(rank))}, place / f"model_rank{rank}.pt")
    with pytest.raises(CheckpointingError, match="w differs between rank 0 and rank 1"):
        convert(place, tmp_path / "b", "torch")
