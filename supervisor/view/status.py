"""Where a job is on one node: the values of `supervise status`, of its JSON, and of every page that shows a job. Pure.

The names of the fields are those of the JSON (docs/reference/json.md). Times are Unix seconds, ages seconds; None is not known.
"""

from __future__ import annotations

import signal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, UnsetType

from supervisor.core.model import Finding
from supervisor.core.state import Stage
from supervisor.core.step_shares import StepShares
from supervisor.core.values import Struct
from supervisor.errors import ExitCode
from supervisor.journal.records import StartTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.view.job_view import JobView

#: Exit codes of a run that was stopped from outside: it did not fail.
STOPPED_CODES: Final = frozenset({ExitCode.REQUEUE, 128 + signal.SIGINT, 128 + signal.SIGTERM})
#: Stages that follow on an attempt, and that no first one begins with.
_AFTER_AN_ATTEMPT: Final = frozenset({Stage.TEARDOWN, Stage.FOLLOWING, Stage.ADMITTING, Stage.WAITING})
#: So many steps behind the furthest rank is no difference: a rank ends its step a moment after another.
_ALIKE_STEPS: Final = 1


class StateWord(StrEnum):
    """A job's state, in one word for people: the head of its page, and the column of a list."""

    NO_RUN = "no run yet"
    STARTING = "starting"  # no rank of the first attempt made a step yet
    TRAINING = "training"
    RUNNING = "running"  # ranks live, and whether they train cannot be seen
    HUNG = "hung"
    WAITING = "waiting for nodes"
    RESTARTING = "restarting"  # from the failure until the next attempt makes a step
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    DIED = "supervise died"


class RankStatus(Struct, frozen=True):
    """One rank of this node that lives. lag: steps behind the rank of this node that is furthest. phase_s: since it began this phase.

    waits: the reason of its wait, in words; None: none, or it cannot be seen from outside.
    """

    rank: int
    local_rank: int
    pid: int
    step: int | None = None
    phase: str = "unknown"
    lag: int | None = None
    memory_bytes: int | None = None
    phase_s: float | None = None
    waits: str | None = None
    time_shares: dict[str, int] | None = None  # where its time went since its training began: percent, by the parts of a step
    gpu_allocated_bytes: int | None = None  # by torch, at the end of its last step; the same below
    gpu_reserved_bytes: int | None = None
    gpu_peak_bytes: int | None = None
    gpu_split_bytes: int | None = None  # free in blocks that are used in part
    gpu_limit_bytes: int | None = None  # of its GPU, or the share that the script allows itself
    pinned_bytes: int | None = None  # of the host, by torch


class StoredCheckpoint(Struct, frozen=True):
    """A checkpoint, and how long ago it was saved, verified or mirrored. mirror: which one holds it; None: this node's disk."""

    path: str
    step: int | None
    age_s: float
    mirror: str | None = None


class StandbyStatus(Struct, frozen=True):
    """The standbys of this node's ranks. text: how many, or why none."""

    text: str
    ready: int
    private_mib: int
    pids: tuple[int, ...]


class GpuStatus(Struct, frozen=True):
    """A GPU that the job may use. quarantined: why it is out of use. What NVML answers now is there only while the job runs here."""

    index: int
    uuid: str
    quarantined: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None  # by whichever process
    temperature_c: float | None = None
    busy_percent: float | None = None  # of the time in which a kernel ran: no sign of progress
    power_w: float | None = None
    clock_mhz: float | None = None  # of its multiprocessors
    slow: bool = False  # its clock is far below those of the others


class ForecastStatus(Struct, frozen=True):
    """An amount of memory that will be used up. subject: host, or gpu and the rank. left_s: from now, as much more or less as doubt_s."""

    subject: str
    text: str
    left_s: float
    doubt_s: float
    rank: int | None = None
    step: int | None = None  # by then


class HangStatus(Struct, frozen=True):
    """A hang that holds, or held when the run ended. ranks: the culprits; still_s: since the last progress of any rank.

    where: the node and the line of the user's code of the culprits. reason: what in the script explains it, and what to write. done: why
    supervise does not end it.
    """

    kind: str
    text: str
    ranks: tuple[int, ...]
    still_s: float
    where: str = ""
    reason: str = ""
    done: str = ""


