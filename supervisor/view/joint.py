"""Brings together what the journals of several nodes have of one job: each incident once, and the attempts of each node. Pure.

Nodes that met for an attempt failed in it together: their records of it are one incident, whatever number each of them gave it. A failure
before a meeting is of one node alone. A journal that was copied to another node (run/moved_job.py) has the same records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from supervisor.view.incidents import RecordedFailure, RecordedIncident  # noqa: TC004  a card needs none of it
    from supervisor.view.job_view import JobView


@dataclass(frozen=True, slots=True)
class JointIncident:
    """One incident of a job. by_node: what each node has of it, by host; node: whose record is shown."""

    node: str
    by_node: dict[str, RecordedIncident]

    @property
    def incident(self) -> RecordedIncident:
        """The record that is shown."""
        return self.by_node[self.node]


def host_of(member: str) -> str:
    """Return the host of a node that met others (`HOST/ID`)."""
    return member.partition("/")[0]


def of_one_job(own: str, views: Mapping[str, JobView]) -> list[str]:
    """Return the hosts of those views that are of the same job as that of `own`: they met it, or others that did."""
    partners = {host: {host_of(name) for members in _meetings(view) for name in members} | {host} for host, view in views.items()}
    hosts = {own}
    while more := {
        host for host, met in partners.items() if host not in hosts and (met & hosts or any(host in partners[other] for other in hosts))
    }:
        hosts |= more
    return [host for host in views if host in hosts]


def _meetings(view: JobView) -> Iterator[tuple[str, ...]]:
    yield from view.meetings.values()
    for incident in view.incidents:
        yield from (failure.members for failure in incident.failures)


def joint_incidents(own: str, incidents: Mapping[str, Sequence[RecordedIncident]]) -> list[JointIncident]:
    """Return each incident of a job once, the oldest first. incidents: by host. The record of `own` is shown, else the deciding node's."""
    if len(incidents) == 1:  # in the order of the journal: clocks are set
        return [JointIncident(host, {host: incident}) for host, recorded in incidents.items() for incident in recorded]
    groups: list[dict[str, RecordedIncident]] = []
    group_of: dict[Hashable, int] = {}
    for host in sorted(incidents, key=lambda name: name != own):
        for incident in incidents[host]:
            keys = list(_keys(incident))
            at = next((group_of[key] for key in keys if key in group_of and host not in groups[group_of[key]]), None)
            if at is None:
                at = len(groups)
                groups.append({})
            groups[at][host] = incident
            for key in keys:
                group_of.setdefault(key, at)
    joint = [JointIncident(_shown(own, group), group) for group in groups]
    return sorted(joint, key=lambda entry: entry.incident.opened_t)


def _keys(incident: RecordedIncident) -> Iterator[Hashable]:
    """Yield what two records of one incident have in common."""
    yield incident.run_id, incident.number, incident.opened_t
    yield from ((failure.attempt, failure.members) for failure in incident.failures if failure.members)


def _shown(own: str, group: Mapping[str, RecordedIncident]) -> str:
    if own in group:
        return own
    return next(
        (host for host, incident in group.items() if any(f.decision is not None and f.decision.alerts for f in incident.failures)),
        next(iter(group)),
    )


def attempts_of(views: Mapping[str, JobView]) -> dict[str, list[int]]:
    """Return the attempts of the last run in which each node took part, by host; those of nodes without a journal here too."""
    attempts_by_host: dict[str, set[int]] = {}
    for view in views.values():
        for attempt, members in view.meetings.items():
            for member in members:
                attempts_by_host.setdefault(host_of(member), set()).add(attempt)
    return {host: sorted(attempts) for host, attempts in attempts_by_host.items()}


def failure_of(incident: RecordedIncident, last: RecordedFailure) -> RecordedFailure | None:
    """Return a node's part in a failure that the record of another node has as `last`; None where it took none."""
    return next((failure for failure in incident.failures if (failure.attempt, failure.members) == (last.attempt, last.members)), None)
