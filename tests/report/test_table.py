"""A table fits 40 to 200 columns, in cells and not in characters, and loses nothing."""

from __future__ import annotations

import re
import time
import tracemalloc

import pytest
from rich.cells import cell_len

from supervisor.report.layout import Surface, Tone
from supervisor.report.table import Cell, Column, Table, render_table

PATH = f"/data/{'a-long-name/' * 12}step-100.pt"
TABLE = Table(
    (Column("job"), Column("state"), Column("step", right=True), Column("why")),
    (
        ("train-中文-🚀", Cell("in training", Tone.GOOD), "12", ""),
        ("eval", Cell("LOST", Tone.BAD), "12345", "it has not answered for two minutes; 日本語の文字列 and its disk is full"),
        ("x" * 30, "ended with 0", "-", "done"),
    ),
    title="jobs",
)


def without_blanks(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("width", [40, 59, 60, 80, 100, 140, 200])
def test_a_table_fits_its_width_and_every_word_of_it_is_shown(width: int) -> None:
    text = render_table(TABLE, Surface(width))
    assert all(cell_len(line) <= width for line in text.splitlines()), text
    for row in TABLE.rows:
        for cell in row:
            for word in (cell if isinstance(cell, str) else cell.text).split():
                assert without_blanks(word) in without_blanks(text), f"{word} in {text}"


def test_columns_begin_below_each_other_in_cells() -> None:
    text = render_table(TABLE, Surface(200))
    _, head, *rows = text.splitlines()
    starts = [cell_len(head[: head.index(name)]) for name in ("job", "state")]
    for row, state in zip(rows, ("in training", "LOST", "ended with 0"), strict=True):
        assert cell_len(row[: row.index(state)]) == starts[1]
    end_of_steps = cell_len(head[: head.index("step") + 4])
    for row, step in zip(rows, (" 12 ", " 12345 ", " - "), strict=False):
        assert cell_len((f"{row} ")[: f"{row} ".index(step) + len(step) - 1]) == end_of_steps, "numbers end below each other"


def test_a_long_text_continues_in_its_own_column() -> None:
    table = Table((Column("check"), Column("why")), (("disk", "word " * 30), ("gpu", "fine")))
    lines = render_table(table, Surface(60)).splitlines()
    assert lines[0] == "check  why"
    assert lines[1].startswith("disk   word word")
    assert all(line.startswith("       word") for line in lines[2:-1])
    assert lines[-1] == "gpu    fine"


def test_where_not_even_the_words_fit_a_row_becomes_labels_and_texts() -> None:
    table = Table(
        (Column("job"), Column("state"), Column("attempt", right=True), Column("changed"), Column("node")),
        (("train-of-the-model", "in training", "3", "12 min ago", "gpu-node-0001"), ("other", "", "1", "2 s ago", "gpu-node-0002")),
    )
    assert render_table(table, Surface(40)).splitlines() == [
        "job  train-of-the-model",
        "  state    in training",
        "  attempt  3",
        "  changed  12 min ago",
        "  node     gpu-node-0001",
        "job  other",
        "  attempt  1",
        "  changed  2 s ago",
        "  node     gpu-node-0002",
    ]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_path_to_be_copied_is_one_line(width: int) -> None:
    table = Table((Column("step", right=True), Column("path", copied=True)), (("100", PATH), ("99", "/b")))
    lines = render_table(table, Surface(width)).splitlines()
    assert sum(line.endswith(PATH) for line in lines) == 1


def test_in_a_pipe_each_row_is_one_aligned_line() -> None:
    text = render_table(TABLE, Surface(folds=False))
    assert len(text.splitlines()) == 2 + len(TABLE.rows)
    assert "it has not answered for two minutes; 日本語の文字列 and its disk is full" in text
    assert "\x1b" not in text


def test_colour_adds_nothing_that_the_words_do_not_say() -> None:
    coloured = render_table(TABLE, Surface(100, colour=True))
    assert "\x1b[1;31mLOST\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_table(TABLE, Surface(100))


def test_a_column_in_which_nothing_stands_is_left_out_and_an_empty_table_says_so() -> None:
    columns = (Column("job"), Column("why"))
    assert render_table(Table(columns, (("a", ""), ("b", "")))) == "job\na\nb"
    assert render_table(Table(columns, (), empty="no job here")) == "no job here"
    assert render_table(Table(columns, ())) == ""


def test_foreign_text_neither_moves_the_cursor_nor_shows_a_secret() -> None:
    table = Table((Column("job"),), (("\x1b[2J[red]HF_TOKEN=hf_CANARY0123456789abcdefgh\r\n:boom:",),))
    text = render_table(table, Surface(200, colour=True))
    assert "CANARY" not in text
    assert "\x1b[2J" not in text
    assert "[red]" in text
    assert ":boom:" in text


def ten_thousand_rows(count: int = 10_000) -> Table:
    rows = tuple((f"checkpoint-{n}", "verified", str(n), f"/data/out/checkpoint-{n}/model.safetensors") for n in range(count))
    return Table((Column("name"), Column("state"), Column("step", right=True), Column("path")), rows)


@pytest.mark.slow
@pytest.mark.parametrize("surface", [Surface(folds=False), Surface(60, colour=True)], ids=["a pipe", "a narrow terminal"])
def test_ten_thousand_rows_take_seconds(surface: Surface) -> None:
    table = ten_thousand_rows()
    began = time.process_time()
    text = render_table(table, surface)
    took_s = time.process_time() - began
    assert text.count("verified") == len(table.rows)
    assert took_s < 20, "of 1.6 to 1.9 s of CPU on the machine where this was written"


@pytest.mark.slow
def test_ten_thousand_rows_take_little_memory() -> None:
    table = ten_thousand_rows()
    render_table(ten_thousand_rows(2))
    tracemalloc.start()
    try:
        render_table(table, Surface(100))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20, "of 10 MiB"
