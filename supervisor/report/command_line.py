"""A command as a person can paste it into a shell: whole, on one line, and without the secrets in it.

A secret is left to a variable that is named after its option: `--hub-token="${HUB_TOKEN:?}"`. A shell in which it is not set refuses the
command and names the variable.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from supervisor.core.shell import quoted
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

#: For a secret that is under no telling name, such as one in a URL. The name must not be one that a shell has already: USER.
_NO_NAME: Final = "SECRET"
#: The name before a value: `--hub-token=`, `API_KEY=`, `"token": "`, and an option alone.
_NAME = re.compile(r"(?P<name>[A-Za-z][\w.-]*)[\"']?(?:[ =:]+[\"']?)?$")


class CommandLine(Struct, frozen=True):
    """A command for a shell."""

    text: str
    variables: tuple[str, ...]  # must be set first, because their values are not shown


def command_line(words: Sequence[str]) -> CommandLine:
    """Return the words as a shell takes them."""
    from supervisor.classify import redact  # noqa: PLC0415  its patterns take 25 ms, for which a start would wait

    names: dict[str, str] = {}  # by the digest that means the value
    shown, option = [], ""
    for word in redact.command(words):
        parts, at = [], 0
        for mark in redact.MARKED.finditer(word):
            before = word[at : mark.start()]
            name = names.get(mark[0]) or _unused(_variable(before or (option if not at else "")), names.values())
            names[mark[0]] = name
            parts += [*([quoted(before)] if before else []), f'"${{{name}:?}}"']
            at = mark.end()
        parts += [quoted(word[at:])] if word[at:] or not parts else []
        shown.append("".join(parts))
        option = word if word.startswith("-") and "=" not in word else ""
    return CommandLine(" ".join(shown), tuple(names.values()))


class NextStart(Struct, frozen=True):
    """How a run that ended is started again. begins: from which checkpoint it would continue, in words."""

    command: CommandLine  # its text is "" where it is not known
    begins: str


def own_invocation() -> tuple[str, ...]:
    """Return the command line of this supervise, as a person would type it."""
    return "supervise", *sys.argv[1:]


def start_again(invocation: Sequence[str], cwd: str, options: Sequence[str] = ()) -> CommandLine:
    """Return the command that starts a job again as it was started, in whatever directory it is typed; its text is "" where none is known.

    options: further words, which stand first.
    """
    if not invocation:
        return CommandLine("", ())
    line = command_line((*invocation[:1], *options, *invocation[1:]))
    return replace(line, text=f"cd {quoted(cwd)} && {line.text}") if cwd else line


def _variable(before: str) -> str:
    """Return the name of a variable for a value, by the word before it."""
    from supervisor.classify import secret_forms  # noqa: PLC0415  as above

    match = _NAME.search(before)
    if match is None or "://" in before.rpartition(" ")[2] or not secret_forms.is_secret_name(match["name"]):
        return _NO_NAME
    return re.sub(r"\W+", "_", match["name"].replace("-", "_")).strip("_").upper()


def _unused(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number where another value has it."""
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + 3))
    return next(free for free in (name, *numbered) if free not in taken)
