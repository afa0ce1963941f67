"""decide(state, event) -> (state, actions): the whole judgement of the supervisor, and nothing else.

No clock, no IO, no randomness, no logging: time and jitter arrive inside events. The same function runs in production, in the
scenario tests and in the simulation, and that is what makes a journal an explanation instead of a log.

The rules, in words:

1. *The attempt is the fence.* An event of another attempt than the state's is answered with nothing: it is a message from the dead.
2. *Stopping is not deciding.* A failed rank fences its attempt and the ranks are stopped at once; what follows is decided when both
   the ranks are gone (AttemptEnded) and the evidence is in (EvidenceCollected), in whichever order they come.
3. *Nothing is waited for without a timer.* Whoever does not answer is ended from outside (EndLauncher), and that answer always comes.
4. *A person's wish outranks a failure*: StopRequested turns every stage into STOPPING, and ranks that die then did what was asked.
5. *Health decides where an attempt begins, not whether one that runs goes on*, save for the checks that --evict-on names. An attempt begins
   when its checkpoint is chosen and this node was looked at (CHECKING, between SELECTING and STARTING), or when that took too long.
6. *Nodes agree before their ranks start.* Where a job has several nodes under torch's agent, an attempt begins with their meeting: then
   no rank of an earlier attempt lives on any node. Only then each looks for checkpoints, and all resume from the same one (gathering.py).
7. *A rank that dies of INT, TERM or HUP may only have heard of the end before we did* (Slurm and process groups signal everybody):
   such a failure is judged a second later, so that our own signal can arrive first.

`EVENTS` below has a row for each event: the stages in which it means something, and the function that answers it. docs/stages.md draws the
stages and shows the same rows. The functions live by what they are about: start.py (checkpoint, attempt), gathering.py (several nodes),
lifecycle.py (start, run, end), failure.py (fence, judge, plan), node_health.py and ailing.py (this node's health), shutdown.py (a person).
Known weak spot: with several nodes each supervisor judges with what it sees itself; only the one whose rank failed first decides, and
the others follow its word (PeerDecided).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.core import ailing, failure, gathering, lifecycle, shutdown, start
from supervisor.core.events import (
    AttemptEnded,
    AttemptEndedByPeer,
    AttemptStarted,
    CheckpointSelected,
    CheckpointVerified,
    EvidenceCollected,
    GpusListed,
    HealthChanged,
    HealthChecked,
    JournalDegraded,
    JournalRecovered,
    LauncherExited,
    LauncherFellBack,
    LauncherStarted,
    NodeBegan,
    NodesGathered,
    NodesWaiting,
    PeerDecided,
    ProgramSeen,
    ProgressObserved,
    RankExited,
    RanksFound,
    Saved,
    SaveOnRequestSeen,
    SaveSearched,
    StacksRequested,
    StartCeilingPassed,
    StopRequested,
    SupervisorStarted,
    TimeLeft,
    TimerFired,
)
from supervisor.core.state import JobState, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.actions import Action
    from supervisor.core.events import Event

    Handler = Callable[[JobState, Any], tuple[JobState, tuple[Action, ...]]]


class Row(NamedTuple):
    """The stages in which an event means something, and the function that answers it."""

    stages: frozenset[Stage]
    handler: Handler


ANY = frozenset(Stage)
BEFORE_THE_END = ANY - {Stage.ENDED}
#: Ranks are being started, or run.
LIVES = frozenset({Stage.STARTING, Stage.RUNNING})
#: Ranks are being stopped.
ENDS = frozenset({Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING, Stage.STOPPING})

#: Every event has exactly one row. In any other stage it is answered with nothing (`decide`). What may come in ENDED begins the next run.
EVENTS: dict[type, Row] = {
    SupervisorStarted: Row(ANY, lifecycle.on_supervisor_started),
    LauncherStarted: Row(BEFORE_THE_END, lifecycle.on_launcher_started),
    LauncherFellBack: Row(BEFORE_THE_END, lifecycle.on_launcher_fell_back),
    NodesGathered: Row(frozenset({Stage.STARTING}), gathering.on_nodes_gathered),
    NodeBegan: Row(LIVES, gathering.on_node_began),
    CheckpointSelected: Row(frozenset({Stage.SELECTING, Stage.STARTING}), gathering.on_checkpoint_selected),
    AttemptStarted: Row(frozenset({Stage.STARTING}), ailing.on_attempt_started),
    RanksFound: Row(frozenset({Stage.RUNNING}), lifecycle.on_ranks_found),
    ProgressObserved: Row(LIVES | {Stage.FOLLOWING}, gathering.on_progress_observed),
    CheckpointVerified: Row(BEFORE_THE_END, lifecycle.on_checkpoint_verified),
    StartCeilingPassed: Row(BEFORE_THE_END, lifecycle.on_start_ceiling_passed),
    ProgramSeen: Row(BEFORE_THE_END, lifecycle.on_program_seen),
    GpusListed: Row(ANY, lifecycle.on_gpus_listed),
    HealthChecked: Row(frozenset({Stage.SELECTING, Stage.CHECKING}), start.on_health_checked),
    HealthChanged: Row(BEFORE_THE_END, ailing.on_health_changed),
    NodesWaiting: Row(frozenset({Stage.RUNNING}), lifecycle.on_nodes_waiting),
    AttemptEnded: Row(BEFORE_THE_END, lifecycle.on_attempt_ended),
    JournalDegraded: Row(ANY, lifecycle.on_journal_degraded),
    JournalRecovered: Row(ANY, lifecycle.on_journal_recovered),
    RankExited: Row(LIVES | ENDS, shutdown.on_rank_exited),
    LauncherExited: Row(LIVES | ENDS, failure.on_launcher_exited),
    AttemptEndedByPeer: Row(LIVES | {Stage.TEARDOWN}, failure.on_attempt_ended_by_peer),
    PeerDecided: Row(frozenset({Stage.TEARDOWN, Stage.FOLLOWING}), failure.on_peer_decided),
    EvidenceCollected: Row(frozenset({Stage.TEARDOWN, Stage.STOPPING}), shutdown.on_evidence_collected),
    TimerFired: Row(BEFORE_THE_END, shutdown.on_timer_fired),
    StopRequested: Row(BEFORE_THE_END, shutdown.on_stop_requested),
    SaveOnRequestSeen: Row(BEFORE_THE_END, shutdown.on_save_on_request_seen),
    Saved: Row(frozenset({Stage.STOPPING}), shutdown.on_saved),
    SaveSearched: Row(frozenset({Stage.STOPPING}), shutdown.on_save_searched),
    TimeLeft: Row(frozenset({Stage.STOPPING}), shutdown.on_time_left),
    StacksRequested: Row(LIVES, shutdown.on_stacks_requested),
}


def initial() -> JobState:
    """Return the state of a job that nothing has happened to."""
    return JobState()


def decide(state: JobState, event: Event) -> tuple[JobState, tuple[Action, ...]]:
    """Return the next state and what is to be done. Raises nothing that an event could cause."""
    row = EVENTS[type(event)]
    if state.stage not in row.stages or is_of_another_attempt(state, event):
        return state, ()
    return row.handler(state, event)


def is_of_another_attempt(state: JobState, event: Event) -> bool:
    """Whether an event speaks of another attempt than the state's: the fence."""
    number = state.attempt.number
    return getattr(event, "attempt", number) != number
