"""`supervise why`: explains one incident in six steps: seen, stopped, evidence, verdict, plan, resumed. report/card.py writes the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.jobs.job_files import (
    MOST_LISTED,
    JobFiles,
    earlier_histories,
    find_job,
    history_of,
    print_text,
    show_problems,
    state_root,
)
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report import card
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.config.settings import Settings
    from supervisor.journal.reader import History, RecordedIncident


@click.command()
@setting_options(*JOB)
@click.argument("incident", metavar="[INCIDENT]", required=False, type=click.IntRange(min=1))
def command(invocation: Invocation, *, incident: int | None) -> int:
    """INCIDENT is a number that the card and `supervise status` show. Incidents of the five runs before this one are found too."""
    settings = invocation.settings_to_read_with()
    return why(settings, invocation.job(settings), incident)


def why(settings: Settings, job: str | None, incident: int | None) -> int:
    """Explain an incident, by default the last one. Returns 0."""
    place = find_job(state_root(settings), job)
    history, _ = history_of(place)
    show_problems(history)
    address = settings.address(place.job)
    numbers: list[int] = []
    for found in _incidents(place, history):
        if incident in (None, found.number):
            break
        numbers.append(found.number)
    else:
        if incident is None:
            print_text(f"job {place.job}: no incident so far; supervise status {address} shows where it stands")
            _print_restored(history)
            return 0
        raise _no_incident(place, incident, numbers)
    print_text(card.why_text(place.job, place.node, found, address, since=history.run.run_id if history.run else ""))
    _print_restored(history)
    return 0


def _print_restored(history: History) -> None:
    if history.restored:
        print_text(f"from the mirror, before the first attempt: {clean(history.restored)}")


def _incidents(place: JobFiles, history: History) -> Iterator[RecordedIncident]:
    """Yield the job's incidents, the last one first, those of earlier runs whose journals are kept included."""
    yield from reversed(history.incidents)
    for before in earlier_histories(place):
        yield from reversed(before.incidents)


def _no_incident(place: JobFiles, number: int, numbers: Sequence[int]) -> SuperviseError:
    path = place.directory / "incidents" / f"{number:04d}" / "card.txt"
    hint = f"Name one of these: {', '.join(str(n) for n in reversed(numbers[:MOST_LISTED]))}." if numbers else "Leave the number out."
    if path.exists():
        hint = f"Its journal is not kept any more; read its card: {path}."
    return SuperviseError(f"no such incident: job {place.job}: {number}", hint=hint, exit_code=ExitCode.USAGE)
