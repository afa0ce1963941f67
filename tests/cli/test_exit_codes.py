"""The exit codes of the commands beside `run`, as docs/reference/exit-codes.md and docs/reference/commands.md have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        # nothing there that could be read: an empty list is an answer, a job that is missing is not
        ("ls", 0), ("stop", 0), ("nodes clear all", 0),
        ("status", 64), ("why", 64), ("logs", 64), ("status --stacks", 64), ("status --rank 1", 64),
        ("bundle", 64), ("stop --job x", 64), ("why --job x", 64),
        ("checkpoints ls --job x", 64),
        ("nodes clear GPU-0", 64), ("classify none.log", 64), ("doctor --kernel-log none.log", 64), ("help nonsense", 64),
        # a checkpoint that is not there is not good
        ("checkpoints verify none.pt", 1), ("checkpoints latest none", 1), ("checkpoints push none.pt --mirror mirror --job j", 1),
        ("checkpoints convert none.pt out --to hf", 1), ("checkpoints convert none.pt out", 64),
        ("checkpoints convert none.pt out --to onnx", 64),
        ("checkpoints convert none.pt none/out --to hf", 64), ("checkpoints convert none.pt mirror --to hf", 64),
        # the command line
        ("plan -- no-such-program", 64), ("plan --cause nonsense -- true", 64), ("drill nonsense -- true", 64), ("drill kill", 64),
        ("doctor --nodes --all", 64), ("completion tcsh", 64), ("--mirror s3:// -- true", 64), ("--keep=-1 -- true", 64),
        ("-- no-such-program", 64), ("status --job a/b", 64), ("config", 64), ("--nonsense", 64),
        # configuration, and what it names
        ("--config none.toml -- true", 78), ("--state-dir /proc/none -- true", 78), ("checkpoints push none.pt --job j", 78),
        ("checkpoints ls --job j --mirror none/mirror", 78), ("checkpoints restore --job j --mirror none/mirror", 78),
    ],
)  # fmt: skip
def test_a_command_ends_with_the_documented_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("SLURM_JOB_ID", "STATE_DIRECTORY", "SUPERVISE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mirror").mkdir()
    assert main(words.split()) == code
    assert (code in {0, 1}) == ("error:" not in capfd.readouterr().err)
    assert not list(tmp_path.glob(".supervise/*/nodes"))
