# ruff: noqa: ANN401  JSON and types
"""Journals before format 3.1 have other names for some events, actions, stages and fields; they read as those of today."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from supervisor.core import actions, events
from supervisor.core.model import Plan
from supervisor.core.state import JobState, Stage
from supervisor.journal import renames
from supervisor.journal.past import read_past
from supervisor.journal.records import ACTIONS, EVENTS, EventTaken, Record, action_of, event_of, frames, kinds_of, scan

#: Some fifteen histories that together have every old name, written by the commit before format 3.1. The last one ends as a rank died.
OLD = Path(__file__).parent / "format3_0" / "scenarios.jsonl"
#: Fields that nothing reads any more. Agreements had numbers of their own; now they have those of the attempts.
GONE = {"HealthChecked": {"nodes"}, "SelectCheckpoint": {"agreements"}}
GONE_OF_THE_STATE = {"Run.agreements"}
#: What nodes decided each for itself: nothing reads it again.
GONE_ROWS = {"PeerDecided", "PublishDecision"}
CLASSES: dict[str, Any] = {**EVENTS, **ACTIONS, "Plan": Plan}


def taken() -> list[EventTaken]:
    return [r.body for r in scan(OLD) if isinstance(r, Record) and isinstance(r.body, EventTaken)]


def test_every_present_name_is_one_and_no_old_name_is_used_again() -> None:
    known = {c.__name__ for union in (events.Event, actions.Action) for c in get_args(union)} | {stage.value for stage in Stage}
    assert set(renames.NAMES.values()) <= known
    assert not known & renames.NAMES.keys()
    for name, renamed in renames.FIELDS.items():
        present = {field.name for field in fields(CLASSES[name])}
        assert set(renamed.values()) <= present
        assert not present & renamed.keys()


def test_the_journal_has_every_old_name() -> None:
    text = OLD.read_text()
    assert all(f'"{old}"' in text for old in renames.NAMES)
    held = {name: set(data) for body in taken() for name, data in ((body.event, body.data), *body.actions)}
    held["Plan"] = {key for body in taken() for _, data in body.actions if "plan" in data for key in data["plan"]}
    new_to_old = {new: old for old, new in renames.NAMES.items()}
    for name, renamed in renames.FIELDS.items():
        assert renamed.keys() <= held[new_to_old.get(name, name)], name


def test_each_event_and_action_of_it_is_one_of_today_with_all_its_values() -> None:
    """A field that was overlooked would be lost without an error, because unknown fields are passed over."""
    for old in taken():
        new = renames.with_present_names(old)
        rows = [(event_of(new), new.data, old.data)] if new.event not in GONE_ROWS else []
        pairs = [pair for pair in zip(new.actions, old.actions, strict=True) if pair[0][0] not in GONE_ROWS]
        rows += [(action_of(*action), action[1], before[1]) for action, before in pairs]
        for value, present, before in rows:
            assert set(present) - GONE.get(type(value).__name__, set()) <= {field.name for field in fields(value)}
            assert len(present) == len(before)
        assert Stage(new.stage)


def unknown(value: Any, kind: Any) -> set[str]:
    """Return the fields of a state, as JSON, that its class does not have."""
    rows = {name: set(part) - kinds_of(cls).keys() for name, part, cls in _parts(value, kind)}
    return {f"{name}.{field}" for name, missing in rows.items() for field in missing}


def _parts(value: Any, kind: Any) -> list[tuple[str, dict[str, Any], Any]]:
    kinds = kinds_of(kind)
    inner = [(value[name], kinds[name]) for name in ("run", "attempt") if name in value]
    return [(kind.__name__, value, kind), *((cls.__name__, part, cls) for part, cls in inner)]


def test_each_state_of_it_is_one_of_today() -> None:
    plans = []
    for body in taken():
        present = renames.state(body.state)
        assert unknown(present, JobState) <= GONE_OF_THE_STATE
        plans += [incident["plan"] for incident in [present.get("run", {}).get("incident")] if incident and incident["plan"]]
    assert plans
    assert all(set(plan) <= {field.name for field in fields(Plan)} for plan in plans)
    assert any(plan["rejected"] for plan in plans)
    assert any(plan["notes"] for plan in plans)


def test_a_takeover_goes_on_with_what_it_holds() -> None:
    past = read_past(scan(OLD))
    run = past.state.run
    assert (past.version, past.problems) == ("3.0", ())
    assert (past.state.stage, past.state.attempt.number, run.id) == (Stage.TEARDOWN, 2, "run-z")
    assert (run.rejected, run.steps_back, run.failed) == (("ckpt/180.pt",), 1, 1)
    assert (run.incident and run.incident.number, [f.rung for f in run.failures]) == (2, ["step_back"])


def test_the_plan_of_an_open_incident_keeps_what_it_rejected(tmp_path: Path) -> None:
    lines = OLD.read_bytes().splitlines(keepends=True)
    decided = max(n for n, line in enumerate(lines) if b'"strategy":"step_back"' in line and b'"event":"AttemptEnded"' in line)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[: decided + 1]))
    incident = read_past(scan(tmp_path / "cut.jsonl")).state.run.incident
    assert incident is not None
    assert incident.plan is not None
    assert incident.plan.rejected == ("ckpt/180.pt",)


@pytest.mark.parametrize(("version", "old"), [("1.0", True), ("2.0", True), ("3.0", True), ("3.1", False), ("4.0", False), ("", False)])
def test_which_formats_have_the_old_names(version: str, *, old: bool) -> None:
    assert renames.has_old_names(version) == old


def test_a_record_of_the_journal_is_a_line_of_json() -> None:
    assert all(isinstance(rec, bytes) and json.loads(rec)["kind"] in {"header", "run", "event"} for rec in frames(OLD))
