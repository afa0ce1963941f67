"""The command line: `supervise [options] -- CMD...`, and the commands that read.

In: arguments. Out: an exit code (docs/exit-codes.md). Everything behind the first `--` is the command, verbatim; what is before it are
options of ours and at most one of our own commands, `run` being the default. What can fail is told in two lines on stderr: what, and
what helps. An exception that we did not expect is our bug: 70, with the traceback in a file. Nothing is kept.

Nothing heavy is imported up here: `--help` and the commands that read must be quick, and must work while the machine is on its knees.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click

from supervisor.cli import commands, stdio
from supervisor.cli.invocation import Invocation, add, commanded, config_option, given, options, running, shared
from supervisor.errors import ExitCode, SuperviseError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEPARATOR = "--"
#: Commands that show what was recorded of a job.
_READING = frozenset({"status", "why", "logs"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    stdio.prepare()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        stdio.flush()
    except SuperviseError as error:
        return _tell(error)
    except click.UsageError as error:
        return _tell(_usage(error))
    except KeyboardInterrupt:
        return 128 + 2
    except Exception as error:  # noqa: BLE001  the last place that can say something of use
        if isinstance(error, OSError) and stdio.stdout_fails():
            stdio.point_stdout_nowhere()
            # `supervise status | head`: who closed the pipe has read enough
            return 0 if isinstance(error, BrokenPipeError) else _tell(_unwritable(error))
        return _crashed(error)
    return code


def _dispatch(arguments: list[str]) -> int:
    command: tuple[str, ...] | None = None
    if _SEPARATOR in arguments:
        at = arguments.index(_SEPARATOR)
        arguments, command = arguments[:at], tuple(arguments[at + 1 :])
    group = command_tree()
    # not group.main: it answers a broken pipe, from wherever it came, with an exit code of its own
    try:
        with group.make_context("supervise", arguments, obj=Invocation({}, None, command)) as context:
            result: int | None = group.invoke(context)
    except click.exceptions.Exit as done:  # --help and --version
        return done.exit_code
    return result or 0


def command_tree() -> click.Group:
    """Return the commands and their options, made from the table of settings."""
    group = click.Group(
        name="supervise",
        params=options(shared) + options(running),
        callback=_default,
        invoke_without_command=True,
        help="Keep a training job alive: start it, watch it, say what failed and why, and resume it from a checkpoint proven good.",
        epilog="Everything behind -- is the command, verbatim: supervise -- torchrun --nproc-per-node=8 train.py",
        options_metavar="[OPTIONS] -- CMD...",
        subcommand_metavar="",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 140},
    )
    group.params.append(
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
    )
    add(group, "run", _run, options(shared) + options(running), "Run CMD under supervision; the same as without `run`.")
    as_json = click.Option(["--json", "as_json"], is_flag=True, help="As JSON.")
    add(group, "status", _status, [*options(shared), as_json], "Show what a job is doing, also when its supervisor is gone.")
    add(
        group,
        "why",
        _why,
        [*options(shared), click.Argument(["incident"], metavar="[INCIDENT]", required=False, type=click.IntRange(min=1))],
        "Explain an incident: what failed, on what evidence, what was done (default: the last one).",
    )
    add(
        group,
        "logs",
        _logs,
        [
            *options(shared),
            click.Option(["--rank"], type=click.IntRange(min=0), help="One rank only."),
            click.Option(["--attempt"], type=click.IntRange(min=1), help="One attempt only (default: the last)."),
            click.Option(["--run"], metavar="RUN", help="An earlier run of the job (default: the last)."),
            click.Option(
                ["--first-failure"], is_flag=True, help="The rank that died first (in the last attempt that failed, or --attempt)."
            ),
            click.Option(["-f", "--follow"], is_flag=True, help="Go on as more is written."),
        ],
        "Print what the ranks wrote.",
    )
    add(
        group,
        "classify",
        _classify,
        [
            config_option(),
            as_json,
            click.Argument(["logs"], metavar="FILE|DIR|-...", nargs=-1),
        ],
        "Say what failed and why, from any log: of files, of all files in a directory, or of standard input (-).",
    )
    commands.add_to(group)
    config = click.Group("config", help="Look at the settings.", no_args_is_help=False)
    add(
        config,
        "show",
        _config_show,
        [*options(shared), *options(running), as_json],
        "Print every setting, its value and where it came from.",
    )
    group.add_command(config)
    words = click.Argument(["words"], metavar="[COMMAND]...", nargs=-1)
    group.add_command(click.Command("help", callback=_help, params=[words], short_help="Show what a command does, and its options."))
    group.add_command(click.Command("version", callback=_installed, short_help="Show the version."))
    return group


def _default(**values: object) -> int | None:
    context = click.get_current_context()
    context.obj = given(values)
    if context.invoked_subcommand is not None:
        return None
    return _start(context.obj)


def _run(**values: object) -> int:
    return _start(given(values))


def _start(invocation: Invocation) -> int:
    settings, command = commanded(invocation)
    from supervisor.cli.import_guard import pin_our_packages  # noqa: PLC0415  for `run` only

    pin_our_packages()
    from supervisor.run.main import run  # noqa: PLC0415  the heavy part

    return run(settings, list(command))


def _status(as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings_to_read_with()
    from supervisor.cli.status import status  # noqa: PLC0415  for this command only

    return status(settings, invocation.job(settings), as_json)


def _why(incident: int | None, **values: object) -> int:
    invocation = given(values).without_command()
    settings = invocation.settings_to_read_with()
    from supervisor.cli.why import why  # noqa: PLC0415  for this command only

    return why(settings, invocation.job(settings), incident)


def _logs(
    rank: int | None,
    attempt: int | None,
    first_failure: bool,  # noqa: FBT001  click calls with keywords
    follow: bool,  # noqa: FBT001
    run: str | None,
    **values: object,
) -> int:
    invocation = given(values).without_command()
    settings = invocation.settings_to_read_with()
    from supervisor.cli.logs import logs  # noqa: PLC0415  for this command only

    return logs(settings, invocation.job(settings), rank, attempt, follow, first_failure=first_failure, run=run)


def _classify(logs: tuple[str, ...], as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    settings = given(values).without_command().settings()
    from supervisor.cli.classify.command import classify_logs  # noqa: PLC0415  for this command only

    return classify_logs(settings, logs, as_json=as_json)


def _config_show(as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    from supervisor.config.loading import show  # noqa: PLC0415  for this command only

    stdio.write(sys.stdout, show(given(values).without_command().settings(), as_json=as_json))
    return 0


def _version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:  # noqa: FBT001  click's signature
    if wanted:
        _installed()
        context.exit()


def _installed() -> int:
    from supervisor.version import installed  # noqa: PLC0415  for this option only

    stdio.write(sys.stdout, f"supervise {installed() or 'not installed, run from its sources'}")
    return 0


def _help(words: tuple[str, ...]) -> int:
    context = click.get_current_context().find_root()
    command: click.Command = context.command
    for word in words:
        found = command.get_command(context, word) if isinstance(command, click.Group) else None
        if found is None:
            raise click.UsageError(f"No such command '{word}'.", context)
        context, command = click.Context(found, info_name=word, parent=context), found
    stdio.write(sys.stdout, command.get_help(context))
    return 0


def _usage(error: click.UsageError) -> SuperviseError:
    """Say a usage error of click's in our words: what failed, the nearest right word, and what helps; always 64."""
    message = " ".join(error.format_message().split()).rstrip(".")  # choices stand on lines of their own
    hint = "Run `supervise --help` for the options and commands."
    context = error.ctx
    if isinstance(context, click.Context) and isinstance(context.command, click.Group) and message.startswith("No such command"):
        message, hint = _no_such_command(context.command, context.command_path, message.split("'")[1] if "'" in message else "")
    elif isinstance(context, click.Context) and isinstance(context.command, click.Group) and message == "Missing command":
        message = f"missing command: {context.command_path} ..."
        hint = f"Add one of: {', '.join(sorted(context.command.commands))}; `{context.command_path} --help` says what each does."
    elif message.startswith("Got unexpected extra argument"):
        hint = "Write the job's command behind `--`, as in `supervise -- torchrun train.py`."
        if isinstance(context, click.Context) and context.command.name in _READING:
            hint = f"A job is named with --job, as in `supervise {context.command.name} --job NAME`."
    elif isinstance(error, click.BadParameter) and message.endswith("is not a valid integer range"):
        message = message.removesuffix("a valid integer range") + "a number"
        if isinstance(context, click.Context) and context.command.name == "why":
            hint = "Write the number of an incident, as `supervise status` counts them; a job is named with --job NAME."
    elif isinstance(error, click.NoSuchOption) and error.possibilities:
        hint = f"The nearest is {error.possibilities[0]}; options of the job's command go behind `--`."
        message = f"no such option: {error.option_name}"
    return SuperviseError(message[0].lower() + message[1:], hint=hint, exit_code=ExitCode.USAGE)


