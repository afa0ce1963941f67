"""Runs in each rank: the ranks agree on the call of `worker.should_save()` that returns True, the same call on every rank.

The flag file `save-now` in the job's directory in memory asks for the save. The ranks of one node agree through files in the attempt's
directory, ranks on several nodes through torch's own store. Nothing here raises or imports torch. A rank that cannot agree does not save.

*The assumption*: every rank calls once per optimizer step, at the same place of its loop. Then the n-th call means the same step on all.

*A proposal* names a call that lies ahead. On one node each rank publishes the number of its call in its heartbeat slot, before it looks for
the flag; the first that sees the flag proposes the greatest number there plus a margin. On several nodes every rank counts itself in when
it sees the flag, for not every node hears of the end at the same moment; the last rank to be counted proposes its own call plus a margin.

*The vote* makes it exact, however the ranks are timed. At the proposed call each rank votes and waits. The last vote settles the outcome to
"yes", once, by compare-and-set; only then do all of them answer True. A rank that finds the proposed call behind it settles it to "no", and
so does one that has waited for WAIT_S: a rank that missed the proposal may already wait in a collective for the ranks that are voting here.
After a "no" none of them saves, and a call further ahead is proposed. Example: the proposal is call 7, rank 1 passes call 7 in the moment
in which it is written; rank 0 waits at 7, rank 1 settles "no" at 8, both answer False, and meet at 13: the margin doubles to 4, counted
from rank 1's call 9.

On several nodes, if one rank never calls should_save, no rank answers True. The supervisor then stops the job when the time is over, and
reports that nothing was saved.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    class RankInstrument(Protocol):
        """The part of the instrumentation that this module calls, in a rank that a supervisor started."""

        def asked(self, number: int) -> None:
            """Record a call of the script: its number, 0 if calls are not counted."""

        def save_requested(self) -> None:
            """Record that the answer was yes."""

    class _Ballot(Protocol):
        """The shared storage of the vote."""

        def get(self, key: str) -> str:
            """Return the settled value, "" if none is settled."""

        def settle(self, key: str, value: str) -> str:
            """Write a value if there is none yet, and return the first one written. Idempotent."""

        def add(self, key: str) -> int:
            """Count this rank, and return the count so far."""


MARGIN = 2
WAIT_S = 5.0
_POLL_S = 0.001
LOOK_S = 0.002  # time to write the proposal after reading the slots
AHEAD_S = 0.25
MOST_CALLS_AHEAD = 256
STORE_KEYS = "supervise/save"


class SaveAgreement:
    """One process's part in the agreement. Only the thread of the training loop may use it."""

    def __init__(self) -> None:
        self._job_dir: str | None = None
        self._flag = self._attempt_dir = ""
        self._calls = 0
        self._over = False  # answered True once, or failed
        self._round = 0  # number of the proposal: one more after each "no"
        self._counted_in = False
        self._call_s, self._last_t = 0.0, time.monotonic()

    def should_save(self, instrument: RankInstrument | None) -> bool:
        """Answer one call; see worker.should_save."""
        if not self._enter_job():
            return False
        self._calls = calls = self._calls + 1
        self._report_question(instrument, calls)
        now = time.monotonic()
        self._call_s, self._last_t = now - self._last_t, now
        if self._over or not os.access(self._flag, os.F_OK):
            return False
        try:
            is_time = self._agreed(calls)
        except Exception:  # noqa: BLE001 - torch's store may raise anything, and a save is worth less than the training
            is_time, self._over = False, True
        if is_time:
            self._over = True
            if instrument is not None:
                instrument.save_requested()
        return is_time

    def save_requested(self, instrument: RankInstrument | None) -> bool:
        """Answer one call; see worker.save_requested."""
        if not self._enter_job():
            return False
        self._report_question(instrument, 0)
        wanted = os.access(self._flag, os.F_OK)
        if wanted and instrument is not None:
            instrument.save_requested()
        return wanted

    def _enter_job(self) -> bool:
        """Return whether there is a job. On a new job directory start anew, create `wants-save`, and ignore USR1 and USR2."""
        job_dir = os.environ.get("SUPERVISE_JOB_DIR")
        if job_dir != self._job_dir:
            self.__init__()  # type: ignore[misc] # the state is of the earlier directory
            self._job_dir = job_dir
            if job_dir:
                attempt = os.environ.get("SUPERVISE_JOB_ATTEMPT", "")
                self._flag = f"{job_dir}/save-now"
                self._attempt_dir = f"{job_dir}/attempt-{int(attempt):04d}" if attempt.isdecimal() else ""
                with contextlib.suppress(OSError):  # for the guardian, which has no other way to hear of it
                    os.close(os.open(f"{job_dir}/wants-save", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
                _outlive_notices()
        return bool(job_dir)

    @staticmethod
    def _report_question(instrument: RankInstrument | None, calls: int) -> None:
        if instrument is not None:
            instrument.asked(calls)

    # the agreement

    def _agreed(self, calls: int) -> bool:
        """Return whether all ranks save at this call: it is the proposed one, and every rank is here."""
        group = _group()
        world = group.get_world_size() if group is not None else _number("WORLD_SIZE", 1)
        if world <= 1:
            return True
        is_one_node = _number("LOCAL_WORLD_SIZE", 0) >= world
        if not is_one_node and group is None:
            return True
        ballot: _Ballot = _FileBallot(self._attempt_dir) if is_one_node else _StoreBallot(group._get_default_store())  # type: ignore[union-attr]  # noqa: SLF001 - the only way to the ranks' store
        keys = f"{self._round}"
        proposal = ballot.get(f"{keys}-at") or self._propose(ballot, f"{keys}-at", world, calls, is_one_node=is_one_node)
        if not proposal:
            return False
        at, voters = map(int, proposal.split())
        if calls < at:
            return False
        outcome = ballot.settle(f"{keys}-outcome", "no") if calls > at else _voted(ballot, keys, voters)
        if outcome == "yes":
            self._over = True  # also for a rank that had no vote: it came too late to be counted
            return calls == at
        self._round += 1
        return False

    def _propose(self, ballot: _Ballot, key: str, world: int, calls: int, *, is_one_node: bool) -> str:
        """Propose a call ahead, and return the first proposal: the call and the number of voters; "" if another rank must propose."""
        if is_one_node:
            greatest, asking = self._calls_of_all()
            calls, voters, ahead_s = max(greatest, calls), asking or world, LOOK_S
        else:
            voters, ahead_s = world, AHEAD_S
            if not self._round:
                ready = 0 if self._counted_in else ballot.add("ready")
                self._counted_in = True
                if ready != world:
                    return ""
        margin = min(MOST_CALLS_AHEAD, max(MARGIN, self._calls_in(ahead_s)) << self._round)  # doubles after each no
        return ballot.settle(key, f"{calls + margin} {voters}")

    def _calls_in(self, seconds: float) -> int:
        """Return the number of calls in this time, estimated from the last one."""
        return min(MOST_CALLS_AHEAD, math.ceil(seconds / self._call_s)) if self._call_s > 0 else MARGIN

    def _calls_of_all(self) -> tuple[int, int]:
        """Return the greatest number of calls that a rank of this node published, and how many ranks did; 0 where none is instrumented."""
        try:
            with open(f"{self._attempt_dir}/heartbeat", "rb") as file:  # noqa: PTH123 - pathlib is slow, and this is the training loop
                data = file.read()
        except OSError:
            return 0, 0
        # only now: the package of the instrumentation costs each rank's start some milliseconds under this name
        from supervisor.instrument._supervise_shim.layout import ASKED, SLOT_BYTES  # noqa: PLC0415

        numbers = [struct.unpack_from("<q", data, at + 8 * ASKED)[0] for at in range(SLOT_BYTES, len(data), SLOT_BYTES)]
        return max(numbers, default=0), sum(number > 0 for number in numbers)


def _voted(ballot: _Ballot, keys: str, voters: int) -> str:
    """Vote at the proposed call, and return the outcome; "no" if not all ranks voted within WAIT_S."""
    if ballot.add(f"{keys}-votes") >= voters:
        return ballot.settle(f"{keys}-outcome", "yes")
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        outcome = ballot.get(f"{keys}-outcome")
        if outcome:
            return outcome
        time.sleep(_POLL_S)
    return ballot.settle(f"{keys}-outcome", "no")


class _FileBallot:
    """The ballot of ranks on one node: files in the attempt's directory, which appear whole or not at all."""

    def __init__(self, directory: str) -> None:
        self._prefix = f"{directory}/save"

    def get(self, key: str) -> str:
        try:
            with open(f"{self._prefix}-{key}", encoding="ascii") as file:  # noqa: PTH123 - see above
                return file.read()
        except FileNotFoundError:
            return ""

    def settle(self, key: str, value: str) -> str:
        path = f"{self._prefix}-{key}"
        own_path = f"{path}.{threading.get_native_id()}"
        with open(own_path, "w", encoding="ascii") as file:  # noqa: PTH123 - see above
            file.write(value)
        with contextlib.suppress(FileExistsError):
            os.link(own_path, path)  # only the first
        os.unlink(own_path)  # noqa: PTH108 - see above
        return self.get(key)

    def add(self, key: str) -> int:
        directory = f"{self._prefix}-{key}"
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - see above
        os.close(os.open(f"{directory}/{threading.get_native_id()}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return len(os.listdir(directory))  # noqa: PTH208 - see above


class _StoreBallot:
    """The ballot of ranks on several nodes: the store of torch's process group."""

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - torch's
        self._store, self._keys = store, f"{STORE_KEYS}/{os.environ.get('SUPERVISE_JOB_ATTEMPT', '')}"

    def get(self, key: str) -> str:
        name = f"{self._keys}/{key}"
        return self._store.get(name).decode() if self._store.check([name]) else ""

    def settle(self, key: str, value: str) -> str:
        return str(self._store.compare_set(f"{self._keys}/{key}", "", value).decode())

    def add(self, key: str) -> int:
        return int(self._store.add(f"{self._keys}/{key}", 1))


def _outlive_notices() -> None:
    """Ignore USR1 and USR2 unless the script handles them: a scheduler may send its notice to all processes, and kill ranks by it."""
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        with contextlib.suppress(ValueError, OSError):  # not in the main thread
            if signal.getsignal(signum) is signal.SIG_DFL:
                signal.signal(signum, signal.SIG_IGN)


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise


def _group() -> Any | None:  # noqa: ANN401 - torch's
    """Return torch's module of process groups if the script uses one; None outside torch.distributed. Imports nothing."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d if c10d is not None and c10d.is_initialized() else None


#: One per process, as a process has one place in the training.
agreement = SaveAgreement()
