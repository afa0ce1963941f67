"""`supervise -- CMD`: puts one job's parts together, runs its loop, and tidies up. `start.py` comes before it.

The order matters: the lock before the journal, the journal before the job; and back again at the end. The guardian may run earlier, with an
agent that has no order yet.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING

from checkpointing.reader.messages import MirrorAlert, ReaderDied
from supervisor.checkpoints.mirror import restore_process
from supervisor.checkpoints.mirror import session as mirror_session
from supervisor.checkpoints.mirror.uploads import MirrorUploads
from supervisor.checkpoints.recording.reports import WatcherFailed
from supervisor.cluster.client import THREAD as NODE_THREAD
from supervisor.cluster.server import THREAD as COORDINATOR_THREAD
from supervisor.config.policy import to_policy
from supervisor.core.attempt.programs import DECLARED
from supervisor.core.events import (
    GpusListed,
    JournalDegraded,
    JournalRecovered,
    SupervisorStarted,
)
from supervisor.core.failure import losses
from supervisor.core.machine import initial
from supervisor.core.model import Launcher
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import digest_key, identity, known_jobs, loop_beat, resume_proof
from supervisor.job.clock import Clock
from supervisor.job.loop_beat import LoopBeat
from supervisor.job.sd_notify import Notifier
from supervisor.journal.records import SAVES_COUNTED, SUMMARY, Note, RunEnded
from supervisor.report import event_log
from supervisor.report.alert_watch import AlertWatch
from supervisor.report.last_line import begins_text, last_line, named
from supervisor.report.log_events import LogEvent
from supervisor.report.mirror_report import MirrorReport, death_text
from supervisor.report.opening_lines import handover_warning, network_line, next_time, opening_lines, replica_line, resume_line
from supervisor.report.reporter import Reporter
from supervisor.run import kill_deadline, moved_job, previous_runs
from supervisor.run.checkpoint_news import CheckpointNews, ReaderEventFailures
from supervisor.run.executor import Executor
from supervisor.run.exporters import exporters_of
from supervisor.run.factory import JobFactory
from supervisor.run.loop import Loop
from supervisor.run.stop_signals import StopSignals
from supervisor.run.threads import attempted
from supervisor.run.upkeep import Upkeep
from supervisor.view.opening import open_journal

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkpointing.reader import messages
    from supervisor.checkpoints.mirror.feed import MirrorFeed
    from supervisor.checkpoints.recording.watcher import CheckpointWatcher
    from supervisor.core.actions import Action, Finish
    from supervisor.core.events import Event
    from supervisor.core.model import Policy
    from supervisor.core.state import JobState
    from supervisor.job.job import Job
    from supervisor.launch.early_agent import EarlyAgent
    from supervisor.report.journald import Level
    from supervisor.report.terminal import TerminalWriter
    from supervisor.run.exporters import RunExporter
    from supervisor.run.lock import Lock
    from supervisor.view.opening import Past

#: Printed at the start. With --checkpoints nothing must be discovered first.
_UNDECLARED = (
    "without --checkpoints, {} is used only after a checkpoint that the script saved was found and verified:"
    " declare the location with --checkpoints 'DIR/*.pt'"
)
CLOSE_DEADLINE_S = 2.0
#: All of the end together: metrics, trace, journal, ledger of GPUs, files, alerts, log, terminal, scratch, lock.
END_DEADLINE_S = 10 * CLOSE_DEADLINE_S
#: How long the last checkpoint is read without a mirror that waits for it.
VERIFY_S = 60.0


class JobRun:
    """The parts of one run, wired. Listens to the journal."""

    def __init__(self, job: Job, terminal: TerminalWriter, held: Lock, ignored: Collection[int], early: EarlyAgent | None = None) -> None:
        settings = job.settings
        self.terminal, self.lock = terminal, held
        self.clock = Clock.start()
        self.loop = Loop(self.clock, initial(), self)
        self.continues, self.new_run_reason = False, ""
        self.unfinished_before, self.programs_seen = False, tuple[str, ...]()  # of the last run: `past` has none if a new one begins

        def continues(past: Past) -> bool:
            self.continues, self.new_run_reason = previous_runs.continues(past, job)
            self.unfinished_before = previous_runs.unfinished(past, job)
            self.programs_seen = past.state.run.programs if self.continues else previous_runs.programs_seen(past, job)
            return self.continues

        digest_key.use(identity.job_files(job.state), makes=True)  # before the first text is redacted
        self.moved_from = ""
        try:
            self.moved_from = moved_job.carry_along(job)
        except OSError as error:
            terminal.message(f"the journal of the node that this job left cannot be copied: {error}", "warning")
        path = job.state / moved_job.JOURNAL
        self.journal, self.past = open_journal(path, job=job.name, node=job.node, listener=self, continues=continues)
        if self.continues and self.past.last_run is not None:
            job = replace(job, run_id=self.past.last_run.run_id)
        self.job = job
        shown = terminal if settings.terminal.verbosity == "verbose" else None
        log = event_log.open_log(job.state, shown, log_format=settings.terminal.log_format, held_until=LogEvent.ATTEMPT_STARTED)
        self.log = log.bind(job=job.name, run_id=job.run_id, node=job.node)
        self.notifier = Notifier(job.environ)
        self.loop_beat = LoopBeat(job.scratch, job.name, str(identity.state_root(job.state)))
        self.loop_beat.beat(loop_beat.START_S)
        self.loop.state = self.past.state
        self.reporter = Reporter(job, self.clock, terminal, self.log, self.notifier)
        self.reporter.record_note = self._note
        if self.continues:
            self.reporter.goes_on(self.past.state.run.incident, self.past.state.attempt.node)
        news = CheckpointNews(self.loop, self.reporter, terminal, self.log, keep=settings.checkpoints.keep, record=self._note)
        self.factory = JobFactory(job, ignored, news.took, early)
        self.executor = Executor(job, self.loop, self.reporter, self.factory)
        self.executor.standbys.record = self._note
        self.loop.perform = self.executor.perform
        self.loop.tick = self.tick
        self.mirror_feed: MirrorFeed | None = None
        self.mirror_news: MirrorReport | None = None
        if settings.checkpoints.mirror:
            self.mirror_news = MirrorReport(self.reporter, self.log, lambda: self.loop.state.attempt.number, self._note)
        uploads = MirrorUploads(
            job,
            self.factory.checkpoints.records.catalogue,
            lambda event: self._heard(event, news),
            ReaderEventFailures(self.log, terminal).report,
            is_busy=lambda: self.executor.sampling.is_saving,
        )
        self.reader = uploads.link
        self.mirror = uploads if settings.checkpoints.mirror else None
        self.exporters = self._exporters()
        self.alert_watch = AlertWatch(job, self.reporter, lambda: 0.0 if self.mirror is None else self.mirror.behind_s())
        self.signals = StopSignals(job, self.loop, self.executor.threads, ignored)
        self.upkeep = Upkeep(
            self.loop,
            self.executor,
            self.factory,
            held=held,
            signals=self.signals,
            notifier=self.notifier,
            alert_watch=self.alert_watch,
            log=self.log,
            settings=job.settings,
            loop_beat=self.loop_beat,
        )

    def go(self) -> int:
        """Run the loop between a tidy beginning and a tidy end."""
        threading.excepthook = self._thread_failed
        # a run that ends by an error, before its ranks are started or later, writes and shows first what waits in the log
        with contextlib.closing(self.terminal), contextlib.closing(self.log):
            self.signals.catch()  # before the journal names this run: from then on every end is recorded
            self._start_alerts()
            self._begin_journal()
            for exporter in self.exporters:
                exporter.start()
            try:
                return self._go()
            except SuperviseError as error:
                if not self.continues or error.exit_code == ExitCode.REQUEUE:  # else the next start continues with the state
                    self.journal.append(RunEnded(exit_code=error.exit_code, reason=error.message), t=self.clock.now(), durable=True)
                    self.journal.close(CLOSE_DEADLINE_S)
                if not any(self.job.scratch.glob("attempt-[0-9]*")):  # else the next start reads how the ranks stood
                    self.factory.remove_scratch(self.executor.left.unkilled_pids)
                raise
            finally:
                for exporter in self.exporters:
                    exporter.close(CLOSE_DEADLINE_S)

    def _go(self) -> int:
        self._tidy_up()
        self._restore()
        checkpoints = self.factory.checkpoints
        feed = self.mirror_feed = None if self.mirror is None else checkpoints.mirror_feed(self.mirror, self._has_rank_0)
        watcher = checkpoints.watcher(feed, self._has_rank_0, self.reader)
        if self.mirror is not None:
            self.reader.start()

            def tell(line: str) -> None:  # a line comes while bytes come, and before the mirror is given up
                checkpoints.note_move()
                self.terminal.message(line)

            checkpoints.restore_saves_with(lambda save: restore_process.restore(self.job, tell, save))
        if watcher is not None:
            watcher.start()
        policy = self._policy()
        self.reporter.started(self._opening_lines(policy))
        self.reporter.run_started(continues=self.continues, meets=policy.launcher is Launcher.ELASTIC and policy.nodes > 1)
        declared = self.job.knobs.resume_way(DECLARED)
        if declared is not None and not self.job.settings.checkpoints.paths:
            self.terminal.message(_UNDECLARED.format(declared.knob.how), "warning")
        if warning := handover_warning(self.job.settings, self.job.knobs, self.job.command, self.job.environ):
            self.terminal.message(warning, "warning")
        try:
            digest = identity.command_digest(self.job.command)
            if self.moved_from:  # those of the other node
                self.loop.post(GpusListed(self.clock.now(), ()))
            self.executor.node.list_gpus()
            self.executor.node.read_environment()
            self.executor.node.examine_shared_memory()
            if "SLURM_JOB_ID" in self.job.environ:
                self.executor.node.ask_slurm()
            is_posted = self.continues and self.executor.sampling.post_last_progress()
            started = SupervisorStarted(
                self.clock.now(),
                self.job.run_id,
                policy,
                self.continues,
                digest,
                self.lock.left,
                heartbeats_read=is_posted,
                unfinished_before=self.unfinished_before,
                programs_seen=self.programs_seen,
            )
            self.executor.nodes.take_over()
            self.loop.post(started)
            end = self.loop.run()
        except BaseException:
            if watcher is not None:
                watcher.stop(0.1)
            raise
        self._end(end, all_verified=self._finish_checkpoints(watcher))
        return end.exit_code

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        """Report a bug that ended a thread which nobody waits for; threads.py reports those that the loop waits for.

        Without the thread that speaks with the other nodes this one would train on when they have begun another attempt: it ends the run.
        So does a bug of the coordinator that comes again and again: nothing would be decided.
        """
        threading.__excepthook__(args)
        name = args.thread.name if args.thread is not None else ""
        if name == NODE_THREAD or (name == COORDINATOR_THREAD and self.executor.nodes.coordinator_failed()):
            self.loop.fail(args.exc_value or args.exc_type())
        elif name:
            text = f"a part of supervise failed ({name}): {args.exc_type.__name__}: {args.exc_value}; the job continues"
            self.loop.call_soon(lambda: self.terminal.message(text, "error"))

    def _has_rank_0(self) -> bool | None:
        return mirror_session.has_rank_0(self.loop.state.attempt.ranks, self.job.environ, is_torchrun=self.factory.torchrun is not None)

    def _note(self, note: Note) -> None:
        self.journal.append(note, t=self.clock.now())

    # the journal's listener: from its thread

    def journal_synced(self, seq: int) -> None:
        """See journal.Listener."""
        self.loop.call_soon(lambda: self.loop.synced(seq))

    def journal_degraded(self, text: str) -> None:
        """See journal.Listener."""
        self.loop.post(JournalDegraded(self.clock.now(), text))

    def journal_recovered(self) -> None:
        """See journal.Listener."""
        self.loop.post(JournalRecovered(self.clock.now()))

    def record(self, event: Event, actions: tuple[Action, ...], state: JobState, *, durable: bool) -> int:
        """Record a decision in the journal and in the log (loop.Recorder)."""
        self.reporter.took(event)
        return self.journal.record(event, actions, state, durable=durable)

    def tick(self) -> None:
        """Do what recurs."""
        self.executor.tick()
        self.reporter.start_lines.tick()
        if self.mirror is not None and self.mirror_news is not None:
            self.mirror_news.waited(self.mirror.waits_s())
        self.upkeep.tick()

    # the beginning

    def _begin_journal(self) -> None:
        began = previous_runs.began(self.job, continues=self.continues, incidents_before=self.past.incidents_before)
        self.journal.append(began, t=self.clock.now(), durable=True)
        self.log.write(LogEvent.RUN_CONTINUED if self.continues else LogEvent.RUN_STARTED, words=len(self.job.command))
        for problem in self.past.problems:
            self.terminal.message(f"journal: {problem}", "warning")

    def _tidy_up(self) -> None:
        """Clean up after an earlier supervisor: end the processes that are proven its, and move an earlier run's logs aside."""
        with contextlib.suppress(OSError):
            left = self.factory.end_predecessors()
            self.executor.left.report_from_us(self.past.state.attempt.number, left, "may be of this job's last run and is left alone")
            self.factory.clear_scratch(keep_attempts=self.continues)
        if not self.continues and self.past.last_run is not None:
            with contextlib.suppress(OSError):
                previous_runs.put_aside(self.job.state, self.past.last_run.run_id)

    def _restore(self) -> None:
        """Restore the newest checkpoint from the mirrors if none on this disk is good. Raises SuperviseError if it must and cannot."""
        checkpoints = self.factory.checkpoints
        if self.mirror is None:
            return

        self.notifier.status("looks for the newest checkpoint in the mirror")

        def ask() -> mirror_session.MirrorAnswer | None:
            say = self.terminal.message
            return mirror_session.ask(
                checkpoints,
                lambda: restore_process.restore(self.job, say),
                lambda took: restore_process.list_manifests(self.job, took, say),
            )

        asked = mirror_session.run_beside(ask, self.upkeep.without_the_loop, self.signals.requested)
        if asked is None:
            return
        answer = asked.answer
        note = mirror_session.note(answer)
        self.journal.append(note, t=self.clock.now(), durable=False)
        self.log.write(LogEvent.CHECKPOINT_RESTORED, **note.data)
        mirror_session.report(asked, self.terminal.message)
        if answer.kind == "restored":
            checkpoints.restored(answer.path, answer.began, answer.manifest, answer.mirror)

    def _start_alerts(self) -> None:
        settings = self.job.settings
        if not settings.alerts.is_used:
            return
        from supervisor.run import alerting  # noqa: PLC0415 (urllib3 and ssl cost memory that a job without a sink need not pay)

        if settings.alerts.has_sinks:
            log = alerting.run_log(self.log, lambda text: self.loop.call_soon(lambda: self.terminal.message(text, "warning")))
            self.reporter.alerts.router = alerting.start(settings, self.job.environ, self.job.state, log)
            self.executor.threads.start("remember", self._remember_place, awaited=False)  # an alert names a command
        self.alert_watch.heartbeat = alerting.heartbeat(settings)

    def _remember_place(self) -> None:
        with contextlib.suppress(OSError):  # no home, or a read-only one
            known_jobs.remember(self.job.name, identity.state_root(self.job.state), self.job.environ)

    def _exporters(self) -> list[RunExporter]:
        def message(text: str, level: Level) -> None:
            self.loop.call_soon(lambda: self.terminal.message(text, level))

        mirror = None if self.mirror is None or self.mirror_news is None else (self.mirror, self.mirror_news)
        health, memory = self.executor.node.health, self.executor.watch.memory
        return exporters_of(self.job, self.loop, self.reporter.vitals, health, mirror, message, memory)

    def _policy(self) -> Policy:
        return to_policy(
            self.job.settings,
            self.factory.launcher,
            self.job.knobs.knobs,
            self.job.knobs.allocator,
            likely=self.job.knobs.likely,
            health=self.executor.node.health.enabled,
            nodes=self.factory.most_nodes(),
            least_nodes=self.factory.least_nodes(),
            per_node=self.factory.command_nproc,
            replica=self.job.knobs.replica,
            environ=self.job.environ,
        )

    def _opening_lines(self, policy: Policy) -> list[str]:
        elastic = self.factory.launcher is Launcher.ELASTIC
        how = "supervise decides before each restart (torchrun integration: full)" if elastic else "a plain command, restarted from outside"
        settings = self.job.settings
        run_ = "continues with run" if self.continues else "run"
        changed = self.past.state.run.overrides if self.continues else ()
        of_knobs = opening_lines(self.job.knobs, self.job.command, self.job.environ, changed)
        return [
            f"job {self.job.name}, {run_} {self.job.run_id}: {how}",
            *of_knobs,
            *filter(None, (replica_line(self.job.knobs.replica),)),
            *([f"requeued by Slurm: the journal came along from {self.moved_from}"] if self.moved_from else []),
            *([self.new_run_reason] if self.new_run_reason else []),
            resume_line(settings, self.job.knobs, self.programs_seen, self.job.command),
            *filter(None, (network_line(policy, changed),)),
            *([] if identity.is_drill(self.job.state) else [self._proof_line()]),
            *(mirror_session.opening_lines(self.job, several_nodes=self.factory.has_several_nodes) if self.mirror is not None else ()),
            f"journal and logs: {self.job.state} (supervise status, why, logs {settings.address(self.job.name)})",
        ]

    def _proof_line(self) -> str:
        """Return whether a drill proved that this command resumes."""
        job = self.job
        digest = identity.command_digest(job.command)
        return resume_proof.opening_line(resume_proof.read(job.state), resume_proof.subject_of(job.settings, job.command, digest, job.cwd))

    def _heard(self, event: messages.ReaderEvent, news: CheckpointNews) -> None:
        """Report an event of the reader process, in a thread of its link. Without a mirror only its failures are events."""
        mirror_news = self.mirror_news
        self.factory.checkpoints.records.mirrored.took(event)
        if mirror_news is not None:
            self.loop.call_soon(lambda: mirror_news.took(event))
        elif isinstance(event, ReaderDied):
            news.took(WatcherFailed(death_text(event)))
        elif isinstance(event, MirrorAlert):
            news.took(WatcherFailed(event.message))

    # the end

    def _finish_checkpoints(self, watcher: CheckpointWatcher | None) -> bool:
        """Verify the last checkpoint, give the mirror time to upload it, report the rest. Return whether all was verified."""
        if self.mirror is None and watcher is None:
            return True
        settings, environ = self.job.settings, self.job.environ
        stops = self.loop.state.run.stop is not None  # the sender of a stop request waits for this process
        left_s = 0.0 if stops else settings.checkpoints.finish_s
        if self.mirror is None:
            left_s = min(left_s, VERIFY_S)
        elif left_s and (job_s := kill_deadline.job_ends_in_s(environ)) is not None:
            left_s = min(left_s, max(0.0, job_s - END_DEADLINE_S))

        def shortened_s(signum: int) -> float:
            kill_s = kill_deadline.left_s(signum, environ, settings)
            return min(settings.stop.deadline_s, max(0.0, (math.inf if kill_s is None else kill_s) - END_DEADLINE_S))

        self.notifier.extend_timeout(left_s + END_DEADLINE_S)
        self.loop_beat.beat(left_s + END_DEADLINE_S + loop_beat.BELIEVED_S)
        wait = mirror_session.EndWait(left_s, shortened_s, self.signals.received, self.terminal.message, self.upkeep.without_the_loop)
        return mirror_session.finish(self.reader, self.mirror, watcher, wait, lambda text: self.terminal.message(text, "warning"))

    def _only_here(self, code: int) -> str:
        """Return which saves are in no mirror, "" if all are; alert where nobody starts this job again."""
        feed, paths = self.mirror_feed, list[str]()
        if feed is not None:
            attempted(lambda: paths.extend(feed.only_here()), CLOSE_DEADLINE_S)
        if not paths:
            return ""
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        if code == 0 and self.mirror_news is not None:
            self.mirror_news.ended(paths[0], more, self.job.node)
        return f"only here: {paths[0]}{more}"

    def _end(self, end: Finish, *, all_verified: bool) -> None:
        code = end.exit_code
        if numbers := self.factory.checkpoints.numbers():
            self.terminal.message(f"{numbers}: check the loss before you use the result", "warning")
        state = self.loop.state
        newest = self.factory.checkpoints.last_recorded() or state.run.newest
        mirrored = () if self.mirror_feed is None else self.mirror_feed.saves()
        counted = "; ".join(map(str, mirrored))
        shown = "; ".join(filter(None, (counted, self._only_here(code))))
        summary = last_line(state, code, newest, all_verified=all_verified, mirrored=shown)
        # where no rank ran there is no save, though the look for one may not be over
        is_whole = (all_verified or not state.attempt.number) and all(row.held == row.saved for row in mirrored)
        saved = self.factory.checkpoints.saved()
        options = next_time(self.job.settings, self.job.knobs, self.job.command, state, newest, saved=saved)
        if options and not identity.is_drill(self.job.state):
            self.terminal.message(f"next time: {options}")
        self.terminal.message(summary, "info" if is_whole else "warning")
        self.reporter.cards.ending("" if newest is None else named(newest), begins_text(state, code, newest))
        self.notifier.stopping(self.reporter.end_status(code))
        self.notifier.extend_timeout(END_DEADLINE_S)
        self.loop_beat.beat(END_DEADLINE_S + loop_beat.BELIEVED_S)
        self.factory.close()
        known = {} if newest is None else {"path": newest.path, "step": newest.shown_step}
        if counted:
            self.journal.append(Note(SAVES_COUNTED, counted), t=self.clock.now(), durable=False)
        self.journal.append(Note(SUMMARY, summary, known), t=self.clock.now(), durable=False)
        self.journal.append(RunEnded(exit_code=code, reason=end.reason), t=self.clock.now(), durable=True)
        cost = losses.total(state)
        self.log.write(LogEvent.RUN_FINISHED, exit_code=code, incidents=cost.incidents, lost_s=round(cost.lost_s, 3))
        if not state.run.hidden:  # its failure is not over
            self.reporter.run_finished(code, state.attempt.number)
        if not self.journal.close(CLOSE_DEADLINE_S):
            self.terminal.message(f"the journal's last records did not reach the disk: {self.journal.health().trouble}", "warning")
        for trouble in filter(None, [exporter.close(CLOSE_DEADLINE_S) for exporter in self.exporters]):
            self.terminal.message(trouble, "warning")
        if not self.executor.node.wait_written(CLOSE_DEADLINE_S):
            self.terminal.message(f"the ledger of GPUs does not answer: {self.factory.ledger.path}", "warning")
        self.executor.left.await_named()
        self.reporter.cards.close(CLOSE_DEADLINE_S)
        self.reporter.close_alerts(CLOSE_DEADLINE_S)
        self.log.close()
        if (code != 0 or state.run.hidden) and self.reporter.cards.last is not None:
            self.terminal.card(self.reporter.cards.last)
        self.terminal.close()
        unkilled = self.executor.left.unkilled_pids
        attempted(lambda: self.factory.remove_scratch(unkilled), CLOSE_DEADLINE_S)  # on a disk where /dev/shm has no room
        self.signals.ignore()
