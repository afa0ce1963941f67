"""Every pair of formats gives back the same bits, by our readers and by those that users have: torch, DCP, safetensors."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

from checkpointing.conversion import targets
from checkpointing.model import CheckpointingError
from tests.checkpointing.conversion.converting import convert, held, rows, training, weights
from tests.support.few import few_rows

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("torch", "dcp", "safetensors", "hf")
#: The pairs of the fast tests: from each format, and to each.
ROUND = (*FORMATS, FORMATS[0])
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:torch.distributed is (disabled|unavailable)")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """The weights alone, as a torch file."""
    torch.save(weights(), tmp_path / "flat.pt")
    return tmp_path / "flat.pt"


@pytest.mark.parametrize(
    ("first", "second"), few_rows(sorted(itertools.product(FORMATS, FORMATS), key=lambda pair: pair not in itertools.pairwise(ROUND)), 4)
)
def test_weights_come_back_bit_by_bit_over_each_pair_of_formats(flat: Path, tmp_path: Path, first: str, second: str) -> None:
    convert(flat, tmp_path / "first", first)
    answer = convert(tmp_path / "first", tmp_path / "second", second)
    convert(tmp_path / "second", tmp_path / "back", "torch")
    assert answer["left_out"] == []
    assert held(tmp_path / "back") == rows(weights())
    assert rows(torch.load(tmp_path / "back", weights_only=True)) == rows(weights())


def test_a_training_keeps_all_of_it_in_a_torch_file(tmp_path: Path) -> None:
    torch.save(training(), tmp_path / "a.pt")
    answer = convert(tmp_path / "a.pt", tmp_path / "b.pt", "torch")
    assert (answer["left_out"], answer["notes"]) == ([], [])
    same(torch.load(tmp_path / "b.pt", weights_only=True), training())
    loaded = torch.load(tmp_path / "b.pt", weights_only=True, mmap=True)["model"]
    assert loaded["encoder.tied"].data_ptr() == loaded["encoder.layers.0.weight"].data_ptr()  # tied weights stay tied


def test_a_training_keeps_all_but_number_keys_in_a_dcp_directory_and_torch_reads_it(tmp_path: Path) -> None:
    torch.save(training(), tmp_path / "a.pt")
    answer = convert(tmp_path / "a.pt", tmp_path / "b", "dcp")
    assert answer["left_out"] == ["the type of keys that are numbers: torch.distributed.checkpoint stores keys as text (1 table)"]
    dcp_to_torch_save(tmp_path / "b", tmp_path / "by_torch.pt")
    expected = training()
    expected["optimizer"]["state"] = {str(key): value for key, value in expected["optimizer"]["state"].items()}
    same(torch.load(tmp_path / "by_torch.pt", weights_only=True), expected)
    convert(tmp_path / "b", tmp_path / "c.pt", "torch")
    same(torch.load(tmp_path / "c.pt", weights_only=True), expected)


def test_a_dcp_directory_of_torch_is_read(tmp_path: Path) -> None:
    torch.save(training(), tmp_path / "a.pt")
    torch_save_to_dcp(tmp_path / "a.pt", tmp_path / "dcp")
    convert(tmp_path / "dcp", tmp_path / "b.safetensors", "safetensors")
    assert rows(load_file(tmp_path / "b.safetensors")) == rows(training()["model"])


def test_a_record_of_more_than_2_gib_has_64_bit_sizes_and_stays_aligned(
    flat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_LARGE_BYTES", 40)
    convert(flat, tmp_path / "b.pt", "torch")
    loaded = torch.load(tmp_path / "b.pt", weights_only=True, mmap=True)
    assert rows(loaded) == rows(weights())
    base = min(tensor.data_ptr() for tensor in loaded.values() if tensor.numel())
    assert all((tensor.data_ptr() - base) % 64 == 0 for tensor in loaded.values() if tensor.numel())


@pytest.mark.parametrize("to", ["safetensors", "hf"])
def test_safetensors_hold_the_models_weights_and_the_losses_are_listed(tmp_path: Path, to: str) -> None:
    torch.save(training(), tmp_path / "a.pt")
    answer = convert(tmp_path / "a.pt", tmp_path / "b", to)
    file = tmp_path / "b" / "model.safetensors" if to == "hf" else tmp_path / "b"
    assert rows(load_file(file)) == rows(training()["model"])
    assert answer["left_out"] == ["optimizer: 3 tensors, 104 bytes", "epoch", "name", "history: 2 tensors, 12 bytes"]
    assert "tied weights are written once for each name: 1 name more" in answer["notes"]


def test_large_weights_are_cut_into_shards_with_the_index_of_transformers(
    tmp_path: Path, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "SHARD_BYTES", 200)
    convert(flat, tmp_path / "hf", "hf")
    files = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2
    assert files[-1] == f"model-{len(files):05d}-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.numel() * tensor.element_size() for tensor in weights().values())
    # as transformers reads it: each file that the map names, and in it the tensors that the map puts there
    loaded: dict[str, torch.Tensor] = {}
    for file in set(index["weight_map"].values()):
        shard = load_file(tmp_path / "hf" / file)
        assert shard.keys() == {name for name, place in index["weight_map"].items() if place == file}
        assert sum(tensor.numel() * tensor.element_size() for tensor in shard.values()) <= 200 or len(shard) == 1
        loaded.update(shard)
    assert rows(loaded) == rows(weights())
    convert(tmp_path / "hf", tmp_path / "back.pt", "torch")
    assert held(tmp_path / "back.pt") == rows(weights())


@pytest.mark.parametrize(("dtype", "floating"), few_rows([("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]))
@pytest.mark.parametrize("to", FORMATS)
def test_a_type_changes_the_models_floats_and_nothing_else(tmp_path: Path, to: str, dtype: str, floating: torch.dtype) -> None:
    torch.save(training(), tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "b", to, dtype)
    changed = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    expected = rows({name: tensor.to(floating) if tensor.dtype in changed else tensor for name, tensor in training()["model"].items()})
    values = held(tmp_path / "b")
    prefix = "model." if to in ("torch", "dcp") else ""
    assert {name.removeprefix(prefix): row for name, row in values.items() if name.startswith(f"{prefix}encoder")} == expected
    assert to not in ("torch", "dcp") or values["optimizer.state.0.exp_avg"].dtype == "torch.float32"


def test_a_number_beyond_a_types_range_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.tensor([1.0, 70000.0])}, tmp_path / "a.pt")
    with pytest.raises(CheckpointingError, match=r"w holds numbers that are too large for float16") as caught:
        convert(tmp_path / "a.pt", tmp_path / "b", "safetensors", "fp16")
    assert "--dtype bf16" in caught.value.hint


def test_a_type_that_safetensors_lacks_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2, dtype=torch.complex128)}, tmp_path / "a.pt")
    with pytest.raises(CheckpointingError, match="no type for complex128: w"):
        convert(tmp_path / "a.pt", tmp_path / "b", "safetensors")
    convert(tmp_path / "a.pt", tmp_path / "c", "dcp")


def test_a_wrongly_written_tensor_is_found(tmp_path: Path, flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flipped(tensor: torch.Tensor) -> memoryview:
        return memoryview(bytes(255 - byte for byte in real(tensor)))

    real = targets.raw
    monkeypatch.setattr(targets, "raw", flipped)
    with pytest.raises(CheckpointingError, match="the written checkpoint differs from its source"):
        convert(flat, tmp_path / "b.safetensors", "safetensors")


def same(values: Any, expected: Any) -> None:  # noqa: ANN401  any state
    """Compare two states: types of containers, keys, values, and tensors bit by bit."""
    assert type(values) in (type(expected), dict), expected
    if isinstance(expected, dict):
        assert list(values) == list(expected)
        for key in expected:
            same(values[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(values) == len(expected)
        for value, other in zip(values, expected, strict=True):
            same(value, other)
    elif isinstance(expected, torch.Tensor):
        assert rows({"": values}) == rows({"": expected})
    else:
        assert values == expected
