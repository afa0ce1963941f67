"""The progress line of a command in a terminal, with a source that delivers nothing more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPERVISE = str(Path(sys.executable).with_name("supervise"))

pytestmark = pytest.mark.process


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """A pipe that gives 40 KiB of a log, and then nothing more."""
    path = tmp_path / "train.log"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    os.write(fd, b"step 1 loss 2.5\n" * 2560)
    yield path
    os.close(fd)


@pytest.mark.parametrize("options", [(), pytest.param(("--json",), marks=pytest.mark.slow)], ids=["for a person", "for a program"])
def test_ctrl_c_leaves_a_clean_terminal_and_stdout_holds_nothing_of_the_bar(silent: Path, options: tuple[str, ...]) -> None:
    terminal = Terminal(100)
    environ = {**os.environ, "TERM": "xterm"}
    process = terminal.start([SUPERVISE, "classify", *options, str(silent)], cwd=silent.parent, env=environ, stdout=subprocess.PIPE)
    try:
        if options:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(4)
        else:
            terminal.await_text("reading .*train.log .*40 KiB")
        terminal.press("\x03")
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, b"")
    assert [row for row in terminal.rows if row != "^C"] == []
