"""The core over weeks of a large job: tests/simulation's engine, with a world whose faults are the published ones.

The supervisor that is played is the one that decides, as in production: that of the node on which the fault struck. All of them count the
same failures, so one state stands for all, and the node's GPUs are listed before its failure is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from supervisor.core import events
from supervisor.core.machine import initial
from supervisor.core.model import CheckpointRef, Gpu, Phase, Policy, RankInfo
from supervisor.core.values import replace
from supervisor.errors import ExitCode
from supervisor.journal.writer import difference
from supervisor.view.job_facts import state_of
from tests.simulation import faults
from tests.simulation.engine import NEVER, Play
from tests.simulation.faults import KINDS, Strike
from tests.simulation.fleet.rates import DAY_S, GPUS_OF_A_NODE, Symptom
from tests.simulation.fleet.site import Account
from tests.simulation.invariants import Watch, demand
from tests.simulation.world import ABSOLUTE, Job, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from supervisor.core import actions as act
    from supervisor.core.events import Event
    from tests.simulation.fleet.machines import Machines
    from tests.simulation.fleet.rates import Fault
    from tests.simulation.world import Trial

SAMPLE_S = 60.0
#: More than any fleet needs: a loop of the core that never ends is a defect.
MOST_EVENTS = 3_000_000
#: No run of the fleet comes to its end.
ENDLESS = 10**12


class FleetWorld(World):
    """The truth of a large job: the files are World's, what strikes comes from the machines."""

    def __init__(self, job: Job, rng: Random, machines: Machines) -> None:
        super().__init__(job, rng)
        self.machines = machines
        self.fault: Fault | None = None
        self.slot = 0
        self.ready_t = 0.0

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs of the node that decides."""
        return tuple(Gpu(index, uuid, "", self.quarantined.get(uuid, "")) for index, uuid in enumerate(self.machines.gpus(self.slot)))

    def strike(self, trial: Trial) -> tuple[int, Strike] | None:
        """Return what ends this attempt. Its step is the last one that was made."""
        fault = self.fault = self.machines.strikes(self.t)
        self.ready_t = self.t + self.machines.course.starts_s
        if fault is None:
            return None
        trained_s = fault.t - self.ready_t
        early = trained_s <= 0
        at = -1 if early else trial.base + self.machines.course.reached(trained_s).steps
        cause, rank = fault.kind.cause, fault.variant
        gpu = self.machines.gpus(fault.slot)[rank]
        kinds = KINDS[cause]
        facts = (("gpu_uuid", gpu),) if cause.value.startswith("gpu") else ()
        phase = Phase.INIT if early else Phase.TRAIN
        number = 0 if cause.value.startswith("gpu") else fault.variant % len(kinds)
        return 0, Strike(cause, at, phase, rank, number, facts=facts, gpu=gpu if facts else "")

    def lived(self, trial: Trial, t: float, strike: Strike | None) -> Iterator[tuple[float, Event]]:
        """Return what is seen of an attempt up to its last event, which is at the time of the strike."""
        number, course = trial.number, self.machines.course
        end = self.fault.t if self.fault is not None else NEVER
        ranks = tuple(RankInfo(r, r, 100 + r, 7) for r in range(trial.ranks))
        yield min(t + 1.0, end), events.AttemptStarted(t + 1.0, number, ranks, trial.world)
        if strike is not None and strike.at < 0:
            yield end, events.ProgressObserved(end, number, None, 0, Phase.INIT)
            return
        yield self.ready_t, events.ProgressObserved(self.ready_t, number, None, 0, Phase.LOAD)
        yield from self._trains(trial, self.ready_t, end, course.every)

    def _trains(self, trial: Trial, t: float, end: float, every: int) -> Iterator[tuple[float, Event]]:
        site, number, step, loaded = self.machines.course.site, trial.number, trial.base, trial.path or None
        stride, since = max(int(SAMPLE_S / site.step_s), 1), 0
        while True:
            steps = min(stride, every - since)
            if t + steps * site.step_s > end:
                step += int((end - t) / site.step_s)
                self.high = max(self.high, step)
                yield end, events.ProgressObserved(end, number, step, step - trial.base, Phase.TRAIN, loaded)
                return
            t, step, since = t + steps * site.step_s, step + steps, since + steps
            self.high = max(self.high, step)
            yield t, events.ProgressObserved(t, number, step, step - trial.base, Phase.TRAIN, loaded)
            if since == every:
                since, path = 0, self.save(step, nan=False)
                if t + site.save_s > end:
                    self.tear()
                    yield end, events.ProgressObserved(end, number, step, step - trial.base, Phase.CHECKPOINT, loaded)
                    return
                t += site.save_s
                yield t, events.CheckpointVerified(t, number, CheckpointRef(path, step, "structure"), made_in=number)


class FleetPlay(Play):
    """One job of many nodes, for so many days."""

    def __init__(self, machines: Machines, policy: Policy, rng: Random) -> None:
        ranks = min(machines.course.gpus, GPUS_OF_A_NODE)
        listed = tuple(Gpu(index, uuid) for index, uuid in enumerate(machines.gpus(0)))
        elsewhere, every = machines.course.gpus - ranks, machines.course.every
        job = Job(
            "fleet", policy, ranks, elsewhere, listed, 1, 1, 0, ENDLESS, every, 1, SAMPLE_S, ABSOLUTE, (), untidy=0.0, requeues=MOST_EVENTS
        )
        super().__init__(job, rng)
        self.machines, self.site = machines, machines.course.site
        self.fleet = self.world = FleetWorld(job, rng, machines)
        self.watch = Watch(job, self.world)
        self.account = Account()
        self.begun_t = self.stood_from = 0.0
        self.high = 0  # as the attempt began
        self.ends: list[tuple[float, int, str]] = []  # of the supervisor: when, its exit code, and why
        self.visit_t: float | None = None  # when a person comes who was called by an alert

    def play(self, days: float) -> Account:
        """Play the days; return where the time went."""
        end = days * DAY_S
        self.start()
        self.go_on(end, MOST_EVENTS)
        if self.trial is not None and not self.ended:
            self._book(end)
        self.account.standing_s += end - self.account.total_s
        return self.account

    def begin(self, action: act.BeginAttempt) -> None:
        """Let the attempt live."""
        self.begun_t, self.high = self.t, self.world.high
        super().begin(action)

    def _book(self, until_t: float) -> None:
        """Note where the time of the attempt went, which trained until then."""
        account, course = self.account, self.machines.course
        assert self.trial is not None
        trained_s = max(until_t - self.fleet.ready_t, 0.0)
        reached = course.reached(trained_s)
        new = max(self.trial.base + reached.steps - self.high, 0)
        account.starting_s += until_t - self.begun_t - trained_s
        account.useful_s += new * self.site.step_s
        account.saving_s += reached.saves * self.site.save_s
        account.redone_s += trained_s - new * self.site.step_s - reached.saves * self.site.save_s
        if reached.steps:
            account.longest_s = max(account.longest_s, self.fleet.ready_t - self.stood_from)
            self.stood_from = until_t

    def _ends_by_itself(self) -> None:
        """A fault strikes, and shows: at once, when NCCL's watchdog ends the ranks, or by a node that is gone."""
        fault, strike = self.fleet.fault, self.strike
        assert fault is not None
        assert strike is not None
        self._book(self.t)
        self.account.interruptions += 1
        self.struck = True
        lost = fault.kind.symptom is Symptom.LOST
        if lost:
            self.machines.replace(fault.slot)
        if self._visited() or lost:
            self._requeued(self.site.requeue_s + (self.site.lost_s if lost else 0.0), self.t)
            return
        self.fleet.slot = fault.slot
        self.feed(events.GpusListed(self.t, self.world.gpus()))
        after_s = self.site.watchdog_s if fault.kind.symptom is Symptom.HANG else 0.1
        end = faults.death(strike, int((self.t + after_s) * 1e9))
        assert end is not None
        self.later(after_s, events.RankExited(self.t + after_s, self.watch.attempt, end))

    def alert(self, action: act.Alert) -> None:
        """A person who hears that a failure recurs comes, and has the job's next start made on other nodes than the broken ones."""
        if action.kind == "recurring_failure" and self.visit_t is None:
            self.visit_t = self.t + self.site.person_s

    def _visited(self) -> bool:
        """Whether a person who was called is there."""
        due = self.visit_t is not None and self.t >= self.visit_t
        if due:
            self.visit_t = None
            self.account.persons += 1
            self.machines.repair()
        return due

    def finish(self, action: act.Finish) -> None:
        """The supervisor ends: the scheduler starts the job again after 75, and a person after any other code."""
        self._still()
        self.ends.append((self.t, action.exit_code, action.reason))
        if action.exit_code == ExitCode.REQUEUE:
            self._requeued(self.site.requeue_s, None)
            return
        self.account.persons += 1
        self.machines.repair()
        self.visit_t = None
        self.state, self.watch = initial(), Watch(self.job, self.world)
        back_t = self.t + self.site.person_s
        self._started(self.site.person_s, events.SupervisorStarted(back_t, "run", self.job.policy, command_digest="command"))

    def _requeued(self, after_s: float, left_t: float | None) -> None:
        """Let the next supervisor read the state from the journal, and continue with the run."""
        recorded = msgspec.json.decode(msgspec.json.encode(difference(self.state, initial())))
        demand(state_of(recorded) == self.state, "the state that a journal gives back is another one")
        started = events.SupervisorStarted(
            self.t + after_s, "run", self.job.policy, continues=True, command_digest="command", last_alive_t=left_t
        )
        self._started(after_s, started)

    def _started(self, after_s: float, started: events.SupervisorStarted) -> None:
        self.queue.clear()
        self._still()
        self.watch.alive, self.ended = False, True
        self.world.quarantined.clear()
        self.later(after_s, events.GpusListed(self.t + after_s, self.world.gpus()))
        self.later(after_s, started)


def policy_of(machines: Machines, **settings: object) -> Policy:
    """Return the default settings of a job that declares its checkpoints, but for those that are given."""
    return replace(Policy(checkpoints_declared=True, nodes=machines.course.nodes), **settings)  # type: ignore[arg-type] # (fields of Policy, by name)
