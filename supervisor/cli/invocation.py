"""The command line as a command sees it: its settings, its CMD, and the options that the table of settings gives.

`--help` imports this module, so nothing heavy is imported at the top.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from supervisor.config.settings import ROWS, Settings
from supervisor.core.values import Struct, replace
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisor.core.setting_columns import SettingRow

#: The settings that say which job is meant.
JOB = ("job.name", "job.state_dir")
#: The setting that says where the files of all jobs are.
STATE_DIR = ("job.state_dir",)
#: Where the page of `supervise ui` is served.
LISTEN = ("ui.listen",)
#: The settings of a run that have a flag; `--set` gives all others.
FLAGS = tuple(row.key for row in ROWS if row.flag and row.key not in LISTEN)
#: The shell asks for completions through it (completion.py).
COMPLETE_VARIABLE = "_SUPERVISE_COMPLETE"
#: The attribute of a command's function that says whether it takes a CMD.
_TAKES_COMMAND = "takes_command"
_OURS = frozenset({"config", "assignments", "takeover"})
#: How the usage of a command that takes a CMD shows where it is.
BEFORE_CMD = "[OPTIONS] -- CMD..."

#: The name of a setting's value in a command's help, where that is not its type.
_VALUES = {
    "job.state_dir": "DIRECTORY",
    "checkpoints.paths": "GLOB",
    "checkpoints.mirror": "URL",
    "knobs.declared": "NAME=WHERE",
    "ui.listen": "ADDRESS",
}
#: The help of a flag that switches its setting off.
_OF_FLAG = {"--no-batch-change": "On out of memory, do not halve the micro-batch."}
#: The help of a setting where a command is about a job that was started before.
_OF_RECORDED_JOB = {"job.name": "Name of the job (default: the Slurm job id, else the most recent job here)."}
_TAKEOVER = click.option(
    "--takeover", is_flag=True, help="Take the job's lock at once from a supervisor on another host that you know to be gone."
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Invocation(Struct, frozen=True):
    """The words of the command line.

    flags: by setting key. config: of --config. command: after `--`; None: there was no `--`. assignments: of each --set.
    """

    flags: Mapping[str, Any]
    config: str | None
    command: tuple[str, ...] | None
    assignments: tuple[str, ...] = ()
    takeover: bool = False

    def settings(self, warn: Callable[[SuperviseError], None] | None = None) -> Settings:
        """Return the settings of this invocation. Raises SuperviseError; with `warn` a wrong file or variable is reported to it."""
        from supervisor.config.loading import load  # noqa: PLC0415  not needed for --help
        from supervisor.job.identity import working_directory  # noqa: PLC0415

        return load(self.flags, os.environ, working_directory(), self.config, assignments=self.assignments, warn=warn)

    def settings_to_read_with(self) -> Settings:
        """Return the settings for a command that only reads: a wrong value in a file or the environment is a warning on stderr."""
        from supervisor.cli import stdio  # noqa: PLC0415  not needed for --help

        return self.settings(warn=lambda error: stdio.say(f"warning: {error.message}"))

    def job(self, settings: Settings) -> str | None:
        """Return the job by its name or the Slurm job of this shell; None if neither names one."""
        from supervisor.job.identity import known_job_name  # noqa: PLC0415  not needed for --help

        return known_job_name(settings.job.name, os.environ)

    def settings_and_command(self) -> tuple[Settings, tuple[str, ...]]:
        """Return the settings and the command. Raises SuperviseError (64) if there is no command."""
        settings = self.settings() if self.command is None or self.command else Settings()
        command = self.command or settings.job.command
        if not command:
            path = click.get_current_context().command_path.removesuffix(" run")
            words = path if path == "supervise" else f"{path} …"
            raise SuperviseError(
                "no command given: nothing follows `--`" if self.command is not None else "no command given",
                hint=f"Write it after `--`, as in `{words} -- torchrun train.py`; `{path} --help` shows all options.",
                exit_code=ExitCode.USAGE,
            )
        return settings, command

    def without_command(self) -> Invocation:
        """Return this invocation of a command that takes no CMD. Raises SuperviseError (64) if there is one."""
        if self.command is not None:
            raise SuperviseError(
                f"`{click.get_current_context().command_path}` takes no command: {' '.join(self.command[:3])}",
                hint="Leave out everything from `--` on; `supervise -- CMD` runs CMD.",
                exit_code=ExitCode.USAGE,
            )
        return self


def setting_options(*keys: str, takes_command: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of these settings, `--config` and `--set`, and pass it an Invocation in their place.

    takes_command: CMD may stand after `--`; without it that is an error (64). Such a command takes all options of a run, before and
    after its name; its help shows those of `keys` alone.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(**values: Any) -> Any:  # noqa: ANN401  click's values, and what the command returns
            own = {name: values.pop(name) for name in tuple(values) if "__" in name or name in _OURS}
            invocation = _with_options(own)
            return function(invocation if takes_command else invocation.without_command(), **values)

        for option in reversed(list(_options(keys, takes_command=takes_command))):
            call = option(call)
        setattr(call, _TAKES_COMMAND, takes_command)
        return call

    return decorate


def takes_command(command: click.Command | None) -> bool:
    """Return whether this command takes a CMD after `--`."""
    return bool(getattr(command and command.callback, _TAKES_COMMAND, False))


def _with_options(values: Mapping[str, Any]) -> Invocation:
    """Return the group's invocation with the current command's own options on top."""
    context = click.get_current_context()
    before: Invocation = context.obj
    flags = {
        name.replace("__", "."): value
        for name, value in values.items()
        if "__" in name and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    return replace(
        before,
        flags={**before.flags, **flags},
        config=values.get("config") or before.config,
        assignments=(*before.assignments, *values.get("assignments", ())),
        takeover=values.get("takeover", False) or before.takeover,
    )


def _options(keys: tuple[str, ...], *, takes_command: bool) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Yield the options of the settings, those that name the job first, then --config and --set, and for a run --takeover.

    Their text is parsed where files and variables are: in config/loading.py.
    """
    for row in ROWS:
        if row.key in JOB and row.key in keys:
            yield from _options_of(row, "" if takes_command else _OF_RECORDED_JOB.get(row.key, ""))
    yield click.option("--config", metavar="FILE", help="Read FILE instead of ./supervise.toml.")
    yield click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set any setting, such as restart.intensity=5; `supervise config show` lists them. May be repeated.",
        shell_complete=_completed_assignment,
    )
    if keys == FLAGS:
        yield _TAKEOVER
    for row in ROWS:
        if row.key not in JOB and (row.key in keys or (takes_command and row.key in FLAGS)):
            yield from _options_of(row, hidden=row.key not in keys)


