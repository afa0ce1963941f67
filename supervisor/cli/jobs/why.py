"""`supervise why`: explains incidents: the cause, the evidence, the decision, what is next. report/card.py has the page."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import (
    MOST_LISTED,
    JobFiles,
    earlier_histories,
    find_job,
    histories_of,
    history_of,
    show_problems,
    state_root,
    with_a_run,
)
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.report import card, wording
from supervisor.report.layout import Fact, FactPage, Tone, render, surface_of
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from supervisor.config.settings import Settings
    from supervisor.journal.history import History, RecordedIncident
    from supervisor.journal.joint import JointIncident


@click.command()
@setting_options(*JOB)
@click.argument("incident", metavar="[INCIDENT]", required=False, type=click.IntRange(min=1))
@click.option("--all", "show_all", is_flag=True, help="Explain every incident whose journal is kept, the oldest first.")
@json_option
def command(invocation: Invocation, *, incident: int | None, show_all: bool, as_json: bool) -> int:
    """INCIDENT is a number that the card and `supervise status` show. Incidents of the five runs before this one are found too."""
    settings = invocation.settings_to_read_with()
    return why(settings, invocation.job(settings), incident, show_all=show_all, as_json=as_json)


def why(settings: Settings, job: str | None, incident: int | None, *, show_all: bool = False, as_json: bool = False) -> int:
    """Explain an incident, by default the last one, or all. Returns 0."""
    if show_all and incident is not None:
        raise SuperviseError(f"--all explains every incident: {incident}", hint="Leave out --all, or the number.", exit_code=ExitCode.USAGE)
    root = state_root(settings)
    place = with_a_run(root, find_job(root, job))
    history, _ = history_of(place)
    show_problems(history)
    chosen = _chosen(root, place, history, incident, show_all=show_all)
    if as_json:
        rows = [
            incident_json(joint_incident.incident) | {"node": joint_incident.node, "nodes": _numbers(joint_incident)}
            for joint_incident in chosen
        ]
        document = {"job": place.job, "node": place.node, "incidents": rows, "restored": history.restored or None}
        stdio.write(sys.stdout, json.dumps(document, indent=1))
        return 0
    address = settings.address(place.job)
    surface, last_run = surface_of(sys.stdout), history.run.run_id if history.run else ""
    if not chosen:
        stdio.write(sys.stdout, f"job {place.job}: no incident so far; supervise status {address} shows where it stands")
    pages = [_page(place, joint_incident, address, last_run) for joint_incident in chosen]
    if pages := [*pages, *_standing_still(place, history)]:
        stdio.write(sys.stdout, "\n\n".join(render(page, surface) for page in pages))
    if history.restored:
        stdio.write(sys.stdout, f"from the mirror, before the first attempt: {clean(history.restored)}")
    return 0


def _chosen(root: Path, place: JobFiles, history: History, number: int | None, *, show_all: bool) -> list[JointIncident]:
    """Return the last incident, that of this number on this node, or all. Raises SuperviseError (64) where there is none of the number."""
    found: list[JointIncident] = []
    numbers: list[int] = []
    for incident in _incidents(root, place, history):
        if show_all or number is None or (incident.node, incident.incident.number) == (place.node, number):
            found.insert(0, incident)
            if not show_all:
                break
        if incident.node == place.node:
            numbers.append(incident.incident.number)
    if not found and number is not None:
        raise _no_incident(place, number, numbers)
    return found


def _page(place: JobFiles, found: JointIncident, address: str, last_run: str) -> FactPage:
    own = found.node == place.node
    stacks = _stacks(place if own else JobFiles(place.job, found.node, place.directory.parent / found.node), found.incident)
    return card.why_page(
        place.job,
        found.node,
        found.incident,
        address,
        last_run=last_run if own else "",
        stacks=stacks,
        by_node=found.by_node,
        is_of_another=not own,
    )


def incident_json(found: RecordedIncident) -> dict[str, Any]:
    """Return an incident as JSON: all that the journal has of it, and the words of its page."""
    import msgspec  # noqa: PLC0415  not for --help

    row: dict[str, Any] = msgspec.to_builtins(found)
    decision = found.rounds[-1].decision
    verdict = decision.verdict if decision is not None else None
    words = {
        "cause": found.summary if verdict is None else wording.cause_text(verdict),
        "code": (verdict and wording.code_text(verdict)) or None,
        "decision": None if decision is None else wording.decision_text(decision.plan, decision.attempt),
        "next": None if decision is None else decision.plan.next_rung,
    }
    return row | {"words": {name: None if text is None else clean(text) for name, text in words.items()}}


def _incidents(root: Path, place: JobFiles, history: History) -> Iterator[JointIncident]:
    """Yield the job's incidents, the last one first: of all nodes that share the directory, then of this node's earlier runs."""
    from supervisor.journal.joint import JointIncident, joint_incidents  # noqa: PLC0415  not for --help

    histories = histories_of(root, place, history)
    yield from reversed(joint_incidents(place.node, {host: one.incidents for host, one in histories.items()}))
    for before in earlier_histories(place):
        yield from (JointIncident(place.node, {place.node: incident}) for incident in reversed(before.incidents))


def _numbers(found: JointIncident) -> dict[str, int]:
    """Return the number that each node gave an incident."""
    return {host: one.number for host, one in found.by_node.items()}


def _standing_still(place: JobFiles, history: History) -> list[FactPage]:
    """Return a page that the ranks stand still now, where they do, and where their stacks are."""
    if history.hang is None or history.end is not None:
        return []
    stacks = identity.look_path(place.directory, history.attempt)
    facts = Fact(wording.CAUSE, clean(history.hang[1].text)), Fact("stacks", str(stacks), copied=True)
    return [FactPage(f"job {place.job} stands still in attempt {history.attempt}", facts, Tone.WARNING)]


def _stacks(place: JobFiles, incident: RecordedIncident) -> str:
    """Return the file of the look at the ranks, if they stood still; "" if there is none."""
    paths = [identity.look_path(place.directory, incident.rounds[-1].attempt, number) for number in (incident.number, 0)]
    return next((str(path) for path in paths if path.exists()), "")


def _no_incident(place: JobFiles, number: int, numbers: Sequence[int]) -> SuperviseError:
    path = identity.incident_dir(place.directory, number) / "card.txt"
    hint = f"Name one of these: {', '.join(str(n) for n in reversed(numbers[:MOST_LISTED]))}." if numbers else "Leave the number out."
    if path.exists():
        hint = f"Its journal is not kept any more; read its card: {path}."
    return SuperviseError(f"no such incident: job {place.job}: {number}", hint=hint, exit_code=ExitCode.USAGE)
