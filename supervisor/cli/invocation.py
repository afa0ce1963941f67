"""What the commands of ours have in common: what stood on the command line, and the options that the table of settings gives.

In: click's values of one command. Out: an Invocation with all that was given, to the group and to the command; settings; a CMD. What can
fail is a SuperviseError (64, 78). Nothing is kept. Nothing heavy is imported up here (supervisor/cli/main.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from supervisor.config.settings import ROWS, Settings
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.config.settings import Row

#: What one of several is called in a command's help.
_ITEMS = {"checkpoints.paths": "GLOB", "checkpoints.mirror": "URL", "knobs.declared": "NAME=WHERE", "health.evict_on": "CHECK"}
_VERBOSITY = (
    ("quiet", ("-q", "--quiet"), "Warnings, errors and the card only."),
    ("verbose", ("-v", "--verbose"), "Every log event too."),
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What stood on the command line: flags by setting key, --config, and the command behind `--` (None: there was no `--`)."""

    flags: Mapping[str, Any]
    config: str | None
    command: tuple[str, ...] | None

    def settings(self) -> Settings:
        """Return the settings that hold for this invocation. Raises SuperviseError."""
        from supervisor.config.loading import load  # noqa: PLC0415  not needed for --help
        from supervisor.job.identity import working_directory  # noqa: PLC0415

        return load(self.flags, os.environ, working_directory(), self.config)

    def settings_to_read_with(self) -> Settings:
        """Return the settings for a command that only reads: what is wrong in a file or the environment is a warning, the rest counts."""
        from supervisor.cli import stdio  # noqa: PLC0415  not needed for --help
        from supervisor.config.loading import load  # noqa: PLC0415
        from supervisor.job.identity import working_directory  # noqa: PLC0415

        return load(self.flags, os.environ, working_directory(), self.config, warn=lambda error: stdio.say(f"warning: {error.message}"))

    def job(self, settings: Settings) -> str | None:
        """Return the job that a reading command was asked about, None where it was not said."""
        from supervisor.job.identity import known_job_name  # noqa: PLC0415  not needed for --help

        return known_job_name(settings.job.name, os.environ)

    def without_command(self) -> Invocation:
        """Return this invocation of a command that takes no CMD. Raises SuperviseError (64) if there is one."""
        if self.command is not None:
            raise SuperviseError(
                f"only `run` takes a command: {' '.join(self.command[:3])}",
                hint="Leave out everything from `--` on; `supervise -- CMD` runs CMD.",
                exit_code=ExitCode.USAGE,
            )
        return self


def given(values: Mapping[str, Any]) -> Invocation:
    """Return the invocation with what the current command's own options say added to the group's."""
    context = click.get_current_context()
    before: Invocation = context.obj
    told = {
        name.replace("__", "."): value
        for name, value in values.items()
        if "__" in name and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    return replace(before, flags={**before.flags, **told}, config=values.get("config") or before.config)


def commanded(invocation: Invocation) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings and the command. Raises SuperviseError (64) where there is none."""
    settings = invocation.settings() if invocation.command is None or invocation.command else Settings()
    command = invocation.command or settings.job.command
    if not command:
        raise SuperviseError(
            "no command given: nothing stands behind `--`" if invocation.command is not None else "no command given",
            hint="Write it behind `--`, as in `supervise -- torchrun train.py`; `supervise --help` shows all options.",
            exit_code=ExitCode.USAGE,
        )
    return settings, command


def add(group: click.Group, name: str, callback: Callable[..., int], params: list[click.Parameter], text: str) -> None:
    """Add a command to a group; one that runs or plans a CMD shows where that is written."""
    metavar = "[OPTIONS] -- CMD..." if name in ("run", "plan") else "[OPTIONS]"
    group.add_command(click.Command(name, callback=callback, params=params, help=text, short_help=text, options_metavar=metavar))


def shared(row: Row) -> bool:
    """Whether a setting's option belongs to the commands that read, too."""
    return row.key in ("job.name", "job.state_dir")


def running(row: Row) -> bool:
    """Whether a setting's option belongs only to what runs, or would run, a CMD."""
    return not shared(row)


def options(wanted: Callable[[Row], bool]) -> list[click.Parameter]:
    """Return the options of the settings that have a flag. Their text is parsed where files and variables are: in config.py."""
    found: list[click.Parameter] = []
    for row in ROWS:
        if not row.flag or not wanted(row):
            continue
        name = row.key.replace(".", "__")
        if row.key == "terminal.verbosity":
            found += [
                click.Option([name, *flags], flag_value=value, type=str, default=None, help=text) for value, flags, text in _VERBOSITY
            ]
            continue
        text = row.help[0].upper() + row.help[1:] + "."
        if row.kind is bool:
            found.append(click.Option([name, row.flag], is_flag=True, default=None, help=text))
        elif row.kind is tuple:
            metavar = _ITEMS.get(row.key, "TEXT")
            found.append(click.Option([name, row.flag], multiple=True, metavar=metavar, help=f"{text} May be repeated."))
        else:
            metavar = "|".join(row.choices) or {str: "TEXT", int: "N", float: "SECONDS"}[row.kind]
            found.append(click.Option([name, row.flag], metavar=metavar, help=text))
    if wanted is shared:
        found.append(config_option())
    return found


def config_option() -> click.Option:
    """Return the option that names the file of settings."""
    return click.Option(["--config"], metavar="FILE", help="Read FILE instead of ./supervise.toml.")
