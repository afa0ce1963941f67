"""The physics of a job: what an attempt can hold, reach and save, and what ends it.

A World owns the truth of one job: its files, its GPUs, how far it came. The core learns it only by events. `trial` makes the Trial of an
attempt, and `lived` yields the events of its life.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from supervisor.core import events
from supervisor.core.model import CheckpointRef, Finding, Gpu, Knob, Phase, Policy, RankInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.core.actions import BeginAttempt
    from supervisor.core.events import Event
    from tests.simulation.faults import Strike

#: How the steps of the job are seen: as absolute ones, counted from the start of the attempt, or not at all.
ABSOLUTE, COUNTED, BLIND = "absolute", "counted", "blind"
MOST_FILES = 6
#: Nobody changes the program while the job runs.
PROGRAM = (("script", "as written"),)


@dataclass(slots=True)
class File:
    """A checkpoint. torn: it cannot be verified. nan: its parameters are no numbers. breaks: reading it ends the process."""

    step: int
    torn: bool = False
    nan: bool = False
    breaks: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt as it truly runs: what it was given, and what that makes of the job.

    base: the step that it begins at. micro, accum, workers: of one rank. overrides: all of them.
    """

    number: int
    base: int
    path: str
    ranks: int
    world: int
    micro: int
    accum: int
    workers: int
    gpus: tuple[str, ...]
    overrides: dict[str, str]
    traced: bool = False


class Ailment(Protocol):
    """What may go wrong with a job. `strike` says how it ends this trial, None where it does not."""

    def strike(self, trial: Trial, world: World, met: int) -> Strike | None:
        """Return the strike; `met`: how often this ailment ended a trial before."""


@runtime_checkable
class Spoils(Protocol):
    """An ailment that gets into what is saved."""

    def spoils(self, trial: Trial, step: int) -> bool:
        """Return whether what this trial saves at a step is spoiled."""


