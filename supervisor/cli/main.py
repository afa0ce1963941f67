"""The command line: `supervise [options] -- CMD...`, and the commands of cli/commands.py.

Everything after the first `--` is the job's command, verbatim. Before it stand our own options and at most one of our commands; the
default is `run`. An error is two lines on stderr: what failed, and what helps. An exception that nobody expected is an internal
error: 70, and the traceback in a file.

`--help` and the commands that read must be quick, and must work on a machine that is overloaded: nothing heavy is imported at the top.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.commands import CommandGroup, complete_paths, load_command
from supervisor.cli.invocation import BEFORE_CMD, COMPLETE_VARIABLE, FLAGS, Invocation, setting_options
from supervisor.cli.usage import usage_error
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEPARATOR = "--"
#: The message of Python itself.
_NO_THREAD = "can't start new thread"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    stdio.prepare()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        stdio.flush()
    except SuperviseError as error:
        return _report(error)
    except click.UsageError as error:
        return _report(usage_error(error))
    except KeyboardInterrupt:
        return 128 + 2
    except Exception as error:  # noqa: BLE001  the last place that can report anything
        if isinstance(error, OSError) and stdio.stdout_fails():
            stdio.point_stdout_nowhere()
            # `supervise status | head`: the reader has read enough
            return 0 if isinstance(error, BrokenPipeError) else _report(_unwritable(error))
        return _report(_limited()) if str(error) == _NO_THREAD else _crashed(error)
    return code


def _dispatch(arguments: list[str]) -> int:
    if asked := os.environ.get(COMPLETE_VARIABLE):
        from supervisor.cli import completion  # noqa: PLC0415  for the shell's question only

        return completion.answer(root, asked)
    command: tuple[str, ...] | None = None
    if _SEPARATOR in arguments:
        at = arguments.index(_SEPARATOR)
        arguments, command = arguments[:at], tuple(arguments[at + 1 :])
    # not root.main: it answers a broken pipe, from wherever it came, with an exit code of its own
    try:
        with root.make_context("supervise", arguments, obj=Invocation({}, None, command)) as context:
            result: int | None = root.invoke(context)
    except click.exceptions.Exit as done:  # --help and --version
        return done.exit_code
    return result or 0


def _version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:  # noqa: FBT001  click's signature
    if wanted and not context.resilient_parsing:  # not where the shell asks for completions
        from supervisor.cli.about import print_version  # noqa: PLC0415  for this option only

        print_version()
        context.exit()


@click.group(
    "supervise",
    cls=CommandGroup,
    invoke_without_command=True,
    help="Keep a training job alive: start it, watch it, explain each failure, and resume it from a verified checkpoint.",
    epilog="Everything after -- is the job's command, verbatim: supervise -- torchrun --nproc-per-node=8 train.py",
    options_metavar=BEFORE_CMD,
    subcommand_metavar="",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 140},
)
@setting_options(*FLAGS, takes_command=True)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def root(invocation: Invocation) -> int | None:
    """Run CMD, unless one of our commands was called."""
    context = click.get_current_context()
    context.obj = invocation
    if context.invoked_subcommand is not None:
        gc.enable()
        return None
    if invocation == Invocation({}, None, None) and not invocation.settings().job.command:
        stdio.write(sys.stdout, context.get_help() + "\n")  # and after it the missing word
    run = load_command("run")
    with run.make_context("run", [], parent=context) as of_run:
        result: int = run.invoke(of_run)
    return result


complete_paths(root)


def _unwritable(error: OSError) -> SuperviseError:
    return SuperviseError(f"cannot write to stdout: {error.strerror}", hint="Make room there, or send the output elsewhere with `>`.")


def _limited() -> SuperviseError:
    from supervisor.run.threads import limits_text  # noqa: PLC0415  for this failure only

    return SuperviseError(
        f"no thread can be started: {limits_text()}",
        hint="Raise the one that is too low, or the limit of processes that the container or the scheduler set (pids.max of the cgroup).",
        exit_code=ExitCode.REQUEUE,
    )


def _report(error: SuperviseError) -> int:
    stdio.say(f"error: {error.message}")
    stdio.say(error.hint)
    if "NOTIFY_SOCKET" in os.environ:
        from supervisor.job.sd_notify import Notifier  # noqa: PLC0415  in a unit only

        Notifier(os.environ).status(f"exit code {error.exit_code}: {error.message}")
    return error.exit_code


def _crashed(error: BaseException) -> int:
    """Keep the traceback where it can be sent from, and report in one line that the fault is supervise's."""
    import tempfile  # noqa: PLC0415  for a crash only
    import traceback  # noqa: PLC0415

    where = "could not be written"
    with contextlib.suppress(OSError):
        fd, path = tempfile.mkstemp(prefix="supervise-crash-", suffix=".txt")
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(error)))
        where = f"is in {path}"
    stdio.say(f"error: internal error (please report): {type(error).__name__}: {error}; the traceback {where}")
    return int(ExitCode.BUG)
