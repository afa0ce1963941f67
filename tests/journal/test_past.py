# ruff: noqa: ANN401  steps of a story, made in conftest
"""A job's state comes back from its journal: the last recorded one, over upgrades, damage and rules that changed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisor.core import events
from supervisor.core.decide import decide, initial
from supervisor.core.model import Cause, Failure, Policy
from supervisor.core.state import Attempt, JobState, Run, Stage
from supervisor.journal import format2
from supervisor.journal.past import read_past, state_of
from supervisor.journal.records import Damage, Ended, EventTaken, Header, Record, RunBegan, decode, encode, event_taken, scan, unframe
from supervisor.journal.writer import difference, open_journal
from tests.support.folding import check_fold

if TYPE_CHECKING:
    from collections.abc import Callable

    Story = Callable[[], list[Any]]

FORMAT1 = Path(__file__).with_name("format1")
FORMAT2 = Path(__file__).with_name("format2")


def decoded(seq: int, body: Any) -> Record:
    record = decode(unframe(encode(seq, 1.0, 1.0, body)) or b"")
    assert record is not None
    return record


def records_of(steps: list[Any], first: int = 2) -> list[Record]:
    """Return the records of a story as the journal writes them, as they come back from a file."""
    found, before = [], None
    for seq, (event, state, actions) in enumerate(steps, first):
        whole = bool(actions) or before is None
        values = difference(state, initial() if whole or before is None else before)
        body = event_taken(event, actions, attempt=state.attempt.number, stage=state.stage.value, state=values, whole=whole)
        found.append(decoded(seq, body))
        before = state
    return found


HEAD = decoded(1, Header("job", "node"))


def test_each_recorded_state_is_the_fold_of_the_events_before_it(story: Story) -> None:
    steps = story()
    records = records_of(steps)
    assert check_fold(records) == len(steps)
    for n in range(len(steps) + 1):
        past = read_past([HEAD, *records[:n]])
        assert past.problems == ()
        assert past.state == (steps[n - 1][1] if n else initial())
    assert {type(e) for e, _, _ in steps} >= {events.RankExited, events.EvidenceCollected, events.CheckpointSelected}


def test_a_takeover_decides_on_no_event_of_the_past(story: Story) -> None:
    """Rules that changed since, and events that exist no more, make no other state of it: an upgrade forgets nothing."""
    steps = story()
    records = records_of(steps)
    renamed = [replace(r, body=replace(r.body, event="MoonRose", data={"t": 1.0})) for r in records if isinstance(r.body, EventTaken)]
    past = read_past([HEAD, *renamed])
    assert (past.problems, past.state) == ((), steps[-1][1])
    assert past.state.run.failures


def test_what_is_known_beside_the_state(story: Story) -> None:
    run = RunBegan("run-1", supervise="0.1.0")
    shifted = [replace(r, seq=r.seq + 1) for r in records_of(story())]
    end = decoded(shifted[-1].seq + 1, Ended(0, "done"))
    alive = read_past([HEAD, decoded(2, run), *shifted])
    assert (alive.last_run, alive.last_end) == (run, None)
    done = read_past([HEAD, decoded(2, run), *shifted, end])
    assert (done.last_end, done.next_seq, done.version) == (Ended(0, "done"), end.seq + 1, "3.3")


def test_after_a_lost_record_the_next_whole_state_holds_all_again(story: Story) -> None:
    steps = story()
    records = records_of(steps)
    lost = next(n for n, (_, _, actions) in enumerate(steps[:-1]) if n and actions)
    past = read_past([HEAD, *records[:lost], *records[lost + 1 :]])
    assert past.problems == (f"records lost: {lost + 2} to {lost + 2}",)
    assert past.state == steps[-1][1]


def test_where_no_state_is_left_the_count_of_incidents_is(story: Story) -> None:
    """Only differences, and nothing that they differ from."""
    records = [r for r in records_of(story()) if isinstance(r.body, EventTaken)]
    bare = [replace(r, body=replace(r.body, whole=False)) for r in records]
    past = read_past([HEAD, *bare])
    assert past.state == replace(initial(), incidents=1)


def test_damage_at_the_end_leaves_the_last_state_and_costs_one_number(story: Story) -> None:
    steps = story()
    records = records_of(steps)
    past = read_past([HEAD, *records[:3], Damage(400, 17), *records[3:], Damage(800, 17)])
    assert past.problems == ("damaged record: 17 bytes at offset 400", "damaged record: 17 bytes at offset 800")
    assert (past.state, past.next_seq) == (steps[-1][1], records[-1].seq + 2)
    assert read_past([HEAD, *records, Damage(400, 17, torn=True)]).next_seq == records[-1].seq + 1


def test_an_unknown_kind_of_record_does_not_matter(story: Story) -> None:
    records = records_of(story())
    weather = Record(records[-1].seq + 1, 1.0, "", "weather", None)
    past = read_past([HEAD, *records, weather])
    assert (past.problems, past.state) == ((), story()[-1][1])


FAILURE = {"attempt": 3, "t": 9.0, "cause": "nan_loss", "fingerprint": "f", "step": 5, "before_first_step": False, "charged": True}
KNOWN = Failure(3, 9.0, Cause.NAN_LOSS, "f", 5, before_first_step=False, charged=True)


@pytest.mark.parametrize(
    ("values", "state", "problem"),
    [
        ({"attempt": {"number": 3, "moon": "full"}, "moon": "full"}, JobState(attempt=Attempt(number=3)), ""),
        ({"run": {"failures": [FAILURE | {"moon": 1}]}}, JobState(run=Run(failures=(KNOWN,))), ""),
        (
            {"run": {"failures": [FAILURE | {"cause": "moon"}]}},
            JobState(run=Run(failures=(replace(KNOWN, cause=Cause.UNKNOWN),))),
            "cause 'moon' is unknown",
        ),
        ({"run": {"failures": [FAILURE | {"rung": 7}]}}, JobState(run=Run(failures=(KNOWN,))), "rung: Expected `str`"),
        ({"run": {"failures": [{"attempt": 1}, FAILURE]}}, JobState(run=Run(failures=(KNOWN,))), "missing"),
        ({"run": {"failures": 7, "rejected": ["a.pt"]}}, JobState(run=Run(rejected=("a.pt",))), "failures: Expected `array`"),
        (
            {"stage": "orbiting", "attempt": {"number": 2}},
            JobState(stage=Stage.RUNNING, attempt=Attempt(number=2)),
            "stage: Invalid enum value 'orbiting'",
        ),
        (
            {"run": {"policy": {"launcher": "rocket", "nodes": 4, "moon": 1}}, "attempt": {"number": 2}},
            JobState(attempt=Attempt(number=2), run=Run(policy=Policy(nodes=4))),
            "launcher: Invalid enum value 'rocket'",
        ),
    ],
)
def test_of_a_state_of_another_version_all_that_fits_is_kept(values: dict[str, Any], state: JobState, problem: str) -> None:
    found, problems = state_of(values)
    assert found == state
    assert bool(problems) == bool(problem)
    assert problem in " ".join(problems)


def test_every_field_of_the_state_has_a_default() -> None:
    """So that a state of an older version, which lacks some of them, can be read."""
    assert all(field.init for cls in (JobState, Run, Attempt) for field in fields(cls))
    assert state_of({}) == (initial(), ())


# journals of format 1, written by real runs of the commit before format 2: `killed` ends in the middle of attempt 5, `requeued` with 75


@pytest.mark.parametrize(("name", "attempt", "exit_code", "incidents"), [("killed", 5, None, 4), ("requeued", 6, 75, 5)])
def test_a_journal_of_format_1_gives_budgets_overrides_and_rejected_checkpoints(
    name: str, attempt: int, exit_code: int | None, incidents: int
) -> None:
    past = read_past(scan(FORMAT1 / f"{name}.jsonl"))
    state = past.state
    assert past.problems == ()
    assert (past.version, past.last_run and past.last_run.run_id, past.last_end and past.last_end.exit_code) == (
        "1.0",
        state.run.id,
        exit_code,
    )
    assert (state.attempt.number, state.incidents, state.run.failed) == (attempt, incidents, 4)
    assert state.run.overrides == (("env:PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"), ("batch_size", "16"), ("grad_accum", "2"))
    assert state.run.rejected == ("/home/ada/job/ckpt/step-0030.pt", "/home/ada/job/ckpt/step-0050.pt")
    assert (state.run.steps_back, state.run.untrusted_through_step, state.run.saved_high_water) == (2, 55, 60)
    assert [(f.attempt, f.cause, f.step, f.rung, f.passed_since, f.changed, f.charged) for f in state.run.failures] == [
        (1, Cause.CUDA_OOM, 25, "expandable_segments", True, True, False),
        (2, Cause.CUDA_OOM, 35, "halve_batch", True, True, False),
        (3, Cause.NAN_LOSS, 55, "step_back", True, True, False),
        (4, Cause.NAN_LOSS, 55, "step_back", True, True, False),
    ]
    assert [c.step for c in state.run.verified][-1] == 60
    assert state.run.newest is not None
    assert (state.run.newest.step, state.run.ever_loaded, state.run.policy.knobs[0].name) == (60, True, "batch_size")


def test_a_failure_that_format_1_saw_no_progress_after_still_counts(tmp_path: Path) -> None:
    """Cut behind the second NaN: the checkpoint of step 60 was not verified yet."""
    lines = (FORMAT1 / "killed.jsonl").read_bytes().splitlines(keepends=True)
    second = [n for n, line in enumerate(lines) if b'"ReportDecision"' in line][-1]
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[: second + 1]))
    state = read_past(scan(tmp_path / "cut.jsonl")).state
    assert [f.progressed_since for f in state.run.failures] == [True, True, False, False]
    assert state.run.incident is not None
    assert state.run.incident.plan is not None
    assert (state.run.incident.number, state.run.incident.plan.strategy) == (4, "step_back")


# journals of format 2, the last part of real runs of the commit before format 3: what was decided stands in their states


@pytest.mark.parametrize(("name", "exit_code", "saved"), [("killed", None, 140), ("requeued", 75, 60)])
def test_a_journal_of_format_2_gives_budgets_overrides_and_rejected_checkpoints(name: str, exit_code: int | None, saved: int) -> None:
    past = read_past(scan(FORMAT2 / f"{name}.jsonl"))
    run, attempt = past.state.run, past.state.attempt
    assert past.problems == ()
    assert (past.version, past.last_run and past.last_run.run_id, past.last_end and past.last_end.exit_code) == ("2.0", run.id, exit_code)
    assert (attempt.number, past.state.incidents, run.failed, run.exit_code) == (5, 4, 4, exit_code)
    assert run.overrides == (("env:PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"), ("batch_size", "16"), ("grad_accum", "2"))
    assert attempt.overrides == run.overrides
    assert run.rejected == ("/home/ada/job/ckpt/step-0050.pt", "/home/ada/job/ckpt/step-0040.pt")
    assert (run.steps_back, run.untrusted_through_step, run.saved_high_water) == (2, 55, saved)
    assert [(f.attempt, f.cause, f.step, f.rung, f.changed) for f in run.failures] == [
        (1, Cause.CUDA_OOM, 25, "expandable_segments", True),
        (2, Cause.CUDA_OOM, 35, "halve_batch", True),
        (3, Cause.NAN_LOSS, 55, "step_back", True),
        (4, Cause.NAN_LOSS, 55, "step_back", True),
    ]
    assert (attempt.resume and attempt.resume.step, attempt.loaded) == (30, "/home/ada/job/ckpt/step-0030.pt")
    assert attempt.live_ranks == (() if exit_code else attempt.ranks)
    assert attempt.ranks


def test_a_stop_and_an_open_incident_of_format_2_are_taken_over(tmp_path: Path) -> None:
    lines = (FORMAT2 / "requeued.jsonl").read_bytes().splitlines(keepends=True)
    stop = read_past(scan(FORMAT2 / "requeued.jsonl")).state.run.stop
    assert stop is not None
    assert (stop.signum, stop.count, stop.left_from_t) == (10, 1, stop.first_t)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[:3]))
    incident = read_past(scan(tmp_path / "cut.jsonl")).state.run.incident
    assert incident is not None
    assert incident.verdict is not None
    assert incident.plan is not None
    assert (incident.number, incident.verdict.cause, incident.plan.strategy) == (4, Cause.NAN_LOSS, "step_back")


def test_every_field_of_format_2_has_its_place_and_no_two_have_the_same() -> None:
    """A value of each old field, and no field of the new state that two of them fill. `ranks` follows from `placed` and `ended`."""
    sections = {"": JobState, "run": Run, "attempt": Attempt}
    places = [place.rpartition(".") for place in format2.FIELDS.values()]
    assert len(set(places)) == len(places)
    assert all(name in {field.name for field in fields(sections[section])} for section, _, name in places)
    recorded = {name for path in FORMAT2.glob("*.jsonl") for r in scan(path) if isinstance(r, Record) for name in _state_fields(r)}
    assert recorded - format2.FIELDS.keys() == {"ranks"}


def _state_fields(record: Record) -> set[str]:
    return set(record.body.state) if isinstance(record.body, EventTaken) else set()


@pytest.mark.parametrize("older", [FORMAT1, FORMAT2], ids=["format 1", "format 2"])
def test_an_older_journal_is_continued_in_this_format(tmp_path: Path, ear: Any, older: Path) -> None:
    path = tmp_path / "journal.jsonl"
    old = (older / "killed.jsonl").read_bytes()
    path.write_bytes(old)
    journal, past = open_journal(path, job="job", node="node", listener=ear, continues=lambda _: True)
    event = events.SupervisorStarted(past.state.attempt.began_t + 900.0, past.state.run.id, past.state.run.policy, continues=True)
    journal.append(RunBegan(past.state.run.id, continues=True), t=1.0, durable=True)
    for _ in range(2):  # nothing of this format but its header, then a state
        assert read_past(scan(path)).state.run.rejected == past.state.run.rejected
        state, actions = decide(past.state, event)
        journal.record(event, actions, state, durable=True)
    assert journal.close(10)
    assert path.read_bytes().startswith(old)
    again = read_past(scan(path))
    assert (again.version, again.problems, again.state) == ("3.3", (), state)
    assert again.state.run.overrides == past.state.run.overrides


def test_progress_costs_a_record_only_what_it_changes(story: Story) -> None:
    """A job reports progress all day: its whole state, with the settings in it, is written beside decisions only."""
    bodies = [r.body for r in records_of(story()) if isinstance(r.body, EventTaken) and r.body.event == "ProgressObserved"]
    quiet = [body for body in bodies if not body.actions]
    assert quiet
    assert {name for body in quiet for name in body.state} <= {"run", "attempt"}
    assert {name for body in quiet for name in body.state.get("run", ())} <= {"ever_loaded", "high_water"}
    assert {name for body in quiet for name in body.state.get("attempt", ())} <= {
        "progress",
        "steps_seen",
        "loaded",
        "first_step",
        "began_as",
    }
    assert max(len(msgspec.json.encode(body)) for body in quiet) < 400
