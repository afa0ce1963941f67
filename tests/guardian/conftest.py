"""A supervisor's side that can be killed: a small process with a guardian of its own, driven over two pipes."""

# ruff: noqa: D102, ANN401  the helpers' methods say it by their names; what Popen takes has no one type

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import forks
from tests.support.forks import Fork
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DRIVER = """
import json, os, sys, threading
from supervisor.launch.guardian_client import GuardianClient, ignored_signals
ignored = ignored_signals()
control, events = int(sys.argv[1]), int(sys.argv[2])
os.set_inheritable(control, False)
os.set_inheritable(events, False)
lock = threading.Lock()
def tell(event):
    with lock:
        os.write(events, json.dumps(event).encode() + b"\\n")
guardian = GuardianClient.start(tell, lambda: tell({"ev": "guardian_died"}), ignored=ignored, **json.loads(sys.argv[3]))
for line in os.fdopen(control):
    call = json.loads(line)
    getattr(guardian, call.pop("call"))(*call.pop("args", ()), **call)
"""


#: What the driver imports.
IMPORTS = ("supervisor.launch.guardian_client",)


def _number(file: Any) -> int:
    return file if isinstance(file, int) else int(file.fileno())


class Side:
    """The driver process: `call` a method of its Guardian, `wait` for an event."""

    def __init__(
        self, directory: Path, *, stdout: Any = None, stderr: Any = None, stdin: Any = None, wrap: tuple[str, ...] = (), **options: Any
    ) -> None:
        control, self._control = os.pipe()
        self._events, events = os.pipe()
        self.directory = directory
        self.seen: list[dict[str, Any]] = []
        self._buffer = b""
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process: Fork | subprocess.Popen[bytes]
        if wrap:
            argv = [*wrap, sys.executable, "-c", DRIVER, str(control), str(events), json.dumps(options)]
            self.process = subprocess.Popen(  # noqa: S603 - our own driver
                argv,
                pass_fds=[control, events],
                env=env,
                stdout=stdout or subprocess.DEVNULL,
                stderr=stderr,
                stdin=stdin or subprocess.DEVNULL,
            )
        else:
            with Path(os.devnull).open("r+b") as nothing:
                descriptors = [_number(stdin or nothing), _number(stdout or nothing), _number(stderr or 2), control, events]
                argv = ["-c", DRIVER, "3", "4", json.dumps(options)]
                self.process = Fork(forks.PROGRAM, *argv, imports=IMPORTS, environ=env, cwd=Path.cwd(), descriptors=descriptors)
        os.close(control)
        os.close(events)
        self.hello = self.wait("hello")

    def call(self, method: str, *args: object, **kwargs: object) -> None:
        os.write(self._control, json.dumps({"call": method, "args": args, **kwargs}).encode() + b"\n")

    def run(self, argv: list[str], attempt: int = 1, *, env: dict[str, str] | None = None, **more: object) -> dict[str, Any]:
        """Spawn a plain command and wait until it runs."""
        self.call("spawn", **self.command(argv, attempt, env=env, **more))
        return self.wait("spawned")

    def command(self, argv: list[str], attempt: int = 1, *, env: dict[str, str] | None = None, **more: object) -> dict[str, Any]:
        given = {"kind": "plain", "cwd": str(self.directory), "log_dir": str(self.logs(attempt)), "show": True, **more}
        return {"attempt": attempt, "argv": argv, "env": {**os.environ, **(env or {})}, **given}

    def logs(self, attempt: int = 1) -> Path:
        return self.directory / f"{attempt:04d}"

    def wait(self, ev: str, timeout_s: float = 60.0, **match: object) -> dict[str, Any]:
        """Return the next event of this kind, whatever comes before it. ev: several kinds stand with spaces between them."""
        deadline = time.monotonic() + timeout_s
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                event = json.loads(line)
                self.seen.append(event)
                if event["ev"] in ev.split() and match.items() <= event.items():
                    return dict(event)
                continue
            ready, _, _ = select.select([self._events], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {ev} within {timeout_s} s; seen: {self.seen}"
            chunk = os.read(self._events, 65536)
            assert chunk, f"the driver ended before {ev}; seen: {self.seen}"
            self._buffer += chunk

    def finish(self) -> dict[str, Any]:
        self.call("finish")
        return self.wait("survivors")

    def close(self) -> None:
        """Let it end: what it started ends with it."""
        self.process.kill()
        self.process.wait()
        for fd in (self._control, self._events):
            with contextlib.suppress(OSError):
                os.close(fd)


def until(condition: Callable[[], bool], timeout_s: float = 30.0, subject: str = "the condition") -> float:
    """Wait for a condition; returns how long it took."""
    began = time.monotonic()
    wait_for(condition, subject, timeout_s)
    return time.monotonic() - began


def read_pid(file: Path) -> int:
    """Wait for a pid that a process writes of itself, newline last."""
    until(lambda: file.exists() and file.read_text().endswith("\n"), subject=str(file))
    return int(file.read_text())


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Callable[..., Side]]:
    """Make sides; each is killed at the end, and its guardian must be gone soon after."""
    sides: list[Side] = []

    def make(**given: Any) -> Side:
        sides.append(Side(tmp_path, **given))
        return sides[-1]

    yield make
    for side in sides:
        side.close()
        until(lambda side=side: not is_running(side.hello["pid"]), subject="the end of the guardian")
