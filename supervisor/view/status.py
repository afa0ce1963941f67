"""Where a job is on one node: the values of `supervise status`, of its JSON, and of every page that shows a job. Pure.

The names of the fields are those of the JSON, and docs/reference/json.md has their comments. Times are Unix seconds, ages seconds; None is
not known.
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
#: So many steps behind the furthest rank is not a difference: a rank ends its step a moment after another.
_ALIKE_STEPS: Final = 1


class StateWord(StrEnum):
    """A job's state, in one word for people: the head of its page, and the column of a list."""

    NO_RUN = "no run yet"  # its journal records no run
    STARTING = "starting"  # no rank of the first attempt has made a step
    TRAINING = "training"  # a rank of the present attempt has made a step, or does what follows one
    RUNNING = "running"  # ranks live, and whether they train cannot be seen: instrumentation is off, or saw no step yet
    HUNG = "hung"  # two looks agree that the ranks stand still; the pace is 0
    WAITING = "waiting for nodes"  # the attempt needs more nodes than are there
    RESTARTING = "restarting"  # from a failure until the next attempt makes a step
    STOPPING = "stopping"  # a stop was asked for, and the ranks save or end
    STOPPED = "stopped"  # the run is over, stopped from outside (75, 130, 143)
    DONE = "done"  # the run is over, with exit code 0
    FAILED = "failed"  # the run is over with any other code, or was given up after a failure that a scheduler may try again (75)
    DIED = "supervise died"  # its supervisor is gone and wrote no end


class RankStatus(Struct, frozen=True):
    """One rank of this node that lives; under `accelerate launch` the command itself, until its ranks are found."""

    rank: int  # its number
    local_rank: int  # its number on this node
    pid: int  # of its process
    step: int | None = None  # the last that it made
    phase: str = "unknown"  # its activity
    lag: int | None = None  # steps behind the furthest rank of this node
    memory_bytes: int | None = None  # resident, without its children
    phase_s: float | None = None  # seconds in this phase
    waits: str | None = None  # the reason of its wait, in words; null: none, or it cannot be seen from outside
    time_shares: dict[str, int] | None = None  # percent of its time by the parts of a step
    gpu_allocated_bytes: int | None = None  # by torch, at the end of its last step; the same below
    gpu_reserved_bytes: int | None = None  # what the allocator holds
    gpu_peak_bytes: int | None = None  # the most that was allocated
    gpu_split_bytes: int | None = None  # free in blocks that are used in part
    gpu_limit_bytes: int | None = None  # of its GPU, or the share that the script allows itself
    pinned_bytes: int | None = None  # of the host, by torch


class StoredCheckpoint(Struct, frozen=True):
    """A checkpoint, and how long ago it was saved, verified or mirrored."""

    path: str  # where it lies
    step: int | None  # null: not known
    age_s: float  # seconds since it was saved, verified or mirrored
    mirror: str | None = None  # which mirror holds it; null: this node's disk


class StandbyStatus(Struct, frozen=True):
    """The standbys of this node's ranks."""

    text: str  # how many, or why none
    ready: int  # how many are ready
    private_mib: int  # their memory together
    pids: tuple[int, ...]  # their processes


class GpuStatus(Struct, frozen=True):
    """A GPU that the job may use."""

    index: int  # NVML's number
    uuid: str  # by which it is known
    quarantined: str | None = None  # why it is out of use, or null
    memory_bytes: int | None = None  # in all; this and what follows only while the job runs here, if NVML answers
    memory_used_bytes: int | None = None  # by whichever process
    temperature_c: float | None = None  # degrees
    busy_percent: float | None = None  # of the time in which a kernel ran: no sign of progress
    power_w: float | None = None  # watts
    clock_mhz: float | None = None  # of its multiprocessors
    slow: bool = False  # its clock is below 90 % of the median of the others


class ForecastStatus(Struct, frozen=True):
    """An amount of memory that will be used up."""

    subject: str  # `host`, or `gpu` and the rank
    text: str  # how much is used, and who grew
    left_s: float  # seconds from now
    doubt_s: float  # as much more or less
    rank: int | None = None  # whose GPU it is, or which rank grew most
    step: int | None = None  # by then


class HangStatus(Struct, frozen=True):
    """A hang that holds, or held when the run ended."""

    kind: str  # gone, mismatch, stopped, blocked, lock, late, waiting or exit
    text: str  # what the looks showed
    ranks: tuple[int, ...]  # the culprits
    still_s: float  # seconds since the last progress of any rank
    where: str = ""  # the culprits' node and line of your code
    reason: str = ""  # what in the script explains it, and what to write
    done: str = ""  # why supervise does not end it


