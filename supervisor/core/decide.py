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

    NEW ─ SupervisorStarted ─> SELECTING ─ CheckpointSelected ─> STARTING ─ AttemptStarted ─> RUNNING ─ succeeded ─> ENDED
                                   ^                                 │ RankExited, LauncherExited │ │ │ NodesWaiting
                                   │                                 v                            │ │ └────> ADMITTING ─┐
              WAITING <─ restart ─ FENCED <───────────────────────────────────────────────────────┘ │ PeerFenced        │
                 │ backoff over      │ stop                                                         └────> FOLLOWING ───┤
                 └───> SELECTING     v                                                                                  │
                                   ENDED <── STOPPING <── StopRequested (from any stage)              SELECTING <───────┘

On several nodes SELECTING is passed over: STARTING ─ NodesGathered ─ CheckpointSelected ─ AttemptStarted ─> RUNNING.

The handlers live by what they are about: beginning.py (checkpoint, attempt), gathering.py (several nodes), lifecycle.py (start, run,
end), failing.py (fence, judge, plan), preflight.py and ailing.py (this node's health), stopping.py (a person).
Known weak spot: with several nodes each supervisor judges with what it sees itself; only the one whose rank failed first decides, and
the others follow its word (PeerDecided).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.core import ailing, failure, gathering, lifecycle, shutdown, start
from supervisor.core.events import (
    AttemptEnded,
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
    PeerFenced,
    ProgramSeen,
    ProgressObserved,
    RankExited,
    RanksFound,
    Saved,
    SaveSearched,
    SaveWatched,
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

#: Which function answers which event. Every event has exactly one row.
HANDLERS: dict[type, Handler] = {
    SupervisorStarted: lifecycle.on_supervisor_started,
    LauncherStarted: lifecycle.on_launcher_started,
    LauncherFellBack: lifecycle.on_launcher_fell_back,
    NodesGathered: gathering.on_nodes_gathered,
    NodeBegan: gathering.on_node_began,
    CheckpointSelected: gathering.on_checkpoint_selected,
    AttemptStarted: ailing.on_attempt_started,
    RanksFound: lifecycle.on_ranks_found,
    ProgressObserved: gathering.on_progress_observed,
    CheckpointVerified: lifecycle.on_checkpoint_verified,
    StartCeilingPassed: lifecycle.on_start_ceiling_passed,
    ProgramSeen: lifecycle.on_program_seen,
    GpusListed: lifecycle.on_gpus_listed,
    HealthChecked: start.on_health_checked,
    HealthChanged: ailing.on_health_changed,
    NodesWaiting: lifecycle.on_nodes_waiting,
    AttemptEnded: lifecycle.on_attempt_ended,
    JournalDegraded: lifecycle.on_journal_degraded,
    JournalRecovered: lifecycle.on_journal_recovered,
    RankExited: shutdown.on_rank_exited,
    LauncherExited: failure.on_launcher_exited,
    PeerFenced: failure.on_peer_fenced,
    PeerDecided: failure.on_peer_decided,
    EvidenceCollected: shutdown.on_evidence_collected,
    TimerFired: shutdown.on_timer_fired,
    StopRequested: shutdown.on_stop_requested,
    SaveWatched: shutdown.on_save_watched,
    Saved: shutdown.on_saved,
    SaveSearched: shutdown.on_save_searched,
    TimeLeft: shutdown.on_time_left,
    StacksRequested: shutdown.on_stacks_requested,
}

#: What may come after a run has ended, and begins the next. The journal may fail before the loop has begun.
AT_THE_START = (SupervisorStarted, GpusListed, JournalDegraded, JournalRecovered)


def initial() -> JobState:
    """Return the state of a job that nothing has happened to."""
    return JobState()


def decide(state: JobState, event: Event) -> tuple[JobState, tuple[Action, ...]]:
    """Return the next state and what is to be done. Raises nothing that an event could cause."""
    if is_of_the_past(state, event):
        return state, ()
    return HANDLERS[type(event)](state, event)


def is_of_the_past(state: JobState, event: Event) -> bool:
    """Whether an event speaks of another attempt than the state's, or of a run that is over: the fence."""
    number = state.attempt.number
    if getattr(event, "attempt", number) != number:
        return True
    return state.stage is Stage.ENDED and not isinstance(event, AT_THE_START)
