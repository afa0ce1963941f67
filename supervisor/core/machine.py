"""decide(state, event) -> (state, actions): every decision of the supervisor, and nothing else.

No clock, no IO, no randomness, no logging: time and jitter arrive inside events. The same function runs in production, in the scenario
tests and in the simulation. So a journal explains each decision.

The rules:

1. *The attempt is the fence.* An event of another attempt than the state's is void.
2. *Stop first, decide later.* When a rank fails, the others are stopped at once. The failure is judged when no rank is left
   (AttemptEnded) and the evidence is there (EvidenceCollected), in whichever order they come.
3. *Every wait has a timer.* A part that does not answer is ended from outside (EndLauncher), and that answer always comes.
4. *A request to stop outranks a failure.* StopRequested turns every stage into STOPPING or ENDED. Ranks that die then obeyed
   the request.
5. *Health decides where an attempt begins, not whether it continues*, except for the checks that health.evict_on names. An attempt
   begins when its checkpoint is chosen and this node was examined (CHECKING, between SELECTING and STARTING), or when that took too
   long. After a failure of the program it does not wait: the last examination of the node holds.
6. *Nodes agree before their ranks start.* Where a job has several nodes under torch's agent, an attempt begins with their meeting: then
   no rank of an earlier attempt lives on any node. Only then each looks for checkpoints, and all resume from the same one
   (nodes/gathering.py).
7. *A rank that dies of INT, TERM or HUP may have received the signal before we did* (Slurm and process groups signal everybody). Such a
   failure is judged a second later, so that our own signal can arrive first.

8. *Nodes decide together.* What happens to a shared attempt is decided once, at the coordinator, on what all of them saw
   (ReportsGathered): also while that is stopping, or takes no part in the attempt. All act on that one decision (DecisionMade), and on
   nothing else (nodes/joint_decision.py).

`EVENTS` below has a row for each event: the stages in which it means something, the one function that answers it, and the stages that may
follow. `TIMERS` has what each timer means. docs/reference/stages.md is drawn from these rows. The functions stand by subject:

    attempt/    takeover, launch, selection (of a checkpoint), start, progress, checkpoints (saved, loaded), end, finish (of the run);
                resumption, known_checkpoints, programs, setups, pointers
    failure/    teardown (stop the ranks), judgement (the cause), culprit, planning (the action), rank_endings, losses (the cost)
    stop.py     a request to stop; signals.py has what each signal means
    nodes/      gathering (they meet, and agree on a checkpoint), starts (compared), admission (of more nodes), joint_decision, sharing,
                report_size, replicas, global_batch
    health/     checks (of this node, before an attempt and while one runs), findings (what follows from them), detours
    watch/      hangs, loss_and_pace, memory

The part of an event for several nodes is a call of nodes/ from its one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.core import signals, stop
from supervisor.core.actions import Action, EndLauncher, PrintMessage
from supervisor.core.attempt import checkpoints, end, launch, programs, progress, selection, start, takeover
from supervisor.core.events import (
    AttemptEnded,
    AttemptEndedByPeer,
    AttemptStarted,
    CheckpointSelected,
    CheckpointsLoaded,
    CheckpointVerified,
    CoordinatorFellSilent,
    DecisionMade,
    Event,
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
from supervisor.core.failure import judgement, teardown
from supervisor.core.health import checks
from supervisor.core.nodes import admission, gathering, joint_decision, starts
from supervisor.core.state import JobState, Stage
from supervisor.core.training_events import LossChanged, MemoryForecast, PaceChanged
from supervisor.core.values import replace
from supervisor.core.watch import hangs, loss_and_pace, memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from supervisor.core.actions import Action
    from supervisor.core.events import Event
    from supervisor.core.state import Step

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


def on_journal_degraded(state: JobState, event: JournalDegraded) -> Step:
    """Continue in memory, and report it."""
    if state.journal_degraded:
        return state, ()
    return replace(state, journal_degraded=True), (
        PrintMessage("warning", f"journal degraded: {event.text}; decisions are kept in memory until it answers"),
    )


def on_journal_recovered(state: JobState, event: JournalRecovered) -> Step:
    """All of it is on disk again."""
    del event
    return replace(state, journal_degraded=False), (
        PrintMessage("info", "journal recovered: everything is on disk"),
    ) if state.journal_degraded else ()


def on_timer_fired(state: JobState, event: TimerFired) -> Step:
    """Answer a timer of this stage; one of an earlier stage is void."""
    if event.token != state.token:
        return state, ()
    row = TIMERS.get((event.name, state.stage))
    if row is not None:
        return row(state, event.t)
    if event.name in {"teardown", "stop"} and not state.attempt.ended:
        return state, (EndLauncher(state.attempt.number, f"its ranks were not gone in time ({event.name})"),)
    return state, ()


ANY = frozenset(Stage)
BEFORE_THE_END = ANY - {Stage.ENDED}
#: Ranks are being started, or run.
LIVES = frozenset({Stage.STARTING, Stage.RUNNING})
#: Ranks are being stopped.
ENDS = frozenset({Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING, Stage.STOPPING})
#: No rank on this node can be alive.
NOTHING_RUNS = signals.NOTHING_RUNS
#: An attempt is wanted (start.select): it waits for its checkpoint or for this node's examination, or begins at once, or must not begin.
WANTED = (Stage.SELECTING, Stage.CHECKING, Stage.STARTING, Stage.ENDED)
#: The checkpoint is chosen. A full disk is waited for.
CHOSEN = (Stage.CHECKING, Stage.STARTING, Stage.WAITING, Stage.ENDED)
#: A failure is judged.
JUDGED = (*WANTED, Stage.WAITING)

#: Every event has exactly one row. In any other stage it has no effect (`decide`). An event that may come in ENDED begins the next run.
EVENTS: dict[type, EventRow] = {
    SupervisorStarted: EventRow(ANY, takeover.on_supervisor_started, _leads(ANY, *WANTED) | _leads(LIVES | ENDS, Stage.FOLLOWING, *WANTED)),
    LauncherStarted: EventRow(BEFORE_THE_END, launch.on_launcher_started, _leads([Stage.STARTING], *WANTED)),
    LauncherFellBack: EventRow(frozenset({Stage.STARTING}), launch.on_launcher_fell_back, _leads([Stage.STARTING], *WANTED)),
    NodesGathered: EventRow(frozenset({Stage.STARTING}), gathering.on_nodes_gathered),
    NodeBegan: EventRow(LIVES, starts.on_node_began, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    CheckpointSelected: EventRow(
        frozenset({Stage.SELECTING, Stage.STARTING}),
        selection.on_checkpoint_selected,
        _leads([Stage.SELECTING], *CHOSEN) | _leads([Stage.STARTING], Stage.TEARDOWN, Stage.ENDED),
    ),
    ProgramIdentified: EventRow(frozenset({Stage.STARTING}), programs.on_program_identified),
    SelectionMoved: EventRow(frozenset({Stage.SELECTING, Stage.STARTING}), selection.on_selection_moved),
    AttemptStarted: EventRow(
        frozenset({Stage.STARTING}), start.on_attempt_started, _leads([Stage.STARTING], Stage.RUNNING, Stage.TEARDOWN)
    ),
    RanksFound: EventRow(frozenset({Stage.RUNNING}), start.on_ranks_found),
    ProgressObserved: EventRow(
        LIVES | {Stage.TEARDOWN, Stage.STOPPING}, progress.on_progress_observed, _leads([Stage.RUNNING], Stage.TEARDOWN)
    ),
    CheckpointVerified: EventRow(BEFORE_THE_END, checkpoints.on_checkpoint_verified, _leads([Stage.RUNNING], Stage.ADMITTING)),
    CheckpointsLoaded: EventRow(LIVES, checkpoints.on_checkpoints_loaded, _leads(LIVES, Stage.TEARDOWN)),
    NewestSaveGone: EventRow(BEFORE_THE_END, checkpoints.on_newest_save_gone),
    StartCeilingPassed: EventRow(BEFORE_THE_END, start.on_start_ceiling_passed),
    ProgramSeen: EventRow(BEFORE_THE_END, programs.on_program_seen),
    GpusListed: EventRow(ANY, checks.on_gpus_listed),
    HealthChecked: EventRow(frozenset({Stage.SELECTING, Stage.CHECKING}), checks.on_health_checked, _leads([Stage.CHECKING], *CHOSEN)),
    HealthChanged: EventRow(BEFORE_THE_END, checks.on_health_changed, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    NodesMissing: EventRow(frozenset({Stage.STARTING}), gathering.on_nodes_missing),
    NodesWaiting: EventRow(frozenset({Stage.RUNNING}), admission.on_nodes_waiting),
    AttemptEnded: EventRow(
        BEFORE_THE_END,
        end.on_attempt_ended,
        _leads(LIVES, Stage.TEARDOWN, Stage.ENDED)
        | _leads([Stage.TEARDOWN], Stage.FOLLOWING, *JUDGED)
        | _leads([Stage.FOLLOWING], *JUDGED)
        | _leads([Stage.ADMITTING], Stage.FOLLOWING, *JUDGED)
        | _leads([Stage.STOPPING], Stage.ENDED),
    ),
    JournalDegraded: EventRow(ANY, on_journal_degraded),
    JournalRecovered: EventRow(ANY, on_journal_recovered),
    RankExited: EventRow(LIVES | ENDS, teardown.on_rank_exited, _leads(LIVES, Stage.TEARDOWN)),
    LauncherExited: EventRow(LIVES | ENDS, teardown.on_launcher_exited, _leads(LIVES, Stage.TEARDOWN)),
    AttemptEndedByPeer: EventRow(
        LIVES | {Stage.TEARDOWN}, joint_decision.on_attempt_ended_by_peer, _leads(LIVES, Stage.TEARDOWN, Stage.ADMITTING)
    ),
    ReportsGathered: EventRow(ANY, joint_decision.on_reports_gathered),
    DecisionMade: EventRow(
        LIVES | ENDS,
        joint_decision.on_decision_made,
        _leads(LIVES, Stage.FOLLOWING, Stage.ENDED) | _leads([Stage.TEARDOWN, Stage.FOLLOWING], *JUDGED),
    ),
    LeftBehind: EventRow(
        LIVES | ENDS, joint_decision.on_left_behind, _leads(LIVES, Stage.FOLLOWING) | _leads([Stage.TEARDOWN, Stage.FOLLOWING], *WANTED)
    ),
    CoordinatorFellSilent: EventRow(LIVES, joint_decision.on_coordinator_fell_silent, _leads(LIVES, Stage.TEARDOWN)),
    NodeCutOff: EventRow(
        frozenset({Stage.STARTING, Stage.FOLLOWING}), joint_decision.on_node_cut_off, _leads([Stage.STARTING, Stage.FOLLOWING], Stage.ENDED)
    ),
    EvidenceCollected: EventRow(
        frozenset({Stage.TEARDOWN, Stage.STOPPING}),
        judgement.on_evidence_collected,
        _leads([Stage.TEARDOWN], Stage.FOLLOWING, *JUDGED) | _leads([Stage.STOPPING], Stage.ENDED),
    ),
    TimerFired: EventRow(
        BEFORE_THE_END,
        on_timer_fired,
        _leads([Stage.SELECTING], *CHOSEN)
        | _leads([Stage.CHECKING], Stage.STARTING, Stage.ENDED)
        | _leads([Stage.STARTING], Stage.TEARDOWN, Stage.ENDED)
        | _leads([Stage.FOLLOWING, Stage.STOPPING], Stage.ENDED)
        | _leads([Stage.TEARDOWN], Stage.FOLLOWING, *JUDGED)
        | _leads([Stage.WAITING], *WANTED),
    ),
    StopRequested: EventRow(
        BEFORE_THE_END,
        stop.on_stop_requested,
        _leads(LIVES, Stage.STOPPING)
        | _leads(ENDS, Stage.STOPPING)
        | _leads([Stage.TEARDOWN, Stage.FOLLOWING, Stage.STOPPING], Stage.STOPPING, Stage.ENDED)
        | _leads(NOTHING_RUNS, Stage.ENDED),
    ),
    SaveOnRequestSeen: EventRow(BEFORE_THE_END, stop.on_save_on_request_seen),
    Saved: EventRow(frozenset({Stage.RUNNING, Stage.STOPPING}), stop.on_saved),
    UnsavedFound: EventRow(frozenset({Stage.STOPPING}), stop.on_unsaved_found),
    SaveSearched: EventRow(
        frozenset({Stage.STOPPING, Stage.TEARDOWN}),
        checkpoints.on_save_searched,
        _leads([Stage.STOPPING], Stage.ENDED) | _leads([Stage.TEARDOWN], Stage.FOLLOWING, Stage.SELECTING, Stage.WAITING, Stage.ENDED),
    ),
    TimeLeft: EventRow(frozenset({Stage.STOPPING}), stop.on_time_left),
    HangSuspected: EventRow(frozenset({Stage.RUNNING}), hangs.on_hang_suspected),
    HangConfirmed: EventRow(frozenset({Stage.RUNNING}), hangs.on_hang_confirmed, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    HangCleared: EventRow(frozenset({Stage.RUNNING}), hangs.on_hang_cleared),
    LossChanged: EventRow(LIVES, loss_and_pace.on_loss_changed, _leads([Stage.RUNNING], Stage.TEARDOWN)),
    MemoryForecast: EventRow(frozenset({Stage.RUNNING}), memory.on_memory_forecast),
    PaceChanged: EventRow(frozenset({Stage.RUNNING}), loss_and_pace.on_pace_changed),
    StacksRequested: EventRow(LIVES, hangs.on_stacks_requested),
}


#: The meaning of a timer in the stage that set it. Those of "teardown" and "stop" end all that still runs, in every stage (on_timer_fired).
TIMERS: dict[tuple[str, Stage], Callable[[JobState, float], Step]] = {
    ("select", Stage.SELECTING): selection.on_select_overdue,
    ("select", Stage.STARTING): selection.on_select_overdue,
    ("nodes", Stage.STARTING): gathering.on_nodes_overdue,
    ("health", Stage.CHECKING): checks.on_health_overdue,
    ("backoff", Stage.WAITING): start.select,
    ("own_signal", Stage.TEARDOWN): judgement.on_own_signal_overdue,
    ("evidence", Stage.TEARDOWN): judgement.on_evidence_overdue,
    ("evidence", Stage.STOPPING): judgement.on_evidence_overdue,
    ("find", Stage.TEARDOWN): checkpoints.on_find_overdue,
    ("find", Stage.STOPPING): checkpoints.on_find_overdue,
    ("decision", Stage.FOLLOWING): joint_decision.on_decision_overdue,
    ("left", Stage.STOPPING): stop.on_left_overdue,
    ("save", Stage.STOPPING): stop.on_time_over,
    ("wait", Stage.STOPPING): stop.on_time_over,
    ("unsaved", Stage.STOPPING): stop.on_unsaved_due,
}


def initial() -> JobState:
    """Return the state of a job that nothing has happened to."""
    return JobState()


def decide(state: JobState, event: Event) -> tuple[JobState, tuple[Action, ...]]:
    """Return the next state and the actions. Raises nothing that an event could cause."""
    row = EVENTS[type(event)]
    if state.stage not in row.stages or is_of_another_attempt(state, event):
        return state, ()
    return row.handler(state, event)


def is_of_another_attempt(state: JobState, event: Event) -> bool:
    """Whether an event speaks of another attempt than the state's: the fence. The coordinator judges the attempts of others too."""
    number = state.attempt.number
    return getattr(event, "attempt", number) != number and not isinstance(event, ReportsGathered)
