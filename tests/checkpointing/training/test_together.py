"""Ranks that save and load together: all continue, or all raise; and all load the same step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import preloaded

HERE = Path(__file__).parent

pytestmark = pytest.mark.process


def ranks(name: str, number: int, place: Path) -> list[dict[str, Any]]:
    """Run meeting.py as so many ranks; return what each saw."""
    done = preloaded.run(str(HERE / "meeting.py"), name, str(place), ranks=number)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(number)]
    if any("skip" in report for report in reports):
        pytest.skip(f"needs a mount namespace (`unshare --mount`): run as root: {reports}")
    return reports


def seen_by(name: str, number: int, place: Path, *rank_numbers: int) -> list[dict[str, Any]]:
    """Run meeting.py as so many ranks, not all of which end well; return what some of them saw."""
    preloaded.run(str(HERE / "meeting.py"), name, str(place), ranks=number)
    return [json.loads((place / f"rank-{rank}.json").read_text()) for rank in rank_numbers]


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.slow
def test_rank_0_saves_for_all_and_its_failure_is_raised_on_all(tmp_path: Path) -> None:
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
    for report in (first, second):
        assert report["full"][0] == "CheckpointingError"
        assert "rank 1: " in report["full"][1]
        assert float(report["full"][2]) < 10
        assert report["equal"]
        assert report["step"] == 4
        assert "it is sharded" in report["no_target"][1]
    assert names_in(tmp_path / "ckpt") == ["step-00000004"]


@pytest.mark.slow
def test_ranks_do_not_wait_forever_for_an_absent_rank(tmp_path: Path) -> None:
    first, second = ranks("absent", 2, tmp_path)
    for report in (first, second):
        assert report["failed"][0] == "CheckpointingError"
        assert "only 1 of 2 ranks came within 1 s" in report["failed"][1]


def test_ranks_with_a_disk_of_their_own_load_the_newest_that_all_of_them_have_whole(tmp_path: Path) -> None:
    reports = ranks("one_disk_each", 3, tmp_path)
    assert [(report["step"], report["of"]) for report in reports] == [(1, 1)] * 3
    assert {path.rpartition("/")[2] for path, why in reports[0]["passed_over"] if why == "not every rank has it whole"} == {
        "step-00000002.pt",
        "step-00000003.pt",
    }


@pytest.mark.slow
def test_a_sharded_save_on_disks_that_are_not_shared_fails_on_every_rank_before_anything_is_written(tmp_path: Path) -> None:
    first, second = ranks("sharded_on_one_disk_each", 2, tmp_path)
    assert first["failed"][0] == second["failed"][0] == "CheckpointingError"
    assert "not every rank sees what rank 0 writes there" in first["failed"][1]
    assert "rank 1 does not see what rank 0 writes there" in second["failed"][1]
    assert (first["then"], second["then"]) == ([], []), "the ranks continue together"
    assert (first["left"], second["left"]) == (["step-00000002.pt"], [])


@pytest.mark.slow
def test_a_rank_that_cannot_load_stops_the_others(tmp_path: Path) -> None:
    first, second = ranks("alone_in_trouble", 2, tmp_path)
    assert first["failed"][0] == second["failed"][0] == "CheckpointingError"
    assert "rank 1: " in first["failed"][1]
    assert first["then"] == second["then"] == 1


# a save that not every rank makes: `if rank == 0: save(...)`


def test_a_late_rank_is_named_with_its_line_in_a_warning_and_the_save_succeeds(tmp_path: Path) -> None:
    *others, late = ranks("rank_late", 4, tmp_path)
    (warning,) = others[0]["warned"]
    assert warning.startswith(f"checkpoint was not saved: {tmp_path}/ckpt/step-00000001.pt: it still waits: only 3 of 4 ranks came within ")
    assert "rank 3 did not: it is at meeting.py:" in warning
    assert warning.endswith("in rank_late")
    assert [seen["warned"] for seen in (*others[1:], late)] == [[], [], []], "one rank warns for all"
    assert [seen["failed"] for seen in (*others, late)] == [[]] * 4
    assert names_in(tmp_path / "ckpt") == ["step-00000001.pt"]


@pytest.mark.slow
def test_a_save_of_rank_0_alone_warns_and_fails_at_the_time_limit_of_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_TIMEOUT_S", "4")
    (first,) = seen_by("rank_0_alone", 4, tmp_path, 0)
    error, text, after_s = first["failed"]
    assert error == "CheckpointingError"
    assert float(after_s) >= 4
    for line in (text, *first["warned"]):
        assert "only 1 of 4 ranks came within " in line
        for rank in (1, 2, 3):
            assert f"rank {rank} did not: it is at meeting.py:" in line
    assert len(first["warned"]) == 1
    assert "will not come" not in text
    assert names_in(tmp_path / "ckpt") == ["step-00000001.pt"], "what rank 0 wrote stays"


@pytest.mark.parametrize(
    ("name", "number", "why"),
    [
        ("rank_in_a_collective", 4, "it is at meeting.py:"),
        pytest.param("rank_dead", 2, "its process is gone", marks=pytest.mark.slow),
    ],
)
def test_a_save_to_which_a_rank_can_never_come_is_an_error_long_before_the_time_limit(
    name: str, number: int, why: str, tmp_path: Path
) -> None:
    (first,) = seen_by(name, number, tmp_path, 0)
    error, text, after_s = first["failed"]
    assert error == "CheckpointingError"
    assert f"rank 1 did not: {why}" in text
    assert text.endswith("; it will not come here")
    assert float(after_s) < 60 * 0.5


@pytest.mark.slow
def test_ranks_in_different_calls_fail_and_continue_after_the_error(tmp_path: Path) -> None:
    first, second = ranks("rank_in_another_call", 2, tmp_path)
    assert first["failed"][0] == second["failed"][0] == "CheckpointingError"
    assert "checkpoint was not saved: " in first["failed"][1]
    assert "no checkpoint was loaded from " in second["failed"][1]
    assert first["then"] == second["then"] == str(tmp_path / "ckpt" / "step-00000002.pt")


@pytest.mark.slow
def test_the_time_limit_of_the_group_does_not_cut_a_save_that_rank_0_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_TIMEOUT_S", "2")
    for seen in ranks("rank_0_writes_long", 2, tmp_path):
        assert (seen["failed"], seen["warned"]) == ([], [])


# one read for all ranks


def save_both_forms(place: Path) -> None:
    """Save a state of about 40 MB, which several pieces hold, as torch saves it now and as it did before version 1.6."""
    state = {"model": {f"layer{number}": torch.randn(380_000) for number in range(25)}, "step": 7}
    for name in ("zip", "legacy"):
        (place / name).mkdir()
        torch.save(state, place / name / "step-7.pt", _use_new_zipfile_serialization=name == "zip")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return what each rank of one group saw in each of several functions."""
    place = tmp_path_factory.mktemp("sent")
    save_both_forms(place)
    reports = ranks("sent", 3, place)
    return {name: [report[name] for report in reports] for name in reports[0]}


