# ruff: noqa: ANN401  `Written` is a class of conftest.py
"""A journal that is read bit by bit, as it grows, is what the whole file is; a file that was replaced or cut is read anew."""

from __future__ import annotations

import os
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.journal_reading import JournalReading
from supervisor.errors import SuperviseError
from supervisor.journal.reader import read_history
from supervisor.journal.records import encode, frame, scan
from supervisor.report.ledger.reader import ledgers_of
from tests.report.ledger.test_simulated import recorded

if TYPE_CHECKING:
    from pathlib import Path


def assert_is_whole(reading: JournalReading, path: Path) -> None:
    assert reading.history() == read_history(path)
    assert reading.ledgers() == ledgers_of(scan(path))
    assert reading.ledgers(2e9) == ledgers_of(scan(path), 2e9)


@pytest.mark.parametrize("number", range(4))
def test_a_journal_that_grows_is_at_each_moment_what_the_whole_file_is(tmp_path: Path, number: int) -> None:
    lines = b"".join(encode(one.seq, one.t, one.t, one.body) for one in recorded(7, number) if one.body is not None)
    path, rng = tmp_path / "journal.jsonl", Random(number)  # noqa: S311  no secret
    reading = JournalReading(path)
    assert not reading.advance(), "there is no file yet"
    cuts = sorted(rng.sample(range(1, len(lines)), 12))  # hardly ever between two lines
    for begin, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        with path.open("ab") as file:
            file.write(lines[begin:end])
        assert reading.advance()
        assert_is_whole(reading, path)
    assert not reading.advance(), "nothing was added"


def test_what_a_reader_was_given_stays_as_it_is(written: Any) -> None:
    written.begin()
    written.start(5)
    written.progress(10, 1, step=1)
    written.fail(20)
    written.close()
    path = written.directory / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"event":"AttemptEnded"')])
    reading = JournalReading(path)
    reading.advance()
    before, ledgers = reading.history(), reading.ledgers()
    before.with_our_death()
    shown = repr((before, ledgers))
    with path.open("wb") as file:
        file.write(whole)
    os.utime(path, (time.time(), time.time() + 5))
    assert reading.advance()
    assert repr((before, ledgers)) == shown
    assert reading.history() == read_history(path), "the death that the reader saw is not in the next history"
    assert reading.ledgers() == ledgers_of(scan(path)) != ledgers


def test_a_journal_of_a_new_run_is_read_anew(root: Path, make_job: Any) -> None:
    written = make_job(root)
    written.begin(run_id="run-1")
    written.start(5)
    written.close()
    path = written.directory / "journal.jsonl"
    reading = JournalReading(path)
    assert reading.advance()
    for number in (2, 3):
        again = make_job(root, anew=True)
        again.begin(run_id=f"run-{number}")
        for step in range(1, 40 * number):
            again.progress(5 + step, step, step=step)
        again.close()
        assert reading.advance()
        assert [run.run_id for run in reading.ledgers()] == [f"run-{number}"]
        assert_is_whole(reading, path)
    path.unlink()
    assert reading.advance()
    assert (reading.ledgers(), reading.history().run) == ([], None)


def test_a_journal_that_was_cut_or_damaged_is_read_anew_with_its_damage(written: Any) -> None:
    written.begin()
    written.start(5)
    written.progress(10, 1, step=1)
    written.close()
    path = written.directory / "journal.jsonl"
    whole = path.read_bytes()
    reading = JournalReading(path)
    reading.advance()
    path.write_bytes(whole[: len(whole) // 2])
    assert reading.advance()
    assert_is_whole(reading, path)
    with path.open("ab") as file:
        file.write(b"\n")
    assert reading.advance()
    assert any("damaged record" in problem for problem in reading.history().problems)


def test_the_journal_of_another_version_is_refused_each_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(frame(b'{"seq":1,"t":1.0,"wall":"","kind":"header","body":{"job":"j","node":"n","version":"99.0"}}'))
    reading = JournalReading(path)
    for _ in range(2):
        with pytest.raises(SuperviseError, match="another version of supervise wrote it"):
            reading.advance()
