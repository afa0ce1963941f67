"""`supervise nodes gpus` and `clear`: list the GPUs of this node, by NVML, and those that are out of use; put one back into use."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import state_root
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.node.exclusions import usable
from supervisor.node.gpu_quarantine import ALL, GpuQuarantine
from supervisor.report.node_tables import gpu_tables
from supervisor.report.text import clean

if TYPE_CHECKING:
    from supervisor.config.settings import Settings


@click.command()
@setting_options(*JOB)
@json_option
def ls_command(invocation: Invocation, *, as_json: bool) -> int:
    """GPU is the number of NVML and `nvidia-smi`, CUDA the number that a job started here would use.

    Exits with 1 if NVML does not answer.
    """
    return ls(invocation.settings(), as_json=as_json)


@click.command()
@setting_options(*JOB)
@click.argument("gpu", metavar="UUID|all")
def clear_command(invocation: Invocation, *, gpu: str) -> int:
    """Jobs use the GPU from their next start on."""
    return clear(invocation.settings(), gpu)


def ls(settings: Settings, *, as_json: bool) -> int:
    """Print this node's GPUs, and those that the ledger keeps out of use. Returns 0, 1 if NVML did not name all."""
    from supervisor.node.listed_gpus import listed_gpus  # noqa: PLC0415  not for --help

    ledger = _ledger(settings)
    with usable(ledger):
        held = ledger.held(time.time())
    listed = listed_gpus(held)
    if as_json:
        document = {"node": ledger.node, "ledger": str(ledger.path), "driver": listed.driver or None}
        stdio.write_json({**document, "answered": not listed.problem, "gpus": listed.gpus})
        return int(bool(listed.problem))
    stdio.show(*gpu_tables(listed.gpus))
    if listed.problem:
        stdio.write(sys.stdout, listed.problem)
    elif not listed.gpus:
        stdio.write(sys.stdout, "no GPU is here, and none is out of use")
    if held:
        stdio.write(sys.stdout, f"kept in {ledger.path}; {settings.clear_gpu_command('UUID|all')} puts one back into use")
    return int(bool(listed.problem))


def clear(settings: Settings, which: str) -> int:
    """Put a GPU, or all, back into use. Returns 0. Raises SuperviseError where there is none such."""
    ledger = _ledger(settings)
    with usable(ledger):
        freed, held = ledger.clear(which, time.time()), ledger.held(time.time())
    if not freed and which != ALL:
        names = ", ".join(entry.name for entry in held) or "none"
        raise SuperviseError(
            f"no such GPU is out of use: {which}: {names} is, by {ledger.path}",
            hint="Write a UUID as `supervise nodes gpus` shows it, or `all`; the ledger belongs to a state directory (--state-dir).",
            exit_code=ExitCode.USAGE,
        )
    lines = [f"back in use from the next start of a job on: {entry.name} (was: {clean(entry.reason)})" for entry in freed]
    stdio.write(sys.stdout, "\n".join(lines or ["no GPU was out of use"]))
    return 0


def _ledger(settings: Settings) -> GpuQuarantine:
    """Return this node's ledger; it need not be there."""
    return GpuQuarantine(state_root(settings), identity.node_name())
