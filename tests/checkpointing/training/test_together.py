"""Ranks that save and load together: all go on, or all raise; and all load the same step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import preloaded

HERE = Path(__file__).parent

pytestmark = pytest.mark.process


def ranks(name: str, number: int, place: Path) -> list[dict[str, Any]]:
    """Run meeting.py as so many ranks; return what each saw."""
    done = preloaded.run(str(HERE / "meeting.py"), name, str(place), ranks=number, timeout_s=110)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(number)]
    if any("skip" in one for one in found):
        pytest.skip(f"no mount namespaces here: {found}")
    return found


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.slow
def test_rank_0_saves_for_all_and_what_fails_there_is_raised_on_all(tmp_path: Path) -> None:
    first, second = ranks("whole", 2, tmp_path)
    assert first["first"] == second["first"] == str(tmp_path / "ckpt" / "step-00000001.pt")
    assert "Error" in first["failed"][0]
    assert first["failed"][0] != "CheckpointingError"  # on the rank that failed its own error
    assert second["failed"][0] == "CheckpointingError"
    assert f"rank 0: {first['failed'][0]}" in second["failed"][1]
    assert float(second["failed"][2]) < 10
    assert names_in(tmp_path / "ckpt") == ["step-00000001.pt", "step-00000003.pt"]
    assert first["loaded"] == second["loaded"] == str(tmp_path / "ckpt" / "step-00000003.pt")
    assert second["from_rank"] == 0


def test_a_sharded_save_that_fails_on_one_rank_fails_on_all_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = ranks("sharded", 2, tmp_path)
    assert second["no_state"][:2] == ["ValueError", "no state today"]
    assert first["no_state"][0] == "CheckpointingError"
    assert "rank 1: ValueError: no state today" in first["no_state"][1]
    for one in (first, second):
        assert one["full"][0] == "CheckpointingError"
        assert "rank 1: " in one["full"][1]
        assert float(one["full"][2]) < 10
        assert one["equal"]
        assert one["step"] == 4
        assert "it is sharded" in one["no_target"][1]
    assert names_in(tmp_path / "ckpt") == ["step-00000004"]


@pytest.mark.slow
def test_ranks_do_not_wait_for_ever_for_one_that_does_not_come(tmp_path: Path) -> None:
    first, second = ranks("absent", 2, tmp_path)
    for one in (first, second):
        assert one["failed"][0] == "CheckpointingError"
        assert "only 1 of 2 ranks came within 1 s" in one["failed"][1]


def test_ranks_with_a_disk_of_their_own_load_the_newest_that_all_of_them_have_whole(tmp_path: Path) -> None:
    found = ranks("one_disk_each", 3, tmp_path)
    assert [(one["step"], one["of"]) for one in found] == [(1, 1)] * 3
    assert {path.rpartition("/")[2] for path, why in found[0]["passed_over"] if why == "not every rank has it whole"} == {
        "step-00000002.pt",
        "step-00000003.pt",
    }


@pytest.mark.slow
def test_a_sharded_save_on_disks_that_are_not_shared_fails_on_every_rank_before_anything_is_written(tmp_path: Path) -> None:
    first, second = ranks("sharded_on_one_disk_each", 2, tmp_path)
    assert first["failed"][0] == second["failed"][0] == "CheckpointingError"
    assert "not every rank sees what rank 0 writes there" in first["failed"][1]
    assert "rank 1 does not see what rank 0 writes there" in second["failed"][1]
    assert (first["then"], second["then"]) == ([], []), "the ranks go on together"
    assert (first["left"], second["left"]) == (["step-00000002.pt"], [])


@pytest.mark.slow
def test_a_rank_that_cannot_load_stops_the_others(tmp_path: Path) -> None:
    first, second = ranks("alone_in_trouble", 2, tmp_path)
    assert first["failed"][0] == second["failed"][0] == "CheckpointingError"
    assert "rank 1: " in first["failed"][1]
    assert first["then"] == second["then"] == 1
