"""`supervise slurm print`: a batch script that runs CMD under supervision on each node (docs/guides/slurm.md)."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.clusters.job_words import option_words, refuse_standalone
from supervisor.cli.invocation import BEFORE_CMD, EVERY, Invocation, setting_options
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What each line of the script is for.
_DIRECTIVES: Final = (
    ("nodes", "{nodes}", ""),
    ("ntasks-per-node", "1", "one supervise on each node; torchrun starts the ranks"),
    ("requeue", "", "after a preemption or a lost node, and where this script asks for it"),
    ("open-mode", "append", "a requeued job goes on with the same file"),
    ("output", "%x-%j.out", ""),
    ("signal", "USR1@{notice_s}", "notice before the time limit: so many seconds to save"),
)
_SCRIPT: Final = """\
#!/bin/bash
{directives}

# srun, not the batch script itself: a preemption signals the steps of a job, and the batch step not before its end
srun ${{SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}} \\
    {supervise} -- \\
    {command}
code=$?

# 75: the job is to go on later. 143, 129: it was ended from outside before it could save, and goes on from its newest checkpoint.
# Every other code is final: 0 is done, and what supervise gave up fails again.
case $code in
    75 | 143 | 129) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit $code"""


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*EVERY, takes_command=True)
@click.option("--nodes", type=click.IntRange(min=1), default=1, metavar="N", help="Nodes of the job; default 1.")
@click.option(
    "--notice-s", type=click.IntRange(min=1), default=120, metavar="N", help="Seconds to save before the time limit; default 120."
)
@click.option("--sbatch", multiple=True, metavar="NAME=VALUE", help="A further #SBATCH line, such as gpus-per-node=8. May be repeated.")
def print_command(invocation: Invocation, *, nodes: int, notice_s: int, sbatch: tuple[str, ...]) -> int:
    """It takes the options of `run`, too. Write it into a file, look at it, and hand it to sbatch."""
    if not invocation.command:
        hint = "Write it behind `--`, as in `supervise slurm print --nodes 2 -- torchrun train.py`."
        raise SuperviseError("no command given", hint=hint, exit_code=ExitCode.USAGE)
    words = option_words(invocation)
    stdio.write(sys.stdout, script(words, invocation.command, nodes=nodes, notice_s=notice_s, sbatch=sbatch))
    return 0


def script(options: Sequence[str], command: Sequence[str], *, nodes: int, notice_s: int, sbatch: Sequence[str] = ()) -> str:
    """Return the script. options: of supervise. Raises SuperviseError (64) for a command or a directive that cannot be."""
    if nodes > 1:  # supervise completes torchrun from the variables of the step (supervisor/launch/slurm.py)
        refuse_standalone(command)
    return _SCRIPT.format(
        directives="\n".join(_directives(nodes, notice_s, sbatch)),
        supervise=" ".join(["supervise", *map(shlex.quote, options)]),
        command=shlex.join(command),
    )


def _directives(nodes: int, notice_s: int, sbatch: Sequence[str]) -> list[str]:
    own = dict(text.removeprefix("--").partition("=")[::2] for text in sbatch)
    for name, value in own.items():
        if not name.replace("-", "").isalnum() or "\n" in value:
            raise SuperviseError(f"not an #SBATCH line: {name!r}", hint="Write --sbatch gpus-per-node=8.", exit_code=ExitCode.USAGE)
    rows = [(name, own.pop(name, value.format(nodes=nodes, notice_s=notice_s)), why) for name, value, why in _DIRECTIVES]
    rows = [*((name, value, "") for name, value in own.items()), *rows]
    lines = [(f"#SBATCH --{name}" + (f"={value}" if value else ""), why) for name, value, why in rows]
    width = max(len(line) for line, why in lines if why)
    return [f"{line.ljust(width)}  # {why}" if why else line for line, why in lines]
