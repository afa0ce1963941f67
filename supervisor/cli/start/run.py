"""`supervise run -- CMD`: supervises CMD; `supervise -- CMD` is the same."""

from __future__ import annotations

import gc

import click

from supervisor.cli.invocation import BEFORE_CMD, EVERY, Invocation, setting_options


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*EVERY, takes_command=True)
def command(invocation: Invocation) -> int:
    """The exit code is the job's own, or one of docs/exit-codes.md."""
    settings, words = invocation.settings_and_command()
    gc.disable()  # a collection during the imports, and later of what they made, finds nothing: a sixth of the start
    from supervisor.run.main import run  # noqa: PLC0415  the heavy part, not needed for --help

    gc.collect()
    gc.freeze()
    gc.enable()
    return run(settings, list(words))
