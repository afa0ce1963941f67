# ruff: noqa: D102  the helpers say it by their names
"""Counts of a run from its journal: record by record, over a takeover, and from the journal of simulated jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.journal.records import MIRRORED, START_TIMES, Damage, EventTaken, Header, Note, Record, RunBegan
from supervisor.view.job_view import JobView

if TYPE_CHECKING:
    from supervisor.view.counters import RunCounters

OOM = ("ReportDecision", {"verdict": {"cause": "cuda_oom"}, "plan": {"kind": "restart"}})
STOP = ("ReportDecision", {"verdict": {"cause": "user_code"}, "plan": {"kind": "stop"}})


class Journal:
    """Records, and the counters that took them."""

    def __init__(self) -> None:
        self.view, self.seq = JobView(), 0
        self.add(Header("job", "node"))
        self.add(RunBegan("run"))

    @property
    def counters(self) -> RunCounters:
        return self.view.counters

    @property
    def decided(self) -> int:
        return sum(sum(counts.values()) for counts in self.counters.incidents.values())

    def add(self, body: Any, t: float = 1.0) -> None:  # noqa: ANN401  any record's body
        self.seq += 1
        self.view.take(Record(self.seq, t, "", "", body))

    def event(self, name: str, *actions: tuple[str, dict[str, Any]], t: float = 1.0, **data: Any) -> None:  # noqa: ANN401  as above
        self.add(EventTaken(name, data, actions=actions), t)

    def begins(self, attempt: int, reason: str) -> None:
        self.event("CheckpointSelected", ("BeginAttempt", {"attempt": attempt, "reason": reason}))


def test_a_restart_counts_for_the_cause_that_was_decided_on() -> None:
    journal = Journal()
    journal.begins(1, "start")
    journal.event("EvidenceCollected", OOM)
    journal.begins(2, "failure")
    journal.event("EvidenceCollected", OOM)
    journal.begins(3, "failure")
    journal.begins(4, "membership")
    journal.begins(5, "takeover")
    journal.event("EvidenceCollected", STOP)
    assert journal.counters.restarts == {"cuda_oom": 2, "membership": 1, "takeover": 1}
    assert journal.counters.incidents == {"cuda_oom": {"restart": 2}, "user_code": {"stop": 1}}


def test_the_counters_of_a_run_continue_over_a_takeover_and_end_with_a_new_run() -> None:
    journal = Journal()
    journal.event("EvidenceCollected", OOM)
    journal.add(RunBegan("run", continues=True))
    assert journal.decided == 1
    journal.add(RunBegan("next"))
    assert (journal.counters.run_id, journal.decided) == ("next", 0)


def test_a_second_copy_of_a_record_counts_once_and_damage_not_at_all() -> None:
    journal = Journal()
    journal.event("EvidenceCollected", OOM)
    journal.view.take(Damage(0, 10))
    journal.view.take(Record(journal.seq, 1.0, "", "", EventTaken("EvidenceCollected", {}, actions=(OOM,))))
    assert journal.decided == 1


def test_checkpoints_mirrors_and_recoveries() -> None:
    journal = Journal()
    journal.event("CheckpointVerified", t=5.0, checkpoint={"path": "a", "step": 10})
    journal.event("CheckpointVerified", t=9.0, checkpoint={"path": "b", "step": None})
    journal.add(Note(MIRRORED, "s3://b", {"path": "a", "step": 10}), 12.0)
    for after, trained in (("launch", True), ("failure", True), ("failure", False)):
        journal.add(Note(START_TIMES, data={"attempt": 2, "after": after, "total_s": 4.5, "trained": trained}))
    counters = journal.counters
    assert (counters.verified, counters.verified_t, counters.verified_step, counters.mirrored_t) == (2, 9.0, None, 12.0)
    assert (counters.recoveries, counters.recovery_s) == (1, 4.5)


def test_an_invalid_cause_is_no_new_label_but_a_users_own_is() -> None:
    journal = Journal()
    journal.event("EvidenceCollected", ("ReportDecision", {"verdict": {"cause": "A Meteor!"}, "plan": {"kind": "pray"}}))
    journal.event("EvidenceCollected", ("ReportDecision", {"verdict": {"cause": "A Meteor!"}, "plan": {"kind": "stop"}}))
    assert journal.counters.incidents == {"unknown": {"stop": 1}}
    journal.event("EvidenceCollected", ("ReportDecision", {"verdict": {"cause": "solver_diverged"}, "plan": {"kind": "stop"}}))
    assert journal.counters.incidents == {"unknown": {"stop": 1}, "solver_diverged": {"stop": 1}}
