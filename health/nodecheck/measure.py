"""Torch's side of the node check: the store that all ranks share, and the measurements of a pair trial.

Each pair trial makes its own process group, so that a broken one harms no other; the group's timeout ends a trial that hangs. A small
exchange precedes every timed operation, so that a late rank does not add to its partner's time.

    clock   a GPU: wall time, synchronised. A rank alone on a machine's CPU: wall time, all cores. Several ranks on one CPU: one thread
            and its own CPU time, which others' load lengthens little (each would use all cores, so two disturb each other already);
            turns would make the check as many times longer as there are ranks, and would keep nobody else's load away. Pairs are
            always wall time.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]  # documented, not in its __all__

from health.nodecheck.model import NOBODY, Fault, FaultKind, Kind, Member, PairTrial, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


#: Edge of the matrices, elements of a large all-reduce and of a message, products in a trial: about 2 ms and 10 ms a trial.
_CPU: Final = (320, 1 << 20, 1 << 18, 2)
_GPU: Final = (8192, 1 << 24, 1 << 22, 2)
_TRIALS: Final = {Kind.COMPUTE: 5, Kind.SMALL: 10, Kind.LARGE: 5, Kind.SWAP: 5, Kind.OVERLAP: 3}
_WARM_UPS: Final = 2
#: After which no further trial of a kind is begun.
_ENOUGH_S: Final = 0.5


class TorchStore:
    """Texts by name that all ranks share. Nothing blocks but `wait`. Raises torch's DistError where the store is gone."""

    def __init__(self, host: str, port: int, *, serve: bool, run: str, timeout_s: float) -> None:
        # as a client the constructor waits for the server, up to its timeout
        timeout = timedelta(seconds=timeout_s)
        base = TCPStore(host, port, is_master=serve, wait_for_workers=False, timeout=timeout)
        self.prefix_store = PrefixStore(f"health.nodecheck/{run}", base)

    def get(self, name: str) -> str:
        """Return the text, "" where there is none."""
        return self.prefix_store.get(name).decode() if self.prefix_store.check([name]) else ""

    def put(self, name: str, text: str) -> None:
        """Set it."""
        self.prefix_store.set(name, text)

    def put_first(self, name: str, text: str) -> None:
        """Set it where nobody has."""
        self.prefix_store.compare_set(name, "", text)

    def has(self, name: str) -> bool:
        """Return whether anybody set it."""
        return bool(self.prefix_store.check([name]))


class TrialError(Exception):
    """A trial went wrong in a way that torch does not raise. own: it is this rank's own doing."""

    def __init__(self, message: str, *, own: bool = False) -> None:
        super().__init__(message)
        self.own = own


def member(rank: int, local_rank: int) -> Member:
    """Return what this rank is. It touches the GPU, so never before a fork."""
    machine = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    if torch.cuda.is_available():
        index = local_rank % torch.cuda.device_count()
        torch.cuda.set_device(index)
        return Member(rank, platform.node(), machine, f"cuda:{index}", torch.cuda.get_device_name(index))
    return Member(rank, platform.node(), machine, "cpu", platform.machine())


@dataclass(frozen=True, slots=True)
class MeterOptions:
    """How it is measured. shared: a crowded CPU. timeout_s: of one operation of a pair. faults: of a rehearsal."""

    shared: bool
    timeout_s: float
    faults: tuple[Fault, ...] = ()


