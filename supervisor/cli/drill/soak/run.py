"""Runs a soak: the job with faults, then the same job without any, each in a scratch directory, and the report of both.

The drill takes the part of systemd or of a scheduler: it starts the same command again where `supervise` itself was killed. The first run
ends early enough for the second one to make the same steps within the hours; a fault is put in only where the job can come back in time.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from checkpointing.model import count_text
from supervisor.cli import stdio
from supervisor.cli.drill import scratch_job
from supervisor.cli.drill.faults import put_shim_on_path
from supervisor.cli.drill.scratch_job import ScratchPlace
from supervisor.cli.drill.soak import losses, memory_group, neighbours
from supervisor.cli.drill.soak.faults import ROWS, Faults
from supervisor.cli.drill.soak.observation import Observation
from supervisor.cli.drill.soak.report import FaultResult, SoakReport
from supervisor.cli.drill.soak.schedule import Schedule, SoakFault, TimeBox
from supervisor.cli.progress import SECONDS, progress
from supervisor.cli.signals import exit_on_signals
from supervisor.config.settings import Origin, with_values
from supervisor.core.units import span_text
from supervisor.core.values import Struct, replace
from supervisor.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from checkpointing.command_line.progress import ProgressBar
    from supervisor.cli.drill.drilled_job import DrilledJob
    from supervisor.cli.drill.scratch_directory import ScratchDirectory
    from supervisor.cli.drill.soak.faults import Strike
    from supervisor.cli.drill.soak.memory_group import MemoryGroup
    from supervisor.config.settings import Settings

T = TypeVar("T")
KIND: Final = "soak"
#: Settings of the drill's job, where the user has set none: a stopped rank is found within half a minute, and faults that come as often as
#: these do end no run.
_LIMITS: Mapping[str, str | float] = MappingProxyType(
    {"hang.action": "restart", "hang.train_s": 20.0, "hang.phase_s": 120.0, "restart.intensity": 1000}
)
#: The job is looked at so often.
_LOOK_S = 0.1
#: So long the journal may take to say how an attempt began.
_JOURNAL_S = 10.0


class SoakOrder(Struct, frozen=True):
    """The order of a soak. hours: in all; rate: faults for each hour in which the job trains; seed: None draws one."""

    hours: float
    rate: float
    seed: int | None
    place: ScratchPlace


def drill(settings: Settings, command: Sequence[str], order: SoakOrder) -> int:
    """Run the soak; returns 0 if it showed nothing wrong, 128 + the signal that ended it, else 1.

    Raises SuperviseError before anything starts.
    """
    scratch_job.refuse(settings, command, order.place, "drill soak")
    neighbours.refuse()
    name, state = scratch_job.real_state(settings, command)
    exit_on_signals()
    with contextlib.ExitStack() as cleanup:
        soak = _Soak(settings, command, order, name, cleanup.enter_context(progress(beside_output=True)))

        def make_scratch() -> ScratchDirectory:
            scratch = scratch_job.make_scratch(settings, state, order.place)
            cleanup.callback(lambda: scratch.remove(keep_state=not soak.report.is_sound))
            return scratch

        group = memory_group.make()
        if group is not None:
            cleanup.callback(group.remove)
        code = soak.go(make_scratch, group)
        if code in {ExitCode.USAGE, ExitCode.CONFIG}:
            return code
        shown = soak.print_report()
        return code or shown


class _Soak:
    """One soak."""

    def __init__(self, settings: Settings, command: Sequence[str], order: SoakOrder, name: str, bar: ProgressBar) -> None:
        limits = {key: value for key, value in _LIMITS.items() if settings.origin(key).kind == "default"}
        self._settings = with_values(settings, dict(limits), dict.fromkeys(limits, Origin("command line", "drill soak")))
        self._command, self._name, self._bar = command, name, bar
        seed = secrets.randbelow(1_000_000) if order.seed is None else order.seed
        self.report = SoakReport(seed, order.rate, order.hours)
        self._schedule = Schedule(seed, order.rate)
        self._box, self._began = TimeBox(order.hours * 3600), time.monotonic()
        self._closed: set[SoakFault] = set()  # kinds that are not put in again
        self._unseen = set(SoakFault)  # kinds that were not possible so far
        self._job: DrilledJob
        self._observed: Observation
        self.address = ""

    # --- the two runs

    def go(self, make_scratch: Callable[[], ScratchDirectory], group: MemoryGroup | None) -> int:
        """Make both runs; returns 0, the code with which the job refused its own settings, or 128 + the signal that ended the soak."""
        report = self.report
        stdio.say(f"drill: soak of {report.hours:g} h, {report.rate:g} faults for each hour of training, seed {report.seed}")
        if self._settings.hang.action == "warn":
            self._closed.add(SoakFault.STOP)
            report.left_out[SoakFault.STOP] = "with --on-hang warn a rank that is stopped is reported, and stays stopped"
        if group is None:
            report.memory = "no control group can be made here, so torch.OutOfMemoryError was raised, once at most"
        scratch = make_scratch()
        stdio.say(f"drill: the job trains in {scratch.work}: its own files stay as they are; Ctrl-C ends the soak with a report")
        self._use(scratch, KIND, group)
        try:
            try:
                self._run_with_faults(Faults(self._job, group))
            finally:
                self._job.end()
                self._sum_up()
            if self._job.status in {ExitCode.USAGE, ExitCode.CONFIG} and not report.faults:
                return int(self._job.status)  # it has reported why
            self._run_quietly(make_scratch, scratch)
        except (KeyboardInterrupt, SystemExit) as interruption:
            report.ended = "a signal ended the soak"
            report.losses = losses.unknown("the quiet run was not over")
            if report.faults and report.faults[-1].back_s is None:
                report.faults[-1].interrupted = True
            return int(interruption.code or 0) if isinstance(interruption, SystemExit) else 128 + signal.SIGINT
        return 0

    def _use(self, scratch: ScratchDirectory, kind: str, group: MemoryGroup | None) -> None:
        """Have a job of the drill in a scratch directory, and watch it."""

        def prepare() -> None:
            if group is not None:
                group.enter()
            if kind == KIND:
                put_shim_on_path()

        self._job = scratch_job.job_in(scratch, self._settings, self._command, f"{self._name[:50]}-drill-{kind}", self._bar, prepare)
        self._observed = Observation(self._job)
        self.address = self.address or f"--job {self._job.settings.job.name} --state-dir {scratch.state}"

    def _run_with_faults(self, faults: Faults) -> None:
        self._job.order({"kind": KIND})
        self._observed.start()
        if not self._wait(self._observed.all_train, lambda: self._all_s() - self._box.total_s / 2):
            self.report.ended = (
                f"the job ended ({self._job.status}) before all ranks trained"
                if self._job.has_ended()
                else "no step was seen in half of the hours"
            )
            return
        self._box = replace(self._box, first_start_s=self._elapsed_s)
        is_going = True
        while is_going:
            is_going = bool(self._wait(self._is_due(self._schedule.gap_s()), self._left_s)) and self._strike(faults)
        self._wait(lambda: self._see(faults), self._left_s)  # it trains on until the quiet run is due
        if self._job.has_ended() and not self.report.ended:
            self.report.ended = f"the command ended by itself ({self._job.status}) after {self._elapsed_s / 60:.1f} min"
            self.report.has_failed = self._job.status != 0

    def _see(self, faults: Faults) -> None:
        """Note the possible faults, also where the time was too short for them: the report names the others."""
        self._unseen -= faults.possible(self._unseen, self._observed.beats())

    def _run_quietly(self, make_scratch: Callable[[], ScratchDirectory], soaked: ScratchDirectory) -> None:
        """Make the same steps without a fault, and compare the losses."""
        report, with_faults = self.report, self._observed
        if not with_faults.has_losses:
            report.losses = losses.unknown("no losses were printed or reported")
            return
        top, soaked_losses = with_faults.top, with_faults.losses()
        stdio.say(f"drill: the faults are over at step {top}; the quiet run makes the same steps")
        quiet = make_scratch()
        soaked.remove_work()  # the quiet run needs as much room
        try:
            self._use(quiet, "quiet", None)
            self._observed.start()
            self._wait(lambda: self._observed.top >= top, self._all_s)
        finally:
            self._job.end()
            self._observed.look()
        report.losses = losses.compare(soaked_losses, self._observed.losses())

    # --- one fault

    def _strike(self, faults: Faults) -> bool:
        """Put a fault into the job, and await what becomes of it; False if the faults are over."""
        if not self._wait(self._observed.all_train, self._left_s):
            return False
        self._beginning()  # or nobody knows which steps are lost
        beats = self._observed.beats()
        possible = faults.possible(set(SoakFault) - self._closed, beats)
        self._unseen -= possible
        kind = self._schedule.kind({kind for kind in possible if self._left_s() >= self._need_s(kind)})
        if kind is None:
            return any(self._left_s() >= self._need_s(other) for other in set(SoakFault) - self._closed)
        rank = self._schedule.rank({beat.rank for beat in beats})
        step = self._observed.step()
        strike = faults.strike(kind, rank, beats, lambda find: self._wait(find, lambda: self._left_s() - self._need_s(kind)))
        if strike is None:
            return not self._job.has_ended()
        step = self._observed.step() if ROWS[kind].place else step
        result = FaultResult(kind, strike.title, step, t=strike.t)
        self.report.faults.append(result)
        stdio.say(f"drill: fault {len(self.report.faults)}: {strike.title} at step {step}")
        self._observed.is_disturbed = True
        try:
            is_going = self._recover(strike, result)
        finally:
            faults.undo(strike)
            self._observed.is_disturbed = False
        self._account(strike, result)
        if result.is_finding or (kind is SoakFault.OOM and self.report.memory):
            self._closed.add(kind)
        return is_going

    def _recover(self, strike: Strike, result: FaultResult) -> bool:
        """Await that all ranks train again; False if the job does not continue."""
        if strike.kind is SoakFault.SUPERVISOR:
            self._job.wait(self._job.has_ended)
            self._observed.start()  # as systemd or the scheduler would
        is_back = self._wait(lambda: strike.is_over(self._observed.beats()), self._all_s)
        if not is_back and self._job.has_ended() and self._job.status != 0:
            result.ended_with = self._job.status
            stdio.say(f"drill: the job ended with {self._job.status}: a finding; it is started again, as a person would")
            self._observed.start()
            is_back = self._wait(self._observed.all_train, self._all_s)
        if is_back:
            result.back_s = time.time() - strike.t
            stdio.say(f"drill: all ranks train {span_text(result.back_s)} after the fault")
            return True
        if self._job.has_ended():
            self.report.ended = f"the job ended with {self._job.status} after fault {len(self.report.faults)}"
            if self._job.status == 0:  # the training was over
                result.back_s = time.time() - strike.t
        return False

    def _account(self, strike: Strike, result: FaultResult) -> None:
        """Take over what supervise says: the cause, and at which step it continues."""
        if ROWS[strike.kind].goes_on and not self._is_restarted(strike):
            result.again = 0
        elif result.back_s is not None:
            began = self._beginning()
            result.again = None if began is None or result.step is None else max(0, result.step - began)
        decisions = self._job.decisions(strike.t)
        result.decision = decisions[0] if decisions else None

    def _beginning(self) -> int | None:
        """Await what supervise says on where the attempt began; None if it says nothing."""
        until_s = self._elapsed_s + _JOURNAL_S
        began = self._wait(lambda: None if (step := self._observed.beginning()) is None else (step,), lambda: until_s - self._elapsed_s)
        return began[0] if began else None

    def _is_restarted(self, strike: Strike) -> bool:
        pids = {beat.pid for beat in self._observed.beats()}
        return not pids <= {beat.pid for beat in strike.ranks.values()}

    # --- the time

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _is_due(self, after_s: float) -> Callable[[], bool]:
        due_s = self._elapsed_s + after_s
        return lambda: self._elapsed_s >= due_s

    def _left_s(self) -> float:
        """Return how long the run with faults may continue: the quiet run follows it, where there are losses to compare."""
        box = replace(self._box, new_steps_s=self._observed.new_steps_s)
        return box.left_s(self._elapsed_s, with_quiet_run=self._observed.has_losses)

    def _all_s(self) -> float:
        """Return the seconds that are left of the hours."""
        return self._box.left_s(self._elapsed_s, with_quiet_run=False)

    def _need_s(self, kind: SoakFault) -> float:
        """Return what the job needs to come back from a fault, as far as is known by now."""
        known_s = max((fault.back_s for fault in self.report.faults if fault.kind is kind and fault.back_s is not None), default=None)
        return self._box.need_s(known_s, self._settings.hang.train_s if kind is SoakFault.STOP else 0.0)

    def _wait(self, find: Callable[[], T | None], left_s: Callable[[], float]) -> T | None:
        """Return what `find` returns first; None if the job ended, or nothing was left of the time. The job is looked at meanwhile."""

        def look() -> tuple[T | None] | None:
            self._observed.look()
            faults = count_text(len(self.report.faults), "fault")
            run = "the quiet run" if self.report.elapsed_s else "the run with faults"
            self._bar.at(f"drill: {run}: step {self._observed.top}, {faults} so far", self._elapsed_s, self._box.total_s, SECONDS)
            answer = find()
            return (answer,) if answer or left_s() <= 0 else None

        answered = self._job.wait(look, every_s=_LOOK_S)
        return answered[0] if answered else None

    # --- the report

    def _sum_up(self) -> None:
        """Take what the run with faults has shown, once it has ended."""
        report, observed = self.report, self._observed
        observed.look()
        report.elapsed_s, report.new_steps_s = self._elapsed_s, observed.new_steps_s
        struck = {fault.kind for fault in report.faults}
        for kind in SoakFault if self._box.first_start_s else ():
            if kind in self._unseen and ROWS[kind].absent:
                report.left_out.setdefault(kind, ROWS[kind].absent)
            elif kind not in struck:
                report.left_out.setdefault(kind, "not drawn in these hours: a greater --hours or --rate brings it")
        windows = [(fault.t, fault.t + (fault.back_s or report.elapsed_s) + _JOURNAL_S) for fault in report.faults]
        decisions = self._job.decisions()
        report.besides = [decision for decision in decisions if not any(begin <= decision.t <= end for begin, end in windows)]

    def print_report(self) -> int:
        """Print the report; return the exit code."""
        stdio.show(*self.report.pages("" if self.report.is_sound else self.address))
        return 0 if self.report.is_sound else 1
