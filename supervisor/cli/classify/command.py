"""`supervise classify`: names what failed and why from any log, on any machine, without the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from checkpointing.command_line.progress import path_name
from supervisor.classify.gpu import memory as gpu_memory
from supervisor.cli import stdio
from supervisor.cli.classify import explaining, rendering, rules
from supervisor.cli.classify.incident_logs import Log, logs_at, read, size_of, verdict_on
from supervisor.cli.classify.rendering import Answer
from supervisor.cli.invocation import Invocation, json_option, setting_options
from supervisor.cli.progress import progress
from supervisor.config import loss_rules, signatures
from supervisor.errors import ExitCode, SuperviseError
from supervisor.guardian.libc import keep_freed_memory
from supervisor.observe.anchor_scanner import scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.scanner import Scanner
    from supervisor.config.settings import Settings
    from supervisor.report.layout import FactPage
    from supervisor.report.table import Cell, Table


@click.command()
@setting_options()
@json_option
@click.option("--rules", "show_rules", is_flag=True, help="List the signatures and the loss rules in use, yours too.")
@click.option("--explain", is_flag=True, help="Show the candidates, their ranking, and a row of your own for such a log.")
@click.argument("logs", metavar="FILE|DIR|-...", nargs=-1)
def command(invocation: Invocation, *, logs: tuple[str, ...], as_json: bool, show_rules: bool, explain: bool) -> int:
    """Each file gets an answer. A directory with the files of one attempt gets one answer; any other means the files in it."""
    if show_rules and not logs:
        return show_table(invocation.settings())
    return classify_logs(invocation.settings(), logs, as_json=as_json, explain=explain)


def show_table(settings: Settings) -> int:
    """Print the signatures and the loss rules in use. Returns 0."""
    catalogue, problems = signatures.configured(settings)
    for problem in problems:
        stdio.say(f"warning: {problem}")
    stdio.show(rules.table(catalogue, loss_rules.configured(settings)))
    return 0


def classify_logs(settings: Settings, places: Sequence[str], *, as_json: bool, explain: bool = False) -> int:
    """Print an answer for every log at `places`. Returns 0; raises SuperviseError: 64 if nothing could be read, 78."""
    keep_freed_memory()
    logs = [log for place in dict.fromkeys(places) for log in logs_at(place)]
    catalogue, problems = signatures.configured(settings)
    for problem in problems:
        stdio.say(f"warning: {problem}")
    scan = scanner(catalogue.anchors)
    of_losses = loss_rules.configured(settings)
    rows: list[tuple[Cell | str, ...]] = []  # an answer has evidence, of which thousands of logs would be too much
    pages: list[FactPage | Table] = []
    try:
        for log in logs:
            with progress(f"reading {path_name(log.path)}", size_of(log), wanted=not as_json) as bar:
                answer = _tried(log, catalogue, scan, bar.advance, rules.LogNumbers(of_losses))
            if answer is None:
                continue
            rows.append(rendering.row(answer))
            if as_json:
                document = rendering.as_dict(answer) | (explaining.as_dict(answer, answer.evidence) if explain else {})
                stdio.write_json(document, indent=0)
            elif explain or len(logs) == 1:
                pages.append(rendering.page(answer))
                pages += [explaining.table(answer, answer.evidence), explaining.row_page(answer)] if explain else []
    except BrokenPipeError:  # `| head` has read enough
        stdio.point_stdout_nowhere()
        return 0
    finally:  # also of the part read when a person has waited enough
        if rows and not as_json:
            stdio.show(*pages or [rendering.answer_table(rows)])
    if not rows:
        raise SuperviseError(
            f"nothing to read: {', '.join(places) or 'no log was named'}",
            hint="Name files or directories that hold logs, or - for standard input, as in `supervise classify slurm-1234.out`.",
            exit_code=ExitCode.USAGE,
        )
    return 0


def _tried(log: Log, catalogue: Catalogue, scan: Scanner, progress: Callable[[int], None], numbers: rules.LogNumbers) -> Answer | None:
    """Return the answer about a log; None if it could not be read, which is reported."""
    try:
        evidence, parts = read(log, catalogue, scan, progress, numbers)
    except OSError as error:
        stdio.say(f"error: cannot read {log.path}: {error.strerror or error}")
        return None
    except SuperviseError as error:
        stdio.say(f"error: {error.message}")
        stdio.say(error.hint)
        return None
    verdict = verdict_on(evidence)
    types = {name: kind for fact in verdict.because if (row := catalogue.row(fact.name)) for name, kind in row.fields}
    return Answer(log.path, verdict, parts, types | gpu_memory.KINDS, numbers.strange, evidence)
