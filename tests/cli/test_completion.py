"""Completion: what the shells are given, and what they get for an answer. The commands themselves are the only source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import main
from supervisor.cli.commands import COMMANDS, load_command
from supervisor.cli.completion import SHELLS

ROOT = Path(main.__file__).parents[2]
_OURS = """
eval "$(supervise completion bash)"
COMP_WORDS=($1); [[ $1 == *' ' ]] && COMP_WORDS+=(''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_supervise_completion supervise
printf '%s\\n' "${COMPREPLY[@]}"
"""


def answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, shell: str = "bash") -> list[str]:
    """Return what the shell's script is answered for this command line, at its end."""
    parts = words.split()
    at = len(parts) if words.endswith(" ") else len(parts) - 1
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(at))
    monkeypatch.setenv("_SUPERVISE_COMPLETE", f"{shell}_complete")
    assert main.main([]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("supervise lo", ["plain,logs"]),
        ("supervise checkpoints ", [f"plain,{path.partition(' ')[2]}" for path in COMMANDS if path.startswith("checkpoints ")]),
        ("supervise help checkpoints v", ["plain,verify"]),
        ("supervise logs --fi", ["plain,--first-failure"]),
        ("supervise --log-format ", ["plain,auto", "plain,console", "plain,json"]),
        ("supervise checkpoints verify ", ["file,"]),
        ("supervise --config ", ["file,"]),
        ("supervise --job train -- torchrun tr", ["file,tr"]),
        ("supervise --version v", ["plain,version"]),
        ("supervise nonsense ", ["plain,run"]),
    ],
)
def test_commands_options_values_and_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, expected: list[str]
) -> None:
    assert answers(monkeypatch, capsys, words)[: len(expected)] == expected


def test_the_jobs_of_the_state_directory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for root, job in (("here", "train"), ("here", "eval"), (".supervise", "main")):
        journal = tmp_path / root / job / "nodes" / "gpu-1" / "journal.jsonl"
        journal.parent.mkdir(parents=True)
        journal.touch()
    assert answers(monkeypatch, capsys, "supervise --state-dir here why --job tr") == ["plain,train"]
    assert sorted(answers(monkeypatch, capsys, "supervise why --state-dir here --job ")) == ["plain,eval", "plain,train"]
    assert answers(monkeypatch, capsys, "supervise why --job ") == ["plain,main"]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_every_command_is_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: str) -> None:
    long = {name for param in load_command(path).params for name in param.opts if name.startswith("--")}
    assert long <= {line.partition(",")[2] for line in answers(monkeypatch, capsys, f"supervise {path} --")}


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main.main(["completion", shell]) == 0
    named = capsys.readouterr().out
    assert f"_SUPERVISE_COMPLETE={shell}_complete" in named
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert main.main(["completion"]) == 0
    assert capsys.readouterr().out == named
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main.main(["completion"]) == 64
    assert "no completion for this shell: $SHELL is tcsh" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize(("words", "expected"), [("supervise checkpoints ve", ["verify"]), ("supervise config ", ["show"])])
def test_a_real_bash_completes(tmp_path: Path, words: str, expected: list[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "supervise").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m supervisor "$@"\n')
    (tmp_path / "supervise").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603  our own script
        [bash, "--norc", "-c", _OURS, "bash", words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.stderr) == (expected, "")
