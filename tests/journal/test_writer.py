# ruff: noqa: ANN401, S603  the listener's class lives in conftest; the commands are ours
"""A record is on the disk when the writer reports it, and no disk blocks a caller."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core.events import SupervisorStarted
from supervisor.core.machine import decide
from supervisor.core.model import Policy
from supervisor.journal import writer as journals
from supervisor.journal.file import OsFiles, earlier
from supervisor.journal.records import VERSION, Damage, Header, Note, Record, RunBegan, ViewTaken, encode, scan
from supervisor.view.job_view import fold
from supervisor.view.keeping import JobViewKeeper
from supervisor.view.opening import open_journal, past_of
from supervisor.view.reading import read_view
from tests.support.figures import is_within, within
from tests.support.small_disks import small_disk
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).parents[2]


class Disk(OsFiles):
    """The real system calls, with faults on demand."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.stuck = threading.Event()
        self.write_error = self.fsync_error = self.truncate_error = self.open_error = 0
        self.most_bytes = 1 << 30
        self.fsyncs = 0

    def open(self, path: Path) -> int:
        """Fail, or open."""
        if self.open_error:
            raise OSError(self.open_error, os.strerror(self.open_error))
        return super().open(path)

    def write(self, fd: int, data: bytes) -> int:
        """Write half and fail, or write at most `most_bytes`."""
        if self.write_error:
            super().write(fd, data[: len(data) // 2])
            raise OSError(self.write_error, os.strerror(self.write_error))
        return super().write(fd, data[: self.most_bytes])

    def fsync(self, fd: int) -> None:
        """Hang, fail, or sync."""
        if not self.free.is_set():
            self.stuck.set()
            self.free.wait(30)
        self.fsyncs += 1
        if self.fsync_error:
            raise OSError(self.fsync_error, os.strerror(self.fsync_error))
        super().fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Fail, or cut."""
        if self.truncate_error:
            raise OSError(self.truncate_error, os.strerror(self.truncate_error))
        super().truncate(fd, size)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.free.set()


def opened(path: Path, ear: Any, disk: Disk | None = None) -> Any:
    return open_journal(path, job="job", node="node", listener=ear, files=disk)


def notes(path: Path) -> list[str]:
    """Return the names of the notes in the journal, which must be whole."""
    records = list(scan(path))
    assert not [d for d in records if isinstance(d, Damage)]
    return [r.body.name for r in records if isinstance(r, Record) and isinstance(r.body, Note)]


def one_run(path: Path, ear: Any, *, goes_on: bool = False, events: int = 1) -> Any:
    """Write a run as `supervise` does, and return what was known at its beginning."""
    journal, past = open_journal(path, job="job", node="node", listener=ear, continues=lambda _: goes_on)
    began = RunBegan("r", continues=goes_on, incidents_before=past.incidents_before)
    journal.append(began, t=1.0, durable=True)
    state = past.state
    for _ in range(events):
        event = SupervisorStarted(1.0, "r", Policy(), continues=goes_on)
        state, actions = decide(state, event)
        journal.record(event, actions, state, durable=True)
    assert journal.close(10)
    return past


def test_a_run_that_is_not_continued_begins_a_new_file_and_five_old_ones_are_kept(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    for _ in range(8):
        one_run(path, ear)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"journal-000{n}.jsonl" for n in range(3, 8)] + ["journal.jsonl"]
    for entry in tmp_path.iterdir():
        past = past_of(fold(scan(entry)))
        assert (past.problems, past.records) == ((), 3)
    before = path.read_bytes()
    one_run(path, ear, goes_on=True)
    assert path.read_bytes().startswith(before)
    assert len(list(tmp_path.iterdir())) == 6


def test_a_run_in_which_nothing_was_decided_leaves_its_file_to_the_next(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    one_run(path, ear)
    for _ in range(3):
        one_run(path, ear, events=0)
    assert [records.name for records in earlier(path)] == ["journal-0001.jsonl"]


@pytest.mark.parametrize("left", ["nothing", "a header", "a torn header"])
def test_the_count_of_incidents_outlives_a_crash_between_two_files(tmp_path: Path, ear: Any, left: str) -> None:
    path = tmp_path / "journal.jsonl"
    header = encode(1, 1.0, 1.0, Header("job", "node"))
    path.write_bytes(header + encode(2, 1.0, 1.0, RunBegan("old", incidents_before=7)))
    one_run(path, ear, events=1)
    path.rename(tmp_path / "journal-0004.jsonl")
    if left != "nothing":
        path.write_bytes(header[: -9 if left == "a torn header" else None])
    past = one_run(path, ear)
    # seven, and the death of the supervisor that wrote no end
    assert (past.state.incidents, past.incidents_before, past.last_run.run_id) == (8, 8, "r")
    assert past_of(fold(scan(path))).state.incidents == 8
    assert not past_of(fold(scan(path))).problems


def test_a_directory_in_the_place_of_an_old_journal_is_passed_by(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    one_run(path, ear)
    old = path.read_bytes()
    (tmp_path / "journal-0001.jsonl").mkdir()
    one_run(path, ear)
    assert (tmp_path / "journal-0002.jsonl").read_bytes() == old
    assert not past_of(fold(scan(path))).problems


def test_a_disk_that_takes_no_new_file_for_a_while_loses_neither(tmp_path: Path, ear: Any, disk: Disk) -> None:
    path = tmp_path / "journal.jsonl"
    one_run(path, ear)
    old = path.read_bytes()
    disk.open_error = errno.ENOSPC
    journal, past = open_journal(path, job="job", node="node", listener=ear, continues=lambda _: False, files=disk)
    journal.append(RunBegan("r", incidents_before=past.incidents_before), t=1.0, durable=True)
    until = time.monotonic() + 10
    while not journal.health().trouble:
        assert time.monotonic() < until
        time.sleep(0.005)
    disk.open_error = 0
    assert journal.close(10)
    assert (tmp_path / "journal-0001.jsonl").read_bytes() == old
    assert [type(record.body) for record in scan(path) if isinstance(record, Record)] == [Header, RunBegan]


def test_a_new_journal_is_ours_alone_and_says_what_it_is(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "made" / "journal.jsonl"
    journal, past = opened(path, ear)
    seq = journal.append(Note("first"), t=1.0, durable=True)
    ear.await_synced(seq)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (past.records, past.problems) == (0, ())
    head, note = list(scan(path))
    assert isinstance(head, Record)
    assert head.body == Header("job", "node")
    assert isinstance(note, Record)
    assert (note.seq, note.t, note.body) == (2, 1.0, Note("first"))
    assert journal.close(10)


def test_the_recorded_journal_gives_the_same_state(tmp_path: Path, ear: Any, story: Callable[[], list[Any]]) -> None:
    path = tmp_path / "journal.jsonl"
    journal, _ = opened(path, ear)
    steps = story()
    for event, state, actions in steps:
        journal.record(event, actions, state, durable=bool(actions))
    assert journal.close(10)
    journal, past = opened(path, ear)
    assert (past.problems, past.state) == ((), steps[-1][1])
    assert past.next_seq == len(steps) + 2
    assert journal.close(10)
    assert len(list(scan(path))) == len(steps) + 1  # and no second header


def test_a_journal_cut_anywhere_is_gone_on_with(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    journal, _ = opened(path, ear)
    for name in ("a", "b"):
        journal.append(Note(name), t=1.0)
    assert journal.close(10)
    whole = path.read_bytes()
    start = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for size in range(start, len(whole), 7):
        path.write_bytes(whole[:size] + (b"\0" * 50 if size % 2 else b""))
        journal, past = opened(path, ear)
        assert past.next_seq == 3
        journal.append(Note("c"), t=1.0)
        assert journal.close(10)
        assert notes(path) == ["a", "c"], size


def test_damage_in_the_middle_stays_and_costs_one_number_at_the_end(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode(1, 1.0, 1.0, Header("job", "node")) + b"garbage\n")
    journal, past = opened(path, ear)
    assert past.problems
    journal.append(Note("after"), t=1.0)
    assert journal.close(10)
    assert [type(f) for f in scan(path)] == [Record, Damage, Record]
    assert past_of(fold(scan(path))).problems  # nobody will take the lost record for one that never was


def test_a_file_that_is_no_journal_is_set_aside_whole(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    for n in (1, 2):
        path.write_bytes(b"somebody's notes\nand more")
        journal, _ = opened(path, ear)
        journal.append(Note("new"), t=1.0)
        assert journal.close(10)
        assert notes(path) == ["new"]
        assert path.with_name(f"journal.jsonl.unreadable-{n}").read_bytes() == b"somebody's notes\nand more"
        path.unlink()


def test_a_fifo_in_the_place_of_the_journal_is_set_aside_and_not_waited_for(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    os.mkfifo(path)
    journal, past = opened(path, ear)
    assert past.last_run is None
    journal.append(Note("new"), t=1.0)
    assert journal.close(10)
    assert notes(path) == ["journal_unreadable", "new"]
    assert path.with_name("journal.jsonl.unreadable-1").is_fifo()


def test_a_record_that_is_nested_without_end_is_damage(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    deep = b'{"seq":1,"kind":"note","body":' + b"[" * 10**5 + b"]" * 10**5 + b"}"
    framed = b'{"crc":"%08x","len":%d,"rec":%s}\n' % (zlib.crc32(deep), len(deep), deep)
    path.write_bytes(encode(1, 1.0, 1.0, Header("job", "node")) + framed)
    assert [type(record) for record in scan(path)] == [Record, Damage]
    journal, _ = opened(path, ear)
    assert journal.close(10)


def test_a_journal_of_another_format_is_set_aside_whole_and_reported(tmp_path: Path, ear: Any) -> None:
    path, earlier_run = tmp_path / "journal.jsonl", tmp_path / "journal-0001.jsonl"
    content = encode(1, 1.0, 1.0, Header("job", "node", "4.0")) + b"torn"
    for file in (path, earlier_run):
        file.write_bytes(content)
    journal, past = opened(path, ear)
    (problem,) = past.problems
    assert f"{path}: another version of supervise wrote it (format 4.0; this one reads {VERSION}): it is set aside" in problem
    journal.append(Note("new"), t=1.0)
    assert journal.close(10)
    assert notes(path) == ["new"]
    assert path.with_name("journal.jsonl.unreadable-1").read_bytes() == earlier_run.read_bytes() == content


def test_secrets_of_a_command_are_digests(tmp_path: Path, ear: Any) -> None:
    path = tmp_path / "journal.jsonl"
    journal, _ = opened(path, ear)
    journal.append(RunBegan("run", ("train.py", "--hf-token", "hunter2", "--api_key=hunter2", "--max-tokens", "512")), t=1.0)
    assert journal.close(10)
    text = path.read_text()
    assert "hunter2" not in text
    assert "512" in text


@pytest.mark.bench
def test_a_hung_fsync_delays_nobody_and_is_reported_once(tmp_path: Path, ear: Any, disk: Disk) -> None:
    path = tmp_path / "journal.jsonl"
    journal, _ = opened(path, ear, disk)
    ear.await_synced(1)
    disk.free.clear()
    began = time.monotonic()
    journal.append(Note("0"), t=1.0, durable=True)
    assert disk.stuck.wait(PATIENCE_S)
    slowest = 0.0
    for i in range(1, 300):
        before = time.perf_counter()
        last = journal.append(Note(str(i)), t=1.0, durable=True)
        slowest = max(slowest, time.perf_counter() - before)
    text = ear.await_word("degraded")
    assert time.monotonic() - began >= 4.5
    assert within(9, since=began)
    assert "no answer for 5 s" in text
    assert is_within(slowest, 0.5)  # the disk hangs for up to 30 s
    health = journal.health()
    assert (health.pending_records, health.lost, health.synced_seq) == (300, 0, 1)
    assert not journal.close(0.1)
    assert journal.health().trouble == text
    disk.free.set()
    ear.await_synced(last)
    ear.await_word("recovered")
    assert journal.close(10)
    assert (ear.count("degraded"), ear.count("recovered")) == (1, 1)
    assert notes(path) == [str(i) for i in range(300)]


def test_many_durable_records_share_an_fsync(tmp_path: Path, ear: Any, disk: Disk) -> None:
    journal, _ = opened(tmp_path / "journal.jsonl", ear, disk)
    ear.await_synced(1)
    disk.free.clear()
    journal.append(Note("first"), t=1.0, durable=True)
    assert disk.stuck.wait(PATIENCE_S)
    before = disk.fsyncs
    for _ in range(100):
        last = journal.append(Note("more"), t=1.0, durable=True)
    disk.free.set()
    ear.await_synced(last)
    assert disk.fsyncs - before == 2
    assert journal.close(10)


@pytest.mark.parametrize("fault", ["write_error", "fsync_error"])
@pytest.mark.parametrize("truncate_error", [0, errno.EIO])
def test_a_failing_disk_is_reported_at_once_and_nothing_is_lost(
    tmp_path: Path, ear: Any, disk: Disk, fault: str, truncate_error: int
) -> None:
    path = tmp_path / "journal.jsonl"
    journal, _ = opened(path, ear, disk)
    ear.await_synced(1)
    setattr(disk, fault, errno.EIO)
    disk.truncate_error = truncate_error
    journal.append(Note("a"), t=1.0, durable=True)
    assert os.strerror(errno.EIO) in ear.await_word("degraded")
    last = journal.append(Note("b"), t=1.0, durable=True)
    setattr(disk, fault, 0)
    ear.await_synced(last)
    ear.await_word("recovered")
    assert journal.close(10)
    records = list(scan(path))
    assert [r.body.name for r in records if isinstance(r, Record) and isinstance(r.body, Note)] == ["a", "b"]
    past = past_of(fold(records))
    assert past.next_seq == records[-1].seq + 1
    assert not [problem for problem in past.problems if "lost" in problem]
    if not truncate_error:
        assert not past.problems


def test_short_writes_are_gone_on_with(tmp_path: Path, ear: Any, disk: Disk) -> None:
    disk.most_bytes = 7
    journal, _ = opened(tmp_path / "journal.jsonl", ear, disk)
    for i in range(5):
        journal.append(Note(str(i)), t=1.0)
    assert journal.close(10)
    assert notes(tmp_path / "journal.jsonl") == ["0", "1", "2", "3", "4"]


def test_a_place_that_cannot_be_written_yet_gets_everything_later(tmp_path: Path, ear: Any, disk: Disk) -> None:
    disk.open_error = errno.EROFS
    journal, _ = opened(tmp_path / "journal.jsonl", ear, disk)
    last = journal.append(Note("early"), t=1.0, durable=True)
    ear.await_word("degraded", os.strerror(errno.EROFS))
    disk.open_error = 0
    ear.await_synced(last)
    ear.await_word("recovered")
    assert journal.close(10)
    assert notes(tmp_path / "journal.jsonl") == ["early"]


def test_memory_is_bounded_and_lost_records_are_counted(tmp_path: Path, ear: Any, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "PENDING_CAP_BYTES", 20_000)
    path = tmp_path / "journal.jsonl"
    journal, _ = opened(path, ear, disk)
    ear.await_synced(1)
    disk.write_error = errno.ENOSPC
    journal.append(Note("plain 0"), t=1.0)
    ear.await_word("degraded")
    for i in range(1, 200):
        journal.append(Note(f"plain {i}"), t=1.0)
    plain = journal.health()
    for i in range(200):
        journal.append(Note(f"durable {i}"), t=1.0, durable=True)
    full = journal.health()
    assert plain.pending_bytes <= 10_000 < full.pending_bytes <= 20_000
    assert full.lost == 400 - full.pending_records
    disk.write_error = 0
    ear.await_word("recovered")
    assert not journal.close(10)
    assert journal.health().trouble == f"{path}: {full.lost} records had no room in memory while the disk did not answer"
    texts = notes(path)
    assert len(texts) == full.pending_records + 1
    assert texts[-1] == "records_lost"
    note = [r for r in scan(path) if isinstance(r, Record) and r.kind == "note"][-1].body
    assert isinstance(note, Note)
    assert note.data == {"lost": full.lost}
    assert past_of(fold(scan(path))).problems


@pytest.mark.bench
def test_closing_on_a_dead_disk_keeps_its_deadline(tmp_path: Path, ear: Any, disk: Disk) -> None:
    journal, _ = opened(tmp_path / "journal.jsonl", ear, disk)
    ear.await_synced(1)
    disk.write_error = errno.EIO
    journal.append(Note("never"), t=1.0, durable=True)
    ear.await_word("degraded")
    before = time.monotonic()
    assert not journal.close(0.3)
    assert within(2, since=before)
    disk.write_error = 0


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: run as root")
def test_a_full_file_system_costs_nothing_once_there_is_room(tmp_path: Path, ear: Any) -> None:
    with small_disk(tmp_path / "small", "size=64k") as small:
        journal, _ = opened(small / "journal.jsonl", ear)
        ear.await_synced(1)
        with contextlib.suppress(OSError), (small / "ballast").open("wb", buffering=0) as ballast:
            for _ in range(64):
                ballast.write(b"x" * 4096)
        for i in range(200):
            last = journal.append(Note(str(i), "y" * 30), t=1.0, durable=True)
        assert os.strerror(errno.ENOSPC) in ear.await_word("degraded")
        (small / "ballast").unlink()
        ear.await_synced(last)
        ear.await_word("recovered")
        assert journal.close(10)
        assert notes(small / "journal.jsonl") == [str(i) for i in range(200)]


_WRITER = """
import sys
from pathlib import Path
from supervisor.view.opening import open_journal
from supervisor.journal.records import Note

class Ear:
    def journal_synced(self, seq):
        print(seq, flush=True)
    def journal_degraded(self, text): ...
    def journal_recovered(self): ...

journal, past = open_journal(Path(sys.argv[1]), job="job", node="node", listener=Ear(), view_every_s=40.0)
for i in range(1_000_000):
    journal.append(Note(str(i), "x" * (i % 300)), t=float(i), durable=True)
    if i % 50 == 0:
        import time
        time.sleep(0.001)
"""


def test_a_view_that_cannot_be_made_ends_the_views_and_nothing_else(tmp_path: Path, ear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    monkeypatch.setattr(JobViewKeeper, "record", lambda *_: 1 / 0)
    journal, _ = open_journal(path, job="job", node="node", listener=ear, view_every_s=10.0)
    for i in range(30):
        journal.append(Note(f"fact {i}"), t=float(i))
    assert journal.close(10)
    texts = notes(path)
    assert [name for name in texts if name != "view_failed"] == [f"fact {i}" for i in range(30)]
    assert texts.count("view_failed") == 1
    assert "ZeroDivisionError: division by zero" in path.read_text()


@pytest.mark.process
def test_a_record_reported_durable_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
            assert process.stdout is not None
            numbers = [int(process.stdout.readline()) for _ in range(10)]
            process.kill()
            numbers += [int(line) for line in process.stdout.read().splitlines() if line]
        records = [r for r in scan(path) if isinstance(r, Record)]
        assert [r.seq for r in records] == list(range(1, len(records) + 1))
        assert records[-1].seq >= max(numbers)
        # the kill may cut the write of a later record: that tail is no loss, and the next start cuts it off
        damage = [r for r in scan(path) if isinstance(r, Damage)]
        assert all(d.torn for d in damage)
        assert past_of(fold(scan(path))).problems == tuple(map(str, damage))
        assert any(isinstance(record.body, ViewTaken) for record in records)
        assert read_view(path) == fold(scan(path)), "the view in the journal is what its records say, wherever the kill came"
