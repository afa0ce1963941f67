"""The man page supervise(1), from the table of the commands, the options of a run and the exit codes. Prints it.

The build of the wheel runs this (hatch_build.py), where most dependencies are not installed: so no command's file is imported.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli.commands import COMMANDS, HIDDEN
from supervisor.cli.main import root
from supervisor.config.loading import CONFIG_VARIABLE, LOCAL_NAME, SYSTEM_FILE
from supervisor.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_VARIABLES: Final = (
    ("SUPERVISE_*", "Settings, which `supervise config show` prints, each with its value and its origin."),
    (CONFIG_VARIABLE, f"The file that is read instead of ./{LOCAL_NAME}."),
    ("STATE_DIRECTORY", "The state directory where --state-dir is not given, as systemd sets it."),
)
_FILES: Final = (
    (LOCAL_NAME, "Settings of the working directory."),
    ("$XDG_CONFIG_HOME/supervise/config.toml", "Settings of the user."),
    (str(SYSTEM_FILE), "Settings of the machine."),
    (".supervise/JOB/nodes/HOST/", "Journal, logs and incidents of a job: the state directory is .supervise, or what --state-dir names."),
)


def exit_codes() -> list[tuple[str, str, str, str]]:
    """Return supervise's exit codes, and those of the job in their places: code, name, meaning, remedy."""
    rows = {code.value: (str(code.value), code.name, code.meaning, code.remedy) for code in ExitCode}
    rows[1] = (
        "1\u201363",
        "",
        "the first failed rank's own code; its codes from 64 on come out as 1, and the card has the true one",
        "see `supervise why`",
    )
    rows[128] = (
        "128+n",
        "",
        ("ended by signal n: a rank that was given up, or the stop that we were asked for. 130 INT (also if a person interrupted "
        "all ranks themselves, not one of several; never requeued), 143 TERM, 129 HUP; after TERM and HUP 75 "
        "instead if the ranks saved ([preemption](preemption.md))"),
        "see `supervise why`",
    )  # fmt: skip
    return [rows[code] for code in sorted(rows)]


def man_page() -> str:
    """Return the page as roff."""
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
    lines += [".SH OPTIONS", *_options(root.params)]
    lines += [".SH COMMANDS", _text("`supervise help COMMAND` shows what a command does, and its options.")]
    for path, (module, line) in COMMANDS.items():
        if module and path not in HIDDEN:
            lines += _item(f"**supervise {path}**", line)
    lines.append(".SH EXIT STATUS")
    for code, name, meaning, remedy in exit_codes():
        lines += _item(f"**{code}**" + (f" {name}" if name else ""), f"{meaning}. To do: {remedy}.")
    for title, rows in (("ENVIRONMENT", _VARIABLES), ("FILES", _FILES)):
        lines.append(f".SH {title}")
        for name, meaning in rows:
            lines += _item(f"**{name}**", meaning)
    return "\n".join(lines) + "\n"


def _options(params: Iterable[click.Parameter]) -> Iterator[str]:
    for param in params:
        if isinstance(param, click.Option):
            record = param.get_help_record(click.Context(root))
            if record is not None:
                names, meaning = record
                yield from _item(re.sub(r"-{1,2}[A-Za-z][\w-]*", lambda match: f"**{match[0]}**", names), meaning)


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
    text = re.sub(r"\*\*(.+?)\*\*|`([^`]+)`", lambda match: rf"\fB{match[1] or match[2]}\fR", text)
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    sys.stdout.write(man_page())
