"""Recognises torchrun in a command line, and builds the command of our agent, or of stock torchrun, in its place.

A `torchrun` whose interpreter is unknown (a wrapper in bash, a binary) is run stock. torch is not imported: only torch parses torchrun's
arguments. There is one exception: stock torchrun needs `--max-restarts=0` after the user's options and in front of the script. The table
below finds that place; tests compare it with torch's parser.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from supervisor.core.model import Launcher
from supervisor.core.values import Struct
from supervisor.knobs import bindings
from supervisor.knobs.launcher_options import script_index
from supervisor.knobs.python_command import first_line, is_interpreter, split_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGENT_FILE = Path(__file__).resolve().parent.parent / "agent" / "__main__.py"

#: torchrun's options that take no value, with hyphens. Every other takes one, as the next word or after "=".
FLAGS = frozenset({"-h", "--help", "--standalone", "-m", "--module", "--no-python", "--run-path", "--use-env", "--virtual-local-rank"})
_MOST_DIGITS = 18  # int() raises for more than 4300
NO_RESTARTS = "--max-restarts=0"  # we restart it


class Torchrun(Struct, frozen=True):
    """A torchrun command. `head`: the words before torchrun's own `args`. `interpreter` None: it is unknown."""

    head: tuple[str, ...]
    args: tuple[str, ...]
    entry: Literal["torchrun", "run", "launch"]
    interpreter: str | None
    flags: tuple[str, ...] = ()  # the interpreter's


def recognise(command: Sequence[str], *, path: str | None = None) -> Torchrun | None:
    """Return the torchrun command that this is: `torchrun …`, `python -m torch.distributed.run|launch …`, `python …/torchrun …`."""
    if not command:
        return None
    python = split_python(command)
    if python is None:
        if Path(command[0]).name != "torchrun":
            return None
        return Torchrun((command[0],), tuple(command[1:]), "torchrun", *_interpreter_of(command[0], path))
    head = tuple(command[: len(command) - len(python.arguments)])
    interpreter = shutil.which(python.interpreter, path=path)
    if python.kind == "module" and python.target in ("torch.distributed.run", "torch.distributed.launch"):
        entry: Literal["run", "launch"] = "run" if python.target.endswith("run") else "launch"
        return Torchrun(head, python.arguments, entry, interpreter, python.flags)
    if python.kind == "script" and Path(python.target).name == "torchrun":
        return Torchrun(head, python.arguments, "torchrun", interpreter, python.flags)
    return None


def launcher(command: Torchrun | None) -> Launcher:
    """Return how the ranks of a command are run: by our agent, by stock torchrun if its interpreter is unknown, or as it is."""
    if command is None:
        return Launcher.PLAIN
    return Launcher.STOCK if command.interpreter is None else Launcher.ELASTIC


