"""Says of a recorded incident what `status` and the pages show of it: what, where, done, do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Cause
from supervisor.report import wording
from supervisor.report.card import do_facts
from supervisor.report.text import clean
from supervisor.view.status import IncidentStatus

if TYPE_CHECKING:
    from supervisor.view.incidents import RecordedIncident


def incident_status(incident: RecordedIncident, node: str) -> IncidentStatus:
    """Return an incident in the words of the card. node: whose record it is."""
    decided = next((failure.decision for failure in reversed(incident.failures) if failure.decision is not None), None)
    known = incident.number, incident.opened_t, incident.outcome
    if decided is None:
        where = _joined(wording.ranks_text(None, incident.rank), node)
        collecting = "the evidence is being collected" * (incident.outcome == "open")
        return IncidentStatus(*known, clean(wording.capital(incident.summary)), where, collecting)
    verdict, plan = decided.verdict, decided.plan
    step = wording.step_text(decided.step, at_least=decided.at_least) if decided.step is not None else ""
    place = _joined(wording.ranks_text(verdict, verdict.rank), verdict.node or node)
    where = ", ".join(filter(None, (place, wording.code_text(verdict), step)))
    do = next(fact.text for fact in do_facts(incident, is_over=False))
    done = wording.done_text(plan, decided.attempt)
    cause = "" if verdict.cause is Cause.NONE else verdict.cause.value
    return IncidentStatus(*known, clean(wording.what_text(verdict)), clean(where), clean(done), clean(do), cause)


def _joined(ranks: str, node: str) -> str:
    return f"{ranks} on {node}" if ranks and node else ranks or node
