"""`supervise config show`: every setting, its value, and where the value comes from."""

from __future__ import annotations

import sys

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.config.loading import show


@click.command()
@setting_options(*JOB)
@json_option
def show_command(invocation: Invocation, *, as_json: bool) -> int:
    """With `supervise OPTIONS config show` it shows what the options of a run would do. Secrets are shown as digests."""
    stdio.write(sys.stdout, show(invocation.settings(), as_json=as_json))
    return 0
