# ruff: noqa: D102, ANN401  the helpers say it by their names; what a record holds has no one type
"""Which time is what: a run's journal, record by record, and the states that it must give."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core.model import CheckpointRef
from supervisor.journal.records import MIRRORED, START_TIMES, EventTaken, Header, Note, Record, RunBegan, RunEnded
from supervisor.report.ledger.figures import figures_of
from supervisor.view import spans
from supervisor.view.job_view import fold
from supervisor.view.spans import MOST_SAMPLES, PaceSample, RunLedger, SaveMark, TimeState
from tests.support.ledgers import check_ledger

T0 = 1000.0


class Journal:
    """Records of one journal; times are seconds since T0."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.add(0.0, Header("job", "node"))
        self.add(0.0, RunBegan("run"))

    def add(self, at: float, body: Any) -> None:
        self.records.append(Record(len(self.records) + 1, T0 + at, "", "", body))

    def event(self, at: float, name: str, stage: str, *actions: tuple[str, dict[str, Any]], attempt: int = 1, **data: Any) -> None:
        self.add(at, EventTaken(name, {"t": T0 + at, "attempt": attempt, **data}, attempt, stage, actions=actions))

    def start(self, at: float, attempt: int = 1, resume: int | None = None) -> None:
        """Order an attempt, and have its ranks 2 s later."""
        ref = None if resume is None else {"path": "ckpt", "step": resume, "level": "full"}
        begin = ("BeginAttempt", {"attempt": attempt, "reason": "start", "resume": ref})
        self.event(at, "CheckpointSelected", "starting", begin, attempt=attempt, chosen=ref, n_found=1)
        self.event(at + 2, "AttemptStarted", "running", attempt=attempt, ranks=[], world_size=4)

    def train(self, at: float, step: int | None, seen: int, *, attempt: int = 1, stage: str = "running", **data: Any) -> None:
        self.event(at, "ProgressObserved", stage, attempt=attempt, step=step, steps_seen=seen, **{"phase": "train", **data})

    def fail(self, at: float, attempt: int = 1) -> None:
        """Let the attempt fail, its ranks be gone 1 s later, and a restart be decided 0.5 s after that."""
        self.event(at, "RankExited", "teardown", ("OpenIncident", {"incident": attempt}), attempt=attempt)
        self.event(at + 1, "AttemptEnded", "teardown", attempt=attempt, outcome="failed")
        self.event(at + 1.5, "EvidenceCollected", "selecting", attempt=attempt)

    def ledger(self, now: float | None = None) -> RunLedger:
        (run,) = fold(self.records).ledgers(None if now is None else T0 + now)
        check_ledger(run, least_accounted=0.0)
        return run

    def seconds(self, now: float | None = None) -> dict[str, float]:
        return {state.value: round(took_s, 6) for state, took_s in self.ledger(now).seconds().items() if took_s}


@pytest.fixture
def journal() -> Journal:
    return Journal()


def trained(journal: Journal) -> Journal:
    """Train for 60 s: 6 s of start, then a step a second."""
    journal.start(1)
    for at in range(6, 67, 10):
        journal.train(at, at - 5, at - 5)
    return journal


def test_each_save_is_kept_with_its_step_when_it_was_verified_and_when_a_mirror_held_it(journal: Journal) -> None:
    journal.start(1)
    journal.train(6, 10, 1)
    journal.event(7, "CheckpointVerified", "running", checkpoint={"path": "a", "step": 10, "level": "full"}, made_in=1)
    journal.add(9, Note(MIRRORED, "s3://b", {"path": "a", "step": 10}))
    journal.event(17, "CheckpointVerified", "running", checkpoint={"path": "b", "step": None, "level": "full"}, made_in=1)
    assert journal.ledger().saves == [SaveMark(T0 + 7, 1, 10), SaveMark(T0 + 9, 1, 10, is_mirrored=True), SaveMark(T0 + 17, 1, None)]


