"""The drills with a fault: they run the user's own job with one fault in it, and report what was recovered and what it cost.

The job runs under `supervise` in a forked child, under a name of its own: the real job's journal and budget stay untouched. The
command writes its checkpoints where it always does.

A bitrot drill replaces the newest checkpoint with a damaged copy. The original lies beside it under a name that begins with a dot. When the
job has ended it goes back, but only in the place of that very copy: what the job wrote there itself stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from checkpointing.discover import find
from supervisor.cli import stdio
from supervisor.cli.drill.drilled_job import DrilledJob, is_alive, require_steps, send, steps_made
from supervisor.cli.signals import exit_on_signals
from supervisor.config.settings import Origin, with_values
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.journal import records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.config.settings import Settings

KINDS = ("kill", "hang", "oom", "nan", "bitrot", "preempt")
#: The faults that the ranks do to themselves.
INSIDE = ("oom", "nan")
#: What the ranks of these drills have on PYTHONPATH besides the instrumentation.
SHIM = Path(__file__).resolve().parents[2] / "instrument" / "_drill"
#: What a preempted job has: the least that a scheduler's notice is worth.
PREEMPT_LEFT_S = 10.0
#: The limits of a hang drill, where the user has set none: a stopped rank is found and the job started again within half a minute.
HANG_LIMITS: Mapping[str, str | float] = MappingProxyType({"hang.action": "restart", "hang.train_s": 10.0, "hang.phase_s": 10.0})
UNDONE = "  undone     the rank was let go on by the drill"
#: A bit is flipped here in the middle of the file, where the tensors are.
BIT = 0x10


class DrillOrder(Struct, frozen=True):
    """What is rehearsed. rank: whose fault it is. patience_s: how long a hang or NaN may go on. finish: let the job run on."""

    kind: str
    at_step: int
    rank: int
    patience_s: float
    finish: bool
    yes: bool


class Struck(Struct, frozen=True):
    """The fault: when (Unix seconds), at which step, in words."""

    t: float
    step: int
    what: str


class Aside(Struct, frozen=True):
    """A checkpoint at `path` that was put aside as `original`; `copy` is the damaged one that stands in its place (`_identity`)."""

    original: Path
    path: Path
    copy: tuple[int, ...]


class Account(Struct):
    """What the journal says since the fault. Times are Unix seconds, None: it did not happen.

    noticed_t: first an alert or an incident; opened_t: the incident, without which the job goes on as it is.
    """

    noticed_t: float | None = None
    opened_t: float | None = None
    noticed: str = ""
    decided: str = ""
    changes: tuple[str, ...] = ()
    saved_t: float | None = None
    resumed_t: float | None = None
    resumed_step: int | None = None
    resumed_path: str | None = None
    exit_code: int | None = None


def drill(settings: Settings, command: Sequence[str], order: DrillOrder) -> int:
    """Run the drill; returns 0 or 1. Raises SuperviseError before anything was started."""
    _refuse(settings, order)
    environ, cwd = dict(os.environ), identity.working_directory()
    name = f"{identity.job_name(settings.job.name, environ, cwd, command).name[:44]}-drill-{time.strftime('%m%d%H%M%S')}"
    settings = dataclasses.replace(settings, job=dataclasses.replace(settings.job, name=name))
    if order.kind == "hang":
        limits = {key: value for key, value in HANG_LIMITS.items() if settings.origin(key).kind == "default"}
        settings = with_values(settings, dict(limits), dict.fromkeys(limits, Origin("command line", "drill hang")))
    if order.kind == "preempt":
        settings = dataclasses.replace(settings, stop=dataclasses.replace(settings.stop, notice_s=PREEMPT_LEFT_S))
    state = identity.make_node_state(settings.job.state_dir, cwd, name, identity.node_name())
    return _Drill(settings, command, order, state, identity.make_job_dir(state)).go()


def put_shim_on_path() -> None:
    """Put the drill's shim on the PYTHONPATH that this process, which becomes `supervise`, gives its ranks."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{SHIM}{os.pathsep}{path}" if path else str(SHIM)


def _refuse(settings: Settings, order: DrillOrder) -> None:
    require_steps(settings)
    if order.kind == "nan" and not order.yes:
        raise SuperviseError(
            "a script that does not notice NaN saves it, and may remove its good checkpoints meanwhile",
            hint="Let the command write its checkpoints elsewhere for the drill, and add --yes.",
            exit_code=ExitCode.USAGE,
        )
    if order.kind != "bitrot":
        return
    if not settings.checkpoints.paths:
        raise SuperviseError(
            "bitrot damages the newest checkpoint, and none is declared", hint="Add --checkpoints 'DIR/*.pt'.", exit_code=ExitCode.USAGE
        )
    if not order.yes:
        raise SuperviseError(
            "bitrot puts a damaged copy in the place of your newest checkpoint, and the original back afterwards",
            hint="Add --yes if that may be done here; or copy the checkpoints, and drill with the copies.",
            exit_code=ExitCode.USAGE,
        )


