"""Orders standbys once an attempt runs well, ends them when memory becomes short, and reports what they are (docs/explanation/restarts.md).

A standby is a fresh interpreter that has imported what its rank imports, and waits to become the rank of the next attempt. The agent starts
those of torchrun's ranks, the guardian that of a plain command. Whatever goes wrong with one costs a cold start and nothing else.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import msgspec

from checkpointing.io import typed
from supervisor.core.model import Launcher
from supervisor.core.state import Stage
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct
from supervisor.instrument._supervise_shim.imports import UNEVEN
from supervisor.journal.records import STANDBYS, Note
from supervisor.observe.host import memory_room
from supervisor.observe.ranks import heartbeats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from supervisor.core.model import RankInfo
    from supervisor.core.state import JobState
    from supervisor.job.job import Job
    from supervisor.launch.session import Session
    from supervisor.report.reporter import Reporter
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads

#: From the last rank's record of its imports to the order: an attempt that fails again at once needs none, and the ranks warm up.
SETTLE_S: Final = 2.0
#: Between two looks for the records, at first and at most.
LOOK_S: Final = 0.5
MOST_LOOK_S: Final = 30.0
#: A record grows until the first backward pass: DDP and the optimizers import torch._dynamo. If neither is seen it counts after this time.
UNSEEN_STEPS_S: Final = 20.0
MEMORY_LOOK_S: Final = 2.0
#: The expected memory of one standby before one was measured: CPU torch needs 150 to 220 MiB.
EXPECTED_BYTES: Final = 400 << 20
#: Why there is none at first.
NOT_YET: Final = "the ranks have not begun to train"
SOON: Final = "they are prepared in a moment"
GPUS_VISIBLE: Final = "GPUs are visible (--standby on has them there)"
#: The line about their possible gain, once a run.
GPU_HINT: Final = (
    "standbys are off where GPUs are visible; --standby on keeps an interpreter beside each rank that has imported what the rank imports"
    " and touches no GPU, so a restart skips the seconds of the imports"
)
#: Standbys are started only where so much memory stays free, and a tenth of it: what the ranks may need in their next minutes.
KEEP_FREE_BYTES: Final = 8 << 30
_KIB: Final = 1 << 10
#: The rest of the reserved memory at which the standbys are ended.
_ENDED_AT: Final = 0.5


class RecordedImports(msgspec.Struct):
    """The fields that the supervisor reads of a rank's record of its imports (instrument/_supervise_shim/imports.py).

    refused: why the rank's process can have no standby.
    """

    refused: str


class ImportingRank(Struct, frozen=True):
    """The process that is a local rank and recorded its imports. refused: why it can have no standby, or ""."""

    pid: int
    command: list[str]
    refused: str
    imported: bool  # its record holds all that it needs to train
    trains: bool  # it made a step, or goes round in a loop without one


#: The rank is another process than the one that was started, or a wrapper replaced itself: its standby would run the script.
NO_INTERPRETER: Final = "the program of each rank is not the Python that runs the script"


class TakenRanks(Struct, frozen=True):
    """The local ranks of an attempt that standbys became. cold: why one of the others did not."""

    attempt: int
    ranks: tuple[int, ...]
    cold: str


class StandbyState(Struct, frozen=True):
    """The facts of the standbys of `ranks` ranks. pids: all that live. why: why there is none, or the modules left to the rank.

    is_due: there is none, and they are going to be prepared.
    """

    ranks: int = 0
    pids: tuple[int, ...] = ()
    ready: int = 0
    private_kib: int = 0
    why: str = ""
    is_due: bool = False

    @property
    def text(self) -> str:
        """Say for a person whether a restart would be warm now, or why not."""
        cost = bytes_text(self.private_kib * _KIB)
        if not self.pids:
            return f"{'not yet' if self.is_due else 'off'}: {self.why}" if self.why else "off"
        if not self.ready:
            waits = f"not yet: {len(self.pids)} being prepared"
        elif self.ready < self.ranks:
            waits = f"not yet: {self.ready} of {self.ranks} ready, {cost}"
        else:
            waits = f"now: {self.ready} ready, {cost}"
        return f"{waits}; {self.why}" if self.why else waits


class Standbys:
    """The standbys of one run. Its methods are called on the loop's thread.

    session: returns the one that runs the ranks. impossible: why the command can have none, "" where it may. record: takes a note
    for the journal.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (the parts that it works with)
        self,
        job: Job,
        loop: Loop,
        threads: Threads,
        session: Callable[[], Session | None],
        impossible: str,
        reporter: Reporter,
    ) -> None:
        self._job, self._loop, self._threads = job, loop, threads
        self._session, self._impossible, self._reporter = session, impossible, reporter
        self.record: Callable[[Note], None] = lambda _note: None
        self._settings = job.settings.standby
        self._state: StandbyState | None = None
        self._attempt = 0  # the one that the rest is about
        self._done = False  # they were ordered for it, or will not be
        self._commands: list[list[str]] | None = None  # that its ranks run, by local rank, once all have written their records
        self._recorded_t: float | None = None  # since when all have written one
        self._due_t = self._pause_s = 0.0
        self._cost_bytes = EXPECTED_BYTES
        self._logged: set[str] = set()  # reasons for a cold start
        self._taken: TakenRanks | None = None  # not logged yet: each of them may still start cold in place
        self._has_hinted = False  # the gain of standbys was reported

    def tick(self, state: JobState) -> None:
        """Do the work that is due."""
        if self._settings.mode == "off":
            return
        now, attempt = self._loop.clock.now(), state.attempt
        if self._taken is not None and (state.stage is not Stage.RUNNING or attempt.number > self._taken.attempt):
            self._log_taken()
        if state.stage is not Stage.RUNNING:
            return
        if attempt.number != self._attempt:
            self._begin(state, now)
        if state.run.stop is not None:
            self._drop("a stop was requested")
        elif now >= self._due_t and self._state is not None and self._state.pids:
            self._due_t = now + MEMORY_LOOK_S
            if why := self._shortage(0, share=_ENDED_AT):
                self._drop(why)
        elif now >= self._due_t and not self._done and attempt.ranks:
            self._look(attempt.number, attempt.ranks, now)

    def _begin(self, state: JobState, now: float) -> None:
        """Begin with a new attempt."""
        self._attempt, self._done, self._commands, self._recorded_t = state.attempt.number, False, None, None
        self._due_t, self._pause_s = now, LOOK_S
        why = self._refusal(state)
        if why == GPUS_VISIBLE and not self._has_hinted:
            self._has_hinted = True
            self._reporter.started([GPU_HINT])
        if why:
            self._refuse(why)
        else:  # the owner of the last attempt's may have died before it could report
            self._set(StandbyState(why=NOT_YET, is_due=True), is_logged=self._state is not None and bool(self._state.pids))

    def _refusal(self, state: JobState) -> str:
        """Return why this attempt has no standbys, "" where it may have them."""
        if self._impossible:
            return self._impossible
        if state.run.policy.launcher is Launcher.STOCK:
            return "stock torchrun runs the ranks"
        return GPUS_VISIBLE if self._settings.mode == "auto" and state.gpus else ""

    def _refuse(self, why: str) -> None:
        self._done = True
        self._set(StandbyState(why=why))

    def _look(self, attempt: int, ranks: Sequence[RankInfo], now: float) -> None:
        """Order them if every rank has written its record a while ago, else look for the records."""
        if self._commands is not None:
            self._order(attempt, self._commands)
            return
        self._due_t, self._pause_s = now + self._pause_s, min(MOST_LOOK_S, 1.2 * self._pause_s)
        directory = self._job.attempt_dir(attempt)

        def work() -> None:
            importing = importing_ranks(directory, len(ranks))
            if importing is not None:
                self._loop.call_soon(lambda: self._read(attempt, ranks, importing))

        self._threads.recur("standby-records", work)

    def _read(self, attempt: int, ranks: Sequence[RankInfo], importing: Sequence[ImportingRank]) -> None:
        if attempt != self._attempt or self._done or self._commands is not None:
            return
        if all(rank.imported for rank in importing):
            self._log_taken()
        now = self._loop.clock.now()
        self._recorded_t = now if self._recorded_t is None else self._recorded_t
        if not all(rank.trains for rank in importing) and now < self._recorded_t + UNSEEN_STEPS_S:
            if not all(rank.imported for rank in importing):
                return
            if why := busy_cores(len(importing)):
                self._set(StandbyState(why=f"{why}, so standbys are prepared after the first step", is_due=True), is_logged=False)
                return
        is_started = {rank.local_rank: rank.pid for rank in ranks} == {number: rank.pid for number, rank in enumerate(importing)}
        if why := next((rank.refused for rank in importing if rank.refused), "" if is_started else NO_INTERPRETER):
            self._refuse(why)
            return
        self._commands = [rank.command for rank in importing]
        self._due_t = now + SETTLE_S
        self._set(StandbyState(why=SOON, is_due=True), is_logged=False)

    def _order(self, attempt: int, commands: list[list[str]]) -> None:
        session = self._session()
        if why := self._shortage(self._cost_bytes * len(commands)):
            self._refuse(why)
        elif session is not None:
            self._done = True
            session.prepare_standbys(attempt, str(self._job.attempt_dir(attempt)), commands)

    def _shortage(self, needed: int, *, share: float = 1.0) -> str:
        return memory_room.shortage(memory_room.rooms(), needed, KEEP_FREE_BYTES, share=share)

    def _drop(self, why: str) -> None:
        session, self._done = self._session(), True
        if session is not None and self._state is not None and self._state.pids:
            session.drop_standbys()
            self._set(StandbyState(why=why))

    def reported(self, attempt: int, pids: Sequence[int], *, ready: int, private_kib: int, why: str) -> None:
        """See StandbyListener."""
        if attempt != self._attempt:
            return
        if ready:
            self._cost_bytes = max(1, private_kib * _KIB // ready)
        ranks = len(self._loop.state.attempt.ranks)
        self._set(StandbyState(ranks, tuple(pids), ready, private_kib, why))

    def used(self, attempt: int, ranks: Sequence[int], cold: str) -> None:
        """See StandbyListener."""
        self._taken = TakenRanks(attempt, tuple(ranks), cold)
        if not ranks:
            self._log_taken()
        self._set(StandbyState(why=cold or NOT_YET, is_due=True))

    def _log_taken(self) -> None:
        """Log which ranks began warm, once they have imported: until then one that finds another value starts cold in place (gates.py)."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        differences = started_cold(self._job.attempt_dir(taken.attempt), taken.ranks)
        ranks = [rank for rank in taken.ranks if rank not in differences]
        cold = taken.cold or next(iter(differences.values()), "")
        reason = "" if cold in self._logged else cold
        self._logged.add(cold)
        if ranks or reason:
            self._reporter.note("standby.used", {"attempt": taken.attempt, "ranks": ranks, "cold": reason})

    def _set(self, state: StandbyState, *, is_logged: bool = True) -> None:
        if state == self._state:
            return
        self._state = state
        data = {"ready": state.ready, "private_mib": state.private_kib // _KIB, "pids": list(state.pids)}
        self.record(Note(STANDBYS, state.text, data))  # first: a reader of the log finds it in status
        if is_logged:
            self._reporter.note("standby.reported", {"attempt": self._attempt, **data, "text": state.text})


def importing_ranks(directory: Path, count: int) -> list[ImportingRank] | None:
    """Return the records of local ranks 0 to `count` - 1 of an attempt; None where one of them has not written its record."""
    beats = {beat.local_rank: beat for beat in heartbeats.read(directory / "heartbeat")}
    importing = []
    for local_rank in range(count):
        with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
            record = typed.decoded((directory / f"imports-{local_rank}.json").read_bytes(), RecordedImports)
            beat = beats[local_rank]
            trains = beat.steps > 0 or beat.rounds
            importing.append(ImportingRank(beat.pid, command_line(beat.pid), record.refused, trains or beat.imported, trains))
    return importing if len(importing) == count else None


def started_cold(directory: Path, ranks: Sequence[int]) -> dict[int, str]:
    """Return those of the local ranks of an attempt that started cold in place of a standby, each with the reason."""
    reasons = {}
    for local_rank in ranks:
        with contextlib.suppress(OSError):
            name, _, difference = (directory / f"{UNEVEN}-{local_rank}").read_text("utf-8", "replace").rstrip("\n").partition("\n")
            reasons[local_rank] = f"before it imported {name} the script had another {difference}"
    return reasons


def busy_cores(ranks: int) -> str:
    """Return why no core is idle for the standbys of so many ranks, "" where there is one for each."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return "" if load + ranks <= cores else f"the cores are busy (load {load:.1f}, {cores} cores)"


def command_line(pid: int) -> list[str]:
    """Return the words of a process's command line, none where it has ended."""
    import psutil  # noqa: PLC0415  25 ms that a start does not need

    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []
