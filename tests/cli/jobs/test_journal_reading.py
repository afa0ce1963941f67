"""A journal that is read bit by bit, as it grows, is what the whole file is; a file that was replaced or cut is read anew."""

from __future__ import annotations

import os
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from supervisor.errors import SuperviseError
from supervisor.journal.records import encode, frame, scan
from supervisor.view.job_view import fold
from supervisor.view.reading import ViewFollower, read_view
from tests.report.ledger.test_simulated import recorded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.recorded_job import RecordedJob


def assert_is_whole(reading: ViewFollower, path: Path) -> None:
    assert reading.view == read_view(path)
    assert reading.view.ledgers() == fold(scan(path)).ledgers()
    assert reading.view.ledgers(2e9) == fold(scan(path)).ledgers(2e9)


@pytest.mark.parametrize("number", range(4))
def test_a_journal_that_grows_is_at_each_moment_what_the_whole_file_is(tmp_path: Path, number: int) -> None:
    lines = b"".join(encode(record.seq, record.t, record.t, record.body) for record in recorded(7, number) if record.body is not None)
    path, rng = tmp_path / "journal.jsonl", Random(number)  # noqa: S311  no secret
    reading = ViewFollower(path)
    assert not reading.advance(), "there is no file yet"
    cuts = sorted(rng.sample(range(1, len(lines)), 12))  # hardly ever between two lines
    for begin, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        with path.open("ab") as file:
            file.write(lines[begin:end])
        assert reading.advance()
        assert_is_whole(reading, path)
    assert not reading.advance(), "nothing was added"


def test_a_view_given_to_a_reader_never_changes(written: RecordedJob) -> None:
    written.begin()
    written.start(5)
    written.progress(10, 1, step=1)
    written.fail(20)
    written.close()
    path = written.directory / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"event":"AttemptEnded"')])
    reading = ViewFollower(path)
    reading.advance()
    before, ledgers = reading.view.copied(), reading.view.ledgers()
    before.with_our_death()
    shown = repr((before, ledgers))
    with path.open("wb") as file:
        file.write(whole)
    os.utime(path, (time.time(), time.time() + 5))
    assert reading.advance()
    assert repr((before, ledgers)) == shown
    assert reading.view == read_view(path), "the death that the reader saw is not in the next history"
    assert reading.view.ledgers() == fold(scan(path)).ledgers() != ledgers


def test_a_journal_of_a_new_run_is_read_anew(root: Path, make_job: type[RecordedJob]) -> None:
    written = make_job(root)
    written.begin(run_id="run-1")
    written.start(5)
    written.close()
    path = written.directory / "journal.jsonl"
    reading = ViewFollower(path)
    assert reading.advance()
    for number in (2, 3):
        again = make_job(root, anew=True)
        again.begin(run_id=f"run-{number}")
        for step in range(1, 40 * number):
            again.progress(5 + step, step, step=step)
        again.close()
        assert reading.advance()
        assert [run.run_id for run in reading.view.ledgers()] == [f"run-{number}"]
        assert_is_whole(reading, path)
    path.unlink()
    assert reading.advance()
    assert (reading.view.ledgers(), reading.view.run) == ([], None)


def test_a_journal_that_was_cut_or_damaged_is_read_anew_with_its_damage(written: RecordedJob) -> None:
    written.begin()
    written.start(5)
    written.progress(10, 1, step=1)
    written.close()
    path = written.directory / "journal.jsonl"
    whole = path.read_bytes()
    reading = ViewFollower(path)
    reading.advance()
    path.write_bytes(whole[: len(whole) // 2])
    assert reading.advance()
    assert_is_whole(reading, path)
    with path.open("ab") as file:
        file.write(b"\n")
    assert reading.advance()
    assert any("damaged record" in problem for problem in reading.view.problems)


def test_the_journal_of_another_version_is_refused_each_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(frame(b'{"seq":1,"t":1.0,"wall":"","kind":"header","body":{"job":"j","node":"n","version":"99.0"}}'))
    reading = ViewFollower(path)
    for _ in range(2):
        with pytest.raises(SuperviseError, match="another version of supervise wrote it"):
            reading.advance()
