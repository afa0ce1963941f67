"""What is seen of long work: a bar on a terminal, plain lines elsewhere, nothing of quick work, and nothing that stays."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checkpointing.command_line import mirrors, progress
from checkpointing.command_line.output import Output, printable
from checkpointing.command_line.progress import ProgressBar, room
from checkpointing.command_line.verdicts import verify
from checkpointing.io.progress_text import progress_text
from tests.support.terminal import Terminal, at_once, stderr_is_a_terminal
from tests.support.waiting import PATIENCE_S, wait_for

ROOT = Path(progress.__file__).parents[2]
LONG = "reading ckpt/a-rather-long-name-of-a-checkpoint/step-00000080.pt"


def test_foreign_text_is_one_line_and_turns_none_round() -> None:
    assert printable("a\x1b[2J\u202eb\u2028c\u2066\n") == "a [2J b c"


def test_amounts_are_written_in_human_units() -> None:
    assert progress_text(5 << 30, 1 << 40, 1 << 30) == "5.0 GiB of 1.0 TiB, 1.0 GiB/s, 16 min 59 s left"
    assert progress_text(1 << 30, 40 << 40, 102 << 20) == "1.0 GiB of 40.0 TiB, 102 MiB/s, 114 h 13 min left"
    assert progress_text(0, 10 << 20) == "0 bytes of 10 MiB"
    assert progress_text(5000, None, 310, "entries") == "5,000 entries, 310/s"
    assert progress_text(5000, 10000, 500, "checkpoints") == "5,000 of 10,000 checkpoints, 500/s, 10 s left"
    assert progress_text(12, 120, 0, "s") == "12 s, 1 min 48 s left"
    assert progress_text(59.7, 119.8, 0, "s") == "1 min 0 s, 1 min 0 s left"


@pytest.mark.parametrize(("columns", "bars", "amounts"), [(40, 0, "60%"), (60, 0, "60%"), (100, 1, "60 MiB"), (160, 1, "60 MiB")])
def test_a_bar_fits_the_terminal_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch, columns: int, bars: int, amounts: str) -> None:
    at_once(monkeypatch)
    with stderr_is_a_terminal(monkeypatch, columns) as terminal:
        with ProgressBar(LONG, 100 << 20) as bar:
            bar.advance(60 << 20)
            terminal.await_text(amounts)
            wait_for(lambda: terminal.rows, "a row")
            assert len(terminal.rows) == 1
        wait_for(lambda: not terminal.rows, "the end of the bar")
    shown = [line for line in terminal.lines if "reading" in line]
    assert all(len(line) <= columns for line in shown)
    assert any("━" in line for line in shown) == bars
    assert terminal.text.index("\x1b[?25h") < terminal.text.index("reading"), "the cursor is hidden meanwhile"


def test_the_rate_and_the_time_left_are_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    with stderr_is_a_terminal(monkeypatch) as terminal, ProgressBar("reading x", 100 << 20) as bar:
        for _ in range(50):
            bar.advance(1 << 20)
            threading.Event().wait(0.005)
        terminal.await_text(r"reading x .*\d MiB of 100 MiB, \S+ [MK]iB/s, .* left")


def test_quick_work_shows_no_bar_and_imports_no_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, delay_s=600.0)
    monkeypatch.delitem(sys.modules, "rich.progress", raising=False)
    with stderr_is_a_terminal(monkeypatch) as terminal, ProgressBar("reading x", 10) as bar:
        bar.advance(5)
        threading.Event().wait(0.1)
    assert terminal.text == ""
    assert "rich.progress" not in sys.modules


def test_the_bar_moves_on_where_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    monkeypatch.setattr(progress, "_SILENT_S", 0.05)
    with stderr_is_a_terminal(monkeypatch) as terminal, ProgressBar("reading x", 100 << 20) as bar:
        bar.advance(5 << 20)
        terminal.await_text("5 MiB of 100 MiB, nothing for 1 s")


def test_where_there_is_no_terminal_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    at_once(monkeypatch, delay_s=600.0, line_every_s=0.05)
    text = ""
    with ProgressBar("reading x", 100 << 20) as bar:
        bar.advance(60 << 20)
        while text.count("\n") < 2:
            text += capsys.readouterr().err
    assert set(text.splitlines()) == {"reading x: 60 MiB of 100 MiB"}
    at_once(monkeypatch)
    with ProgressBar("reading x", 100 << 20) as bar:
        bar.advance(60 << 20)
        threading.Event().wait(0.1)
    assert capsys.readouterr() == ("", "")


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, line_every_s=0.05)
    with stderr_is_a_terminal(monkeypatch) as terminal:
        monkeypatch.setenv("TERM", "dumb")
        with ProgressBar("reading x", 100 << 20):
            terminal.await_text("reading x: 0 bytes of 100 MiB\r\n")
    assert "\x1b" not in terminal.text


def test_beside_the_output_of_a_job_there_are_lines_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, line_every_s=0.0)
    with stderr_is_a_terminal(monkeypatch) as terminal, ProgressBar("step 3", 600, unit="s", beside_output=True) as bar:
        assert not any(thread.name == "progress" for thread in threading.enumerate())
        bar.set(12, 600)
        terminal.await_text("step 3: 12 s, 9 min 48 s left\r\n")
    assert "\x1b" not in terminal.text


def test_a_line_that_is_printed_meanwhile_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    warnings = [f"warning {number}" for number in range(20)]
    with stderr_is_a_terminal(monkeypatch) as terminal:
        with ProgressBar("reading x", 100 << 20) as bar:
            for number, warning in enumerate(warnings):
                bar.advance(1 << 20)
                terminal.await_text(f" {number + 1} MiB of")
                with room():
                    print(warning, file=sys.stderr)  # noqa: T201
            wait_for(lambda: len(terminal.rows) > len(warnings), "the bar below the lines")
            assert terminal.rows[:-1] == warnings
        wait_for(lambda: terminal.rows == warnings, "the end of the bar")


def test_a_bar_within_another_one_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    with stderr_is_a_terminal(monkeypatch) as terminal, ProgressBar("outer", 10):
        with ProgressBar("inner", 10) as inner:
            inner.advance(5)
            terminal.await_text("outer")
        assert "inner" not in terminal.text


def test_bytes_read_twice_do_not_pass_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    with stderr_is_a_terminal(monkeypatch) as terminal, ProgressBar("x", 1 << 20) as bar:
        bar.advance(1 << 20)
        bar.advance(1 << 20)
        terminal.await_text("1 MiB of 1 MiB")
    assert "2 MiB of" not in terminal.text


def test_a_terminal_that_is_gone_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)

    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, _text: str) -> int:
            tried.set()
            raise OSError(5, "Input/output error")

    tried = threading.Event()
    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("x", 10) as bar:
        assert tried.wait(PATIENCE_S)
        bar.advance(5)


def test_verify_shows_what_it_reads_and_a_reader_of_json_is_shown_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    at_once(monkeypatch)
    (tmp_path / "step_1.pt").write_bytes(b"PK\x03\x04" + bytes(1 << 20))
    printed: list[str] = []
    with stderr_is_a_terminal(monkeypatch, 160) as terminal:
        real = os.preadv

        def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
            terminal.await_text("reading .*step_1.pt")
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", slow)
        verify([str(tmp_path)], Output(write=printed.append))
        monkeypatch.setattr(os, "preadv", real)
        wait_for(lambda: not terminal.rows, "the end of the bar")
    with stderr_is_a_terminal(monkeypatch) as terminal:
        verify([str(tmp_path)], Output(write=printed.append, as_json=True))
    assert terminal.text == ""


def test_a_restore_counts_what_it_lists_and_then_what_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    with stderr_is_a_terminal(monkeypatch) as terminal, Output().progress("looking for checkpoints of job") as bar:
        terminal.await_text("looking for checkpoints of job")
        followed = mirrors.followed(bar, "checkpoint of job", Output())
        assert followed.on_listed is not None
        followed.on_listed(5000)
        terminal.await_text("listing the mirror .*5,000 entries")
        followed.on_fetched(10 << 20, 20 << 20)
        terminal.await_text("restoring checkpoint of job .*10 MiB of 20 MiB")


@pytest.mark.process
@pytest.mark.parametrize("how", ["a key", "a kill"])
def test_an_interrupt_restores_the_terminal_and_a_kill_leaves_the_cursor(tmp_path: Path, how: str) -> None:
    """^C takes the bar away as well; after a kill the cursor is still there."""
    code = (
        "import time, checkpointing.command_line.progress as p; p._DELAY_S = 0.0\n"
        "with p.ProgressBar('reading x', 1000 << 20) as bar:\n    bar.advance(500 << 20)\n    time.sleep(600)\n"
    )
    terminal = Terminal(100)
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "TERM": "xterm"}
    process = terminal.start([sys.executable, "-c", code], cwd=tmp_path, env=environ, stdout=subprocess.PIPE)
    try:
        terminal.await_text("500 MiB of 1000 MiB")
        if how == "a key":
            terminal.press("\x03")
        else:
            process.kill()
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert out == b""
    if how == "a key":
        terminal.await_text("KeyboardInterrupt\r\n")
        assert not any("500 MiB" in row for row in terminal.rows)
    assert terminal.text.rfind("\x1b[?25h") > terminal.text.rfind("\x1b[?25l")