def test_a_loss_that_is_not_finite_is_a_sample_and_no_pace(journal: Journal) -> None:
    trained(journal)
    known = journal.ledger()
    loss = {"rule": "loss-nan", "text": "loss is nan"}
    journal.event(66.5, "LossChanged", "running", kind="nan", step=60, **loss)
    journal.event(66.6, "LossChanged", "running", kind="nan", is_over=True, **loss)
    journal.event(66.7, "LossChanged", "running", kind="jump", **loss)
    run = journal.ledger()
    assert [sample for sample in run.samples if not sample.is_finite] == [PaceSample(T0 + 66.5, 1, 60, is_finite=False)]
    assert run.newest_samples == known.newest_samples
    for number in range(3 * MOST_SAMPLES):
        run.sample_not_finite(T0 + number, 1, number)
    assert len(run.samples) <= 2 * MOST_SAMPLES


def test_a_run_that_nothing_happens_to(journal: Journal) -> None:
    trained(journal).event(67, "AttemptEnded", "ended", attempt=1, outcome="succeeded")
    journal.add(70, RunEnded(0))
    assert journal.seconds() == {"start_and_load": 6.0, "productive": 61.0, "tear_down": 3.0}
    run = journal.ledger()
    assert (run.reached, run.attempts, run.exit_code, run.is_over, run.unkept_s()) == (61, 1, 0, True, 0.0)
    assert [(sample.step, sample.step_s) for sample in run.samples][:2] == [(11, 1.0), (21, 1.0)]


@pytest.mark.parametrize(("code", "ettr"), [(0, None), (1, 0.0)])
def test_the_share_of_a_run_that_ended_well_without_a_step_that_was_seen_is_not_recorded(
    journal: Journal, code: int, ettr: float | None
) -> None:
    journal.start(1)
    journal.event(67, "AttemptEnded", "ended", attempt=1, outcome="succeeded" if code == 0 else "failed")
    journal.add(70, RunEnded(code))
    figures = figures_of([journal.ledger()], [])
    assert (figures.ettr, figures.goodput) == (ettr, ettr)


def test_an_incident_that_is_withdrawn_leaves_the_time_to_an_earlier_one(journal: Journal) -> None:
    """The training was behind since that, when the ranks died of a scheduler's signal a moment before it came to us."""
    trained(journal).fail(70)
    journal.start(72, attempt=2, resume=20)
    journal.train(78, 21, 1, attempt=2)
    journal.event(80, "RankExited", "teardown", ("OpenIncident", {"incident": 2}), attempt=2)
    journal.event(81, "StopRequested", "stopping", attempt=2, signum=15)
    closing = ("CloseIncident", {"incident": 2, "outcome": "withdrawn"})
    journal.event(82, "AttemptEnded", "ended", closing, attempt=2, outcome="failed")
    journal.add(85, RunEnded(143))
    assert journal.ledger().spans[-1].incident == 1


def test_a_long_training_keeps_a_bounded_number_of_samples(journal: Journal) -> None:
    journal.start(1)
    for n in range(10_000):
        journal.train(6 + 10 * n, n + 1, n + 1, loss=1 / (n + 1))
    run = journal.ledger()
    assert MOST_SAMPLES < len(run.samples) <= 2 * MOST_SAMPLES
    assert all(sample.loss == pytest.approx(1 / sample.step) and sample.step_s == 10.0 for sample in run.samples)
    assert len(run.spans) < 10, "alike ones are one"


