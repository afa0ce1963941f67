"""`supervise config show`: every setting, its value, and where the value comes from."""

from __future__ import annotations

import sys

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import EVERY, Invocation, json_option, setting_options
from supervisor.config.loading import show


@click.command()
@setting_options(*EVERY)
@json_option
def show_command(invocation: Invocation, *, as_json: bool) -> int:
    """It takes the options of `run`, to show what they would do. Secrets are shown as digests."""
    stdio.write(sys.stdout, show(invocation.settings(), as_json=as_json))
    return 0
