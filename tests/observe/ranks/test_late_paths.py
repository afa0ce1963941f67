"""Which paths a rank raced another one for: those that are there by now, of a failure that they explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import Evidence
from supervisor.observe.ranks.late_paths import evidence

if TYPE_CHECKING:
    from pathlib import Path

MISSING, MADE = "FileNotFoundError: [Errno 2] No such file or directory", "FileExistsError: [Errno 17] File exists"


def named(place: Path, text: str, *, since_s: float = 0.0) -> list[tuple[str, int | None]]:
    """Return the paths that are named for an exception of rank 1, with the rank."""
    facts = evidence(place, since_s, [Evidence("error_file", "exception", text, 1, 5.0)])
    return [(fact.text, fact.rank) for fact in facts]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory that holds `there`."""
    (tmp_path / "there").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        f"{MISSING}: 'there'",
        f"{MISSING}: './there'",
        f"{MISSING}: 'there' -> 'elsewhere'",
        f'{MISSING}: "there"',
        "OSError: [Errno 116] Stale file handle: 'there'",
        f"{MADE}: 'there'",
        f"builtins.{MISSING}: 'there'",
    ],
)
def test_a_path_that_is_there_by_now_was_raced_for(place: Path, text: str) -> None:
    ((path, rank),) = named(place, text)
    assert (path.removeprefix("./"), rank) == ("there", 1)


def test_an_absolute_path_is_looked_at_as_it_is(place: Path) -> None:
    assert named(place / "there", f"{MISSING}: '{place}/there'") == [(f"{place}/there", 1)]


@pytest.mark.parametrize(
    "text",
    [
        f"{MISSING}: 'missing'",
        "PermissionError: [Errno 13] Permission denied: 'there'",
        "IsADirectoryError: [Errno 21] Is a directory: 'there'",
        "ValueError: there",
        f"{MISSING}",
        f"{MISSING}: 'a\0b'",
    ],
)
def test_a_missing_or_unrelated_path_is_no_race(place: Path, text: str) -> None:
    assert not named(place, text)


def test_a_path_made_before_the_attempt_is_no_race(place: Path) -> None:
    made_s = (place / "there").stat().st_ctime
    assert named(place, f"{MADE}: 'there'", since_s=made_s - 1)
    assert not named(place, f"{MADE}: 'there'", since_s=made_s + 1)
    assert named(place, f"{MISSING}: 'there'", since_s=made_s + 1), "a server may show it late"