@dataclass(frozen=True, slots=True)
class Happening:
    """What comes from outside, `after_s` after attempt `attempt` began: a signal, a peer, a crash of the supervisor (engine.py)."""

    attempt: int
    after_s: float
    text: str
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job, and the fate that a seed drew for it. Steps are optimizer steps, `sample_s` is between two readings of the heartbeats."""

    theme: str
    policy: Policy
    ranks: int
    elsewhere: int
    gpus: tuple[Gpu, ...]
    micro: int
    accum: int
    workers: int
    total: int
    save_every: int
    stride: int
    sample_s: float
    sight: str
    ailments: tuple[Ailment, ...]
    program: str = ""
    batchnorm: bool = False
    overwrites: bool = False
    saves_on_request: bool = False
    initial: tuple[tuple[str, File], ...] = ()
    happenings: tuple[Happening, ...] = ()
    requeues: int = 2
    untidy: float = 0.1  # how often something comes late, twice, in another order or not at all
    names_older: bool = True

    @property
    def batch(self) -> int:
        """The global batch that the user asked for."""
        return self.replicas(self.ranks + self.elsewhere) * self.micro * self.accum

    def replicas(self, ranks: int) -> int:
        """Return how many copies of the model so many ranks hold: the batch is divided among those."""
        return ranks // self.policy.replica_size


@dataclass(slots=True)
class World:
    """One job's truth."""

    job: Job
    rng: Random
    files: dict[str, File] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    high: int = 0  # greatest step that was truly made
    met: dict[int, int] = field(default_factory=dict)
    t: float = 0.0
    done: bool = False
    vanished: bool = False
    repaired: bool = False  # its bad GPUs fail no more
    ill: dict[str, Finding] = field(default_factory=dict)  # by subject

    def sicken(self, how: str, number: int) -> Finding:
        """Let a GPU need a reset, count errors, or the host want for something. Returns what a check says of it."""
        gpus = self.job.gpus
        gpu = gpus[number % len(gpus)] if gpus else None
        if gpu is None or how == "host":
            finding = Finding("host_shm", "host", "degraded", "little shared memory is left")
        elif how == "reset":
            finding = Finding("gpu_recovery", f"gpu:{gpu.uuid}", "failed", f"GPU {gpu.index} must be reset", "nvidia-smi", blocks=True)
        else:
            finding = Finding("gpu_ecc", f"gpu:{gpu.uuid}", "failed", f"GPU {gpu.index} counts errors")
        self.ill[finding.subject] = finding
        return finding

    def findings(self) -> tuple[Finding, ...]:
        """What a look at the node finds."""
        return tuple(self.ill.values())

    def gpus(self) -> tuple[Gpu, ...]:
        """What the node lists, with what its ledger says."""
        return tuple(Gpu(g.index, g.uuid, g.pci, self.quarantined.get(g.uuid, "")) for g in self.job.gpus)

    def trial(self, begun: BeginAttempt) -> Trial:
        """Return what an attempt makes of the job."""
        job, set_now = self.job, dict(begun.overrides)
        path = begun.resume.path if begun.resume else ""
        file = self.files.get(path)
        ranks = begun.nproc or job.ranks
        world = ranks + job.elsewhere
        visible = begun.gpus or tuple(g.uuid for g in job.gpus)
        return Trial(
            begun.attempt,
            file.step if file else 0,
            path,
            ranks,
            world,
            *self._batch(set_now, job.replicas(world)),
            int(set_now.get("num_workers", job.workers)),
            visible[:ranks],
            set_now,
            begun.trace,
        )

    def _batch(self, set_now: dict[str, str], world: int) -> tuple[int, int]:
        """Return micro-batch and accumulation of a rank, as the program makes them of what it is given. world: its replicas."""
        job = self.job
        knobs = {knob.name: knob for knob in job.policy.knobs}
        accum_knob = knobs.get("grad_accum", Knob("grad_accum", "", ""))
        per = job.replicas(job.ranks + job.elsewhere) if accum_knob.counts == "world" else 1
        accum = int(set_now.get("grad_accum", job.accum * per))
        if accum_knob.counts == "world":
            accum //= world
        counted = knobs.get("batch_size", Knob("batch_size", "", "")).counts
        if counted == "global":
            return int(set_now.get("batch_size", job.batch)) // max(world * accum, 1), accum
        micro = int(set_now.get("batch_size", job.micro))
        if accum_knob.counts == "derived":
            accum = job.batch // (world * micro)
        return micro, accum

    def strike(self, trial: Trial) -> tuple[int, Strike] | None:
        """Return what ends this trial first, and the number of the ailment; None where it comes to its end."""
        first: tuple[int, Strike] | None = None
        for number, ailment in enumerate(self.job.ailments):
            strike = ailment.strike(trial, self, self.met.get(number, 0))
            if strike is not None and (first is None or strike.at < first[1].at):
                first = (number, strike)
        if first is not None and first[1].at >= self.job.total:
            return None
        return first

    def selected(self, t: float, attempt: int, avoid: tuple[str, ...]) -> events.CheckpointSelected:
        """Return what a look for checkpoints finds: the newest sound one that is not to be avoided."""
        here = {} if self.vanished else self.files
        good = [(path, file) for path, file in here.items() if not file.torn and path not in avoid]
        fenced = tuple((path, "central directory missing") for path, file in here.items() if file.torn and path not in avoid)
        refused = tuple((path, "rejected: of this run") for path in here if path in avoid)
        chosen = CheckpointRef(good[-1][0], good[-1][1].step, "structure") if good else None
        older = tuple(CheckpointRef(path, file.step, "") for path, file in good[:-1]) if self.job.names_older else ()
        return events.CheckpointSelected(t, attempt, chosen, len(here), fenced, refused, older)

    def save(self, step: int, *, nan: bool) -> str:
        """Write a checkpoint, and forget the oldest; the newest stand last."""
        path = "last.pt" if self.job.overwrites else f"step-{step}.pt"
        self.files.pop(path, None)
        self.files[path] = File(step, nan=nan)
        while len(self.files) > MOST_FILES:
            del self.files[next(iter(self.files))]
        return path

    def tear(self) -> None:
        """Leave the newest checkpoint half written, as a kill within a save does."""
        if len(self.files) > 1:
            self.files[next(reversed(self.files))].torn = True

    def lived(self, trial: Trial, t: float, strike: Strike | None) -> Iterator[tuple[float, Event]]:
        """Return what is seen of a trial, one by one, up to its end or the strike, which comes after the last event."""
        timeline: list[tuple[float, Event]] = []
        job, rng, number = self.job, self.rng, trial.number
        t += 2.0 + 3.0 * rng.random()
        ranks = tuple(RankInfo(r, r, 100 + r, 7) for r in range(trial.ranks))
        if strike is not None and strike.at < 0 and strike.phase is Phase.UNKNOWN:
            return iter(())  # not even a rank was there
        timeline.append((t, events.ProgramIdentified(t, number, PROGRAM)))
        timeline.append((t, events.AttemptStarted(t, number, ranks, trial.world)))
        seen = job.sight != BLIND
        if not seen:
            t += 30.0
            timeline.append((t, events.StartCeilingPassed(t, number, tuple(range(trial.ranks)))))
        if seen and trial.path:
            t += 1.0
            timeline.append((t, events.ProgressObserved(t, number, None, 0, Phase.LOAD)))
        if strike is not None and strike.at < 0:
            return iter(timeline)
        if job.program and seen:
            t += 1.0
            timeline.append((t, events.ProgramSeen(t, number, (job.program,), self._shown(trial), job.batchnorm)))
        if job.saves_on_request and seen:
            timeline.append((t, events.SaveOnRequestSeen(t, number)))
        return chain(timeline, self._trained(trial, t, strike))

    def _shown(self, trial: Trial) -> tuple[tuple[str, str], ...]:
        counts = {knob.name: knob.counts for knob in self.job.policy.knobs}
        if "batch_size" not in counts or counts["batch_size"] == "global" or counts.get("grad_accum", "rank") != "rank":
            return ()
        return (("batch_size", str(trial.micro)), ("grad_accum", str(trial.accum)))

    def _trained(self, trial: Trial, t: float, strike: Strike | None) -> Iterator[tuple[float, Event]]:
        job, number, base, stride, every = self.job, trial.number, trial.base, self.job.stride, self.job.save_every
        end = job.total if strike is None else strike.at
        absolute, seen = job.sight == ABSOLUTE, job.sight != BLIND
        source = self.files.get(trial.path)
        nan = source is not None and source.nan
        train, sampled = Phase.TRAIN, job.sample_s
        loaded = trial.path or None
        observed = events.ProgressObserved
        step = base
        due = (base // every + 1) * every
        while step < end:
            step = min(step + stride, end, due)
            t += sampled
            self.high = max(self.high, step)
            if seen:
                yield t, observed(t, number, step if absolute else None, step - base, train, loaded)
            if step == due:
                due += every
                bad = nan or any(isinstance(a, Spoils) and a.spoils(trial, step) for a in job.ailments)
                path = self.save(step, nan=bad)
                if job.policy.checkpoints_declared:
                    t += 0.5
                    yield t, events.CheckpointVerified(t, number, CheckpointRef(path, step, "structure"), made_in=number)
