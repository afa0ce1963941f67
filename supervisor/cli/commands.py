"""The table of all commands, and the group that imports a command's file when the command is called.

A word of the path is a word on the command line: "checkpoints verify" is `supervise checkpoints verify`. `--help` lists the lines of this
table and imports no command. A command's docstring is what its own `--help` shows below the line.
"""

from __future__ import annotations

import functools
import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from supervisor.cli.import_guard import pin_our_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.shell_completion import CompletionItem

#: In the order of --help: MODULE:ATTRIBUTE below supervisor.cli ("" for a group that only holds commands), and the line that --help lists.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "run": ("start.run:command", "Run CMD under supervision. `supervise -- CMD` does the same."),
    "ls": ("jobs.ls:command", "List the jobs of a state directory, and the state of each."),
    "status": ("jobs.status:command", "Show the state of a job, even if its supervisor is gone."),
    "why": ("jobs.why:command", "Explain an incident, by default the last: what failed, where, and what to do."),
    "report": ("jobs.report:command", "Show where the time of a job went, what its failures cost, how often to save."),
    "ui": ("ui.command:command", "Serve a page of the jobs of a state directory, live and read-only."),
    "profile": ("jobs.profile:command", "Record where the ranks of a running job spend their time: a flame graph, a trace."),
    "logs": ("jobs.logs:command", "Print the output of the ranks."),
    "stop": ("jobs.stop:command", "Stop a job: let it save, wait for its end, and show how it ended."),
    "bundle": ("bundle.command:command", "Pack the facts of an incident into one file without secrets, for a helper."),
    "plan": ("start.plan:command", "Show what a recovery may change in CMD, and the answer to each cause. CMD does not run."),
    "doctor": ("doctor.command:command", "Check nodes, or a saved kernel log: the faults, and their repair."),
    "classify": ("classify.command:command", "Name the cause of a failure from any log: files, directories, standard input (-)."),
    "checkpoints": ("", "Verify, list, convert, copy and restore checkpoints."),
    "checkpoints verify": ("checkpoints.verify:verify_command", "Verify checkpoints: a file, its directory, or a directory of several."),
    "checkpoints latest": ("checkpoints.verify:latest_command", "Show which checkpoint a resume would take, and why not the newer ones."),
    "checkpoints ls": ("checkpoints.ls:ls_command", "List a job's checkpoints; with --mirror, its checkpoints in the mirror."),
    "checkpoints show": ("checkpoints.repairs:show_command", "Show everything that is known about one checkpoint."),
    "checkpoints undo": ("checkpoints.repairs:undo_command", "Reverse repairs: one change that `ls` lists, or all."),
    "checkpoints quarantine": ("checkpoints.repairs:quarantine_command", "Reject one checkpoint for all later starts. The file stays."),
    "checkpoints push": ("checkpoints.mirror:push_command", "Copy checkpoints to every mirror."),
    "checkpoints pull": ("checkpoints.mirror:pull_command", "Fetch one checkpoint from the mirror into a directory."),
    "checkpoints restore": ("checkpoints.mirror:restore_command", "Fetch a job's newest whole checkpoint back from the mirror."),
    "checkpoints convert": ("checkpoints.convert:command", "Write a checkpoint in another format, and verify it."),
    "checkpoints prune": ("checkpoints.prune:command", "Remove older copies, with --mirror-keep the mirrors' too. The newest stays."),
    "nodes": ("nodes:group", "List nodes and GPUs; exclude a node, allow it again, put a GPU back into use."),
    "nodes ls": ("nodes:ls_command", "List the nodes: in use, lost or excluded, their GPUs out of use, why, and since when."),
    "nodes gpus": ("gpus:ls_command", "List this node's GPUs; for those out of use why, since when and until when."),
    "nodes clear": ("gpus:clear_command", "Put a repaired or replaced GPU of this node, or all, back into use."),
    "nodes exclude": ("nodes:exclude_command", "Let no job of this state directory begin on a node any more."),
    "nodes allow": ("nodes:allow_command", "Let jobs begin on an excluded node again."),
    "alerts": ("", "Test where alerts go, and send refused ones again."),
    "alerts test": ("alerts:test_command", "Send a test alert to each sink, or to SINK, and print what the service answered."),
    "alerts replay": ("alerts:replay_command", "Send a job's refused alerts again, to each sink or to SINK."),
    "drill": ("drill.command:command", "Run CMD with faults in it, and report the recoveries and their cost."),
    "print": ("", "Print a file for this node: NCCL, accelerate, torchrun, Slurm, Kubernetes, systemd."),
    "print nccl": ("printing.nccl:print_command", "Print the variables of NCCL that this node needs, each with its reason."),
    "print accelerate": ("printing.accelerate:print_command", "Print a configuration of accelerate for this node."),
    "print torchrun": ("printing.torchrun:print_command", "Print a script that starts CMD with torchrun, on one node or several."),
    "print slurm": ("printing.slurm:print_command", "Print a batch script that runs CMD under supervision, on one node or several."),
    "print kubernetes": ("printing.kubernetes:print_command", "Print a Job that runs CMD under supervision, in one pod or several."),
    "print systemd": ("printing.systemd:print_command", "Print the units that run jobs as services, or one of them."),
    "systemd": ("", "Run jobs as services of systemd: install the units."),
    "systemd install": ("systemd.command:install_command", "Install the units, and set up the unit of JOB."),
    "systemd run": ("systemd.command:run_command", "Run the job that /etc/supervise/JOB.toml describes; supervise@JOB does this."),
    "systemd alert": ("systemd.command:alert_command", "Alert that the unit of JOB failed; supervise-alert@JOB does this."),
    "slurm": ("", "Give a job of Slurm its exit code, or bring it back; the script of `print slurm` calls these."),
    "slurm exit-code": ("slurm:exit_code_command", "Print the exit code of a job of several nodes."),
    "slurm requeue": ("slurm:requeue_command", "Bring the job of a batch script back, not on excluded nodes."),
    "config": ("", "Show the settings."),
    "config show": ("start.config:show_command", "Print every setting, its value, and where the value comes from."),
    "completion": ("completion:command", "Print what makes bash, zsh or fish complete our commands and options."),
    "help": ("about:help_command", "Show what a command does, and its options."),
    "version": ("about:version_command", "Show the version."),
}  # fmt: skip
#: The commands of --help, by what a person wants to do; every command that is not hidden is in one of them.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Run": ("run", "stop", "plan", "config"),
    "Watch": ("ls", "status", "why", "report", "profile", "logs", "ui", "alerts", "bundle", "classify"),
    "Checkpoints": ("checkpoints",),
    "Nodes": ("nodes", "doctor"),
    "Prove": ("drill",),
    "Print and install": ("print", "systemd", "completion", "help", "version"),
}
#: The options of a run in --help, likewise. Options of no group come last.
OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Most used": ("--job", "--checkpoints", "--resume-args", "--mirror", "--knob", "--min-gpus", "--config", "--set"),
    "Checkpoints": ("--resumes-itself", "--resume-switch", "--keep"),
    "Recovery": ("--no-batch-change", "--allow-batch-drift", "--model-parallel", "--standby", "--on-hang", "--check-nodes"),
}
#: Scripts and units call these; no list shows them, but for that of a group that is hidden itself.
HIDDEN: Final = frozenset({"systemd run", "systemd alert", "slurm", "slurm exit-code", "slurm requeue"})


