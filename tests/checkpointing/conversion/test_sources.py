"""What users have on their disks: wrapped names, classes of their own, old files, shards of transformers, several files of one save."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from checkpointing.conversion.trees import weights_of, without_prefixes
from checkpointing.model import CheckpointingError
from tests.checkpointing.conversion.converting import convert, held, rows, weights

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:torch.distributed is (disabled|unavailable)")
W, B = torch.arange(6.0).reshape(2, 3), torch.ones(3)


class Settings(dict[str, Any]):
    """As lightning.fabric's AttributeDict."""


class Pickled:
    """A class of a training script."""

    def __init__(self) -> None:
        """Hold something."""
        self.content = [1, 2]


class Callback(list[Any]):
    """A list of a framework's own."""


def saved(tmp_path: Path, state: object) -> Path:
    torch.save(state, tmp_path / "a.pt")
    return tmp_path / "a.pt"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["module.a.w", "module.b"], ["a.w", "b"]),
        (["_orig_mod.a.w", "_orig_mod.b"], ["a.w", "b"]),
        (["module._orig_mod.a", "module._orig_mod.b"], ["a", "b"]),
        (["_orig_mod.module.a", "_orig_mod.module.b"], ["a", "b"]),
        (["layers.0._fsdp_wrapped_module.w", "layers.1._checkpoint_wrapped_module.w"], ["layers.0.w", "layers.1.w"]),
        (["module.a", "b"], ["module.a", "b"]),  # a module of the user's own that is called so
        (["model.layers.0.w", "model.norm"], ["model.layers.0.w", "model.norm"]),  # transformers' own names
        (["encoder.module.w"], ["encoder.module.w"]),
    ],
)
def test_prefixes_of_wrappers_go_and_no_others(names: list[str], expected: list[str]) -> None:
    tree, n_changed = without_prefixes({"model": dict.fromkeys(names, 1)})
    assert list(tree["model"]) == expected
    assert n_changed == sum(name not in expected for name in names)


def test_names_that_would_become_the_same_are_refused() -> None:
    with pytest.raises(CheckpointingError, match="two names become the same"):
        without_prefixes({"a.w": 1, "_orig_mod.a.w": 2})


@pytest.mark.parametrize(
    ("keys", "path", "beside"),
    [
        ({"model": {"w": 1}, "optimizer": {}, "epoch": 3}, ("model",), [("optimizer",), ("epoch",)]),
        ({"state_dict": {"w": 1}, "optimizer_states": [1]}, ("state_dict",), [("optimizer_states",)]),
        ({"app": {"model": {"w": 1}, "optim": {"s": 1}}}, ("app", "model"), [("app", "optim")]),
        ({"generator": {"w": 1}, "critic": {"w": 1}, "optimizer_g": {"s": 1}}, (), [("optimizer_g",)]),
        ({"model.layers.0.w": 1, "lm_head.weight": 1}, (), []),
        ({"model": 1, "weight": 1}, (), []),  # a tensor that is called so
    ],
)
def test_the_models_weights_are_found(tmp_path: Path, keys: dict[str, Any], path: tuple[str, ...], beside: list[tuple[str, ...]]) -> None:
    from checkpointing.conversion.sources import open_source  # noqa: PLC0415

    def tensors(tree: Any) -> Any:  # noqa: ANN401
        if isinstance(tree, dict):
            return {key: tensors(value) for key, value in tree.items()}
        return torch.ones(1) if tree == 1 else tree

    assert weights_of(open_source(str(saved(tmp_path, tensors(keys)))).tree) == (path, beside)


def test_classes_are_not_imported_and_the_losses_are_listed(tmp_path: Path) -> None:
    state = {"model": {"w": W}, "args": argparse.Namespace(lr=1), "hyper": Settings(depth=3), "callbacks": [Callback([1]), Pickled()]}
    answer = convert(saved(tmp_path, state), tmp_path / "b.pt", "torch")
    loaded = torch.load(tmp_path / "b.pt", weights_only=True)
    assert rows(loaded.pop("model")) == rows({"w": W})
    assert loaded == {"hyper": {"depth": 3}, "callbacks": [[1], None]}
    (line,) = answer["left_out"]
    assert line.startswith("objects of classes ")
    assert line.endswith(": callbacks.1, args"), line
    assert all(name in line for name in ("argparse.Namespace", "Settings", "Callback", "Pickled"))


class _Evil:
    def __reduce__(self) -> tuple[Callable[[Path], object], tuple[Path]]:
        return Path.touch, (Path("/tmp/convert-was-run"),)  # noqa: S108  must never exist


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    answer = convert(saved(tmp_path, {"w": W, "x": _Evil()}), tmp_path / "b.pt", "torch")
    assert not Path("/tmp/convert-was-run").exists()  # noqa: S108
    assert torch.load(tmp_path / "b.pt", weights_only=True).keys() == {"w"}
    assert ": x" in answer["left_out"][0]


