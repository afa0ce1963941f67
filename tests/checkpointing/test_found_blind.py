"""What checkpoints of the real libraries, and damage to them that nobody had thought of before, taught us: one row each."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed.checkpoint as dcp

from checkpointing import examine
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from pathlib import Path


def save(path: Path, **content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": {"w": torch.randn(64, 64)}, **content}, path)
    return path


def optimizer(step: int) -> dict[str, object]:
    return {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.zeros(8, 8)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


@pytest.mark.parametrize("protocol", range(6))
def test_tensors_in_a_plain_pickle_of_any_protocol_run_no_code(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "step_100.pt"
    path.write_bytes(pickle.dumps({"w": torch.randn(300, 300)}, protocol=protocol))
    assert verify(str(path)).verdict is Verdict.UNVERIFIABLE


def test_a_bomb_within_bytes_that_are_written_as_text_is_seen(tmp_path: Path) -> None:
    inner = b"cposix\nsystem\n(S'true'\ntR." + b"x" * 300
    path = tmp_path / "step_100.pt"
    text = inner.decode("latin1").encode()
    encoded = b"c_codecs\nencode\nX" + len(text).to_bytes(4, "little") + text + b"X\x06\x00\x00\x00latin1\x86R"
    path.write_bytes(b"\x80\x02ctorch.storage\n_load_from_bytes\n" + encoded + b"\x85R.")
    assert verify(str(path)).verdict is Verdict.DANGEROUS


def test_numbers_of_one_byte_are_looked_at(tmp_path: Path) -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        numbers = torch.randn(40, 40)
        path = tmp_path / "fp8.pt"
        torch.save({"w": numbers.to(dtype)}, path)
        assert verify(str(path)).verdict is Verdict.VERIFIED
        numbers[3, 3] = float("nan")
        torch.save({"w": numbers.to(dtype)}, path)
        assert [(finding.tensor, finding.what, finding.element) for finding in verify(str(path)).non_finite or ()] == [("w", "NaN", 123)]


@pytest.mark.parametrize(("name", "content", "note"), [
    ("step_200.pt", {"step": 100}, "its name says step 200, its content 100"),
    ("iter_0000200.pt", {"iter_num": 100}, "its name says step 200, its content 100"),
    ("epoch=1-step=200.ckpt", {"global_step": 100, "epoch": 1, "pytorch-lightning_version": "2.6"},
     "its name says 200, its content step 100"),
    ("step_200.pt", {"step": 199}, "its name says step 200, its content 199"),
    ("step_200.pt", {"step": 50, "epoch": 1}, "its name says step 200, its content 50"),
    ("step_200.pt", {"num_steps": 10000}, "its name says step 200, its content 10000"),
    ("epoch_2_step_200.pt", {"step": 100, "epoch": 2}, ""),
    ("ckpt-200.pt", {"step": 100}, "its name says 200, its content step 100"),
    ("model_world_size_4.pt", {"step": 100}, ""),
])  # fmt: skip
def test_a_name_of_another_step_is_noted_and_the_content_counts_for_verify_as_for_latest(
    tmp_path: Path, name: str, content: dict[str, object], note: str
) -> None:
    path = save(tmp_path / name, **content)
    (verification,) = examine.look(str(path))
    chosen = examine.latest(str(tmp_path)).chosen
    assert (verification.verdict, verification.reason) == (Verdict.VERIFIED, note)
    assert chosen is not None
    assert (chosen.path, chosen.verdict, chosen.reason, chosen.step) == (str(path), verification.verdict, note, verification.step)


def test_numbering_that_begins_anew_makes_no_checkpoint_a_bad_one(tmp_path: Path) -> None:
    for step, content in ((20, 20), (40, 40), (60, 20)):
        save(tmp_path / f"step_{step}.pt", step=content)
    assert {verification.verdict for verification in examine.look(str(tmp_path))} == {Verdict.VERIFIED}
    chosen = examine.latest(str(tmp_path)).chosen
    assert chosen is not None
    assert chosen.path.endswith("step_60.pt")


def test_files_of_each_rank_whose_names_have_the_ranks_in_two_ways(tmp_path: Path) -> None:
    for rank in range(2):
        save(tmp_path / "step_10" / f"model_rank_{rank}.pt", step=10)
        save(tmp_path / "step_10" / f"optimizer_world_size_2_rank_{rank}.pt", step=10)
    (verification,) = examine.look(str(tmp_path / "step_10"))
    assert (verification.verdict, verification.format, verification.step) == (Verdict.VERIFIED, "fsdp", 10)
    save(tmp_path / "step_10" / "model_rank_1.pt", step=20)
    assert [entry.verdict for entry in examine.look(str(tmp_path / "step_10"))] == [Verdict.BAD]


def test_a_zero_shard_of_another_step_is_recognised_by_the_optimizers_own_count(tmp_path: Path) -> None:
    directory = tmp_path / "global_step10"
    save(directory / "mp_rank_00_model_states.pt", dp_world_size=2, mp_world_size=1, global_steps=10, param_shapes=[1])
    for rank, step in ((0, 10), (1, 10), (1, 20)):
        state = {"base_optimizer_state": optimizer(step), "partition_count": 2}
        torch.save({"optimizer_state_dict": state}, directory / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        wanted = Verdict.INCOMPLETE if rank == 0 else Verdict.VERIFIED if step == 10 else Verdict.BAD
        assert verify(str(directory)).verdict is wanted


@pytest.mark.parametrize(("counted", "verdict"), [(20, Verdict.VERIFIED), (10, Verdict.BAD), (1, Verdict.VERIFIED), (17, Verdict.VERIFIED)])
def test_a_trainers_optimizer_of_another_save(tmp_path: Path, counted: int, verdict: Verdict) -> None:
    directory = tmp_path / "checkpoint-20"
    save(directory / "pytorch_model.bin")
    torch.save(optimizer(counted), directory / "optimizer.pt")
    torch.save({"last_epoch": 20}, directory / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, directory / "rng_state.pth")
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": 20, "save_steps": 10}))
    assert verify(str(directory)).verdict is verdict
    (directory / "optimizer.pt").unlink()
    (directory / "optimizer.pt").mkdir()
    assert verify(str(directory)).verdict is Verdict.INCOMPLETE


def test_shards_of_torchs_own_are_held_against_their_index(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for name, key in zip(names, "ab", strict=True):
        torch.save({key: torch.randn(9, 9)}, tmp_path / name)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    assert verify(str(tmp_path)).verdict is Verdict.VERIFIED
    index.write_text(json.dumps({"weight_map": {"a": names[0]}}))
    assert verify(str(tmp_path)).verdict is Verdict.BAD
    index.write_text(json.dumps({"weight_map": {"a": names[1], "b": names[0]}}))
    assert verify(str(tmp_path)).verdict is Verdict.BAD


def test_a_megatron_save_killed_before_its_shards_is_incomplete(tmp_path: Path) -> None:
    path = save(tmp_path / "iter_0000010" / "common.pt", iteration=10)
    assert [(verification.path, verification.verdict) for verification in examine.look(str(path.parent))] == [
        (str(path.parent), Verdict.INCOMPLETE)
    ]


def test_a_temporary_file_that_is_a_torn_zip_is_a_leftover(tmp_path: Path) -> None:
    save(tmp_path / "step_100.pt")
    (tmp_path / "step_200.pt.tmp").write_bytes(b"PK\x03\x04")
    assert [verification.verdict for verification in examine.look(str(tmp_path))] == [Verdict.VERIFIED, Verdict.INCOMPLETE]


def test_a_pickle_that_names_a_code_downloading_module_is_dangerous(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"ctransformers.dynamic_module_utils\nget_class_from_dynamic_module\n(tR.")
    assert verify(str(path)).verdict is Verdict.DANGEROUS
    path.write_bytes(b"\x80\x02c__builtin__\nlong\nK\x01\x85R0c__builtin__\nxrange\nK\x01\x85R.")
    assert verify(str(path)).verdict is Verdict.UNVERIFIABLE


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("content", [b"", b'{"sharded_backend": "torch', b"<html>error</html>", b"[]"])
def test_megatrons_metadata_of_its_shards_is_read(tmp_path: Path, content: bytes) -> None:
    directory = tmp_path / "iter_0000010"
    dcp.save({"w": torch.randn(9, 9)}, checkpoint_id=str(directory), no_dist=True)
    torch.save({"iteration": 10}, directory / "common.pt")
    (directory / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    assert verify(str(directory)).verdict is Verdict.VERIFIED
    (directory / "metadata.json").write_bytes(content)
    assert verify(str(directory)).verdict is Verdict.BAD
    (directory / "metadata.json").write_text("{}")
    (directory / "common.pt").unlink()
    assert verify(str(directory)).verdict is Verdict.INCOMPLETE


def test_a_large_pickle_of_few_objects_is_read(tmp_path: Path) -> None:
    path = save(tmp_path / "step_100.pt", step=100, replay=bytes(40 << 20))
    verification = verify(str(path))
    assert (verification.verdict, verification.step) == (Verdict.VERIFIED, 100)