class IncidentStatus(Struct, frozen=True):
    """The last incident, in the words of the card. "": nothing is known, or nothing is to be done."""

    number: int
    opened: float
    outcome: str  # open, resolved, given_up, stopped, supervise died, …
    what: str
    where: str = ""
    done: str = ""
    do: str = ""
    cause: str = ""

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it."""
        return self.outcome == "open"


class LossCurve(Struct, frozen=True):
    """The newest losses, the oldest first. source: journal, one a minute; or log, each line of a rank that shows one."""

    values: tuple[float, ...]
    first_step: int | None
    last_step: int | None
    source: str


class WaitedNodes(Struct, frozen=True):
    """How many nodes the attempt waits for, and until when."""

    nodes: int
    until: float


class SupervisorStatus(Struct, frozen=True):
    """The supervisor of the last run. alive: None if it cannot be seen from here."""

    pid: int
    alive: bool | None


class ListedAlert(Struct, frozen=True):
    """An alert that the spool of the job holds. t: when it was put there."""

    t: float
    sink: str
    state: str  # sent, refused, waiting
    title: str
    answer: str | None  # of the service that refused it
    event_id: str


class Status(Struct, frozen=True):
    """Where a job is on one node. docs/reference/json.md explains each field."""

    job: str
    node: str
    run: str
    state: StateWord
    stage: str
    attempt: int
    step: int | None
    step_relative: bool
    phase: str
    ranks: tuple[RankStatus, ...]
    incident: int | None  # the open one
    incidents: int
    supervisor: SupervisorStatus
    state_dir: str
    now: float = 0.0
    drill: bool = False
    since: float | None = None
    until: float | None = None
    attempt_since: float | None = None
    restarts: int = 0
    restarts_left: int | None = None
    total_steps: int | None = None
    total_from: str | None = None
    steps_per_s: float | None = None
    eta_s: float | None = None
    last_step_age_s: float | None = None
    loss: LossCurve | None = None
    start: StartTimes | None = None
    hang: HangStatus | None = None
    forecasts: tuple[ForecastStatus, ...] = ()
    warnings: tuple[str, ...] = ()
    world_size: int | None = None
    nodes: tuple[str, ...] = ()
    waits: WaitedNodes | None = None
    standby: StandbyStatus | None = None
    saved: StoredCheckpoint | None = None
    verified: StoredCheckpoint | None = None
    mirrored: StoredCheckpoint | None = None
    saves: str | None = None
    waiting_uploads: int = 0
    gpus: tuple[GpuStatus, ...] = ()
    health: tuple[Finding, ...] = ()
    examined: float | None = None
    last_incident: IncidentStatus | None = None
    last_decision: str | None = None
    exit_code: int | None = None
    numbers: str | None = None
    left_out: int = 0
    step_shares: StepShares | None = None  # of the ranks of this node; None: not known
    restored: str | None = None
    alerts: str | None = None
    alert_list: tuple[ListedAlert, ...] | UnsetType = UNSET  # nobody asked
    alerts_dropped: dict[str, int] | UnsetType = UNSET

    @property
    def state_text(self) -> str:
        """The state, with the exit code of a run that did not end well, and whether this can be known from here."""
        is_far = bool(self.run) and not self.ended and self.supervisor.alive is None
        more = f", exit code {self.exit_code}" if self.exit_code else ", not visible from here" if is_far else ""
        return f"{self.state.value}{more}"

    @property
    def ended(self) -> bool:
        """Whether its run has an end record."""
        return self.exit_code is not None

    @property
    def died(self) -> bool:
        """Whether the supervisor is gone without an end record."""
        return self.state is StateWord.DIED

    @property
    def runs(self) -> bool:
        """Whether it may still write."""
        return not self.ended and self.supervisor.alive is not False


def state_of(view: JobView, *, alive: bool | None, trains: bool) -> StateWord:
    """Return a job's state, in one word. trains: a rank of the present attempt made a step, or is behind one."""
    if view.run is None:
        return StateWord.NO_RUN
    if view.end is not None:
        last = view.incidents[-1] if view.incidents else None
        gave_up = last is not None and last.outcome == "given_up" and last.run_id == view.run.run_id
        return end_word(view.end.exit_code, gave_up=gave_up)
    if alive is False:
        return StateWord.DIED
    if view.stage != Stage.STOPPING and (view.missing or view.hang is not None):
        return StateWord.WAITING if view.missing else StateWord.HUNG
    return stage_word(view.stage, trains=trains, phase=view.progress.phase, is_again=view.attempt > 1 or view.open_incident is not None)


def end_word(exit_code: int, *, gave_up: bool) -> StateWord:
    """Return how a run ended. gave_up: an incident ended it, also where a scheduler may start it again (75)."""
    if exit_code == 0:
        return StateWord.DONE
    return StateWord.STOPPED if exit_code in STOPPED_CODES and not gave_up else StateWord.FAILED


def stage_word(stage: str, *, trains: bool, phase: str, is_again: bool) -> StateWord:
    """Return the state of an attempt that nothing holds up. is_again: it is not the first, or an incident is open."""
    if stage == Stage.STOPPING:
        return StateWord.STOPPING
    if stage == Stage.RUNNING and trains:
        return StateWord.TRAINING
    if stage == Stage.RUNNING and phase == "unknown":
        return StateWord.RUNNING
    return StateWord.RESTARTING if is_again or stage in _AFTER_AN_ATTEMPT else StateWord.STARTING


def rank_groups(ranks: Sequence[RankStatus], most_single: int) -> list[tuple[RankStatus, ...]]:
    """Return the ranks in groups of those that do the same, the largest group first; each by itself where they are few."""
    if len(ranks) <= most_single:
        return [(rank,) for rank in ranks]
    groups: dict[tuple[object, ...], list[RankStatus]] = {}
    for rank in ranks:
        lag = 0 if rank.lag is not None and rank.lag <= _ALIKE_STEPS else rank.lag
        groups.setdefault((lag, rank.phase, rank.waits), []).append(rank)
    return sorted(map(tuple, groups.values()), key=lambda group: (-len(group), group[0].rank))
