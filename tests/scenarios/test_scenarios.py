"""Named histories of events, fed to the core, and the decisions that must follow (tests/scenarios/*.toml)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.checkpoint_model import CheckpointOwner, LoadedCheckpoint, UnusedCheckpoints, WithoutTracker
from supervisor.core.machine import EVENTS, decide, initial
from supervisor.core.model import (
    Cause,
    Change,
    CheckpointRef,
    Claim,
    Evidence,
    Failure,
    FailureVerdict,
    Finding,
    Gpu,
    Hang,
    HangKind,
    JobDecision,
    Knob,
    Launcher,
    PastFailures,
    Phase,
    Plan,
    PlanKind,
    Policy,
    Progress,
    RankExit,
    RankInfo,
)
from supervisor.core.setup_model import HeldBatch
from supervisor.core.state import Attempt, NodeReport
from supervisor.core.values import replace
from tests.support.policies import policy_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.state import JobState

SCENARIOS = {
    f"{path.stem}:{scenario['name']}": scenario
    for path in sorted(Path(__file__).parent.glob("*.toml"))
    for scenario in tomllib.loads(path.read_text())["scenario"]
}


#: How a field is made of what stands in the file, by its name.
MADE: dict[str, Callable[[Any], Any]] = {
    "policy": lambda fields: policy_from(
        {
            **fields,
            "knobs": tuple(Knob(**knob) for knob in fields.get("knobs", ())),
            "evict_on": tuple(fields.get("evict_on", ())),
            "launcher": Launcher(fields.get("launcher", "elastic")),
        }
    ),
    "findings": lambda rows: tuple(Finding(**row) for row in rows),
    "hang": lambda fields: Hang(
        **{**fields, "kind": HangKind(fields["kind"]), "ranks": tuple(fields["ranks"]), "phase": Phase(fields.get("phase", "train"))}
    ),
    "launcher": Launcher,
    "phase": Phase,
    "ranks": lambda ranks: tuple(RankInfo(rank, rank, 100 + rank, 1) for rank in ranks),
    "exit": lambda fields: RankExit(**{"pid": 100 + fields["rank"], "at_ns": 0, **fields}),
    "evidence": lambda facts: tuple(_evidence(fact) for fact in facts),
    "older": lambda rows: tuple(CheckpointRef(**row) for row in rows),
    "decision": lambda fields: JobDecision(_verdict(fields), _plan(fields), _failure(fields), fields.get("step"), by=fields.get("by", "")),
    "past": lambda fields: PastFailures((_failure(fields),), 1),
    "members": tuple,
    "missing": lambda rows: tuple((node, why) for node, why in rows),
    "reports": lambda rows: tuple(_report(row) for row in rows),
    "chosen": lambda fields: CheckpointRef(**{"level": "structure", "step": None, **fields}),
    "newest": lambda fields: CheckpointRef(**{"level": "structure", **fields}) if isinstance(fields, dict) else fields,
    "checkpoint": lambda fields: CheckpointRef(**{"level": "structure", **fields}),
    "gpus": lambda rows: tuple(Gpu(**row) for row in rows),
    "values": lambda rows: tuple(rows.items()),
    "overrides": lambda rows: tuple(rows.items()),
    "program": lambda rows: tuple(rows.items()),
    "programs": tuple,
    "programs_seen": tuple,
    "rejected": tuple,
    "torn": lambda rows: tuple((path, why) for path, why in rows),
    "refused": lambda rows: tuple((path, why) for path, why in rows),
    "passed_over": lambda rows: tuple((path, why) for path, why in rows),
    "silent": lambda rows: tuple((path, why) for path, why in rows),
    "without_tracker": lambda fields: WithoutTracker(**fields),
    "unused": lambda rows: tuple(UnusedCheckpoints(**row) for row in rows),
    "repaired": lambda rows: tuple((path, repair) for path, repair in rows),
    "loads": lambda rows: tuple(LoadedCheckpoint(**{**row, "owner": CheckpointOwner(row["owner"])}) for row in rows),
    "batch": lambda fields: HeldBatch(**fields),
    "unfit": lambda rows: tuple((node, text) for node, text in rows),
}
#: What a row leaves out.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "CheckpointSelected": {"chosen": None, "n_found": 0},
    "SaveSearched": {"newest": None},
    "ProgressObserved": {"step": None, "phase": Phase.TRAIN},
    "SupervisorStarted": {"run_id": "run", "policy": Policy()},
    "LauncherExited": {"code": None, "signal": None},
    "LauncherStarted": {"max_restarts": None},
}


def _evidence(row: dict[str, Any]) -> Evidence:
    """Return a fact from its row; fields and claim are tables there."""
    claim = row.get("claim")
    fields = {"claim": claim and Claim(Cause(claim["cause"]), claim["weight"]), "fields": tuple(map(tuple, row.get("fields", ())))}
    return Evidence(**{**row, **fields})


def _verdict(row: dict[str, Any]) -> FailureVerdict:
    return FailureVerdict(Cause(row["cause"]), 0.9, row["summary"], row["cause"], row.get("rank"), node=row.get("node", ""))


def _plan(row: dict[str, Any]) -> Plan:
    changes = tuple(Change(name, old, new, f"--{name}") for name, old, new in row.get("changes", ()))
    stops = row.get("stops", 0)
    kind = PlanKind.STOP if stops else PlanKind.RESTART
    delay_s = row.get("delay_s", 0.0)
    return Plan(kind, "because", "next", "ladder_step", stops, delay_s, changes=changes, rejected=tuple(row.get("rejected", ())))


def _failure(row: dict[str, Any]) -> Failure:
    cause = Cause(row["cause"])
    return Failure(row.get("attempt", 1), 0.0, cause, row["cause"], row.get("step"), before_first_step=False, charged=True)


def _report(row: dict[str, Any]) -> NodeReport:
    """Return what a node saw, from its row: `stops` is the exit code with which it wants the job to stop."""
    ranks, facts = MADE["ranks"](row.get("ranks", ())), MADE["evidence"](row.get("evidence", ()))
    row = {"cause": "checkpoint_mismatch", **row}
    wanted = JobDecision(_verdict(row), _plan(row)) if "stops" in row else None
    attempt = Attempt(ranks=ranks, evidence=facts, ended=True, stop_wanted=wanted, progress=Progress(row.get("progress")))
    if "resume" in row:  # `peer_starts`: of the other nodes, as NodeBegan has them
        peers = tuple((peer["text"], peer.get("first_step"), peer.get("loaded_step")) for peer in row.get("peer_starts", ()))
        fields = MADE["chosen"](row["resume"])
        attempt = replace(attempt, resume=fields, steps_seen=row["steps_seen"], over_t=row["over_t"], peer_starts=peers)
    return NodeReport(row["node"], attempt)


def built(row: dict[str, Any]) -> events.Event:
    """An event from its row: `event` is the class, everything else its fields."""
    fields = {
        key: MADE.get(key, lambda value: value)(value) for key, value in row.items() if key not in {"event", "then", "never", "stage"}
    }
    return getattr(events, row["event"])(**{**LEFT_OUT.get(row["event"], {}), **fields})


def agrees(action: object, wanted: dict[str, Any]) -> bool:
    """Whether the action is of the wanted class and has the wanted fields ("plan.kind" looks inside; "~text" is contained)."""
    if type(action).__name__ != wanted["action"]:
        return False
    for key, value in wanted.items():
        if key == "action":
            continue
        current: Any = action
        for part in key.split("."):
            current = getattr(current, part)
        if isinstance(value, str) and value.startswith("~"):
            if value[1:] not in str(current):
                return False
        elif current != value and str(current) != value:
            return False
    return True


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    held(name)


def nothing_on_disk(state: JobState, actions: tuple[act.Action, ...]) -> tuple[JobState, tuple[act.Action, ...]]:
    """Answer a look at the disk as one does that finds nothing, for a scenario that says nothing of it."""
    for look in (action for action in actions if isinstance(action, act.FindSave)):
        state, more = decide(state, events.SaveSearched(0.0, look.attempt, None))
        actions = (*actions, *more)
    return state, actions


def held(name: str) -> None:
    """Play a scenario; AssertionError where an answer is not the wanted one."""
    state = initial()
    for number, row in enumerate(SCENARIOS[name]["step"]):
        wanted, never, stage = row.get("then", []), row.get("never", []), row.get("stage")
        state, actions = decide(state, built(row))
        if not any(other["event"] == "SaveSearched" for other in SCENARIOS[name]["step"]):
            state, actions = nothing_on_disk(state, actions)
        where = f"{name}, step {number} ({row['event']}): {[str(a) for a in actions]}"
        for want in wanted:
            assert any(agrees(action, want) for action in actions), f"{want} is missing in {where}"
        for want in never:
            assert not any(agrees(action, want) for action in actions), f"{want} must not be in {where}"
        if stage is not None:
            assert state.stage.value == stage, where


def test_every_event_is_exercised() -> None:
    used = {row["event"] for scenario in SCENARIOS.values() for row in scenario["step"]}
    assert used == {kind.__name__ for kind in EVENTS}
