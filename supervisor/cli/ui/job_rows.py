"""The row of a job in the list, made of the states of its nodes. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import quote

from supervisor.core.units import span_text
from supervisor.core.values import Struct, replace
from supervisor.report import wording
from supervisor.report.html.job_page import state_of, wait_text
from supervisor.report.text import clean, cut
from supervisor.view.joint import host_of
from supervisor.view.status import StateWord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.view.job_view import JobView
    from supervisor.view.status import IncidentStatus, Status

#: A job that failed so long ago is listed as ended: people have seen it.
SEEN_AFTER_S = 7 * 86400.0
_MINUTE_S = 60
#: Characters of an incident in a row; its page has all.
_LONGEST = 160


class RowGroup(StrEnum):
    """The part of the list that a job is in, the most urgent first. The value is that of the filter `state`."""

    NEEDS = "needs"  # it hangs, waits for nodes, failed or lost its supervisor: somebody should look
    RUNS = "runs"
    UNREAD = "unread"
    ENDED = "ended"


class JobRow(Struct, frozen=True):
    """A job in the list. Times are Unix seconds; "" and None: not known, or nothing to say.

    state: in words; tone: good, warning, bad or faint. what, where, do, look: why it needs somebody, where that
    happened, what to do, and the command that shows more.
    members: the hosts of its last meeting. nodes: the nodes that the row shows; the page of the first is linked.
    """

    job: str
    node: str
    changed_t: float
    group: RowGroup = RowGroup.UNREAD
    state: str = "not read yet"
    tone: str = "faint"
    what: str = ""
    where: str = ""
    do: str = ""
    look: str = ""
    step: str = ""
    done: float | None = None  # the part of all steps, 0 to 1
    pace: str = ""
    left_s: float | None = None
    checkpoint: str = ""  # the newest, by its step
    checkpoint_t: float | None = None
    incident: str = ""
    runs: bool = False
    members: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its id in a page."""
        return f"job-{quote(self.job, safe='', errors='replace')}-{quote(self.node, safe='', errors='replace')}"

    @property
    def is_read(self) -> bool:
        """Whether more is known than where its files are."""
        return self.group is not RowGroup.UNREAD


def row_of(status: Status, view: JobView, address: str, changed_t: float) -> JobRow:
    """Return the row of a job on one node. address: the options with which our other commands find it."""
    state, tone = state_of(status)
    total = status.total_steps if status.total_steps and status.step is not None and not status.step_relative else None
    saved = max(filter(None, (status.saved, status.verified)), key=lambda stored: -stored.age_s, default=None)
    need, do, look = _need(status, address)
    group = RowGroup.NEEDS if need else RowGroup.RUNS if status.runs and status.run else RowGroup.ENDED
    return JobRow(
        job=status.job,
        node=status.node,
        changed_t=changed_t,
        group=group,
        state=state,
        tone=tone,
        what=clean(need),
        where="" if status.last_incident is None or status.state is not StateWord.FAILED else clean(status.last_incident.where),
        do=clean(do),
        look=look,
        step="" if status.step is None else f"step {'about ' * status.step_relative}{status.step:,}{f' of {total:,}' if total else ''}",
        done=min(1.0, status.step / total) if total and status.step is not None else None,
        pace=wording.pace_text(status.steps_per_s) if status.runs and status.steps_per_s else "",
        left_s=status.eta_s if status.runs else None,
        checkpoint="" if saved is None else "step unknown" if saved.step is None else f"step {saved.step:,}",
        checkpoint_t=None if saved is None else status.now - saved.age_s,
        incident="" if status.last_incident is None else _incident_text(status.last_incident),
        runs=status.runs,
        members=tuple(map(host_of, view.members)),
        nodes=(status.node,),
    )


def _need(status: Status, address: str) -> tuple[str, str, str]:
    """Return why a job needs somebody, what to do, and the command that shows more; "" where it needs nobody."""
    last = status.last_incident
    if status.state is StateWord.DIED:
        reason = "Nobody watches the ranks, and nobody restarts them."
        return reason, "start the job again with the same command", f"supervise status {address}"
    if status.state is StateWord.FAILED and status.now - (status.until or status.now) <= SEEN_AFTER_S:
        look = f"supervise why {address}"
        if last is None:
            return f"It ended with exit code {status.exit_code}.", "", look
        return last.what, last.do, look
    if status.hang is not None and status.runs:
        still = span_text(status.hang.still_s // _MINUTE_S * _MINUTE_S) if status.hang.still_s >= _MINUTE_S else "under a minute"
        return f"No progress for {still}: {status.hang.text}", "", f"supervise status --stacks {address}"
    if status.waits is not None:
        return wait_text(status.waits), "", f"supervise status --all-nodes {address}"
    return "", "", ""


def _incident_text(last: IncidentStatus) -> str:
    """Return the last incident in a sentence, and how it ended."""
    return cut(f"{clean(last.what)}: {last.outcome.replace('_', ' ')}", _LONGEST)


def joined(rows: Iterable[JobRow]) -> list[JobRow]:
    """Return a row for each job. rows: one for each job and node, the last changed first.

    The nodes of the last meeting are one job, and the most urgent of their rows represents all. A node that met them before,
    and left, is shown with them. A node that never met them has a row of its own.
    """
    by_job: dict[str, list[JobRow]] = {}
    for row in rows:
        by_job.setdefault(row.job, []).append(row)
    return [row for parts in by_job.values() for row in _joined_nodes(parts)]


def _joined_nodes(parts: Sequence[JobRow]) -> list[JobRow]:
    whole = []
    while parts:
        newest = parts[0]
        present = [row for row in parts if row is newest or row.node in newest.members]
        hosts = {row.node for row in present}
        past = [row for row in parts if row not in present and hosts & set(row.members)]
        leading = min(present, key=lambda row: (list(RowGroup).index(row.group), -row.changed_t))
        others = sorted(hosts - {leading.node}) + sorted(row.node for row in past)
        whole.append(replace(leading, nodes=(leading.node, *others), changed_t=newest.changed_t))
        parts = [row for row in parts if row not in present and row not in past]
    return whole


def in_order(rows: Iterable[JobRow]) -> list[JobRow]:
    """Return the rows in the list's order: running jobs by name, so no row moves while a person reads; the others by their last change."""
    order = list(RowGroup)
    return sorted(rows, key=lambda row: (order.index(row.group), 0.0 if row.group is RowGroup.RUNS else -row.changed_t, row.job, row.node))
