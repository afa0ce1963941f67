"""A job of months with the default settings: it is to come to its end, and no person is to be needed.

The core decides, of a job on 128 nodes with 1,024 GPUs that needs 90 days of training. It fails as often as RSC-1's jobs of that size did,
by the causes that Llama 3 counted, and is preempted once a day. To these come bad days: links that flap, a file server that does not answer
at a start, a host whose memory others use up, kills in a row. The scheduler starts it again after 75, and on other nodes after 69. After
any other code a person would have to come: `persons` counts that, and `ends` has every end. One event stands for each save, so that a day
costs milliseconds. `python -m tests.simulation.fleet.months 1000` prints how often a person was needed.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.machine import decide, initial
from supervisor.core.model import Cause, CheckpointRef, Evidence, Gpu, Phase, Policy, RankExit, RankInfo
from supervisor.core.state import Attempt, JobState, NodeReport, Stage
from supervisor.errors import ExitCode
from supervisor.journal.writer import difference
from supervisor.view.job_facts import state_of
from tests.simulation import faults
from tests.simulation.faults import KINDS as SHOWN
from tests.simulation.faults import Strike
from tests.simulation.fleet import rates
from tests.simulation.fleet.rates import DAY_S, GPUS_OF_A_NODE, Symptom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.core.events import Event

GPUS, DAYS = 1024, 90.0
STEP_S, SAVE_EVERY_S = 6.0, 1800.0
START_S = 130.0
#: torch's default, after which NCCL's watchdog ends ranks that hang.
WATCHDOG_S = 600.0
MEMBERS = ("a/1", "b/1")
PROGRAM = (("command", "c"), ("script", "s"), ("packages", "p"))
RANKS = tuple(RankInfo(rank, rank, 100 + rank, 7) for rank in range(GPUS_OF_A_NODE))
#: More starts than any of these jobs needs: a job that never ends is a defect.
MOST_STARTS = 5000
#: What else comes upon a job, each once in so many days: kind, and how often on average.
BAD_DAYS = (("flapping link", 10.0), ("memory of the host", 15.0), ("kills", 15.0))
#: How a link that flaps shows.
FLAPS = ((Cause.NCCL_TIMEOUT, Symptom.HANG), (Cause.NCCL_NETWORK, Symptom.CRASH), (Cause.GLOO_ERROR, Symptom.CRASH))
#: The share of starts of a job that trained before at which the file server does not answer, and for how long.
HICCUPS, HICCUP_S = 0.04, (30.0, 1500.0)


class Blow(NamedTuple):
    """What strikes the job: when, as which cause, and how it shows. broken: the node stays broken until the job leaves it.

    kind: which of the cause's texts. bad_day: it comes beside the published rate.
    """

    t: float
    cause: Cause
    symptom: Symptom
    broken: bool = False
    kind: int = 0
    bad_day: bool = False


def drawn(rng: Random, days: float) -> list[Blow]:
    """Return what strikes within so many days, in order. Half of the jobs run on nodes that do not break for good: theirs is one run."""
    blows, t = [], 0.0
    mean_s = rates.figure("mean time to failure", GPUS).value * 3600
    spares = rng.random() < 0.5
    kinds = [kind for kind in rates.KINDS if not (spares and kind.cause.value.startswith("gpu"))]
    weights = [rates.figure(kind.figure).value for kind in kinds]
    while (t := t + rng.expovariate(1 / mean_s)) < days * DAY_S:
        (kind,) = rng.choices(kinds, weights)
        blows.append(Blow(t, kind.cause, kind.symptom, rng.random() < kind.broken, rng.randrange(1000)))
    for name, every_days in BAD_DAYS:
        t = DAY_S  # a job that fails so before its first checkpoint is one that cannot work
        while (t := t + rng.expovariate(1 / (every_days * DAY_S))) < days * DAY_S:
            bad_day = _bad_day(rng, name, t)
            blows += bad_day
            t = bad_day[-1].t + DAY_S  # two of a kind are not one day
    return sorted(blows)


def _bad_day(rng: Random, name: str, t: float) -> list[Blow]:
    blows = []
    if name == "flapping link":
        cause, symptom = rng.choice(FLAPS)
        for _ in range(rng.randrange(2, 7)):
            blows.append(Blow(t, cause, symptom, bad_day=True))
            t += rng.expovariate(1 / 600.0) + WATCHDOG_S * (symptom is Symptom.HANG)
    else:
        cause = Cause.HOST_OOM if name == "memory of the host" else Cause.KILLED_UNKNOWN
        for _ in range(rng.randrange(2, 4)):
            blows.append(Blow(t, cause, Symptom.CRASH, bad_day=True))
            t += rng.uniform(200.0, 2400.0)
    return blows


@dataclass
class Months:
    """One job, from its first start to its end."""

    seed: int
    days: float = DAYS
    ends: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    events: int = 0
    most_kept: int = 0  # failures that the state held, at most
    t: float = 0.0
    step: int = 0  # greatest that was made
    saved: int = 0
    slot: int = 0
    state: JobState = field(default_factory=initial)
    finish: act.Finish | None = None
    chosen: int = 0
    begun: bool = False
    gone: bool = False  # the other node, at the failure that is being judged

    def __post_init__(self) -> None:
        """Draw its fate."""
        self.rng = Random(self.seed)  # noqa: S311 (a world, no secret)
        self.policy = Policy(checkpoints_declared=True, nodes=GPUS // GPUS_OF_A_NODE)
        self.total = int(self.days * DAY_S / STEP_S)
        self.blows = drawn(self.rng, 3 * self.days)
        self.next = 0
        self.preempted_t = self.rng.uniform(0.0, DAY_S)
        self.broken: Blow | None = None
        self.hiccup_until = 0.0
        self.waits: list[tuple[float, str, int]] = []

    @property
    def persons(self) -> int:
        """How often a person had to come."""
        return sum(count for code, count in self.ends.items() if code not in {ExitCode.DONE, ExitCode.REQUEUE, ExitCode.BAD_NODE})

    def play(self) -> Months:
        """Play it to its end."""
        starts = 0
        self._start(continues=False)
        while True:
            starts += 1
            assert starts < MOST_STARTS, f"seed {self.seed}: no end"
            while self.finish is None:
                self._attempt()
            code = self.finish.exit_code
            self.ends[code] += 1
            if code == ExitCode.DONE:
                return self
            self.reasons[f"{code}: {self.finish.reason}"] += code not in {ExitCode.REQUEUE, ExitCode.BAD_NODE}
            self.t += self.rng.uniform(60.0, 3600.0)
            self.slot, self.broken = self.slot + 1, None  # the scheduler takes other nodes
            self._start(continues=code == ExitCode.REQUEUE)

    # the shell

    def _start(self, *, continues: bool, died_t: float | None = None) -> None:
        recorded = msgspec.json.decode(msgspec.json.encode(difference(self.state, initial())))
        self.state = state_of(recorded)
        self.finish, self.waits = None, []
        self._feed(events.GpusListed(self.t, self._gpus()))
        self._feed(events.SupervisorStarted(self.t, "run", self.policy, continues, "command", died_t, unfinished_before=self.saved > 0))

    def _gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(index, f"GPU-{self.slot}-{index}") for index in range(GPUS_OF_A_NODE))

    def _feed(self, event: Event) -> None:
        """Give the core an event, and answer what it asks for."""
        self.events += 1
        self.state, actions = decide(self.state, event)
        for action in actions:
            number = self.state.attempt.number
            match action:
                case act.GatherNodes():
                    self._feed(events.ProgramIdentified(self.t, number, PROGRAM))
                    self._feed(events.NodesGathered(self.t, number, 0, 2, number, MEMBERS, GPUS))
                case act.SelectCheckpoint():
                    ref = CheckpointRef(f"step-{self.saved}.pt", self.saved, "structure") if self.saved else None
                    self._feed(
                        events.CheckpointSelected(
                            self.t,
                            number,
                            ref,
                            int(self.saved > 0),
                            agreement=number,
                            overrides=action.overrides,
                            rejected=action.rejected,
                            has_saved=self.saved > 0,
                        )
                    )
                case act.BeginAttempt():
                    self.begun, self.chosen = True, action.resume.step or 0 if action.resume else 0
                case act.ReportAttempt():
                    self._report(number)
                case act.ProposeDecision():
                    self._feed(events.DecisionMade(self.t, number, action.kind, action.decision))
                case act.CompleteAttempt():
                    self._feed(events.DecisionMade(self.t, number, "success", None))
                case act.SetTimer(name="backoff"):
                    self.waits.append((action.delay_s, action.name, action.token))
                case act.Finish():
                    self.finish = action
                case _:
                    pass

    def _report(self, number: int) -> None:
        kind = self.state.attempt.ended_as or "failure"
        own = NodeReport(MEMBERS[0], self.state.attempt, self.state.gpus)
        if self.gone:
            self._feed(events.ReportsGathered(self.t, number, (own,), ((MEMBERS[1], "lost: silent for 60 s"),), kind=kind, node=MEMBERS[1]))
            return
        other = NodeReport(MEMBERS[1], Attempt(number, ended=True, evidence=()))
        self._feed(events.ReportsGathered(self.t, number, (own, other), kind=kind, node=MEMBERS[0]))

    # the world

    def _blow(self, begins_t: float) -> Blow:
        """Return what ends an attempt that begins now."""
        while self.blows[self.next].t <= begins_t:
            self.next += 1  # it struck while nothing ran
        fresh = self.blows[self.next]
        if fresh.cause is Cause.USER_CODE:  # a bug of the training is met in training
            fresh = self.blows[self.next] = fresh._replace(t=max(fresh.t, begins_t + START_S + 60.0))
        if self.broken is not None:
            again_t = begins_t + START_S + self.rng.expovariate(1 / 600.0)
            if again_t < fresh.t:
                return self.broken._replace(t=again_t)
        return fresh

    def _attempt(self) -> None:
        """Let the next attempt live."""
        if self.state.stage is Stage.WAITING:
            delay_s, name, token = self.waits.pop()
            if self.preempted_t <= self.t + delay_s:
                self._preempted()
                return
            self.t += delay_s
            self._feed(events.TimerFired(self.t, name, token))
            return
        assert self.begun, self.state.stage
        self.begun = False
        number, restarted = self.state.attempt.number, self.state.run.trained_in > 0
        self.restarts += self.state.run.reason == "failure"
        self.most_kept = max(self.most_kept, len(self.state.run.failures))
        self._feed(events.AttemptStarted(self.t, number, RANKS, GPUS))
        if self.t >= self.hiccup_until and restarted and self.rng.random() < HICCUPS:
            self.hiccup_until = self.t + self.rng.uniform(*HICCUP_S)
        if self.t < self.hiccup_until and restarted:
            self.t += 20.0
            self._fails(Blow(self.t, self.rng.choice((Cause.DEPENDENCY, Cause.DATA_ERROR)), Symptom.CRASH), -1)
            return
        self._trains(number, self._blow(self.t))

    def _trains(self, number: int, blow: Blow) -> None:
        """Train from the chosen checkpoint until something ends it."""
        base, loaded = self.chosen, f"step-{self.chosen}.pt" if self.chosen else None
        ready_t = self.t + START_S
        end = min(blow.t, self.preempted_t, ready_t + (self.total - base) * STEP_S)
        if end > ready_t:
            self.t = ready_t + STEP_S
            self._feed(events.ProgressObserved(self.t, number, base + 1, 1, Phase.TRAIN, loaded, first_step=base))
        due = ready_t + SAVE_EVERY_S
        while due < end:
            self.t, step = due, base + int((due - ready_t) / STEP_S)
            self.step = max(self.step, step)
            self._feed(events.ProgressObserved(due, number, step, step - base, Phase.TRAIN, loaded))
            self.saved = step
            self._feed(events.CheckpointVerified(due, number, CheckpointRef(f"step-{step}.pt", step, "structure"), made_in=number))
            due += SAVE_EVERY_S
        self.t = max(end, self.t)
        step = base + max(int((end - ready_t) / STEP_S), 0)
        self.step = max(self.step, step)
        if step > base + 1:
            self._feed(events.ProgressObserved(self.t, number, step, step - base, Phase.TRAIN, loaded))
        if step >= self.total:
            self._feed(events.AttemptEnded(self.t, number, "succeeded"))
        elif end == self.preempted_t:
            self._preempted()
        else:
            if self.next < len(self.blows) and blow is self.blows[self.next]:
                self.next += 1
            self.broken = blow if blow.broken and blow.symptom is not Symptom.LOST else self.broken
            self._fails(blow, step if step > base else -1)

    def _preempted(self) -> None:
        """The scheduler announces the end, and the ranks save and end."""
        self.preempted_t = self.t + DAY_S * self.rng.uniform(0.9, 1.1)
        self._feed(events.StopRequested(self.t, 10, 60.0))
        if self.finish is None:
            self.t += 5.0
            self._feed(events.AttemptEnded(self.t, self.state.attempt.number, "stopped"))

    def _fails(self, blow: Blow, step: int) -> None:
        number, lost = self.state.attempt.number, blow.symptom is Symptom.LOST
        self.gone = lost
        if blow.symptom is Symptom.HANG:
            self.t += WATCHDOG_S
        cause = Cause.GLOO_ERROR if lost else blow.cause
        gpu = f"GPU-{self.slot}-1" if cause.value.startswith("gpu") else ""
        phase = Phase.TRAIN if step >= 0 else Phase.IMPORT if cause in {Cause.DEPENDENCY, Cause.DATA_ERROR} else Phase.INIT
        kind = 0 if gpu else blow.kind % len(SHOWN[cause])
        strike = Strike(cause, step, phase, 1, kind, facts=(("gpu_uuid", gpu),) if gpu else (), gpu=gpu)
        death = faults.death(strike, int(self.t * 1e9))
        assert death is not None
        steps = max(step - self.chosen, 0)
        evidence = faults.evidence(strike, self.t, faults.heartbeat(strike, step if step >= 0 else None, steps))
        if cause is Cause.USER_CODE:  # a bug that a restart cures is another one each time
            place = "".join(
                chr(ord("a") + int(digit)) for digit in str(blow.kind)
            )  # equal failures are told apart by names, not by numbers
            trace = f'File "train.py", line {20 + blow.kind}, in {place}'
            evidence = (*(fact for fact in evidence if fact.name != "traceback"), Evidence("error_file", "traceback", trace, 1, self.t))
        self._feed(events.RankExited(self.t, number, death))
        for peer in RANKS[2:4]:
            self._feed(events.RankExited(self.t, number, RankExit(peer.rank, peer.pid, int((self.t + 1) * 1e9), signal=15)))
        self.t += 3.0
        self._feed(events.AttemptEnded(self.t, number, "failed"))
        incident = self.state.incidents
        self._feed(events.EvidenceCollected(self.t, number, incident, evidence, self.rng.random()))
        self.gone = False


def report(played: Sequence[Months]) -> str:
    """Return how often a person was needed in these jobs, and what else came of them."""
    ends = sum((job.ends for job in played), Counter[int]())
    why = sum((job.reasons for job in played), Counter[str]())
    restarts = sum(job.restarts for job in played) / len(played)
    lines = [
        f"{len(played)} jobs of {DAYS:.0f} days on {GPUS:,} GPUs: a person was needed {sum(job.persons for job in played)} times",
        f"restarts in place: {restarts:.0f} a job; ends: {', '.join(f'{code}: {count}' for code, count in sorted(ends.items()))}",
        *(f"  {count} times {text}" for text, count in why.most_common(10) if count),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report([Months(seed).play() for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20)]))  # noqa: T201 (a command)
