"""`supervise print slurm`: a batch script that runs CMD under supervision on each node (docs/guides/slurm.md)."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import BEFORE_CMD, JOB, Invocation, setting_options
from supervisor.cli.printing.job_words import option_words, refuse_standalone
from supervisor.cli.printing.node_facts import node_facts
from supervisor.errors import ExitCode, SuperviseError
from supervisor.node.health_watch import has_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

#: For scontrol in the script, where nothing else brings the job back. A controller that is down makes it wait for minutes.
_LIMIT_S: Final = 60.0
#: Directives that ask for GPUs.
_GPU_DIRECTIVES: Final = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gres"})
#: The purpose of each line of the script.
_DIRECTIVES: Final = (
    ("nodes", "{nodes}", ""),
    ("ntasks-per-node", "1", "one supervise on each node; torchrun starts the ranks"),
    ("requeue", "", "after a preemption or a lost node, and where this script asks for it"),
    ("open-mode", "append", "a requeued job continues with the same file"),
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
{job_code}
# 75: the job is to continue later. 143, 129: it was ended from outside before it could save, and continues from its newest checkpoint.
# 69: a node was not fit. Where supervise has noted which (supervise nodes), the job comes back on others.
# Every other code is final: 0 is done, and what supervise gave up fails again.
# Of an array this task alone is meant: the number of one task is that of the array.
job=${{SLURM_ARRAY_TASK_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}
# What takes the job back sends TERM to this script, which must not end before the nodes to exclude are known.
case $code in
    75 | 143 | 129) trap '' TERM; {requeue} || timeout {limit_s:.0f} scontrol requeue "$job" ;;
    69) trap '' TERM; {requeue} --elsewhere ;;
esac
exit $code"""

#: For several nodes.
_JOB_CODE: Final = """\
# srun gives the highest code of its nodes, also of one that was lost or left early. The journals tell that of the job.
code=$({exit_code} $code || echo $code)
"""


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*JOB, takes_command=True)
@click.option("--nodes", type=click.IntRange(min=1), default=1, metavar="N", help="Nodes of the job; default 1.")
@click.option(
    "--notice-s", type=click.IntRange(min=1), default=120, metavar="N", help="Seconds to save before the time limit; default 120."
)
@click.option("--sbatch", multiple=True, metavar="NAME=VALUE", help="A further #SBATCH line, such as gpus-per-node=8. May be repeated.")
def print_command(invocation: Invocation, *, nodes: int, notice_s: int, sbatch: tuple[str, ...]) -> int:
    """The options of a run stand before `--`. Write it into a file, look at it, and hand it to sbatch."""
    if not invocation.command:
        hint = "Write it after `--`, as in `supervise print slurm --nodes 2 -- torchrun train.py`."
        raise SuperviseError("no command given", hint=hint, exit_code=ExitCode.USAGE)
    words = option_words(invocation)
    text = script(words, invocation.command, nodes=nodes, notice_s=notice_s, sbatch=sbatch)
    directives, rest = text.split("\n\n", 1)
    stdio.write(sys.stdout, "\n".join((directives, *suggested(sbatch), "", rest)))
    return 0


def suggested(sbatch: Sequence[str]) -> list[str]:
    """Return lines that ask for what this node has, as comments: the job's nodes may be others. None where no GPU is visible here."""
    names = {text.removeprefix("--").partition("=")[0] for text in sbatch}
    if names & _GPU_DIRECTIVES or not has_gpus(os.environ):
        return []
    facts = node_facts(os.environ)
    if not facts.gpus:
        return []
    values = {"gpus-per-node": facts.gpus, "cpus-per-task": facts.cores}
    return [
        f"# This node has {facts.gpus} {facts.gpu_name}. Where the nodes of the job are like it, take one # away:",
        *(f"##SBATCH --{name}={value}" for name, value in values.items() if value is not None and name not in names),
    ]


def script(options: Sequence[str], command: Sequence[str], *, nodes: int, notice_s: int, sbatch: Sequence[str] = ()) -> str:
    """Return the script. options: of supervise. Raises SuperviseError (64) for a command or a directive that cannot be."""
    if nodes > 1:  # supervise completes torchrun from the variables of the step (supervisor/launch/slurm.py)
        refuse_standalone(command)
    return _SCRIPT.format(
        directives="\n".join(_directives(nodes, notice_s, sbatch)),
        supervise=" ".join(["supervise", *map(shlex.quote, options)]),
        command=shlex.join(command),
        job_code=_JOB_CODE.format(exit_code=_of_slurm("exit-code", options, "--job", "--state-dir")) if nodes > 1 else "",
        requeue=_of_slurm("requeue", options, "--state-dir"),
        limit_s=_LIMIT_S,
    )


def _of_slurm(name: str, options: Sequence[str], *taken: str) -> str:
    """Return a command of `supervise slurm`, with those of `supervise`'s options that it takes."""
    assigned = {"--job": "job.name=", "--state-dir": "job.state_dir="}
    given = [
        words
        for at, word in enumerate(options)
        if word in taken or (word == "--set" and options[at + 1].startswith(tuple(assigned[name] for name in taken)))
        for words in options[at : at + 2]
    ]
    return shlex.join(["supervise", "slurm", name, *given])


def _require_fitting(name: str, value: str, nodes: int) -> None:
    """Raise SuperviseError (64) for a line that would defeat this script."""
    error = hint = ""
    if name in {"hetjob", "packjob"}:
        error = "the script describes one component of a job, and this begins another"
        hint = "Write `#SBATCH hetjob` and the second component's lines into the script, and `--het-group=0,1` after `srun`."
    elif (name == "ntasks-per-node" and value != "1") or (name == "ntasks" and value != str(nodes)):
        error = "one supervise looks after all ranks of a node"
        hint = "Leave it out: torchrun's --nproc-per-node says how many ranks a node has."
    elif name == "signal" and "B" in value.rpartition(":")[0]:
        error = "the notice would come to the batch script alone, which ends by it, and the job with it"
        hint = "Leave `B:` out: a notice comes to the steps of a job, and srun starts supervise in one."
    if error:
        raise SuperviseError(f"{error}: --sbatch {name}={value}", hint=hint, exit_code=ExitCode.USAGE)


def _directives(nodes: int, notice_s: int, sbatch: Sequence[str]) -> list[str]:
    own = dict(text.removeprefix("--").partition("=")[::2] for text in sbatch)
    for name, value in own.items():
        if not name.replace("-", "").isalnum() or "\n" in value:
            raise SuperviseError(f"not an #SBATCH line: {name!r}", hint="Write --sbatch gpus-per-node=8.", exit_code=ExitCode.USAGE)
        _require_fitting(name, value, nodes)
    output = {"output": "%x-%A_%a.out"} if "array" in own else {}  # the numbers by which Slurm and supervise name a task
    own = output | own
    rows = [(name, own.pop(name, value.format(nodes=nodes, notice_s=notice_s)), why) for name, value, why in _DIRECTIVES]
    rows = [*((name, value, "") for name, value in own.items()), *rows]
    return [f"#SBATCH --{name}" + (f"={value}" if value else "") + (f"  # {why}" if why else "") for name, value, why in rows]
