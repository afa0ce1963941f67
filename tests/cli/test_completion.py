"""Completion: what the shells are given, and what they get for an answer. The commands themselves are the only source."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.cli import main
from supervisor.cli.commands import COMMANDS, load_command
from supervisor.cli.completion import SHELLS
from tests.support.waiting import PATIENCE_S

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
        ("supervise --set terminal.lo", ["plain,terminal.log_format="]),
        ("supervise --set terminal.log_format=", ["plain,terminal.log_format=auto", "plain,terminal.log_format=console"]),
        ("supervise --set knobs.batch_change=t", ["plain,knobs.batch_change=true"]),
        ("supervise --standby ", ["plain,auto", "plain,on", "plain,off"]),
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
    shown = [param for param in load_command(path).params if not getattr(param, "hidden", False)]
    long = {name for param in shown for name in param.opts if name.startswith("--")}
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


#: At the end of a command line that is typed, what its shell makes of it.
TYPED = {
    "supervise checkpoints ve": "supervise checkpoints verify",
    "supervise config ": "supervise config show",
    "supervise checkpoints verify trai": "supervise checkpoints verify train.py",
    "supervise --job x -- python trai": "supervise --job x -- python train.py",
}


@pytest.fixture
def shell_environ(tmp_path: Path) -> dict[str, str]:
    """A directory with a `supervise` and a file in it, and an environment that finds them and no settings of a person."""
    (tmp_path / "supervise").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m supervisor "$@"\n')
    (tmp_path / "supervise").chmod(0o755)
    (tmp_path / "train.py").touch()
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def found_shell(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed (Debian: apt-get install {name})")


@pytest.mark.process
@pytest.mark.parametrize(("words", "expected"), [("supervise checkpoints ve", ["verify"]), ("supervise config ", ["show"])])
def test_a_real_bash_completes(tmp_path: Path, shell_environ: dict[str, str], words: str, expected: list[str]) -> None:
    done = subprocess.run(  # noqa: S603  our own script
        [found_shell("bash"), "--norc", "-c", _OURS, "bash", words],
        cwd=tmp_path,
        env=shell_environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (expected, "")


@pytest.mark.process
@pytest.mark.parametrize("words", TYPED)
def test_a_real_fish_completes(tmp_path: Path, shell_environ: dict[str, str], words: str) -> None:
    script = 'supervise completion fish | source; complete -C "$argv"'
    done = subprocess.run(  # noqa: S603  our own script
        [found_shell("fish"), "-c", script, words], cwd=tmp_path, env=shell_environ, capture_output=True, text=True, timeout=99, check=False
    )
    candidates = [line.partition("\t")[0] for line in done.stdout.splitlines()]  # with a description behind
    assert (candidates, done.stderr) == (TYPED[words].split()[-1:], "")


@pytest.mark.process
@pytest.mark.parametrize("words", TYPED)
def test_a_real_zsh_completes(tmp_path: Path, shell_environ: dict[str, str], words: str) -> None:
    """Its completion runs in an editor at a terminal: the line is typed, and printed by what is typed before it afterwards."""
    typed = [
        'autoload -U compinit && compinit -D -u && setopt no_beep && PROMPT= && eval "$(supervise completion zsh)" && print ready >&2',
        f"{words}\t\x01print -r -- 'typed:' ",
        "exit",
    ]
    master, slave = pty.openpty()
    with subprocess.Popen(  # noqa: S603  our own script
        [found_shell("zsh"), "-f", "-i"], cwd=tmp_path, env=shell_environ, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as shell:
        os.close(slave)
        try:
            shown = b""
            for line, awaited in zip(typed, (b"\nready", b"\ntyped: ", b""), strict=True):
                os.write(master, line.encode() + b"\r")
                shown += read_until(master, awaited)
            assert shell.wait(PATIENCE_S) == 0
        finally:
            shell.kill()
            os.close(master)
    answers = [line.strip() for line in shown.decode().splitlines() if line.startswith("typed: ")]
    assert answers == [f"typed: {TYPED[words]}"], shown


def read_until(terminal: int, awaited: bytes) -> bytes:
    """Return what a terminal shows until this and the end of its line are there; with nothing awaited until its shell ends."""
    shown, until = b"", time.monotonic() + 60
    while not awaited or b"\n" not in shown.partition(awaited)[2]:
        assert time.monotonic() < until, shown
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # EIO: nobody holds the other end
                break
    return shown
