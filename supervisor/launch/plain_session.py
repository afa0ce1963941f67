"""Runs any command except torchrun, and stock torchrun where supervise cannot subclass its agent: one child for each attempt.

The command is treated as rank 0. Ranks that it starts by itself (accelerate, deepspeed, torchrun) say hello through their heartbeats
and leave their own error files; how they end is evidence (launched_ranks.py), and the command's end alone ends the attempt: a launcher may
start a rank again. launch/session.py lists the calls and their events.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from supervisor.agent.placeholders import filled_command
from supervisor.core.events import AttemptStarted, LauncherExited, RankExited
from supervisor.core.model import RankExit, RankInfo
from supervisor.launch.environment import attempt_variables, job_environment, resume_handover
from supervisor.launch.session import AttemptEnding, SessionContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervisor.core.actions import BeginAttempt, EndLauncher, GatherNodes, StopRanks
    from supervisor.core.model import Evidence
    from supervisor.guardian.messages import CommandExited, GuardianEvent
    from supervisor.knobs.knob_set import AttemptCommand

NO_INTERPRETER = "the command is not the Python that runs the script"
#: A killed command's other processes get this time between TERM and KILL once a person's deadline is over.
KILL_GRACE_S = 0.0


class PlainSession:
    """Runs the job's command anew for each attempt. `shim`: how far the instrumentation reaches: rank, launcher or off.

    `shape` makes the command that is run from the attempt's form of the user's command and the number of ranks (None: as written).
    """

    def __init__(self, context: SessionContext, shape: Callable[[Sequence[str], int | None], Sequence[str]], shim: str) -> None:
        self._context = context
        self._shape = shape
        self._program = context.job.command[0]
        self._shim = shim
        self._ending = AttemptEnding(context)
        self._pid: int | None = None
        self._may_run = False  # the command was requested, and has neither failed to start nor ended
        self._started: tuple[list[str], dict[str, str]] | None = None  # the command and the environment of the attempt

    @property
    def facts(self) -> tuple[Evidence, ...]:
        """See Session."""
        return tuple(self._ending.facts)

    @property
    def versions(self) -> Mapping[str, str]:
        """See Session: which interpreter its ranks use is not known."""
        return {}

    def gather(self, action: GatherNodes) -> None:
        """A plain command meets no other node: the core asks this of torchrun's agent only."""
        self.refuse(action.attempt, "nodes can meet under torchrun's agent only", "the start of the attempt")

    def publish_coordinator(self, attempt: int, port: int, key: str) -> None:
        """A plain command meets no other node."""

    def renumber(self, attempt: int, number: int) -> None:
        """As above."""

    def complete(self, attempt: int) -> None:
        """As above."""

    def begin(self, action: BeginAttempt, applied: AttemptCommand) -> None:
        """See Session."""
        context = self._context
        self._ending.start(action.attempt)
        self._pid, self._may_run = None, True
        job = context.job
        given = resume_handover(job.settings, job.command, action.resume, job.knobs.resume_way(action.resume_by))
        environ = job_environment(context.job.environ) | attempt_variables(context.job, action, applied, self._shim) | given.variables
        for name in given.removed:
            environ.pop(name, None)
        argv = [*filled_command(self._shape(applied.argv, action.nproc), given.words), *given.arguments]
        self._program = argv[0]
        self._started = argv, environ
        context.guardian().spawn(
            attempt=action.attempt,
            kind="plain",
            argv=argv,
            env=environ,
            cwd=str(context.job.cwd),
            log_dir=context.job.log_dir(action.attempt),
        )

    def refuse(self, attempt: int, text: str, origin: str) -> None:
        """See Session."""
        self._pid, self._may_run = None, False
        self._ending.refused(attempt, text, origin)

    def stop(self, action: StopRanks) -> None:
        """See Session. A person's signal goes to the command alone, also before the guardian reported it: the command ends its loaders."""
        if action.why == "failure":
            self._ending.kill("command", "failed", action.grace_s)
            return
        if not self._may_run:
            self._ending.kill("all", "stopped", action.grace_s)
            return
        self._ending.ranks_asked_to_end(action.grace_s)
        self._context.guardian().signal(action.signum, to="command")
        attempt = action.attempt
        self._context.loop.call_later(action.grace_s, lambda: self._grace_over(attempt))

    def _grace_over(self, attempt: int) -> None:
        if attempt == self._ending.attempt and self._may_run:
            self._ending.kill("all", "stopped", KILL_GRACE_S)

    def end(self, action: EndLauncher) -> None:
        """See Session."""
        del action
        self._ending.kill("all", "stopped" if self._context.loop.state.stops_ranks else "failed", KILL_GRACE_S)

    def prepare_standbys(self, attempt: int, directory: str, commands: Sequence[Sequence[str]]) -> None:
        """See Session."""
        if attempt != self._ending.attempt or self._started is None or self._pid is None:
            return
        argv, environ = self._started
        if [list(command) for command in commands] != [argv]:  # a wrapper, which would run the script instead of waiting
            self._context.standbys.reported(attempt, (), ready=0, private_kib=0, why=NO_INTERPRETER)
            return
        self._context.guardian().prepare_standby(
            attempt=attempt,
            argv=argv,
            env=environ,
            cwd=str(self._context.job.cwd),
            record=f"{directory}/imports-0.json",
        )

    def drop_standbys(self) -> None:
        """See Session."""
        if self._pid is not None:
            self._context.guardian().drop_standby()

    def leave(self, exit_code: int, *, for_all: bool) -> None:
        """A plain command has gone with its attempt."""

    def on_guardian_died(self, code: int | None, signum: int | None) -> None:
        """See Session."""
        self._ending.launcher_died(code, signum, "the guardian")
        self._pid, self._may_run = None, False

    def on_guardian(self, message: GuardianEvent) -> None:
        """See Session."""
        attempt = self._ending.attempt
        if message["ev"] == "ended":
            self._ending.on_killed(message["what"], message["left"])
        elif message.get("attempt") != attempt:
            return
        elif message["ev"] == "standbys":
            pids, ready, private_kib = message["pids"], message["ready"], message["private_kib"]
            self._context.standbys.reported(attempt, pids, ready=ready, private_kib=private_kib, why=message["why"])
        elif message["ev"] == "standbys_used":
            self._context.standbys.used(attempt, message["ranks"], message["cold"])
        elif message["ev"] == "spawned":
            self._pid = message["pid"]
            rank = RankInfo(0, 0, self._pid, message["start_ticks"])
            self._context.loop.post(AttemptStarted(self._context.loop.clock.now(), attempt, (rank,), 1))
        elif message["ev"] == "spawn_failed":
            self._not_spawned(message["text"])
        elif message["ev"] == "exited" and message["pid"] == self._pid:  # not an earlier agent of the same attempt
            self._exited(message)

    def _not_spawned(self, text: str) -> None:
        self._may_run = False
        self._ending.not_spawned(f"{self._program}: {text}")
        if self._context.loop.state.stops_ranks:
            self._ending.kill("all", "stopped", KILL_GRACE_S)
        else:
            self._context.loop.post(LauncherExited(self._context.loop.clock.now(), self._ending.attempt, "command", code=1))

    def _left_well(self, attempt: int, hidden: tuple[Evidence, ...]) -> None:
        if attempt == self._ending.attempt and not self._ending.kill_scope:  # else a stop came meanwhile, and its answer comes
            self._ending.done("succeeded", hidden)

    def _exited(self, message: CommandExited) -> None:
        pid, self._pid, self._may_run = message["pid"], None, False
        loop, attempt = self._context.loop, self._ending.attempt
        self._context.last_sample()
        if loop.state.stops_ranks:
            self._ending.kill("all", "stopped", self._ending.left_grace_s(self._context.job.settings.stop.grace_s))
        elif message["code"] == 0 and loop.clock.at_monotonic_ns(message["at_ns"]) < (loop.state.attempt.over_t or math.inf):
            self._context.look_at_ranks(lambda hidden: self._left_well(attempt, hidden))
        elif message["code"] != 0:  # a script that saves on the supervisor's TERM may leave with 0 too: that is not success
            death = RankExit(0, pid, message["at_ns"], message["code"], message["signal"], message["core_dumped"])
            self._ending.rank_died(death)
            loop.post(RankExited(loop.clock.now(), attempt, death))
            if loop.state.run.stop is not None:  # it ended by itself while it was left alone to save
                self._ending.kill("all", "stopped", self._context.job.settings.stop.grace_s)
