"""Says before anything starts that a command cannot be run, why, and what helps.

A shell runs a script without a `#!` line by itself; the kernel, which starts the command here, does not. What this lets pass may still
fail to start: then the attempt reports it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from typing import TYPE_CHECKING, Final

from supervisor.errors import TORCH_BUILDS, ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAGIC: Final = b"#!"
_HEAD_BYTES: Final = 256  # as much of a first line as the kernel reads (BINPRM_BUF_SIZE)
_UNREADABLE: Final = b"\0"  # as of a program that is no script


def require_command(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise SuperviseError if the command's first word cannot be run."""
    program = shutil.which(command[0], path=environ.get("PATH"))
    message, hint = _not_found(command) if program is None else _unfit(program, command)
    if message:
        raise SuperviseError(message, hint=hint, exit_code=ExitCode.USAGE)


def _not_found(command: Sequence[str]) -> tuple[str, str]:
    word = command[0]
    if not word.strip():
        return "no such command: its first word is empty", "See whether a variable in it is unset; the command comes after `--`."
    if word == "torchrun":
        hint = f"It comes with torch: activate the job's environment, or install torch there ({TORCH_BUILDS})."
        return f"no such command: {word}: it is not on PATH, or not executable", hint
    if os.path.isdir(word):  # noqa: PTH112 -- a word as the shell gave it
        return f"cannot be run: {word}: it is a directory", "Give the path of the program in it after `--`."
    if os.path.isfile(word):  # noqa: PTH113 -- as above
        head = _head_of(word)
        if "/" not in word:
            return f"no such command: {word}: it is a file here, and not on PATH", f"Write {_by_interpreter(word, command, head)}"
        executable = f"Make it executable (chmod +x {shlex.quote(word)})"
        is_script = b"\0" not in head
        hint = f"{executable}, or write {_by_interpreter(word, command, head)}" if is_script else f"{executable}."
        return f"cannot be run: {word}: it is not executable", hint
    return f"no such command: {word}: it is not on PATH, or not executable", "Check its spelling, or give its whole path after `--`."


def _unfit(program: str, command: Sequence[str]) -> tuple[str, str]:
    """Return why the kernel does not run a file that begins so, and what helps; two empty words where it may."""
    head = _head_of(program)
    first = head.partition(b"\n")[0]
    subject, instead = f"cannot be run: {command[0]}: its first line", _by_interpreter(program, command, head)
    if not first.startswith(_MAGIC):
        if b"\0" in head:  # a program, of this machine or another
            return "", ""
        return f"{subject} names no interpreter", f"Put #!/bin/bash there, or write {instead}"
    if first.endswith(b"\r"):
        return f"{subject} ends with a carriage return, as on Windows", f"Take them out: sed -i 's/\\r$//' {shlex.quote(program)}"
    words = first.removeprefix(_MAGIC).split()
    if words and len(head) > len(first) and not os.path.exists(words[0]):  # noqa: PTH110 -- bytes
        return f"{subject} names {os.fsdecode(words[0])}, which is not there", f"Correct that line, or write {instead}"
    return "", ""


def _by_interpreter(program: str, command: Sequence[str], head: bytes) -> str:
    first = head.partition(b"\n")[0]
    is_python = program.endswith(".py") or (first.startswith(_MAGIC) and b"python" in first)
    return f"supervise -- {shlex.join(['python' if is_python else 'bash', program, *command[1:]])}"


def _head_of(program: str) -> bytes:
    """Return how a file begins."""
    try:
        descriptor = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _UNREADABLE
    try:
        return os.read(descriptor, _HEAD_BYTES)
    except OSError:
        return _UNREADABLE
    finally:
        os.close(descriptor)
