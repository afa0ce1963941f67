"""`supervise gpus`: lists the GPUs of this node that are out of use, and puts one back into use."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli import stdio
from supervisor.cli.commands import CommandGroup
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.node import visible_gpus
from supervisor.node.gpu_quarantine import ALL, GpuQuarantine
from supervisor.report.text import clean

if TYPE_CHECKING:
    from supervisor.config.settings import Settings
    from supervisor.node.gpu_quarantine import QuarantinedGpu

#: For `ls`: a person waits.
_DEADLINE_S = 5.0


@click.group(cls=CommandGroup, path="gpus", invoke_without_command=True)
@setting_options(*JOB)
@json_option
def group(invocation: Invocation, *, as_json: bool) -> int | None:
    """`supervise gpus` alone is `supervise gpus ls`."""
    context = click.get_current_context()
    context.obj = invocation
    return None if context.invoked_subcommand is not None else ls(invocation.settings(), as_json=as_json)


@click.command()
@setting_options(*JOB)
@json_option
def ls_command(invocation: Invocation, *, as_json: bool) -> int:
    """The exit code is 1 if nvidia-smi does not answer."""
    return ls(invocation.settings(), as_json=as_json)


@click.command()
@setting_options(*JOB)
@click.argument("gpu", metavar="UUID|all")
def clear_command(invocation: Invocation, *, gpu: str) -> int:
    """Jobs use it from their next start on."""
    return clear(invocation.settings(), gpu)


def ls(settings: Settings, *, as_json: bool) -> int:
    """Print the GPUs that a job started here would see, and those that the ledger keeps out of use. Returns 0, 1 if not known."""
    ledger = open_ledger(settings)
    held = _held(ledger)
    seen = visible_gpus.list_gpus(os.environ, _DEADLINE_S)
    rows = _rows(ledger, held, seen)
    if as_json:
        stdio.write(
            sys.stdout,
            json.dumps({"node": identity.node_name(), "ledger": str(ledger.path), "answered": seen.answered, "gpus": rows}, indent=1),
        )
        return int(not seen.answered)
    lines = [_line(row) for row in rows]
    if not seen.answered:
        lines.append(f"nvidia-smi did not answer within {_DEADLINE_S:.0f} s: which GPUs are here is not known")
    elif not rows:
        lines.append("no GPU is visible here, and none is out of use")
    if held:
        lines.append(f"kept in {ledger.path}; {settings.clear_gpu_command('UUID|all')} puts one back into use")
    stdio.write(sys.stdout, "\n".join(lines))
    return int(not seen.answered)


def clear(settings: Settings, which: str) -> int:
    """Put a GPU, or all, back into use. Returns 0. Raises SuperviseError where there is none such."""
    ledger = open_ledger(settings)
    try:
        freed = ledger.clear(which, time.time())
    except OSError as error:
        raise _unusable(ledger, error) from error
    if not freed and which != ALL:
        names = ", ".join(entry.name for entry in _held(ledger)) or "none"
        raise SuperviseError(
            f"no such GPU is out of use: {which}: {names} is, by {ledger.path}",
            hint="Write a UUID as `supervise gpus` shows it, or `all`; the ledger belongs to a state directory (--state-dir).",
            exit_code=ExitCode.USAGE,
        )
    lines = [f"back in use from the next start of a job on: {entry.name} (was: {clean(entry.reason)})" for entry in freed]
    stdio.write(sys.stdout, "\n".join(lines or ["no GPU was out of use"]))
    return 0


def open_ledger(settings: Settings) -> GpuQuarantine:
    """Return this node's ledger; it need not be there."""
    root = os.path.join(settings.cwd, settings.job.state_dir)  # noqa: PTH118  an absolute state_dir stands for itself
    return GpuQuarantine(Path(root), identity.node_name(), settings.gpus.quarantine_days)


def _held(ledger: GpuQuarantine) -> tuple[QuarantinedGpu, ...]:
    try:
        return ledger.held(time.time())
    except OSError as error:
        raise _unusable(ledger, error) from error


def _unusable(ledger: GpuQuarantine, error: OSError) -> SuperviseError:
    return SuperviseError(
        f"cannot use the ledger of GPUs: {ledger.path}: {error.strerror or error}",
        hint="Make it readable and writable for you, or name another state directory with --state-dir.",
    )


def _rows(ledger: GpuQuarantine, held: tuple[QuarantinedGpu, ...], seen: visible_gpus.GpuListing) -> list[dict[str, Any]]:
    """One row for each GPU: those that are visible in CUDA's order, then those of the ledger that are not."""
    entries = {entry.name: entry for entry in held}
    rows: list[dict[str, Any]] = []
    for gpu in seen.gpus:
        name = gpu.uuid if gpu.uuid in entries else gpu.pci
        rows.append({"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci, **_state(ledger, entries.pop(name, None))})
    rows += [{"index": None, "uuid": entry.uuid, "pci": entry.pci, **_state(ledger, entry)} for entry in entries.values()]
    return rows


def _state(ledger: GpuQuarantine, entry: QuarantinedGpu | None) -> dict[str, Any]:
    if entry is None:
        return {"in_use": True}
    row = {"reason": entry.reason, "evidence": entry.evidence, "since": entry.t, "until": entry.t + ledger.quarantine_s}
    return {"in_use": False, **row, "job": entry.job, "run": entry.run}


def _line(row: dict[str, Any]) -> str:
    index = "-" if row["index"] is None else str(row["index"])
    head = f"{index:>3}  {row['uuid'] or 'UUID unknown'}  {row['pci'] or 'PCI address unknown'}"
    if row["in_use"]:
        return f"{head}  in use"
    since, until = (time.strftime("%Y-%m-%d %H:%M", time.localtime(row[key])) for key in ("since", "until"))
    return f"{head}  out of use since {since}, until {until}, for job {row['job']}: {clean(row['reason'])}\n     {clean(row['evidence'])}"
