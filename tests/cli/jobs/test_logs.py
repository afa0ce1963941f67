# ruff: noqa: ANN401  values as a command takes and prints them
"""`supervise logs`: the captured output, in order, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.job_files import state_root
from supervisor.cli.jobs.log_output import LogSelection
from supervisor.cli.jobs.logs import logs, moment
from supervisor.errors import SuperviseError
from supervisor.guardian.logs import Appender, LogFile
from supervisor.job import identity
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from tests.support.recorded_job import RecordedJob

REPOSITORY = Path(__file__).parents[3]
_FOLLOW = """
import dataclasses, sys
from supervisor.config.settings import Settings, JobSection
from supervisor.cli.jobs.logs import logs
from supervisor.cli.jobs.log_output import LogSelection
logs(dataclasses.replace(Settings(), job=JobSection(state_dir=sys.argv[1])), "train", None, LogSelection(follow=True))
"""


def finished(written: RecordedJob) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.restart(20)
    written.succeed(60)


def test_the_parts_of_one_ranks_stream_are_shown_in_order(written: RecordedJob, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    written.log(1, "rank-1.out.2", b"one\n")
    written.log(1, "rank-1.out.1", b"two\xff\n")
    written.log(1, "rank-1.out", b"three\n")
    written.log(1, "rank-0.out", b"other\n")
    written.log(1, "rank-10.out", b"tenth\n")
    assert logs(written.settings, "train", 1, LogSelection(rank=1)) == 0
    assert capfdbinary.readouterr().out == b"one\ntwo\xff\nthree\n"


def test_each_part_names_its_rank(written: RecordedJob, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    for name in ("rank-10.out", "rank-2.err", "rank-2.out", "agent.log"):
        written.log(2, name, name.encode() + b"\n")
    written.log(2, "notes.txt", b"somebody's\n")
    logs(written.settings, "train")
    shown = capfdbinary.readouterr().out.decode()
    names = ["agent.log", "rank-2.out", "rank-2.err", "rank-10.out"]
    assert shown == "".join(f"==> 0002/{name} <==\n{name}\n" for name in names)


def test_the_rank_that_died_first(written: RecordedJob, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    for rank in (0, 1):
        written.log(1, f"rank-{rank}.log", b"rank %d\n" % rank)
    logs(written.settings, "train", first_failure=True)
    assert capfdbinary.readouterr().out == b"rank 1\n"
    with pytest.raises(SuperviseError, match="no rank failed"):
        logs(written.settings, "train", 2, first_failure=True)


def test_an_earlier_run_is_reached_by_its_name(
    written: RecordedJob, make_job: type[RecordedJob], root: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    written.begin()
    written.start(1)
    written.give_up(5)
    for attempt in (1, 4):
        written.log(attempt, "rank-1.out", b"bad %d\n" % attempt)
    runs = written.directory / "runs"
    runs.mkdir()
    (written.directory / "attempts").rename(runs / "run-1")
    again = make_job(root, anew=True)
    again.begin(run_id="run-2")
    again.start(1)
    again.log(1, "rank-1.out", b"good\n")
    again.succeed(30)

    def shown(**asked: Any) -> bytes:
        selection = LogSelection(rank=asked.pop("rank", None), follow=True)
        assert logs(written.settings, "train", asked.pop("attempt", None), selection, **asked) == 0
        return capfdbinary.readouterr().out

    assert shown() == shown(run="run-2") == b"good\n"
    assert shown(run="run-1", attempt=1, rank=1) == shown(run="run-1") == shown(run="run-1", first_failure=True) == b"bad 1\n"
    with pytest.raises(SuperviseError, match="attempt 4") as caught:
        shown(attempt=4)
    assert caught.value.hint.endswith("Attempt 4 of an earlier run: --run run-1.")
    with pytest.raises(SuperviseError, match="no rank failed") as caught:
        shown(first_failure=True)
    assert f"{written.settings.address('train')} --run run-1 --first-failure`" in caught.value.hint
    for other in ("run-0", "../attempts", ""):
        with pytest.raises(SuperviseError, match="no such run") as caught:
            shown(run=other)
        assert (caught.value.exit_code, caught.value.hint) == (64, "Name one of these with --run: run-1.")
    for journal in written.directory.glob("journal-*.jsonl"):
        journal.unlink()
    assert shown(run="run-1") == b"bad 4\n"


def test_a_rank_that_wrote_nothing_is_no_error(written: RecordedJob, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    written.log(1, "rank-0.out", b"other\n")
    assert logs(written.settings, "train", 1, LogSelection(rank=1)) == 0
    assert capfdbinary.readouterr() == (b"", b"supervise: rank 1 wrote nothing in attempt 1\n")


def test_a_rank_that_the_attempt_does_not_have_is_an_error(written: RecordedJob) -> None:
    finished(written)
    written.log(2, "rank-0.out", b"x")
    with pytest.raises(SuperviseError, match="no such rank: job train: attempt 2: 7") as caught:
        logs(written.settings, "train", None, LogSelection(rank=7))
    assert (caught.value.exit_code, caught.value.hint) == (64, "Name one from 0 to 1 with --rank, or leave it out.")


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (0, b""),
        (1, b"five"),
        (2, b"four\nfive"),
        (3, b"three\nfour\nfive"),
        (5, b"one\ntwo\nthree\nfour\nfive"),
        (9, b"one\ntwo\nthree\nfour\nfive"),
    ],
)
def test_the_last_lines_reach_back_through_the_parts(
    written: RecordedJob, capfdbinary: pytest.CaptureFixture[bytes], lines: int, shown: bytes
) -> None:
    finished(written)
    written.log(2, "rank-0.out.2", b"one\n")
    written.log(2, "rank-0.out.1", b"two\nthree\n")
    written.log(2, "rank-0.out", b"four\nfive")
    logs(written.settings, "train", None, LogSelection(rank=0, lines=lines))
    assert capfdbinary.readouterr().out == shown


def test_the_last_lines_of_a_file_of_many_blocks(written: RecordedJob, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    every = [b"%06d\n" % n for n in range(50_000)]
    written.log(2, "rank-0.out", b"".join(every))
    logs(written.settings, "train", None, LogSelection(lines=20_000))
    assert capfdbinary.readouterr().out == b"".join(every[-20_000:])


def captured(written: RecordedJob, monkeypatch: pytest.MonkeyPatch, *blocks: tuple[float, bytes], limit_bytes: int = 1 << 20) -> Path:
    """Let the guardian's own thread write a rank's output at these times."""
    path = written.directory / "attempts" / "0002" / "rank-0.out"
    clock = [0.0]
    monkeypatch.setattr("supervisor.guardian.logs.time", SimpleNamespace(time=lambda: clock[0], monotonic=time.monotonic))
    appender, log = Appender(lambda: None), LogFile(str(path), limit_bytes)
    for at, data in blocks:
        clock[0] = at
        appender.put(log, data)
        wait_for(lambda: appender.idle, "the guardian's thread has written", 30)
    appender.close(log)
    return path


def test_each_line_has_the_time_at_which_it_was_begun(
    written: RecordedJob, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    finished(written)
    then = datetime(2026, 9, 21, 14, 0, 0).timestamp()  # noqa: DTZ001  the clock of the person who asks
    captured(written, monkeypatch, (then, b"one\ntw"), (then + 60, b"o\nthree\n"), (then + 60.5, b"four\n"), (then + 3600, b"five\n"))
    logs(written.settings, "train", None, LogSelection(times=True))
    day = "2026-09-21"
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        f"{day} 14:00:00 one", f"{day} 14:00:00 two", f"{day} 14:01:00 three", f"{day} 14:01:00 four", f"{day} 15:00:00 five",
    ]  # fmt: skip
    logs(written.settings, "train", None, LogSelection(since=then + 59))
    assert capfdbinary.readouterr().out == b"o\nthree\nfour\nfive\n"
    logs(written.settings, "train", None, LogSelection(since=then + 59, lines=1, times=True))
    assert capfdbinary.readouterr().out == f"{day} 15:00:00 five\n".encode()
    logs(written.settings, "train", None, LogSelection(since=then + 7200))
    assert capfdbinary.readouterr() == (b"", b"")


def test_the_times_go_through_the_rotations_with_their_part(
    written: RecordedJob, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    finished(written)
    then = datetime(2026, 9, 21, 14, 0, 0).timestamp()  # noqa: DTZ001  the clock of the person who asks
    blocks = [(then + 60 * n, b"%07d\n" % n) for n in range(8)]
    captured(written, monkeypatch, *blocks, limit_bytes=16)
    logs(written.settings, "train", None, LogSelection(times=True))
    expected = [f"2026-09-21 14:{n:02}:00 {n:07}" for n in range(8)]
    assert capfdbinary.readouterr().out.decode().splitlines() == expected
    logs(written.settings, "train", None, LogSelection(times=True, since=then + 300))
    assert capfdbinary.readouterr().out.decode().splitlines() == expected[5:]


def test_output_without_times_is_printed_whole_and_says_so(written: RecordedJob, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    path = written.log(2, "rank-0.out", b"old\n")
    logs(written.settings, "train", None, LogSelection(times=True, since=time.time() - 60))
    assert capfdbinary.readouterr() == (b"         old\n", b"supervise: 0002/rank-0.out: no times were noted, so all of it is printed\n")
    os.utime(path, (1, 1))
    logs(written.settings, "train", None, LogSelection(since=time.time() - 60))
    assert capfdbinary.readouterr() == (b"", b"")


def test_a_moment_is_how_long_ago_or_a_time() -> None:
    now = datetime(2026, 11, 23, 12, 30, 15).timestamp()  # noqa: DTZ001  the clock of the person who asks
    assert [now - moment(text, now) for text in ("90s", "1.5m", "10 min", "2h", "1d")] == [90, 90, 600, 7200, 86400]
    assert [now - moment(text, now) for text in ("12:00", "12:30:10", "13:30")] == [1815, 5, 82815]
    assert now - moment("2026-11-23T12:00", now) == 1815
    for text in ("yesterday", "10", "25:00", "", "1w"):
        with pytest.raises(ValueError, match=r"\S"):
            moment(text, now)


def test_an_attempt_without_output_names_those_with_some(written: RecordedJob) -> None:
    finished(written)
    written.log(1, "rank-1.log", b"x")
    with pytest.raises(SuperviseError, match="attempt 7") as caught:
        logs(written.settings, "train", 7)
    assert caught.value.exit_code == 64
    assert "Attempts with output: 1" in caught.value.hint


@pytest.mark.process
def test_following_shows_what_comes_through_rotations_and_ends_with_the_job(written: RecordedJob) -> None:
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks)
    written.start(1)
    path = written.log(1, "rank-0.out", b"0\n")
    command = [sys.executable, "-c", _FOLLOW, str(state_root(written.settings))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:  # noqa: S603
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        for i in range(1, 6):
            if i % 2 == 0:
                for part in range(3, 0, -1):
                    older = path.with_name(f"{path.name}.{part}")
                    if older.exists():
                        older.rename(path.with_name(f"{path.name}.{part + 1}"))
                path.rename(path.with_name(f"{path.name}.1"))
            written.log(1, "rank-0.out", b"%d\n" % i)
            assert process.stdout.readline() == b"%d\n" % i
        written.log(1, "rank-1.err", b"late\n")
        assert process.stdout.readline() == b"==> 0001/rank-1.err <==\n"
        assert process.stdout.readline() == b"late\n"
        written.succeed(60)
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 0
        watchdog.cancel()


@pytest.mark.process
def test_following_continues_with_the_next_attempt(written: RecordedJob) -> None:
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks)
    written.start(1)
    written.log(1, "rank-0.out", b"one\n")
    command = [sys.executable, "-c", _FOLLOW.replace("follow=True", "follow=True, lines=1"), str(state_root(written.settings))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:  # noqa: S603
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        written.fail(10)
        written.log(2, "rank-0.out", b"two\n")
        written.restart(20)
        assert [process.stdout.readline() for _ in range(2)] == [b"==> attempt 2 <==\n", b"two\n"]
        written.succeed(60)
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 0
        watchdog.cancel()


@pytest.mark.process
def test_a_reader_that_has_enough_is_no_error(written: RecordedJob) -> None:
    finished(written)
    written.log(2, "rank-0.out", b"y\n" * 1_000_000)
    command = [sys.executable, "-m", "supervisor", "logs", "--state-dir", str(state_root(written.settings))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY) as process:  # noqa: S603
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == b""
