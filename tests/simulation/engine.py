"""The shell around the core in a simulated world: a queue on a virtual clock, which answers each action as the executor would.

Answers come late, twice, in another order, for attempts long gone, or not at all. The supervisor dies, and its successor reads the state
from the journal. Nothing here reads a clock, and the same seed gives the same events.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.machine import decide, initial
from supervisor.core.model import (
    Cause,
    Change,
    CheckpointRef,
    Evidence,
    FailureVerdict,
    Hang,
    HangKind,
    JobDecision,
    Phase,
    Plan,
    PlanKind,
    RankExit,
)
from supervisor.core.state import Attempt, NodeReport, Stage
from supervisor.core.values import replace
from supervisor.errors import ExitCode
from supervisor.journal.writer import difference
from supervisor.view.job_facts import state_of
from tests.simulation import faults
from tests.simulation.invariants import Watch, demand
from tests.simulation.world import ABSOLUTE, BLIND, Happening, Job, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from supervisor.core.actions import Action
    from supervisor.core.events import Event
    from supervisor.core.state import JobState
    from tests.simulation.faults import Strike
    from tests.simulation.world import Trial

    Decide = Callable[[JobState, Event], tuple[JobState, tuple[Action, ...]]]

NEVER = float("inf")
MOST_EVENTS = 300_000
OFTEN = 0.6
#: What a report, and a decision, take to the other nodes.
REPORT_S = 0.2
#: Of a job of several nodes; this is the first.
MEMBERS = ("a/1", "b/1")


class Play:
    """One job from its start to its end."""

    def __init__(self, job: Job, rng: Random, judge: Decide = decide) -> None:
        """Put the job into its world; `judge` decides."""
        self.job, self.rng, self.judge = job, rng, judge
        self.world = World(job, rng, {path: type(file)(file.step, file.torn, file.nan, file.breaks) for path, file in job.initial})
        self.watch = Watch(job, self.world)
        self.state: JobState = initial()
        self.journal: list[Event] = []
        self.events = 0
        self.folded = 0
        self.t = 0.0
        self.queue: list[tuple[float, int, Event | Happening | act.SelectCheckpoint]] = []
        self.number = 0
        self.life: Iterator[tuple[float, Event]] | None = None
        self.next: tuple[float, Event] = (NEVER, events.StacksRequested(0.0))
        self.trial: Trial | None = None
        self.strike: Strike | None = None
        self.struck = False
        self.ailing = -1
        self.ended = False  # the ranks of this attempt are gone, or going
        self.requeues = job.requeues
        self.over = False
        self.stuck = False
        self.elsewhere = ""  # what another node decides about this attempt, if one does

    def run(self) -> int:
        """Play to the end; return the last exit code. Raises Broken."""
        self.start()
        self.go_on(NEVER, MOST_EVENTS)
        demand(self.over, f"nothing will happen any more, and the run is {self.state.stage}")
        assert self.watch.finished is not None
        return self.watch.finished

    def start(self) -> None:
        """Let the supervisor take the job over for the first time."""
        self.feed(events.GpusListed(0.0, self.world.gpus()))
        self.feed(events.SupervisorStarted(0.0, "run", self.job.policy, command_digest="command"))

    def go_on(self, until_t: float, most: int) -> None:
        """Play until the end, or until a time. Raises Broken after `most` events."""
        queue = self.queue
        while not self.over and min(self.next[0], queue[0][0] if queue else NEVER) < until_t:
            if self.next[0] <= (queue[0][0] if queue else NEVER):
                self.t, event = self.next
                self.feed(event)
                if self.life is not None:
                    self._goes_on(self.life)
                continue
            self.t, _, item = heapq.heappop(queue)
            self._happens(item)
            demand(self.events < most, f"no end after {most} events")

    def feed(self, event: Event) -> None:
        """Give the core an event, compare what it asks for with the books, and do it."""
        before = self.state
        state, actions = self.judge(before, event)
        self.events += 1
        self.watch.saw(before, event, state, actions)
        if state is not before:
            self.state = state
            self.journal.append(event)
        for action in actions:
            do = DO.get(type(action))
            if do is not None:
                getattr(self, do.__name__)(action)  # by name: a subclass may answer otherwise

    def later(self, after_s: float, event: Event | Happening | act.SelectCheckpoint) -> None:
        """Let something happen."""
        self.number += 1
        heapq.heappush(self.queue, (self.t + after_s, self.number, event))

    def chance(self, share: float) -> bool:
        """Draw whether something is out of order in this job's world."""
        return self.job.untidy > 0 and self.rng.random() < share * self.job.untidy

    def _goes_on(self, life: Iterator[tuple[float, Event]]) -> None:
        """Continue to the next event of the attempt's life; past the last one comes its end."""
        following = next(life, None)
        if following is not None:
            self.next = following
        else:
            self._still()
            self._ends_by_itself()

    def _still(self) -> None:
        self.life, self.next = None, (NEVER, self.next[1])

    def _ends_by_itself(self) -> None:
        attempt, strike = self.watch.attempt, self.strike
        if strike is None:
            self.world.done = True
            self._gone("succeeded", 0.2)
            return
        self.struck = True
        self.world.met[self.ailing] = self.world.met.get(self.ailing, 0) + 1
        end = faults.death(strike, int(self.t * 1e9))
        if end is None or strike.phase is Phase.UNKNOWN:
            self._gone("failed", 0.2)
            return
        self.later(0.1, events.RankExited(self.t + 0.1, attempt, end))
        if self.trial is not None and self.trial.ranks > 1 and self.rng.random() < OFTEN:
            peer = RankExit(self.trial.ranks - 1, 99 + self.trial.ranks, int((self.t + 0.5) * 1e9), code=1)
            self.later(0.5, events.RankExited(self.t + 0.5, attempt, peer))

    def _gone(self, outcome: str, after_s: float) -> None:
        """Let the ranks be gone, once."""
        if self.ended:
            return
        self.ended = True
        self._still()
        ending = events.AttemptEnded(self.t + after_s, self.watch.attempt, outcome)
        self.later(after_s, ending)
        if self.chance(0.5):
            self.later(after_s + self.rng.uniform(0.0, 90.0), ending)

    def _happens(self, item: Event | Happening | act.SelectCheckpoint) -> None:
        if isinstance(item, Happening):
            if item.attempt == self.watch.attempt and not self.over:
                HAPPENS[item.text.partition(" ")[0]](self, item)
            return
        if isinstance(item, events.HealthChecked) and item.attempt != self.state.attempt.number:
            item = events.HealthChanged(self.t, item.findings)  # the attempt began without it
        if isinstance(item, act.SelectCheckpoint):
            selection = self.world.selected(self.t, item.attempt, item.rejected)
            item = replace(selection, agreement=item.attempt, overrides=item.overrides, rejected=item.rejected) if item.nodes else selection
        elif isinstance(item, events.AttemptEnded) and item.attempt == self.watch.attempt:
            self.watch.alive = False
        elif isinstance(item, events.RankExited) and item.attempt == self.watch.attempt and not (self.ended or self.stuck):
            self._stop_ranks("failed", self.job.policy.stop.grace_s)  # the agent does, before it reports the exit
        elif isinstance(item, events.EvidenceCollected):
            waited = self.state.stage is Stage.TEARDOWN and self.state.attempt.evidence is None and item.attempt == self.watch.attempt
            if waited:
                self.watch.strike = self.strike if self.struck else None
                self.watch.given(self.watch.strike, item.gpus or self.state.gpus)
        self.feed(item)

    def begin(self, action: act.BeginAttempt) -> None:
        """Let the attempt live."""
        self.world.t = self.t
        trial = self.trial = self.watch.trial = self.world.trial(action)
        first = self.world.strike(trial)
        self.ailing, self.strike = first or (-1, None)
        self.struck = self.ended = self.stuck = False
        self.life = self.world.lived(trial, self.t, self.strike)
        self._goes_on(self.life)
        for happening in self.job.happenings:
            if happening.attempt == action.attempt:
                self.later(happening.after_s, happening)
        if action.attempt > 1 and self.chance(1.0):
            self._ghosts(action.attempt - 1)

    def _ghosts(self, attempt: int) -> None:
        """Let the attempt before speak once more."""
        at = self.t + self.rng.uniform(0.0, 60.0)
        ghost: Event = self.rng.choice(
            (
                events.RankExited(at, attempt, RankExit(0, 100, 1, signal=9)),
                events.AttemptEnded(at, attempt, "succeeded"),
                events.ProgressObserved(at, attempt, 10**6, 5, Phase.TRAIN),
                events.EvidenceCollected(at, attempt, 1, (Evidence("exit", "signal", "9", 0),), 0.5),
                events.AttemptStarted(at, attempt, (), 99),
            )
        )
        self.later(at - self.t, ghost)

    def gather(self, action: act.GatherNodes) -> None:
        """Let the nodes meet, and agree."""
        self.ended = self.struck = self.stuck = False
        self.strike, self.trial = None, None
        self.later(self.rng.uniform(0.1, 30.0), events.NodesGathered(self.t, action.attempt, 0, 2, action.attempt, MEMBERS))

    def stop_ranks(self, action: act.StopRanks) -> None:
        """Let the ranks end."""
        self._stop_ranks({"membership": "membership", "failure": "failed"}.get(action.why, "stopped"), action.grace_s)

    def _stop_ranks(self, outcome: str, grace_s: float) -> None:
        """Let the ranks end, or hang in the kernel until they are ended from outside."""
        if self.chance(0.3):
            self.stuck = True  # it hangs in the kernel, until it is ended from outside
            self._still()
            return
        self._gone(outcome, self.rng.uniform(0.05, min(max(grace_s, 0.1), 8.0)))

    def end_launcher(self, action: act.EndLauncher) -> None:
        """Let all of it be gone: that answer always comes."""
        del action
        self._gone("failed", 0.5)

    def collect(self, action: act.CollectEvidence) -> None:
        """Give what the observers would have found: soon, late, twice, or never."""
        strike, job = self.strike if self.struck else None, self.job
        if self.chance(0.2):
            return
        if strike is None:
            evidence: tuple[Evidence, ...] = (Evidence("launcher", "signal", "9", t=self.t),)
        else:
            trial = self.trial
            steps = max(strike.at - (trial.base if trial else 0), 0) if strike.at >= 0 else 0
            blind = job.sight == BLIND or strike.phase is Phase.UNKNOWN
            beat = () if blind else faults.heartbeat(strike, strike.at if job.sight == ABSOLUTE else None, steps)
            evidence = faults.evidence(strike, self.t, beat)
        after = self.rng.uniform(0.01, action.deadline_s * 1.2)
        gpus = self.world.gpus() if any(gpu.quarantined for gpu in self.state.gpus) else ()
        answer = events.EvidenceCollected(self.t + after, action.attempt, action.incident, evidence, self.rng.random(), gpus)
        self.later(after, answer)
        if self.chance(0.5):
            self.later(after + self.rng.uniform(0.0, 30.0), answer)

    def select(self, action: act.SelectCheckpoint) -> None:
        """Search for checkpoints; now and then their location does not answer."""
        if not self.chance(0.02):
            self.later(self.rng.uniform(0.1, 5.0), action)

    def check_health(self, action: act.CheckHealth) -> None:
        """Answer with the node's findings: soon, late, twice or never."""
        if self.chance(0.1):
            return
        job = self.job
        answer = events.HealthChecked(self.t, action.attempt, self.world.findings(), job.ranks)
        after = self.rng.uniform(0.05, job.policy.health_deadline_s * (1.3 if self.chance(0.5) else 0.8))
        self.later(after, answer)
        if self.chance(0.3):
            self.later(after + self.rng.uniform(0.0, 30.0), answer)

    def sicken(self, happening: Happening) -> None:
        """A GPU, or the host, is ill from now on; the driver reports it, and the job trains on."""
        finding = self.world.sicken(happening.text.partition(" ")[2], int(happening.value))
        self.feed(events.HealthChanged(self.t, (finding,)))

    def hang(self, happening: Happening) -> None:
        """The ranks stand still, as two looks show; where that does not end the attempt, it is over later, and may come again."""
        if self.ended or self.stuck or self.state.stage is not Stage.RUNNING:
            return
        attempt, kind = self.watch.attempt, HangKind(happening.text.partition(" ")[2])
        timeout = self.rng.choice((None, 600.0))
        hang = Hang(
            kind, f"{kind}: nobody moves", (0,), still_s=happening.value, calibrated=self.rng.random() < OFTEN, group_timeout_s=timeout
        )
        self.feed(events.HangSuspected(self.t, attempt, happening.value, 60.0, Phase.TRAIN))
        self.feed(events.HangConfirmed(self.t, attempt, hang))
        self.later(20.0, events.HangConfirmed(self.t + 20.0, attempt, hang))
        self.later(40.0, events.HangCleared(self.t + 40.0, attempt, happening.value + 40.0, "rank 0 made a step"))

    def set_timer(self, action: act.SetTimer) -> None:
        """Let the timer fire, also one of an earlier stage: its token shows that."""
        self.later(action.delay_s, events.TimerFired(self.t + action.delay_s, action.name, action.token))

    def save_it(self, action: act.RequestSave) -> None:
        """Let the ranks save, where they manage to."""
        if self.rng.random() < OFTEN and self.trial is not None and not self.ended:
            self.world.save(max(self.world.high, self.trial.base), nan=False)
            after = self.rng.uniform(0.5, 8.0)
            self.later(after, events.Saved(self.t + after, action.attempt))

    def find_save(self, action: act.FindSave) -> None:
        """Search the disk: now and then it holds a save that no rank reported; a disk that hangs does not answer."""
        if self.rng.random() < OFTEN:
            there = CheckpointRef("found.pt", None, "structure") if self.rng.random() < OFTEN else None
            self.later(0.1, events.SaveSearched(self.t + 0.1, action.attempt, there))

    def quarantine(self, action: act.Quarantine) -> None:
        """Write the ledger, and list the GPUs again."""
        self.world.quarantined[action.gpu.uuid] = action.reason
        self.later(0.2, events.GpusListed(self.t + 0.2, self.world.gpus()))

    def alert(self, action: act.Alert) -> None:
        """Send it: here nobody comes."""

    def finish(self, action: act.Finish) -> None:
        """The end, or a requeue."""
        self._still()
        if action.exit_code == ExitCode.REQUEUE and self.requeues > 0:
            self.requeues -= 1
            self._restarted(self.rng.uniform(30.0, 900.0), None)
        else:
            self.over = True

    def _restarted(self, after_s: float, left_t: float | None) -> None:
        """Let another supervisor take over, from the journal: nothing that was under way is answered any more."""
        state = initial()
        for event in self.journal:
            state, _ = self.judge(state, event)
        self.folded += len(self.journal)
        demand(state == self.state, "the state folded from the events is another one")
        recorded = msgspec.json.decode(msgspec.json.encode(difference(self.state, initial())))
        self.state = state_of(recorded)
        demand(self.state == state, "the state that a journal gives back is another one")
        self.queue.clear()
        self._still()
        self.watch.alive = False
        self.ended = True
        self.later(after_s, events.GpusListed(self.t + after_s, self.world.gpus()))
        started = events.SupervisorStarted(
            self.t + after_s, "run", self.job.policy, continues=True, command_digest="command", last_alive_t=left_t
        )
        self.later(after_s, started)

    def repair(self, happening: Happening) -> None:
        """A person puts all GPUs back into use, repaired or not: the ledger says so, and nobody tells the supervisor."""
        self.world.quarantined.clear()
        self.world.repaired = bool(happening.value)

    def crash(self, happening: Happening) -> None:
        """The supervisor dies, and its ranks with it."""
        del happening
        self._restarted(5.0, self.t)

    def launcher_dies(self, happening: Happening) -> None:
        """The agent or the guardian dies."""
        if not self.ended:
            self._still()
            self.feed(events.LauncherExited(self.t, self.watch.attempt, happening.text, signal=9))

    def signal(self, happening: Happening) -> None:
        """A person or a scheduler requests a stop."""
        left_s = happening.value if happening.value >= 0 else None
        self.feed(events.StopRequested(self.t, int(happening.text.split()[1]), left_s))

    def nodes(self, happening: Happening) -> None:
        """Other nodes ask to join."""
        del happening
        self.feed(events.NodesWaiting(self.t, self.watch.attempt, 1))

    def journal_it(self, happening: Happening) -> None:
        """The journal does not answer for a while."""
        self.feed(events.JournalDegraded(self.t, happening.text))
        self.later(40.0, events.JournalRecovered(self.t + 40.0))

    def stacks(self, happening: Happening) -> None:
        """A person wants the stacks."""
        del happening
        self.feed(events.StacksRequested(self.t))

    def vanish(self, happening: Happening) -> None:
        """The checkpoints' location is empty from now on."""
        del happening
        self.world.vanished = True

    def tear(self, happening: Happening) -> None:
        """The newest checkpoint is left half written."""
        del happening
        self.world.tear()

    def peer(self, happening: Happening) -> None:
        """A rank of another node fails, and that node decides, or never does."""
        if self.ended:
            return
        self.elsewhere = happening.text.removeprefix("peer_")
        self.feed(events.AttemptEndedByPeer(self.t, self.watch.attempt, MEMBERS[1], "rank 0: exit code 1"))

    def report(self, action: act.ReportAttempt) -> None:
        """Let this node decide on the reports, unless the other one does, or nobody."""
        decided, self.elsewhere = self.elsewhere, ""
        if decided == "silent":
            return
        if decided:
            kind = PlanKind.STOP if decided == "stop" else PlanKind.RESTART
            changes = tuple(Change(knob, "", value, knob) for knob, value in self.watch.overrides.items())
            plan = Plan(kind, "its own failure", "the next", "coordinator", 65 if decided == "stop" else 0, changes=changes)
            decision = JobDecision(FailureVerdict(Cause.USER_CODE, 0.9, "rank 0: exit code 1", "x", node="b:1"), plan, by=MEMBERS[1])
            after = self.rng.uniform(0.1, 60.0)
            self.later(after, events.DecisionMade(self.t + after, action.attempt, kind.value, decision))
            return
        end = self.state.attempt.ended_as or ("membership" if self.state.run.incident is None else "failure")
        own = NodeReport(MEMBERS[0], self.state.attempt, self.state.gpus)
        other = NodeReport(MEMBERS[1], Attempt(action.attempt, ended=True, evidence=()))
        gathered = events.ReportsGathered(self.t + REPORT_S, action.attempt, (own, other), kind=end, node=MEMBERS[0])
        self.later(REPORT_S, gathered)

    def propose(self, action: act.ProposeDecision) -> None:
        """Let the decision be that of all nodes."""
        self.later(REPORT_S, events.DecisionMade(self.t + REPORT_S, action.attempt, action.kind, action.decision))


