"""What a command writes to stdout: JSON that any program reads, and a page or a table as wide as there is room."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import stdio
from supervisor.core.values import Struct
from supervisor.report.layout import Fact, FactPage
from supervisor.report.table import Column, Table


class Saved(Struct, frozen=True):
    """A checkpoint, of which a program reads."""

    path: str
    loss: float = 0.5


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (Saved("/data/中.pt"), {"path": "/data/中.pt", "loss": 0.5}),
        ([Saved("/a", float("nan"))], [{"path": "/a", "loss": None}]),
        (Saved("/data/\udce9.pt"), {"path": "/data/\udce9.pt", "loss": 0.5}),
    ],
    ids=["a Struct", "no number", "a file name that is no UTF-8"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_the_output_is_json_whatever_it_holds(value: object, read: object, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace"))
    stdio.write_json(value)
    assert json.loads(written.getvalue().decode(encoding)) == read


def test_indent_0_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stdio.write_json({"a": [1, 2], "b": Saved("/a")}, indent=0)
    assert capsys.readouterr().out == '{"a": [1, 2], "b": {"path": "/a", "loss": 0.5}}\n'


def test_a_line_of_ours_that_quotes_a_path_or_an_argument_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    stdio.say("error: no such file: \x1b[2J\u202e\udcff 名")
    assert capsys.readouterr().err == "supervise: error: no such file: \\x1b[2J\\u202e\\udcff 名\n"


def test_a_page_and_a_table_are_shown_as_wide_as_there_is_room(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stdio.show(FactPage("job train", (Fact("cause", "word " * 20),)))
    stdio.show(Table((Column("job"), Column("why")), (("train", "word " * 20),)))
    lines = capsys.readouterr().out.splitlines()
    stdio.show(Table((Column("job"),), ()))
    assert capsys.readouterr().out == "", "nothing is no line"
    assert len(lines) > 5
    assert all(len(line) <= 60 for line in lines)


@pytest.mark.parametrize("arguments", [["--help"], ["checkpoints", "--help"], ["version"]])
def test_a_command_without_a_table_imports_no_renderer(arguments: list[str]) -> None:
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-X", "importtime", "-m", "supervisor", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "supervisor.cli.main" in imported
    assert not imported & {"rich", "jinja2", "torch", "supervisor.report.table"}
