"""A start continues the journal of the runs before, in whatever state the last view is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.journal.records import Record, RunBegan, ViewTaken, scan
from supervisor.view.job_view import fold
from supervisor.view.opening import open_journal
from supervisor.view.reading import read_end, read_view
from tests.support.long_journal import LongJob, NobodyListens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def cut_in_the_view(content: bytes) -> bytes:
    return content[: content.rindex(b'"kind":"view"') + 900]


def broken_view(content: bytes) -> bytes:
    at = content.rindex(b'"kind":"view"') + 300
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def no_view_left(content: bytes) -> bytes:
    return b"".join(line for line in content.splitlines(keepends=True) if b'"kind":"view"' not in line)


def a_record_behind_it_is_torn(content: bytes) -> bytes:
    return content[:-30]


@pytest.mark.parametrize(
    ("damage", "problems"), [(cut_in_the_view, 1), (broken_view, 2), (no_view_left, 4), (a_record_behind_it_is_torn, 1)]
)
def test_a_takeover_continues_from_a_journal_whose_last_view_is_old_or_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes], problems: int
) -> None:
    path = tmp_path / "journal.jsonl"
    job = LongJob(path, "node", monkeypatch)
    job.train(200)
    job.fail()
    job.train(70)
    job.close()
    path.write_bytes(damage(path.read_bytes()))
    job_view = fold(scan(path))
    expected, problem = job_view.state()
    assert not problem
    journal, past = open_journal(path, job="months", node="node", listener=NobodyListens(), continues=lambda _: True)
    assert past.state == expected
    assert (past.last_run, past.next_seq) == (job_view.run, job_view.next_seq)
    assert len(past.problems) == problems, past.problems
    journal.append(RunBegan("run-1", ("python", "train.py"), continues=True), t=job.t + 60, durable=True)
    assert journal.close(60)
    records = [record for record in scan(path) if isinstance(record, Record)]
    assert [type(record.body) for record in records[-2:]] == [RunBegan, ViewTaken], "a takeover writes a view at once"
    view = read_view(path)
    assert view == fold(scan(path))
    assert read_end(path).incidents == view.incidents[-1:]


def test_views_continue_over_a_takeover_and_none_repeats_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    job = LongJob(path, "node", monkeypatch)
    job.train(300)
    job.close()
    journal, _ = open_journal(path, job="months", node="node", listener=NobodyListens(), continues=lambda _: True)
    journal.append(RunBegan("run-1", continues=True), t=job.t, durable=True)
    journal.close(60)
    views = [record for record in scan(path) if isinstance(record, Record) and isinstance(record.body, ViewTaken)]
    chain = [record.body.before for record in views if isinstance(record.body, ViewTaken)]
    assert chain == [0, *(record.seq for record in views[:-1])]
    assert len(views) == 6
    assert read_view(path) == fold(scan(path))
