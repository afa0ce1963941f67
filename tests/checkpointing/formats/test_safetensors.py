"""safetensors files and indexes: what the library writes is whole, and each kind of damage is reported."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from checkpointing.discover import find
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "embedding": torch.randn(300, 48, generator=generator),
        "bias": torch.zeros(700),
        "ids": torch.arange(2000),
        "mask": torch.full((20, 20), float("-inf")).triu(1),
        "head": torch.randn(300, 48, generator=generator).to(torch.bfloat16),
        "scale": torch.tensor(2.0),
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model_step_70.safetensors"
    save_file(tensors(), path)
    return path


SOUND: dict[str, tuple[dict[str, torch.Tensor], dict[str, str] | None]] = {
    "usual": (tensors(), None),
    "no_tensors": ({}, None),
    "empty_tensor": ({"a": torch.empty(0), "b": torch.empty(3, 0), "c": torch.ones(2)}, {"format": "pt"}),
    "dtypes": (
        {str(dtype): torch.zeros(5).to(dtype) for dtype in (torch.bool, torch.uint8, torch.int8, torch.float16, torch.float64)},
        None,
    ),
    "float8": ({"a": torch.ones(5).to(torch.float8_e4m3fn), "b": torch.ones(5).to(torch.float8_e5m2)}, None),
    "complex": ({"a": torch.ones(5, dtype=torch.complex64)}, None),
    "zeros": ({"a": torch.zeros(5000), "b": torch.zeros(300, 300)}, None),
    "rows_never_seen": ({"a": torch.randn(500, 100) * (torch.arange(500) % 7 > 3).unsqueeze(1)}, None),
    "padded_rows": ({"a": torch.cat([torch.randn(500, 768), torch.zeros(47, 768)])}, None),
    "padded_columns": ({"a": torch.cat([torch.randn(50, 3000), torch.zeros(50, 1000)], 1)}, None),
    "pruned": ({"a": torch.randn(400, 400) * (torch.rand(400, 400) > 0.9)}, None),
    "pruned_blocks": ({"a": torch.randn(512, 512) * (torch.rand(16, 2) > 0.5).repeat_interleave(32, 0).repeat_interleave(256, 1)}, None),
    "dead_channels": ({"a": torch.randn(64, 64, 3, 3) * (torch.rand(1, 64, 1, 1) > 0.3)}, None),
    "text": ({"a": torch.ones(2)}, {"note": "größe \u2603", "step": "12"}),
    "zero_then_more": ({"a": torch.randn(1000), "b": torch.zeros(3000), "c": torch.randn(10)}, None),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_file_written_by_safetensors_is_whole(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "x.safetensors")
    save_file({key: tensor.contiguous() for key, tensor in SOUND[name][0].items()}, path, metadata=SOUND[name][1])
    verification = verify(path)
    assert (verification.verdict, verification.level, verification.format, verification.reasons) == (
        Verdict.VERIFIED,
        "layout",
        "safetensors",
        (),
    )


def test_the_step_stands_in_the_name_or_in_the_metadata(file: Path) -> None:
    assert verify(str(file)).step == 70
    save_file(tensors(), file, metadata={"global_step": "80", "epoch": "2"})
    verification = verify(str(file))
    assert (verification.verdict, verification.step, verification.reason) == (Verdict.VERIFIED, 80, "its name says step 70, its content 80")


def test_every_truncation_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(9), "b": torch.ones(2)}, path)
    raw = path.read_bytes()
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        assert verify(str(path)).verdict is Verdict.BAD, size


def header_of(raw: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    return document


def with_header(raw: bytes, header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + raw[8 + struct.unpack("<Q", raw[:8])[0] :]


def changed(name: str, key: str, value: object) -> Callable[[bytes], bytes]:
    def change(raw: bytes) -> bytes:
        header = header_of(raw)
        header[name][key] = value
        return with_header(raw, json.dumps(header).encode())

    return change


def begin_of(raw: bytes, name: str) -> int:
    return int(8 + struct.unpack("<Q", raw[:8])[0] + header_of(raw)[name]["data_offsets"][0])


def zeros(raw: bytes, begin: int, end: int) -> bytes:
    return raw[:begin] + bytes(end - begin) + raw[end:]


def nan(raw: bytes) -> bytes:
    at = begin_of(raw, "embedding") + 4 * 777
    return raw[:at] + struct.pack("<f", float("nan")) + raw[at + 4 :]


def infinite(raw: bytes) -> bytes:
    at = begin_of(raw, "head") + 2 * 777
    return raw[:at] + b"\x80\xff" + raw[at + 2 :]


def page(raw: bytes) -> bytes:
    at = -(-(begin_of(raw, "embedding") + 5000) // 4096) * 4096
    return zeros(raw, at, at + 4096)


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "torn: the file is empty"),
    "zeros": (lambda raw: bytes(len(raw)), "torn: it begins with zeros"),
    "junk_after": (lambda raw: raw + b"junk", "4 bytes after the last tensor"),
    "junk_before": (lambda raw: b"junk" + raw, "its header would have"),
    "no_json": (lambda raw: with_header(raw, b"{'a': 1}"), "its header is not JSON"),
    "no_object": (lambda raw: with_header(raw, b"[]"), "its header is not a JSON object"),
    "deep": (lambda raw: with_header(raw, b'{"a":' + b"[" * 200_000), "its header is not JSON"),
    "twice": (lambda raw: with_header(raw, b'{"a":{},"a":{}}'), "a name is there twice"),
    "row": (lambda raw: with_header(raw, b'{"a":{"dtype":"F32"}}'), "row of a makes no sense"),
    "negative": (changed("scale", "shape", [-1]), "row of scale makes no sense"),
    "offsets": (changed("bias", "data_offsets", [4, 2804]), "tensors overlap or leave a gap"),
    "shape": (changed("bias", "shape", [800]), "bytes where its shape needs 3200"),
    "dtype": (changed("bias", "dtype", "F64"), "bytes where its shape needs 5600"),
    "metadata": (lambda raw: with_header(raw, b'{"__metadata__":{"a":1}}'), "not a table of texts"),
    "page": (page, "embedding: zeros of 4096 bytes"),
    "tail": (lambda raw: zeros(raw, begin_of(raw, "head") + 96 * 100 + 12, len(raw)), "to the end of the file"),
    "tail_of_half": (lambda raw: zeros(raw, len(raw) // 2 + 2, len(raw)), "to the end of the file"),
    "unaligned": (lambda raw: zeros(raw, begin_of(raw, "embedding") + 1004, begin_of(raw, "embedding") + 5100), "never written"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported(file: Path, name: str) -> None:
    change, reason = DAMAGE[name]
    file.write_bytes(change(file.read_bytes()))
    verification = verify(str(file))
    assert verification.verdict is Verdict.BAD
    assert reason in " | ".join(verification.reasons)


@pytest.mark.parametrize(("change", "note"), [(nan, "embedding is not finite: NaN at"), (infinite, "head is not finite: Inf at")])
def test_numbers_that_are_none_are_a_note(file: Path, change: Callable[[bytes], bytes], note: str) -> None:
    file.write_bytes(change(file.read_bytes()))
    verification = verify(str(file))
    assert verification.verdict is Verdict.VERIFIED
    assert verification.reason == f"{note} element 777"


def test_a_dtype_of_tomorrow_is_not_judged(file: Path) -> None:
    file.write_bytes(changed("bias", "dtype", "F12")(file.read_bytes()))
    verification = verify(str(file))
    assert (verification.verdict, verification.reason) == (Verdict.UNVERIFIABLE, "its dtype F12 is not known here")


def test_without_bulk_only_the_header_is_read(file: Path) -> None:
    file.write_bytes(nan(file.read_bytes()))
    verification = verify(str(file), bulk=False)
    assert (verification.verdict, verification.level) == (Verdict.VERIFIED, "directory")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards and their index, as huggingface_hub names them."""
    directory = tmp_path / "step_70"
    directory.mkdir()
    shards = {1: {"a": torch.randn(40, 30), "b": torch.ones(3)}, 2: {"c": torch.randn(40, 30)}}
    weight_map = {}
    for number, held in shards.items():
        name = f"model-{number:05d}-of-00002.safetensors"
        save_file(held, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(held, name)
    size = sum(tensor.numel() * 4 for held in shards.values() for tensor in held.values())
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))
    return directory


