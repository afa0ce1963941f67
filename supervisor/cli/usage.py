"""A wrong command line, in our words: the fault, the nearest right word, and the help."""

from __future__ import annotations

import re

import click

from supervisor.cli.commands import COMMANDS, CommandGroup
from supervisor.cli.invocation import takes_command
from supervisor.errors import ExitCode, SuperviseError, nearest
from supervisor.knobs.python_command import LAUNCHERS


def usage_error(error: click.UsageError) -> SuperviseError:
    """Return click's usage error as SuperviseError; the exit code is always 64."""
    message = " ".join(error.format_message().split()).rstrip(".")  # choices stand on lines of their own
    context = error.ctx
    command = context.command if context is not None else None
    path = context.command_path if context is not None else "supervise"
    hint = f"Run `{path} --help` for {'the options and commands' if path == 'supervise' else 'its options'}."
    if isinstance(command, CommandGroup) and message.startswith("No such command"):
        message, hint = _no_such_command(command, message.split("'")[1] if "'" in message else "")
    elif isinstance(command, CommandGroup) and message == "Missing command":
        message = f"missing command: {path} ..."
        hint = f"Add one of: {', '.join(sorted(name for name, _ in command.lines()))}; `{path} --help` says what each does."
    elif message.startswith("Got unexpected extra argument"):
        hint = _hint_of_extra_words(command, path, hint)
    elif isinstance(error, click.BadParameter):
        message = _plain(message)
        if error.param is not None and error.param.name == "incident":
            hint = "Write the number of an incident, as `supervise status` counts them; a job is named with --job NAME."
    elif isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        meant = _nearest_option(error.option_name, command)
        more = f"--set SECTION.KEY=VALUE gives any setting (`supervise config show` lists them); {path} --help has the options."
        hint = f"The nearest is {meant}; options of the job's command go after `--`." if meant else more
    return SuperviseError(message[0].lower() + message[1:], hint=hint, exit_code=ExitCode.USAGE)


def _hint_of_extra_words(command: click.Command | None, path: str, hint: str) -> str:
    """Return the probable meaning of a word too many: a job's command, or its name, as far as this command takes them; else `hint`."""
    if takes_command(command):
        path = "supervise" if path == "supervise run" else path
        return f"Write the job's command after `--`, as in `{path} -- torchrun train.py`."
    if command is not None and any(param.name == "job__name" for param in command.params):
        return f"A job is named with --job, as in `{path} --job NAME`."
    return hint


def _plain(message: str) -> str:
    """Return click's message about a value without the parts for the usage line alone: brackets, and the place of the job's command."""
    message = re.sub(r"for '\[?([^' \]]+)\]?(?: -- CMD\.\.\.)?'", r"for \1", message)
    message = re.sub(r"is not a valid (?:integer|float) range$", "is not a number", message)
    return re.sub(r"is not in the range x>=(\S+)$", r"is less than \1", message)


def _nearest_option(option: str, command: click.Command | None) -> str:
    """Return the option that was probably meant, "" if none is near; the dashes that all have in common are not likeness."""
    params = command.params if command is not None else []
    names = {name.lstrip("-"): name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")}
    return names.get(nearest(option.lstrip("-"), names), "")


def _no_such_command(group: CommandGroup, word: str) -> tuple[str, str]:
    """Return the message and the hint for an unknown word. Only at the top can it be meant as a job's command."""
    above = group.path
    known = {path.rpartition(" ")[2]: path for path in COMMANDS if " " in path} if not above else {}
    known |= {name: f"{above} {name}".strip() for name, _ in group.lines()}
    is_job = not above and word in LAUNCHERS  # `supervise torchrun …` lacks `--`, and not `print`
    meant = "" if is_job else known.get(nearest(word, known), "")
    hint = f"`supervise {above} --help` lists all of them." if above else f"Write `supervise -- {word} …` to run it as a job."
    return f"no such command: {above + ' ' if above else ''}{word}", f"Did you mean `supervise {meant}`? {hint}" if meant else hint
