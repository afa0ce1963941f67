"""Starts mirror processes as forks of one process that has imported what they need: an import of boto3 costs half a second of CPU.

For tests in which the start itself is not the subject: tests/checkpointing/mirror/test_link.py and test_reader_process.py start the real
program. As a program, this module is the process that forks: each message on its socket has the variables of a process and its
descriptors (stdin, stdout, and one for its exit code).
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
_MOST_BYTES = 1 << 17


class Forked:
    """A mirror process, with what a Popen has of it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start it with these variables alone."""
        (stdin, write), (read, stdout), (code, ended) = os.pipe(), os.pipe(), os.pipe()
        server = _server()
        socket.send_fds(server, [json.dumps(dict(environ)).encode()], [stdin, stdout, ended])
        for descriptor in (stdin, stdout, ended):
            os.close(descriptor)
        self.stdin = os.fdopen(write, "w", encoding="utf-8")
        self.stdout = os.fdopen(read, encoding="utf-8")
        self.pid = int(server.recv(32))
        self.returncode: int | None = None
        self._code = os.fdopen(code, "rb", buffering=0)

    def wait(self, timeout_s: float | None = None) -> int:
        """Await its end; return its exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._code], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired("the mirror process", timeout_s or 0.0)
            self.returncode = int(self._code.read())
            self._code.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send it a signal, if it has not been seen to end."""
        if self.returncode is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it at once, if it has not been seen to end."""
        if self.returncode is None and not select.select([self._code], [], [], 0)[0]:
            os.kill(self.pid, signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = [sys.executable, "-P", __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**environ, "PYTHONPATH": str(ROOT)}, pass_fds=[theirs.fileno()])  # noqa: S603
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _warm() -> None:
    """Import what a mirror process does, and read what each client of boto3 reads."""
    import boto3  # noqa: PLC0415
    from botocore.loaders import JSONFileLoader  # noqa: PLC0415

    from checkpointing.mirror.backends import s3  # noqa: F401, PLC0415
    from checkpointing.reader import process  # noqa: F401, PLC0415

    read = functools.cache(JSONFileLoader().load_file)
    JSONFileLoader.load_file = lambda _, path: read(path)
    boto3.session.Session("key", "secret", region_name="us-east-1").client("s3")


def _serve(requests: socket.socket) -> tuple[dict[str, str], list[int]]:
    """Fork for each request until there are no more; return in each fork, with its variables and its descriptors."""
    running: dict[int, int] = {}
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            while running and (child := os.waitpid(-1, os.WNOHANG))[0]:
                report = running.pop(child[0])
                os.write(report, str(os.waitstatus_to_exitcode(child[1])).encode())
                os.close(report)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (requests.fileno(), ended, wakes, descriptors[2], *running.values()):
                    os.close(descriptor)
                return json.loads(message), descriptors[:2]
            running[pid] = descriptors[2]
            for descriptor in descriptors[:2]:
                os.close(descriptor)
            requests.send(str(pid).encode())


def _become(environ: dict[str, str], descriptors: list[int]) -> NoReturn:
    """Be the mirror process."""
    from checkpointing.reader import process  # noqa: PLC0415

    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os._exit(process.main())


if __name__ == "__main__":
    _warm()
    gc.freeze()  # a collection in a fork would copy what all share
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
