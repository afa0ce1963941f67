"""Processes that are forks of one process, which has imported what they need.

For tests in which the start itself is not the subject: torch costs 1.3 CPU seconds each time, boto3 half a second, a command of ours 0.3.
As a program, this module is the process that forks. It has one thread. Each message on its socket describes a process and brings its
descriptors, and one more, on which its pid and its exit code are written, a line each.
"""

from __future__ import annotations

import atexit
import contextlib
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
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
#: Of a process that runs what `python WORDS` would.
PROGRAM = "tests.support.forks:run_program"
#: What is set for a test that needs it, and not for a process that others are forks of.
_NOT_THEIRS = ("PYTHON", "OMP_", "TORCH", "PET_", "AWS_")
_MOST_BYTES = 1 << 20


class Fork:
    """A process that is nobody's child here, with what the tests use of subprocess.Popen."""

    def __init__(
        self, start: str, *words: str, imports: tuple[str, ...], environ: Mapping[str, str], cwd: Path, descriptors: Sequence[int]
    ) -> None:
        """Call `start` with the words, in this environment alone; it gives the exit code.

        start: "module:function". imports: what is imported before the fork; a function is called, too. descriptors: its 0, 1, 2 and so on.
        """
        self.returncode: int | None = None
        self._lines, their_lines = os.pipe()
        request = json.dumps({"start": start, "words": words, "environ": dict(environ), "cwd": str(cwd)}).encode()
        try:
            socket.send_fds(_server(*imports), [request], [*descriptors, their_lines])
        finally:
            os.close(their_lines)
        self.pid = int(self._line())

    def _line(self) -> str:
        text = b""
        while not text.endswith(b"\n"):
            text += os.read(self._lines, 1) or b" the process that forks ended\n"
        return text.decode()

    def fileno(self) -> int:
        """Return what can be read once it has ended, for select."""
        return self._lines

    def wait(self, timeout: float | None = None) -> int:
        """Await its end; return the exit code, negative for a signal. Raises subprocess.TimeoutExpired; timeout in seconds."""
        if self.returncode is None:
            if not select.select([self], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self._line())
            os.close(self._lines)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, signum: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def pipes(count: int = 2) -> Iterator[tuple[list[int], list[int]]]:
    """Give what a process has as stdin, stdout and, of 3, stderr, and our ends of these pipes. Its own are closed here afterwards."""
    (stdin, write), *outputs = [os.pipe() for _ in range(count)]
    theirs = [stdin, *(end for _, end in outputs)]
    try:
        yield theirs, [write, *(end for end, _ in outputs)]
    finally:
        for descriptor in theirs:
            os.close(descriptor)


@functools.cache
def _server(*imports: str) -> socket.socket:
    our_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THEIRS)}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", __file__, str(server_end.fileno()), *imports]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ, pass_fds=[server_end.fileno()])  # noqa: S603
    server_end.close()
    atexit.register(lambda: (our_end.close(), server.wait()))
    return our_end


def run_program(*words: str) -> int:
    """Be what `python WORDS` is: -c and a program, -m and a module that is found as by -P, or a script. Return the exit code."""
    sys.argv = list(words)
    if words[0] == "-c":
        program = sys.argv.pop(1)
        sys.path.insert(0, "")
        code = _code_of(lambda: exec(compile(program, "<string>", "exec"), {"__name__": "__main__"}))  # noqa: S102  a test's own
    elif words[0] == "-m":
        module = sys.argv.pop(1)
        code = _code_of(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        code = _code_of(lambda: runpy.run_path(words[0], run_name="__main__"))
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # noqa: SLF001  the modules are not taken apart: that takes a second where torch is among them
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _code_of(program: Callable[[], object]) -> int:
    try:
        program()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  as the interpreter itself has it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _called(name: str) -> Callable[..., int | None]:
    """Import what is named "module" or "module:function"; return the function."""
    module, _, function = name.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, function) if function else lambda: None  # type: ignore[no-any-return]


def _serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request until there are no more; return in each fork, with its request and its descriptors."""
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
                lines = running.pop(child[0])
                os.write(lines, f"{os.waitstatus_to_exitcode(child[1])}\n".encode())
                os.close(lines)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 16)
            if not message:
                os._exit(0)
            *its_own, lines = descriptors
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (requests.fileno(), ended, wakes, lines, *running.values()):
                    os.close(descriptor)
                return json.loads(message), its_own
            running[pid] = lines
            os.write(lines, f"{pid}\n".encode())
            for descriptor in its_own:
                os.close(descriptor)


def _become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the process that was asked for."""
    code = 1
    try:
        os.setsid()
        os.chdir(request["cwd"])
        for number, descriptor in enumerate(descriptors):  # they ascend from 3 on: none is overwritten before it was copied
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            if descriptor >= len(descriptors):
                os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["environ"])
        time.tzset()
        code = _called(request["start"])(*request["words"]) or 0
    except BaseException:  # noqa: BLE001  the code below must not be run by a fork
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    for called in sys.argv[2:]:
        _called(called)()
    gc.freeze()  # a collection in a fork would copy what all share
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
