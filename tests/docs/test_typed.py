"""Every command line of ours on any page is one that our parser takes: its command and its options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from supervisor.cli.invocation import Invocation
from supervisor.cli.main import root

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "systemd" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: What may stand before our command: a prompt, another user, variables, a program that starts it.
BEFORE = re.compile(r"^\s*(?:\$ )?(?:(?:sudo|exec|srun(?: -\S+(?:=\S+)?)*|[A-Z_]+=\S*) )*(?:/\S+/)?supervise (?P<words>\S.*)$")
#: What is no command line: a word to be replaced, and the name of a job's state.
NOT_TYPED = re.compile(r"\bKIND\b|\[OPTIONS\]|\w\|\w|^died$")
#: Where the shell begins another command, or words follow that are not ours.
ENDS = {"--", "|", "||", "&&", "&", ";", ">", "<", "2>"}


def command_lines(text: str) -> Iterator[str]:
    """Yield the words behind `supervise` of each command line, in a block of code or in a sentence."""
    text = text.replace("\\\n", " ")
    fenced = re.findall(r"^ *```\w*\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}.*$", text, flags=re.MULTILINE)
    for line in (line for block in (*fenced, *indented) for line in block.splitlines()):
        if match := BEFORE.match(line):
            yield match["words"]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`supervise ([^`]+)`", prose)


def words_of(line: str) -> list[str]:
    """Return our own words of a command line."""
    words = ["1" if word == "N" else word for word in shlex.split(line, comments=True)]  # a number to be filled in
    end = next((n for n, word in enumerate(words) if word in ENDS or word.startswith((">", "2>"))), len(words))
    return words[:end]


def parse(words: list[str]) -> str:
    """Parse the words as `supervise` does, run nothing, and return the command's name ("": a training). Raises click.UsageError."""
    command: click.Command = root
    first = ""
    context = root.make_context("supervise", words, obj=Invocation({}, None, ("train",)))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]  # noqa: SLF001  what click leaves to the command
        if not rest:
            break
        name, inner, rest = command.resolve_command(context, rest)
        assert name is not None
        assert inner is not None
        first = first or name
        command, context = inner, inner.make_context(name, rest, parent=context)
    return first


LINES = {
    (str(page.relative_to(ROOT)), line)
    for page in PAGES
    for line in command_lines(page.read_text(encoding="utf-8"))
    if not NOT_TYPED.search(line)
}


def test_each_command_line_is_taken() -> None:
    wrong = []
    for page, line in sorted(LINES):
        try:
            parse(words_of(line))
        except click.MissingParameter:  # the text names a command
            continue
        except (click.UsageError, ValueError) as error:
            wrong.append(f"{page}: supervise {line}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(LINES) > 150


@pytest.mark.parametrize("line", ["statsu", "status --wacth", "--chekpoints x -- train.py"])
def test_a_command_line_that_is_wrong_is_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(words_of(line))
