"""The commands about the command line itself: `supervise help [COMMAND]...` and `supervise version`."""

from __future__ import annotations

import sys

import click

from supervisor.cli import stdio
from supervisor.cli.commands import CommandGroup
from supervisor.version import __version__


def _commands_below(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the commands that may follow the words so far."""
    words: tuple[str, ...] = context.params.get("words") or ()
    group = CommandGroup(path=" ".join(words))
    return [name for name, _ in group.lines() if name.startswith(incomplete)]


@click.command()
@click.argument("words", metavar="[COMMAND]...", nargs=-1, shell_complete=_commands_below)
def help_command(words: tuple[str, ...]) -> int:
    """Without a COMMAND it lists all commands. `supervise help checkpoints verify` shows a command of two words."""
    context = click.get_current_context().find_root()
    named = context.command
    for word in words:
        command = named.get_command(context, word) if isinstance(named, click.Group) else None
        if command is None:
            raise click.UsageError(f"No such command '{word}'.", context)
        context, named = click.Context(command, info_name=word, parent=context), command
    stdio.write(sys.stdout, named.get_help(context))
    return 0


@click.command()
def version_command() -> int:
    """`supervise --version` does the same."""
    return print_version()


def print_version() -> int:
    """Print the version. Returns 0."""
    stdio.write(sys.stdout, f"supervise {__version__}")
    return 0
