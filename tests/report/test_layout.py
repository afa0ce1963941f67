"""A page of labelled facts fits 40 to 200 columns, and loses nothing."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import termios

import pytest
from rich.cells import cell_len

from supervisor.core.model import Plan, PlanKind
from supervisor.report.layout import Fact, FactPage, Surface, Tone, plain, render, surface_of
from supervisor.report.wording import do_facts

LOOK = "supervise why 1 --job train --state-dir '/mnt/a directory/whose name is longer than any of the pages'"
PAGE = FactPage(
    "incident 1 of job train on gpu-7: given up, exit code 65",
    (
        Fact("cause", "The GPU ran out of memory (cuda_oom, 97 % sure)", Tone.BAD),
        Fact("evidence", f"rank 1 raised OutOfMemoryError: CUDA out of memory in /data/{'x' * 250}.py"),
        Fact("", "a consequence: 日本語の文字列 " * 9, Tone.FAINT),
        Fact("look", LOOK, copied=True),
    ),
    Tone.BAD,
)


@pytest.mark.parametrize("width", [40, 59, 60, 80, 100, 140, 200])
def test_a_page_fits_its_width_and_every_character_of_it_is_shown(width: int) -> None:
    text = render(PAGE, Surface(width))
    *lines, look = text.splitlines()
    assert look.endswith(LOOK), "what is there to be copied is one line"
    assert all(cell_len(line) <= width for line in lines)
    shown = re.sub(r"\s", "", text)
    for fact in PAGE.facts:
        assert re.sub(r"\s", "", fact.text) in shown
    assert re.sub(r"\s", "", PAGE.title) in shown


def test_a_label_stands_beside_its_text_or_above_it() -> None:
    page = FactPage("job train", (Fact("cause", "a bug"), Fact("", "and more")))
    assert render(page, Surface(60)).splitlines()[1:] == ["  cause  a bug", "         and more"]
    assert render(page, Surface(40)).splitlines()[1:] == ["cause", "  a bug", "  and more"]


def test_a_page_is_plain_text_unless_colour_is_wanted() -> None:
    assert "\x1b" not in render(PAGE)
    coloured = render(PAGE, Surface(80, colour=True))
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(PAGE, Surface(80))


def test_foreign_text_neither_moves_the_cursor_nor_shows_a_secret() -> None:
    page = FactPage("job \x1b]0;x\x07", (Fact("evidence", "\x1b[2J[red]HF_TOKEN=hf_CANARY0123456789abcdefgh\r\n:boom:"),))
    text = render(page, Surface(80))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "CANARY" not in text
    assert "[red]" in text
    assert ":boom:" in text


def test_foreign_text_neither_turns_a_line_round_nor_begins_one() -> None:
    page = FactPage("job", (Fact("evidence", "ValueError: \u202eabc\u2066d\u2028e\u2029f"),))
    assert render(page, Surface(80)).splitlines()[1:] == ["  evidence  ValueError: abcd e f"]


def test_the_surface_of_a_terminal_is_its_width_and_its_colour() -> None:
    pty, terminal = os.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 72, 0, 0))
        assert surface_of(terminal, {}) == Surface(72, colour=True)
        assert surface_of(terminal, {"NO_COLOR": "1"}) == Surface(72)
        assert surface_of(terminal, {"TERM": "dumb"}) == Surface(72)
        assert surface_of(terminal, {"COLUMNS": "20"}) == Surface(40, colour=True)
        assert surface_of(terminal, {"COLUMNS": "900"}) == Surface(200, colour=True)
    finally:
        os.close(pty)
        os.close(terminal)


def test_a_pipe_has_no_colour_and_a_hundred_columns_unless_another_width_is_asked_for() -> None:
    reader, writer = os.pipe()
    try:
        assert surface_of(writer, {}) == Surface(100, folds=False)
        assert surface_of(writer, {"COLUMNS": "64"}) == Surface(64)
        assert surface_of(writer, {"COLUMNS": "9" * 5000}) == surface_of(writer, {}), "python reads no number that long"
    finally:
        os.close(reader)
        os.close(writer)
    assert surface_of(999, {}) == Surface(100, folds=False), "a closed descriptor"


def test_a_file_has_a_line_for_each_fact() -> None:
    title, *lines = plain(PAGE).splitlines()
    assert title == f"-- {PAGE.title}"
    assert len(lines) == len(PAGE.facts)
    assert lines[0] == f"  cause     {PAGE.facts[0].text}"


def test_a_page_is_printed_even_if_rich_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.text", None)
    text = render(PAGE, Surface(40))
    for fact in PAGE.facts:
        assert fact.text.strip() in text


@pytest.mark.parametrize("width", [40, 80, 100])
def test_the_command_of_a_note_is_one_line_however_long_its_paths_are(width: int) -> None:
    command = f"cp -p /state/{'a-long-name/' * 12}ckpt.pt /data/out/ckpt.pt"
    notes = ("the training stands still", f"a copy of ckpt.pt is kept: {command}", "make room there: old checkpoints fill it most often")
    plan = Plan(PlanKind.STOP, "why", "put it back", "beginning", 65, notes=notes)
    text = render(FactPage("incident 1", tuple(do_facts(plan, is_over=True))), Surface(width))
    assert any(line.removeprefix("  do").strip() == command for line in text.splitlines())
    assert "a copy of ckpt.pt is kept" in text


def test_a_command_to_be_copied_is_never_cut() -> None:
    command = f"supervise why 1 --job train --state-dir {'/long' * 500}"
    page = FactPage("incident 1", (Fact("look", command, copied=True), Fact("cause", "x " * 2000)))
    for text in (plain(page), render(page, Surface(80))):
        assert any(line.endswith(command) for line in text.splitlines())
        assert " ... " in text, "what is there to be read is"