def size(command: Torchrun | None, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the ranks of a node and the number of nodes, each 0 if neither the command nor torchrun's variables give it in figures."""
    return figure(_option(command, environ, "nproc-per-node")), figure(_option(command, environ, "nnodes"))


def most_nodes(command: Torchrun | None, environ: Mapping[str, str]) -> int:
    """Return how many nodes an attempt may have: 4 of `--nnodes=2:4`. 0: unknown."""
    return figure(_option(command, environ, "nnodes").rpartition(":")[2])


def least_nodes(command: Torchrun | None, environ: Mapping[str, str]) -> int:
    """Return with how many nodes an attempt may begin: 2 of `--nnodes=2:4`. 0: unknown."""
    return figure(_option(command, environ, "nnodes").partition(":")[0])


def is_given(command: Torchrun, environ: Mapping[str, str], option: str) -> bool:
    """Return whether the command, by its name or an abbreviation, or torchrun's variable gives one of torchrun's options."""
    return variable(option) in environ or any(_is_option(word, option) for word in own_arguments(command))


def is_standalone(command: Torchrun, environ: Mapping[str, str]) -> bool:
    """Return whether torchrun serves a rendezvous of its own, for one node."""
    return environ.get(variable("standalone"), "0") not in {"", "0"} or any(
        _is_option(word, "standalone") for word in own_arguments(command)
    )


def variable(option: str) -> str:
    """Return the variable from which torchrun takes an option that its command line leaves out."""
    return f"PET_{option.replace('-', '_').upper()}"


def option_value(command: Torchrun, environ: Mapping[str, str], option: str, default: str = "") -> str:
    """Return the value of one of torchrun's own options, of its variable, or `default`."""
    flag = f"--{option}"
    words = [f"{flag}{''.join(word.partition('=')[1:])}" if _is_option(word, option) else word for word in own_arguments(command)]
    return bindings.read(words, bindings.Flag((flag,))) or environ.get(variable(option)) or default


def rendezvous_id(command: Torchrun | None, environ: Mapping[str, str]) -> str:
    """Return torchrun's --rdzv-id, "" without torchrun."""
    return "" if command is None else option_value(command, environ, "rdzv-id", "none")


def _option(command: Torchrun | None, environ: Mapping[str, str], option: str) -> str:
    return "" if command is None else option_value(command, environ, option, "1")


def _is_option(word: str, option: str) -> bool:
    """Return whether argparse takes a word for an option: --rdzv-e is --rdzv-endpoint."""
    name = word.partition("=")[0].replace("_", "-")
    return len(name) > len("--n") and f"--{option}".startswith(name)


def figure(text: str) -> int:
    """Return the number of a launcher's option, 0 where it is not in figures."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def _interpreter_of(torchrun: str, path: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the interpreter, and its flags, that the console script names in its first line.

    Where the interpreter's path has spaces or is long, pip writes `#!/bin/sh` and a second line: '''exec' "/the/python" "$0" "$@".
    """
    file = shutil.which(torchrun, path=path)
    if file is None:
        return None, ()
    words = first_line(file).split()
    if words and Path(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    if words and Path(words[0]).name == "sh":
        words = _second_line(file)
    if words and is_interpreter(words[0]):
        return shutil.which(words[0], path=path), tuple(words[1:])
    return None, ()


def _second_line(file: str) -> list[str]:
    with Path(file).open("rb") as f:
        f.readline(4096)
        line = f.readline(4096).decode(errors="replace")
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    return words[1:-2] if words[:1] == ["exec"] and words[-2:] == ["$0", "$@"] else []


def agent_argv(  # noqa: PLR0913  one for each of the agent's options
    command: Torchrun,
    interpreter: str,
    *,
    link_fd: str,
    output_fd: str,
    grace_s: float,
    streams: str,
    window: tuple[int, int] = (24, 80),
) -> list[str]:
    """Return the argument vector of our agent for the command, run by `interpreter` (command.interpreter).

    `link_fd` and `output_fd` may be the guardian's placeholders. The agent is run by path: another interpreter does not know our package,
    and any interpreter may find another package of that name first.
    """
    own = ["--link-fd", link_fd, "--output-fd", output_fd, "--grace-s", f"{grace_s:g}", "--streams", streams]
    own += ["--window", f"{window[0]}x{window[1]}", "--entry", command.entry]
    return [interpreter, *command.flags, "-P", str(AGENT_FILE), *own, "--", *command.args]


def stock_argv(command: Torchrun, nproc: int | None = None) -> list[str]:
    """Return the user's command with --max-restarts=0 as torchrun's last own option: supervise restarts, each time with a new torchrun.

    nproc: ranks of this node; None: as in the user's command. If it is given twice, argparse takes the last.
    """
    at = script_index(command.args, FLAGS)
    added = [NO_RESTARTS] if nproc is None else [f"--nproc-per-node={nproc}", NO_RESTARTS]
    return [*command.head, *command.args[:at], *added, *command.args[at:]]


def own_arguments(command: Torchrun) -> tuple[str, ...]:
    """Return torchrun's own options, which stand before the script."""
    return command.args[: script_index(command.args, FLAGS)]


def script_arguments(command: Torchrun) -> tuple[str, ...]:
    """Return the script's own arguments, which stand after the script, module or program."""
    at = script_index(command.args, FLAGS)
    if command.args[at : at + 1] == ("--",):
        at += 1
    return command.args[at + 1 :]
