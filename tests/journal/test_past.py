# ruff: noqa: ANN401  steps of a story, made in conftest
"""A job's state comes back from its journal: the last recorded one, over upgrades, damage and rules that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.core import events
from supervisor.core.machine import initial
from supervisor.core.values import replace
from supervisor.journal.records import (
    VERSION,
    Damage,
    EventTaken,
    Header,
    Record,
    RunBegan,
    RunEnded,
    decode,
    encode,
    event_taken,
    unframe,
)
from supervisor.journal.writer import difference
from supervisor.view.job_facts import state_of
from supervisor.view.job_view import fold
from supervisor.view.opening import past_of
from tests.support.folding import check_fold

if TYPE_CHECKING:
    from collections.abc import Callable

    Story = Callable[[], list[Any]]


def decoded(seq: int, body: Any, t: float = 1.0) -> Record:
    record = decode(unframe(encode(seq, t, 1.0, body)) or b"")
    assert record is not None
    return record


def records_of(steps: list[Any], first: int = 2) -> list[Record]:
    """Return the records of a story as the journal writes them, as they come back from a file."""
    records, before = [], None
    for seq, (event, state, actions) in enumerate(steps, first):
        whole = bool(actions) or before is None
        values = difference(state, initial() if whole or before is None else before)
        body = event_taken(event, actions, attempt=state.attempt.number, stage=state.stage.value, state=values, whole=whole)
        records.append(decoded(seq, body, event.t))
        before = state
    return records


HEAD = decoded(1, Header("job", "node"))


def test_each_recorded_state_is_the_fold_of_the_events_before_it(story: Story) -> None:
    steps = story()
    records = records_of(steps)
    assert check_fold(records) == len(steps)
    for n in range(len(steps) + 1):
        past = past_of(fold([HEAD, *records[:n]]))
        assert past.problems == ()
        assert past.state == (steps[n - 1][1] if n else initial())
    assert {type(e) for e, _, _ in steps} >= {events.RankExited, events.EvidenceCollected, events.CheckpointSelected}


def test_a_takeover_decides_on_no_event_of_the_past(story: Story) -> None:
    """Rules that changed since, and events that exist no more, make no other state of it: an upgrade forgets nothing."""
    steps = story()
    records = records_of(steps)
    renamed = [replace(r, body=replace(r.body, event="MoonRose", data={"t": 1.0})) for r in records if isinstance(r.body, EventTaken)]
    past = past_of(fold([HEAD, *renamed]))
    assert (past.problems, past.state) == ((), steps[-1][1])
    assert past.state.run.failures


def test_the_last_run_and_its_end_are_known_beside_the_state(story: Story) -> None:
    run = RunBegan("run-1", supervise="0.1.0")
    shifted = [replace(r, seq=r.seq + 1) for r in records_of(story())]
    end = decoded(shifted[-1].seq + 1, RunEnded(0, "done"))
    alive = past_of(fold([HEAD, decoded(2, run), *shifted]))
    assert (alive.last_run, alive.last_end) == (run, None)
    view = fold([HEAD, decoded(2, run), *shifted, end])
    assert (past_of(view).last_end, view.next_seq, view.version) == (RunEnded(0, "done"), end.seq + 1, VERSION)


def test_after_a_lost_record_the_next_whole_state_holds_all_again(story: Story) -> None:
    steps = story()
    records = records_of(steps)
    lost = next(n for n, (_, _, actions) in enumerate(steps[:-1]) if n and actions)
    past = past_of(fold([HEAD, *records[:lost], *records[lost + 1 :]]))
    assert past.problems == (f"records lost: {lost + 2} to {lost + 2}",)
    assert past.state == steps[-1][1]


def test_where_no_state_is_left_the_count_of_incidents_is(story: Story) -> None:
    """Only differences, and nothing that they differ from."""
    records = [r for r in records_of(story()) if isinstance(r.body, EventTaken)]
    bare = [replace(r, body=replace(r.body, whole=False)) for r in records]
    past = past_of(fold([HEAD, *bare]))
    assert past.state == replace(initial(), incidents=1)


def test_damage_at_the_end_leaves_the_last_state_and_costs_one_number(story: Story) -> None:
    steps = story()
    records = records_of(steps)
    past = past_of(fold([HEAD, *records[:3], Damage(400, 17), *records[3:], Damage(800, 17)]))
    assert past.problems == ("damaged record: 17 bytes at offset 400", "damaged record: 17 bytes at offset 800")
    assert (past.state, past.next_seq) == (steps[-1][1], records[-1].seq + 2)
    assert past_of(fold([HEAD, *records, Damage(400, 17, torn=True)])).next_seq == records[-1].seq + 1


def test_an_unknown_kind_of_record_does_not_matter(story: Story) -> None:
    records = records_of(story())
    weather = Record(records[-1].seq + 1, 1.0, "", "weather", None)
    past = past_of(fold([HEAD, *records, weather]))
    assert (past.problems, past.state) == ((), story()[-1][1])


def with_state(records: list[Record], values: dict[str, Any]) -> list[Record]:
    """Return the records with these fields in the state of the last one, which is whole."""
    *before, last = records
    assert isinstance(last.body, EventTaken)
    return [HEAD, *before, replace(last, body=replace(last.body, state=last.body.state | values, whole=True))]


def test_a_field_that_this_supervise_does_not_know_is_passed_over(story: Story) -> None:
    steps = story()
    past = past_of(fold(with_state(records_of(steps), {"moon": "full"})))
    assert (past.problems, past.state) == ((), past_of(fold([HEAD, *records_of(steps)])).state)


def test_a_state_that_does_not_fit_counts_as_none_and_is_reported(story: Story) -> None:
    past = past_of(fold(with_state(records_of(story()), {"stage": "orbiting"})))
    assert past.state == replace(initial(), incidents=1)
    (problem,) = past.problems
    assert problem.startswith("the recorded state is not used, because this supervise cannot read it: Invalid enum value 'orbiting'")


def test_every_field_of_the_state_has_a_default() -> None:
    """So that a state of an earlier supervise, which lacks some of them, can be read."""
    assert state_of({}) == initial()


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
