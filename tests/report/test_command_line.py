"""A command that is printed for pasting: a real shell reads it as the original, and refuses it while a secret is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.report.command_line import command_line, start_again
from supervisor.report.text import clean

if TYPE_CHECKING:
    from pathlib import Path

SHOW = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]


def pasted(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return what a shell makes of a line."""
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **variables}, check=False)  # noqa: S603, S607


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--out", "my dir/x", "--note", "it's; rm -rf $HOME `id` <x> *"],
        ["python", "-c", "import time\ntime.sleep(60)\n\tprint('\\\\n')"],
        ["--title", "\x1b[31mred\x1b[0m\x07", "--name", "größe \u202e ab", ""],
        [f"--option{number:03}=value{number:03}" for number in range(300)],
    ],
)
def test_a_shell_reads_back_the_printed_words_from_one_line(words: list[str]) -> None:
    line = command_line([*SHOW, *words])
    assert line.variables == ()
    assert line.text.isprintable(), "nothing in it moves the cursor or begins a line"
    assert json.loads(pasted(line.text).stdout) == words


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--hub-token=hunter2", "--out", "x"], ["HUB_TOKEN"]),
        (["--api-key", "hunter2", "--lr", "1"], ["API_KEY"]),
        (["-api_key", "hunter2"], ["API_KEY"]),
        (["env", "WANDB_API_KEY=hunter2", "python"], ["WANDB_API_KEY"]),
        (["trainer.db.password=hunter2"], ["TRAINER_DB_PASSWORD"]),
        (["postgres://user:hunter2@host/db"], ["SECRET"]),
        (["curl", "-u", "user:hunter2"], ["SECRET"]),
        (["sh", "-c", "train.py --secret hunter2 && echo done"], ["SECRET"]),
        (["--token", "hunter2", "--hf-token", "hunter2"], ["TOKEN"]),
        (["--token", "hunter2", "--token", "another3"], ["TOKEN", "TOKEN_2"]),
    ],
)
def test_a_secret_is_left_to_a_variable_without_which_the_shell_refuses_the_line(words: list[str], variables: list[str]) -> None:
    line = command_line([*SHOW, *words])
    assert "hunter2" not in line.text
    assert [*line.variables] == variables
    assert clean(line.text, is_whole=True) == line.text, "a card shows it as it is: the name of a variable is no secret"
    refused = pasted(line.text)
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert variables[0] in refused.stderr, "it names what is missing"
    given = dict(zip(variables, ("hunter2", "another3"), strict=False))
    assert json.loads(pasted(line.text, **given).stdout) == words


def test_a_job_is_started_again_where_it_was_started_with_its_options_and_those_that_would_help(tmp_path: Path) -> None:
    place = tmp_path / "it's here"
    place.mkdir()
    shows = "import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]]))"
    invocation = (sys.executable, "-c", shows, "--job", "a b")
    line = start_again(invocation, str(place))
    assert json.loads(pasted(line.text).stdout) == [str(place), "--job", "a b"]
    assert start_again(("supervise", "--job", "x", "--", "train.py"), "", ("--knob", "batch_size=--bs")).text == (
        "supervise --knob batch_size=--bs --job x -- train.py"
    )
    assert start_again(("supervise", "--hub-token=hunter2"), "").variables == ("HUB_TOKEN",)
    assert start_again((), "/home/ada").text == "", "an older journal does not have it"
