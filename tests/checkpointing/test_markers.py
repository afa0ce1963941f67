"""Each marker by which a framework tells an unfinished save: what it marks is not whole, whatever its bytes are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing import examine, markers, step_names
from checkpointing.candidates import SelectionOptions
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.formats import pointer_files
from checkpointing.markers import MARKERS, MarkerKind
from checkpointing.model import Verdict
from checkpointing.rejections import Rejections
from checkpointing.select import newest
from checkpointing.verification import verify

if TYPE_CHECKING:
    from checkpointing.markers import Marker

NAMES = {r"\.tmp(?:[-.].*)?$": "step-40.pt.tmp", r"\.partial$": "step-40.pt.partial", r"\.incomplete$": "step-40.pt.incomplete"}
NAMES |= {r"^\.?tmp-": "tmp-checkpoint-40", r"-unfinished$": "step=40-last-unfinished"}


def saved(path: Path, step: int) -> Path:
    """Write a whole checkpoint: a file, or a directory with weights and optimizer."""
    files = [path] if path.suffix else [path / "model.pt", path / "optim.pt"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"step": step, "w": torch.ones(4)}, file)
    return path


@pytest.mark.parametrize("row", markers.of(MarkerKind.NAME), ids=lambda row: row.form)
def test_a_marked_name_is_no_checkpoint(row: Marker, tmp_path: Path) -> None:
    name = NAMES[row.form]
    assert step_names.is_temporary(name)
    saved(tmp_path / f"{name}.pt", 40).rename(tmp_path / name)
    assert find("*", str(tmp_path)).candidates == ()


@pytest.mark.parametrize("name", ["step-40.pt", "step=40-last", "step=40-last.ckpt", "tp_rank_00_pp_rank_000/step=40-last.ckpt"])
def test_a_save_with_nemos_marker_beside_it_is_not_whole_until_the_marker_is_gone(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "ckpt" / name, 40)
    older = saved(tmp_path / "ckpt" / "step-20.pt", 20)
    plain = Path(name).name.removesuffix(".ckpt")
    marker = tmp_path / "ckpt" / f"{plain}-unfinished"
    rejections = Rejections(CheckpointCatalogue(tmp_path / "records", is_writer=True))
    patterns = [str(tmp_path / "ckpt" / ("*/*" if "/" in name else "*")), str(older)]
    marker.touch()
    verification = verify(str(path))
    assert (verification.verdict, verification.step) == (Verdict.WRITING, 40)
    assert verification.reason == f"{marker.name} lies next to it: to nemo the save has not ended until that file is removed"
    assert examine.word(verification.verdict) == "incomplete"
    selection = newest(find(patterns), SelectionOptions(rejections=rejections))
    assert selection.chosen is not None
    assert selection.chosen.path == str(older)
    assert selection.notes == (f"checkpoint passed over: {path}: {verification.reason}",)
    marker.unlink()
    assert verify(str(path)).verdict is Verdict.VERIFIED
    again = newest(find(patterns), SelectionOptions(rejections=rejections))
    assert again.chosen is not None
    assert again.chosen.path == str(path), "the mark was no part of its content, so nothing is rejected"


def test_a_directory_that_is_named_like_nemos_marker_marks_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path / "runs" / "step-40.pt", 40)
    (tmp_path / "runs-unfinished").mkdir()
    assert verify(str(path)).verdict is Verdict.VERIFIED


@pytest.mark.parametrize(
    ("save", "tracker", "content"),
    [
        ("iter_0000040", "latest_checkpointed_iteration.txt", "40"),
        ("global_step_40", "latest_checkpointed_iteration.txt", "40"),
        ("global_step_40/actor/model_world_size_2_rank_0.pt", "latest_checkpointed_iteration.txt", "40"),
        ("global_step40", "latest", "global_step40"),
    ],
)
def test_a_tracker_that_is_missing_is_named_with_what_it_would_hold(tmp_path: Path, save: str, tracker: str, content: str) -> None:
    path = tmp_path / save
    path.mkdir(parents=True)
    assert markers.missing_tracker(str(path)) == (str(tmp_path / tracker), content)
    (tmp_path / tracker).write_text(content)
    assert markers.missing_tracker(str(path)) is None
    pointer = pointer_files.read(str(tmp_path))
    assert pointer is not None
    assert (pointer.target, pointer.problem) == (save.partition("/")[0], "")


@pytest.mark.parametrize("save", ["step-40.pt", "checkpoint-40", "global_step_040", "epoch_1"])
def test_a_save_of_another_name_has_no_tracker(save: str) -> None:
    assert markers.missing_tracker(f"/ckpt/{save}") is None


def test_each_row_has_a_source_and_a_test() -> None:
    assert all(row.source for row in MARKERS)
    assert set(NAMES) == {row.form for row in markers.of(MarkerKind.NAME)}