def test_a_run_of_months_keeps_a_bounded_number_of_spans_and_the_same_sum(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST_SPANS", 50)
    journal.start(1)
    for n in range(3_000):
        journal.train(6 + 60 * n, 100 * n + 1, 100 * n + 1)
        time = fold(journal.records).time if n % 500 == 0 else None
        assert time is None or len(time.run.spans) <= 101
    time = fold(journal.records).time
    assert time is not None
    assert (len(time.run.spans) <= 100, time.run.window_s) == (True, 60 * 32)
    assert journal.seconds() == {"start_and_load": 6.0, "productive": 60.0 * 2_999}


def test_steps_that_are_made_again_are_rework_up_to_the_highest(journal: Journal) -> None:
    trained(journal).fail(70)
    journal.start(72, 2, resume=30)
    journal.train(76, 31, 1, attempt=2)
    journal.train(86, 51, 21, attempt=2)
    journal.train(96, 71, 41, attempt=2)  # step 61 is reached again at 91
    expected = {"tear_down": 1.0, "decision": 0.5, "rework": 15.0, "productive": 64.0 + 5.0, "start_and_load": 6.0 + 4.5}
    assert journal.seconds() == expected
    again = [span for span in journal.ledger().spans if span.incident == 1]
    assert sum(span.took_s for span in again) == pytest.approx(1 + 0.5 + 4.5 + 15), "what the incident cost"
    assert {span.ranks for span in again} == {4}


def test_steps_counted_by_supervise_are_compared_from_the_checkpoint_on(journal: Journal) -> None:
    journal.start(1)
    journal.train(6, None, 1)
    journal.train(16, None, 11)
    journal.fail(20)
    journal.start(22, 2, resume=5)
    journal.train(26, None, 1, attempt=2)
    journal.train(36, None, 11, attempt=2)
    assert journal.seconds()["rework"] == pytest.approx(5.0)
    assert journal.ledger().counts_rework


def test_where_no_step_is_known_nothing_is_rework_and_the_ledger_says_so(journal: Journal) -> None:
    journal.start(1)
    journal.train(6, None, 1)
    journal.train(16, None, 11)
    journal.fail(20)
    journal.start(22, 2)
    journal.train(26, None, 1, attempt=2)
    journal.train(36, None, 11, attempt=2)
    assert "rework" not in journal.seconds()
    assert not journal.ledger().counts_rework


def test_a_hang_is_detection_from_the_last_progress_on(journal: Journal) -> None:
    trained(journal).event(100, "HangConfirmed", "running", hang={"kind": "late", "text": "rank 1", "still_s": 33.0})
    journal.event(100.5, "TimerFired", "teardown", ("OpenIncident", {"incident": 1}))
    journal.event(102, "AttemptEnded", "teardown", attempt=1, outcome="stopped")
    seconds = journal.seconds()
    assert (seconds["productive"], seconds["detection"], seconds["tear_down"]) == (61.0, 33.5, 1.5)


HANG = {"kind": "late", "text": "rank 1", "still_s": 33.0}


def test_a_lasting_hang_is_no_training_while_the_job_continues(journal: Journal) -> None:
    trained(journal).event(100, "HangConfirmed", "running", hang=HANG)
    journal.train(160, 61, 61)
    assert journal.seconds(200) == {"start_and_load": 6.0, "productive": 61.0, "detection": 133.0}


def test_a_hang_that_a_persons_stop_ends_is_no_training(journal: Journal) -> None:
    trained(journal).event(100, "HangConfirmed", "running", hang=HANG)
    journal.event(150, "StopRequested", "stopping", attempt=1, signum=2)
    journal.event(152, "AttemptEnded", "ended", attempt=1, outcome="stopped")
    journal.add(153, RunEnded(130))
    assert journal.seconds() == {"start_and_load": 6.0, "productive": 61.0, "detection": 83.0, "tear_down": 3.0}


def test_a_hang_that_ends_by_itself_cost_the_time_that_the_ranks_stood_still(journal: Journal) -> None:
    trained(journal).event(100, "HangConfirmed", "running", hang=HANG)
    journal.event(120, "HangCleared", "running")
    journal.train(130, 71, 71)
    assert journal.seconds() == {"start_and_load": 6.0, "productive": 71.0, "detection": 53.0}


@pytest.mark.parametrize(
    ("saves", "shown"),
    [
        ([(30, 20), (31, 10)], 20),  # two saves between two looks: the newest is verified first
        ([(30, 10), (31, 20)], 20),
        ([(30, 20), (31, None)], None),
    ],
)
def test_the_newest_checkpoint_is_the_newest_whatever_was_verified_last(
    journal: Journal, saves: list[tuple[int, int | None]], shown: int | None
) -> None:
    journal.start(1)
    for at, step in saves:
        journal.event(at, "CheckpointVerified", "running", checkpoint={"path": f"ckpt/{step}", "step": step, "level": "full"})
    verified = fold(journal.records).verified
    assert verified is not None
    assert verified[1].step == shown


def test_a_checkpoint_is_as_old_as_its_verification_and_not_as_the_last_search(journal: Journal) -> None:
    journal.start(1)
    journal.event(30, "CheckpointVerified", "running", checkpoint={"path": "ckpt", "step": 20, "level": "full"})
    journal.fail(40)
    journal.start(50, 2, resume=20)
    assert fold(journal.records).verified == (T0 + 30, CheckpointRef("ckpt", 20, "full"))
    journal.event(60, "CheckpointVerified", "running", attempt=2, checkpoint={"path": "lower", "step": 5, "level": "full"})
    view = fold(journal.records)
    assert view.verified is not None
    assert view.verified[1].path == "lower", "this attempt went back"


def test_the_time_until_a_death_was_known_is_detection(journal: Journal) -> None:
    trained(journal).fail(70)
    journal.start(72, 2, resume=30)
    journal.train(76, 31, 1, attempt=2)
    times = {"attempt": 2, "after": "failure", "total_s": 8.0, "parts": {"detect": 2.0, "teardown": 1.0}}
    journal.add(76, Note(START_TIMES, data=times))
    seconds = journal.seconds()
    assert (seconds["detection"], seconds["productive"]) == (2.0, 62.0)


def test_a_save_that_holds_the_ranks_is_a_stall(journal: Journal) -> None:
    journal.start(1)
    journal.train(6, 1, 1)
    journal.train(16, 11, 11, phase="checkpoint")
    journal.train(19, 11, 11)
    journal.train(26, 18, 18)
    assert journal.seconds() == {"start_and_load": 6.0, "productive": 17.0, "checkpoint_stall": 3.0}


def test_ranks_that_show_no_step_are_unmeasured_and_a_start_that_fails_is_a_start(journal: Journal) -> None:
    journal.start(1)
    journal.fail(50)
    assert journal.seconds()["unmeasured"] == 47.0
    other = Journal()
    other.start(1)
    other.train(4, None, 0, phase="import")
    other.fail(50)
    assert other.seconds()["start_and_load"] == 50.0
    assert "unmeasured" not in other.seconds()


def test_an_attempt_that_saved_is_past_its_start_though_no_step_of_it_is_seen(journal: Journal) -> None:
    """A job without torch: its report of the phase is a minute old, and a checkpoint that it wrote says more."""
    journal.start(1)
    journal.train(4, None, 0, phase="import")
    checkpoint = {"path": "step_10.pt", "step": 10, "level": "full"}
    journal.event(11, "CheckpointVerified", "running", checkpoint=checkpoint, made_in=1)
    journal.event(71, "StopRequested", "stopping", signum=2)
    journal.add(72, RunEnded(130))
    assert journal.seconds() == {"start_and_load": 11.0, "unmeasured": 60.0, "tear_down": 1.0}


def test_a_supervisor_that_died_is_waited_for_from_its_last_sign_of_life(journal: Journal) -> None:
    trained(journal).add(200, RunBegan("run", continues=True))
    journal.train(200, 71, 71)  # what the heartbeats still had
    journal.event(200.1, "SupervisorStarted", "selecting", last_alive_t=T0 + 76)
    seconds = journal.seconds()
    assert seconds["waiting"] == pytest.approx(124.1)
    assert seconds["productive"] == pytest.approx(70.0)
    assert journal.ledger().reached == 71


def test_the_time_until_a_requeue_is_preempted_and_a_later_run_is_another_ledger(journal: Journal) -> None:
    trained(journal).event(67, "StopRequested", "stopping", signum=10)
    journal.train(70, 65, 65, stage="stopping")
    journal.event(72, "AttemptEnded", "ended", ("Finish", {"exit_code": 75, "reason": "notice"}), attempt=1, outcome="stopped")
    journal.add(73, RunEnded(75))
    journal.add(373, RunBegan("run", continues=True))
    journal.event(374, "SupervisorStarted", "selecting", continues=True)
    seconds = journal.seconds()
    assert (seconds["preempted"], seconds["tear_down"], seconds["productive"]) == (301.0, 3.0, 64.0)
    journal.add(1000, RunBegan("another"))
    journal.event(1001, "SupervisorStarted", "selecting")
    first, second = fold(journal.records).ledgers()
    assert (first.end_t, second.begin_t, second.wall_s) == (T0 + 374, T0 + 1000, 1.0)


def test_missing_records_are_unaccounted_only_where_something_changed(journal: Journal) -> None:
    trained(journal).fail(70)
    journal.start(72, 2, resume=30)
    journal.train(76, 31, 1, attempt=2)
    whole = journal.records
    journal.records = [record for record in whole if record.t != T0 + 36]  # a report of progress
    assert "unaccounted" not in journal.seconds()
    journal.records = [record for record in whole if not T0 + 60 < record.t < T0 + 74]  # the failure and the restart
    assert journal.seconds()["unaccounted"] == pytest.approx(18.0)
    journal.records = whole
    seconds = journal.seconds()
    journal.records = whole * 2
    assert journal.seconds() == seconds, "a second copy of a record is passed over"


def test_a_run_that_continues_ends_now(journal: Journal) -> None:
    assert trained(journal).seconds(now=80) == {"start_and_load": 6.0, "productive": 74.0}
    assert journal.ledger(now=80).goes_on


def test_new_steps_that_took_long_are_degraded(journal: Journal) -> None:
    journal.start(1)
    step, at = 0, 6
    for each_s in (1, 1, 1, 1, 2, 1):
        for _ in range(100 // each_s):
            step, at = step + 1, at + each_s
            if step % 5 == 0:
                journal.train(at, step, step)
    seconds = journal.seconds()
    assert seconds == {"start_and_load": 11.0, "productive": 470.0, "degraded": 125.0}, "by stretches of 65 s"
    run = journal.ledger()
    assert all(span.steps for span in run.spans if span.state is TimeState.DEGRADED)


def test_steps_without_a_checkpoint_are_known_once_the_run_is_given_up(journal: Journal) -> None:
    trained(journal).event(66, "CheckpointVerified", "running", checkpoint={"path": "c", "step": 41, "level": "full"}, made_in=1)
    journal.fail(66.5)
    journal.add(70, RunEnded(65))
    assert journal.ledger().unkept_s() == pytest.approx(20.0, abs=0.2)


def test_the_ledger_of_a_damaged_journal_still_adds_up(journal: Journal) -> None:
    trained(journal).fail(70)
    journal.start(72, 2, resume=30)
    journal.train(76, 31, 1, attempt=2)
    journal.add(80, EventTaken("Unknown", {"t": "noon"}, 2, "of-a-later-version"))
    journal.train(90, 41, 11, attempt=2, stage="of-a-later-version")
    journal.add(95, EventTaken("ProgressObserved", {"attempt": 2, "step": "many", "steps_seen": None}, 2, "running"))
    journal.add(96, EventTaken("HangConfirmed", {"hang": {"still_s": float("nan")}}, 2, "running"))
    assert journal.ledger().wall_s == 96.0
