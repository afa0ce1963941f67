"""`supervise nodes gpus` and `clear`: list the GPUs of this node, by NVML, and those that are out of use; put one back into use."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from health.checks.gpu.gpus import all_named, label
from health.judge import judge
from health.model import Result
from health.probing.runner import OUTCOME
from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import state_root
from supervisor.cli.nodes import usable
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.job.local_time import minute_text
from supervisor.node import visible_gpus
from supervisor.node.gpu_quarantine import ALL, QUARANTINE_S, GpuQuarantine
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import CheckResult, Readings
    from supervisor.config.settings import Settings
    from supervisor.node.gpu_quarantine import QuarantinedGpu

#: For `ls`: a person waits.
_DEADLINE_S = 8.0
#: NVML's errors where nothing of NVIDIA's is installed or loaded.
_NO_DRIVER = (9, 12)
_GIB = 1 << 30


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
    """Jobs use it from their next start on."""
    return clear(invocation.settings(), gpu)


def ls(settings: Settings, *, as_json: bool) -> int:
    """Print this node's GPUs, and those that the ledger keeps out of use. Returns 0, 1 if NVML did not name all."""
    from health.model import Ask  # noqa: PLC0415  not for --help
    from health.probing.runner import Runner  # noqa: PLC0415

    ledger = open_ledger(settings)
    with usable(ledger):
        held = ledger.held(time.time())
    with closing(Runner()) as runner:
        now = runner.sweep(("nvml",), Ask(deadline_s=_DEADLINE_S))
    rows, problem = _rows(held, now), _problem(now)
    if as_json:
        document = {"node": identity.node_name(), "ledger": str(ledger.path), "driver": now.text("nvml.driver") or None}
        stdio.write(sys.stdout, json.dumps({**document, "answered": not problem, "gpus": rows}, indent=1))
        return int(bool(problem))
    lines = list(_lines(rows))
    if problem:
        lines.append(problem)
    elif not rows:
        lines.append("no GPU is here, and none is out of use")
    if held:
        lines.append(f"kept in {ledger.path}; {settings.clear_gpu_command('UUID|all')} puts one back into use")
    stdio.write(sys.stdout, "\n".join(lines))
    return int(bool(problem))


def clear(settings: Settings, which: str) -> int:
    """Put a GPU, or all, back into use. Returns 0. Raises SuperviseError where there is none such."""
    ledger = open_ledger(settings)
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


def open_ledger(settings: Settings) -> GpuQuarantine:
    """Return this node's ledger; it need not be there."""
    return GpuQuarantine(state_root(settings), identity.node_name())


def _problem(now: Readings) -> str:
    """Return why NVML did not name all GPUs, "" where it did. No driver, and no library of one, is no GPU."""
    outcome = now.table(OUTCOME, "probe:nvml")
    init = now.table("nvml.init")
    if now.problem("nvml.init"):
        return f"which GPUs are here is not known: {now.problem('nvml.init')}"
    if init and init.get("code") != 0:
        return (
            ""
            if init.get("code") in _NO_DRIVER
            else f"which GPUs are here is not known: NVML error {init.get('code')}: {init.get('words')}"
        )
    if all_named(now):
        return ""
    state = "did not answer in time" if outcome.get("state") == "hung" else outcome.get("why") or "gave no answer"
    return f"which GPUs are here is not known: NVML {state}; `supervise doctor` shows more"


def _rows(held: tuple[QuarantinedGpu, ...], now: Readings) -> list[dict[str, Any]]:
    """One row for each GPU: those that NVML names in its order, then those of the ledger that it does not."""
    entries = {entry.name: entry for entry in held}
    cuda = {gpu.uuid: number for number, gpu in enumerate(visible_gpus.from_nvml(now, os.environ))}
    found = [check_result for check_result in judge(now) if check_result.result in (Result.FAILED, Result.DEGRADED)]
    rows: list[dict[str, Any]] = []
    for reading in now.of("gpu.identity"):
        subject, row = reading.subject, now.table("gpu.identity", reading.subject)
        uuid, pci, memory = subject.removeprefix("gpu:"), str(row.get("pci") or ""), now.table("gpu.memory", subject)
        uuid = "" if uuid.startswith("#") else uuid
        rows.append(
            {
                "index": row.get("index"),
                "cuda": cuda.get(uuid),
                "uuid": uuid,
                "pci": pci,
                "name": row.get("name") or "",
                "memory_bytes": memory.get("total"),
                "memory_used_bytes": memory.get("used"),
                "busy_percent": now.value("gpu.busy_percent", subject),
                "temperature_c": now.value("gpu.temperature_c", subject),
                "findings": _findings(found, subject, label(now, subject)),
                **_state(entries.pop(uuid if uuid in entries else pci, None)),
            }
        )
    rows += [{"index": None, "cuda": None, "uuid": entry.uuid, "pci": entry.pci, **_state(entry)} for entry in entries.values()]
    return rows


def _findings(found: list[CheckResult], subject: str, name: str) -> list[dict[str, str]]:
    """Return what is wrong with one GPU. Its name, with which each reason begins, is left out."""
    of_gpu = [check_result for check_result in found if check_result.subject == subject]
    return [
        {"check": check_result.check, "result": check_result.result.value, "reason": check_result.reason.removeprefix(f"{name}: ")}
        for check_result in of_gpu
    ]


def _state(entry: QuarantinedGpu | None) -> dict[str, Any]:
    if entry is None:
        return {"in_use": True}
    row = {"reason": entry.reason, "evidence": entry.evidence, "since": entry.t, "until": entry.t + QUARANTINE_S}
    return {"in_use": False, **row, "job": entry.job, "run": entry.run}


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a head, and for each GPU a line and what is wrong with it."""
    table: list[tuple[str, ...]] = [("GPU", "CUDA", "UUID", "PCI address", "name", "memory", "busy", "heat", "")] if rows else []
    table += [(*_cells(row), _word(row)) for row in rows]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))] if table else []
    for cells, row in zip(table, [None, *rows], strict=False):
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        if row is not None and not row["in_use"]:
            since, until = (minute_text(row[key]) for key in ("since", "until"))
            yield f"     out of use since {since}, until {until}, for job {row['job']}: {clean(row['reason'])}"
            yield f"     {clean(row['evidence'])}"
        for one in row.get("findings", ()) if row is not None else ():
            yield f"     {one['result']}: {one['check']}: {one['reason']}"


def _word(row: dict[str, Any]) -> str:
    if not row["in_use"]:
        return "OUT OF USE"
    return next((one["result"].upper() for one in row["findings"]), "in use")  # the worst comes first


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    index, cuda = ("-" if row[key] is None else str(row[key]) for key in ("index", "cuda"))
    used, total = row.get("memory_used_bytes"), row.get("memory_bytes")
    memory = f"{used / _GIB:.1f} of {total / _GIB:.1f} GiB" if used is not None and total else ""
    busy, heat = (
        f"{value} {unit}" if (value := row.get(key)) is not None else "" for key, unit in (("busy_percent", "%"), ("temperature_c", "°C"))
    )
    return index, cuda, row["uuid"] or "unknown", row["pci"] or "unknown", str(row.get("name") or ""), memory, busy, heat
