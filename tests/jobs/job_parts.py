"""What the test jobs share: the faults that a test can order, the files in which a job records its steps, and checkpoints.

A job script calls a `Job`'s methods at the start, at each step and at the end. A fault strikes before the step it names is made; step 0
means before anything heavy was imported. Standard library only, so that a job without torch starts in a few hundredths of a second.

    --fail-rank 1 --fail-at-step 7 --fail-how kill [--fail-once-file f]   rank 1 dies before step 7, with the file only the first time
    --progress f     a line per step: rank, step, CLOCK_MONOTONIC ns        --pids f      a line per rank at start: rank, pid
    --term-file f    a line per SIGTERM: rank, CLOCK_MONOTONIC ns           --counter f   rank 0's steps so far, 8 bytes in native order
    --digest f       the final state, by rank 0                             --daemon f    a setsid daemon per rank, its pid a line of f
    --beat           supervise is told before each step how many were made: it sees none of a script without an optimizer
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


class Sick:
    """A class of the user's own that a checkpoint holds: to load it does what `code` says."""

    def __init__(self, code: str) -> None:
        """Hold the code, and run nothing yet."""
        self.code = code

    def __setstate__(self, state: dict[str, str]) -> None:
        """Run it."""
        exec(state["code"])  # noqa: S102  a test's own words


