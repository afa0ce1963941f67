"""How the ranks agree on the step to save at: which call of `worker.should_save()` answers True, the same one on every rank.

In: the flag file `save-now` in the job's directory in memory, the attempt's directory beside it, and torch's own store where the ranks
are spread over nodes. Out: an answer per call. Nothing here raises or imports torch; whoever cannot agree is not told to save.

*The assumption*: every rank calls once per optimizer step, at the same place of its loop. Then the n-th call means the same step on all.
*On one node* each rank publishes the number of its call in its heartbeat slot, before it looks. The first that sees the flag proposes
the greatest number there plus MARGIN, by a file that only one can create. MARGIN is 2 because a rank may begin its next call between our
look and the file: that call may pass the proposal unseen, the one after it cannot (more where calls take less than a millisecond).
*Over nodes* every rank counts itself in at the ranks' store when it sees the flag: not every node hears of the end at the same moment.
The one that completes the number proposes its own call plus a margin, by compare-and-set; until then each asks the store once per
call. The ranks of a synchronous training are at most one call apart, but a host may run ahead of its GPU: so the margin is as many
calls as pass in a quarter of a second, and two at least.
*A rank that finds the proposed call behind it* is not told: half a checkpoint of one step and half of another is worse than none. Nor is
anyone where fewer ranks call than there are (over nodes). The supervisor then stops the job when the time is over, and says that
nothing was saved.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    class Instrument(Protocol):
        """What rides in a rank that a supervisor started, as far as it is told of here."""

        def asked(self, number: int) -> None:
            """Note the script's question: its `number`-th, 0 where they are not counted."""

        def told_to_save(self) -> None:
            """Note that the answer was yes."""


MARGIN = 2
LOOK_S = 0.002  # from reading the slots to the file's being there
AHEAD_S = 0.25
MOST_CALLS_AHEAD = 256
#: Of the heartbeat file (supervisor/instrument/_supervise_shim/layout.py), which is not imported here: this package stands alone.
SLOT_BYTES, ASKED = 128, 9
STORE_KEYS = "supervise/save"


def should_save() -> bool:
    """Say whether to make a checkpoint now, because the job is to be stopped: True once, on every rank at its same call.

    To be called by every rank, once per optimizer step, at the same place of the loop (docs/preemption.md). Without a supervisor always
    False. Never raises.
    """
    return asking.should_save(instrument())


def instrument() -> Any | None:  # noqa: ANN401 - an Instrument, and what else the supervisor's own worker knows of it
    """Return what a supervisor put into this process, None where it did not."""
    return getattr(sys.modules.get("_supervise_shim"), "instrument", None)


class Asking:
    """One process's questions. Not for several threads: the training loop asks."""

    def __init__(self) -> None:
        self._job_dir: str | None = None
        self._flag = self._attempt_dir = ""
        self._calls = 0
        self._at: int | None = None  # the call that answers True
        self._over = False  # it was answered, or cannot be any more
        self._counted_in = False
        self._call_s, self._last_t = 0.0, time.monotonic()

    def should_save(self, instrument: Instrument | None) -> bool:
        """Answer one call; see worker.should_save."""
        if not self._known():
            return False
        self._calls = calls = self._calls + 1
        self._say_that_we_ask(instrument, calls)
        now = time.monotonic()
        self._call_s, self._last_t = now - self._last_t, now
        if self._over or not os.access(self._flag, os.F_OK):
            return False
        if self._at is None:
            try:
                self._at = self._agreed(calls)
            except Exception:  # noqa: BLE001 - torch's store raises what it likes, and a save is worth less than the training
                self._over = True
        if self._at is None or calls < self._at:
            return False
        self._over = True
        if calls == self._at and instrument is not None:
            instrument.told_to_save()
        return calls == self._at

    def save_requested(self, instrument: Instrument | None) -> bool:
        """Answer one call; see worker.save_requested."""
        if not self._known():
            return False
        self._say_that_we_ask(instrument, 0)
        wanted = os.access(self._flag, os.F_OK)
        if wanted and instrument is not None:
            instrument.told_to_save()
        return wanted

    def _known(self) -> bool:
        """Find the files, whenever the environment names another job directory than before."""
        job_dir = os.environ.get("SUPERVISE_JOB_DIR")
        if job_dir != self._job_dir:
            self.__init__()  # type: ignore[misc] # (all of it is about the directory before)
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
    def _say_that_we_ask(instrument: Instrument | None, calls: int) -> None:
        if instrument is not None:
            instrument.asked(calls)

    # the agreement

    def _agreed(self, calls: int) -> int | None:
        """Return the call at which all save, None while that is not known."""
        group = _group()
        world = group.get_world_size() if group is not None else _number("WORLD_SIZE", 1)
        if world > 1 and _number("LOCAL_WORLD_SIZE", 0) >= world:
            return self._on_this_node(calls)
        if world <= 1 or group is None:
            return calls
        return self._over_nodes(group._get_default_store(), world, calls)  # noqa: SLF001 - the only way to the ranks' store

    def _on_this_node(self, calls: int) -> int:
        path = f"{self._attempt_dir}/save-at"
        if not os.access(path, os.F_OK):
            mine = f"{path}.{os.getpid()}"
            with open(mine, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib is slow, and this is the training loop
                file.write(str(max(self._calls_of_all(), calls) + max(MARGIN, self._calls_in(LOOK_S))))
            with contextlib.suppress(FileExistsError):
                os.link(mine, path)  # whole or not at all, and only the first
            os.unlink(mine)  # noqa: PTH108 - see above
        with open(path, encoding="ascii") as file:  # noqa: PTH123 - see above
            return int(file.read())

    def _calls_in(self, seconds: float) -> int:
        """Return how many calls pass in so long, going by the last one."""
        return min(MOST_CALLS_AHEAD, math.ceil(seconds / self._call_s)) if self._call_s > 0 else MARGIN

    def _calls_of_all(self) -> int:
        """Return the greatest number of calls that a rank of this node published, 0 where none is instrumented."""
        try:
            with open(f"{self._attempt_dir}/heartbeat", "rb") as file:  # noqa: PTH123 - see above
                data = file.read()
        except OSError:
            return 0
        return max((struct.unpack_from("<q", data, at + 8 * ASKED)[0] for at in range(SLOT_BYTES, len(data), SLOT_BYTES)), default=0)

    def _over_nodes(self, store: Any, world: int, calls: int) -> int | None:  # noqa: ANN401 - torch's
        keys = f"{STORE_KEYS}/{os.environ.get('SUPERVISE_JOB_ATTEMPT', '')}"
        ready = store.add(f"{keys}/ready", 0 if self._counted_in else 1)
        complete = not self._counted_in and ready == world
        self._counted_in = True
        if ready < world:
            return None
        if complete:
            at = calls + max(MARGIN, self._calls_in(AHEAD_S))
            return int(store.compare_set(f"{keys}/at", "", str(at)))
        return int(store.get(f"{keys}/at")) if store.check([f"{keys}/at"]) else None


def _outlive_notices() -> None:
    """Ignore USR1 and USR2 where the script left them alone: a scheduler may send its notice to all processes, and kill ranks by it."""
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
    """Return torch's module of process groups where the script is in one; None outside torch.distributed, and nothing is imported."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d if c10d is not None and c10d.is_initialized() else None


#: One per process, as a process has one place in the training.
asking = Asking()
