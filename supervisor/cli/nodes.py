"""`supervise nodes`: lists the nodes of a job and of its state directory's ledgers; excludes a node, or allows it again."""

from __future__ import annotations

import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.commands import CommandGroup
from supervisor.cli.invocation import JOB, STATE_DIR, Invocation, json_option, setting_options
from supervisor.cli.jobs.all_nodes import all_nodes
from supervisor.cli.jobs.job_files import find_job, places_in, state_root
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.launch import system_command
from supervisor.node.exclusions import excluded, usable
from supervisor.node.gpu_quarantine import QUARANTINE_S, GpuQuarantine, ledgers
from supervisor.report.node_tables import GpuOutOfUse, ListedExclusion, ListedNode, node_tables
from supervisor.report.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.cli.jobs.job_files import JobFiles
    from supervisor.config.settings import Settings
    from supervisor.node.gpu_quarantine import NodeExclusion
    from supervisor.report.nodes_page import NodeStatus

#: As identity.node_name makes it of a host name: it is the name of a file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: The longest reason in Slurm's list of drained nodes.
_MOST_REASON: Final = 200


@click.group(cls=CommandGroup, path="nodes", invoke_without_command=True)
@setting_options(*JOB)
@json_option
def group(invocation: Invocation, *, as_json: bool) -> int | None:
    """`supervise nodes` alone is `supervise nodes ls`."""
    context = click.get_current_context()
    context.obj = invocation
    return None if context.invoked_subcommand is not None else _ls(invocation, as_json=as_json)


@click.command()
@setting_options(*JOB)
@json_option
def ls_command(invocation: Invocation, *, as_json: bool) -> int:
    """It lists the nodes of the most recent job here, or of --job, and every node that has a ledger in the state directory."""
    return _ls(invocation, as_json=as_json)


def _ls(invocation: Invocation, *, as_json: bool) -> int:
    settings = invocation.settings_to_read_with()
    return ls(settings, invocation.job(settings), as_json=as_json)


@click.command()
@setting_options(*STATE_DIR)
@click.argument("node", metavar="NODE")
@click.option("--why", default="", metavar="TEXT", help="Shown wherever the node is refused.")
@click.option("--drain", is_flag=True, help="Have Slurm give the node to no further job of anybody. Slurm asks for an operator's rights.")
def exclude_command(invocation: Invocation, *, node: str, why: str, drain: bool) -> int:
    """Running jobs are not affected; the node is skipped from the next job start. `supervise slurm requeue` asks for other nodes."""
    return exclude(invocation.settings_to_read_with(), node, why, drain=drain)


@click.command()
@setting_options(*STATE_DIR)
@click.argument("node", metavar="NODE")
def allow_command(invocation: Invocation, *, node: str) -> int:
    """GPUs of the node that are out of use stay out of use: `supervise nodes clear` puts them back."""
    return allow(invocation.settings_to_read_with(), node)


def ls(settings: Settings, job: str | None, *, as_json: bool) -> int:
    """Print the nodes of a job, by default the most recent, and those that have a ledger. Returns 0, also where there is none."""
    root = state_root(settings)
    place = find_job(root, job) if job is not None or places_in(root) else None
    nodes = _listed(root, place)
    if as_json:
        stdio.write_json({"job": place and place.job, "ledgers": str(identity.node_ledger(root, "").parent), "nodes": nodes})
    elif nodes:
        stdio.show(*node_tables(nodes))
    else:
        stdio.say(f"no job and no ledger in {root}; --state-dir names another place")
    return 0


def exclude(settings: Settings, node: str, why: str, *, drain: bool = False) -> int:
    """Exclude a node. drain: have Slurm drain it too. Returns 0, also where Slurm does not: the exclusion holds."""
    root = state_root(settings)
    name = _known_as(root, node)
    ledger = GpuQuarantine(root, name)
    with usable(ledger):
        ledger.exclude(why or "no reason was given", time.time())
        node_exclusion = ledger.exclusion()
    lines = [
        f"excluded from the next start of a job on: {name}",
        f"kept in {ledger.path}; `{settings.allow_node_command(name)}` allows it again",
    ]
    stdio.write(sys.stdout, "\n".join(lines))
    if drain and node_exclusion is not None:
        stdio.say(_drained(node_exclusion))
    return 0


