"""Agents in forks of one process that has imported what an agent imports: torch costs 2.4 CPU seconds each time.

The process has one thread. For each agent it forks a watcher, which forks the agent, awaits its end and writes its pid and its exit code,
a line each.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

AGENT_FILE = Path(__file__).parents[2] / "supervisor" / "agent" / "__main__.py"
IMPORTS = ("torch", "torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher.api")


class ForkedAgent:
    """What the tests use of subprocess.Popen, for an agent that is nobody's child here."""

    def __init__(self, args: list[str], fds: list[int], cwd: Path, environ: dict[str, str]) -> None:
        """Start it. fds: of its link, of its output and of its stderr."""
        self.returncode: int | None = None
        self._lines, their_lines = os.pipe()
        request = json.dumps({"args": args, "cwd": str(cwd), "environ": environ}).encode()
        socket.send_fds(_server(), [request], [*fds, their_lines])
        os.close(their_lines)
        self.pid = int(self._line())

    def _line(self) -> str:
        text = b""
        while not text.endswith(b"\n"):
            text += os.read(self._lines, 1) or b"?\n"  # the server died
        return text.decode()

    def wait(self, timeout: float | None = None) -> int:
        """Await the end; return the exit code, negative for a signal."""
        if self.returncode is None:
            if not select.select([self._lines], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(AGENT_FILE), timeout or 0.0)
            self.returncode = int(self._line())
            os.close(self._lines)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Send KILL."""
        os.kill(self.pid, signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_", "TORCH", "PET_"))}
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environ)  # noqa: S603
    theirs.close()
    atexit.register(lambda: (ours.close(), server.wait()))
    return ours


def _serve(control: socket.socket) -> None:
    for name in IMPORTS:
        importlib.import_module(name)
    gc.freeze()  # a collection in a fork would copy what all share
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not data:
            return
        watcher = os.fork()
        if watcher == 0:
            control.close()
            _watch(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(request: dict[str, Any], fds: list[int]) -> NoReturn:
    *its_own, lines = fds
    agent = os.fork()
    if agent == 0:
        os.close(lines)
        _be_agent(request, its_own)
    for fd in its_own:
        os.close(fd)
    os.write(lines, f"{agent}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
    os.write(lines, f"{code}\n".encode())
    os._exit(0)


def _be_agent(request: dict[str, Any], fds: list[int]) -> NoReturn:
    link, output, errors = fds
    os.setsid()
    os.chdir(request["cwd"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard, fd in enumerate((nothing, nothing, errors)):
        os.dup2(fd, standard)
    for fd in (nothing, errors):
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = [str(AGENT_FILE), "--link-fd", str(link), "--output-fd", str(output), *request["args"]]
    try:
        runpy.run_path(str(AGENT_FILE), run_name="__main__")  # leaves by os._exit
    except BaseException:  # noqa: BLE001  as the interpreter itself has it
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        _serve(sock)
