"""The line that shows what is waited for: on a terminal, not in a pipe, and nothing is left of it."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from supervisor.cli.stdio import StatusLine

if TYPE_CHECKING:
    import pytest


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_shown_on_a_terminal_and_removed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with StatusLine() as line:
        line.show("waiting for [nvml], " + "disk, " * 20)
        line.show("")
        print("a result")  # noqa: T201  while no line is shown
        shown = terminal.getvalue()
        assert "waiting for [nvml], disk, " in shown
        assert shown.endswith("\x1b[1A\x1b[2K")
        line.show("again")
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K")
    assert capsys.readouterr().out == "a result\n"


def test_in_a_pipe_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with StatusLine() as line:
        line.show("waiting")
    assert pipe.getvalue() == ""
