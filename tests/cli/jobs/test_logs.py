# ruff: noqa: ANN401  `Written` is made in conftest
"""`supervise logs`: the captured output, in order, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.jobs.job_files import state_root
from supervisor.cli.jobs.logs import logs
from supervisor.errors import SuperviseError
from supervisor.job import identity

REPOSITORY = Path(__file__).parents[3]
_FOLLOW = """
import dataclasses, sys
from supervisor.config.settings import Settings, JobSection
from supervisor.cli.jobs.logs import logs
logs(dataclasses.replace(Settings(), job=JobSection(state_dir=sys.argv[1])), "train", None, None, True)
"""


def finished(written: Any) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.restart(20)
    written.succeed(60)


def test_one_rank_of_one_attempt_with_its_parts_in_order(written: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    written.log(1, "rank-1.out.2", b"one\n")
    written.log(1, "rank-1.out.1", b"two\xff\n")
    written.log(1, "rank-1.out", b"three\n")
    written.log(1, "rank-0.out", b"other\n")
    written.log(1, "rank-10.out", b"tenth\n")
    assert logs(written.settings, "train", 1, 1, follow=False) == 0
    assert capfdbinary.readouterr().out == b"one\ntwo\xff\nthree\n"


def test_each_part_names_its_rank(written: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    for name in ("rank-10.out", "rank-2.err", "rank-2.out", "agent.log"):
        written.log(2, name, name.encode() + b"\n")
    written.log(2, "notes.txt", b"somebody's\n")
    logs(written.settings, "train", None, None, follow=False)
    shown = capfdbinary.readouterr().out.decode()
    names = ["agent.log", "rank-2.out", "rank-2.err", "rank-10.out"]
    assert shown == "".join(f"==> 0002/{name} <==\n{name}\n" for name in names)


def test_the_rank_that_died_first(written: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    for rank in (0, 1):
        written.log(1, f"rank-{rank}.log", b"rank %d\n" % rank)
    logs(written.settings, "train", None, None, follow=False, first_failure=True)
    assert capfdbinary.readouterr().out == b"rank 1\n"
    with pytest.raises(SuperviseError, match="no rank failed"):
        logs(written.settings, "train", None, 2, follow=False, first_failure=True)


def test_an_earlier_run_is_reached_by_its_name(written: Any, make_job: Any, root: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
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
        assert logs(written.settings, "train", asked.pop("rank", None), asked.pop("attempt", None), follow=True, **asked) == 0
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


def test_a_rank_that_wrote_nothing_is_no_error(written: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    finished(written)
    written.log(1, "rank-0.out", b"other\n")
    assert logs(written.settings, "train", 1, 1, follow=False) == 0
    assert capfdbinary.readouterr() == (b"", b"supervise: rank 1 wrote nothing in attempt 1\n")


def test_an_attempt_without_output_names_those_with_some(written: Any) -> None:
    finished(written)
    written.log(1, "rank-1.log", b"x")
    with pytest.raises(SuperviseError, match="attempt 7") as caught:
        logs(written.settings, "train", None, 7, follow=False)
    assert caught.value.exit_code == 64
    assert "Attempts with output: 1" in caught.value.hint


@pytest.mark.process
def test_following_shows_what_comes_through_rotations_and_ends_with_the_job(written: Any) -> None:
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
        assert process.wait(30) == 0
        watchdog.cancel()


@pytest.mark.process
def test_a_reader_that_has_enough_is_no_error(written: Any) -> None:
    finished(written)
    written.log(2, "rank-0.out", b"y\n" * 1_000_000)
    command = [sys.executable, "-c", _FOLLOW, str(state_root(written.settings))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPOSITORY) as process:  # noqa: S603
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""