class IncidentStatus(Struct, frozen=True):
    """The last incident, in the words of the card. "": nothing is known, or nothing is to be done."""

    number: int  # its number
    opened: float  # when it opened
    outcome: str  # open, resolved, given_up, stopped, supervise died, …
    what: str  # what happened, as on the card
    where: str = ""  # rank, node, GPU, step, attempt
    done: str = ""  # what supervise did
    do: str = ""  # what you do
    cause: str = ""  # one of the causes

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it."""
        return self.outcome == "open"


class LossCurve(Struct, frozen=True):
    """The newest losses."""

    values: tuple[float, ...]  # at most 60, the oldest first
    first_step: int | None  # of the first value
    last_step: int | None  # of the last
    source: str  # `journal`, one a minute; or `log`, each line of a rank that shows one


class WaitedNodes(Struct, frozen=True):
    """How many nodes the attempt waits for, and until when."""

    nodes: int  # how many are missing
    until: float  # until when they are waited for


class SupervisorStatus(Struct, frozen=True):
    """The supervisor of the last run."""

    pid: int  # its process
    alive: bool | None  # true, false, or null: it cannot be seen from here (another host, another pid namespace)


class ListedAlert(Struct, frozen=True):
    """An alert that the spool of the job holds."""

    t: float  # when it was put there
    sink: str  # where it goes
    state: str  # sent, refused, waiting
    title: str  # its first line
    answer: str | None  # of the service that refused it
    event_id: str  # the same at every retry


class Status(Struct, frozen=True):
    """The state of a job on one node."""

    job: str  # its name
    node: str  # host name
    run: str  # the run's id
    state: StateWord  # the job's state, as one of the words of a page
    stage: str  # the stage of its state machine
    attempt: int  # the current one, or the last
    step: int | None  # of the rank that is furthest behind; null is not 0
    step_relative: bool  # true: counted from where the attempt began, because the script reports no step
    phase: str  # unknown, import, init, load, train, checkpoint, eval, data
    ranks: tuple[RankStatus, ...]  # those of this node that live
    incident: int | None  # the number of the open one, or null
    incidents: int  # how many there were in all, in earlier runs too
    supervisor: SupervisorStatus  # the process that decides
    state_dir: str  # where the files are
    now: float = 0.0  # when this was read
    drill: bool = False  # true: it is the job of a drill
    since: float | None = None  # when the run began
    until: float | None = None  # when it ended
    attempt_since: float | None = None  # when the attempt's ranks were there; null before
    restarts: int = 0  # how often the ranks were started again in this run
    # how many the budget allows without progress, if it fails as it did last; null if the job does not run
    restarts_left: int | None = None
    total_steps: int | None = None  # the step with which the training ends
    total_from: str | None = None  # its source, in words
    steps_per_s: float | None = None  # of the newest reports, about 80 s; 0: it hangs
    eta_s: float | None = None  # seconds until `total_steps` at this pace
    last_step_age_s: float | None = None  # seconds since the rank that is furthest behind ended a step
    loss: LossCurve | None = None  # null: fewer than two are known
    start: StartTimes | None = None  # where the time of the attempt's start went; null: it has made no step
    hang: HangStatus | None = None  # that holds, or held when the run ended
    forecasts: tuple[ForecastStatus, ...] = ()  # memory that will be used up
    warnings: tuple[str, ...] = ()  # strange facts of the loss and the pace: texts
    world_size: int | None = None  # the ranks of all nodes; null while none lives
    nodes: tuple[str, ...] = ()  # the hosts of the attempt by group rank; empty for a job of one node
    waits: WaitedNodes | None = None  # for missing nodes; null where none is missing
    standby: StandbyStatus | None = None  # null without standbys
    saved: StoredCheckpoint | None = None  # the newest checkpoint that a rank of this node saved in the attempt; null: none in this run
    verified: StoredCheckpoint | None = None  # the newest that was verified, likewise
    mirrored: StoredCheckpoint | None = None  # the newest that a mirror holds, likewise
    saves: str | None = None  # how many of this run's saves each mirror holds, in words; null without a mirror or a save
    waiting_uploads: int = 0  # checkpoints that wait to be sent to a mirror
    gpus: tuple[GpuStatus, ...] = ()  # those that the job may use
    health: tuple[Finding, ...] = ()  # what the last examination of this node found
    examined: float | None = None  # when that was
    last_incident: IncidentStatus | None = None  # in the words of the card; null: there was none
    last_decision: str | None = None  # the last decision, and why; null before the first
    exit_code: int | None = None  # of the run that ended; null while there is none, and for a supervisor that died
    # which tensors of the newest checkpoint turned to NaN or Inf in this run, and the last finite step; null where none did
    numbers: str | None = None
    left_out: int = 0  # how many batches all ranks of the attempt left out (`worker.agree`)
    step_shares: StepShares | None = None  # where the time of a step is spent on this node in the last minutes
    # what a mirror gave before the first attempt, and which newer copies were passed over, and why; null: none was asked
    restored: str | None = None
    alerts: str | None = None  # in words: per sink refused, waiting and dropped alerts; null where all were delivered
    alert_list: tuple[ListedAlert, ...] | UnsetType = UNSET  # with `-v` only: the job's alerts on this node, the oldest first
    alerts_dropped: dict[str, int] | UnsetType = UNSET  # with `-v` only: how many each sink lost because too many waited

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
