"""One item checks all rows of a parametrised test: no row is lost, and each that fails is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.tables import table_of

if TYPE_CHECKING:
    from pathlib import Path

CALLS: list[tuple[int, type]] = []


@pytest.mark.parametrize(("number", "limit"), [(1, 9), (2, 9), pytest.param(12, 9, id="too much"), (13, 9)])
@pytest.mark.parametrize("kind", [int, str])
def of_two_tables(number: int, limit: int, kind: type) -> None:
    CALLS.append((number, kind))
    assert number < limit, "beyond the limit"


def test_each_row_is_checked_and_those_that_fail_are_named() -> None:
    table = table_of(of_two_tables)
    assert table is not None
    CALLS.clear()
    with pytest.raises(pytest.fail.Exception) as failure:
        table()
    assert [(number, kind) for kind in (int, str) for number in (1, 2, 12, 13)] == CALLS
    message = str(failure.value)
    assert message.splitlines()[0] == "4 of 8 rows failed: int-too much; int-13-9; str-too much; str-13-9"
    assert message.count("AssertionError: beyond the limit") >= 4
    assert "assert number < limit" in message


def test_a_row_has_a_directory_and_patches_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROW", "none")
    seen = []

    @pytest.mark.parametrize("row", ["a", "b"])
    def rows(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen.append((pytest.MonkeyPatch is type(monkeypatch), list(tmp_path.iterdir())))
        (tmp_path / row).touch()
        monkeypatch.setenv("ROW", row)

    table = table_of(rows)
    assert table is not None
    table(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert seen == [(True, []), (True, [])]
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["a", "b"]


def test_rows_that_are_skipped_are_named_after_the_others_were_checked() -> None:
    @pytest.mark.parametrize("gpus", [0, 1], ids="{} GPUs".format)
    def rows(gpus: int) -> None:
        if not gpus:
            pytest.skip("needs a GPU")

    table = table_of(rows)
    assert table is not None
    with pytest.raises(pytest.skip.Exception, match="1 of 2 rows: 0 GPUs: needs a GPU"):
        table()


def test_a_table_without_a_row_fails() -> None:
    @pytest.mark.parametrize("row", [])
    def rows(row: str) -> None: ...

    table = table_of(rows)
    assert table is not None
    with pytest.raises(pytest.fail.Exception, match="the table has no row"):
        table()


def test_after_a_timeout_no_other_row_is_begun() -> None:
    begun = []

    @pytest.mark.parametrize("row", ["a", "b"])
    def rows(row: str) -> None:
        begun.append(row)
        pytest.fail("Timeout (>600.0s) from pytest-timeout.")

    table = table_of(rows)
    assert table is not None
    with pytest.raises(pytest.fail.Exception, match="Timeout") as failure:
        table()
    assert begun == ["a"]
    assert failure.value.__notes__ == ["in row a"]


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.slow,
        pytest.mark.process,
        pytest.mark.parametrize("other", [pytest.param(1, marks=pytest.mark.slow)]),
        pytest.mark.parametrize("other", [1], indirect=True),
        pytest.mark.parametrize("other", iter([1])),
    ],
    ids=["slow", "process", "a row has a mark", "indirect", "rows that are read once"],
)
def test_other_marks_keep_the_rows_apart(mark: pytest.MarkDecorator) -> None:
    @mark
    @pytest.mark.parametrize("row", [1, 2])
    def rows(row: int, other: int = 0) -> None: ...

    assert table_of(rows) is None


def test_so_does_a_fixture_that_is_not_made_anew_for_each_row() -> None:
    @pytest.mark.parametrize("row", [1, 2])
    def rows(row: int, capsys: object) -> None: ...

    assert table_of(rows) is None