def test_a_file_of_the_old_format_is_read(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in weights().items() if "float8" not in name and name != "uint16"}  # younger than the format
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    convert(tmp_path / "old.pt", tmp_path / "b", "safetensors")
    assert held(tmp_path / "b") == rows(state)


def test_a_tensor_alone_is_called_value(tmp_path: Path) -> None:
    convert(saved(tmp_path, W), tmp_path / "b", "safetensors")
    assert held(tmp_path / "b") == rows({"value": W})


class Net(torch.nn.Module):
    """A model of a training script, with a buffer that its state does not have."""

    def __init__(self) -> None:
        """Build it."""
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        self.register_buffer("passing", torch.ones(1), persistent=False)


def test_a_model_that_was_saved_as_an_object_has_its_state(tmp_path: Path) -> None:
    model = Net()
    convert(saved(tmp_path, {"model": model, "epoch": 1}), tmp_path / "b", "safetensors")
    assert held(tmp_path / "b") == rows(model.state_dict())


def test_a_pickle_of_another_protocol_is_refused_with_what_helps(tmp_path: Path) -> None:
    torch.save({"w": W}, tmp_path / "a.pt", pickle_protocol=4)
    with pytest.raises(CheckpointingError, match="cannot be read without running its code") as caught:
        convert(tmp_path / "a.pt", tmp_path / "b", "torch")
    assert "save it again" in caught.value.hint


def test_a_checkpoint_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointingError, match="there is no tensor"):
        convert(saved(tmp_path, {"epoch": 3}), tmp_path / "b", "torch")


def test_a_sparse_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointingError, match="only dense tensors"):
        convert(saved(tmp_path, {"w": W.to_sparse()}), tmp_path / "b", "torch")


def test_the_numbers_of_a_lazy_conjugate_are_written_as_the_program_saw_them(tmp_path: Path) -> None:
    number = torch.tensor([1 + 2j, 3 - 4j])
    other = number.clone()  # torch.save keeps no tensor of two types
    convert(saved(tmp_path, {"plain": number, "conj": number.conj(), "negative": other.conj().imag}), tmp_path / "b.pt", "torch")
    back = torch.load(tmp_path / "b.pt", weights_only=True)
    assert torch.equal(back["plain"], number)
    assert back["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert back["negative"].tolist() == [-2.0, 4.0]


@pytest.mark.parametrize("name", ["__metadata__", "half\udcff"])
def test_a_name_that_safetensors_cannot_hold_is_refused(tmp_path: Path, name: str) -> None:
    source = saved(tmp_path, {name: W, "b": B})
    with pytest.raises(CheckpointingError, match="no tensor with this name"):
        convert(source, tmp_path / "c", "safetensors")
    assert convert(source, tmp_path / "b.pt", "torch")["tensors"] == 2


def test_a_path_that_torch_cannot_open_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, {"b": B}).rename(tmp_path / "a\udcff.pt")
    with pytest.raises(CheckpointingError, match="not UTF-8") as refusal:
        convert(path, tmp_path / "c", "safetensors")
    assert "rename" in refusal.value.hint


def test_joined_names_that_are_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointingError, match=r"two tensors would be called a\.w"):
        convert(saved(tmp_path, {"a": {"w": W}, "a.w": B}), tmp_path / "b", "safetensors")


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_a_directory_of_transformers_with_shards(tmp_path: Path, suffix: str) -> None:
    hf = tmp_path / "hf"
    hf.mkdir()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    files = [f"{stem}-0000{n}-of-00002.{suffix}" for n in (1, 2)]
    for file, state in zip(files, ({"w": W}, {"b": B}), strict=True):
        save_file(state, hf / file, {"format": "pt"}) if suffix == "safetensors" else torch.save(state, hf / file)
    index = {"metadata": {"total_size": 36}, "weight_map": {"w": files[0], "b": files[1]}}
    (hf / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    for name in ("config.json", "tokenizer.json", "trainer_state.json", "README.md"):
        (hf / name).write_text("{}")
    (hf / "trainer_state.json").unlink()
    answer = convert(hf, tmp_path / "b", "hf")
    assert held(tmp_path / "b") == rows({"w": W, "b": B})
    assert (answer["left_out"], answer["notes"]) == (["the file README.md"], [])
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}


