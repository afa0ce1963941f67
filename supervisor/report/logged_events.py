"""The log event of each event that the core took, and of each fact that decides nothing; the fields of such lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import events
from supervisor.core.training_events import LossChanged, MemoryForecast, PaceChanged
from supervisor.report.log_events import LogEvent
from supervisor.report.text import clean

if TYPE_CHECKING:
    from supervisor.core.actions import Quarantine

#: The log event of each event that the core took. Progress is in the journal only: it would drown the rest.
LOGGED: dict[type, LogEvent] = {
    events.LauncherFellBack: LogEvent.LAUNCHER_REPLACED,
    events.AttemptStarted: LogEvent.ATTEMPT_STARTED,
    events.RanksFound: LogEvent.RANKS_DISCOVERED,
    events.LauncherExited: LogEvent.LAUNCHER_EXITED,
    events.AttemptEndedByPeer: LogEvent.PEER_STOPPED,
    events.DecisionMade: LogEvent.NODES_DECIDED,
    events.NodesWaiting: LogEvent.NODES_ANNOUNCED,
    events.NodesMissing: LogEvent.NODES_AWAITED,
    events.NodesGathered: LogEvent.NODES_GATHERED,
    events.NodeBegan: LogEvent.NODE_BEGUN,
    events.CheckpointSelected: LogEvent.CHECKPOINT_SELECTED,
    events.CheckpointVerified: LogEvent.CHECKPOINT_VERIFIED,
    events.StartCeilingPassed: LogEvent.RANK_MISSED,
    events.StopRequested: LogEvent.STOP_REQUESTED,
    events.ProgramSeen: LogEvent.PROGRAM_RECOGNISED,
    events.GpusListed: LogEvent.GPUS_LISTED,
    events.HealthChecked: LogEvent.HEALTH_CHECKED,
    events.HealthChanged: LogEvent.HEALTH_CHANGED,
    events.HangSuspected: LogEvent.HANG_SUSPECTED,
    events.HangConfirmed: LogEvent.HANG_CONFIRMED,
    events.HangCleared: LogEvent.HANG_CLEARED,
    MemoryForecast: LogEvent.MEMORY_PREDICTED,
    PaceChanged: LogEvent.PACE_CHANGED,
    LossChanged: LogEvent.LOSS_CHANGED,
    events.Saved: LogEvent.SAVE_FINISHED,
    events.JournalDegraded: LogEvent.JOURNAL_DEGRADED,
    events.JournalRecovered: LogEvent.JOURNAL_RECOVERED,
}

#: The facts that decide nothing and have an event of their own; every other is an `agent.reported`.
NOTED: dict[str, LogEvent] = {
    "agent.ready": LogEvent.LAUNCHER_STARTED,
    "request.lost": LogEvent.REQUEST_LOST,
    "processes.left": LogEvent.PROCESSES_LEFT,
    "standby.reported": LogEvent.STANDBY_REPORTED,
    "standby.used": LogEvent.STANDBY_USED,
}


def gpu_fields(action: Quarantine) -> dict[str, object]:
    """Return what a line says of a GPU that is put out of use."""
    gpu = action.gpu
    texts = {"reason": clean(action.reason), "evidence": clean(action.evidence)}
    return {"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci, **texts}
