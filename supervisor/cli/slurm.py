"""`supervise slurm exit-code` and `requeue`: what the script of `supervise print slurm` calls after its job (docs/guides/slurm.md)."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import click

from health.probes.slurm import components, job_id
from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, STATE_DIR, Invocation, setting_options
from supervisor.cli.jobs.job_files import places_in, state_root, view_of
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.identity import known_job_name
from supervisor.launch.slurm import job_nodes
from supervisor.launch.system_command import scontrol
from supervisor.node.exclusions import excluded, unfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@click.command()
@setting_options(*JOB)
@click.argument("code", type=click.IntRange(0, 255))
def exit_code_command(invocation: Invocation, *, code: int) -> int:
    """The script of `print slurm` calls it on several nodes, with srun's exit CODE, the highest of them.

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
                view, _ = view_of(place)
            except SuperviseError as error:
                stdio.say(f"{place.node}: {error.message}")
                continue
            began_t = max(began_t, view.run_t)
            if view.end is not None:
                ends.append((view.end_t, view.end.exit_code))
    codes = [code for end_t, code in sorted(ends) if end_t > began_t]  # an older one is of an earlier life of the job
    return 0 if highest == 0 or 0 in codes else codes[-1] if codes else highest


@click.command()
@setting_options(*STATE_DIR)
@click.option("--elsewhere", is_flag=True, help="Only where one of the job's nodes is unfit: it is excluded, or a GPU of it is out of use.")
def requeue_command(invocation: Invocation, *, elsewhere: bool) -> int:
    """The script of `print slurm` calls it. Nodes that `supervise nodes exclude` took out are added to those that the job excludes already.

    The exit code is 1 if Slurm did not take the job back; if it does not take the nodes, a line warns of that.
    """
    return requeue(state_root(invocation.settings_to_read_with()), os.environ, elsewhere=elsewhere)


def requeue(root: Path, environ: Mapping[str, str], *, elsewhere: bool = False) -> int:
    """Requeue the job that this runs in, and exclude nodes from it. Returns 0, 1 if it is not requeued.

    elsewhere: after an end for want of a fit node. Then each requeue excludes a node that the job had, and so they come to an end.
    """
    job = job_id(environ)
    if not job:
        hint = "It is for a batch script: `supervise print slurm` prints one."
        raise SuperviseError("not in a job of Slurm: SLURM_JOB_ID is not set", hint=hint, exit_code=ExitCode.USAGE)
    problems: list[str] = []
    names = [node_exclusion.node.partition(".")[0] for node_exclusion in excluded(root, lambda error: problems.append(error.message))]
    unfit_nodes = unfit(root, job_nodes(environ)) if elsewhere else []
    if elsewhere and not unfit_nodes:
        return 1
    names = list(dict.fromkeys((*names, *unfit_nodes)))
    before = {component: _excluded_before(component) for component in (_components(job, environ) if names else ())}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what takes the job back ends its batch script, and its nodes can be changed only then
    if not _is_done("requeue", job):
        stdio.say(f"Slurm does not requeue job {job}: scontrol requeue failed")
        return 1
    for component, own in before.items():
        # one name that Slurm does not know makes it refuse all; those of the job it knows
        if not any(_exclude(component, (*own, *choice)) for choice in (names, unfit_nodes) if choice):
            problems.append(f"scontrol update ExcNodeList={','.join(names)} failed")
            if elsewhere and _is_done("hold", job):  # else it would end on the same node again and again
                stdio.say(f"job {job} is requeued and held: {'; '.join(problems)}; `scontrol release {job}` lets it begin")
                return 0
    if problems:
        stdio.say(f"job {job} is requeued, and may begin on an excluded node again: {'; '.join(problems)}")
    elif names:
        stdio.say(f"job {job} is requeued without {', '.join(names)} (supervise nodes)")
    return 0


def _components(job: str, environ: Mapping[str, str]) -> list[str]:
    """Return the job, or each component of a heterogeneous one (4711+1): Slurm keeps the nodes of one from the others as excluded, too."""
    return [f"{job}+{component}" for component in range(components(environ))] or [job]


def _exclude(component: str, names: Sequence[str]) -> bool:
    return _is_done("update", f"JobId={component}", f"ExcNodeList={','.join(dict.fromkeys(names))}")


def _is_done(*words: str) -> bool:
    answer = scontrol(*words)
    return answer is not None and answer.code == 0


def _excluded_before(job: str) -> tuple[str, ...]:
    """Return the nodes that the job excludes, by its own options."""
    answer = scontrol("-o", "show", "job", job)
    match = re.search(r" ExcNodeList=([\w.,\[\]-]+)(?!\S)", answer.text) if answer is not None else None  # (null) is none
    return () if match is None else (match[1],)
