"""Starting a job under plain torchrun and under `supervise`, and reading what its processes use.

In: the options of a job in tests/jobs, or any command. Out: a `Run` whose processes are looked up in /proc. Plain torchrun gets a store
of its own for every attempt too (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1), so that both sides do the same work. Every run ends within
`finish` or is killed there; nothing that was started stays.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

JOBS = Path(__file__).parents[1] / "tests" / "jobs"
DEADLINE_S = 180.0
TICKS = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A run did not do what the measurement needs."""


def environment() -> dict[str, str]:
    """Return the environment of both kinds of run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "PYTHON", "TORCH"))}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept.get('PATH', '/usr/bin:/bin')}"
    return {**kept, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The pids of a run's ranks, in their order, and how many steps rank 0 made."""

    pids: list[int]
    steps: int


def ranks_of_job(place: Path) -> Ranks:
    """Read what a job of tests/jobs wrote: --pids=pids, and --counter=counter where its steps are asked for."""
    pids, counter = place / "pids", place / "counter"
    pid_list = [int(line.split()[1]) for line in pids.read_text().splitlines()] if pids.exists() else []
    return Ranks(pid_list, int.from_bytes(counter.read_bytes(), "little") if counter.exists() else 0)


@dataclass(frozen=True, slots=True)
class Run:
    """One running job. Its ranks write their pids and progress below `place`, in files that `read` understands."""

    kind: str
    place: Path
    process: subprocess.Popen[bytes]
    read: Callable[[Path], Ranks] = ranks_of_job

    def ranks(self) -> Ranks:
        """Return the known facts of the ranks by now."""
        return self.read(self.place)

    def rank_pids(self) -> list[int]:
        """Return the pids that the ranks wrote."""
        return self.ranks().pids

    def progress(self, rank: int) -> list[tuple[int, int]]:
        """Return (step, CLOCK_MONOTONIC ns) of each step that `rank` made."""
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in (self.place / "progress").read_text().splitlines()]
            return [(int(step), int(at)) for owner, step, at in lines if int(owner) == rank]
        return []

    def wait_for(self, look: Callable[[], bool], condition: str, every_s: float = 0.01, *, within_s: float = DEADLINE_S) -> None:
        """Await a condition; raise BenchError where the run ends or the time is up before."""
        deadline = time.monotonic() + within_s
        while not look():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(self.story(f"no {condition}"))
            time.sleep(every_s)

    def finish(self) -> None:
        """Await a good end."""
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.stop()
            raise BenchError(self.story("not finished in time")) from None
        if code != 0:
            raise BenchError(self.story(f"ended with {code}"))

    def stop(self) -> None:
        """End the run now, ranks and all: a launcher that TERM ends may leave its ranks (accelerate's does)."""
        family = [*descendants(self.process.pid), *self.rank_pids()] if self.process.poll() is None else []
        held = []  # descriptors: a pid that was used again in between must not be hit
        for pid in set(family) - {self.process.pid}:
            with contextlib.suppress(OSError):
                held.append(os.pidfd_open(pid))
        for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM):  # the third ends `supervise` at once
            if self.process.poll() is None:
                self.process.send_signal(signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(3)
        for handle in held:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], 3.0)
            os.close(handle)
        self.process.kill()
        self.process.wait()

    def story(self, problem: str) -> str:
        """Return `what` with the end of the run's own words."""
        return f"{self.kind}: {problem}\n{(self.place / 'stderr').read_text(errors='replace')[-3000:]}"


def start(kind: str, place: Path, nproc: int, job: str, *options: str) -> Run:
    """Start the job script `job` with `options` under torchrun, in the new directory `place`."""
    place.mkdir(parents=True)
    torchrun = ["torchrun", "--standalone", f"--nproc-per-node={nproc}"]
    return start_command(kind, place, [*torchrun, str(JOBS / job), "--pids=pids", *options])


def start_command(kind: str, place: Path, command: Sequence[str], read: Callable[[Path], Ranks] = ranks_of_job, **variables: str) -> Run:
    """Start `command` in `place`, which gets its stdout and stderr as files: as it is, or where `kind` is "supervise", under us."""
    own_words = ["supervise", "--job", "bench", "--state-dir", str(place / "state"), "--"] if kind == "supervise" else []
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        process = subprocess.Popen(  # noqa: S603  # the measured command
            [*own_words, *command], cwd=place, env=environment() | variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
    return Run(kind, place, process, read)


def children() -> dict[int, list[int]]:
    """Return parent → children of every process."""
    children_by_pid: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children_by_pid.setdefault(parent, []).append(int(entry.name))
    return children_by_pid


def descendants(pid: int, *, but: Sequence[int] = ()) -> list[int]:
    """Return `pid` and what descends from it, without `but` and what descends from those."""
    family, tree, waiting = [], children(), [pid]
    while waiting:
        process = waiting.pop()
        if process not in but:
            family.append(process)
            waiting += tree.get(process, [])
    return family


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of `pid` (the clock id is made as CPUCLOCK_SCHED of linux/posix-timers.h says)."""
    return time.clock_gettime(~pid << 3 | 2)


def family_cpu_s(pid: int, *, but: Sequence[int] = ()) -> float:
    """Return the CPU seconds of `pid` and what descends from it, the children that were reaped included."""
    spent = 0.0
    for process in descendants(pid, but=but):
        with contextlib.suppress(OSError):
            reaped = (Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split())[13:15]
            spent += cpu_s(process) + sum(map(int, reaped)) / TICKS
    return spent


def memory_kib(pid: int) -> tuple[int, int]:
    """Return resident and proportional set size."""
    figures = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(figures["Rss:"]), int(figures["Pss:"])


def role(pid: int) -> str:
    """Return which of our processes, or torchrun, `pid` is."""
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    for part, name in (("supervisor/guardian", "guardian"), ("supervisor/agent", "agent"), ("supervise ", "supervisor")):
        if part in line:
            return name
    return "torchrun" if "torchrun" in line else line[:60]
