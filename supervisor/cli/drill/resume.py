"""`supervise drill resume -- CMD`: trains to a save in a scratch directory, kills a rank, and proves that the training continued.

The job runs under `supervise` with its own options, in a directory of links to the working directory's files (scratch_directory.py). When a
save has ended, and losses were printed after it, the drill kills one rank. It compares what the next attempt loads and prints with what the
first one saved and printed (comparison.py), and records the proof (job/resume_proof.py), which each start of the job reads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from checkpointing.discover import find
from checkpointing.model import Verdict
from checkpointing.verification import verify
from supervisor.cli import stdio
from supervisor.cli.drill import scratch_job
from supervisor.cli.drill.attempt_losses import AttemptLosses
from supervisor.cli.drill.comparison import LEAST_LOSSES, ResumeComparison, compare
from supervisor.cli.drill.drilled_job import is_alive, send, steps_made
from supervisor.cli.drill.scratch_job import ScratchPlace
from supervisor.cli.progress import progress
from supervisor.cli.signals import exit_on_signals
from supervisor.core.units import span_text
from supervisor.core.values import Struct
from supervisor.errors import ExitCode
from supervisor.job import identity, resume_proof
from supervisor.observe.ranks import save_logs
from supervisor.observe.ranks.path_patterns import checkpoint_path
from supervisor.report.layout import Fact, FactPage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.cli.drill.drilled_job import DrilledJob
    from supervisor.cli.drill.scratch_directory import ScratchDirectory
    from supervisor.config.settings import Settings
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

KIND = "resume"
#: The job is looked at so often: a fast script makes few steps between two saves.
_LOOK_S = 0.02
#: A script that saves more often than it prints its loss is killed after so many saves.
_MOST_SAVES = 5


class ResumeOrder(Struct, frozen=True):
    """The rehearsal. at_step: the least step at which `rank` is killed."""

    at_step: int
    rank: int
    deadline_s: float
    place: ScratchPlace


class _Kill(Struct, frozen=True):
    """The fault: when (Unix seconds), after which step of the rank, and after which step the last save began (None: no save was seen)."""

    t: float
    step: int
    saved: int | None


class _WaitEnd(Struct, frozen=True):
    """How the wait for a save ended: with the kill, by a failure of the job itself, or else (neither) by its end or the deadline."""

    kill: _Kill | None = None
    failure: str = ""


def drill(settings: Settings, command: Sequence[str], order: ResumeOrder) -> int:
    """Run the drill; returns 0 if the resume is proven, else 1. Raises SuperviseError before anything was started."""
    scratch_job.refuse(settings, command, order.place, "drill resume")
    name, state = scratch_job.real_state(settings, command)
    subject = resume_proof.subject_of(settings, command, identity.command_digest(command), identity.working_directory())
    scratch = scratch_job.make_scratch(settings, state, order.place)
    is_proven = False
    try:
        with progress(beside_output=True) as bar:
            job = scratch_job.job_in(scratch, settings, command, f"{name[:50]}-drill-resume", bar)
            run = _ResumeDrill(order, scratch, job)
            comparison = run.go()
        is_proven = comparison.is_proven
        _record(state, resume_proof.ResumeProof(time.time(), subject, comparison.proven_parts) if is_proven else None, subject)
        return run.report(comparison)
    finally:
        scratch.remove(keep_state=not is_proven)


def _record(state: Path, proof: resume_proof.ResumeProof | None, subject: resume_proof.ProvenCommand) -> None:
    """Write the proof; without one, remove an earlier proof of the same: it does not hold any more."""
    try:
        if proof is not None:
            resume_proof.write(state, proof)
            return
        earlier = resume_proof.read(state)
        if earlier is not None and earlier.subject == subject:
            resume_proof.remove(state)
    except OSError as error:
        stdio.say(f"warning: the proof could not be recorded: {state / resume_proof.FILE_NAME}: {error.strerror}")


class _ResumeDrill:
    """One drill."""

    def __init__(self, order: ResumeOrder, scratch: ScratchDirectory, job: DrilledJob) -> None:
        self._settings, self._order, self._scratch, self._job = job.settings, order, scratch, job
        self._end = _WaitEnd()
        self._resumed_t: float | None = None
        self._verified = not job.settings.checkpoints.paths  # whether a declared checkpoint was seen to be whole
        self._until = 0.0
        self._ranks: set[int] = set()
        self._losses: dict[int, AttemptLosses] = {}  # by attempt
        self._resumed = 0  # the last attempt that was seen after the kill
        self._loaded = ""  # which checkpoint of the first attempt it has loaded, in words
        self._saves: dict[int | None, int] = {}  # the step of each save, and how many losses were printed by then

    def go(self) -> ResumeComparison:
        """Start the job, kill a rank after a save, await the next attempt's steps, end the job, compare."""
        stdio.say(f"drill: resume, in {self._scratch.work}: the job's own files and checkpoints stay as they are")
        exit_on_signals()
        self._until = time.monotonic() + self._order.deadline_s
        try:
            self._job.start()
            phase = "training to a save, and on until losses come after it"
            self._end = self._job.wait(self._strike, self._order.deadline_s, every_s=_LOOK_S, phase=phase) or _WaitEnd()
            if self._end.kill is not None:
                stdio.say(f"drill: rank {self._order.rank} was killed after step {self._end.kill.step}")
                left_s = max(0.0, self._until - time.monotonic())
                self._job.wait(self._has_gone_on, left_s, every_s=_LOOK_S, phase="the next attempt makes the steps after the save again")
        finally:
            stdio.say("drill: seen enough; stopping the job")
            self._job.end()
        return self._compared() if self._end.kill is not None else compare("", (), (), 0)

    def _compared(self) -> ResumeComparison:
        """Compare the first attempt with the resumed one."""
        before = self._losses_of(1)
        key = before.longest()
        after = self._losses_of(self._resumed).series.get(key, ()) if key and self._resumed else ()
        return compare(self._loaded, before.series[key] if key else (), after, max(self._saves.values(), default=0))

    def _losses_of(self, attempt: int) -> AttemptLosses:
        if attempt not in self._losses:
            self._losses[attempt] = AttemptLosses(self._job.log_dir(attempt), self._job.attempt_dir(attempt) / "heartbeat")
        losses = self._losses[attempt]
        losses.read()
        return losses

    def _loaded_by(self, attempt: int) -> str:
        """Return in words which checkpoint of the first attempt the ranks of another one loaded, "" if none did."""
        rows = list(save_logs.of_attempt(self._job.attempt_dir(1)))
        steps = {os.path.realpath(checkpoint_path(row["path"])): int(row["steps"]) for row in rows if "steps" in row}
        declared = find(self._settings.checkpoints.paths, str(self._scratch.work)).candidates
        known = {*steps, *(os.path.realpath(checkpoint.path) for checkpoint in declared)}
        loads: dict[str, set[str]] = {}
        for log in self._job.attempt_dir(attempt).glob("loads-*.jsonl"):
            for row in save_logs.rows(log.read_bytes()):
                path = os.path.realpath(checkpoint_path(str(row.get("target", row["path"]))))
                if row.get("complete") and path in known:
                    loads.setdefault(path, set()).add(log.name)
        texts = []
        for path, ranks in loads.items():
            name = os.path.relpath(path, os.path.realpath(self._scratch.work))
            of_ranks = f" on {len(ranks)} ranks" if len(ranks) > 1 else ""
            texts.append(f"{name}{of_ranks}{f', saved after step {steps[path]}' if path in steps else ''}")
        return "; ".join(texts)

    # the kill

    def _strike(self) -> _WaitEnd | None:
        """Kill the rank, if a save has ended and the training continued after it; else return None.

        The ranks are stopped while this is judged, or a fast one would begin the next save meanwhile.
        """
        failed = self._first_failure()
        if failed is not None:
            return _WaitEnd(failure=failed)
        beats = [beat for beat in self._job.beats() if is_alive(beat)]
        self._ranks.update(beat.rank for beat in beats)
        victim = next((beat for beat in beats if beat.rank == self._order.rank), None)
        if not self._is_saved() or not self._is_verified():
            return None
        saved, _ = self._last_save()
        if saved not in self._saves:
            self._saves[saved] = self._printed(saved)
        if victim is None or steps_made(victim) < self._order.at_step or not self._is_enough(saved):
            return None
        try:
            _signal(beats, signal.SIGSTOP)
            last, is_ended = self._last_save()
            beats = [beat for beat in self._job.beats() if is_alive(beat)]
            if not is_ended or last != saved or min((beat.steps for beat in beats), default=0) <= (saved or 0):
                return None
            _signal([victim], signal.SIGKILL)
            return _WaitEnd(_Kill(time.time(), next(steps_made(beat) for beat in beats if beat.rank == victim.rank), saved))
        finally:
            _signal(beats, signal.SIGCONT)

    def _printed(self, step: int | None = None) -> int:
        """Return how many losses the first attempt has printed, by a step if one is given."""
        losses = self._losses_of(1)
        key = losses.longest()
        return losses.count_by(key, step) if key else 0

    def _is_enough(self, saved: int | None) -> bool:
        """Return whether losses were printed after the last save, or need not be: the script saves more often than it prints."""
        return self._printed() >= self._saves[saved] + LEAST_LOSSES or len(self._saves) >= _MOST_SAVES

    def _first_failure(self) -> str | None:
        """Return what failed first, once its cause is decided; None while nothing did."""
        return next((decision.verdict.summary for decision in self._job.decisions()), None)

    def _is_saved(self) -> bool:
        """Return whether a save in training was seen, or need not be: a declared checkpoint is looked for instead (`_is_verified`)."""
        return self._last_save()[0] is not None or bool(self._settings.checkpoints.paths)

    def _is_verified(self) -> bool:
        """Return whether a declared checkpoint is whole; True where none is declared."""
        if not self._verified:
            listed = find(self._settings.checkpoints.paths, str(self._scratch.work)).candidates
            self._verified = any(verify(checkpoint.path, own=True).verdict is Verdict.VERIFIED for checkpoint in listed)
        return self._verified

    def _last_save(self) -> tuple[int | None, bool]:
        """Return after which step the last save of the first attempt began (None: none in training), and whether all saves have ended."""
        last: int | None = None
        under_way: set[tuple[str, int]] = set()
        for log in self._job.attempt_dir(1).glob("saves-*.jsonl"):
            with contextlib.suppress(OSError):
                for row in save_logs.rows(log.read_bytes()):
                    save = (log.name, int(row.get("n", 0)))
                    if row.get("what") == "began":
                        under_way.add(save)
                        steps = int(row.get("steps", 0))
                        last = max(last or 0, steps) if steps > 0 else last
                    elif row.get("what") == "ended":
                        under_way.discard(save)
        return last, not under_way

    def _has_gone_on(self) -> bool:
        """Return whether every rank of a later attempt trains, and that attempt has printed as many losses as the first one repeats."""
        attempt = self._job.newest_attempt()
        if attempt <= 1:
            return False
        self._resumed, self._loaded = attempt, self._loaded_by(attempt)  # the logs are gone when the job has ended
        beats = [beat for beat in self._job.beats() if is_alive(beat)]
        if not {beat.rank for beat in beats} >= self._ranks or not all(beat.steps for beat in beats):
            return False
        self._resumed_t = self._resumed_t or time.time()
        key = self._losses_of(1).longest()
        if key is None:
            return True
        repeated = len(self._losses_of(1).series[key]) - max(self._saves.values(), default=0)
        return len(self._losses_of(attempt).series.get(key, ())) >= max(LEAST_LOSSES, repeated)

    # the report

    def report(self, comparison: ResumeComparison) -> int:
        """Print the comparison; return the exit code."""
        status, kill = self._job.status, self._end.kill
        if kill is None and status in {ExitCode.USAGE, ExitCode.CONFIG}:
            return int(status)  # it has reported why
        if kill is None:
            awaited = "a checkpoint was saved" if self._order.rank in self._ranks else f"rank {self._order.rank} was seen to train"
            has_ended = time.monotonic() < self._until
            advice = "let it save sooner, or give --deadline-s"
            if has_ended:
                advice = "let it make more steps, so that it trains on after its first save"
            advice += "; --checkpoints 'DIR/*.pt' declares what no hook sees"
            if self._is_saved() and self._is_verified():
                awaited = f"{LEAST_LOSSES} losses were printed after a save"
                if not self._printed():
                    advice = "no loss was seen: print it every few steps, as in `step 20 loss 0.51`, or call worker.report(loss=...)"
            ended = f"the job ended ({status})" if has_ended else f"{span_text(self._order.deadline_s)} were over"
            if self._end.failure:
                ended = f"the job failed ({self._end.failure})"
                advice = (
                    "if a write was refused: save below the working directory, under a name that is not there yet, or permit a place"
                    " outside with --writable DIR; an old checkpoint is only a link to yours: --checkpoints 'DIR/*.pt' leaves it out"
                )
            title, facts = f"drill resume: {ended} before {awaited}; nothing is proven", [Fact("advice", advice)]
        else:
            saved = "a checkpoint was saved" if kill.saved is None else f"a checkpoint was saved after step {kill.saved}"
            title = f"drill resume: {saved}; rank {self._order.rank} was killed after step {kill.step}"
            loaded = comparison.loaded or "no: no checkpoint of the first attempt was seen to be loaded"
            facts = [Fact("loaded", loaded), Fact("losses", comparison.losses.text)]
            if self._resumed_t is not None:
                facts.append(Fact("next step", f"{span_text(self._resumed_t - kill.t)} after the kill"))
            facts.append(Fact("proven", *comparison.outcome))
        if not comparison.is_proven:
            facts.append(Fact("more", f"supervise why --job {self._settings.job.name} --state-dir {self._scratch.state}", copied=True))
        stdio.show(FactPage(title, tuple(facts)))
        return 0 if comparison.is_proven else 1


def _signal(beats: Sequence[RankHeartbeat], signum: int) -> None:
    """Send the ranks a signal. One that died meanwhile gets none."""
    for beat in beats:
        send(beat.pid, beat.start_ticks, signum)
