"""The drills with a fault: they run the user's own job with one fault in it, and report the recovery and its cost.

The job runs under `supervise` in a forked child, under a name of its own, and trains in a scratch directory (scratch_directory.py): the
real job's journal, budget and checkpoints stay untouched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from checkpointing.discover import find
from checkpointing.model import count_text
from supervisor.cli import stdio
from supervisor.cli.drill import scratch_job
from supervisor.cli.drill.drilled_job import POLL_S, Decision, is_alive, send, steps_made
from supervisor.cli.drill.scratch_job import ScratchPlace
from supervisor.cli.progress import progress
from supervisor.cli.signals import exit_on_signals
from supervisor.config.settings import Origin, with_values
from supervisor.core.actions import ReportResume
from supervisor.core.units import span_text
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report.layout import Fact, FactPage, Tone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from supervisor.cli.drill.drilled_job import DrilledJob
    from supervisor.cli.drill.scratch_directory import ScratchDirectory
    from supervisor.config.settings import Settings

KINDS = ("kill", "hang", "oom", "nan", "bitrot", "preempt")
#: The faults that the ranks do to themselves.
INSIDE = ("oom", "nan")
#: The directory on PYTHONPATH of these drills' ranks, besides the instrumentation.
SHIM = Path(__file__).resolve().parents[2] / "instrument" / "_drill"
#: The time that a preempted job has: the shortest notice of a scheduler.
PREEMPT_LEFT_S = 10.0
#: The limits of a hang drill, where the user has set none: a stopped rank is found and the job started again within half a minute.
HANG_LIMITS: Mapping[str, str | float] = MappingProxyType({"hang.action": "restart", "hang.train_s": 10.0, "hang.phase_s": 10.0})
#: A bit is flipped here in the middle of the file, where the tensors are.
BIT = 0x10
_UNDONE = Fact("undone", "the drill let the rank continue")
_NOT_RECOVERED = Fact("recovered", "no", Tone.BAD)


class DrillOrder(Struct, frozen=True):
    """The rehearsal. rank: whose fault it is. patience_s: how long a hang or NaN may continue. deadline_s: for all of it."""

    kind: str
    at_step: int
    rank: int
    patience_s: float
    deadline_s: float
    place: ScratchPlace


class Struck(Struct, frozen=True):
    """The fault: when (Unix seconds), at which step, in words."""

    t: float
    step: int
    text: str


class Account(Struct, frozen=True):
    """The journal's facts since the fault. Times are Unix seconds; None: it did not happen.

    noticed: an alert or an incident, and its text. opened_t: the incident or the stop, without which the job continues as it is.
    """

    noticed: tuple[float, str] | None
    opened_t: float | None
    decisions: list[Decision]
    resumed: tuple[float, ReportResume] | None = None

    @staticmethod
    def of(job: DrilledJob, since_t: float, stop_t: float | None) -> Account:
        """Return the account of a job since the fault. stop_t: when a stop was requested, where that is the fault."""
        view = job.view()
        decisions = job.decisions(since_t)
        incident = next((incident for incident in view.incidents if incident.opened_t >= since_t - POLL_S), None)
        opened_t, text = (stop_t, "asked to stop") if incident is None else (incident.opened_t, incident.summary)
        if opened_t is not None:
            is_later = view.resumed is not None and view.resumed[0] >= opened_t  # the first attempt reports its own beginning
            return Account((opened_t, text), opened_t, decisions, view.resumed if is_later else None)
        if view.hang is None:
            return Account(None, None, decisions)
        t, hang = view.hang
        goes_on = f"the job continues: --on-hang {job.settings.hang.action}"
        return Account((t, f"no progress for {hang.still_s:.0f} s: {hang.text}; {goes_on}"), None, decisions)


def drill(settings: Settings, command: Sequence[str], order: DrillOrder) -> int:
    """Run the drill; returns 0 or 1. Raises SuperviseError before anything was started."""
    scratch_job.refuse(settings, command, order.place, f"drill {order.kind}")
    if order.kind == "bitrot" and not settings.checkpoints.paths:
        raise SuperviseError(
            "bitrot damages the newest checkpoint, and none is declared", hint="Add --checkpoints 'DIR/*.pt'.", exit_code=ExitCode.USAGE
        )
    if order.kind == "hang":
        limits = {key: value for key, value in HANG_LIMITS.items() if settings.origin(key).kind == "default"}
        settings = with_values(settings, dict(limits), dict.fromkeys(limits, Origin("command line", "drill hang")))
    if order.kind == "preempt":
        settings = dataclasses.replace(settings, stop=dataclasses.replace(settings.stop, notice_s=PREEMPT_LEFT_S))
    name, state = scratch_job.real_state(settings, command)
    scratch = scratch_job.make_scratch(settings, state, order.place)
    try:
        with progress(beside_output=True) as bar:
            shim = put_shim_on_path if order.kind in INSIDE else lambda: None
            job = scratch_job.job_in(scratch, settings, command, f"{name[:50]}-drill-{order.kind}", bar, shim)
            return _Drill(order, scratch, job).go()
    finally:
        scratch.remove(keep_state=True)


def put_shim_on_path() -> None:
    """Put the drill's shim on the PYTHONPATH that this process, which becomes `supervise`, gives its ranks."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{SHIM}{os.pathsep}{path}" if path else str(SHIM)


