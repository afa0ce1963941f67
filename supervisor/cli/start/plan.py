"""`supervise plan -- CMD`: what a recovery would change in CMD, and the answer to each cause of a failure."""

from __future__ import annotations

import json
import sys

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import BEFORE_CMD, EVERY, Invocation, json_option, setting_options
from supervisor.report import start_plan


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*EVERY, takes_command=True)
@click.option("--cause", metavar="CAUSE", help="Show the ladder of one cause, failure by failure, to the stop.")
@json_option
def command(invocation: Invocation, *, cause: str | None, as_json: bool) -> int:
    """It lists the knobs that are enabled, what would enable the others, the settings that matter, and the ladder of each cause.

    It takes the options of `run`.
    """
    settings, words = invocation.settings_and_command()
    data = start_plan.document(settings, words, cause)
    stdio.write(sys.stdout, json.dumps(data, indent=2, ensure_ascii=False) if as_json else "\n".join(start_plan.text(data)))
    return 0
