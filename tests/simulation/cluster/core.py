"""A core that stops ranks, reports and decides as little as it can: what the coordination needs of the real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervisor.cluster import messages as protocol
from supervisor.cluster.model import DONE, FAILURE, MEMBERSHIP, RESTART, STOP, SUCCESS, ClusterDecision
from tests.simulation.cluster.laws import demand

if TYPE_CHECKING:
    from supervisor.cluster.coordinator import CoordinatorOutput
    from supervisor.cluster.member import MemberInput, MemberOutput
    from supervisor.cluster.model import SharedAttempt
    from tests.simulation.cluster.world import Machine

STOP_S = (0.05, 3.0)
#: As the core's timers: a node that neither trains nor meets for so long stops with 75.
WAIT_S = 150.0
#: What a member that does not report is waited for.
REPORT_S = 60.0


class SimulatedCore:
    """The core of one supervisor, from its start to its end.

    stage: meeting, agreeing, training, exited, ending, reported, stopped, done or leaving.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world = machine.world
        self.stage = "meeting"
        self.ranks_of = 0  # attempt whose ranks live here
        self.since_t = self.world.t
        self.next_number = 1
        self.reported: set[int] = set()
        self.ended_t: dict[int, float] = {}
        self.after_ranks = ""  # "meet" or "stop": what follows when the ranks are gone
        self.stepped_t: float | None = None  # when a step ended, as far as this supervisor knows
        self.looks: set[int] = set()
        self.over: ClusterDecision | None = None  # how the job ended without this node
        self.shows_steps = False
        memory = machine.memory
        if memory.attempt is not None:
            self.next_number = memory.attempt.number + 1
            if memory.acted is None and not memory.aside:  # as a supervisor that takes over: its ranks are gone, the decision is unknown
                self.stage = "ending"
                self.world.later(0.2, self._gone, memory.attempt.number)
                self.give(protocol.EndAttempt(self.world.t, FAILURE, "its supervise died"))

    def give(self, message: MemberInput) -> None:
        """Give the protocol a message."""
        self.machine.give(message)

    def to(self, stage: str) -> None:
        """Go to a stage."""
        self.stage, self.since_t = stage, self.world.t

    def take(self, output: MemberOutput | CoordinatorOutput) -> None:
        """Do what the protocol asks for."""
        world, machine = self.world, self.machine
        match output:
            case protocol.Ended(number, end):
                if end.text.startswith("all have saved"):
                    world.books.all_saved(self.attempt())
                self._ended(number, end.kind)
            case protocol.JudgeReports():
                self._judges(output)
            case protocol.ActOn(attempt, decision, _):
                self._acts(attempt, decision)
            case protocol.StepAside(attempt):
                world.books.aside.add((machine.name, attempt.token))
                self._goes_on("meet")
            case protocol.ClosedWithoutUs(_, decision):
                self.over = decision  # until it waits for the others
            case protocol.MeetingFailed():
                machine.leave_meeting()
            case protocol.CoordinatorSilent() | protocol.CoordinatorGone():
                self._misses_coordinator(output)
            case protocol.LookWanted() | protocol.LooksGathered() | protocol.Looked():
                self._is_looked_at(output)
            case _:
                self._begins(output)

    def _misses_coordinator(self, output: MemberOutput | CoordinatorOutput) -> None:
        world, machine = self.world, self.machine
        match output:
            case protocol.CoordinatorSilent(number, text) if self.stage in {"agreeing", "training"}:
                is_closed, rules = "reached" in text, world.rules
                silent_s = machine.awake_s - (machine.lost_it if is_closed else machine.answered)
                least_s = rules.closed_s if is_closed else rules.silent_s
                demand(silent_s >= least_s - 1.0, f"{machine.name} says that {text}, and was there for {silent_s} s of that")
                self.give(protocol.EndAttempt(world.t, FAILURE, "the coordinator is silent"))
                self.stop_ranks(number)
            case protocol.CoordinatorGone():
                if self.stage not in {"stopped", "done", "leaving", "ending"}:  # it waits for the end of its ranks
                    machine.stops_with_75(world.t - world.rules.wait_s)
            case _:
                pass

    def _is_looked_at(self, output: MemberOutput | CoordinatorOutput) -> None:
        world, machine = self.world, self.machine
        match output:
            case protocol.LookWanted(_, look):
                demand(look not in self.looks, f"{machine.name} is asked twice for look {look}")
                self.looks.add(look)
                world.later(world.rng.uniform(0.0, 3.0), self._looks, look)
            case protocol.LooksGathered(number, look, texts, missing):
                named = {*dict(texts), *dict(missing), *world.books.out[number]}
                demand(named >= set(self.coordinated().members), f"look {look} of attempt {number} does not name all: {named}")
                machine.give_coordinator(protocol.LooksJudged(world.t, number, f"look {look} of {number}"))
            case protocol.Looked(number, text):
                demand(
                    text.endswith(f" of {number}") and number == self.attempt().number,
                    f"{machine.name} hears of a hang of {number}",
                )
            case _:
                pass

    def coordinated(self) -> SharedAttempt:
        """The newest attempt of the coordinator here."""
        coordinator = self.machine.coordinator
        assert coordinator is not None
        assert coordinator.memory.attempt is not None
        return coordinator.memory.attempt

    def _looks(self, look: int) -> None:
        if self.alive():
            self.give(protocol.LookTaken(self.world.t, look, "a stack"))

    def stalls(self) -> None:
        """The ranks of this node make no progress."""
        if self.stage == "training":
            self.give(protocol.AskLooks(self.world.t, "no progress"))

    def steps(self) -> tuple[float | None, float | None]:
        """Return how long ago a rank ended a step, and the usual step, as this supervisor knows it before it looks again."""
        world = self.world
        if self.stage != "training" or not self.shows_steps:
            self.stepped_t = None
            return None, None
        known_t, steps = self.stepped_t, world.steps[self.attempt().token]
        self.stepped_t = steps[-1] if steps else None
        return (None, None) if known_t is None else (world.t - known_t, world.step_s)

    def _begins(self, output: MemberOutput | CoordinatorOutput) -> None:
        """Agree with the other members, then train."""
        world, machine = self.world, self.machine
        match output:
            case protocol.Began(attempt):
                world.books.began(machine.name, attempt)
                self.next_number = attempt.number + 1
                self.to("agreeing")
                self.ranks_of = attempt.number
                self.stepped_t, self.looks = None, set()
                self.shows_steps = world.shows == "all" or (world.shows == "first" and attempt.members[0] == machine.name)
                self.give(protocol.NodeText(world.t, 1, f"{machine.name}: {world.rng.randrange(100)}"))
            case protocol.Gathered(_, 1, texts):
                world.books.agreed(machine.name, self.attempt(), texts)
                self.give(protocol.NodeText(world.t, 2, "proof"))
            case protocol.Gathered() if self.stage == "agreeing":
                self.to("training")
                world.books.trains(world.t, machine.name, self.ranks_of)
                world.happened("trains", machine)
                world.later(world.rng.uniform(*world.work_s), self._finished, self.ranks_of)
            case _:
                pass

    def _ended(self, number: int, kind: str) -> None:
        self.ended_t[number] = self.world.t
        if kind != DONE and self.stage in {"agreeing", "training", "exited"} and self.ranks_of == number:
            self.stop_ranks(number)
        elif kind != DONE and self.ranks_of != number:
            self._gone(number)  # an attempt in which this node has no ranks

    def _judges(self, asked: protocol.JudgeReports) -> None:
        world, number = self.world, asked.number
        world.happened("judges", self.machine)
        waited = world.t - self.ended_t.get(number, 0.0) >= REPORT_S - 2.0  # the coordinator knew of the end before this one
        late = [node for node, why in asked.missing if waited and why.startswith("no report")]
        kind = STOP if world.stops_in == number else RESTART
        text = json.dumps({"by": self.machine.name, "of": [node for node, _ in asked.reports], "late": late, "n": world.count()})
        world.later(world.rng.uniform(0.0, 1.0), self._decide, number, ClusterDecision(kind, text))

    def _decide(self, number: int, decision: ClusterDecision) -> None:
        if self.world.t < self.machine.paused_until:
            self.world.later(0.5, self._decide, number, decision)
        elif self.alive():
            self.machine.give_coordinator(protocol.DecisionProposed(self.world.t, number, decision))
            self.world.happened("decided", self.machine)

    def _acts(self, attempt: SharedAttempt, decision: ClusterDecision) -> None:
        fields = json.loads(decision.text or "{}")
        self.world.books.acts(self.machine.name, attempt, decision, tuple(fields.get("of", ())), tuple(fields.get("late", ())))
        self.world.happened("acts", self.machine)
        if decision.kind == SUCCESS and self.stage != "leaving":
            self.to("done")
            self.ranks_of = 0
        elif self.stage not in {"stopped", "done", "leaving"}:
            self._goes_on("stop" if decision.kind == STOP else "meet")

    def _goes_on(self, move: str) -> None:
        """Meet again, or stop, when no rank is left."""
        if self.stage == "leaving":
            return
        if self.ranks_of and self.stage in {"agreeing", "training", "exited"}:
            self.after_ranks = move
            self.stop_ranks(self.ranks_of)
        elif self.ranks_of:
            self.after_ranks = move
        elif move == "stop":
            self.to("stopped")
        elif self.stage not in {"stopped", "done", "meeting"}:
            self.to("meeting")

    def stop_ranks(self, number: int) -> None:
        """End the ranks, which takes some time."""
        self.to("ending")
        self.world.later(self.world.rng.uniform(*STOP_S), self._gone, number)

    def _gone(self, number: int) -> None:
        if not self.alive() or number in self.reported:
            return
        if self.ranks_of == number:
            self.machine.ranks_gone(self)
            self.ranks_of = 0
        self.reported.add(number)
        if self.stage == "ending":
            self.to("reported")
        self.give(protocol.AttemptReport(self.world.t, f"evidence of {self.machine.name}"))
        self.world.happened("reports", self.machine)
        move, self.after_ranks = self.after_ranks, ""
        if move:
            self._goes_on(move)

    def attempt(self) -> SharedAttempt:
        """The attempt that this node takes part in."""
        attempt = self.machine.memory.attempt
        assert attempt is not None
        return attempt

    def rank_fails(self) -> None:
        """A rank of this node fails, if one lives."""
        if self.stage == "training":
            self.give(protocol.EndAttempt(self.world.t, FAILURE, f"a rank of {self.machine.name} failed"))
            if self.stage == "training":
                self.stop_ranks(self.ranks_of)

    def _finished(self, number: int) -> None:
        if self.alive() and self.stage == "training" and self.ranks_of == number:
            self.to("exited")
            self.world.books.success.add((self.machine.name, self.attempt().token))
            self.machine.ranks_gone(self)
            self.give(protocol.RanksDone(self.world.t))
            self.world.happened("done", self.machine)

    def admits(self) -> None:
        """Nodes wait, and a checkpoint was verified here that is newer: this one lets them in."""
        if self.stage == "training":
            self.give(protocol.EndAttempt(self.world.t, MEMBERSHIP, "nodes are admitted"))

    def saves(self, number: int) -> None:
        """Nodes wait, and the ranks of this one have saved for them."""
        if self.alive() and self.stage == "training" and self.ranks_of == number:
            self.world.books.saved.add((self.machine.name, self.attempt().token))
            self.give(protocol.RanksSaved(self.world.t))

    def alive(self) -> bool:
        """Whether this supervisor still runs."""
        return self.machine.core is self

    def tick(self) -> None:
        """Stop with 75 where nothing gets on. A node that waits while the others train does no harm."""
        if self.over is not None and self.stage == "meeting":
            self.to("done" if self.over.kind == SUCCESS else "stopped")
        coordinator, member = self.world.host.coordinator, self.machine.state
        others_train = self.machine.connection is not None and coordinator is not None and coordinator.open_attempt is not None
        if self.stage == "meeting" and others_train and member is not None and member.meeting is None:
            self.since_t = self.world.t
        if self.stage in {"meeting", "reported", "ending", "agreeing"} and self.world.t - self.since_t > WAIT_S:
            self.machine.stops_with_75(self.since_t)