class _Drill:
    """One drill."""

    def __init__(self, order: DrillOrder, scratch: ScratchDirectory, job: DrilledJob) -> None:
        self._order, self._scratch, self._job = order, scratch, job
        self._ended_by_us = False
        self._stop_t: float | None = None  # when a preempted job was asked to stop, and when it had saved
        self._saved_t: float | None = None
        self._noticed: tuple[float, str] | None = None  # the first that was seen
        self._ended_first = False  # before anybody noticed the fault
        self._until = time.monotonic() + order.deadline_s

    def go(self) -> int:
        """Start the job, strike, await the recovery, end the job, report."""
        order = self._order
        if order.kind in INSIDE:
            rank = None if order.kind == "nan" else order.rank  # what makes a NaN is averaged over all ranks
            self._job.order({"kind": order.kind, "step": order.at_step, "rank": rank})
        place = f"in {self._scratch.work}: the job's own files and checkpoints stay as they are"
        stdio.say(f"drill: {order.kind} at step {order.at_step}, {place}")
        exit_on_signals()
        try:
            self._job.start()
            struck = self._job.wait(self._strike, self._left_s(), phase=f"training to step {order.at_step}")
            if struck is not None:
                stdio.say(f"drill: {struck.text} at step {struck.step}")
                self._recover(struck)
            if not self._job.has_ended():
                self._ended_by_us = True
                stdio.say("drill: seen enough; stopping the job")
                self._job.stop()
        finally:
            self._job.end()
        return self._report(struck)

    def _left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    # the fault

    def _strike(self) -> Struck | None:
        """Do it, once the step is made; None while it is not."""
        order = self._order
        if order.kind in INSIDE:
            return self._struck_inside()
        beat = next((beat for beat in self._job.beats() if beat.rank == order.rank and steps_made(beat) >= order.at_step), None)
        if beat is None or not is_alive(beat):
            return None
        damaged = self._damage() if order.kind == "bitrot" else ""
        if damaged is None:
            return None
        now, step = time.time(), steps_made(beat)
        if order.kind == "preempt":
            os.kill(self._job.pid, signal.SIGUSR1)
            return Struck(now, step, f"notice was given (USR1), with {PREEMPT_LEFT_S:.0f} s left,")
        if not send(beat.pid, beat.start_ticks, signal.SIGSTOP if order.kind == "hang" else signal.SIGKILL):
            return None
        done = {"hang": "was stopped", "kill": "was killed", "bitrot": f"was killed, with a bit of {damaged} flipped,"}[order.kind]
        return Struck(now, step, f"rank {order.rank} {done}")

    def _struck_inside(self) -> Struck | None:
        for path in sorted(self._job.scratch.glob("drill-struck-*")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                row = json.loads(path.read_text())
                done = "ran out of memory" if self._order.kind == "oom" else "and all others got gradients of NaN"
                return Struck(float(row["t"]), int(row["step"]), f"rank {path.name.rpartition('-')[2]} {done}")
        return None

    def _damage(self) -> str | None:
        """Flip a bit of the newest checkpoint that the drill's job saved, and return its name; None while there is none."""
        listing = find(self._job.settings.checkpoints.paths, str(self._scratch.work))
        whole = [candidate for candidate in listing.candidates if candidate.identity.size and Path(candidate.path).is_file()]
        if not whole:
            return None
        path = max(whole, key=lambda candidate: candidate.identity.mtime_ns).path
        try:
            with open(path, "r+b", buffering=0) as file:  # noqa: PTH123  of a file that may be pruned this moment
                middle = os.fstat(file.fileno()).st_size // 2
                os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, middle)[0] ^ BIT]), middle)
        except (FileNotFoundError, IndexError):
            return None
        return self._relative_path(path)

    def _relative_path(self, path: str) -> str:
        """Return a path as the job names it: in its working directory."""
        return os.path.relpath(os.path.realpath(path), os.path.realpath(self._scratch.work))

    # what became of it

    def _recover(self, struck: Struck) -> None:
        """Await the first step after the fault, or the end."""
        order = self._order
        if order.kind == "preempt":
            has_ended = self._job.wait(self._job.has_ended, self._left_s(), phase="the job saves and ends")
            view = self._job.view()
            self._stop_t, self._saved_t = view.stop_t, view.saved_t
            if not has_ended:
                return
            self._job.start()  # as the scheduler's requeue would
        elif order.kind in {"hang", "nan"} and not self._job.wait(
            lambda: self._account(struck).opened_t, order.patience_s, phase="waiting until supervise notices it"
        ):
            self._ended_first = self._job.has_ended()
            if order.kind == "hang":
                for beat in self._job.beats():
                    if beat.rank == order.rank:
                        send(beat.pid, beat.start_ticks, signal.SIGCONT)
            return
        self._job.wait(lambda: self._account(struck).resumed, self._left_s(), phase="waiting for the first step after the fault")

    def _account(self, struck: Struck) -> Account:
        account = Account.of(self._job, struck.t, self._stop_t)
        self._noticed = self._noticed or account.noticed
        return account

    def _report(self, struck: Struck | None) -> int:
        order = self._order
        if struck is None and self._job.status in {ExitCode.USAGE, ExitCode.CONFIG}:
            return int(self._job.status)  # it has reported why
        more = Fact("more", f"supervise why --job {self._job.settings.job.name} --state-dir {self._scratch.state}", copied=True)
        if struck is None:
            ended = f"{span_text(order.deadline_s)} were over" if self._ended_by_us else f"the job ended ({self._job.status})"
            title = f"drill {order.kind}: {ended} before step {order.at_step}; nothing was rehearsed"
            stdio.show(FactPage(title, (more,), Tone.BAD))
            return 1
        account = self._account(struck)
        code = Fact("exit code", f"{self._job.status}{', as the drill ended the job' if self._ended_by_us else ''}")
        facts = tuple(self._facts(struck, account))
        stdio.show(FactPage(f"drill {order.kind}: {struck.text} at step {struck.step}", (*facts, code, more)))
        return 0 if account.resumed is not None else 1

    def _facts(self, struck: Struck, account: Account) -> Iterator[Fact]:
        """Yield the rows of the report: noticed, decided, recovered, lost, and the parts without proof."""
        order, (resumed_t, resumed) = self._order, account.resumed or (0.0, None)
        if self._noticed is None:
            opened = "no incident" if order.kind == "nan" else "not"  # a NaN that is printed is a warning
            within = "no: the job had ended by then" if self._ended_first else f"{opened} within {span_text(order.patience_s)}"
            yield Fact("noticed", within, Tone.BAD)
            if order.kind == "hang" and not self._ended_first:
                yield _UNDONE
            if order.kind == "nan":
                check = "or a check such as `if not loss.isfinite(): raise` makes it a failure"
                yield Fact("advice", f"--set loss.on_nan=restart, where the script prints or reports its loss, {check}")
            return
        yield Fact("noticed", f"after {span_text(self._noticed[0] - struck.t)}: {self._noticed[1]}")
        if account.opened_t is None and order.kind == "hang" and not self._ended_first:
            yield from (_UNDONE, _NOT_RECOVERED)
            return
        yield from (Fact("decided", decision.text) for decision in account.decisions[-1:])
        changes = (change for decision in account.decisions for change in decision.plan.changes)
        yield from (Fact("changed", f"{change.how or change.knob} {change.old}→{change.new}") for change in changes)
        if order.kind == "preempt":
            by_itself = resumed is not None and resumed.path is not None and (resumed.step or 0) >= struck.step
            saved = (
                "by the script itself, before it ended"
                if by_itself
                else "not shown: it does not ask worker.should_save(), or the next start did not load what it saved"
            )
            yield Fact("saved", saved if self._saved_t is None else f"after {span_text(self._saved_t - struck.t)}, on request")
        if resumed is None:
            yield _NOT_RECOVERED
            return
        start, step = "from scratch" if resumed.path is None else f"from {self._relative_path(resumed.path)}", resumed.step or 0
        again = count_text(max(0, struck.step - step), "step")
        tone = Tone.WARNING if resumed.path is None else Tone.GOOD
        yield Fact("recovered", f"at step {step} {start}; {again} made again", tone)
        yield Fact("next step", f"{span_text(resumed_t - struck.t)} after the fault")
        yield Fact("not shown", "whether the losses continue as before: `supervise drill resume` compares them")
