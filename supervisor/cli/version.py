"""`supervise version`, and `supervise --version`."""

from __future__ import annotations

import sys

import click

from supervisor.cli import stdio
from supervisor.version import __version__


@click.command()
def command() -> int:
    """`supervise --version` does the same."""
    return print_version()


def print_version() -> int:
    """Print the version. Returns 0."""
    stdio.write(sys.stdout, f"supervise {__version__}")
    return 0
