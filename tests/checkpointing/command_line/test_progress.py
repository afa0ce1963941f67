"""Progress bars: on a terminal, not in a pipe, and nothing is left of them."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkpointing.command_line import progress
from checkpointing.command_line.output import Output
from checkpointing.command_line.progress import ProgressBar
from checkpointing.command_line.verdicts import verify

ROOT = Path(progress.__file__).parents[2]


class Terminal(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        """Be one."""
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal, and show each bar at once. No fixture: pytest sets stderr between a fixture and its test."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(progress, "_DELAY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


def lines(terminal: Terminal) -> list[str]:
    """Return each state of the bar, without its colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").splitlines()


@pytest.mark.parametrize(("columns", "bars"), [(40, 0), (80, 1), (200, 1)])
def test_a_bar_fits_the_terminal_and_is_taken_away(monkeypatch: pytest.MonkeyPatch, columns: int, bars: int) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    with ProgressBar("reading ckpt/a-rather-long-name-of-a-checkpoint/step-00000080.pt", 100 << 20) as bar:
        bar.advance(60 << 20)
    shown = [line for line in lines(terminal) if "reading" in line]
    assert any("60.0/100.0 MiB" in line for line in shown)
    assert all(len(line) <= columns for line in shown)
    assert any("━" in line for line in shown) == bars
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K")


def test_what_is_read_twice_does_not_lead_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    with ProgressBar("x", 1 << 20) as bar:
        bar.advance(1 << 20)
        bar.advance(1 << 20)
    assert "2.0" not in terminal.getvalue()


def test_verify_shows_what_it_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "step_1.pt").write_bytes(b"PK\x03\x04" + bytes(1 << 20))
    printed: list[str] = []
    verify([str(tmp_path)], Output(write=printed.append))
    assert any("reading" in line and "step_1.pt" in line for line in lines(terminal))
    before = len(terminal.getvalue())
    verify([str(tmp_path)], Output(write=printed.append, bars=False))
    assert len(terminal.getvalue()) == before


@pytest.mark.process
def test_in_a_pipe_nothing_is_shown_and_nothing_is_imported_for_it(tmp_path: Path) -> None:
    code = (
        "import sys, checkpointing.command_line.progress as p; p._DELAY_S = 0.0\n"
        "with p.ProgressBar('x', 10) as bar: bar.advance(5)\nprint('rich' in sys.modules)"
    )
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert (done.stdout, done.stderr) == ("False\n", "")
