"""`supervise status --watch` on a real terminal: it redraws, ends, and leaves the terminal as it was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.jobs.job_files import state_root
from supervisor.job import identity
from tests.support.screen import watching
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.recorded_job import RecordedJob


ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.process


def run(written: RecordedJob) -> None:
    """Begin a run whose supervisor is this very process."""
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks)
    written.start(1)
    written.progress(5, 3, step=3)
    written.journal.close(10)


def test_the_watch_redraws_in_place_and_ends_on_ctrl_c_with_0(written: RecordedJob) -> None:
    run(written)
    with watching(state_root(written.settings)) as screen:
        screen.read_until(lambda text: text.count("\x1b[H") >= 2)
        assert os.write(screen.pty, b"\x03") == 1
        assert screen.process.wait(PATIENCE_S) == 0
        pages = screen.text.split("\x1b[H")[1:]
        assert all("step 3" in page for page in pages)
        escapes = set(re.findall(r"\x1b\[[0-9;?]*[A-Za-z]", screen.text)) - {"\x1b[H", "\x1b[K", "\x1b[J"}
        assert all(escape.endswith("m") for escape in escapes), "no mode is set that would have to be set back"
        assert re.findall(r"\x1b\[[0-9;]*m", screen.text)[-1] == "\x1b[0m", "the colour is set back"
        assert termios.tcgetattr(screen.terminal) == screen.modes


def test_a_resized_terminal_is_redrawn_at_once_and_without_unwanted_colour(written: RecordedJob) -> None:
    run(written)
    with watching(state_root(written.settings), rows=40, columns=100, NO_COLOR="1") as screen:
        screen.read_until(lambda text: text.count("\x1b[J") >= 1)
        assert len(screen.pages[0].splitlines()[0].removesuffix("\x1b[K")) == 100, "the rule goes to the edge"
        began = time.monotonic()
        screen.resize(40, 60)
        screen.read_until(lambda text: len(text.rsplit("\x1b[H")[-1].splitlines()[0].removesuffix("\x1b[K")) == 60, 30)
        assert time.monotonic() - began < 30
        assert set(re.findall(r"\x1b\[[0-9;?]*[A-Za-z]", screen.text)) == {"\x1b[H", "\x1b[K", "\x1b[J"}


def test_sizes_that_change_all_the_time_hold_nothing_up(written: RecordedJob) -> None:
    """A signal comes at any moment, also right before and behind the wait for the next page."""
    run(written)
    with watching(state_root(written.settings), rows=40, columns=100, NO_COLOR="1") as screen:
        screen.read_until(lambda text: text.count("\x1b[J") >= 1)
        for number in range(2000):
            screen.resize(40, 60 + number % 7)
        screen.resize(40, 80)
        screen.read_until(lambda text: len(text.rsplit("\x1b[H")[-1].splitlines()[0].removesuffix("\x1b[K")) == 80, 60)


def test_the_watch_ends_with_the_job_and_its_last_page_is_whole(written: RecordedJob, make_job: type[RecordedJob], root: Path) -> None:
    run(written)
    with watching(state_root(written.settings), rows=8) as screen:
        screen.read_until(lambda text: "more lines: `supervise status` shows all" in text)
        shown = screen.text.rsplit("\x1b[H")[-1]
        assert shown.count("\n") == 7, "the eighth line is the cursor's"
        assert "files" not in shown
        again = make_job(root)
        again.begin(continues=True)
        again.end(0)
        assert screen.process.wait(PATIENCE_S) == 0
        screen.read_until(lambda text: ": done" in text and "look" in text.rsplit("\x1b[H")[-1])


def test_in_a_pipe_the_pages_follow_one_another_until_the_last(written: RecordedJob) -> None:
    run(written)
    written_again = type(written)(state_root(written.settings))
    written_again.begin(continues=True)
    written_again.end(0)
    command = [sys.executable, "-P", "-m", "supervisor", "status", "--watch", "--state-dir", str(state_root(written.settings))]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert done.returncode == 0
    assert done.stdout.startswith("-- job train")
    assert "\x1b" not in done.stdout


def test_the_watch_ends_once_its_reader_is_gone(written: RecordedJob) -> None:
    run(written)
    command = [sys.executable, "-P", "-m", "supervisor", "status", "--watch", "--state-dir", str(state_root(written.settings))]
    with subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watch:  # noqa: S603
        try:
            assert watch.stdout is not None
            assert watch.stderr is not None
            assert watch.stdout.readline().startswith(b"-- job train")
            watch.stdout.close()
            assert watch.wait(60) == 0
            assert b"Error" not in watch.stderr.read()
        finally:
            watch.kill()