def test_a_checkpoint_of_the_trainer_leaves_its_optimizer(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint-4"
    place.mkdir()
    save_file({"w": W}, place / "model.safetensors", {"format": "pt"})
    torch.save({"state": {}}, place / "optimizer.pt")
    (place / "trainer_state.json").write_text('{"global_step": 4}')
    (place / "config.json").write_text("{}")
    answer = convert(place, tmp_path / "b.pt", "torch")
    assert rows(torch.load(tmp_path / "b.pt", weights_only=True)) == rows({"w": W})
    assert answer["left_out"] == ["the file optimizer.pt", "the file trainer_state.json"]


@pytest.mark.parametrize(("stem", "target"), [("adapter_model.safetensors", "adapter_model"), ("pytorch_model.bin", "model")])
def test_a_directory_keeps_the_name_that_its_loader_looks_for(tmp_path: Path, stem: str, target: str) -> None:
    place = tmp_path / "hf"
    place.mkdir()
    save_file({"w": W}, place / stem) if stem.endswith("safetensors") else torch.save({"w": W}, place / stem)
    config = "adapter_config.json" if target == "adapter_model" else "config.json"
    (place / config).write_text("{}")
    answer = convert(place, tmp_path / "b", "hf")
    assert {path.name for path in (tmp_path / "b").iterdir()} == {f"{target}.safetensors", config}
    assert answer["notes"] == []


def test_of_the_same_weights_in_two_formats_those_without_a_pickle_are_taken(tmp_path: Path) -> None:
    place = tmp_path / "hf"
    place.mkdir()
    save_file({"w": W}, place / "model.safetensors")
    torch.save({"w": B}, place / "pytorch_model.bin")
    (place / "config.json").write_text("{}")
    answer = convert(place, tmp_path / "b", "torch")
    assert held(tmp_path / "b") == rows({"w": W})
    assert answer["left_out"] == ["the file pytorch_model.bin"]


def test_accelerates_directories_of_fsdp_become_model_and_optimizer(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint_0"
    dcp.save({"model": {"w": W}}, checkpoint_id=place / "pytorch_model_fsdp_0", no_dist=True)
    dcp.save({"optimizer": {"state": {"w": {"exp_avg": B}}}}, checkpoint_id=place / "optimizer_0", no_dist=True)
    torch.save({"step": 1}, place / "random_states_0.pkl")
    answer = convert(place, tmp_path / "b", "safetensors")
    assert held(tmp_path / "b") == rows({"w": W})
    assert answer["left_out"] == ["the file random_states_0.pkl", "optimizer: 1 tensor, 12 bytes"]


def test_the_files_of_one_save_stand_below_their_names(tmp_path: Path) -> None:
    place = tmp_path / "step_4"
    place.mkdir()
    torch.save({"module.w": W}, place / "model.pt")
    torch.save({"state": {0: {"exp_avg": B}}}, place / "optim.pt")
    (place / "meta.json").write_text("{}")
    answer = convert(place, tmp_path / "b.pt", "torch")
    assert held(tmp_path / "b.pt") == rows({"model.w": W, "optim.state.0.exp_avg": B})
    assert answer["left_out"] == ["the file meta.json"]


def test_a_megatron_model_of_one_rank_is_read(tmp_path: Path) -> None:
    (tmp_path / "iter_0000004" / "mp_rank_00").mkdir(parents=True)
    state = {"model": {"language_model": {"w": W}}, "args": argparse.Namespace(tensor_model_parallel_size=1), "iteration": 4}
    torch.save(state, tmp_path / "iter_0000004" / "mp_rank_00" / "model_optim_rng.pt")
    answer = convert(tmp_path / "iter_0000004", tmp_path / "b", "safetensors")
    assert held(tmp_path / "b") == rows({"language_model.w": W})
    assert "argparse.Namespace" in answer["left_out"][0]


def test_a_megatron_model_that_was_split_is_refused_with_its_own_tool(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / "iter_0000004" / f"mp_rank_0{rank}").mkdir(parents=True)
        torch.save({"model": {"w": W}}, tmp_path / "iter_0000004" / f"mp_rank_0{rank}" / "model_optim_rng.pt")
    with pytest.raises(CheckpointingError, match="split over the ranks of Megatron") as caught:
        convert(tmp_path / "iter_0000004", tmp_path / "b", "torch")
    assert "tools/checkpoint/convert.py" in caught.value.hint


def test_pieces_of_tensors_in_several_files_are_refused(tmp_path: Path) -> None:
    hf = tmp_path / "hf"
    hf.mkdir()
    for n in (1, 2):
        save_file({"w": W}, hf / f"shard-0000{n}-model-00001-of-00001.safetensors")
    with pytest.raises(CheckpointingError, match=r"w is in .* and in "):
        convert(hf, tmp_path / "b", "torch")
