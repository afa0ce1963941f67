"""Names in journals before format 3.1, and what they are now: one row for each event, action, stage and field that was renamed.

A new name never stood for anything else before. So a row holds for every older format that had the old name.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from supervisor.core.state import JobState, Stage
from supervisor.journal.records import ACTIONS, EVENTS, kinds_of

if TYPE_CHECKING:
    from supervisor.journal.records import EventTaken

#: Events, actions and stages.
NAMES: dict[str, str] = {
    "PeerFenced": "AttemptEndedByPeer",
    "SaveWatched": "SaveOnRequestSeen",
    "Say": "PrintMessage",
    "TellNodes": "BroadcastStart",
    "fenced": "teardown",
}
#: Fields, by the present name of their class.
FIELDS: dict[str, dict[str, str]] = {
    "SupervisorStarted": {"left_t": "last_alive_t", "last_look": "heartbeats_read"},
    "CheckpointSelected": {
        "fenced": "torn",
        "mended": "repaired",
        "poison": "rejected",
        "agreed": "agreement",
        "held": "node_offers",
        "leaves": "this_node_leaves",
        "again": "peer_leaves",
        "stuck": "torn_in_use",
    },
    "HealthChecked": {"wanted": "command_nproc"},
    "StopRequested": {"asks": "time_left_follows"},
    "SelectCheckpoint": {"avoid": "rejected", "agreed": "last_agreement", "knows": "had_checkpoint"},
    "ReportResume": {"handed": "resume_from", "because": "reason"},
    "Plan": {"poison": "rejected", "told": "notes"},
}


def has_old_names(version: str) -> bool:
    """Whether a journal of this format (MAJOR.MINOR) was written with the old names."""
    major, _, minor = version.partition(".")
    return (int(major), int(minor or 0)) < (3, 1) if major.isdigit() and minor.isdigit() else False


def with_present_names(taken: EventTaken) -> EventTaken:
    """Return a record of an event with the present names, but for its state (`state`)."""
    event = NAMES.get(taken.event, taken.event)
    actions = ((NAMES.get(name, name), data) for name, data in taken.actions)
    return replace(
        taken,
        event=event,
        data=_renamed(taken.data, EVENTS.get(event)),
        stage=NAMES.get(taken.stage, taken.stage),
        actions=tuple((name, _renamed(data, ACTIONS.get(name))) for name, data in actions),
    )


def state(values: dict[str, Any]) -> dict[str, Any]:
    """Return a state of format 3, as JSON, with the present names."""
    renamed: dict[str, Any] = _renamed(values, JobState)
    return renamed


def _renamed(value: Any, kind: Any) -> Any:  # noqa: ANN401 (JSON and a type)
    if kind is Stage and isinstance(value, str):
        return NAMES.get(value, value)
    if isinstance(kind, UnionType):
        return _renamed(value, next((one for one in get_args(kind) if is_dataclass(one)), None))
    if isinstance(value, list) and get_origin(kind) is tuple:
        return [_renamed(one, get_args(kind)[0]) for one in value] if get_args(kind)[-1] is Ellipsis else value
    if not isinstance(value, dict) or not is_dataclass(kind):
        return value
    cls: Any = kind
    names, kinds = FIELDS.get(cls.__name__, {}), kinds_of(cls)
    present = ((str(names.get(name, name)), inner) for name, inner in value.items())
    return {name: _renamed(inner, kinds.get(name)) for name, inner in present}
