"""`supervise run -- CMD`: supervises CMD; `supervise -- CMD` is the same."""

from __future__ import annotations

import click

from supervisor.cli.invocation import BEFORE_CMD, FLAGS, Invocation, setting_options


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*FLAGS, takes_command=True)
def command(invocation: Invocation) -> int:
    """The exit code is the job's own, or one of docs/reference/exit-codes.md."""
    settings, words = invocation.settings_and_command()
    from supervisor.run.start import run  # noqa: PLC0415  not needed for --help

    return run(settings, list(words), takeover=invocation.takeover)
