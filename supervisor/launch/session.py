"""The interface of a session, which runs the attempts of one command, and the common part of all kinds of sessions.

A session runs on the loop's thread only, so it has no lock. It answers with events; a missing command or a dead agent is an event too. The
processes themselves are the guardian's. Every attempt ends in one order: its ranks are gone, the guardian ends what else descends from
them, AttemptEnded is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from supervisor.core.events import AttemptEnded, LauncherExited, LauncherFellBack
from supervisor.core.model import Evidence
from supervisor.core.values import Struct, field
from supervisor.guardian.messages import RemainingProcess
from supervisor.job.job import Job
from supervisor.launch.guardian_client import GuardianClient

if TYPE_CHECKING:
    from supervisor.agent.messages import NodesMet
    from supervisor.core.actions import BeginAttempt, EndLauncher, GatherNodes, StopRanks
    from supervisor.core.events import Event
    from supervisor.core.model import RankExit
    from supervisor.core.state import JobState
    from supervisor.guardian.messages import GuardianEvent
    from supervisor.job.clock import Clock
    from supervisor.knobs.knob_set import AttemptCommand


class DecidingLoop(Protocol):
    """The loop that decides, as a session sees it (supervisor/run/loop.py)."""

    @property
    def clock(self) -> Clock:
        """The clock of all events."""
        ...

    @property
    def state(self) -> JobState:
        """The state of the job. Only from the loop's thread."""
        ...

    def post(self, event: Event) -> None:
        """Put an event into the inbox, from any thread."""
        ...

    def feed(self, event: Event) -> None:
        """Decide on one event now. Only from the loop's thread."""
        ...

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have `call` run on the loop's thread, from any thread."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have `call` run on the loop's thread after `delay_s` seconds. Only from the loop's thread."""
        ...


class StandbyListener(Protocol):
    """The owner of standbys, as a session sees it (supervisor/run/standbys.py)."""

    def reported(self, attempt: int, pids: Sequence[int], *, ready: int, private_kib: int, why: str) -> None:
        """Take the state of the standbys: all that live, how many are ready, and why one was refused."""
        ...

    def used(self, attempt: int, ranks: Sequence[int], cold: str) -> None:
        """Take which local ranks of an attempt standbys became, and why one of the others was started cold."""
        ...


class NodesListener(Protocol):
    """The link to the other nodes, as a session sees it (supervisor/run/job_nodes.py)."""

    @property
    def returning(self) -> int:
        """How many nodes of the last attempt come to the next meeting, 0: not known."""
        ...

    def met(self, message: NodesMet) -> None:
        """The agents of the nodes have met."""
        ...

    def done(self, attempt: int) -> None:
        """All ranks of this node exited 0."""
        ...


class SessionContext(Struct, frozen=True):
    """The rest of the supervisor, as every session uses it.

    guardian: returns the living one. last_sample: posts the progress that was made until now, before a rank's end is posted. ended: called
    when no rank is left. fall_back: replaces this session where torch does not fit. note: logs facts that decide nothing. left: takes what
    the guardian could not or should not end, with the attempt's number. standbys: takes the reports of standbys. nodes: takes what
    the agent reports of the nodes. look_at_ranks: reads what the ranks of a command that left with 0 show, and calls back, on the
    loop's thread, with the failure that the command hid; with nothing where none is known.
    """

    loop: DecidingLoop
    guardian: Callable[[], GuardianClient]
    job: Job
    last_sample: Callable[[], None]
    ended: Callable[[], None]
    fall_back: Callable[[LauncherFellBack], None]
    note: Callable[[str, Mapping[str, Any]], None]
    left: Callable[[int, Sequence[RemainingProcess]], None]
    standbys: StandbyListener
    nodes: NodesListener
    look_at_ranks: Callable[[Callable[[tuple[Evidence, ...]], None]], None] = lambda done: done(())


