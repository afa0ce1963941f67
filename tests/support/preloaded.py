"""Runs programs in forks of one process that has imported what they need: torch costs 1.3 CPU seconds each time, a command of ours 0.3.

For tests in which neither start, launcher nor end is the subject. The process has one thread whenever it forks. A fork ends without
taking its modules apart: that takes a second where torch is among them.
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
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
#: What most commands import.
COMMANDS = ("supervisor.cli.main", "supervisor.cli.classify.command", "supervisor.config.signatures:read", "health.doctor")
#: How long a rank that has ended leaves its connections open for its peers.
PEERS_S = 1.0


@functools.cache
def _server(*modules: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, *modules]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)  # noqa: S603
    atexit.register(server.communicate)  # it ends with its input
    return server


def run(
    *words: str, ranks: int = 0, timeout_s: float = 240.0, imports: tuple[str, ...] = ("torch.distributed",)
) -> subprocess.CompletedProcess[str]:
    """Run what `python WORDS` would: -c and a program, or a script and its arguments; `ranks` of it at once that meet as under torchrun.

    The return code is that of the first rank that did not end with 0. imports: what the process that is forked has imported.
    """
    done = _run(_server(*imports), words, Path.cwd(), {**os.environ, "OMP_NUM_THREADS": "1"}, b"", ranks, timeout_s)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def command(
    *words: str, cwd: Path, environ: Mapping[str, str], stdin: bytes = b"", imports: tuple[str, ...] = COMMANDS
) -> subprocess.CompletedProcess[bytes]:
    """Run what `python -P -m supervisor WORDS` would in `cwd`, with this environment alone."""
    return _run(_server(*imports), ("-m", "supervisor", *words), cwd, dict(environ), stdin)


def command_text(
    *words: str, cwd: Path, environ: Mapping[str, str], imports: tuple[str, ...] = COMMANDS
) -> subprocess.CompletedProcess[str]:
    """Run the same, and return what it printed as text."""
    done = command(*words, cwd=cwd, environ=environ, imports=imports)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def _run(  # noqa: PLR0913, PLR0917  all that makes a process
    server: subprocess.Popen[str],
    words: tuple[str, ...],
    cwd: Path,
    environ: dict[str, str],
    stdin: bytes,
    ranks: int = 0,
    timeout_s: float = 240.0,
) -> subprocess.CompletedProcess[bytes]:
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as place:
        files = {name: str(Path(place) / name) for name in ("in", "out", "err")}
        Path(files["in"]).write_bytes(stdin)
        request = {"words": words, "ranks": ranks, "timeout_s": timeout_s, "environ": environ, "cwd": str(cwd), **files}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(words, code, Path(files["out"]).read_bytes(), Path(files["err"]).read_bytes())


def _store() -> tuple[int, int]:
    """Start a process with the store in which ranks meet; return its pid and port. The server itself is to have one thread."""
    from torch.distributed import TCPStore  # noqa: PLC0415

    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(write, str(store.port).encode())
        signal.pause()
    os.close(write)
    port = int(os.read(read, 16))
    os.close(read)
    return pid, port


def _ended(pids: list[int], timeout_s: float) -> int:
    """Await the end of all; return the first code that is not 0."""
    codes: list[int] = []
    until = time.monotonic() + timeout_s
    while len(codes) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes.append(os.waitstatus_to_exitcode(status))
        elif time.monotonic() > until:
            for late in pids:
                os.kill(late, signal.SIGKILL)
            until += timeout_s
        else:
            time.sleep(0.002)
    return next((code for code in codes if code), 0)


def _serve() -> tuple[dict[str, Any], dict[str, str], tuple[int, int]]:
    """Answer requests until there are no more; return in each fork, with its request and the variables that make it a rank.

    And with a pipe whose writing end each rank closes at its end.
    """
    for name in sys.argv[1:]:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()  # what it reads stays in its cache
    gc.freeze()  # a collection in a fork would copy what all share
    answers = os.dup(1)
    for line in sys.stdin:
        request = json.loads(line)
        size = request["ranks"]
        holder, port = _store() if size else (0, 0)
        running = os.pipe()
        pids = []
        for rank in range(max(1, size)):
            pid = os.fork()
            if pid == 0:
                os.close(answers)
                names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
                names |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
                return request, {name: str(value) for name, value in names.items()} if size else {}, running
            pids.append(pid)
        for end in running:
            os.close(end)
        code = _ended(pids, request["timeout_s"])
        if holder:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
        os.write(answers, f"{code}\n".encode())
    sys.exit()


def _become(request: dict[str, Any], rank: dict[str, str]) -> None:
    """Be the program that was asked for."""
    os.setsid()
    os.chdir(request["cwd"])
    for descriptor, name in enumerate((request["in"], request["out"], request["err"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update({**request["environ"], **rank})
    sys.argv = list(request["words"])
    if sys.argv[0] == "-c":
        program = sys.argv.pop(1)
        sys.path[0] = ""
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  a test's own
    elif sys.argv[0] == "-m":
        module = sys.argv.pop(1)
        del sys.path[0]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def _code_of(program: Callable[[], None]) -> int:
    """Run what is a process; return its exit code."""
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


def _end(code: int, running: tuple[int, int]) -> NoReturn:
    """End with this code, once all is done that the program has left to its end.

    The peers of a rank may still wait in their last barrier, and gloo fails there if its connections are closed.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    os.close(running[1])
    select.select([running[0]], [], [], PEERS_S)
    os._exit(code)


if __name__ == "__main__":
    of_request, of_rank, others = _serve()
    _end(_code_of(functools.partial(_become, of_request, of_rank)), others)
