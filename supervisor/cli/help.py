"""`supervise help [COMMAND]...`: the same as `supervise COMMAND --help`."""

from __future__ import annotations

import sys

import click

from supervisor.cli import stdio


@click.command()
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def command(words: tuple[str, ...]) -> int:
    """Without a COMMAND it lists all commands. `supervise help checkpoints verify` is one of two words."""
    context = click.get_current_context().find_root()
    named = context.command
    for word in words:
        found = named.get_command(context, word) if isinstance(named, click.Group) else None
        if found is None:
            raise click.UsageError(f"No such command '{word}'.", context)
        context, named = click.Context(found, info_name=word, parent=context), found
    stdio.write(sys.stdout, named.get_help(context))
    return 0
