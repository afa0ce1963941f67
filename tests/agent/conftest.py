"""The agent, driven for real: this process plays the supervisor and the guardian."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Complete, Go, PublishCoordinator, Start, StopCommand, encode
from tests.support import forks
from tests.support.forks import Fork
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import Store

    from supervisor.agent.messages import Command

HERE = Path(__file__).parent
AGENT_FILE = HERE.parents[1] / "supervisor" / "agent" / "__main__.py"
IMPORTS = ("torch", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher.api")
DEADLINE_S = 60.0
#: Starts the agent with a torch of another form: a name is gone.
BENT = """
import importlib, runpy, sys
module, owner, lost, *sys.argv = sys.argv[1:]
found = importlib.import_module(module)
delattr(getattr(found, owner) if owner else found, lost)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Agent:
    """One agent process. Its messages are in `events`; what its ranks wrote is in `output`, by (attempt, rank, name).

    agrees: once its nodes have met it is told to start its ranks, as it was told to go. If it serves torch's rendezvous store, it is told
    where the coordinator is; nobody listens there. bent: module, owner (or "") and name of what torch does not have.
    """

    def __init__(
        self, cwd: Path, torchrun_args: list[str], *, options: tuple[str, ...] = (), bent: tuple[str, ...] = (), **env: str
    ) -> None:
        self.agrees = True
        self.events: list[dict[str, Any]] = []
        self._went: dict[int, Go] = {}
        self.output: dict[tuple[int, int, str], bytes] = {}
        self.handed: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._seen = 0
        self._link, their_end = socket.socketpair()
        self._packets, their_packets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (their_end.fileno(), their_packets.fileno())
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "OMP_", "TORCH", "PET_"))}
        self.stderr = (cwd / f"agent-{time.monotonic_ns()}.err").open("w+b")
        self._bent = bent
        self.process = self._started((*options, "--", *torchrun_args), fds, cwd, {**self.environ, **env})
        their_end.close()
        their_packets.close()
        for target in (self._read_events, self._read_packets):
            threading.Thread(target=target, daemon=True).start()

    def _started(self, args: tuple[str, ...], fds: tuple[int, int], cwd: Path, environ: dict[str, str]) -> Fork | subprocess.Popen[bytes]:
        """Start the agent: an interpreter of its own where the test changes what that is, or how torch is entered.

        And for torch's dynamic rounds: of two forks of one process, a node that waits does not come into the second round.
        """
        if "PYTHONPATH" not in environ and not {"--entry", "--rdzv-backend=c10d"} & {*args}:
            argv = [*(("-c", BENT, *self._bent) if self._bent else ()), str(AGENT_FILE), "--link-fd", "3", "--output-fd", "4", *args]
            with Path(os.devnull).open("r+b") as nothing:
                descriptors = (nothing.fileno(), nothing.fileno(), self.stderr.fileno(), *fds)
                return Fork(forks.PROGRAM, *argv, imports=IMPORTS, environ=environ, cwd=cwd, descriptors=descriptors)
        argv = [sys.executable, "-P", str(AGENT_FILE), "--link-fd", str(fds[0]), "--output-fd", str(fds[1]), *args]
        return subprocess.Popen(  # noqa: S603  our own interpreter
            argv, pass_fds=fds, cwd=cwd, env=environ, stderr=self.stderr, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def send(self, command: Command) -> None:
        """Send a command."""
        if isinstance(command, Go):
            self._went[command.attempt] = command
        self._link.sendall(encode(command))

    def stop(self, attempt: int, *, exit_code: int | None = 0, grace_s: float = 2.0) -> None:
        """Send a stop."""
        self.send(StopCommand(attempt, signal.SIGTERM, grace_s, exit_code))

    def fail(self, attempt: int, text: str = "a rank of another node failed") -> None:
        """End the attempt as another node's failure does."""
        self.send(StopCommand(attempt, signal.SIGTERM, 2.0, failure=text))

    def complete(self, attempt: int) -> None:
        """All ranks of this node are done; so are, says the test, those of all others."""
        self.expect("ranks_done", attempt)
        self.send(Complete(attempt))

    def expect(self, ev: str, attempt: int | None = None, **fields: object) -> dict[str, Any]:
        """Wait for a message like this."""

        def match() -> dict[str, Any] | None:
            wanted = {"ev": ev, **fields} | ({} if attempt is None else {"attempt": attempt})
            return next((e for e in self.events if wanted.items() <= e.items()), None)

        with self._changed:
            if not self._changed.wait_for(match, DEADLINE_S):
                pytest.fail(f"no {ev} {attempt or ''} {fields} among {self.events}; stderr: {self.errors()}")
            return match() or {}

    def has(self, ev: str, attempt: int) -> bool:
        """Whether it has come already."""
        with self._changed:
            return any(e["ev"] == ev and e["attempt"] == attempt for e in self.events)

    def wait_exit(self) -> int:
        """Wait for the end of the process; its code."""
        return self.process.wait(DEADLINE_S)

    def errors(self) -> str:
        """What it wrote to its own stderr."""
        self.stderr.flush()
        return Path(self.stderr.name).read_text()

    def streams(self, count: int) -> set[tuple[int, str, bool, int, bool]]:
        """Wait for so many streams: (rank, name, shown, to 1 or 2, a terminal)."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.handed) >= count, DEADLINE_S), self.handed
            return {(h["rank"], h["name"], h["show"], h["to"], h.get("pty", False)) for h in self.handed}

    def wrote(self, attempt: int, rank: int, name: str, text: bytes) -> None:
        """Wait until that stream holds the text."""
        with self._changed:
            key = (attempt, rank, name)
            assert self._changed.wait_for(lambda: text in self.output.get(key, b""), DEADLINE_S), (self.output, self.errors())

    def hang_up(self) -> None:
        """End the link, as the death of the supervisor would."""
        self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Kill it, if it lives."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        self.process.wait()
        for s in (self._link, self._packets):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        self.stderr.close()

    def _read_events(self) -> None:
        with self._link.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                event = json.loads(line)
                with self._changed:
                    self.events.append({**event, "seen_ns": time.monotonic_ns()})
                    self._changed.notify_all()
                if event["ev"] == "gathered" and self.agrees:
                    if not event["port"]:
                        self.send(PublishCoordinator(event["attempt"], 4711, "key"))
                    self.send(Start(self._went[event["attempt"]]))
        self._link.close()

    def _read_packets(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._packets, 65536, 1)
                if not data:
                    break
                packet = json.loads(data)
                with self._changed:
                    self.handed.append(packet)
                    self._changed.notify_all()
                threading.Thread(target=self._drain, args=(packet, fds[0]), daemon=True).start()
        self._packets.close()

    def _drain(self, packet: dict[str, Any], fd: int) -> None:
        key = (packet["attempt"], packet["rank"], packet["name"])
        with contextlib.suppress(OSError):  # EIO: the last writer of a terminal closed it
            while chunk := os.read(fd, 65536):
                with self._changed:
                    self.output[key] = self.output.get(key, b"") + chunk
                    self._changed.notify_all()
        os.close(fd)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Start an agent whose ranks run job.py; ended, and its ranks with it, when the test is over."""
    agents: list[Agent] = []

    def begin(*torchrun_args: str, script: str = "job.py", options: tuple[str, ...] = (), bent: tuple[str, ...] = (), **env: str) -> Agent:
        args = list(torchrun_args) or ["--standalone", "--nproc-per-node=2"]
        agents.append(Agent(tmp_path, [*args, str(HERE / script), "{own}"], options=options, bent=bent, **env))
        return agents[-1]

    begin.job = HERE / "job.py"  # type: ignore[attr-defined]  # what a test cannot know of this place
    yield begin
    pids = [r["pid"] for a in agents for e in a.events if e["ev"] == "started" for r in e["ranks"]]
    for agent in agents:
        agent.close()
    wait_for(lambda: not any(map(is_running, pids)), f"the end of the ranks {pids}: none may outlive its agent", DEADLINE_S)


@pytest.fixture
def store() -> Iterator[Store]:
    """A rendezvous store that is served here."""
    from tests.agent.stores import served_store  # noqa: PLC0415  loads torch

    served = served_store()
    yield served
    del served
