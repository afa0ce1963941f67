"""decide(state, event) -> (state, actions): every decision of the supervisor, and nothing else.

No clock, no IO, no randomness, no logging: time and jitter arrive inside events. The same function runs in production, in the scenario
tests and in the simulation. So a journal explains each decision.

The rules:

1. *The attempt is the fence.* An event of another attempt than the state's is void.
2. *Stop first, decide later.* When a rank fails, the others are stopped at once. The failure is judged when no rank is left
   (AttemptEnded) and the evidence is there (EvidenceCollected), in whichever order they come.
3. *Every wait has a timer.* A part that does not answer is ended from outside (EndLauncher), and that answer always comes.
4. *A request to stop outranks a failure.* StopRequested turns every stage into STOPPING or ENDED. Ranks that die then did what was
   requested.
5. *Health decides where an attempt begins, not whether a running one goes on*, except for the checks that health.evict_on names. An attempt
   begins when its checkpoint is chosen and this node was examined (CHECKING, between SELECTING and STARTING), or when that took too
   long. After a failure of the program it does not wait: what was last seen of the node holds.
6. *Nodes agree before their ranks start.* Where a job has several nodes under torch's agent, an attempt begins with their meeting: then
   no rank of an earlier attempt lives on any node. Only then each looks for checkpoints, and all resume from the same one
   (gathering.py).
7. *A rank that dies of INT, TERM or HUP may have received the signal before we did* (Slurm and process groups signal everybody). Such a
   failure is judged a second later, so that our own signal can arrive first.

`EVENTS` below has a row for each event: the stages in which it means something, the function that answers it, and the stages that may
follow. docs/reference/stages.md is drawn from these rows. The functions stand in a file for each subject: start.py (checkpoint, attempt),
gathering.py and epoch.py (several nodes),
lifecycle.py (start, run, end), failure.py (stop the ranks, judge, plan), node_health.py and health_changes.py
(this node's health), hangs.py (ranks that stand still), training.py (loss and pace), saved_by.py (whose checkpoint was loaded),
shutdown.py (a request to stop).

8. *Nodes decide together.* What happens to a shared attempt is decided once, at the coordinator, on what all of them saw
   (ReportsGathered): also while that is stopping, or takes no part in the attempt. All act on that one decision (DecisionMade), and on
   nothing else (epoch.py).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.core import epoch, failure, gathering, hangs, health_changes, lifecycle, saved_by, shutdown, start, training
from supervisor.core.events import (
    AttemptEnded,
    AttemptEndedByPeer,
    AttemptStarted,
    CheckpointSelected,
    CheckpointsLoaded,
    CheckpointVerified,
    CoordinatorFellSilent,
    DecisionMade,
    EvidenceCollected,
    GpusListed,
    HangCleared,
    HangConfirmed,
    HangSuspected,
    HealthChanged,
    HealthChecked,
    JournalDegraded,
    JournalRecovered,
    LauncherExited,
    LauncherFellBack,
    LauncherStarted,
    LeftBehind,
    NewestSaveGone,
    NodeBegan,
    NodeCutOff,
    NodesGathered,
    NodesMissing,
    NodesWaiting,
    ProgramIdentified,
    ProgramSeen,
    ProgressObserved,
    RankExited,
    RanksFound,
    ReportsGathered,
    Saved,
    SaveOnRequestSeen,
    SaveSearched,
    SelectionMoved,
    StacksRequested,
    StartCeilingPassed,
    StopRequested,
    SupervisorStarted,
    TimeLeft,
    TimerFired,
    UnsavedFound,
)
from supervisor.core.state import JobState, Stage
from supervisor.core.training_events import LossChanged, PaceChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from supervisor.core.actions import Action
    from supervisor.core.events import Event

    Handler = Callable[[JobState, Any], tuple[JobState, tuple[Action, ...]]]


class EventRow(NamedTuple):
    """The stages in which an event means something, the function that answers it, and the stages that may follow.

    leads_to: by the stage before, the other stages that the answer may lead to. A stage that is not in it stays.
    """

    stages: frozenset[Stage]
    handler: Handler
    leads_to: Mapping[Stage, frozenset[Stage]] = MappingProxyType({})


def _leads(stages: Iterable[Stage], *to: Stage) -> dict[Stage, frozenset[Stage]]:
    return {stage: frozenset(to) - {stage} for stage in stages}


ANY = frozenset(Stage)
BEFORE_THE_END = ANY - {Stage.ENDED}
#: Ranks are being started, or run.
LIVES = frozenset({Stage.STARTING, Stage.RUNNING})
#: Ranks are being stopped.
ENDS = frozenset({Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING, Stage.STOPPING})
#: No rank on this node can be alive.
NOTHING_RUNS = shutdown.NOTHING_RUNS
#: An attempt is wanted (start.select): it waits for its checkpoint or for this node's examination, or begins at once, or must not begin.
WANTED = (Stage.SELECTING, Stage.CHECKING, Stage.STARTING, Stage.ENDED)
#: The checkpoint is chosen. A full disk is waited for.
CHOSEN = (Stage.CHECKING, Stage.STARTING, Stage.WAITING, Stage.ENDED)
#: A failure is judged.
JUDGED = (*WANTED, Stage.WAITING)

#: Every event has exactly one row. In any other stage it is answered with nothing (`decide`). What may come in ENDED begins the next run.
EVENTS: dict[type, EventRow] = {
    SupervisorStarted: EventRow(
        ANY, lifecycle.on_supervisor_started, _leads(ANY, *WANTED) | _leads(LIVES | ENDS, Stage.FOLLOWING, *WANTED)
    ),
    LauncherStarted: EventRow(BEFORE_THE_END, lifecycle.on_launcher_started, _leads([Stage.STARTING], *WANTED)),
    LauncherFellBack: EventRow(frozenset({Stage.STARTING}), lifecycle.on_launcher_fell_back, _leads([Stage.STARTING], *WANTED)),
    NodesGathered: EventRow(frozenset({Stage.STARTING}), gathering.on_nodes_gathered),
    NodeBegan: EventRow(LIVES, gathering.on_node_began, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    CheckpointSelected: EventRow(
        frozenset({Stage.SELECTING, Stage.STARTING}),
        gathering.on_checkpoint_selected,
        _leads([Stage.SELECTING], *CHOSEN) | _leads([Stage.STARTING], Stage.TEARDOWN, Stage.ENDED),
    ),
    ProgramIdentified: EventRow(frozenset({Stage.STARTING}), lifecycle.on_program_identified),
    SelectionMoved: EventRow(frozenset({Stage.SELECTING, Stage.STARTING}), start.on_selection_moved),
    AttemptStarted: EventRow(
        frozenset({Stage.STARTING}), health_changes.on_attempt_started, _leads([Stage.STARTING], Stage.RUNNING, Stage.TEARDOWN)
    ),
    RanksFound: EventRow(frozenset({Stage.RUNNING}), lifecycle.on_ranks_found),
    ProgressObserved: EventRow(
        LIVES | {Stage.TEARDOWN, Stage.STOPPING}, gathering.on_progress_observed, _leads([Stage.RUNNING], Stage.TEARDOWN)
    ),
    CheckpointVerified: EventRow(BEFORE_THE_END, epoch.on_checkpoint_verified, _leads([Stage.RUNNING], Stage.ADMITTING)),
    CheckpointsLoaded: EventRow(LIVES, saved_by.on_checkpoints_loaded, _leads(LIVES, Stage.TEARDOWN)),
    NewestSaveGone: EventRow(BEFORE_THE_END, saved_by.on_newest_save_gone),
    StartCeilingPassed: EventRow(BEFORE_THE_END, lifecycle.on_start_ceiling_passed),
    ProgramSeen: EventRow(BEFORE_THE_END, lifecycle.on_program_seen),
    GpusListed: EventRow(ANY, lifecycle.on_gpus_listed),
    HealthChecked: EventRow(frozenset({Stage.SELECTING, Stage.CHECKING}), start.on_health_checked, _leads([Stage.CHECKING], *CHOSEN)),
    HealthChanged: EventRow(BEFORE_THE_END, health_changes.on_health_changed, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    NodesMissing: EventRow(frozenset({Stage.STARTING}), gathering.on_nodes_missing),
    NodesWaiting: EventRow(frozenset({Stage.RUNNING}), epoch.on_nodes_waiting),
    AttemptEnded: EventRow(
        BEFORE_THE_END,
        epoch.on_attempt_ended,
        _leads(LIVES, Stage.TEARDOWN, Stage.ENDED)
        | _leads([Stage.TEARDOWN], Stage.FOLLOWING, *JUDGED)
        | _leads([Stage.FOLLOWING], *JUDGED)
        | _leads([Stage.ADMITTING], Stage.FOLLOWING, *JUDGED)
        | _leads([Stage.STOPPING], Stage.ENDED),
    ),
    JournalDegraded: EventRow(ANY, lifecycle.on_journal_degraded),
    JournalRecovered: EventRow(ANY, lifecycle.on_journal_recovered),
    RankExited: EventRow(LIVES | ENDS, shutdown.on_rank_exited, _leads(LIVES, Stage.TEARDOWN)),
    LauncherExited: EventRow(LIVES | ENDS, failure.on_launcher_exited, _leads(LIVES, Stage.TEARDOWN)),
    AttemptEndedByPeer: EventRow(LIVES | {Stage.TEARDOWN}, epoch.on_attempt_ended_by_peer, _leads(LIVES, Stage.TEARDOWN, Stage.ADMITTING)),
    ReportsGathered: EventRow(ANY, epoch.on_reports_gathered),
    DecisionMade: EventRow(
        LIVES | ENDS,
        epoch.on_decision_made,
        _leads(LIVES, Stage.FOLLOWING, Stage.ENDED) | _leads([Stage.TEARDOWN, Stage.FOLLOWING], *JUDGED),
    ),
    LeftBehind: EventRow(
        LIVES | ENDS, epoch.on_left_behind, _leads(LIVES, Stage.FOLLOWING) | _leads([Stage.TEARDOWN, Stage.FOLLOWING], *WANTED)
    ),
    CoordinatorFellSilent: EventRow(LIVES, epoch.on_coordinator_silent, _leads(LIVES, Stage.TEARDOWN)),
    NodeCutOff: EventRow(
        frozenset({Stage.STARTING, Stage.FOLLOWING}), epoch.on_node_cut_off, _leads([Stage.STARTING, Stage.FOLLOWING], Stage.ENDED)
    ),
    EvidenceCollected: EventRow(
        frozenset({Stage.TEARDOWN, Stage.STOPPING}),
        shutdown.on_evidence_collected,
        _leads([Stage.TEARDOWN], Stage.FOLLOWING, *JUDGED) | _leads([Stage.STOPPING], Stage.ENDED),
    ),
    TimerFired: EventRow(
        BEFORE_THE_END,
        shutdown.on_timer_fired,
        _leads([Stage.SELECTING], *CHOSEN)
        | _leads([Stage.CHECKING], Stage.STARTING, Stage.ENDED)
        | _leads([Stage.STARTING], Stage.TEARDOWN, Stage.ENDED)
        | _leads([Stage.FOLLOWING, Stage.STOPPING], Stage.ENDED)
        | _leads([Stage.TEARDOWN], Stage.FOLLOWING, *JUDGED)
        | _leads([Stage.WAITING], *WANTED),
    ),
    StopRequested: EventRow(
        BEFORE_THE_END,
        shutdown.on_stop_requested,
        _leads(LIVES, Stage.STOPPING)
        | _leads(ENDS, Stage.STOPPING)
        | _leads([Stage.TEARDOWN, Stage.FOLLOWING, Stage.STOPPING], Stage.STOPPING, Stage.ENDED)
        | _leads(NOTHING_RUNS, Stage.ENDED),
    ),
    SaveOnRequestSeen: EventRow(BEFORE_THE_END, shutdown.on_save_on_request_seen),
    Saved: EventRow(frozenset({Stage.RUNNING, Stage.STOPPING}), shutdown.on_saved),
    UnsavedFound: EventRow(frozenset({Stage.STOPPING}), shutdown.on_unsaved_found),
    SaveSearched: EventRow(
        frozenset({Stage.STOPPING, Stage.TEARDOWN}),
        shutdown.on_save_searched,
        _leads([Stage.STOPPING], Stage.ENDED) | _leads([Stage.TEARDOWN], Stage.FOLLOWING, Stage.SELECTING, Stage.WAITING, Stage.ENDED),
    ),
    TimeLeft: EventRow(frozenset({Stage.STOPPING}), shutdown.on_time_left),
    HangSuspected: EventRow(frozenset({Stage.RUNNING}), hangs.on_hang_suspected),
    HangConfirmed: EventRow(frozenset({Stage.RUNNING}), hangs.on_hang_confirmed, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    HangCleared: EventRow(frozenset({Stage.RUNNING}), hangs.on_hang_cleared),
    LossChanged: EventRow(LIVES, training.on_loss_changed, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    PaceChanged: EventRow(frozenset({Stage.RUNNING}), training.on_pace_changed),
    StacksRequested: EventRow(LIVES, shutdown.on_stacks_requested),
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
    """Whether an event speaks of another attempt than the state's: the fence. The coordinator judges the attempts of others too."""
    number = state.attempt.number
    return getattr(event, "attempt", number) != number and not isinstance(event, ReportsGathered)