def _drained(node_exclusion: NodeExclusion) -> str:
    """Have Slurm drain an excluded node, with its reason: `sinfo -R` shows that to everybody. Return what came of it, in one line."""
    name = node_exclusion.node.partition(".")[0]
    reason = clean(f"supervise: {node_exclusion.reason}")[:_MOST_REASON]
    words = ("update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")
    answer, command = system_command.scontrol(*words, with_errors=True), shlex.join(("scontrol", *words))
    if answer is not None and answer.code == 0:
        return f"Slurm drains {name} ({reason}); `scontrol update NodeName={name} State=RESUME` ends that"
    why = (
        f"no answer within {system_command.SCONTROL_S:g} s"
        if answer is None
        else clean(answer.text.strip()) or "scontrol cannot be run here"
    )
    return f"Slurm does not drain {name}: {why}; ask an operator for `{command}`. The node stays excluded from your jobs"


def allow(settings: Settings, node: str) -> int:
    """Allow a node again. Returns 0. Raises SuperviseError (64) where it is not excluded."""
    root = state_root(settings)
    ledger = GpuQuarantine(root, _known_as(root, node))
    with usable(ledger):
        node_exclusion = ledger.allow(time.time())
    if node_exclusion is None:
        names = ", ".join(node_exclusion.node for node_exclusion in excluded(root)) or "none"
        hint = "Write a node as `supervise nodes` shows it; the ledgers belong to a state directory (--state-dir)."
        raise SuperviseError(f"no such node is excluded: {node}: {names} is, by {ledger.path.parent}", hint=hint, exit_code=ExitCode.USAGE)
    stdio.write(sys.stdout, f"jobs may begin again on {node_exclusion.node} (was: {clean(node_exclusion.reason)})")
    return 0


def _known_as(root: Path, node: str) -> str:
    """Return the name of a node in this state directory, by its whole or its short name. Raises SuperviseError (64) for any other text."""
    if not _NAME.fullmatch(node):
        raise SuperviseError(f"not the name of a node: {node!r}", hint="Write it as `supervise nodes` shows it.", exit_code=ExitCode.USAGE)
    names = dict.fromkeys(
        (*(place.node for place in places_in(root)), *(gpu_quarantine.node for gpu_quarantine in ledgers(root)), identity.node_name())
    )
    return next((name for name in names if name == node), next((name for name in names if name.partition(".")[0] == node), node))


def _listed(root: Path, place: JobFiles | None) -> tuple[ListedNode, ...]:
    """Return the nodes of a job, and those that have a ledger."""
    members = {} if place is None else {node.node: node for node in all_nodes(root, place).nodes}
    kept = {ledger.node: ledger for ledger in ledgers(root)}
    nodes = []
    for name in dict.fromkeys((*members, *kept)):
        node = ListedNode(name) if name not in members else _member(members[name])
        nodes.append(_with_ledger(node, kept[name]) if name in kept else node)
    return tuple(nodes)


def _member(node: NodeStatus) -> ListedNode:
    age_s = None if node.age_s is None else round(node.age_s, 3)
    return ListedNode(node.node, node.number, node.state, node.why, age_s, node.source)


def _with_ledger(node: ListedNode, ledger: GpuQuarantine) -> ListedNode:
    with usable(ledger):
        exclusion, held = ledger.exclusion(), ledger.held(time.time())
    return replace(
        node,
        excluded=None if exclusion is None else ListedExclusion(exclusion.reason, exclusion.t, exclusion.by),
        gpus=tuple(GpuOutOfUse(gpu.uuid, gpu.pci, gpu.reason, gpu.t, gpu.t + QUARANTINE_S) for gpu in held),
    )