def test_shards_and_index_are_one_checkpoint(sharded: Path) -> None:
    (sharded / "config.json").write_text("{}")
    verification = verify(str(sharded))
    assert (verification.verdict, verification.level, verification.format, verification.step, verification.reasons) == (
        Verdict.VERIFIED,
        "layout",
        "safetensors_index",
        70,
        (),
    )
    assert verification.files == ("config.json", *(f"model-0000{n}-of-00002.safetensors" for n in (1, 2)), "model.safetensors.index.json")
    assert [candidate.path for candidate in find(["**"], str(sharded.parent)).candidates] == [str(sharded)]


def test_the_index_stands_for_its_shards(sharded: Path) -> None:
    index = str(sharded / "model.safetensors.index.json")
    verification = verify(index)
    assert (verification.path, verification.verdict, verification.format, verification.step) == (
        index,
        Verdict.VERIFIED,
        "safetensors_index",
        70,
    )
    os.truncate(sharded / "model-00002-of-00002.safetensors", 99)
    assert verify(index).verdict is Verdict.BAD


FIRST, SECOND, INDEX = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"
BETWEEN: dict[str, tuple[Callable[[Path], object], Verdict, str]] = {
    "shard_missing": (lambda d: (d / SECOND).unlink(), Verdict.INCOMPLETE, f"{SECOND} is missing"),
    "index_missing": (lambda d: (d / INDEX).unlink(), Verdict.INCOMPLETE, f"{INDEX} is missing"),
    "index_and_shard": (lambda d: [(d / name).unlink() for name in (INDEX, FIRST)], Verdict.INCOMPLETE, f"{INDEX} is missing, and {FIRST}"),
    "index_torn": (lambda d: os.truncate(d / INDEX, 50), Verdict.BAD, "it is not an index of weights"),
    "index_empty": (lambda d: os.truncate(d / INDEX, 0), Verdict.BAD, "torn: it is empty"),
    "index_is_a_list": (lambda d: (d / INDEX).write_text("[]"), Verdict.BAD, "it is not an index of weights"),
    "shard_torn": (lambda d: os.truncate(d / FIRST, 1000), Verdict.BAD, f"{FIRST}: torn: 1000 of"),
    "shard_empty": (lambda d: os.truncate(d / FIRST, 0), Verdict.BAD, f"{FIRST}: torn: the file is empty"),
    "shards_swapped": (lambda d: (d / FIRST).write_bytes((d / SECOND).read_bytes()), Verdict.BAD, f"{FIRST}: it lacks a, b"),
    "shard_is_a_fifo": (lambda d: ((d / FIRST).unlink(), os.mkfifo(d / FIRST)), Verdict.UNVERIFIABLE, f"{FIRST} is a FIFO"),
    "shard_is_a_loop": (lambda d: ((d / FIRST).unlink(), (d / FIRST).symlink_to(FIRST)), Verdict.UNVERIFIABLE, "a link that leads nowhere"),
    "shard_leads_out": (
        lambda d: ((d / FIRST).unlink(), (d / FIRST).symlink_to("/etc/hosts")),
        Verdict.UNVERIFIABLE,
        "out of the directory",
    ),
    "outside_name": (lambda d: (d / INDEX).write_text('{"weight_map":{"a":"../x.safetensors"}}'), Verdict.BAD, "not an index of weights"),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_an_error_between_the_files_is_reported(sharded: Path, name: str) -> None:
    change, verdict, reason = BETWEEN[name]
    change(sharded)
    verification = verify(str(sharded))
    assert verification.verdict is verdict
    assert reason in " | ".join(verification.reasons)


def test_a_shard_that_nothing_names_is_a_note(sharded: Path) -> None:
    (sharded / "model-00003-of-00003.safetensors").write_bytes((sharded / FIRST).read_bytes())
    verification = verify(str(sharded))
    assert verification.verdict is Verdict.VERIFIED
    assert "belong to another save" in verification.reason


def test_a_link_within_the_directory_is_a_file(sharded: Path) -> None:
    (sharded / "blobs").mkdir()
    (sharded / FIRST).rename(sharded / "blobs/1")
    (sharded / FIRST).symlink_to("blobs/1")
    assert verify(str(sharded)).verdict is Verdict.VERIFIED


def test_a_directory_of_single_files_is_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    for step in (1, 2):
        save_file(tensors(), tmp_path / f"step_{step}.safetensors")
    candidates = find(["**"], str(tmp_path)).candidates
    assert [candidate.path.rpartition("/")[2] for candidate in candidates] == ["step_1.safetensors", "step_2.safetensors"]


def test_a_saved_model_is_one(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint-9"
    directory.mkdir()
    save_file(tensors(), directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    verification = verify(str(directory))
    assert (verification.verdict, verification.format, verification.step) == (Verdict.VERIFIED, "safetensors", 9)
    os.truncate(directory / "model.safetensors", 99)
    assert verify(str(directory)).verdict is Verdict.BAD