class _Drill:
    """One drill."""

    def __init__(self, settings: Settings, command: Sequence[str], order: DrillOrder, state: Path, scratch: Path) -> None:
        self._settings, self._order = settings, order
        is_inside = order.kind in INSIDE
        self._job = DrilledJob(settings, command, state, scratch, prepare=put_shim_on_path if is_inside else lambda: None)
        self._ended_by_us = False
        self._ended_first = False  # before anybody noticed the fault
        self._aside: Aside | None = None

    def go(self) -> int:
        """Start the job, strike, await the recovery, end the job, report."""
        order = self._order
        if order.kind in INSIDE:
            rank = None if order.kind == "nan" else order.rank  # what makes a NaN is averaged over all ranks
            self._job.order({"kind": order.kind, "step": order.at_step, "rank": rank})
        stdio.say(f"drill: {order.kind} at step {order.at_step}, as job {self._settings.job.name}")
        exit_on_signals()
        try:
            self._job.start()
            struck = self._job.wait(self._strike)
            if struck is not None:
                stdio.say(f"drill: {struck.what} at step {struck.step}")
                self._recover(struck)
            if not order.finish and not self._job.has_ended():
                self._ended_by_us = True
                self._job.stop()
            self._job.wait(self._job.has_ended)
        finally:
            try:
                self._job.end()
            finally:
                self._put_back()
        return self._report(struck)

    # the fault

    def _strike(self) -> Struck | None:
        """Do it, once the step is made; None while it is not."""
        order = self._order
        if order.kind in INSIDE:
            return self._struck_inside()
        beat = next((beat for beat in self._job.beats() if beat.rank == order.rank and steps_made(beat) >= order.at_step), None)
        if beat is None or not is_alive(beat):
            return None
        if order.kind == "bitrot" and not self._damage():
            return None
        now, step = time.time(), steps_made(beat)
        if order.kind == "preempt":
            os.kill(self._job.pid, signal.SIGUSR1)
            return Struck(now, step, f"notice was given (USR1), with {PREEMPT_LEFT_S:.0f} s left,")
        if not send(beat.pid, beat.start_ticks, signal.SIGSTOP if order.kind == "hang" else signal.SIGKILL):
            return None
        what = {"hang": "was stopped", "kill": "was killed", "bitrot": f"was killed, with a bit of {self._damaged} flipped,"}[order.kind]
        return Struck(now, step, f"rank {order.rank} {what}")

    def _struck_inside(self) -> Struck | None:
        for path in sorted(self._job.scratch.glob("drill-struck-*")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                row = json.loads(path.read_text())
                what = "ran out of memory" if self._order.kind == "oom" else "and all others got gradients of NaN"
                return Struck(float(row["t"]), int(row["step"]), f"rank {path.name.rpartition('-')[2]} {what}")
        return None

    # a damaged checkpoint

    @property
    def _damaged(self) -> Path | None:
        return self._aside.path if self._aside else None

    def _damage(self) -> bool:
        """Put a copy with one bit flipped in the place of the newest checkpoint; False while there is none."""
        listing = find(self._settings.checkpoints.paths, str(identity.working_directory()))
        files = [(_identity(path), path) for candidate in listing.candidates if (path := Path(candidate.path)).is_file()]
        whole = [(file, path) for file, path in files if file and file[2]]  # some may have been pruned meanwhile
        if not whole:
            return False
        path = max(whole, key=lambda checkpoint: checkpoint[0][3])[1]
        aside, copy = path.with_name(f".drill-original-{path.name}"), path.with_name(f".drill-copy-{path.name}")
        try:
            shutil.copyfile(path, copy)  # inside the kernel: a checkpoint may be larger than our memory
        except FileNotFoundError:  # pruned this moment
            return False
        shutil.copymode(path, copy)
        with copy.open("r+b", buffering=0) as file:
            middle = os.fstat(file.fileno()).st_size // 2
            os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, middle)[0] ^ BIT]), middle)
        self._aside = Aside(aside, path, _identity(copy))
        stdio.say(f"drill: the original of {path} is kept as {aside} until the end")
        path.rename(aside)
        copy.rename(path)
        return True

    def _put_back(self) -> None:
        """Put the original back, unless the job runs on, or wrote something newer in its place."""
        aside, self._aside = self._aside, None
        if aside is None:
            return
        if not aside.original.exists():  # it was never put aside
            return
        if self._job.pid and self._job.status is None:
            stdio.say(f"drill: the job did not end: {aside.path} is still the damaged copy, its original is {aside.original}")
            return
        if _identity(aside.path) not in {aside.copy, ()}:
            stdio.say(f"drill: the job wrote {aside.path} anew, and that stays; the original of before is {aside.original}")
            return
        aside.original.replace(aside.path)
        stdio.say(f"drill: {aside.path} is the original again")

    # what became of it

    def _recover(self, struck: Struck) -> None:
        """Await the first step after the fault, or the end."""
        order = self._order
        if order.kind == "preempt":
            self._job.wait(self._job.has_ended)
            self._job.start()  # as the scheduler's requeue would
        elif order.kind in {"hang", "nan"} and not self._job.wait(lambda: self._account(struck).opened_t, order.patience_s):
            self._ended_first = self._job.has_ended()
            if order.kind == "hang":
                for beat in self._job.beats():
                    if beat.rank == order.rank:
                        send(beat.pid, beat.start_ticks, signal.SIGCONT)
            return
        self._job.wait(lambda: self._account(struck).resumed_t)

    def _account(self, struck: Struck) -> Account:
        """Read the journal, from the fault on."""
        account = Account()
        with contextlib.suppress(OSError):
            for record in self._job.journal(struck.t):
                _take(account, record.t, record.body)
        return account

    def _report(self, struck: Struck | None) -> int:
        order = self._order
        if struck is None and self._job.status in {ExitCode.USAGE, ExitCode.CONFIG}:
            return int(self._job.status)  # it has reported why
        if struck is None:
            stdio.write(
                sys.stdout, f"drill {order.kind}: the job ended ({self._job.status}) before step {order.at_step}; nothing was rehearsed"
            )
            return 1
        account = self._account(struck)
        lines = [f"drill {order.kind}: {struck.what} at step {struck.step}"]
        lines += _lines(order, struck, account, ended_first=self._ended_first)
        lines.append(f"  exit code  {self._job.status}{', as the drill ended the job' if self._ended_by_us else ''}")
        lines.append(f"  more       supervise why {self._settings.address(self._settings.job.name)}")
        stdio.write(sys.stdout, "\n".join(lines))
        return 0 if account.resumed_t is not None else 1


