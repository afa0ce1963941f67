"""Carries out the core's actions, one function for each (core/actions.py). The answers come back as events.

Work that can wait for a disk runs in a worker thread. node_requests.py acts on the node and its GPUs, rank_requests.py on ranks that run,
checkpoint_requests.py on what they resume from.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from supervisor.config import recover_rows
from supervisor.core import actions as act
from supervisor.core.events import (
    AttemptEnded,
    LauncherExited,
    LauncherFellBack,
    ProgramIdentified,
    RanksFound,
    TimerFired,
)
from supervisor.core.model import Launcher
from supervisor.core.state import Stage
from supervisor.core.values import replace
from supervisor.errors import SuperviseError
from supervisor.job.identity import is_gone
from supervisor.knobs import program_identity
from supervisor.launch.session import SessionContext
from supervisor.node.visible_gpus import precision
from supervisor.observe import collect
from supervisor.observe.attempt_watch import AttemptWatch
from supervisor.observe.processes.launched_ranks import with_launched
from supervisor.observe.ranks import heartbeats
from supervisor.run.checkpoint_requests import CheckpointRequests
from supervisor.run.evidence_collection import EvidenceCollection, FailedAttempt
from supervisor.run.job_nodes import AttemptOrders
from supervisor.run.left_processes import LeftProcesses
from supervisor.run.living_guardian import LivingGuardian
from supervisor.run.node_paces import NodePaces
from supervisor.run.node_requests import NodeRequests
from supervisor.run.rank_requests import RankRequests
from supervisor.run.rank_sampling import RankSampling
from supervisor.run.read_ahead import ReadAhead
from supervisor.run.standbys import Standbys
from supervisor.run.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.checkpoints.repair import RepairPermission
    from supervisor.core.model import Evidence
    from supervisor.core.state import JobState
    from supervisor.guardian.messages import GuardianEvent
    from supervisor.job.job import Job
    from supervisor.knobs.knob_set import AttemptCommand
    from supervisor.launch.guardian_client import GuardianClient
    from supervisor.launch.session import Session
    from supervisor.report.reporter import Reporter
    from supervisor.run.factory import JobFactory
    from supervisor.run.loop import Loop

#: Heartbeat slots where the number of local ranks is not known beforehand (accelerate, deepspeed).
SLOTS = 64
#: The time that the guardian gets to leave at the end.
LEAVE_DEADLINE_S = 6.0
#: The time that the guardian gets to end everything: more than its own grace and KILL take.
END_DEADLINE_S = 8.0
LEAVE_GRACE_S = 2.0
#: After so long a warning reports that the start of an attempt waits for a disk.
PREPARED_S = 10.0


class Executor:
    """Carries actions out for one job. Its public methods are called on the loop's thread."""

    def __init__(self, job: Job, loop: Loop, reporter: Reporter, factory: JobFactory) -> None:
        self._job = job
        self._loop = loop
        self._reporter = reporter
        self._factory = factory
        self.watch = AttemptWatch(job, factory.signatures, loop.clock, factory.loss_rules(), loop.post)
        self.threads = Threads(loop, lambda text: reporter.print_message(act.PrintMessage("warning", text)))
        self.left = LeftProcesses(loop, reporter)
        self.node = NodeRequests(job, loop, reporter, factory, self.threads)
        self.sampling = RankSampling(
            job,
            loop,
            self.threads,
            factory.checkpoints.belongs_to_job,
            self.watch.take_heartbeats,
            trained=reporter.starts.trained,
            loss=self.watch.newest_loss,
            memory=self.watch.memory,
            shares=self.watch.step_shares,
            loaded=factory.checkpoints.loaded,
            readings=self.node.health.last_readings,
        )
        self.standbys = Standbys(job, loop, self.threads, lambda: self._session, factory.standby_refusal, reporter)
        self._guardian = LivingGuardian(factory, loop, self._on_guardian, self._on_guardian_died)
        self._sweeps_at_end = False
        self._session: Session | None = None
        # The session's order. The state has the newest order, which may still wait for the journal or for the user's disk.
        self._given: act.BeginAttempt | act.GatherNodes | None = None
        self._command: AttemptCommand | None = None
        self._preparing = False
        self._plan = ""  # how unequal GPUs share the global batch, as it was last reported
        self._began_ns = 0
        self._gone = threading.Event()  # of each attempt its own: no rank of it is left
        self._finish_asked: act.Finish | None = None
        self._reported_problems: set[str] = set()  # with the checkpoints and between the nodes, each reported once
        orders = AttemptOrders(self._publish_coordinator, self._renumber, self._complete, self._guardian.prepare_last_word)
        self.nodes = factory.nodes(loop, orders, self._warn_once)
        self._node_paces = NodePaces(loop, self.threads, self.nodes)
        self.sampling.job_hangs.join(self.nodes)
        self.nodes.looks = self.sampling.job_hangs.take
        self._checkpoints = CheckpointRequests(
            job, loop, reporter, factory, self.threads, self.node, self.nodes, lambda: self._session, self._warn_once
        )
        parts = (self.watch, self.node, self._guardian, self._checkpoints.distrust)
        self._evidence = EvidenceCollection(job, loop, reporter, factory, self.threads, *parts)
        self._read_ahead = ReadAhead(self.threads, lambda: self.sampling.is_saving, has_others=factory.has_several_nodes)
        self._rank_requests = RankRequests(job, loop, reporter, self.threads, factory.checkpoints.saved_since)
        self._do: dict[type, Callable[[Any], None]] = {
            act.BeginAttempt: self._begin,
            act.GatherNodes: self._begin,
            act.BroadcastStart: self.nodes.broadcast,
            act.StopRanks: self._stop_ranks,
            act.EndLauncher: self._end_launcher,
            act.CollectEvidence: self._collect,
            act.SelectCheckpoint: self._checkpoints.select,
            act.CheckHealth: self.node.check,
            act.SetTimer: self._set_timer,
            act.DumpStacks: self._rank_requests.dump_stacks,
            act.EndForAll: self.nodes.end_attempt,
            act.ReportAttempt: self.nodes.report,
            act.ProposeDecision: self.nodes.propose,
            act.CompleteAttempt: self.nodes.complete,
            act.Quarantine: self.node.quarantine,
            act.FindUnsaved: self._rank_requests.find_unsaved,
            act.RequestSave: self._rank_requests.request_save,
            act.ReportSaved: self.nodes.saved,
            act.FindSave: self._rank_requests.find_save,
            act.KeepCopies: self._checkpoints.keep_copies,
            act.AccuseCheckpoints: self._checkpoints.accuse,
            act.KeepLook: self._rank_requests.keep_look,
            act.Alert: reporter.alerted,
            act.OpenIncident: reporter.opened,
            act.ReportDecision: reporter.decided,
            act.ReportResume: reporter.resumed,
            act.CloseIncident: reporter.closed,
            act.PrintMessage: reporter.print_message,
            act.Finish: self._finish,
        }

    def perform(self, action: act.Action) -> None:
        """Carry out one action."""
        self._do[type(action)](action)

    def tick(self) -> None:
        """Poll what sends no event by itself: heartbeats, rank ends, ranks that a plain command started."""
        state = self._loop.state
        self.sampling.sample(state.attempt.live_ranks)
        self.watch.tick(state.attempt.live_ranks)
        self.standbys.tick(state)
        self.nodes.tick(*self.sampling.step_times, self.watch.node_pace())
        self._node_paces.tick()
        self.sampling.job_hangs.tick()
        self._post_found_ranks(state)

    def _post_found_ranks(self, state: JobState) -> None:
        """Post the ranks that a plain command started by itself, where the state does not have them yet."""
        launched_ranks = self.watch.rank_ends
        if launched_ranks is None or state.stage is not Stage.RUNNING:
            return
        ranks = with_launched(state.attempt.live_ranks, launched_ranks.ranks)
        if ranks != state.attempt.live_ranks:
            self._loop.post(RanksFound(self._loop.clock.now(), state.attempt.number, ranks, max(launched_ranks.world_size, len(ranks))))

    @property
    def guardian_pid(self) -> int | None:
        """The living guardian's pid, None where none lives."""
        return self._guardian.living.pid if self._guardian.living is not None else None

    def guardian(self) -> GuardianClient:
        """Return the guardian of the newest attempt."""
        return self._guardian.get()

    # attempts

    def _begin(self, action: act.BeginAttempt | act.GatherNodes) -> None:
        if not self._loop.state.awaits_ranks(action.attempt):
            self._never_began(action.attempt)  # a stop came while the journal was waited for
            return
        self._preparing = True
        if isinstance(action, act.BeginAttempt):
            self._read_ahead.decided("" if action.resume is None else action.resume.path)
        self._loop.call_later(PREPARED_S, lambda: self._not_prepared(action.attempt))
        permission = self._checkpoints.permission
        self.threads.start("prepare", lambda: self._prepare(action, permission))

    def _prepare(self, action: act.BeginAttempt | act.GatherNodes, permission: RepairPermission) -> None:
        """Do what touches the user's disk, in a worker thread: a directory that hangs there must not make the loop deaf to signals.

        A selection that nobody waits for any more changes no file from here on: ranks come next.
        """
        permission.revoke()
        self._guardian.wait_living(lambda: self._loop.state.awaits_ranks(action.attempt))
        self._factory.read_for_session()
        self._loop.post(ProgramIdentified(self._loop.clock.now(), action.attempt, self._program()))
        beside = self.left.refusal()
        directory = self._job.attempt_dir(action.attempt)
        unmade, refused, applied = "", None, None
        try:
            (self._job.scratch / "save-now").unlink(missing_ok=True)  # it was for the attempt before
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # a cleaner of /dev/shm may have removed all of it
            heartbeats.create(directory / "heartbeat", SLOTS)
        except OSError as error:
            unmade = f"no heartbeats in {directory}: {error.strerror}; progress is unknown"
        if beside:
            refused = beside, "the start of the attempt"
        elif is_gone(self._job.cwd):
            refused = f"FileNotFoundError: the working directory {self._job.cwd} was deleted", "the start of the attempt"
        elif isinstance(action, act.BeginAttempt):
            world_size = self._factory.world_size(action.nproc) or self._loop.state.attempt.met_ranks or None
            try:
                overrides = recover_rows.with_values(self._job.settings.recover, action.overrides)
                applied = self._job.knobs.apply(self._job.command, overrides, directory, world_size, self._places(action))
                applied = self._with_precision(applied, action)
            except (SuperviseError, OSError) as error:
                refused = f"{type(error).__name__}: {error}", "the making of the attempt's command"
        self._loop.call_soon(lambda: self._prepared(action, unmade, refused, applied))

    def _places(self, action: act.BeginAttempt) -> tuple[int, ...]:
        """Return which of the job's GPUs the ranks may see, in CUDA's order; () where they, or those of other nodes, are not known."""
        gpus = () if self._factory.has_several_nodes else self._loop.state.gpus
        return tuple(place for place, gpu in enumerate(gpus) if not action.gpus or gpu.uuid in action.gpus)

    def _with_precision(self, applied: AttemptCommand, action: act.BeginAttempt) -> AttemptCommand:
        """Give the ranks the number format that all GPUs have. The formats of other nodes' GPUs are not known here."""
        gpus = action.gpus or tuple(gpu.uuid for gpu in self._loop.state.gpus)
        name = "" if self._factory.has_several_nodes else precision(self.node.health.last_readings(), gpus)
        return replace(applied, environment={**applied.environment, "SUPERVISE_JOB_PRECISION": name}) if name else applied

    def _program(self) -> tuple[tuple[str, str], ...]:
        return program_identity.measure(self._job.command, self._job.cwd, self._job.environ)

    def _not_prepared(self, attempt: int) -> None:
        if self._preparing and self._loop.state.awaits_ranks(attempt):
            names = self.left.names
            reason = f"{names} survives KILL" if names else f"{self._job.cwd} (or a file that a knob changes) does not answer"
            text = f"attempt {attempt} is not started yet: {reason}"
            self._reporter.print_message(act.PrintMessage("warning", text))

    def _prepared(
        self, action: act.BeginAttempt | act.GatherNodes, unmade: str, refused: tuple[str, str] | None, applied: AttemptCommand | None
    ) -> None:
        self._preparing = False
        if not self._loop.state.awaits_ranks(action.attempt):
            self._never_began(action.attempt)  # a stop came meanwhile
            return
        if unmade:
            self._reporter.print_message(act.PrintMessage("warning", unmade))
        self._began_ns = time.monotonic_ns()
        self._gone = threading.Event()
        self._guardian.take()
        self._given, self._command = action, applied
        resume = action.resume if isinstance(action, act.BeginAttempt) else None
        self.sampling.watch(action.attempt, resume)
        self._read_ahead.ranks_begin()
        self.watch.begin(action.attempt, plain=self._loop.state.run.policy.launcher is not Launcher.ELASTIC)
        self.node.health.begin()
        if self._session is None:
            self._session = self._factory.session(self._session_context())
        if isinstance(action, act.BeginAttempt):
            self._factory.checkpoints.began(action.attempt)
            self._reporter.beginning(action)
        else:
            self._reporter.gathering(action)
        if refused is not None:
            self._session.refuse(action.attempt, *refused)
        elif isinstance(action, act.GatherNodes):
            self._session.gather(action)
        elif applied is not None:
            if applied.plan and applied.plan != self._plan:
                self._reporter.print_message(act.PrintMessage("info", applied.plan))
            self._plan = applied.plan
            self._session.begin(action, applied)

    def fall_back(self, event: LauncherFellBack) -> None:
        """Run the same attempt with stock torchrun. The core gets the event first, so that nothing is started twice."""
        if self._given is None or not self._loop.state.awaits_ranks(self._given.attempt):
            return  # a stop came first: the session that is being ended answers for the attempt
        self._loop.feed(event)
        self._session = self._factory.stock_session(self._session_context())
        if self._command is not None and isinstance(self._given, act.BeginAttempt):  # one whose nodes were to meet begins anew
            self._session.begin(self._given, self._command)

    def _session_context(self) -> SessionContext:
        context, note = (self._loop, self.guardian, self._job, self._last_sample, self.ended, self.fall_back), self._reporter.note
        return SessionContext(*context, note, self.left.report_from_guardian, self.standbys, self.nodes, self._look_at_ranks)

    def _look_at_ranks(self, done: Callable[[tuple[Evidence, ...]], None]) -> None:
        """Look, in a thread, whether a command that left with 0 hides the failure of a rank."""
        attempt, grace_s, began_ns = self._loop.state.attempt, self._job.settings.stop.grace_s, self._began_ns

        def work() -> None:
            hidden = tuple(collect.without_secrets(self.watch.hidden(attempt.number, attempt.ranks, began_ns, grace_s)))
            self._loop.call_soon(lambda: done(collect.trimmed(hidden)))

        self.threads.start("ends", work)

    def _last_sample(self) -> None:
        self.sampling.sample(self._loop.state.attempt.live_ranks, last=True)

    def _is_current(self, attempt: int) -> bool:
        return self._given is not None and self._given.attempt == attempt

    def _never_began(self, attempt: int) -> None:
        """Post the end of an attempt that was ordered and of which nothing was started."""
        if self._is_current(attempt):
            return  # its nodes have met: the session is being ended, and answers
        self._loop.post(AttemptEnded(self._loop.clock.now(), attempt, "stopped"))

    def _stop_ranks(self, action: act.StopRanks) -> None:
        if not self._is_current(action.attempt):
            self._never_began(action.attempt)  # it waits for the journal or for the user's disk, which may take long
        elif self._session is not None and self._guardian.living is not None:
            self._session.stop(action)

    def _end_launcher(self, action: act.EndLauncher) -> None:
        guardian = self._guardian.living
        if guardian is not None and not self._is_current(action.attempt):
            self._never_began(action.attempt)
        elif guardian is not None and self._session is not None:
            self._session.end(action)
            self._loop.call_later(END_DEADLINE_S, lambda: self._end_overdue(action.attempt, guardian))
        else:
            self.threads.start("sweep", lambda: self._sweep_without_guardian(action.attempt))

    def _end_overdue(self, attempt: int, guardian: GuardianClient) -> None:
        """The guardian's answer always comes, or the guardian's end in its place."""
        state = self._loop.state
        if (
            state.attempt.number == attempt
            and not state.attempt.ended
            and self._guardian.living is guardian
            and state.stage is not Stage.ENDED
        ):
            guardian.kill()

    def _sweep_without_guardian(self, attempt: int) -> None:
        left = self._factory.end_orphans()

        def swept() -> None:
            self.left.report_from_us(attempt, left, "still there after the guardian's death")
            self.ended()
            self._loop.post(AttemptEnded(self._loop.clock.now(), attempt, "failed"))

        self._loop.call_soon(swept)

    def _sweep_and_leave(self) -> None:
        """End what the guardian was to end, which died meanwhile."""
        left, attempt = self._factory.end_orphans(), self._loop.state.attempt.number

        def swept() -> None:
            self.left.report_from_us(attempt, left, "still there after the guardian's death")
            self._sweeps_at_end = False
            self._leave()

        self._loop.call_soon(swept)

    def ended(self) -> None:
        """No rank is left: waiters for the attempt's last words need not wait longer."""
        self._factory.checkpoints.ended()
        self.nodes.no_meeting()
        self._gone.set()

    # what the nodes decide together

    def _publish_coordinator(self, attempt: int, port: int, key: str) -> None:
        if self._session is not None:
            self._session.publish_coordinator(attempt, port, key)

    def _renumber(self, attempt: int, number: int) -> None:
        """Give the attempt whose nodes have met the number that it has on all of them."""
        if self._session is not None and self._given is not None and self._is_current(attempt):
            self._given = replace(self._given, attempt=number)
            self._session.renumber(attempt, number)

    def _complete(self, attempt: int) -> None:
        if self._session is not None:
            self._session.complete(attempt)

    # the guardian's messages

    def _on_guardian(self, message: GuardianEvent) -> None:
        if message["ev"] == "tails":
            self._evidence.take_tails(message)
        elif message["ev"] == "survivors":
            self._reporter.processes.survivors(message["pids"])
            self._leave()
        elif message["ev"] in {"output", "stdout_closed", "line_unfinished", "refused"}:
            self._reporter.processes.output(message)
        elif message["ev"] == "ended" and self._finish_asked is not None:
            self.left.report_from_guardian(self._loop.state.attempt.number, message["left"])
            self._leave()
        elif self._session is not None:
            self._session.on_guardian(message)

    def _on_guardian_died(self, code: int | None, signum: int | None) -> None:
        if self._session is not None:
            self._session.on_guardian_died(code, signum)
        if self._finish_asked is not None:
            self._sweeps_at_end = True
            self.threads.start("sweep", self._sweep_and_leave)
            return
        now, attempt = self._loop.clock.now(), self._loop.state.attempt.number
        self._loop.post(LauncherExited(now, attempt, "guardian", code, signum))

    # the requests to the observers

    def _collect(self, action: act.CollectEvidence) -> None:
        """Evidence is whole when the ranks are gone; it is taken at the deadline where they are not."""
        is_current, attempt = self._is_current(action.attempt), self._loop.state.attempt
        verified = self._loop.state.run.verified if self._loop.state.run.stop is None else ()
        self._read_ahead.attempt_failed([rank.rank for rank in attempt.ranks], verified[-1].path if verified else "")
        ranks, session = (attempt.ranks, self._session) if is_current else ((), None)
        self._evidence.collect(action, FailedAttempt(attempt, ranks, self._began_ns, self._gone, session))

    def _warn_once(self, text: str) -> None:
        """Print a warning that was not printed before. From any thread."""
        if text not in self._reported_problems:
            self._reported_problems.add(text)
            self._loop.call_soon(lambda: self._reporter.print_message(act.PrintMessage("warning", text)))

    def _set_timer(self, action: act.SetTimer) -> None:
        def fire() -> None:
            self._loop.feed(TimerFired(self._loop.clock.now(), action.name, action.token))

        self._loop.call_later(action.delay_s, fire)

    # the end

    def _finish(self, action: act.Finish) -> None:
        self._finish_asked = action
        self._read_ahead.decided("")
        self.sampling.forget()
        self.watch.stop()
        self.threads.start("health-close", self.node.health.close, awaited=False)
        guardian = self._guardian.living
        if guardian is None:
            self._leave()
        elif action.exit_code == 0 and not self._loop.state.attempt.ended_for:  # of one that we ended the launcher is still there
            guardian.finish()
        else:
            if self._session is not None:
                self._session.leave(action.exit_code, for_all=action.for_all)
            guardian.end("all", grace_s=LEAVE_GRACE_S, signum=15)
        self._loop.call_later(LEAVE_DEADLINE_S, lambda: None if self._sweeps_at_end else self._leave())

    def _leave(self) -> None:
        action = self._finish_asked
        if action is not None:
            self.nodes.close(action.reason, lambda: self._loop.finish(action))
