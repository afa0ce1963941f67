"""A torchrun command is recognised and replaced by our agent."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.knobs.torchrun import (
    AGENT_FILE,
    FLAGS,
    Torchrun,
    agent_argv,
    least_nodes,
    most_nodes,
    recognise,
    script_arguments,
    size,
    stock_argv,
)
from tests.support import preloaded

if TYPE_CHECKING:
    from pathlib import Path


def script(where: Path, text: str, name: str = "torchrun") -> str:
    where.mkdir(parents=True, exist_ok=True)
    (where / name).write_text(text)
    (where / name).chmod(0o755)
    return str(where / name)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A bin directory with a python of its own."""
    script(tmp_path / "a venv", "", "python3.11")
    return tmp_path / "a venv"


@pytest.mark.parametrize(
    ("first", "is_known"),
    [
        ("#!{venv}/python3.11\n", False),  # a path with a space cannot stand there: the kernel would not run it
        ("#!/bin/sh\n'''exec' \"{venv}/python3.11\" \"$0\" \"$@\"\n' '''\n", True),
        ("#!/bin/sh\nexec something else\n", False),
        ("#!/bin/sh\nit's unbalanced\n", False),
        ("#!/usr/bin/env python3.11\n", True),
        ("#!/usr/bin/env -S python3.11 -u\n", True),
        ("#!/usr/bin/env bash\n", False),
        ("\x7fELF", False),
    ],
)
def test_the_interpreter_is_read_from_the_console_script(venv: Path, first: str, is_known: bool) -> None:  # noqa: FBT001
    torchrun = script(venv, first.format(venv=venv))
    command = recognise([torchrun, "--nproc-per-node=2", "train.py"], path=str(venv))
    assert command is not None
    assert command.interpreter == (str(venv / "python3.11") if is_known else None)
    assert command.flags == (("-u",) if "-S" in first else ())
    assert (command.head, command.args) == ((torchrun,), ("--nproc-per-node=2", "train.py"))


def test_torchrun_is_found_on_the_path_and_may_be_absent(venv: Path) -> None:
    script(venv, "#!/usr/bin/env python3.11\n")
    launch = recognise(["torchrun", "x.py"], path=str(venv))
    absent = recognise(["torchrun", "x.py"], path=str(venv / "nowhere"))
    assert launch is not None
    assert launch.interpreter == str(venv / "python3.11")
    assert absent is not None
    assert absent.interpreter is None


@pytest.mark.parametrize(
    ("command", "entry", "head", "args", "flags"),
    [
        ("-m torch.distributed.run -m mod", "run", "-m torch.distributed.run", "-m mod", ""),
        ("-u -mtorch.distributed.launch x.py", "launch", "-u -mtorch.distributed.launch", "x.py", "-u"),
        ("/venv/bin/torchrun --standalone x.py", "torchrun", "/venv/bin/torchrun", "--standalone x.py", ""),
    ],
)
def test_python_running_torchrun(command: str, entry: str, head: str, args: str, flags: str) -> None:
    launch = recognise([sys.executable, *command.split()])
    assert launch is not None
    assert (launch.entry, launch.interpreter) == (entry, sys.executable)
    assert (list(launch.head), list(launch.args), list(launch.flags)) == ([sys.executable, *head.split()], args.split(), flags.split())


@pytest.mark.parametrize(
    "command", ["", "python train.py", "python -m torch.distributed.runner", "accelerate launch x.py", "bash torchrun"]
)
def test_anything_else_is_not_torchrun(command: str) -> None:
    assert recognise(command.split()) is None


def test_our_own_interpreter_runs_the_agent_as_a_module_and_another_by_path() -> None:
    command = recognise([sys.executable, "-X", "dev", "-m", "torch.distributed.launch", "x.py", "--", "y"])
    assert command is not None
    options = {"link_fd": "{link_fd}", "output_fd": "{output_fd}", "grace_s": 5.0, "streams": "one"}
    texts = agent_argv(command, sys.executable, **options)  # type: ignore[arg-type]  # each has its type
    other = agent_argv(command, "/elsewhere/bin/python3", **options)  # type: ignore[arg-type]
    assert texts[:5] == [sys.executable, "-X", "dev", "-P", str(AGENT_FILE)]
    assert other[:5] == ["/elsewhere/bin/python3", "-X", "dev", "-P", str(AGENT_FILE)]
    assert texts[-4:] == ["--", "x.py", "--", "y"]
    assert texts[texts.index("--entry") + 1] == "launch"


