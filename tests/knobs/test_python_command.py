"""Which commands are ranks and which are launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.knobs.python_command import PythonCommand, shim_mode, split_python

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("command", "mode"),
    [
        ("python train.py --lr 1", "rank"),
        ("/usr/bin/python3.12 -u train.py", "rank"),
        ("python3 -m mypackage.train", "rank"),
        ("python -c pass", "rank"),
        ("python -W error -X dev train.py", "rank"),
        ("accelerate launch train.py", "launcher"),
        ("python -m accelerate.commands.launch train.py", "launcher"),
        ("python -m torch.distributed.run train.py", "launcher"),
        ("python -m torch_geometric.train", "rank"),
        ("python /venv/bin/accelerate launch train.py", "launcher"),
        ("deepspeed train.py", "launcher"),
        ("torchrun train.py", "launcher"),
        ("bash run.sh", "launcher"),
        ("numactl python train.py", "launcher"),
        ("pythonic train.py", "launcher"),
        ("python", "launcher"),
        ("python -", "launcher"),
    ],
)
def test_a_command_is_a_rank_or_a_launcher(command: str, mode: str) -> None:
    assert shim_mode(command.split()) == mode


def test_a_script_run_by_its_first_line_is_a_rank_if_that_is_python_and_its_name_says_so_too(tmp_path: Path) -> None:
    train, console, shell = tmp_path / "train.py", tmp_path / "console", tmp_path / "train.sh.py"
    train.write_text("#!/usr/bin/env python3\n")
    console.write_text("#!/usr/bin/python3\n")
    shell.write_text("#!/bin/sh\n")
    assert [shim_mode([str(f)]) for f in (train, console, shell)] == ["rank", "launcher", "launcher"]
    assert shim_mode([str(tmp_path / "absent.py")]) == "launcher"


@pytest.mark.parametrize(
    ("command", "flags", "kind", "target", "arguments"),
    [
        ("python -um mod -m x", ["-u"], "module", "mod", ["-m", "x"]),
        ("python -mmod", [], "module", "mod", []),
        ("python -Wignore -X dev s.py -c", ["-Wignore", "-X", "dev"], "script", "s.py", ["-c"]),
        ("python -Wmodule s.py", ["-Wmodule"], "script", "s.py", []),
        ("python -uXdev -B s.py", ["-uXdev", "-B"], "script", "s.py", []),
        ("python --check-hash-based-pycs always s.py", ["--check-hash-based-pycs", "always"], "script", "s.py", []),
        ("python -Bc pass a", ["-B"], "code", "pass", ["a"]),
        ("python -i", ["-i"], "none", "", []),
        ("python -m", [], "module", "", []),
    ],
)
def test_a_python_command_line_is_read_as_cpython_reads_it(
    command: str, flags: list[str], kind: str, target: str, arguments: list[str]
) -> None:
    assert split_python(command.split()) == PythonCommand("python", tuple(flags), kind, target, tuple(arguments))  # type: ignore[arg-type]  # a table's text