class Session(Protocol):
    """One way of running attempts."""

    @property
    def facts(self) -> tuple[Evidence, ...]:
        """The launcher's own report about the current attempt's end."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """The launcher's report of the ranks' interpreter: versions of python, torch, CUDA and NCCL. Empty: nothing."""
        ...

    def gather(self, action: GatherNodes) -> None:
        """Have this node meet the others, and start no rank; answered by a call of NodesListener, or LauncherExited."""
        ...

    def publish_coordinator(self, attempt: int, port: int, key: str) -> None:
        """Show the other nodes that this supervisor is the coordinator, and where it listens."""
        ...

    def renumber(self, attempt: int, number: int) -> None:
        """Give the attempt for which the nodes have met another number."""
        ...

    def complete(self, attempt: int) -> None:
        """All ranks of all nodes have exited 0: let the launcher end; answered by AttemptEnded."""
        ...

    def begin(self, action: BeginAttempt, applied: AttemptCommand) -> None:
        """Start the attempt's ranks, by `applied`: the user's command with the attempt's overrides in it.

        Answered by AttemptStarted, RankExited or LauncherExited.
        """
        ...

    def refuse(self, attempt: int, text: str, origin: str) -> None:
        """Begin nothing: `who` failed, for the reason `text`. Answered by LauncherExited."""
        ...

    def stop(self, action: StopRanks) -> None:
        """Stop them kindly, and less kindly after the grace; answered by AttemptEnded."""
        ...

    def end(self, action: EndLauncher) -> None:
        """Kill all of it now; answered by AttemptEnded."""
        ...

    def prepare_standbys(self, attempt: int, directory: str, commands: Sequence[Sequence[str]]) -> None:
        """Have a standby started for each rank of this node, beside the ranks of `attempt`, which were seen to run `commands`.

        directory: where the records of their imports are.

        Answered by calls of the StandbyListener.
        """
        ...

    def drop_standbys(self) -> None:
        """Have the standbys ended."""
        ...

    def leave(self, exit_code: int, *, for_all: bool) -> None:
        """Have the launcher go, whose ranks are gone; the guardian ends it where it does not. for_all: no node of the job continues."""
        ...

    def on_guardian(self, message: GuardianEvent) -> None:
        """Take a message of the guardian."""
        ...

    def on_guardian_died(self, code: int | None, signum: int | None) -> None:
        """The guardian is gone, and the launcher with it (PDEATHSIG)."""
        ...


#: A process that ends at once on TERM needs less.
LEAST_GRACE_S = 1.0


class AttemptEnding(Struct):
    """The end of the session's attempt: which outcome will be posted once the guardian reports that nothing is left.

    attempt: the one that was begun here. The state may have the next one already, which still waits for the journal.
    """

    context: SessionContext
    attempt: int = 0
    outcome: str | None = None
    kill_scope: str = ""  # what the guardian is ending: orphans, command or all
    kill_t: float | None = None  # when the ranks that are being ended are killed, on the loop's clock; None: none is being ended
    facts: list[Evidence] = field(default_factory=list)

    def start(self, attempt: int) -> None:
        """A new attempt has no end yet."""
        self.attempt, self.outcome, self.kill_scope, self.kill_t, self.facts = attempt, None, "", None, []

    def ranks_asked_to_end(self, grace_s: float) -> None:
        """Note that the ranks are asked to end now, and are killed after `grace_s`; asked again, the earlier time holds."""
        kill_t = self.context.loop.clock.now() + grace_s
        self.kill_t = kill_t if self.kill_t is None else min(self.kill_t, kill_t)

    def left_grace_s(self, grace_s: float) -> float:
        """Return how long what the ranks left behind has: until they would have been killed, but long enough to act on its own TERM."""
        left_s = grace_s if self.kill_t is None else self.kill_t - self.context.loop.clock.now()
        return min(grace_s, max(left_s, LEAST_GRACE_S))

    def kill(self, scope: str, outcome: str, grace_s: float, signum: int = 15) -> None:
        """Have the guardian end `what` (orphans, command or all); `outcome` is posted when it has. A second order hurries the first."""
        self.outcome = self.outcome or outcome
        self.kill_scope = "all" if self.kill_scope == "all" else scope
        self.context.guardian().end(self.kill_scope, grace_s=grace_s, signum=signum)

    def launcher_died(self, code: int | None, signum: int | None, origin: str) -> None:
        """Keep, as evidence, how what runs the ranks ended."""
        name, text = ("signal", str(signum)) if signum is not None else ("exit_code", str(code))
        self.facts.append(Evidence("launcher", name, text, t=self.context.loop.clock.now()))
        self.facts.append(Evidence("launcher", "who", origin))

    def not_spawned(self, text: str) -> None:
        """Keep, as evidence, why what runs the ranks could not be started."""
        self.facts.append(Evidence("launcher", "exception", f"OSError: {text}", t=self.context.loop.clock.now()))

    def refused(self, attempt: int, text: str, origin: str = "the making of the attempt's command") -> None:
        """Report, as the launcher's end, that the attempt cannot be started."""
        self.start(attempt)
        now = self.context.loop.clock.now()
        self.facts.append(Evidence("launcher", "who", origin))
        self.facts.append(Evidence("launcher", "exception", text, t=now))
        self.context.loop.post(LauncherExited(now, attempt, "command", code=1))

    def rank_died(self, death: RankExit) -> None:
        """Keep, as evidence, what of a rank's end is neither its code nor its signal."""
        if death.core_dumped:
            t = self.context.loop.clock.at_monotonic_ns(death.at_ns)
            self.facts.append(Evidence("exit", "core", "it dumped core", rank=death.rank, t=t))

    def on_killed(self, scope: str, left: list[RemainingProcess]) -> None:
        """The guardian has answered. That orphans are gone is not an answer where all was asked for since: what all ends is still there."""
        if scope != self.kill_scope:
            return
        if left:
            self.context.left(self.attempt, left)
        self.done(self.outcome)

    def done(self, outcome: str | None, hidden: tuple[Evidence, ...] = ()) -> None:
        """Post the end, once."""
        if outcome is None:
            return
        self.outcome, self.kill_scope = None, ""
        self.context.last_sample()
        self.context.ended()
        self.context.loop.post(AttemptEnded(self.context.loop.clock.now(), self.attempt, outcome, hidden))
