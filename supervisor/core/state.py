"""The state of a supervised job: everything that `decide` remembers, as one frozen value.

The journal stores it beside each decision, and a takeover goes on with the last one (supervisor/journal/state.py). What is not in here
cannot influence a decision. Every field has a default, so that an older journal can be read; a default is neutral and never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisor.core.model import (
    Beginning,
    CheckpointRef,
    Evidence,
    Failure,
    Finding,
    Gpu,
    Plan,
    Policy,
    Progress,
    RankExit,
    RankInfo,
    Unused,
    Verdict,
)


class Stage(StrEnum):
    """Where the job stands. The transitions are drawn at the head of core/decide.py."""

    NEW = "new"
    SELECTING = "selecting"  # the newest verified checkpoint is being looked for
    CHECKING = "checking"  # the checkpoint is chosen; whether this node can be used is awaited
    STARTING = "starting"  # an attempt was asked for; no rank is known yet
    RUNNING = "running"
    FENCED = "fenced"  # a rank failed: ranks are being stopped and evidence is being collected
    FOLLOWING = "following"  # another node's rank failed: its decision is awaited
    ADMITTING = "admitting"  # healthy ranks are being stopped so that waiting nodes can join
    WAITING = "waiting"  # a restart is decided and backs off
    STOPPING = "stopping"  # a person asked for the end
    ENDED = "ended"


#: USR1 and USR2: a scheduler says that the end is coming, and that the job is to go on later.
NOTICES = frozenset({10, 12})


@dataclass(frozen=True, slots=True)
class Stop:
    """A wish to stop: the first signal, how many came, and when the last one counted.

    left_s: what the environment left at from_t, None where nobody knows. told: ranks were told to save. waits: no rank was asked to end
    yet. announced: TERM came after a notice. crashed: a rank failed while they were left alone, and it is looked for why. searches: what
    they saved is looked for on the disk, and searched: it was. first_t: when the first signal came.
    """

    signum: int
    count: int
    t: float
    left_s: float | None = None
    from_t: float = 0.0
    told: bool = False
    waits: bool = False
    announced: bool = False
    crashed: bool = False
    searches: bool = False
    searched: bool = False
    first_t: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """The open incident. It opens at the first bad event and closes at the first progress after it, or with the run."""

    number: int
    opened_t: float
    attempt: int
    verdict: Verdict | None = None
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class SavedSteps:
    """The least and the greatest step of the verified checkpoints that this attempt itself saved, None where none is known."""

    lowest: int | None = None
    highest: int | None = None

    def with_one(self, step: int | None) -> SavedSteps:
        """Return these and one more."""
        known = [one for one in (self.lowest, self.highest, step) if one is not None]
        return SavedSteps(min(known, default=None), max(known, default=None))


@dataclass(frozen=True)
class JobState:
    """One job, as the core sees it. `attempt` is the current attempt, or the last one where none runs; 0 before the first.

    No slots: a copy of its dictionary takes a tenth of the time that setting sixty slots does, and there is one for each event (`changed`).
    """

    run_id: str = ""
    policy: Policy = Policy()
    stage: Stage = Stage.NEW
    token: int = 0  # of the timers of this stage
    # the current attempt
    attempt: int = 0
    reason: str = "start"
    began_t: float = 0.0
    started_t: float | None = None  # when its ranks were there
    over_t: float | None = None  # when it failed or ended
    gathers: bool = False  # its nodes meet, and agree on what to resume from
    scratch: Plan | None = None  # what stands in for its beginning from scratch, where its nodes meet
    ranks: tuple[RankInfo, ...] = ()
    world_size: int = 0
    resume: CheckpointRef | None = None
    loaded: str | None = None
    progress: Progress = Progress()
    steps_seen: int = -1
    first_step: int | None = None  # absolute, at which the training of this attempt began
    began_as: Beginning | None = None  # as it was reported; None: not yet
    saved_steps: SavedSteps = SavedSteps()
    unused: tuple[Unused, ...] = ()  # whole checkpoints that it was not given
    # its end
    deaths: tuple[RankExit, ...] = ()
    ended: bool = False
    evidence: tuple[Evidence, ...] | None = None
    jitter: float = 0.0
    own_signal_awaited: bool = False
    # the run
    high_water: int | None = None
    newest: CheckpointRef | None = None
    ever_loaded: bool = False
    failures: tuple[Failure, ...] = ()  # the newest, as far back as a rule looks
    failed: int = 0  # all of them
    incident: Incident | None = None
    incidents: int = 0
    stop: Stop | None = None
    # what this run's plans changed, and what they go by
    overrides: tuple[tuple[str, str], ...] = ()
    nproc: int | None = None
    poisoned: tuple[str, ...] = ()
    verified: tuple[CheckpointRef, ...] = ()  # the newest, oldest first
    recurrences: tuple[tuple[str, int], ...] = ()  # fingerprint to how often in this run
    programs: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()  # of knobs, as a rank's framework holds them
    disputes: tuple[tuple[str, str, str], ...] = ()  # knob, what a rank trains with, what it was begun with
    batchnorm: bool = False
    gpus: tuple[Gpu, ...] = ()
    saves_when_told: bool = False  # a rank of this attempt asks
    saved: bool = False
    placed: tuple[RankInfo, ...] = ()  # the ranks of this attempt, kept when they are gone
    begun_with: tuple[tuple[str, str], ...] = ()  # the overrides of this attempt
    handed: tuple[str, ...] = ()  # UUIDs that this attempt's ranks see; empty: all that were listed
    traced: bool = False  # the attempts write down what their collectives do
    steps_back: int = 0  # checkpoints that this run's plans poisoned
    suspect_until: int | None = None  # beyond this step what is written anew at a poisoned path is trusted again
    saved_mark: int = 0  # greatest step of a verified checkpoint in this run; stepping back does not lower it
    known_good: int = 0  # checkpoints that the last look found and nothing was wrong with
    checked: tuple[Finding, ...] | None = None  # of the attempt that is to begin; None until it is known
    wanted: int = 0  # ranks that the user's command runs here, 0: unknown
    health: tuple[Finding, ...] = ()  # what is not well, as far as it was told
    evicted: tuple[Finding, ...] = ()  # what ended this attempt, by --evict-on
    told_nodes: tuple[int | None, int | None] | None = None  # first step and step of the checkpoint loaded, as the other nodes were told
    others_began: tuple[tuple[str, int | None, int | None], ...] = ()  # the same of the other nodes, each with its description
    differs: str = ""  # how the nodes began, where they began differently
    mixed_from_t: float | None = None  # what was written since is used by nobody: the nodes trained from different states
    agreed: int = 0  # number of the last agreement of the nodes that this one took part in
    agreements: tuple[tuple[int, int], ...] = ()  # attempt and number, of the newest
    journal_degraded: bool = False
    exit_code: int | None = None

    def awaits_ranks(self, attempt: int) -> bool:
        """Whether ranks may be started as `attempt`. False once a stop was asked for, or the attempt ended in another way."""
        return self.stage is Stage.STARTING and self.attempt == attempt

    @property
    def stops_ranks(self) -> bool:
        """Whether somebody's wish to stop has come to the ranks: they are asked to end, or were."""
        return self.stop is not None and not self.stop.waits


if TYPE_CHECKING:
    from dataclasses import replace as changed
else:

    def changed(state: JobState, **changes: Any) -> JobState:  # noqa: ANN401 (any field's value; checked as dataclasses.replace is)
        """Return the state with these fields changed: dataclasses.replace, but for the time that it takes."""
        made = object.__new__(JobState)
        made.__dict__.update(state.__dict__, **changes)
        return made


__all__ = ["NOTICES", "Incident", "JobState", "SavedSteps", "Stage", "Stop", "changed"]
