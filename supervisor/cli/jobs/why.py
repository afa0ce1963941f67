"""`supervise why`: explains incidents: the cause, the evidence, the decision, the next step. report/card.py has the page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, json_option, setting_options
from supervisor.cli.jobs.job_files import (
    MOST_LISTED,
    JobFiles,
    earlier_views,
    find_job,
    show_problems,
    state_root,
    views_of,
    whole_view_of,
    with_a_run,
)
from supervisor.core.values import Struct, asdict
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.report import card, wording
from supervisor.report.command_line import NextStart, start_again
from supervisor.report.last_line import begins_text
from supervisor.report.layout import FactPage, render, surface_of
from supervisor.report.text import clean
from supervisor.strategies.after_training import NAME as AFTER_TRAINING
from supervisor.view.incidents import RecordedIncident
from supervisor.view.job_facts import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from supervisor.config.settings import Settings
    from supervisor.view.job_view import JobView
    from supervisor.view.joint import JointIncident


class IncidentWords(Struct, frozen=True):
    """The texts of an incident's page; "" where the page has none.

    do: the first is what a person does, the others what else may help. begins: from what the command `again` would continue.
    """

    what: str
    code: str
    done: str
    do: tuple[str, ...]
    again: str
    begins: str


class ExplainedIncident(RecordedIncident, kw_only=True):
    """One incident: as the journal of `node` has it, its words, and its number on each node."""

    words: IncidentWords
    node: str
    nodes: dict[str, int]


class Explanation(Struct, frozen=True):
    """The output of `--json`. restored: the checkpoint of a mirror before the first attempt; None where none was asked."""

    job: str
    node: str
    incidents: tuple[ExplainedIncident, ...]
    restored: str | None


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
    view, _ = whole_view_of(place)
    show_problems(view)
    chosen = _asked_incidents(root, place, view, incident, show_all=show_all)
    address = settings.address(place.job)
    if as_json:
        rows = tuple(_explained(joint_incident, view, place) for joint_incident in chosen)
        document = Explanation(place.job, place.node, rows, view.restored or None)
        stdio.write_json(document)
        return 0
    surface, hang_pages = surface_of(sys.stdout), standing_still(place, view, address)
    if incident is None and not show_all and _is_earlier(chosen, view, place):
        last = f"`supervise why {chosen[0].incident.number}` explains the last one," if hang_pages else "the last one is"
        stdio.write(sys.stdout, f"no incident in this run; {last} of an earlier run\n")
        chosen = [] if hang_pages else chosen  # the question is why the ranks stand still now
    pages = [_page(place, view, joint_incident, address) for joint_incident in chosen]
    if pages := [*pages, *hang_pages]:
        stdio.write(sys.stdout, "\n\n".join(render(page, surface) for page in pages))
    else:
        stdio.write(sys.stdout, f"job {place.job}: no incident so far; supervise status {address} shows its state")
    if view.restored:
        stdio.write(sys.stdout, f"from the mirror, before the first attempt: {clean(view.restored)}")
    return 0


def _is_earlier(chosen: list[JointIncident], view: JobView, place: JobFiles) -> bool:
    """Whether the last incident is of an earlier run of this node."""
    return bool(chosen) and chosen[0].node == place.node and view.run is not None and chosen[0].incident.run_id != view.run.run_id


def _asked_incidents(root: Path, place: JobFiles, view: JobView, number: int | None, *, show_all: bool) -> list[JointIncident]:
    """Return the last incident, that of this number on this node, or all. Raises SuperviseError (64) where there is none of the number."""
    incidents: list[JointIncident] = []
    numbers: list[int] = []
    for incident in _incidents(root, place, view):
        if show_all or number is None or (incident.node, incident.incident.number) == (place.node, number):
            incidents.insert(0, incident)
            if not show_all:
                break
        if incident.node == place.node:
            numbers.append(incident.incident.number)
    if not incidents and number is not None:
        raise _no_incident(place, number, numbers)
    return incidents


def _page(place: JobFiles, view: JobView, joint: JointIncident, address: str) -> FactPage:
    own = joint.node == place.node
    stacks = _stacks(place if own else JobFiles(place.job, joint.node, place.directory.parent / joint.node), joint.incident)
    return card.why_page(
        place.job,
        joint.node,
        joint.incident,
        address,
        last_run=view.run.run_id if own and view.run else "",
        stacks=stacks,
        by_node=joint.by_node,
        is_of_another=not own,
        next_start=next_start(view, joint.incident),
        came_again=_came_again(view, joint.incident) if own else 0,
    )


def _came_again(view: JobView, incident: RecordedIncident) -> int:
    """Return the number of the next incident of this run with the same lasting failure; 0 where none followed."""
    later = [other for other in view.incidents if other.run_id == incident.run_id and other.number > incident.number]
    mark = _lasting(incident)
    return next((other.number for other in later if mark and _lasting(other) == mark), 0)


def _lasting(incident: RecordedIncident) -> str:
    """Return the fingerprint of a failure that does not pass by itself, "" for any other."""
    decision = incident.failures[-1].decision
    return "" if decision is None or decision.verdict.transient else decision.verdict.fingerprint


def next_start(view: JobView, incident: RecordedIncident) -> NextStart | None:
    """Return how the job is started again, where this incident ended its last run; None where it did not, or a training was over."""
    run, decision = view.run, incident.failures[-1].decision
    is_over = view.end is not None or incident.died_t is not None
    is_last = run is not None and incident.run_id == run.run_id and incident is view.incidents[-1]
    if run is None or not is_over or not is_last or incident.outcome == "resolved":
        return None
    if decision is not None and decision.plan.strategy == AFTER_TRAINING:
        return None
    code = 0 if view.end is None else view.end.exit_code
    newest = None if view.verified is None else view.verified[1]
    command = start_again(run.invocation, run.cwd, decision.plan.options if decision is not None else ())
    return NextStart(command, begins_text(state_of(view.values or {}), code, newest))


def _explained(joint: JointIncident, view: JobView, place: JobFiles) -> ExplainedIncident:
    incident, start = joint.incident, next_start(view, joint.incident) if joint.node == place.node else None
    decision = incident.failures[-1].decision
    verdict = decision.verdict if decision is not None else None
    came_again = _came_again(view, incident) if joint.node == place.node else 0
    words = IncidentWords(
        what=clean(wording.capital(incident.summary) if verdict is None else wording.what_text(verdict)),
        code=clean(wording.code_text(verdict)) if verdict is not None else "",
        done="" if decision is None else clean(wording.done_text(decision.plan, decision.attempt)),
        do=tuple(clean(fact.text) for fact in card.do_facts(incident, is_over=start is not None, came_again=came_again)),
        again="" if start is None else start.command.text,
        begins="" if start is None else clean(start.begins),
    )
    numbers = {host: record.number for host, record in joint.by_node.items()}
    return ExplainedIncident(**asdict(incident), words=words, node=joint.node, nodes=numbers)


def _incidents(root: Path, place: JobFiles, view: JobView) -> Iterator[JointIncident]:
    """Yield the job's incidents, the last one first: of all nodes that share the directory, then of this node's earlier runs."""
    from supervisor.view.joint import JointIncident, joint_incidents  # noqa: PLC0415  not for --help

    views = views_of(root, place, view)
    yield from reversed(joint_incidents(place.node, {host: node_view.incidents for host, node_view in views.items()}))
    for _, before in earlier_views(place):
        yield from (JointIncident(place.node, {place.node: incident}) for incident in reversed(before.incidents))


def standing_still(place: JobFiles, view: JobView, address: str) -> list[FactPage]:
    """Return a page that the ranks stand still now, or did until the run was stopped."""
    stacks = str(identity.look_path(place.directory, view.attempt))
    if view.hang_at_end is not None:
        t, hang, end_t = view.hang_at_end
        return [card.hang_page(place.job, view.attempt, address, hang, since_t=t, stacks=stacks, until_t=end_t)]
    if view.hang is None or view.end is not None:
        return []
    return [card.hang_page(place.job, view.attempt, address, view.hang[1], since_t=view.hang[0], stacks=stacks)]


def _stacks(place: JobFiles, incident: RecordedIncident) -> str:
    """Return the file of the look at the ranks, if they stood still; "" if there is none."""
    paths = [identity.look_path(place.directory, incident.failures[-1].attempt, number) for number in (incident.number, 0)]
    return next((str(path) for path in paths if path.exists()), "")


def _no_incident(place: JobFiles, number: int, numbers: Sequence[int]) -> SuperviseError:
    path = identity.incident_dir(place.directory, number) / "card.txt"
    hint = f"Name one of these: {', '.join(str(n) for n in reversed(numbers[:MOST_LISTED]))}." if numbers else "Leave the number out."
    if path.exists():
        hint = f"Its journal is not kept any more; read its card: {path}."
    return SuperviseError(f"no such incident: job {place.job}: {number}", hint=hint, exit_code=ExitCode.USAGE)
