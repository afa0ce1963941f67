"""Where a job stands is read from a few records of a long journal, and is what the whole journal tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.core.events import CheckpointVerified, GpusListed, HangCleared, HangConfirmed, HealthChanged, HealthChecked
from supervisor.core.model import CheckpointRef, Finding, Gpu, Hang, HangKind, Progress
from supervisor.journal import landmarks, lookup, reader
from supervisor.journal.reader import read_history, read_standing
from supervisor.journal.records import MIRRORED, Note, Record, scan
from tests.cli.jobs.conftest import Written

if TYPE_CHECKING:
    from supervisor.journal.history import History


def standing(history: History) -> History:
    """Return a history without what `read_standing` leaves out."""
    last_over = next((one for one in reversed(history.incidents) if one.closed_t is not None), None)
    kept = [replace(one, progress=Progress()) for one in history.incidents if one is last_over or one.closed_t is None]
    before = history.incidents_before + len(history.incidents) - len(kept)
    return replace(history, incidents=kept, incidents_before=before, first_deaths={})


def verified(written: Written, t: float, step: int) -> None:
    number = written.state.attempt.number
    written.feed(CheckpointVerified(written.T0 + t, number, CheckpointRef(f"ckpt/{step}.pt", step, "full"), number))
    written.journal.append(Note(MIRRORED, "s3://backup", {"path": f"ckpt/{step}.pt", "step": step}), t=written.T0 + t)


def train(written: Written, t: float, steps: int, *, first: int = 1) -> float:
    for n in range(first, first + steps):
        t += 10
        written.progress(t, n, step=n)
    return t


def eventful(root: Path) -> Written:
    """Write a job that is examined, trains, fails three times, is taken over in between, and trains on."""
    written = Written(root)
    written.begin()
    written.feed(GpusListed(written.T0, (Gpu(0, "GPU-0"),)))
    written.feed(HealthChecked(written.T0, 1, (Finding("clock", "host", "degraded", "not synchronised"),)))
    written.start(1)
    t = train(written, 5, 90)
    verified(written, t, 80)
    written.feed(HealthChanged(written.T0 + t, (Finding("disk", "path:/data", "degraded", "full soon"),)))
    written.feed(HangConfirmed(written.T0 + t, 1, Hang(HangKind.LATE, "rank 0 is late", (0,))))
    t = train(written, t, 10, first=91)
    written.feed(HangCleared(written.T0 + t, 1, 95.0, "it goes on"))
    written.feed(HangConfirmed(written.T0 + t, 1, Hang(HangKind.STOPPED, "rank 1 is stopped", (1,))))
    written.fail(t)
    written.restart(t + 10)
    t = train(written, t + 20, 120)
    written.feed(HealthChanged(written.T0 + t, (Finding("net", "eth0", "degraded", "errors"),)))
    written.close()
    written = Written(root)
    written.begin(continues=True, run_id="run-1")
    written.fail(t)
    written.restart(t + 10)
    t = train(written, t + 20, 70, first=130)
    verified(written, t, 190)
    written.fail(t)
    written.again(t + 10)
    t = train(written, t + 20, 60, first=200)
    written.close()
    return written


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(landmarks, "EVERY", 25)
    monkeypatch.setattr(reader, "LEAST_BYTES", 0)
    return eventful(tmp_path / "state").directory / "journal.jsonl"


def test_at_each_moment_the_job_stands_where_the_whole_journal_says(journal: Path, tmp_path: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    moment = tmp_path / "moment.jsonl"
    shortened = 0
    for count in range(1, len(lines) + 1, 3):
        moment.write_bytes(b"".join(lines[:count]))
        whole, found = read_history(moment), read_standing(moment)
        shortened += found.first_deaths != whole.first_deaths
        assert standing(found) == standing(whole), f"after {count} records"
    assert shortened > len(lines) // 10, "landmarks were used"


@pytest.mark.parametrize("damage", ["a record that matters", "all numbers twice", "no header"])
def test_a_journal_whose_records_are_not_found_is_read_whole(journal: Path, damage: str) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    if damage == "a record that matters":
        at = next(number for number, line in enumerate(lines) if b'"event":"GpusListed"' in line)
        lines[at] = lines[at].replace(b"GPU-0", b"GPU-1")
    elif damage == "all numbers twice":
        lines = [line for pair in zip(lines, lines, strict=True) for line in pair]
    else:
        del lines[0]
    journal.write_bytes(b"".join(lines))
    assert standing(read_standing(journal)) == standing(read_history(journal))


@pytest.mark.parametrize("step_bytes", [16, 100, 1000])
def test_the_newest_record_of_a_kind_is_found_wherever_the_blocks_begin(
    journal: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    monkeypatch.setattr(lookup, "_STEP_BYTES", step_bytes)
    notes = [(record.body.name, record) for record in scan(journal) if isinstance(record, Record) and isinstance(record.body, Note)]
    with journal.open("rb") as file:
        found = lookup.JournalLookup(file.fileno())
        assert found.newest(b'"name":"landmarks"') == [record for name, record in notes if name == landmarks.LANDMARKS][-1]
        assert found.newest(b'"name":"checkpoint_mirrored"') == [record for name, record in notes if name == MIRRORED][-1]
        assert found.newest(b'"name":"nothing"') is None


def read_bytes() -> int:
    """Return how many bytes this process has read so far."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split("rchar:")[1].split()[0])


def test_of_a_long_journal_less_than_a_megabyte_is_read(tmp_path: Path) -> None:
    eventful(tmp_path)
    written = Written(tmp_path)
    written.begin(continues=True)
    written.restart(19_990)
    train(written, 20_000, 12_000, first=1000)
    written.close()
    path = written.directory / "journal.jsonl"
    assert path.stat().st_size > 4 << 20
    before = read_bytes()
    found = read_standing(path)
    assert read_bytes() - before < 1 << 20
    assert standing(found) == standing(read_history(path))
