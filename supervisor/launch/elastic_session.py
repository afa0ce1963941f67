"""torchrun's elastic agent, run as `supervisor.agent`: one process that lives through many attempts and asks before each.

The agent stops its ranks by itself the moment one fails. The supervisor orders the next attempt (go), an end (stop) or the entry of waiting
nodes (admit). The agent may not react, because its main thread can sit in a C++ store wait. So the supervisor awaits nothing from it that
the guardian cannot do in its place, and the core's timers decide when. launch/session.py lists the calls and their events.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import signal
import socket
import threading
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, assert_never

import msgspec

from checkpointing.io import typed
from supervisor.agent.messages import (
    MESSAGES,
    Admit,
    AgentFailed,
    AgentFinished,
    AgentHello,
    AgentUnfit,
    AllRanksDone,
    Complete,
    DropStandbys,
    Go,
    MissingNodesCounted,
    NodesMet,
    PrepareStandbys,
    PublishCoordinator,
    RankReaped,
    RanksStarted,
    RanksStopped,
    RendezvousCompleted,
    Renumber,
    ScriptArgs,
    StandbysReported,
    StandbysUsed,
    Start,
    StopCommand,
    WaitingNodesCounted,
    encode,
    name_of,
)
from supervisor.agent.selfcheck import UNFIT
from supervisor.core.events import (
    AttemptStarted,
    LauncherExited,
    LauncherFellBack,
    LauncherStarted,
    NodesMissing,
    NodesWaiting,
    RankExited,
)
from supervisor.core.model import Evidence, Launcher, RankExit, RankInfo
from supervisor.launch.agent_link import AgentLink
from supervisor.launch.early_agent import agent_environment
from supervisor.launch.environment import attempt_variables, resume_handover
from supervisor.launch.session import AttemptEnding, SessionContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.agent.messages import AgentMessage, AttemptMessage, Command, NodesMessage
    from supervisor.core.actions import BeginAttempt, EndLauncher, GatherNodes, StopRanks
    from supervisor.core.events import Event
    from supervisor.guardian.messages import CommandExited, GuardianEvent
    from supervisor.knobs.knob_set import AttemptCommand
    from supervisor.launch.early_agent import EarlyAgent

#: How long the link may outlast the agent: the agent's last messages are on it, and its exit code comes by another way.
LINK_END_S = 1.0
#: Where no thread can be had (a limit on processes that loaders use up for a moment), the next try.
RETRY_S = 1.0
#: How many names of torch's that do not fit are reported; the others are counted.
_NAMED = 3


class ElasticSession:
    """Runs our agent by `argv` (knobs/torchrun.py), in which {link_fd} and {output_fd} stand for its two descriptors.

    `script_args`: the words after the script in the user's command, the only part of it that an attempt may change. `early`: an
    agent that runs already.
    """

    def __init__(
        self,
        context: SessionContext,
        argv: list[str],
        *,
        shim: str,
        script_args: Sequence[str] = (),
        early: EarlyAgent | None = None,
    ) -> None:
        self._context = context
        self._early = early
        self._argv = argv
        self._script_args = tuple(script_args)
        self._shim = shim
        self._ending = AttemptEnding(context)
        self.versions: dict[str, str] = {}  # see Session
        self._link: AgentLink | None = None
        self._pid: int | None = None
        self._exited: CommandExited | None = None  # by the guardian, while the link may still hold earlier messages
        self._at_end = False  # of the link
        self._is_ready = False
        self._fits = False  # an agent has spoken, so that one that does not is not a matter of the installation
        self._finished = False
        self._waiting: Callable[[], Go | None] | None = None  # makes the command that starts the attempt
        self._nodes_met = False  # for the current attempt
        self._deaths: dict[int, RankExit] = {}  # of the current attempt, by rank; those in the state may still be in the loop's inbox

    @property
    def facts(self) -> tuple[Evidence, ...]:
        """See Session."""
        return tuple(self._ending.facts)

    # requests of the executor

    def gather(self, action: GatherNodes) -> None:
        """See Session. The agent meets the other nodes, and starts its ranks with the order that `begin` sends."""
        nodes = self._context.nodes

        def make_go() -> Go:
            go = Go(action.attempt, nproc=action.nproc, returning=nodes.returning)
            return replace(go, least_nodes=action.least_nodes, node_group=action.node_group)

        self._open(action.attempt, make_go)

    def publish_coordinator(self, attempt: int, port: int, key: str) -> None:
        """See Session."""
        self._send(PublishCoordinator(attempt, port, key))

    def renumber(self, attempt: int, number: int) -> None:
        """See Session."""
        if attempt == self._ending.attempt:
            self._ending.attempt = number
            self._context.guardian().log_dir(number, self._context.job.log_dir(number))
            self._send(Renumber(attempt, number))

    def complete(self, attempt: int) -> None:
        """See Session."""
        self._send(Complete(attempt))

    def begin(self, action: BeginAttempt, applied: AttemptCommand) -> None:
        """See Session. Where the nodes have met, the agent is ordered to start its ranks."""
        if not self._nodes_met or action.attempt != self._ending.attempt:
            self._open(action.attempt, lambda: self._order(action, applied))
            return
        go = self._order(action, applied)
        if go is not None:
            self._send(Start(go))

    def _open(self, attempt: int, make_go: Callable[[], Go | None]) -> None:
        """Order a living agent to continue with another attempt; otherwise start one, which gets the order after its hello."""
        self._ending.start(attempt)
        self._waiting = make_go
        self._nodes_met = False
        self._deaths = {}
        if self._exited is not None:
            self._agent_gone()
        if self._link is None:
            self._start_agent(attempt)
        else:
            self._context.guardian().log_dir(attempt, self._context.job.log_dir(attempt))
            self._go()

    def refuse(self, attempt: int, text: str, origin: str) -> None:
        """See Session."""
        self._ending.refused(attempt, text, origin)

    def stop(self, action: StopRanks) -> None:
        """See Session."""
        if action.why == "failure":
            self._ending.ranks_asked_to_end(action.grace_s)
            self._send(StopCommand(action.attempt, action.signum, action.grace_s, failure=action.text or "the attempt failed"))
            return
        if action.why == "membership":
            self._send(Admit(action.attempt))
            return
        if self._is_ready:
            self._ending.ranks_asked_to_end(action.grace_s)
            self._send_leave(action.signum, action.grace_s, 128 + action.signum)
        else:
            self._ending.kill("all", "stopped", 0.0)  # nothing of the user's runs yet, and the agent ignores TERM from its first line

    def end(self, action: EndLauncher) -> None:
        """See Session."""
        del action
        self._ending.kill("all", "stopped" if self._context.loop.state.stops_ranks else "failed", 0.0)

    def prepare_standbys(self, attempt: int, directory: str, commands: Sequence[Sequence[str]]) -> None:
        """See Session."""
        if attempt == self._ending.attempt:
            self._send(PrepareStandbys(attempt, directory, tuple(tuple(command) for command in commands)))

    def drop_standbys(self) -> None:
        """See Session."""
        self._send(DropStandbys(self._ending.attempt))

    def leave(self, exit_code: int, *, for_all: bool) -> None:
        """See Session. The agent ignores TERM by design, so it gets a message."""
        self._send_leave(signal.SIGTERM, 0.0, exit_code, for_all=for_all)

    def _send_leave(self, signum: int, grace_s: float, exit_code: int, *, for_all: bool = False) -> None:
        self._send(StopCommand(self._ending.attempt, signum, grace_s, exit_code, for_all=for_all))

    # messages of the guardian

    def on_guardian(self, message: GuardianEvent) -> None:
        """See Session."""
        if message["ev"] == "ended":
            self._ending.on_killed(message["what"], message["left"])
        elif message["ev"] == "spawned" and message["kind"] == "agent":
            self._pid = message["pid"]
        elif message["ev"] == "spawn_failed":
            self._drop_link()
            self._ending.not_spawned(f"{self._argv[0]}: {message['text']}")
            self._launcher_exited(code=1, signum=None)
        elif message["ev"] == "exited" and message["pid"] == self._pid:
            self._exited = message
            if self._at_end:
                self._agent_exited(message)
            else:
                self._context.loop.call_later(LINK_END_S, lambda: self._agent_exited(message))

    def on_guardian_died(self, code: int | None, signum: int | None) -> None:
        """See Session."""
        self._ending.launcher_died(code, signum, "the guardian")
        self._agent_gone()

    def _agent_gone(self) -> None:
        self._pid = self._exited = None
        self._drop_link()

    def _agent_exited(self, message: CommandExited) -> None:
        """The agent has ended. All its messages were received, or something else held the link open for LINK_END_S."""
        if message is not self._exited:
            return
        self._agent_gone()
        if self._context.loop.state.stops_ranks:
            self._ending.kill("all", "stopped", 0.0)
        elif self._finished and message["code"] == 0:
            self._ending.done("succeeded")
        elif not self._fits and message["code"]:
            where = f"{self._context.job.log_dir(self._ending.attempt)}/agent.err"
            self._fall_back(f"supervise's agent could not start under {self._argv[0]} (exit code {message['code']}, see {where})")
        elif message["code"] != UNFIT:
            self._launcher_exited(message["code"], message["signal"])

    def _launcher_exited(self, code: int | None, signum: int | None) -> None:
        now = self._context.loop.clock.now()
        if signum is not None or not any(f.name == "exception" for f in self._ending.facts):
            self._ending.launcher_died(code, signum, "torchrun's agent")
        self._context.loop.post(LauncherExited(now, self._ending.attempt, "agent", code, signum))

    def _fall_back(self, reason: str) -> None:
        self._context.fall_back(LauncherFellBack(self._context.loop.clock.now(), Launcher.STOCK, reason))

    # messages of the agent

    def _link_ended(self, link: AgentLink) -> None:
        if link is not self._link:
            return
        self._at_end = True
        if self._exited is not None:
            self._agent_exited(self._exited)

    def on_agent(self, message: AgentMessage) -> None:
        """Take a message of the agent; one of another attempt than the current is void."""
        self._fits = True
        if isinstance(message, AgentHello):
            self._on_hello(message)
        elif isinstance(message, AgentUnfit):
            missing = message.missing
            more = [f"and {len(missing) - _NAMED} more"] if len(missing) > _NAMED else []
            self._fall_back("; ".join([*missing[:_NAMED], *more]))
        elif isinstance(message, AgentFailed):
            self._failed(message.text, refused=message.refused)
        elif message.attempt == self._ending.attempt:
            event = self._on_attempt(message)
            if event is not None:
                self._context.loop.post(event)

    def _on_hello(self, hello: AgentHello) -> None:
        self._is_ready = True
        self.versions = hello.versions or {}
        self._context.note("agent.ready", asdict(hello))
        least, nodes = hello.nnodes
        self._context.loop.feed(LauncherStarted(self._context.loop.clock.now(), hello.pid, hello.max_restarts, nodes, hello.nproc, least))
        self._go()

    def _on_attempt(self, message: AttemptMessage) -> Event | None:
        """Return the core's event for a message about the current attempt; None where it is not an event of its own."""
        now, attempt = self._context.loop.clock.now(), self._ending.attempt
        match message:
            case RanksStarted():
                ranks = tuple(RankInfo(r.rank, r.local_rank, r.pid, r.start_ticks) for r in message.ranks)
                return AttemptStarted(now, attempt, ranks, message.world_size)
            case RankReaped(_, rank, pid, at_ns, code, signum, core_dumped):
                death = RankExit(rank, pid, at_ns, code, signum, core_dumped)
                self._deaths[rank] = death
                self._ending.rank_died(death)
                if death.failed:  # the agent ends its peers
                    self._ending.ranks_asked_to_end(self._context.job.settings.stop.grace_s)
                self._context.last_sample()
                return RankExited(now, attempt, death)
            case RanksStopped():
                self._ranks_stopped(message)
            case AgentFinished():
                self._finished = True
            case StandbysReported(_, pids, ready, private_kib, why):
                self._context.standbys.reported(attempt, pids, ready=ready, private_kib=private_kib, why=why)
            case StandbysUsed(_, used, cold):
                self._context.standbys.used(attempt, used, cold)
            case _:
                return self._of_nodes(now, attempt, message)
        return None

    def _of_nodes(self, now: float, attempt: int, message: NodesMessage) -> Event | None:
        """Pass on what the agent reports of the nodes; return the core's event where it is one of its own."""
        match message:
            case NodesMet():
                self._nodes_met = True
                self._context.nodes.met(message)
            case AllRanksDone():
                self._context.nodes.done(attempt)
            case WaitingNodesCounted():
                return NodesWaiting(now, attempt, message.count)
            case MissingNodesCounted():
                return NodesMissing(now, attempt, message.count, message.within_s)
            case RendezvousCompleted():
                self._context.note("agent.reported", asdict(message) | {"ev": "rendezvous"})
            case _:
                assert_never(message)
        return None

    def _failed(self, text: str, *, refused: bool) -> None:
        """Keep the exception of torchrun. Its exit code, which comes next, reports arguments that it refused."""
        if refused:
            self._ending.facts.append(Evidence("launcher", "who", "torchrun, which did not accept its arguments,"))
            return
        now = self._context.loop.clock.now()
        self._ending.facts.append(Evidence("launcher", "exception", exception_line(text), t=now))
        self._ending.facts.append(Evidence("launcher", "traceback", text[-8192:], t=now))

    def _ranks_stopped(self, message: RanksStopped) -> None:
        for error in message.errors:
            self._recorded(error.rank, error.message, error.traceback)
        for tail in message.log_tails:
            self._ending.facts.append(Evidence("tail", tail.name, tail.text, rank=tail.rank, free_text=True))
        if message.outcome != "succeeded":
            self._ending.kill("orphans", message.outcome, self._ending.left_grace_s(self._context.job.settings.stop.grace_s))

    def _recorded(self, rank: int, message: str, traceback: str) -> None:
        """Keep an exception that torch's @record wrote down.

        Its time is that of the rank's death, the nearest that is known: torch's own time stamp has whole seconds.
        """
        death = self._deaths.get(rank)
        if death is None or not death.failed:
            return
        t = self._context.loop.clock.at_monotonic_ns(death.at_ns)
        self._ending.facts.append(Evidence("error_file", "exception", message, rank=rank, t=t))
        self._ending.facts.append(Evidence("error_file", "traceback", traceback, rank=rank, t=t))

    # the agent's process

    def _start_agent(self, attempt: int) -> None:
        job, guardian, log_dir = self._context.job, self._context.guardian(), self._context.job.log_dir(attempt)
        early, self._early = self._early, None
        if early is not None and early.guardian is guardian:
            own_end = early.link
            guardian.log_dir(attempt, log_dir)
        else:
            own_end, theirs = socket.socketpair()
            with theirs:
                env, fds = agent_environment(job), [theirs.fileno()]
                guardian.spawn(attempt=attempt, kind="agent", argv=self._argv, env=env, cwd=str(job.cwd), log_dir=log_dir, fds=fds)
        self._link, self._at_end, self._is_ready, self._finished = AgentLink(own_end), False, False, False
        self._read_soon(self._link)

    def _read_soon(self, link: AgentLink) -> None:
        """Have a thread read the link, later where none can be had now: the agent's messages wait there."""
        if link is not self._link:
            return
        try:
            threading.Thread(target=self._read, args=(link,), name="agent-link", daemon=True).start()
        except RuntimeError:
            self._context.loop.call_later(RETRY_S, lambda: self._read_soon(link))

    def _go(self) -> None:
        make_go, self._waiting = self._waiting, None
        if make_go is None or not self._context.loop.state.awaits_ranks(self._ending.attempt):
            return  # a stop came first, or the agent's first messages led elsewhere
        go = make_go()
        if go is not None:
            self._send(go)

    def _order(self, action: BeginAttempt, applied: AttemptCommand) -> Go | None:
        """Return the command that starts the attempt's ranks; None where that is impossible, which is reported."""
        job = self._context.job
        given = resume_handover(job.settings, job.command, action.resume, job.knobs.resume_way(action.resume_by))
        before = len(job.command) - len(self._script_args)
        if tuple(applied.argv[:before]) != job.command[:before]:
            text = f"a knob would change torchrun's own arguments, which hold for all attempts: {shlex.join(applied.argv[:before])}"
            self._ending.refused(action.attempt, text)
            return None
        return Go(
            action.attempt,
            env=attempt_variables(job, action, applied, self._shim, own_torch=True) | given.variables,
            unset=(*given.removed, *job.completed),
            args=given.arguments,
            replace=given.words,
            script_args=None if tuple(applied.argv) == job.command else ScriptArgs(self._script_args, tuple(applied.argv[before:])),
            nproc=action.nproc,
        )

    def _send(self, command: Command) -> None:
        def lost(error: OSError) -> None:
            row = {"do": name_of(command), "error": str(error)}
            self._context.loop.call_soon(lambda: self._context.note("request.lost", row))

        if self._link is not None:
            self._link.send(encode(command), lost)

    def _read(self, link: AgentLink) -> None:
        """Pass on every whole line, then the end of the link. A killed agent may leave half a line, which is dropped."""
        try:
            with link.sock.makefile("rb") as lines, contextlib.suppress(OSError):
                for line in lines:
                    if line.endswith(b"\n"):
                        self._context.loop.call_soon(functools.partial(self._on_line, line))
        finally:
            self._context.loop.call_soon(functools.partial(self._link_ended, link))

    def _on_line(self, line: bytes) -> None:
        try:
            message = decode(line)
        except msgspec.DecodeError as error:
            self._context.note("agent.reported", {"ev": "unreadable", "error": str(error)})
            return
        self.on_agent(message)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._is_ready = False


def decode(line: bytes) -> AgentMessage:
    """Return the message in one line of the link. Raises msgspec.DecodeError for any other message."""
    try:
        row = json.loads(line)  # msgspec's decoder refuses lone surrogates, which stand for a name that is not UTF-8
        kind = MESSAGES[row.pop("ev")]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise msgspec.DecodeError(f"no message: {error!r}") from error
    return typed.converted(row, kind)


def exception_line(traceback: str) -> str:
    """Return the type and the beginning of the text that a traceback ends with; horizontal rules and empty lines are left out."""
    lines = [line for line in traceback.splitlines() if any(letter.isalnum() for letter in line)]
    header = max((i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")), default=None)
    error = lines[-1:] if header is None else lines[header + 1 :]
    while len(error) > 1 and error[0].startswith((" ", "\t")):
        error = error[1:]
    if not error:
        return "unknown"
    first = error[0].strip()
    return f"{first} {error[1].strip()}" if first.endswith(":") and len(error) > 1 else first.removesuffix(":")
