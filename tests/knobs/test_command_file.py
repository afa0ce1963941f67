"""A command that the kernel cannot start is refused before anything starts, with what helps."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from supervisor.errors import SuperviseError
from supervisor.knobs.command_file import require_command

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = b"#!/bin/bash\necho trains\n"
REFUSED = {
    "no first line": (b"python train.py\n", 0o755, "its first line names no interpreter", "supervise -- bash './my job' --x 'a b'"),
    "empty": (b"", 0o755, "its first line names no interpreter", "Put #!/bin/bash there"),
    "of Windows": (b"#!/bin/bash\r\necho\r\n", 0o755, "carriage return", "sed -i 's/\\r$//' './my job'"),
    "of an environment that moved": (
        b"#!/gone/bin/python3\nimport torch\n",
        0o755,
        "its first line names /gone/bin/python3, which is not there",
        "supervise -- python './my job'",
    ),
    "not executable": (SCRIPT, 0o644, "it is not executable", "chmod +x './my job'"),
}
RUN = [SCRIPT, b"#! /bin/sh\n", b"#!/usr/bin/env python3\npass\n", b"#!/bin/sh", b"\x7fELF\2\1\1\0\0", b"MZ\x90\0"]


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_started_is_refused_with_the_reason_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    content, mode, why, hint = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my job"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(SuperviseError) as caught:
        require_command(["./my job", "--x", "a b"], {"PATH": "/usr/bin:/bin"})
    assert caught.value.message.startswith("cannot be run: ./my job: ")
    assert why in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 64
    with pytest.raises(OSError, match=r"Exec format|No such file|denied"):  # the kernel agrees
        subprocess.run(["./my job"], check=True)


@pytest.mark.parametrize("content", RUN)
def test_what_may_run_is_let_pass(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "job"
    file.write_bytes(content)
    file.chmod(0o755)
    require_command([str(file)], {})
    require_command(["job"], {"PATH": str(tmp_path)})


def test_a_word_that_names_no_program_is_answered_by_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    answers = {
        "": "its first word is empty",
        ".": "it is a directory",
        "train.py": "supervise -- python train.py",
        "nosuch": "Check its spelling",
        "torchrun": "It comes with torch",
    }
    for word, answer in answers.items():
        with pytest.raises(SuperviseError, match=answer):
            require_command([word], {"PATH": str(tmp_path / "none")})