def _identity(path: Path) -> tuple[int, ...]:
    """Return what tells a file from one that was written later in its place; empty where there is none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _take(account: Account, t: float, body: Any) -> None:  # noqa: ANN401 (any record's body)
    """Take what one record says into the account: of each kind the first."""
    if isinstance(body, records.RunEnded):
        account.exit_code = body.exit_code
    if not isinstance(body, records.EventTaken):
        return
    if body.event == "Saved":
        account.saved_t = account.saved_t or t
    opened, decided, resumed = body.first("OpenIncident"), body.first("ReportDecision"), body.first("ReportResume")
    is_notice = body.event == "StopRequested" and body.data.get("signum") == signal.SIGUSR1
    alert = body.first("Alert")
    if account.noticed_t is None and alert and alert["kind"] == "hang":
        account.noticed_t, account.noticed = t, str(alert["text"])
    if account.opened_t is None and (opened or is_notice):
        account.opened_t = t
        if account.noticed_t is None:
            account.noticed_t, account.noticed = t, str(opened["summary"]) if opened else "asked to stop"
    if decided:
        plan, verdict = decided["plan"], decided["verdict"]
        account.decided = f"{verdict['cause']} ({verdict['confidence']:.2f}): {plan['kind']}: {plan['reason']}"
        changes = tuple(f"{change['how'] or change['knob']} {change['old']}→{change['new']}" for change in plan.get("changes", ()))
        account.changes = (*account.changes, *changes)
    if resumed and account.opened_t is not None and account.resumed_t is None:  # the first attempt reports its own beginning
        account.resumed_t, account.resumed_step, account.resumed_path = t, resumed["step"], resumed["path"]


def _lines(order: DrillOrder, struck: Struck, account: Account, *, ended_first: bool) -> list[str]:
    """Return the lines of the report: noticed, decided, recovered, lost."""
    if account.noticed_t is None:
        lines = [f"  noticed    {'no: the job had ended by then' if ended_first else f'not within {order.patience_s:.0f} s'}"]
        if order.kind == "hang" and not ended_first:
            lines.append(UNDONE)
        if order.kind == "nan":
            lines.append("  advice     the script does not look: a check such as `if not loss.isfinite(): raise` makes it a failure")
        return lines
    lines = [f"  noticed    after {max(0.0, account.noticed_t - struck.t):.1f} s: {account.noticed}"]
    if account.opened_t is None and order.kind == "hang" and not ended_first:
        return [*lines, UNDONE, "  recovered  no"]
    if account.decided:
        lines.append(f"  decided    {account.decided}")
    lines += [f"  changed    {change}" for change in account.changes]
    if order.kind == "preempt":
        by_itself = account.resumed_path is not None and (account.resumed_step or 0) >= struck.step
        saved = (
            "by the script itself, before it ended" if by_itself else "no: it does not ask worker.should_save(), or its save was not seen"
        )
        lines.append(f"  saved      {saved if account.saved_t is None else f'after {account.saved_t - struck.t:.1f} s, on request'}")
    if account.resumed_t is None:
        return [*lines, "  recovered  no"]
    start = f"from {account.resumed_path}" if account.resumed_path else "from scratch"
    step = account.resumed_step or 0
    lines.append(f"  recovered  at step {step} {start}; {max(0, struck.step - step)} step(s) are made again")
    lines.append(f"  next step  {account.resumed_t - struck.t:.1f} s after the fault")
    return lines
