"""The end of the log on a job's page: the newest lines of all ranks in the order of time, however they were rotated."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from supervisor.cli.jobs.log_end import LogLine, newest_lines

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_790_000_000.0


def write(path: Path, lines: list[tuple[float, bytes]], *, times: bool = True) -> None:
    """Write a stream as the guardian does: the lines, and a note of the time where each begins."""
    path.write_bytes(b"".join(line for _, line in lines))
    offsets = [0, *accumulate(len(line) for _, line in lines[:-1])]
    if times:
        notes = [f"{T0 + t:.1f} {offset}\n" for (t, _), offset in zip(lines, offsets, strict=True)]
        path.with_name(f"{path.name}.times").write_text("".join(notes))


def test_the_newest_lines_of_all_ranks_stand_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.out", [(0, b"a\n"), (2, b"c\n")])
    write(tmp_path / "rank-1.out", [(1, b"b\n"), (3, b"d\n")])
    write(tmp_path / "rank-1.err", [(4, b"KeyError: 'x'\n")])
    lines = newest_lines(tmp_path, None, 4)
    assert [(line.stream, line.text) for line in lines] == [
        ("rank 1", "b"),
        ("rank 0", "c"),
        ("rank 1", "d"),
        ("rank 1 err", "KeyError: 'x'"),
    ]
    assert [line.t for line in lines] == [T0 + 1, T0 + 2, T0 + 3, T0 + 4]
    assert [line.text for line in newest_lines(tmp_path, 0, 9)] == ["a", "c"]


def test_a_just_rotated_stream_continues_in_the_previous_part(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.out.1", [(number, b"%d\n" % number) for number in range(5)])
    write(tmp_path / "rank-0.out", [(5, b"5\n")])
    assert [line.text for line in newest_lines(tmp_path, None, 3)] == ["3", "4", "5"]


def test_only_whole_lines_from_the_end_of_a_long_stream_are_read(tmp_path: Path) -> None:
    write(
        tmp_path / "rank-0.out",
        [(number, b"line %06d of many, which is long enough to make the file large\n" % number) for number in range(20_000)],
    )
    lines = newest_lines(tmp_path, None, 60)
    assert [line.text[:11] for line in lines] == [f"line {number:06d}" for number in range(19_940, 20_000)]
    assert [line.t for line in lines] == [T0 + number for number in range(19_940, 20_000)], "by the newest of its notes"
    whole = newest_lines(tmp_path, None, 10**6)
    assert all(line.text.startswith("line ") and line.text.endswith("large") for line in whole)
    assert len(whole) < 5_000


def test_a_progress_bar_is_its_newest_state_and_lines_without_times_or_in_no_charset_are_shown(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.err", [(0, b"\r 1%|#  |\r 2%|## |\r\n"), (1, b"\xff\n"), (2, b"\n"), (3, b"not yet whole")], times=False)
    lines = newest_lines(tmp_path, None, 60)
    assert [line.text for line in lines] == [" 2%|## |", "\ufffd", "not yet whole"]
    assert {line.t for line in lines} == {None}


def test_without_output_there_is_no_line(tmp_path: Path) -> None:
    assert newest_lines(tmp_path / "0007", None, 60) == []
    (tmp_path / "rank-0.out").symlink_to("/etc/passwd")
    assert newest_lines(tmp_path, None, 60) == [], "a rank can make no other file its log"


def test_a_line_has_its_time_and_among_several_its_stream() -> None:
    line = LogLine(T0, "rank 0", "loss 1")
    assert line.rendered(has_stream=False).endswith(" loss 1")
    assert line.rendered(has_stream=True).endswith(" rank 0: loss 1")
    assert LogLine(None, "agent", "x").rendered(has_stream=True) == "agent: x"
