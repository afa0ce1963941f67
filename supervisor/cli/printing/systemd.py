"""`supervise print systemd`: the units that `supervise systemd install` installs (docs/guides/systemd.md)."""

from __future__ import annotations

import sys

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import Invocation, setting_options


@click.command()
@setting_options()
@click.argument("file", metavar="[FILE]", required=False)
def print_command(_invocation: Invocation, *, file: str | None) -> int:
    """Without FILE all of them are printed, each below its name. job.toml is an example of a job's configuration."""
    from supervisor.cli.systemd import installation  # noqa: PLC0415  not for --help

    if file is not None:
        stdio.write(sys.stdout, installation.text(file).rstrip("\n"))
        return 0
    for name in installation.names():
        stdio.write(sys.stdout, f"#### {name}\n{installation.text(name)}")
    return 0
