"""A view from the last whole one in a journal and what follows is what all records make, whatever is damaged in the file."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from supervisor.core.values import replace
from supervisor.journal.records import Damage, Note, Record, RunBegan, ViewTaken, decode, encode, frame, frames, scan, unframe
from supervisor.view import snapshot
from supervisor.view.job_view import JobView, fold
from supervisor.view.keeping import JobViewKeeper
from supervisor.view.reading import ViewFollower, read_end, read_view
from supervisor.view.snapshot import lists_of
from tests.report.ledger.test_simulated import recorded
from tests.support.few import few

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = few(range(12))
LISTS = {"incidents", "stragglers", "meetings", "first_deaths", "runs_over", "time"}


def lines_of(number: int, views: int = 15) -> list[bytes]:
    """Return the journal of a simulated job, with so many views in it."""
    bodies = [(record.t, record.body) for record in recorded(11, number)[:500] if record.body is not None]
    keeper = JobViewKeeper(JobView(), None)
    lines: list[bytes] = []
    for place, (t, body) in enumerate(bodies):
        lines.append(encode(len(lines) + 1, t, t, body))
        keeper.take(lines[-1])
        if place % max(2, len(bodies) // views) == 1:
            seq = len(lines) + 1
            lines.append(encode(seq, t, t, keeper.record(seq, t)))
            keeper.written()
    return lines


def records_of(lines: list[bytes]) -> list[Record]:
    return [record for line in lines if (record := decode(unframe(line) or b"")) is not None]


def damaged(content: bytes, lines: list[bytes], rng: Random) -> bytes:
    """Return the file with some bytes changed, zeroed or cut out, and perhaps a torn end; the views are hit as often as all others."""
    broken = bytearray(content)
    views = [place for place, line in enumerate(lines) if b'"kind":"view"' in line]
    for _ in range(rng.randint(1, 4)):
        target = rng.choice(views) if views and rng.random() < 0.5 else rng.randrange(2, len(lines))
        at = min(len(broken) - 40, sum(map(len, lines[:target])) + rng.randrange(len(lines[target])))
        kind = rng.randrange(3)
        if kind == 0:
            broken[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            broken[at : at + 30] = bytes(30)
        else:
            del broken[at : at + rng.randrange(1, 30)]
    return bytes(broken[: -rng.randrange(1, 200)] if rng.random() < 0.3 else broken)


def expected_of(path: Path, lines: list[bytes]) -> JobView:
    """Return what the records up to the last view that can be used make, as they were, and those behind it, as they are in the file."""
    whole = {rec for rec in frames(path) if isinstance(rec, bytes)}
    originals, base = records_of(lines), 0
    for record, line in zip(originals, lines, strict=True):
        if isinstance(record.body, ViewTaken) and unframe(line) in whole and record.body.before in {0, base}:
            base = record.seq
    view = fold(originals[:base])
    items = list(scan(path))
    place = next((at + 1 for at, item in enumerate(items) if isinstance(item, Record) and item.seq == base), 0)
    for item in items[place:]:
        view.take(item)
    return view


@pytest.mark.parametrize("number", SEEDS)
def test_the_view_from_a_snapshot_and_the_rest_is_the_fold_of_everything(tmp_path: Path, number: int) -> None:
    lines = lines_of(number)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    views = [record for record in records_of(lines) if isinstance(record.body, ViewTaken)]
    assert len(views) >= 5
    whole = fold(scan(path))
    assert read_view(path) == whole
    assert whole.ledgers() == read_view(path).ledgers()
    end = read_end(path)
    for name in JobView.__struct_fields__:
        if name not in LISTS | {"after_seq", "incidents_unlisted"}:
            assert getattr(end, name) == getattr(whole, name), name
    assert end.incidents_unlisted + len(end.incidents) == len(whole.incidents)
    for name, rows in lists_of(end).items():
        assert rows == lists_of(whole)[name][len(lists_of(whole)[name]) - len(rows) :], name
    assert (end.open_incident, end.members, end.last_decision) == (whole.open_incident, whole.members, whole.last_decision)


@pytest.mark.parametrize("number", SEEDS)
def test_damage_at_random_places_costs_what_was_damaged_and_no_more(tmp_path: Path, number: int) -> None:
    lines, rng = lines_of(number), Random(number)  # noqa: S311  no secret
    path = tmp_path / "journal.jsonl"
    for _ in range(8):
        path.write_bytes(damaged(b"".join(lines), lines, rng))
        view, expected = read_view(path), expected_of(path, lines)
        assert replace(view, faults=[]) == replace(expected, faults=[])
        named = {str(item) for item in scan(path) if isinstance(item, Damage) and not item.torn and item.offset >= 0}
        assert named <= set(view.problems), "each damaged line is named"
        assert read_end(path).seq == view.seq
        follower = ViewFollower(path)
        follower.advance()
        assert follower.view == view


def test_a_view_of_another_version_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(3)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    expected = fold(records_of(lines))
    monkeypatch.setattr(snapshot, "VERSION", snapshot.VERSION + 1)
    monkeypatch.setattr(snapshot, "with_lists", None)  # a view that was read all the same would need it
    assert read_view(path) == read_end(path) == expected


def test_a_view_whose_fields_do_not_fit_is_passed_over(tmp_path: Path) -> None:
    lines = lines_of(3)
    at = max(place for place, line in enumerate(lines) if b'"kind":"view"' in line)
    rec = unframe(lines[at]) or b""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join([*lines[:at], frame(rec.replace(b'"view":{', b'"view":{"run_t":"many",', 1)), *lines[at + 1 :]]))
    assert replace(read_view(path), faults=[]) == fold(records_of(lines)), "the records behind the view before it count"


def test_text_that_is_no_unicode_comes_back_out_of_a_view(tmp_path: Path) -> None:
    keeper = JobViewKeeper(JobView(), None)
    lines = [encode(1, 1.0, 1.0, RunBegan("run", ("train.py", "caf\udce9"))), encode(2, 1.0, 1.0, Note("summary", "\udcff/path"))]
    for line in lines:
        keeper.take(line)
    lines.append(encode(3, 2.0, 2.0, keeper.record(3, 2.0)))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    view = read_end(path)
    assert (view.summary, view.run and view.run.command) == ("\udcff/path", ("train.py", "caf\udce9"))
    assert view == read_view(path) == fold(records_of(lines))


def test_a_view_of_only_the_end_of_a_journal_has_no_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = lines_of(5, views=60)
    path.write_bytes(b"".join(lines))
    assert read_end(path).after_seq > 0, "of so many views the last full one is not the first"
    with pytest.raises(ValueError, match="has no ledgers"):
        read_end(path).ledgers()