#: The name in help of options and arguments that take a file.
PATHS: Final = frozenset({"FILE", "DIR", "DIRECTORY", "PATH", "PATHS", "INTO", "GLOB"})


class CommandGroup(click.Group):
    """A group whose commands are those of COMMANDS below its path."""

    def __init__(self, name: str | None = None, *, path: str = "", **attributes: Any) -> None:  # noqa: ANN401  click's own
        # without a command a group is a usage error, not its help
        super().__init__(name, **{"no_args_is_help": False, **attributes})
        self.path = path

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the line of each command that a person calls; of a hidden group, of all."""
        for path, (_, line) in COMMANDS.items():
            above, _, name = path.rpartition(" ")
            if above == self.path and (path not in HIDDEN or self.path in HIDDEN):
                yield name, line

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        del ctx
        return [name for name, _ in self.lines()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, from its file; None for another name."""
        del ctx
        path = f"{self.path} {cmd_name}".strip()
        return load_command(path) if path in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name from the table: click would import every command for its line."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  to complete a command line only

        items = [CompletionItem(name, help=line) for name, line in self.lines() if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of `--help` from the table: click would import every command for its line."""
        del ctx
        lines = dict(self.lines())
        for title, names in GROUPS.items() if not self.path else (("Commands", tuple(lines)),):
            with formatter.section(title):
                formatter.write_dl([(name, lines[name]) for name in names])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, which most people look for, and below them the options in their groups."""
        self.format_commands(ctx, formatter)
        write_options(self, ctx, formatter)


class GroupedCommand(click.Command):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        write_options(self, ctx, formatter)


def write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command in the groups of OPTIONS, in the order of these; one that has none of them as one list."""
    rows = {param.opts[0]: row for param in command.get_params(ctx) if (row := param.get_help_record(ctx)) is not None}
    groups = {title: [rows.pop(flag) for flag in flags if flag in rows] for title, flags in OPTIONS.items()}
    groups["More" if any(groups.values()) else "Options"] = list(rows.values())
    for title, shown in groups.items():
        if shown:
            with formatter.section(title):
                formatter.write_dl(shown)


class _Path(click.types.StringParamType):
    """A string that the shell completes as the name of a file."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # noqa: PLC0415  to complete a command line only

        del ctx, param
        return [CompletionItem(incomplete, type="file")]


def complete_paths(command: click.Command) -> None:
    """Let the shell complete the names of files where an option or an argument is called so."""
    for param in command.params:
        if param.type is click.STRING and PATHS.intersection(re.findall(r"[A-Z]+", str(param.metavar))):
            param.type = _Path()


@functools.cache
def load_command(path: str) -> click.Command:
    """Return the command of a path in COMMANDS. Raises SuperviseError (78) where another package shadows supervise's."""
    place, line = COMMANDS[path]
    name = path.rpartition(" ")[2]
    if not place:
        return CommandGroup(name, path=path, help=line)
    pin_our_packages()  # the command's file may import them
    module, _, attribute = place.partition(":")
    command: click.Command = getattr(import_module(f"supervisor.cli.{module}"), attribute)
    command.name = name
    complete_paths(command)
    command.help = f"{line}\n\n{inspect.cleandoc(command.help or '')}".rstrip()
    return command
