"""`supervise slurm`: prints a batch script that runs CMD under supervision on each node, and brings its job back (docs/guides/slurm.md)."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Final

import click

from health.probes.slurm import job_id
from supervisor.cli import stdio
from supervisor.cli.clusters.job_words import option_words, refuse_standalone
from supervisor.cli.invocation import BEFORE_CMD, JOB, STATE_DIR, Invocation, setting_options
from supervisor.cli.jobs.job_files import history_of, places_in, state_root
from supervisor.cli.nodes import excluded
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.identity import known_job_name
from supervisor.launch.system_command import run_system_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: For an answer of Slurm's controller.
_SCONTROL_S: Final = 10.0
#: For scontrol in the script, where nothing else brings the job back. A controller that is down makes it wait for minutes.
_LIMIT_S: Final = 60.0
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
{job_code}
# 75: the job is to go on later. 143, 129: it was ended from outside before it could save, and goes on from its newest checkpoint.
# Every other code is final: 0 is done, and what supervise gave up fails again.
# Of an array this task alone is meant: the number of one task is that of the array.
job=${{SLURM_ARRAY_TASK_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}
# What takes the job back sends TERM to this script, which must not end before the nodes to exclude are known.
case $code in
    75 | 143 | 129) trap '' TERM; {requeue} || timeout {limit_s:.0f} scontrol requeue "$job" ;;
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
    """The options of a run stand before `slurm`. Write it into a file, look at it, and hand it to sbatch."""
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
        job_code=_JOB_CODE.format(exit_code=_of_slurm("exit-code", options, "--job", "--state-dir")) if nodes > 1 else "",
        requeue=_of_slurm("requeue", options, "--state-dir"),
        limit_s=_LIMIT_S,
    )


def _of_slurm(name: str, options: Sequence[str], *taken: str) -> str:
    """Return a command of this group, with those of `supervise`'s options that it takes."""
    assigned = {"--job": "job.name=", "--state-dir": "job.state_dir="}
    given = [
        words
        for at, word in enumerate(options)
        if word in taken or (word == "--set" and options[at + 1].startswith(tuple(assigned[name] for name in taken)))
        for words in options[at : at + 2]
    ]
    return shlex.join(["supervise", "slurm", name, *given])


@click.command()
@setting_options(*JOB)
@click.argument("code", type=click.IntRange(0, 255))
def exit_code_command(invocation: Invocation, *, code: int) -> int:
    """The script of `slurm print` calls it on several nodes, with srun's exit CODE, the highest of them.

    It prints 0 if a node ended with 0, for a job is done on all nodes. Else it prints the code of the node that ended last: one that was
    lost, or left early, decides nothing. It prints CODE where no journal tells another one.
    """
    settings = invocation.settings_to_read_with()
    name = known_job_name(settings.job.name, os.environ)
    stdio.write(sys.stdout, str(job_exit_code(state_root(settings), name, code)))
    return 0


def job_exit_code(root: Path, job: str | None, highest: int) -> int:
    """Return the exit code of a job whose nodes share a state directory. highest: of its nodes, returned where nothing else is known."""
    began_t, ends = 0.0, list[tuple[float, int]]()
    for place in places_in(root):
        if place.job == job:
            try:
                history, _ = history_of(place)
            except SuperviseError as error:
                stdio.say(f"{place.node}: {error.message}")
                continue
            began_t = max(began_t, history.run_t)
            if history.end is not None:
                ends.append((history.end_t, history.end.exit_code))
    codes = [code for end_t, code in sorted(ends) if end_t > began_t]  # an older one is of an earlier life of the job
    return 0 if highest == 0 or 0 in codes else codes[-1] if codes else highest


@click.command()
@setting_options(*STATE_DIR)
def requeue_command(invocation: Invocation) -> int:
    """The script of `slurm print` calls it. Nodes that `supervise nodes exclude` took out are added to those that the job excludes already.

    The exit code is 1 if Slurm did not take the job back; if it does not take the nodes, a line warns of that.
    """
    return requeue(state_root(invocation.settings_to_read_with()), os.environ)


def requeue(root: Path, environ: Mapping[str, str]) -> int:
    """Requeue the job that this runs in, and exclude nodes from it. Returns 0, 1 if it is not requeued."""
    job = job_id(environ)
    if not job:
        hint = "It is for a batch script: `supervise slurm print` prints one."
        raise SuperviseError("not in a job of Slurm: SLURM_JOB_ID is not set", hint=hint, exit_code=ExitCode.USAGE)
    problems: list[str] = []
    names = [node_exclusion.node.partition(".")[0] for node_exclusion in excluded(root, lambda error: problems.append(error.message))]
    before = _excluded_before(job) if names else ()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what takes the job back ends its batch script, and its nodes can be changed only then
    if not _scontrol("requeue", job):
        stdio.say(f"Slurm does not requeue job {job}: scontrol requeue failed")
        return 1
    wanted = ",".join(dict.fromkeys((*before, *names)))
    if names and not _scontrol("update", f"JobId={job}", f"ExcNodeList={wanted}"):
        problems.append(f"scontrol update ExcNodeList={wanted} failed")
    if problems:
        stdio.say(f"job {job} is requeued, and may begin on an excluded node again: {'; '.join(problems)}")
    elif names:
        stdio.say(f"job {job} is requeued without {', '.join(names)} (supervise nodes)")
    return 0


def _scontrol(*words: str) -> bool:
    system_command_result = run_system_command(("scontrol", *words), _SCONTROL_S)
    return system_command_result is not None and system_command_result.code == 0


def _excluded_before(job: str) -> tuple[str, ...]:
    """Return the nodes that the job excludes, by its own options."""
    system_command_result = run_system_command(("scontrol", "-o", "show", "job", job), _SCONTROL_S)
    match = re.search(r" ExcNodeList=(\S+)", system_command_result.text) if system_command_result is not None else None
    return () if match is None or match[1] == "(null)" else (match[1],)


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