def _no_such_command(group: click.Group, path: str, word: str) -> tuple[str, str]:
    """Return what is said of an unknown word, and what helps; below a command it is no job's command."""
    above = path.partition(" ")[2]
    known = {name: name for name in group.commands} if not above else {name: f"{above} {name}" for name in group.commands}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            known = {sub: f"{name} {sub}" for sub in command.commands} | known
    meant = known.get(nearest(word, known), "")
    hint = f"`supervise {above} --help` lists all of them." if above else f"Write `supervise -- {word} …` to run it as a job."
    return f"no such command: {above + ' ' if above else ''}{word}", f"Did you mean `supervise {meant}`? {hint}" if meant else hint


def _unwritable(error: OSError) -> SuperviseError:
    return SuperviseError(f"cannot write to stdout: {error.strerror}", hint="Make room there, or send the output elsewhere with `>`.")


def _tell(error: SuperviseError) -> int:
    stdio.say(f"error: {error.message}")
    stdio.say(error.hint)
    return error.exit_code


def _crashed(error: BaseException) -> int:
    """Keep the traceback where it can be sent from, and say in one line that the fault is ours."""
    import tempfile  # noqa: PLC0415  for a crash only
    import traceback  # noqa: PLC0415

    where = "could not be written"
    with contextlib.suppress(OSError):
        fd, path = tempfile.mkstemp(prefix="supervise-crash-", suffix=".txt")
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
        where = f"is in {path}"
    stdio.say(f"error: a bug of ours: {type(error).__name__}: {error}; the traceback {where}")
    return int(ExitCode.BUG)
