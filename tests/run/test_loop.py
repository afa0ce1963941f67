"""The deciding loop and the journal: who waits for the disk, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import BeginAttempt
from supervisor.core.events import AttemptStarted, JournalDegraded, JournalRecovered, LauncherExited, SupervisorStarted, TimerFired
from supervisor.core.machine import initial
from supervisor.core.model import Policy, RankInfo
from supervisor.core.state import Attempt, JobState, Run, Stage
from supervisor.job.clock import Clock
from supervisor.run.loop import Loop

if TYPE_CHECKING:
    from supervisor.core.actions import Action
    from supervisor.core.events import Event


class Numbers:
    """Counts records, as the journal does; nothing is reported durable unless the test does so."""

    def __init__(self) -> None:
        self.last = 0
        self.durable: list[bool] = []

    def record(self, event: Event, actions: tuple[Action, ...], state: JobState, *, durable: bool) -> int:
        """See loop.Recorder."""
        del event, actions, state
        self.durable.append(durable)
        self.last += 1
        return self.last


def a_loop(state: JobState) -> tuple[Loop, Numbers, list[int]]:
    """Return a loop, its journal, and the numbers of the attempts that were begun."""
    journal, begun = Numbers(), list[int]()
    loop = Loop(Clock.start(), state, journal)

    def perform(action: Action) -> None:
        if isinstance(action, BeginAttempt):
            begun.append(action.attempt)

    loop.perform = perform
    return loop, journal, begun


def next_attempt(loop: Loop) -> None:
    """Let the attempt fail, and have the next one ordered."""
    attempt = loop.state.attempt.number
    loop.feed(AttemptStarted(2.0, attempt, (RankInfo(0, 0, 10, 1),), 1))
    loop.state = JobState(
        stage=Stage.WAITING,
        token=7,
        journal_degraded=loop.state.journal_degraded,
        run=Run(id="r", reason="failure"),
        attempt=Attempt(number=attempt),
    )
    loop.feed(TimerFired(4.0, "backoff", 7))
    assert loop.state.attempt.number == attempt + 1


def test_only_the_journal_ends_the_wait_for_it_and_a_recovered_one_is_waited_for_again() -> None:
    loop, journal, begun = a_loop(initial())
    loop.feed(SupervisorStarted(1.0, "r", Policy()))
    assert begun == []
    loop.feed(JournalDegraded(7.0, "no answer for 5 s"))
    assert begun == [1], "what waited continues"
    next_attempt(loop)
    assert begun == [1, 2], "a disk that does not answer is not waited for"
    loop.feed(JournalRecovered(8.0))
    next_attempt(loop)
    assert begun == [1, 2], "it answers: the next attempt is on disk before it begins"
    loop.synced(journal.last)
    assert begun == [1, 2, 3]


def test_an_answer_that_comes_late_leaves_nothing_degraded() -> None:
    """After a pause of the machine the word of the disk is an old one: no clock of the loop's own turned the wait off."""
    loop, journal, begun = a_loop(initial())
    loop.feed(SupervisorStarted(1.0, "r", Policy()))
    loop.feed(LauncherExited(60.0, 7, "agent"))
    loop.synced(journal.last)
    assert begun == [1]
    assert not loop.state.journal_degraded
    next_attempt(loop)
    assert begun == [1]


def test_a_journal_that_fails_before_the_loop_begins_holds_no_start_back() -> None:
    for before in (initial(), JobState(stage=Stage.ENDED, run=Run(id="r", exit_code=75), attempt=Attempt(number=3))):
        loop, _, begun = a_loop(before)
        loop.feed(JournalDegraded(0.5, "no answer for 5 s"))
        loop.feed(SupervisorStarted(1.0, "r", Policy(), continues=before.attempt.number > 0))
        assert begun == [before.attempt.number + 1]


def test_the_records_of_the_journals_own_trouble_are_not_durable() -> None:
    """Else a disk whose fsync takes longer than the deadline is degraded by each recovery, as long as the job runs."""
    loop, journal, _ = a_loop(initial())
    loop.feed(SupervisorStarted(1.0, "r", Policy()))
    loop.feed(JournalDegraded(7.0, "no answer for 5 s"))
    loop.feed(JournalRecovered(8.0))
    assert journal.durable == [True, False, False]
