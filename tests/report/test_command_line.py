"""A command that is printed to be pasted: a real shell takes it as what it was, and refuses it while a secret is missing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from supervisor.report.command_line import command_line

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
def test_a_shell_takes_it_as_what_it_was_and_it_is_one_line(words: list[str]) -> None:
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
    refused = pasted(line.text)
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert variables[0] in refused.stderr, "it names what is missing"
    given = dict(zip(variables, ("hunter2", "another3"), strict=False))
    assert json.loads(pasted(line.text, **given).stdout) == words
