"""`supervise status`: prints the state of a job, or of all its nodes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.all_nodes import all_nodes as all_nodes_of
from supervisor.cli.jobs.job_files import find_job, state_root, with_a_run
from supervisor.cli.jobs.job_status import status_of
from supervisor.cli.jobs.live_gpus import LiveGpus
from supervisor.cli.jobs.watch import watch as watch_page
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report import kept_alerts
from supervisor.report.layout import surface_of
from supervisor.report.nodes_page import nodes_page
from supervisor.report.status_page import incident_facts, rendered
from supervisor.report.table import drawn

if TYPE_CHECKING:
    from supervisor.config.settings import Settings


@click.command()
@setting_options(*JOB)
@click.option("--watch", is_flag=True, help="Show it again every 2 s, in place, until the job ends.")
@click.option(
    "--probe",
    type=click.Choice(("live", "ready")),
    metavar="live|ready",
    help="Print one line; exit code 1 if supervise is not alive, or not ready.",
)
@click.option("--all-nodes", is_flag=True, help="Show the state of each node of the job, and its age.")
@click.option("--stacks", is_flag=True, help="Show what each rank of this node does now: stacks, process, the collective that it waits in.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="With --stacks: show one rank only.")
@click.option("-v", "--verbose", is_flag=True, help="List the alerts too: sent, refused with the service's answer, waiting.")
@json_option
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation,
    *,
    watch: bool,
    probe: str | None,
    all_nodes: bool,
    stacks: bool,
    rank: int | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Without --job it shows the most recent job here. The exit code is 0, whatever the job does, except with --probe.

    --stacks looks at the ranks of this node and their DataLoader workers. The job is not affected. It takes 10 s at most.
    """
    if probe is not None:
        from supervisor.cli.jobs.probe import answer  # noqa: PLC0415  for the probe of a pod only

        return answer(invocation, probe)
    settings = invocation.settings_to_read_with()
    if stacks:
        from supervisor.cli.jobs.stacks import stacks as show_stacks  # noqa: PLC0415  not for --help

        return show_stacks(settings, invocation.job(settings), rank)
    if rank is not None:
        raise SuperviseError("--rank requires --stacks", hint="Write `supervise status --stacks --rank N`.", exit_code=ExitCode.USAGE)
    if verbose and all_nodes:
        hint = "The alerts are those of one node: leave --all-nodes out."
        raise SuperviseError("--verbose and --all-nodes exclude each other", hint=hint, exit_code=ExitCode.USAGE)
    return status(settings, invocation.job(settings), as_json, watch=watch, all_nodes=all_nodes, verbose=verbose)


def status(  # noqa: PLR0913  as above
    settings: Settings,
    job: str | None,
    as_json: bool,  # noqa: FBT001  the command's own flag
    *,
    watch: bool = False,
    all_nodes: bool = False,
    verbose: bool = False,
) -> int:
    """Print the job's state, or that of all its nodes; with `watch` again and again until it ends. verbose: with its alerts. Returns 0."""
    root = state_root(settings)
    place = with_a_run(root, find_job(root, job))
    address, indent = settings.address(place.job), 0 if watch else 1

    def page() -> tuple[str, bool]:
        job_status = status_of(place, gpus)
        surface = surface_of(sys.stdout)
        if verbose:
            alert_list, dropped = kept_alerts.listed(place.directory)
            job_status = replace(job_status, alert_list=alert_list, alerts_dropped=dropped)
        if all_nodes:
            nodes = all_nodes_of(root, place)
            text = stdio.json_text(nodes, indent) if as_json else drawn(nodes_page(nodes, address, incident_facts(job_status)), surface)
        else:
            text = stdio.json_text(job_status, indent) if as_json else rendered(job_status, address, surface)
        return text, job_status.runs

    with LiveGpus() as gpus:
        if watch:
            watch_page(page, in_place=not as_json)
        else:
            stdio.write(sys.stdout, page()[0])
    return 0