def test_one_rank_reads_a_file_and_the_others_get_it(sent: dict[str, list[dict[str, Any]]]) -> None:
    first, *others = sent["read_once"]
    for name in ("zip", "legacy"):
        assert first[name]["share"] < 2.1, "once to verify it, and once for all"
        for seen in others:
            assert seen[name]["share"] < 0.05
        for seen in (first, *others):
            assert (seen[name]["equal"], seen[name]["step"]) == (True, 7)


def test_one_rank_reads_the_shards_of_a_state_that_all_ranks_have_alike(sent: dict[str, list[dict[str, Any]]]) -> None:
    first, *others = sent["read_once_in_shards"]
    assert first["share"] < 2.3, "once to verify it, and once for all"
    for seen in others:
        assert seen["share"] < 0.1
        assert "rank 0: " in seen["lacking"][1]
    for seen in (first, *others):
        assert (seen["equal"], seen["in_place"], seen["step"], seen["names"]) == (True, True, 7, ["a", "b"])
        assert seen["lacking"][0] == "CheckpointingError"


def test_a_load_that_fails_on_one_rank_ends_on_all_and_they_continue(sent: dict[str, list[dict[str, Any]]]) -> None:
    first, second, third = seen = sent["sent_in_vain"]
    assert second["not_taken"][0] == "CheckpointingError"
    assert "rank 1: CheckpointingError: checkpoint could not be loaded" in first["not_taken"][1]
    assert "it could not be read: Input/output error" in first["not_read"][1]
    assert "rank 0" in third["not_read"][1]
    assert [rank["then"] for rank in seen] == [7, 7, 7]


@pytest.mark.slow
def test_a_rank_that_dies_while_the_file_is_sent_ends_the_load_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the dead rank learns of it at once; who waits for one that gave up, at the time limit of the group."""
    monkeypatch.setenv("GROUP_TIMEOUT_S", "5")
    save_both_forms(tmp_path)
    for seen in seen_by("sent_to_the_dead", 3, tmp_path, 0, 1):
        error, text, after_s = seen["failed"]
        assert error == "CheckpointingError"
        assert "step-7.pt: a rank is gone: " in text
        assert float(after_s) < 30