def test_the_agent_starts_by_path(tmp_path: Path) -> None:
    """Where our package is not among the interpreter's: with -I neither the working directory nor PYTHONPATH helps."""
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-I", str(AGENT_FILE), "--help"], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "--link-fd" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("inside", ["import sys", "import pkgutil; __path__ = pkgutil.extend_path(__path__, __name__)"])
def test_the_agent_starts_whoever_else_is_named_like_us(tmp_path: Path, inside: str) -> None:
    """A user's own `supervisor` on PYTHONPATH, or supervisord in the interpreter whose torch it is."""
    (tmp_path / "supervisor" / "agent").mkdir(parents=True)
    for package in ("supervisor", "supervisor/agent"):
        (tmp_path / package / "__init__.py").write_text(inside)
    argv = agent_argv(
        Torchrun(("torchrun",), ("train.py",), "torchrun", sys.executable, ()),
        sys.executable,
        link_fd="3",
        output_fd="4",
        grace_s=5,
        streams="two",
    )
    argv[argv.index("--link-fd")] = "--help"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)  # noqa: S603  our own interpreter
    assert (done.returncode, "--link-fd" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("args", "stock"),
    [
        (
            "--max-restarts=3 --nproc-per-node 2 train.py --max-restarts=9",
            "--max-restarts=3 --nproc-per-node 2 {} train.py --max-restarts=9",
        ),
        ("--standalone -m pkg.train --lr 1", "--standalone -m {} pkg.train --lr 1"),
        ("--stand --max_restarts 3 train.py", "--stand --max_restarts 3 {} train.py"),
        ("-t 3 -r0:1 train.py -x", "-t 3 -r0:1 {} train.py -x"),
        ("--no-python -- ./run", "--no-python {} -- ./run"),
        ("--nproc-per-node 2", "--nproc-per-node 2 {}"),
    ],
)
def test_stock_torchrun_never_restarts_by_itself(args: str, stock: str) -> None:
    command = recognise([sys.executable, "-m", "torch.distributed.run", *args.split()])
    assert command is not None
    assert stock_argv(command)[3:] == stock.format("--max-restarts=0").split()
    assert stock_argv(command, 2)[3:] == stock.format("--nproc-per-node=2 --max-restarts=0").split()


@pytest.mark.parametrize(
    ("args", "behind"),
    [
        ("--nproc-per-node 2 train.py --lr 1 -- x", "--lr 1 -- x"),
        ("--standalone -m pkg.train --lr 1", "--lr 1"),
        ("--no-python -- ./run --lr 1", "--lr 1"),
        ("train.py", ""),
        ("--nproc-per-node 2", ""),
    ],
)
def test_the_scripts_own_arguments_stand_behind_the_script(args: str, behind: str) -> None:
    command = recognise([sys.executable, "-m", "torch.distributed.run", *args.split()])
    assert command is not None
    assert list(script_arguments(command)) == behind.split()


@pytest.mark.process
def test_the_table_of_flags_is_torchs() -> None:
    """Also that a word of ours after the user's own holds. In a process of its own: torch stays out of this one."""
    code = """
import json, sys
from torch.distributed import launch, run
parser = run.get_args_parser()
parser.add_argument("--use-env", "--use_env", action="store_true")
flags = sorted({o.replace("_", "-") for a in parser._actions if a.nargs == 0 for o in a.option_strings})
print(json.dumps([flags, vars(run.parse_args(sys.argv[1:]))["max_restarts"]]))
"""
    command = recognise([sys.executable, "-m", "torch.distributed.run", "--max-restarts", "3", "x.py", "--max-restarts=5"])
    assert command is not None
    done = preloaded.run("-c", code, *stock_argv(command)[3:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"[{str(sorted(FLAGS)).replace(chr(39), chr(34))}, 0]"


@pytest.mark.parametrize(
    ("args", "nodes"),
    [
        ("--nnodes 2:4", (0, 2, 4)),
        ("--nnodes=3", (3, 3, 3)),
        ("", (1, 1, 1)),
        ("--nnodes=$NODES", (0, 0, 0)),
        ("--nnodes=1:$NODES", (0, 1, 0)),
    ],
)
def test_an_elastic_number_of_nodes_is_no_world_size_but_has_a_least_and_a_greatest(args: str, nodes: tuple[int, int, int]) -> None:
    command = recognise([sys.executable, "-m", "torch.distributed.run", *args.split(), "x.py"])
    assert (size(command, {})[1], least_nodes(command, {}), most_nodes(command, {})) == nodes


@pytest.mark.parametrize(
    ("args", "environ", "ranks_and_nodes", "most"),
    [
        ("", {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "n0"}, (8, 2), 2),
        ("", {"PET_NNODES": "2:4", "PET_NPROC_PER_NODE": "gpu", "PET_RDZV_BACKEND": "c10d"}, (0, 0), 4),
        ("--nnode=3 --nproc_per=4", {"PET_NNODES": "2"}, (4, 3), 3),
        ("", {"MASTER_ADDR": "n0", "NODE_RANK": "1", "WORLD_SIZE": "16"}, (1, 1), 1),  # torchrun reads none of these
    ],
    ids=["static", "elastic", "words-first", "of-ranks"],
)
def test_torchruns_variables_give_what_its_words_leave_out(
    args: str, environ: dict[str, str], ranks_and_nodes: tuple[int, int], most: int
) -> None:
    command = recognise([sys.executable, "-m", "torch.distributed.run", *args.split(), "x.py"])
    assert (size(command, environ), most_nodes(command, environ)) == (ranks_and_nodes, most)