def _options_of(
    row: SettingRow, help_text: str = "", *, hidden: bool = False
) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    name = row.key.replace(".", "__")
    if row.kind is bool:
        text = _OF_FLAG.get(row.flag, row.help)
        yield click.option(name, row.flag, flag_value=not row.default, type=bool, default=None, help=text, hidden=hidden)
    elif row.kind is tuple:
        metavar, text = _VALUES.get(row.key, "TEXT"), f"{row.help} May be repeated."
        yield click.option(name, row.flag, multiple=True, metavar=metavar, help=text, hidden=hidden)
    else:
        metavar = "|".join(row.choices) or _VALUES.get(row.key) or {str: "TEXT", int: "N", float: "SECONDS"}[row.kind]
        yield click.option(name, row.flag, metavar=metavar, help=help_text or row.help, shell_complete=_completed(row), hidden=hidden)


def _completed_assignment(_context: click.Context, _param: click.Parameter, incomplete: str) -> Sequence[str]:
    """Return the keys, with the sign that a value follows; after it the choices of that setting."""
    key, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{row.key}=" for row in ROWS if row.key.startswith(key)]
    choices = next((("true", "false") if row.kind is bool else row.choices for row in ROWS if row.key == key), ())
    return [f"{key}={choice}" for choice in choices if choice.startswith(value)]


def _completed(row: SettingRow) -> Callable[[click.Context, click.Parameter, str], Sequence[str]] | None:
    """Return what completes a setting's value: its choices, or the names of jobs; None: nothing that is particular to it."""

    def choices(_context: click.Context, _param: click.Parameter, incomplete: str) -> Sequence[str]:
        return [choice for choice in row.choices if choice.startswith(incomplete)]

    def jobs(context: click.Context, _param: click.Parameter, incomplete: str) -> Sequence[str]:
        """Return those of the state directory that is meant: --state-dir, else that of the settings."""
        from supervisor.cli.jobs.job_files import places_in, state_root  # noqa: PLC0415  not needed for --help

        given = [of.params.get("job__state_dir") for of in (context, context.find_root())]
        flags = {"job.state_dir": named} if (named := next(filter(None, given), None)) else {}
        settings = Invocation(flags, None, None).settings(warn=lambda _: None)
        names = dict.fromkeys(place.job for place in places_in(state_root(settings)))
        return [name for name in names if name.startswith(incomplete)]

    return choices if row.choices else jobs if row.key == "job.name" else None
