"""`supervise run -- CMD`: supervises CMD; `supervise -- CMD` is the same."""

from __future__ import annotations

import shlex

import click

from supervisor.cli.commands import GroupedCommand
from supervisor.cli.invocation import BEFORE_CMD, FLAGS, Invocation, setting_options
from supervisor.report.text import cut

#: The longest command that is shown, in characters.
_LONGEST_COMMAND = 80


@click.command(cls=GroupedCommand, options_metavar=BEFORE_CMD)
@setting_options(*FLAGS, takes_command=True)
def command(invocation: Invocation) -> int:
    """The exit code is the job's own, or one of docs/reference/exit-codes.md."""
    settings, words = invocation.settings_and_command()
    from supervisor.report.terminal import terminal_of  # noqa: PLC0415  not needed for --help

    terminal = terminal_of(settings)
    terminal.waiting(f"starting {cut(shlex.join(words), _LONGEST_COMMAND)} …")  # before anything that takes a moment
    from supervisor.run.start import run  # noqa: PLC0415  the heavy part

    return run(settings, list(words), terminal, takeover=invocation.takeover)