class Meter:
    """Measures on this rank's device. report_step: called before each step, so that the monitor sees whether this process hangs."""

    def __init__(self, store: TorchStore, me: Member, report_step: Callable[[str], None], options: MeterOptions) -> None:
        self._store, self._me, self._report_step, self._shared = store, me, report_step, options.shared
        self._timeout = timedelta(seconds=options.timeout_s)
        self._faults = options.faults
        self._random = random.Random(f"{me.rank}")  # noqa: S311  a rehearsal
        self._gpu = me.device != "cpu"
        if options.shared:
            torch.set_num_threads(1)
        self._edge, self._large, self._message, self._products = _GPU if self._gpu else _CPU
        generator = torch.Generator().manual_seed(6)
        matrix = torch.rand((self._edge, self._edge), generator=generator)
        self._matrix = matrix.to("cuda", torch.bfloat16) if self._gpu else matrix
        self._right: Tensor | None = None
        self._step = ""

    def measure_pair(self, pair_trial: PairTrial | None, phase: int, number: int) -> Sample:
        """Return what a pair trial showed; without one only what this rank does alone."""
        seconds: dict[Kind, tuple[float, ...]] = {}
        partner = pair_trial.partner(self._me.rank) if pair_trial is not None else NOBODY
        try:
            self._at(f"round {number}: matrix products")
            self._injected_end(number)
            seconds[Kind.COMPUTE] = tuple(self._compute() for _ in range(_TRIALS[Kind.COMPUTE]))
            if pair_trial is not None:
                for kind, times in self._together(pair_trial):
                    self._at(f"round {number}: {kind.value}")
                    seconds[kind] = tuple(times)
        except (RuntimeError, ValueError, TrialError) as error:  # RuntimeError: torch's own are among it
            own = error.own if isinstance(error, TrialError) else not self._reached(seconds)
            words = " ".join(str(error).rpartition("] ")[2].split())[:120]  # in front of it is where in gloo's source
            return Sample(phase, number, self._me.rank, partner, seconds, f"{self._step}: {words}", own=own)
        finally:
            _forget_group()
        return Sample(phase, number, self._me.rank, partner, seconds)

    def _at(self, step: str) -> None:
        self._step = step
        self._report_step(step)

    @staticmethod
    def _reached(seconds: dict[Kind, tuple[float, ...]]) -> bool:
        """Whether the trial reached the partner. A failure before that is this rank's own."""
        return Kind.COMPUTE in seconds

    # --- alone ------------------------------------------------------------------------------------------------------------------------

    def _compute(self) -> float:
        began = self._now(cpu=self._shared)
        out = self._multiply()
        took = self._now(cpu=self._shared) - began
        if self._right is None:
            self._right = out
        elif not torch.equal(out, self._right):
            raise TrialError("matrix products: the same product gave another result than before", own=True)
        return took

    def _multiply(self) -> Tensor:
        more = next((fault.amount for fault in self._faults if fault.kind is FaultKind.SLOW_COMPUTE and fault.rank == self._me.rank), 1.0)
        out = self._matrix
        for _ in range(round(self._products * more)):
            out = self._matrix @ self._matrix
        return out

    def _now(self, *, cpu: bool = False) -> float:
        if self._gpu:
            torch.cuda.synchronize()
        return time.thread_time() if cpu else time.perf_counter()

    # --- together ---------------------------------------------------------------------------------------------------------------------

    def _together(self, pair_trial: PairTrial) -> Iterable[tuple[Kind, Iterable[float]]]:
        """Yield each kind and its trials, which run while they are iterated over."""
        self._at(f"round {pair_trial.number}: connection")
        side = 0 if self._me.rank == pair_trial.a else 1
        dist.init_process_group(
            "nccl" if self._gpu else "gloo",
            store=PrefixStore(pair_trial.name, self._store.prefix_store),
            rank=side,
            world_size=2,
            timeout=self._timeout,
        )
        delay = sum(fault.amount for fault in self._faults if fault.of_link((pair_trial.a, pair_trial.b)) and not side)
        spoils = self._drawn(FaultKind.CORRUPT)
        if self._drawn(FaultKind.FAIL):
            self._all_reduce(1, 0.0, spoils=False)
            raise TrialError("rehearsal: connection closed")
        small = 16
        yield Kind.SMALL, self._timed(_TRIALS[Kind.SMALL], lambda: self._all_reduce(small, delay, spoils=spoils))
        yield Kind.LARGE, self._timed(_TRIALS[Kind.LARGE], lambda: self._all_reduce(self._large, delay, spoils=False))
        yield Kind.SWAP, self._timed(_TRIALS[Kind.SWAP], lambda: self._swap(side, delay))
        yield Kind.OVERLAP, self._timed(_TRIALS[Kind.OVERLAP], lambda: self._overlap(delay))

    def _timed(self, trials: int, operation: Callable[[], object]) -> Iterable[float]:
        until = time.monotonic() + _ENOUGH_S
        for number in range(trials + _WARM_UPS):
            # both are there from now on, and know whether one of them has seen enough: a very slow link shows in one trial
            enough = self._ones(1) * float(number > _WARM_UPS and time.monotonic() > until)
            dist.all_reduce(enough)
            if enough.item() > 0:
                return
            began = self._now()
            operation()
            if number >= _WARM_UPS:
                yield self._now() - began
            else:
                self._now()

    def _ones(self, count: int) -> Tensor:
        return torch.ones(count, device="cuda" if self._gpu else "cpu")

    def _all_reduce(self, count: int, delay: float, *, spoils: bool) -> None:
        out = self._ones(count) * (3.0 if spoils else 1.0)
        time.sleep(delay)
        dist.all_reduce(out)
        if out[0].item() != 2.0 or out[-1].item() != 2.0:  # noqa: PLR2004  1 + 1
            raise TrialError(f"all-reduce: the sum of 1 and 1 is {out[0].item()}, ..., {out[-1].item()}")

    def _swap(self, side: int, delay: float) -> None:
        """Send there and back."""
        out = self._ones(self._message)
        time.sleep(delay)
        for sender in (0, 1):
            if side == sender:
                dist.send(out, 1 - side)
            else:
                dist.recv(out, 1 - side)

    def _overlap(self, delay: float) -> None:
        out = self._ones(self._large)
        time.sleep(delay)
        work = dist.all_reduce(out, async_op=True)
        self._multiply()
        work.wait()

    # --- rehearsal --------------------------------------------------------------------------------------------------------------------

    def _drawn(self, kind: FaultKind) -> bool:
        return any(self._random.random() < fault.amount for fault in self._faults if fault.kind is kind and fault.rank == self._me.rank)

    def _injected_end(self, number: int) -> None:
        for fault in self._faults:
            if fault.rank == self._me.rank and fault.amount == number and fault.kind in (FaultKind.HANG, FaultKind.DIE):
                os.kill(os.getpid(), signal.SIGSTOP if fault.kind is FaultKind.HANG else signal.SIGKILL)


def _forget_group() -> None:
    """Take the process group down, also one that never came to be.

    torch numbers groups, and both ends must name one alike. Only a group's end resets the numbers, so where the connection failed, one
    of this rank alone is made for its end.
    """
    with contextlib.suppress(RuntimeError):  # it is being thrown away because it is broken
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
