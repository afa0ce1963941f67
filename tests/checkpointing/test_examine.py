"""What checkpoints a path stands for: each once, leftovers as rows of their own, and never a hang."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing import discover, examine, select

from .corruptions import sound

if TYPE_CHECKING:
    from pathlib import Path


def rows(path: Path) -> dict[str, str]:
    return {os.path.relpath(verification.path, path): examine.word(verification.verdict) for verification in examine.look(str(path))}


def test_a_directory_stands_for_its_files(tmp_path: Path) -> None:
    for step in (1, 2):
        torch.save({"global_step": step}, tmp_path / f"step_{step}.pt")
    (tmp_path / "latest.pt").symlink_to("step_2.pt")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.pt").write_text("x")
    assert rows(tmp_path) == {"step_1.pt": "good", "step_2.pt": "good"}


def test_leftovers_are_rows_of_their_own(tmp_path: Path) -> None:
    sound.hf_trainer(tmp_path)
    (tmp_path / "checkpoint-800").mkdir()
    (tmp_path / "tmp-checkpoint-900").mkdir()
    (tmp_path / "tmp-checkpoint-900" / "optimizer.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "step_3.pt.tmp").touch()
    incomplete = dict.fromkeys(("checkpoint-800", "tmp-checkpoint-900", "step_3.pt.tmp"), "incomplete")
    assert rows(tmp_path) == {"checkpoint-500": "good", **incomplete}


def test_an_unreadable_path_is_a_row_and_no_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt")
    (tmp_path / "b.pt").symlink_to("b.pt")
    (tmp_path / "c.pt").symlink_to("nowhere.pt")
    (tmp_path / "d").symlink_to(tmp_path)
    assert set(rows(tmp_path).values()) == {"unverifiable"}
    assert rows(tmp_path / "absent") == {".": "unverifiable"}
    assert rows(tmp_path / "b.pt") == {".": "unverifiable"}


def test_an_empty_directory_is_incomplete(tmp_path: Path) -> None:
    assert rows(tmp_path) == {".": "incomplete"}


@pytest.mark.filterwarnings("ignore::UserWarning")  # DCP's, of a save without ranks
@pytest.mark.parametrize("name", sound.FORMATS)
def test_steps_of_each_format_stand_beside_each_other(name: str, tmp_path: Path) -> None:
    for step in (100, 300, 200):
        sound.FORMATS[name](tmp_path, step)
    verifications = list(examine.look(str(tmp_path)))
    assert {examine.word(verification.verdict) for verification in verifications} == {"good"}
    selected = select.newest(discover.find_in(str(tmp_path)))
    assert selected.chosen is not None
    assert (selected.chosen.step, [step for _, step in selected.older]) == (300, [100, 200])
