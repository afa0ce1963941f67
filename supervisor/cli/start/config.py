"""`supervise config show`: every setting, its value, and where the value comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.config.loading import settings_shown
from supervisor.report.layout import Tone
from supervisor.report.table import Cell, Column, Table

if TYPE_CHECKING:
    from supervisor.config.settings import Settings
    from supervisor.core.setting_columns import Value


@click.command()
@setting_options(*JOB)
@json_option
def show_command(invocation: Invocation, *, as_json: bool) -> int:
    """With `supervise OPTIONS config show` it shows what the options of a run would do. Secrets are shown as digests."""
    settings = invocation.settings()
    if as_json:
        stdio.write_json(settings_shown(settings), indent=2)
    else:
        stdio.show(settings_table(settings))
    return 0


def settings_table(settings: Settings) -> Table:
    """Return every setting as `supervise config show` prints it."""
    rows = tuple(
        (key, _value_text(row.value), Cell(row.origin, Tone.PLAIN if row.origin == "default" else Tone.STRONG))
        for key, row in settings_shown(settings).items()
    )
    return Table((Column("setting"), Column("value"), Column("from")), rows)


def _value_text(value: Value) -> str:
    """Return a value as JSON has it, with the bytes of a file's name that are not UTF-8 as escapes."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
