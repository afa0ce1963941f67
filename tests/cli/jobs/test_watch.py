# ruff: noqa: ANN401  `Written` is made in conftest
"""`supervise status --watch` on a real terminal: it redraws, ends, and leaves the terminal as it was."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.job_files import state_root
from supervisor.job import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.process


class Screen:
    """A terminal of 80 columns in which the command runs, as its session's own: Ctrl-C reaches it."""

    def __init__(self, written: Any, rows: int) -> None:
        self.pty, self.terminal = os.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, 80, 0, 0))
        self.modes = termios.tcgetattr(self.terminal)
        self.text = ""
        command = [sys.executable, "-P", "-m", "supervisor", "status", "--watch", "--state-dir", str(state_root(written.settings))]
        environ = {"PYTHONPATH": str(ROOT), "HOME": str(written.directory), "TERM": "xterm"}
        self.process = subprocess.Popen(  # noqa: S603  the program under test
            command, env=environ, stdin=self.terminal, stdout=self.terminal, stderr=self.terminal, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  no threads here
        )  # fmt: skip

    def read_until(self, wanted: Callable[[str], bool]) -> None:
        """Read what is shown until it is as wanted."""
        until = time.monotonic() + 60
        while not wanted(self.text):
            ready, _, _ = select.select([self.pty], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.text
            self.text += os.read(self.pty, 65536).decode()


@contextmanager
def watching(written: Any, rows: int = 40) -> Iterator[Screen]:
    screen = Screen(written, rows)
    try:
        yield screen
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.pty)
        os.close(screen.terminal)


def run(written: Any) -> None:
    """Begin a run whose supervisor is this very process."""
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks)
    written.start(1)
    written.progress(5, 3, step=3)
    written.journal.close(10)


def test_it_redraws_in_place_and_ends_on_ctrl_c_with_0(written: Any) -> None:
    run(written)
    with watching(written) as screen:
        screen.read_until(lambda text: text.count("\x1b[H") >= 2)
        assert os.write(screen.pty, b"\x03") == 1
        assert screen.process.wait(30) == 0
        pages = screen.text.split("\x1b[H")[1:]
        assert all("step 3" in page for page in pages)
        escapes = set(re.findall(r"\x1b\[[0-9;?]*[A-Za-z]", screen.text)) - {"\x1b[H", "\x1b[K", "\x1b[J"}
        assert all(escape.endswith("m") for escape in escapes), "no mode is set that would have to be set back"
        assert re.findall(r"\x1b\[[0-9;]*m", screen.text)[-1] == "\x1b[0m", "the colour is set back"
        assert termios.tcgetattr(screen.terminal) == screen.modes


def test_it_ends_with_the_job_and_the_last_page_is_whole(written: Any, make_job: Any, root: Path) -> None:
    run(written)
    with watching(written, rows=8) as screen:
        screen.read_until(lambda text: "more lines: `supervise status` shows all" in text)
        shown = screen.text.rsplit("\x1b[H")[-1]
        assert shown.count("\n") == 7, "the eighth line is the cursor's"
        assert "files" not in shown
        again = make_job(root)
        again.begin(continues=True)
        again.end(0)
        assert screen.process.wait(30) == 0
        screen.read_until(lambda text: "ended, exit code 0" in text and "look" in text.rsplit("\x1b[H")[-1])


def test_in_a_pipe_the_pages_follow_one_another_and_the_last_one_ends_it(written: Any) -> None:
    run(written)
    written_again = type(written)(state_root(written.settings))
    written_again.begin(continues=True)
    written_again.end(0)
    command = [sys.executable, "-P", "-m", "supervisor", "status", "--watch", "--state-dir", str(state_root(written.settings))]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    assert done.returncode == 0
    assert done.stdout.startswith("-- job train")
    assert "\x1b" not in done.stdout


def test_it_ends_once_nobody_reads_its_pages_any_more(written: Any) -> None:
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