DO: dict[type, Callable[..., None]] = {
    act.BeginAttempt: Play.begin,
    act.GatherNodes: Play.gather,
    act.ReportAttempt: Play.report,
    act.ProposeDecision: Play.propose,
    act.StopRanks: Play.stop_ranks,
    act.EndLauncher: Play.end_launcher,
    act.CollectEvidence: Play.collect,
    act.SelectCheckpoint: Play.select,
    act.CheckHealth: Play.check_health,
    act.SetTimer: Play.set_timer,
    act.RequestSave: Play.save_it,
    act.FindSave: Play.find_save,
    act.Quarantine: Play.quarantine,
    act.Alert: Play.alert,
    act.Finish: Play.finish,
}
HAPPENS: dict[str, Callable[..., None]] = {
    "crash": Play.crash,
    "repair": Play.repair,
    "agent": Play.launcher_dies,
    "guardian": Play.launcher_dies,
    "signal": Play.signal,
    "nodes": Play.nodes,
    "journal": Play.journal_it,
    "stacks": Play.stacks,
    "vanish": Play.vanish,
    "sicken": Play.sicken,
    "hang": Play.hang,
    "tear": Play.tear,
    "peer_restart": Play.peer,
    "peer_stop": Play.peer,
    "peer_silent": Play.peer,
}
