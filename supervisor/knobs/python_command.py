"""Splits a Python command line, and decides whether a command is a rank itself or launches ranks (SUPERVISE_JOB_SHIM).

Only the first line of a script is read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

ShimMode = Literal["rank", "launcher"]

_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?[dt]?")
# -m and -c end CPython's options and take the text joined to them (-ummod); before them are letters other than -W and -X, which would
# have taken the rest of the word as their value.
_ENDS = re.compile(r"-(?P<before>[^-mcWX]*)(?P<how>[mc])(?P<rest>.*)", re.DOTALL)
_WANTS_A_VALUE = re.compile(r"-[^-mcWX]*[WX]|--check-hash-based-pycs")

#: Programs that start ranks of their own: as a command, as a script's file name, as `python -m NAME` or `NAME.anything`.
LAUNCHERS = frozenset(
    {"accelerate", "colossalai", "composer", "deepspeed", "fabric", "horovod", "horovodrun", "lightning", "mpirun", "pdsh", "ray", "srun"}
    | {"torchrun", "torchx"}
)
LAUNCHER_MODULES = LAUNCHERS | {"torch.distributed", "torch.multiprocessing"}


class PythonCommand(Struct, frozen=True):
    """`interpreter flags [-m|-c] target arguments`. kind: script, module or code; none: interactive (no target) or stdin."""

    interpreter: str
    flags: tuple[str, ...]
    kind: Literal["script", "module", "code", "none"]
    target: str
    arguments: tuple[str, ...]


def is_interpreter(word: str) -> bool:
    """Return whether the word names a CPython: python, python3, /usr/bin/python3.12 and the like."""
    return _INTERPRETER.fullmatch(Path(word).name) is not None


def split_python(command: Sequence[str]) -> PythonCommand | None:
    """Return the parts of a Python command line, by CPython's own rules; None if the command is not an interpreter's."""
    if not command or not is_interpreter(command[0]):
        return None
    words = list(command[1:])
    flags: list[str] = []
    while words:
        word = words.pop(0)
        if word == "-" or not word.startswith("-"):
            kind: Literal["script", "none"] = "none" if word == "-" else "script"
            return PythonCommand(command[0], tuple(flags), kind, word, tuple(words))
        if (ends := _ENDS.match(word)) is not None:
            if ends["before"]:
                flags.append("-" + ends["before"])
            target = ends["rest"] or (words.pop(0) if words else "")
            return PythonCommand(command[0], tuple(flags), "module" if ends["how"] == "m" else "code", target, tuple(words))
        flags.append(word)
        if _WANTS_A_VALUE.fullmatch(word) and words:
            flags.append(words.pop(0))
    return PythonCommand(command[0], tuple(flags), "none", "", ())


def shim_mode(command: Sequence[str]) -> ShimMode:
    """Return "rank" if the command is the training process itself, "launcher" if it starts training processes.

    A launcher's shim leaves the launcher alone and instruments the processes that have a RANK. A command that is not known to be a rank
    is treated as a launcher: an instrumented launcher would claim rank 0's slot.
    """
    python = split_python(command)
    if python is None:
        return "rank" if command and _is_python_script(command[0]) else "launcher"
    if python.kind == "module":
        head = python.target.split(".")
        return "launcher" if any(".".join(head[:n]) in LAUNCHER_MODULES for n in (1, 2)) else "rank"
    if python.kind == "script":
        return "launcher" if Path(python.target).name in LAUNCHERS else "rank"
    return "rank" if python.kind == "code" else "launcher"


def _is_python_script(path: str) -> bool:
    """Return whether it is ./train.py with a Python first line. Console scripts have that line too, but no suffix; many are launchers."""
    if not path.endswith(".py"):
        return False
    return any(is_interpreter(word) for word in first_line(path).split())


def first_line(path: str) -> str:
    """Return what follows #! in a file's first line, or ""."""
    try:
        with Path(path).open("rb") as f:
            line = f.readline(4096)
    except OSError:
        return ""
    return line[2:].decode(errors="replace").strip() if line.startswith(b"#!") else ""
