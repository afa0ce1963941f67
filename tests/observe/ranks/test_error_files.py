"""Which error files are evidence, and which are not."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core.model import Phase, RankInfo
from supervisor.instrument._supervise_shim.layout import file_name
from supervisor.observe.ranks import error_files

if TYPE_CHECKING:
    from pathlib import Path

RANK = RankInfo(rank=4, local_rank=0, pid=77, start_ticks=1000)
GOOD: dict[str, Any] = {
    "v": 1,
    "pid": 77,
    "start_ticks": 1000,
    "rank": 4,
    "local_rank": 0,
    "exc_type": "builtins.ValueError",
    "message": "m",
    "traceback": "t",
    "phase": "train",
    "steps": 3,
    "step": None,
    "t_ns": 50,
    "wall": 1.5,
}


def _write(directory: Path, name: str = "error-0-77.json", **changed: Any) -> Path:  # noqa: ANN401 - any value of JSON
    path = directory / name
    path.write_text(json.dumps(GOOD | changed))
    return path


def test_a_rank_s_file_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path)
    (error,) = error_files.read(tmp_path, [RANK]).errors
    assert (error.path, error.rank, error.exc_type, error.phase, error.step) == (str(path), 4, "builtins.ValueError", Phase.TRAIN, None)


def test_first_in_time_comes_first(tmp_path: Path) -> None:
    other = RankInfo(rank=5, local_rank=1, pid=78, start_ticks=1001)
    _write(tmp_path, t_ns=60)
    _write(tmp_path, "error-1-78.json", pid=78, start_ticks=1001, local_rank=1, rank=5, t_ns=40)
    assert [error.rank for error in error_files.read(tmp_path, [RANK, other]).errors] == [5, 4]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"start_ticks": 999}, "was not a rank"),
        ({"pid": 78}, "name does not match its content"),
        ({"local_rank": 1}, "name does not match its content"),
        ({"v": 2}, "another version"),
        ({"phase": "dancing"}, "not readable"),
        ({"pid": "x"}, "not readable"),
        ({"rank": []}, "not readable"),
        ({"message": "x" * 300_000}, "bytes"),
    ],
)
def test_a_file_that_proves_nothing_is_passed_over_and_why_is_reported(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    _write(tmp_path, **changed)
    scan = error_files.read(tmp_path, [RANK])
    assert scan.errors == ()
    assert [reason in ignored.reason for ignored in scan.ignored] == [True], scan.ignored


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"v": 1}'])
def test_half_and_foreign_content_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "error-0-77.json").write_bytes(content)
    scan = error_files.read(tmp_path, [RANK])
    assert (scan.errors, len(scan.ignored)) == ((), 1)


def test_links_pipes_and_folders_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps(GOOD))
    (tmp_path / "error-0-77.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "error-1-78.json")
    (tmp_path / "error-2-79.json").mkdir()
    scan = error_files.read(tmp_path, [RANK])
    assert (scan.errors, len(scan.ignored)) == ((), 3)


def test_other_processes_count_only_where_no_rank_wrote(tmp_path: Path) -> None:
    alone = {"local_rank": None, "rank": None, "pid": 90, "message": "launcher"}
    _write(tmp_path, "error-unclaimed-90.json", **alone)
    assert [error.message for error in error_files.read(tmp_path, [RANK]).errors] == ["launcher"]
    _write(tmp_path)
    scan = error_files.read(tmp_path, [RANK])
    assert [error.message for error in scan.errors] == ["m"]
    assert [error.message for error in scan.unclaimed] == ["launcher"]


def test_no_directory_is_no_evidence(tmp_path: Path) -> None:
    assert error_files.read(tmp_path / "missing", [RANK]) == error_files.ErrorScan((), (), ())


def test_an_error_older_than_the_attempt_is_of_another_run(tmp_path: Path) -> None:
    _write(tmp_path, t_ns=50)
    _write(
        tmp_path, file_name("error", None, 78), pid=78, local_rank=None, rank=None, t_ns=50
    )  # a launcher's, which nothing else ties to an attempt
    assert error_files.read(tmp_path, [RANK], since_ns=50).errors
    scan = error_files.read(tmp_path, [RANK], since_ns=51)
    assert (scan.errors, scan.unclaimed) == ((), ())
    assert {"it was written before this attempt began"} == {ignored.reason for ignored in scan.ignored}
