"""The job of a drill: `supervise` in a forked child that runs the user's command, and what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from supervisor.cli import stdio
from supervisor.cli.progress import SECONDS
from supervisor.core.model import FailureVerdict, Plan
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.guardian.libc import die_with_parent
from supervisor.instrument._supervise_shim.layout import start_ticks_of
from supervisor.job import identity
from supervisor.observe.ranks import heartbeats
from supervisor.view.reading import ViewFollower

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from checkpointing.command_line.progress import ProgressBar
    from supervisor.config.settings import Settings
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.view.job_view import JobView

T = TypeVar("T")
POLL_S = 0.1
#: The time that a job takes beyond its own stop deadline to be gone.
END_MARGIN_S = 30.0


def require_steps(settings: Settings) -> None:
    """Raise SuperviseError (64) if the ranks show no steps."""
    if not settings.instrument.enabled:
        raise SuperviseError(
            "a drill needs to see the steps of the ranks", hint="Leave out --set instrument.enabled=false.", exit_code=ExitCode.USAGE
        )


class Decision(Struct, frozen=True):
    """Supervise's decision about a failure of the job, and its time (Unix seconds)."""

    t: float
    verdict: FailureVerdict
    plan: Plan

    @property
    def short_text(self) -> str:
        """The cause, its confidence, and the action."""
        return f"{self.verdict.cause.value} ({self.verdict.confidence:.2f}): {self.plan.kind.value}"

    @property
    def text(self) -> str:
        """As `short_text`, with the reason."""
        return f"{self.short_text}: {self.plan.reason}"


class DrilledJob:
    """One job of a drill. `state` and `scratch` are its directories (identity.py); `prepare` is called in each child before it begins.

    bar: shows the subject of the wait. The job prints on the same terminal, so these are lines (`beside_output`).
    """

    def __init__(  # noqa: PLR0913, PLR0917  what runs, where, and how it is shown
        self, settings: Settings, command: Sequence[str], state: Path, scratch: Path, prepare: Callable[[], None], bar: ProgressBar
    ) -> None:
        self.settings, self._command = settings, list(command)
        self._state, self.scratch = state, scratch
        self._prepare, self._bar = prepare, bar
        self._follower = ViewFollower(state / "journal.jsonl")
        self.pid = 0
        self.status: int | None = None

    def order(self, content: Mapping[str, object]) -> None:
        """Write the order that the ranks read at their start (`instrument/_drill/_supervise_drill.py`)."""
        (self.scratch / "drill").write_text(json.dumps(content))

    def start(self) -> None:
        """Fork: the child is `supervise` as a person would start it. No other thread runs at this moment."""
        sys.stdout.flush()
        sys.stderr.flush()
        drill = os.getpid()
        self.status, self.pid = None, os.fork()
        if self.pid:
            return
        code = int(ExitCode.BUG)
        try:
            die_with_parent(signal.SIGTERM)  # a drill that is killed leaves no job that nobody knows of
            if os.getppid() != drill:
                os._exit(128 + signal.SIGTERM)
            self._prepare()
            from supervisor.report.terminal import terminal_of  # noqa: PLC0415 (its thread is the child's alone)
            from supervisor.run.start import run  # noqa: PLC0415 (the heavy part, in the child alone)

            code = run(self.settings, self._command, terminal_of(self.settings))
        except SuperviseError as error:
            stdio.say(f"error: {error.message}")
            stdio.say(error.hint)
            code = error.exit_code
        finally:
            os._exit(code)

    def has_ended(self) -> bool:
        """Return whether `supervise` has ended, and keep its exit status."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def wait(self, find: Callable[[], T | None], deadline_s: float | None = None, *, every_s: float = POLL_S, phase: str = "") -> T | None:
        """Return what `find` returns first; None if the job ended, or the time was over, before it returned anything.

        phase: the subject of the wait, shown with the time that is left; "" where `find` shows it.
        """
        began = time.monotonic()
        while True:
            ended = self.has_ended()
            answer = find()
            lasted_s = time.monotonic() - began
            if answer or ended or (deadline_s is not None and lasted_s > deadline_s):
                return answer or None
            if phase:
                self._bar.at(f"drill: {phase}", lasted_s, deadline_s, SECONDS)
            time.sleep(every_s)

    def stop(self) -> None:
        """Send TERM and wait for the end, however long it takes."""
        os.kill(self.pid, signal.SIGTERM)
        self.wait(self.has_ended, phase="waiting for the job's end")

    def end(self) -> None:
        """End the job if it still runs, and wait until it has ended: until then it may write checkpoints."""
        if self.pid and not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)  # not waited for yet, so the pid is still its
            self.wait(self.has_ended, self.settings.stop.deadline_s + END_MARGIN_S, phase="waiting for the job's end")

    def newest_attempt(self) -> int:
        """Return the number of the newest attempt, 0 before the first."""
        return max((int(path.name.rpartition("-")[2]) for path in self.scratch.glob("attempt-[0-9]*")), default=0)

    def attempt_dir(self, attempt: int) -> Path:
        """Return where the ranks of an attempt leave their heartbeats and logs of saves and loads."""
        return identity.attempt_dir(self.scratch, attempt)

    def log_dir(self, attempt: int) -> Path:
        """Return where the output of an attempt's ranks is kept."""
        return self._state / "attempts" / f"{attempt:04d}"

    def beats(self) -> list[RankHeartbeat]:
        """Return the heartbeats of the newest attempt."""
        return list(heartbeats.read(self.attempt_dir(self.newest_attempt()) / "heartbeat"))

    def view(self) -> JobView:
        """Return the facts of the journal by now; an unknown one is absent, and so are all before there is a journal."""
        with contextlib.suppress(OSError):
            self._follower.advance()
        return self._follower.view

    def decisions(self, since_t: float = 0.0) -> list[Decision]:
        """Return what supervise decided from this time on (Unix seconds)."""
        failures = (failure for incident in self.view().incidents for failure in incident.failures)
        rows = ((failure.decided_t, failure.decision) for failure in failures)
        decisions = (Decision(t, decision.verdict, decision.plan) for t, decision in rows if t is not None and decision is not None)
        return [decision for decision in decisions if decision.t >= since_t - POLL_S]


def is_alive(beat: RankHeartbeat) -> bool:
    """Return whether a rank is still the process that wrote this heartbeat."""
    return start_ticks_of(beat.pid) == beat.start_ticks


def send(pid: int, start_ticks: int, signum: int) -> bool:
    """Send a process a signal if it is still the one that began at `start_ticks`; return whether it was sent."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # it is gone
        return False
    try:
        if start_ticks_of(pid) != start_ticks:
            return False
        signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def steps_made(beat: RankHeartbeat) -> int:
    """Return the rank's absolute step, where it is not known the steps of this process."""
    return beat.steps if beat.step is None else beat.step
