"""Our words on stderr never hold up or break the one who says them."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.report.background_writer import BackgroundWriter
from supervisor.report.layout import Fact, FactPage, render
from supervisor.report.terminal import TerminalWriter
from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue  # the test closed it


def fill(writer: int) -> int:
    """Fill the pipe to the last byte and return how many fitted."""
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    size = 0
    try:
        while True:
            size += os.write(writer, b"x" * 4096)
    except BlockingIOError:
        fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    return size


def test_each_line_says_whose_it_is_and_cannot_move_the_cursor(pipe: tuple[int, int]) -> None:
    terminal = TerminalWriter(pipe[1])
    terminal.message("one\ntwo")
    terminal.message("careful", "warning")
    terminal.message("\x1b]0;title\x07 \udcff \u202e \N{SNOWMAN}", "error")
    page = FactPage("rank 1", (Fact("cause", "\x1b]0;title\x07failed"),))
    terminal.card(page)
    terminal.lines('{"event": "x"}\n')
    terminal.close(60)
    card = render(page)
    assert "failed" in card
    assert "\x1b" not in card
    assert os.read(pipe[0], 4096).decode() == (
        "supervise: one\nsupervise: two\nsupervise: warning: careful\n"
        f'supervise: error: \\x1b]0;title\\x07 \\udcff \\u202e ☃\n{card}\n{{"event": "x"}}\n'
    )


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """A pseudo-terminal: what a person reads from, and what is written to."""
    master, slave = os.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def shown(screen: tuple[int, int], lines: int) -> list[str]:
    """Return so many lines that a person sees, with the time of day as `NOW`."""
    text = b""
    while text.count(b"\n") < lines:
        text += os.read(screen[0], 4096)
    return re.sub(r"\d\d:\d\d:\d\d", "NOW", text.decode()).split("\r\n")[:-1]


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "a dumb terminal"])
def test_at_a_terminal_each_line_has_the_time_and_a_colour_of_its_own(
    screen: tuple[int, int], monkeypatch: pytest.MonkeyPatch, plain: dict[str, str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = TerminalWriter(screen[1])
    terminal.message("one\ntwo")
    terminal.message("incident 1", "notice")
    terminal.message("careful", "warning")
    terminal.message("\x1b[2J over", "error")
    terminal.waiting("starting")
    terminal.close(60)
    assert shown(screen, 6) == [
        f"\x1b[2mNOW\x1b[0m \x1b[{colour}msupervise: {text}\x1b[0m"
        for colour, text in (
            ("36", "one"),
            ("36", "two"),
            ("1", "incident 1"),
            ("33", "warning: careful"),
            ("1;31", "error: \\x1b[2J over"),
            ("36", "starting"),
        )
    ]
    for name, value in plain.items():
        monkeypatch.setenv(name, value)
    terminal = TerminalWriter(screen[1])
    terminal.message("one")
    terminal.message("careful", "warning")
    terminal.close(60)
    assert shown(screen, 2) == ["NOW supervise: one", "NOW supervise: warning: careful"]


def test_a_waiting_message_for_a_person_is_in_no_pipe(pipe: tuple[int, int]) -> None:
    terminal = TerminalWriter(pipe[1])
    terminal.waiting("starting")
    terminal.message("one")
    terminal.close(60)
    assert os.read(pipe[0], 4096) == b"supervise: one\n"


def test_an_unfinished_line_of_a_rank_is_ended_once_and_only_before_a_line_of_ours(pipe: tuple[int, int]) -> None:
    terminal = TerminalWriter(pipe[1], quiet=True)
    terminal.begin_line()
    terminal.message("dropped: nothing is shown, so nothing is ended")
    terminal.begin_line()
    page = FactPage("card", ())
    terminal.card(page)
    terminal.message("careful", "warning")
    terminal.close(60)
    assert os.read(pipe[0], 4096).decode() == f"\n{render(page)}\nsupervise: warning: careful\n"


def test_quiet_keeps_what_is_only_informative_to_itself(pipe: tuple[int, int]) -> None:
    terminal = TerminalWriter(pipe[1], quiet=True)
    terminal.message("hello")
    terminal.message("careful", "warning")
    terminal.card(FactPage("card", ()))
    terminal.close(60)
    assert os.read(pipe[0], 4096).startswith(b"supervise: warning: careful\n-- card -")


def test_in_the_journal_each_line_has_its_priority(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_state = os.fstat(pipe[1])
    monkeypatch.setenv("JOURNAL_STREAM", f"{pipe_state.st_dev}:{pipe_state.st_ino}")
    terminal = TerminalWriter(pipe[1])
    terminal.message("one\ntwo")
    terminal.message("incident 1", "notice")
    terminal.message("careful", "warning")
    page = FactPage("rank 1", (Fact("cause", "failed"),))
    terminal.card(page)
    terminal.close(60)
    card = "".join(f"<3>{line}\n" for line in render(page).splitlines())
    assert os.read(pipe[0], 4096).decode() == (
        f"<6>supervise: one\n<6>supervise: two\n<5>supervise: incident 1\n<4>supervise: warning: careful\n{card}"
    )


def test_stderr_that_leads_elsewhere_than_to_the_unit_s_journal_gets_no_priorities(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")
    terminal = TerminalWriter(pipe[1])
    terminal.message("one")
    terminal.close(60)
    assert os.read(pipe[0], 4096) == b"supervise: one\n"


@pytest.mark.bench
def test_a_closed_stderr_costs_nothing(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    terminal = TerminalWriter(pipe[1])
    began = time.monotonic()
    for _ in range(100):
        terminal.message("nobody listens")
    terminal.close(60)
    assert within(2, since=began)
    assert terminal.dropped == 100
    closed = TerminalWriter(987654)
    closed.message("no such descriptor")
    closed.close(60)
    assert closed.dropped == 1


@pytest.mark.parametrize("flags", [0, os.O_NONBLOCK])
@pytest.mark.bench
def test_a_pipe_that_nobody_reads_holds_nobody_up_and_shows_later_what_it_missed(pipe: tuple[int, int], flags: int) -> None:
    reader, writer = pipe
    size = fill(writer)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    terminal = TerminalWriter(writer, deadline_s=0.2)
    began = time.monotonic()
    for _ in range(50):
        terminal.message("held up")
    assert within(0.1, since=began)
    deadline = time.monotonic() + 60
    while terminal.dropped < 50:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert within(5, since=began)  # the deadline is waited for once, not for each line
    while size:
        size -= len(os.read(reader, size))
    terminal.message("again")
    terminal.close(60)
    assert os.read(reader, 4096).splitlines() == [b"supervise: warning: 50 messages could not be written here", b"supervise: again"]


def test_a_write_that_hangs_fills_the_queue_and_no_more() -> None:
    hanging, free = threading.Event(), threading.Event()

    def sink(_data: bytes, _lost: int) -> bool:
        hanging.set()
        return free.wait(30)

    writer = BackgroundWriter("hanging", sink, limit=10)
    writer.put(b"")
    assert hanging.wait(60)
    for _ in range(25):
        writer.put(b"")
    assert writer.dropped == 15
    assert not writer.close(0.05)
    free.set()
    assert writer.close(60)
