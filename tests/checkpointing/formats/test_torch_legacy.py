"""The layout of a legacy file says to the byte how long it is, and nothing in it is executed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def legacy(path: Path, value: object, protocol: int = 2) -> bytes:
    torch.save(value, path, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    return path.read_bytes()


class Planted:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        """Have pickle call os.system."""
        return os.system, (self.command,)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_object_saved_by_torch_is_verified(sound_object: object, tmp_path: Path) -> None:
    if isinstance(sound_object, dict) and getattr(sound_object.get("w"), "is_meta", False):
        pytest.skip("not for a meta tensor: torch itself cannot save one in this format")
    path = tmp_path / "any.pt"
    legacy(path, sound_object)
    verification = verify(str(path))
    assert (verification.verdict, verification.reason, verification.level, verification.format) == (
        Verdict.VERIFIED,
        "",
        "layout",
        "torch_legacy",
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_step_of_each_pickle_protocol(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    legacy(path, {"global_step": 70000, "w": torch.ones(2)}, protocol)
    verification = verify(str(path))
    assert (verification.verdict, verification.step) == (Verdict.VERIFIED, 70000)


def test_every_truncation_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    content = legacy(path, {"step": 3, "a": torch.randn(40), "b": torch.arange(9)})
    for length in range(len(content) - 1, -1, -1):
        os.truncate(path, length)
        assert verify(str(path)).verdict is not Verdict.VERIFIED, length
        if length > 20:  # of the magic number enough is left to know it
            assert verify(str(path)).verdict is Verdict.BAD, length


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"x" * 5000])
def test_bytes_behind_are_bad(junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(legacy(path, {"a": torch.randn(40)}) + junk)
    assert verify(str(path)).verdict is Verdict.BAD


def test_a_tail_of_zeros_that_reaches_a_count_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    content = legacy(path, {"a": torch.randn(40), "b": torch.randn(4)})
    path.write_bytes(content[:-180] + bytes(180))
    assert verify(str(path)).verdict is Verdict.BAD


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_that_are_none_are_a_note(number: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    values = torch.randn(40)
    values[7] = float(number)
    legacy(path, {"a": values})
    verification = verify(str(path))
    assert (verification.verdict, verification.level) == (Verdict.VERIFIED, "layout")
    assert "a is not finite" in verification.reason


def test_planted_code_never_runs(tmp_path: Path) -> None:
    path, trace = tmp_path / "x.pt", tmp_path / "ran"
    legacy(path, {"evil": Planted(f"touch {trace}"), "w": torch.ones(3)})
    assert verify(str(path)).verdict is Verdict.DANGEROUS
    path.write_bytes(path.read_bytes()[:-5])
    assert verify(str(path)).verdict is Verdict.DANGEROUS  # also when it is torn: it would have run by then
    assert not trace.exists()


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_unused_values_of_a_storage_are_not_judged(new: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    path = tmp_path / "x.pt"
    memory = torch.full((100,), float("nan"))
    memory[20:30] = torch.arange(10.0)
    torch.save({"w": memory[20:30]}, path, _use_new_zipfile_serialization=new)
    assert verify(str(path)).verdict is Verdict.VERIFIED
    assert verify(str(path)).non_finite == ()
    torch.save({"w": memory[20:31]}, path, _use_new_zipfile_serialization=new)
    verification = verify(str(path))
    assert (verification.verdict, verification.reason) == (Verdict.VERIFIED, "w is not finite: NaN at element 10")