FAULTS = "exit:N exception[:BYTES] import-error segv abort kill term stop hang"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that all job scripts have."""
    add = parser.add_argument
    add("--steps", type=int, default=20)
    add("--step-ms", type=float, default=0.0, help="sleep this long in each step")
    add("--save-every", type=int, default=0, help="steps between checkpoints; 0: never")
    add("--save-ms", type=float, default=0.0, help="sleep this long in the middle of each save")
    add("--save-in-place", action="store_true", help="write straight to the final name, as careless scripts do")
    add("--ckpt-dir", type=Path, default=Path("ckpt"))
    add("--resume", type=Path)
    add("--fail-rank", type=int, default=-1)
    add("--fail-here", action="store_true", help="the rank that gets this option fails, whichever it is")
    add("--fail-at-step", type=int, default=0)
    add("--fail-how", default="exit:1", help=FAULTS)
    add("--fail-once-file", type=Path, help="fail only where this file is not there, and make it")
    add("--skew-rank", type=int, default=-1)
    add("--skew-s", type=float, default=0.0, help="the rank --skew-rank starts this much later")
    add("--ignore-term", action="store_true")
    add("--save-on-term", action="store_true", help="on SIGTERM finish the step, save and exit 0")
    add("--term-file", type=Path, help="on SIGTERM append the time, then exit with 143")
    add("--daemon", type=Path, help="start a daemon in a session of its own and append its pid here")
    add("--daemon-env", action="append", default=None, help="KEY=VALUE of the daemon's environment, which is empty else; 'inherit': ours")
    add("--progress", type=Path)
    add("--pids", type=Path)
    add("--counter", type=Path, help="a file whose first 8 bytes are the number of steps that rank 0 made, while it runs")
    add("--digest", type=Path)
    add("--beat", action="store_true", help="tell supervise the steps, as a script without an optimizer would")
    add("--hold-at", type=int, default=-1, help="before this step wait until --held-until is there: whoever watches acts meanwhile")
    add("--held-until", type=Path, default=Path("go-on"))
    add("--print-steps", action="store_true")
    add("--flood-mib-s", type=float, default=0.0, help="print this much per second, on rank 0")


def append(path: Path | None, *words: object) -> None:
    """Append one line in one write, so that ranks that share the file do not mix their lines."""
    if path is None:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(descriptor)


def start_daemon(pid_file: Path, environment: list[str] | None) -> None:
    """Start a process that left our session, has closed our output and sleeps for ten minutes; return once it sleeps."""
    until_exec, held = os.pipe()
    child = os.fork()
    if child:
        os.close(held)
        os.waitpid(child, 0)
        os.read(until_exec, 1)  # the end of the file: exec closed the other end
        os.close(until_exec)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    append(pid_file, os.getpid())
    variables = dict(os.environ) if environment == ["inherit"] else dict(pair.split("=", 1) for pair in environment or [])
    os.execve("/bin/sleep", ["sleep", "600"], variables)  # noqa: S606  # no shell is the point


def strike(how: str) -> None:
    """Do what --fail-how says to the calling process."""
    kind, _, value = how.partition(":")
    sys.stdout.flush()
    match kind:
        case "exit":
            sys.exit(int(value or 1))
        case "exception":
            msg = "the fault that the test ordered"
            line = "\n" + "a value that the script prints with it " * 3
            raise RuntimeError(msg + line * (int(value or 0) // len(line)))
        case "import-error":
            import a_module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401, PLC0415  # the fault itself
        case "segv" | "abort" | "kill" | "term" | "stop":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            names = {"segv": "SIGSEGV", "abort": "SIGABRT", "kill": "SIGKILL", "term": "SIGTERM", "stop": "SIGSTOP"}
            os.kill(os.getpid(), signal.Signals[names[kind]])
        case "hang":
            while True:
                time.sleep(3600)
        case _:
            sys.exit(f"--fail-how {how}: not one of {FAULTS}")


@dataclass
class Job:
    """One rank of a test job, and the faults that its options ask for."""

    args: argparse.Namespace
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))
    term_seen: bool = False
    _line: bytes = b""
    _counter: memoryview | None = None

    def start(self) -> None:
        """Do what happens before anything heavy is imported."""
        args = self.args
        append(args.pids, self.rank, os.getpid())
        if args.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif args.save_on_term or args.term_file:
            signal.signal(signal.SIGTERM, self._on_term)
        if args.daemon:
            start_daemon(args.daemon, args.daemon_env)
        if self.rank == args.skew_rank:
            time.sleep(args.skew_s)
        if args.counter and self.rank == 0:
            args.counter.write_bytes(bytes(8))
            with args.counter.open("r+b") as file:
                self._counter = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
        self._fail_if_ordered(0)

    def _on_term(self, _signum: int, _frame: object) -> None:
        append(self.args.term_file, self.rank, time.monotonic_ns())
        if not self.args.save_on_term:
            os._exit(128 + signal.SIGTERM)
        self.term_seen = True

    def _fail_if_ordered(self, step: int) -> None:
        args = self.args
        if (self.rank != args.fail_rank and not args.fail_here) or step != args.fail_at_step:
            return
        if args.fail_once_file:
            try:
                args.fail_once_file.touch(exist_ok=False)
            except FileExistsError:
                return
        self._await_peers()
        strike(args.fail_how)

    def _await_peers(self) -> None:
        """A rank that fails before its peers have written their pids would have them stopped unseen; all of this attempt's come first."""
        world, until = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), time.monotonic() + 10
        while self.args.pids and len(self.args.pids.read_text().splitlines()) % world and time.monotonic() < until:
            time.sleep(0.005)

    def before_step(self, step: int) -> None:
        """Fail, wait, sleep or print as ordered; steps count from 1."""
        if self.args.beat:
            from supervisor import worker  # noqa: PLC0415  as a script that has it

            worker.heartbeat(step - 1)  # as a loop that counts from 0
        self._fail_if_ordered(step)
        while step == self.args.hold_at and not self.args.held_until.exists():
            time.sleep(0.005)
        if self.args.step_ms:
            time.sleep(self.args.step_ms / 1e3)
        if self.args.flood_mib_s and self.rank == 0:
            self._flood()

    def _flood(self) -> None:
        """Print what one step's share of --flood-mib-s is, in lines of 127 characters."""
        if not self._line:
            self._line = (b"x" * 127 + b"\n") * int(self.args.flood_mib_s * max(self.args.step_ms, 1.0) / 1e3 * 8192)
        written = 0
        while written < len(self._line):
            written += os.write(1, self._line[written:])

    def after_step(self, step: int) -> None:
        """Tell that `step` is made."""
        if self._counter:
            self._counter[0] = step
        append(self.args.progress, self.rank, step, time.monotonic_ns())
        if self.args.print_steps:
            sys.stdout.write(f"rank {self.rank} step {step}\n")  # one write: print under -u makes two, and ranks' lines would mix
            sys.stdout.flush()

    def end(self, state: str) -> None:
        """Write what the whole run gave; `state` is the digest of what was trained."""
        args = self.args
        if args.digest and self.rank == 0:
            write_whole(args.digest, state.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name and rename it: readers see all of it or nothing."""
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
