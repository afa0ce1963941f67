"""The man page supervise(1), from the commands themselves, their options and the exit codes. bench/reference.py writes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli.commands import COMMANDS, HIDDEN, load_command
from supervisor.cli.main import root
from supervisor.config.loading import CONFIG_VARIABLE, LOCAL_NAME, SYSTEM_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_VARIABLES: Final = (
    ("SUPERVISE_*", "Settings, as docs/reference/settings.md lists them; `supervise config show` prints each with its origin."),
    (CONFIG_VARIABLE, f"The file that is read instead of ./{LOCAL_NAME}."),
    ("STATE_DIRECTORY", "The state directory where --state-dir is not given, as systemd sets it."),
)
_FILES: Final = (
    (LOCAL_NAME, "Settings of the working directory."),
    ("$XDG_CONFIG_HOME/supervise/config.toml", "Settings of the user."),
    (str(SYSTEM_FILE), "Settings of the machine."),
    (".supervise/JOB/nodes/HOST/", "Journal, logs and incidents of a job: the state directory is .supervise, or what --state-dir names."),
)


def man_page(exit_codes: Iterable[Sequence[str]]) -> str:
    """Return the page as roff. `exit_codes`: code, name, meaning and remedy, in Markdown."""
    lines = [
        '.TH SUPERVISE 1 "" "torch-supervise" "User Commands"',
        ".SH NAME",
        r"supervise \- fault-tolerant job supervisor for PyTorch training",
    ]
    lines += [
        ".SH SYNOPSIS",
        ".nf",
        *(_text(line) for line in ("**supervise** [OPTIONS] -- CMD...", "**supervise** COMMAND [OPTIONS] ...")),
        ".fi",
    ]
    lines += [".SH DESCRIPTION", *_paragraphs(root.help or ""), ".PP", _text(root.epilog or "")]
    lines += [".SH OPTIONS", *_options(root.params, frozenset()), ".SH COMMANDS", *_commands()]
    lines.append(".SH EXIT STATUS")
    for code, name, meaning, remedy in exit_codes:
        lines += _item(f"**{code}**" + (f" {name}" if name else ""), f"{meaning}. To do: {remedy}.")
    for title, rows in (("ENVIRONMENT", _VARIABLES), ("FILES", _FILES)):
        lines.append(f".SH {title}")
        for name, meaning in rows:
            lines += _item(f"**{name}**", meaning)
    return "\n".join(lines) + "\n"


def _commands() -> Iterator[str]:
    common = frozenset(param.name for param in root.params)
    for path in COMMANDS:
        command = load_command(path)
        if isinstance(command, click.Group) or path in HIDDEN:
            continue
        context = click.Context(command, info_name=f"supervise {path}")
        usage = " ".join([f"**supervise {path}**", *command.collect_usage_pieces(context)])
        yield from (".SS " + _text(usage), *_paragraphs(command.help or ""))
        yield from _options(command.params, common)
        shared = [param for param in command.params if isinstance(param, click.Option) and param.name in common]
        if len(shared) == len([param for param in root.params if param.name != "version"]):
            yield from (".PP", "It takes all options of the section OPTIONS, too.")
        elif shared:
            yield from (".PP", _text(f"It takes {', '.join(f'**{param.opts[-1]}**' for param in shared)}, too."))


def _options(params: Iterable[click.Parameter], without: frozenset[str | None]) -> Iterator[str]:
    for param in params:
        if isinstance(param, click.Option) and param.name not in without:
            record = param.get_help_record(click.Context(root))
            if record is not None:
                names, meaning = record
                yield from _item(re.sub(r"-{1,2}[A-Za-z][\w-]*", lambda found: f"**{found[0]}**", names), meaning)


def _item(head: str, text: str) -> list[str]:
    return [".TP", _text(head), _text(text)]


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _text(markdown: str) -> str:
    """Return Markdown as one line of roff."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown).replace("\\", r"\e").replace("-", r"\-").replace("–", r"\(en")  # noqa: RUF001  as the table has it
    text = re.sub(r"\*\*(.+?)\*\*|`([^`]+)`", lambda found: rf"\fB{found[1] or found[2]}\fR", text)
    return rf"\&{text}" if text.startswith((".", "'")) else text
