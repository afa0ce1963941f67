"""`supervise drill KIND -- CMD`: runs the user's own job with one fault in it, and reports what was recovered and what it cost.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from checkpointing.discover import find
from supervisor.cli import stdio
from supervisor.cli.invocation import EVERY, Invocation, setting_options
from supervisor.errors import ExitCode, SuperviseError
from supervisor.instrument._supervise_shim.layout import start_ticks_of
from supervisor.job import identity
from supervisor.journal import records
from supervisor.observe.ranks import heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.config.settings import Settings
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

T = TypeVar("T")
KINDS = ("kill", "hang", "oom", "nan", "bitrot", "preempt")
POLL_S = 0.1
#: What a preempted job has: the least that a scheduler's notice is worth.
PREEMPT_LEFT_S = 10.0
#: A bit is flipped here in the middle of the file, where the tensors are.
BIT = 0x10
#: What a job takes beyond its own stop deadline to be gone.
END_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class DrillOrder:
    """What is rehearsed. rank: whose fault it is. patience_s: how long a hang or NaN may go unnoticed. finish: let the job run on."""

    kind: str
    at_step: int
    rank: int
    patience_s: float
    finish: bool
    yes: bool


@dataclass(frozen=True, slots=True)
class Struck:
    """The fault: when (Unix seconds), at which step, in words."""

    t: float
    step: int
    what: str


@dataclass(frozen=True, slots=True)
class Aside:
    """A checkpoint at `path` that was put aside as `original`; `copy` is the damaged one that stands in its place (`_identity`)."""

    original: Path
    path: Path
    copy: tuple[int, ...]


@dataclass(slots=True)
class Account:
    """What the journal says since the fault. Times are Unix seconds, None: it did not happen."""

    noticed_t: float | None = None
    noticed: str = ""
    decided: str = ""
    changes: tuple[str, ...] = ()
    saved_t: float | None = None
    resumed_t: float | None = None
    resumed_step: int | None = None
    resumed_path: str | None = None
    exit_code: int | None = None


@click.command(options_metavar="[OPTIONS]")
@setting_options(*EVERY, takes_command=True)
@click.option("--at-step", type=click.IntRange(min=1), default=10, metavar="N", help="Wait for this step (default: 10).")
@click.option("--rank", type=click.IntRange(min=0), default=0, metavar="N", help="Put the fault into this rank (default: 0).")
@click.option("--patience-s", type=float, default=60.0, metavar="S", help="How long a hang or NaN may stay unnoticed (default: 60).")
@click.option("--finish", is_flag=True, help="Let the job run on after the recovery.")
@click.option("--yes", is_flag=True, help="For nan and bitrot: the drill may damage the checkpoints that CMD writes.")
@click.argument("kind", metavar="KIND -- CMD...", type=click.Choice(KINDS))
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation, *, kind: str, at_step: int, rank: int, patience_s: float, finish: bool, yes: bool
) -> int:
    """KIND is kill, hang, oom, nan, bitrot or preempt. The job runs under a name of its own, with the options of `run`."""
    settings, words = invocation.settings_and_command()
    return drill(settings, words, DrillOrder(kind, at_step, rank, patience_s, finish, yes))


def drill(settings: Settings, command: Sequence[str], order: DrillOrder) -> int:
    """Run the drill; returns 0 or 1. Raises SuperviseError before anything was started."""
    _refuse(settings, order)
    environ, cwd = dict(os.environ), identity.working_directory()
    name = f"{identity.job_name(settings.job.name, environ, cwd, command).name[:44]}-drill-{time.strftime('%m%d%H%M%S')}"
    settings = dataclasses.replace(settings, job=dataclasses.replace(settings.job, name=name))
    if order.kind == "preempt":
        settings = dataclasses.replace(settings, stop=dataclasses.replace(settings.stop, notice_s=PREEMPT_LEFT_S))
    state = identity.make_node_state(settings.job.state_dir, cwd, name, identity.node_name())
    return _Drill(settings, command, order, state, identity.make_job_dir(state)).go()


def _refuse(settings: Settings, order: DrillOrder) -> None:
    if not settings.instrument.enabled:
        raise SuperviseError("a drill needs to see the steps of the ranks", hint="Leave out --no-instrument.", exit_code=ExitCode.USAGE)
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
        self._settings, self._command, self._order = settings, list(command), order
        self._state, self._scratch = state, scratch
        self._child = 0
        self._status: int | None = None
        self._ended_by_us = False
        self._ended_first = False  # before anybody noticed the fault
        self._aside: Aside | None = None

    def go(self) -> int:
        """Start the job, strike, await the recovery, end the job, report."""
        order = self._order
        if order.kind in {"oom", "nan"}:
            rank = None if order.kind == "nan" else order.rank  # what makes a NaN is averaged over all ranks
            (self._scratch / "drill").write_text(json.dumps({"kind": order.kind, "step": order.at_step, "rank": rank}))
        stdio.say(f"drill: {order.kind} at step {order.at_step}, as job {self._settings.job.name}")
        for signum in (signal.SIGTERM, signal.SIGHUP):  # what was put aside is put back; `supervise` in the child sets its own
            signal.signal(signum, lambda number, _frame: sys.exit(128 + number))
        try:
            self._start()
            struck = self._await(self._strike)
            if struck is not None:
                stdio.say(f"drill: {struck.what} at step {struck.step}")
                self._recover(struck)
            self._end()
        finally:
            try:
                self._see_off()
            finally:
                self._put_back()
        return self._report(struck)

    # the job

    def _start(self) -> None:
        """Fork: the child is `supervise` as a person would start it. Nothing of ours runs in threads at this moment."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._status, self._child = None, os.fork()
        if self._child:
            return
        code = int(ExitCode.BUG)
        try:
            from supervisor.run.main import run  # noqa: PLC0415 (the heavy part, in the child alone)

            code = run(self._settings, self._command)
        except SuperviseError as error:
            stdio.say(f"error: {error.message}")
            stdio.say(error.hint)
            code = error.exit_code
        finally:
            os._exit(code)

    def _ended(self) -> bool:
        """Tell whether `supervise` has ended, and keep how."""
        if self._status is None:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status is not None

    def _await(self, look: Callable[[], T | None], deadline_s: float | None = None) -> T | None:
        """Return what `look` finds, None where the job ended or the time was over before."""
        until = None if deadline_s is None else time.monotonic() + deadline_s
        while True:
            ended = self._ended()
            found = look()
            if found or ended or (until is not None and time.monotonic() > until):
                return found or None
            time.sleep(POLL_S)

    def _end(self) -> None:
        if not self._order.finish and not self._ended():
            self._ended_by_us = True
            os.kill(self._child, signal.SIGTERM)
        self._await(self._ended)

    def _see_off(self) -> None:
        """End the job where it still runs, and await that: until then it may write checkpoints."""
        if self._child and not self._ended():
            os.kill(self._child, signal.SIGTERM)  # not waited for yet, so the pid is still its
            self._await(self._ended, self._settings.stop.deadline_s + END_MARGIN_S)

    # the fault

    def _strike(self) -> Struck | None:
        """Do it, once the step is made; None while it is not."""
        order = self._order
        if order.kind in {"oom", "nan"}:
            return self._struck_inside()
        beat = next((beat for beat in self._beats() if beat.rank == order.rank and _made(beat) >= order.at_step), None)
        if beat is None or start_ticks_of(beat.pid) != beat.start_ticks:
            return None
        if order.kind == "bitrot" and not self._damage():
            return None
        now, step = time.time(), _made(beat)
        if order.kind == "preempt":
            os.kill(self._child, signal.SIGUSR1)
            return Struck(now, step, f"notice was given (USR1), with {PREEMPT_LEFT_S:.0f} s left,")
        os.kill(beat.pid, signal.SIGSTOP if order.kind == "hang" else signal.SIGKILL)
        what = {"hang": "was stopped", "kill": "was killed", "bitrot": f"was killed, with a bit of {self._damaged} flipped,"}[order.kind]
        return Struck(now, step, f"rank {order.rank} {what}")

    def _struck_inside(self) -> Struck | None:
        for path in sorted(self._scratch.glob("drill-struck-*")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                row = json.loads(path.read_text())
                what = "ran out of memory" if self._order.kind == "oom" else "and all others got gradients of NaN"
                return Struck(float(row["t"]), int(row["step"]), f"rank {path.name.rpartition('-')[2]} {what}")
        return None

    def _beats(self) -> list[RankHeartbeat]:
        attempts = sorted(self._scratch.glob("attempt-[0-9]*"))
        return list(heartbeats.read(attempts[-1] / "heartbeat")) if attempts else []

    # a damaged checkpoint

    @property
    def _damaged(self) -> Path | None:
        return self._aside.path if self._aside else None

    def _damage(self) -> bool:
        """Put a copy with one bit flipped in the place of the newest checkpoint; False while there is none."""
        listing = find(self._settings.checkpoints.paths, str(identity.working_directory()))
        files = [(_identity(path), path) for candidate in listing.candidates if (path := Path(candidate.path)).is_file()]
        there = [(found, path) for found, path in files if found and found[2]]  # some may have been pruned meanwhile
        if not there:
            return False
        path = max(there, key=lambda one: one[0][3])[1]
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
        if self._child and self._status is None:
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
            self._await(self._ended)
            self._start()  # as the scheduler's requeue would
        elif order.kind in {"hang", "nan"} and not self._await(lambda: self._account(struck).noticed_t, order.patience_s):
            self._ended_first = self._ended()
            if order.kind == "hang":
                for beat in self._beats():
                    if beat.rank == order.rank and start_ticks_of(beat.pid) == beat.start_ticks:
                        os.kill(beat.pid, signal.SIGCONT)
            return
        self._await(lambda: self._account(struck).resumed_t)

    def _account(self, struck: Struck) -> Account:
        """Read the journal, from the fault on."""
        found = Account()
        path = self._state / "journal.jsonl"
        with contextlib.suppress(OSError):
            for record in records.scan(path):
                if isinstance(record, records.Record) and record.t >= struck.t - POLL_S:
                    _take(found, record.t, record.body)
        return found

    def _report(self, struck: Struck | None) -> int:
        order = self._order
        if struck is None and self._status in {ExitCode.USAGE, ExitCode.CONFIG}:
            return int(self._status)  # it has reported why
        if struck is None:
            stdio.write(
                sys.stdout, f"drill {order.kind}: the job ended ({self._status}) before step {order.at_step}; nothing was rehearsed"
            )
            return 1
        found = self._account(struck)
        lines = [f"drill {order.kind}: {struck.what} at step {struck.step}"]
        lines += _lines(order, struck, found, ended_first=self._ended_first)
        lines.append(f"  exit code  {self._status}{', as the drill ended the job' if self._ended_by_us else ''}")
        lines.append(f"  more       supervise why {self._settings.address(self._settings.job.name)}")
        stdio.write(sys.stdout, "\n".join(lines))
        return 0 if found.resumed_t is not None else 1


def _identity(path: Path) -> tuple[int, ...]:
    """Return what tells a file from one that was written later in its place; empty where there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _made(beat: RankHeartbeat) -> int:
    return beat.steps if beat.step is None else beat.step


def _take(found: Account, t: float, body: Any) -> None:  # noqa: ANN401 (any record's body)
    """Take what one record says into the account: of each kind the first."""
    if isinstance(body, records.Ended):
        found.exit_code = body.exit_code
    if not isinstance(body, records.EventTaken):
        return
    if body.event == "Saved":
        found.saved_t = found.saved_t or t
    opened, decided, resumed = body.first("OpenIncident"), body.first("ReportDecision"), body.first("ReportResume")
    asked = body.event == "StopRequested" and body.data.get("signum") == signal.SIGUSR1
    if found.noticed_t is None and (opened or asked):
        found.noticed_t, found.noticed = t, str(opened["summary"]) if opened else "asked to stop"
    if decided:
        plan, verdict = decided["plan"], decided["verdict"]
        found.decided = f"{verdict['cause']} ({verdict['confidence']:.2f}): {plan['kind']}: {plan['reason']}"
        changes = tuple(f"{change['how'] or change['knob']} {change['old']}→{change['new']}" for change in plan.get("changes", ()))
        found.changes = (*found.changes, *changes)
    if resumed and found.noticed_t is not None and found.resumed_t is None:  # the first attempt reports its own beginning
        found.resumed_t, found.resumed_step, found.resumed_path = t, resumed["step"], resumed["path"]


def _lines(order: DrillOrder, struck: Struck, found: Account, *, ended_first: bool) -> list[str]:
    """Return the lines of the report: noticed, decided, recovered, lost."""
    if found.noticed_t is None:
        lines = [f"  noticed    {'no: the job had ended by then' if ended_first else f'not within {order.patience_s:.0f} s'}"]
        if order.kind == "hang" and not ended_first:
            lines.append("  undone     the rank was let go on by the drill")
        if order.kind == "nan":
            lines.append("  advice     the script does not look: a check such as `if not loss.isfinite(): raise` makes it a failure")
        return lines
    lines = [f"  noticed    after {max(0.0, found.noticed_t - struck.t):.1f} s: {found.noticed}"]
    if found.decided:
        lines.append(f"  decided    {found.decided}")
    lines += [f"  changed    {change}" for change in found.changes]
    if order.kind == "preempt":
        by_itself = found.resumed_path is not None and (found.resumed_step or 0) >= struck.step
        saved = (
            "by the script itself, before it ended" if by_itself else "no: it does not ask worker.should_save(), or its save was not seen"
        )
        lines.append(f"  saved      {saved if found.saved_t is None else f'after {found.saved_t - struck.t:.1f} s, on request'}")
    if found.resumed_t is None:
        return [*lines, "  recovered  no"]
    start = f"from {found.resumed_path}" if found.resumed_path else "from scratch"
    step = found.resumed_step or 0
    lines.append(f"  recovered  at step {step} {start}; {max(0, struck.step - step)} step(s) are made again")
    lines.append(f"  next step  {found.resumed_t - struck.t:.1f} s after the fault")
    return lines
