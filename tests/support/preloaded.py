"""Runs programs to their end in forks of a process that has imported torch, or what most commands import: see tests/support/forks.py.

For tests in which neither start, launcher nor end is the subject.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import forks
from tests.support.forks import Fork

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: What most commands import.
COMMANDS = ("supervisor.cli.main", "supervisor.cli.classify.command", "supervisor.config.signatures:read", "health.doctor")
#: What ranks import: torch, and with it what saves shards.
TORCH = ("torch.distributed.checkpoint",)
#: How long a rank that has ended leaves its connections open for its peers.
PEERS_S = 1.0


def run(*words: str, ranks: int = 0, timeout_s: float = 240.0, imports: tuple[str, ...] = TORCH) -> subprocess.CompletedProcess[str]:
    """Run what `python WORDS` would: -c and a program, or a script and its arguments; `ranks` of it at once that meet as under torchrun.

    The return code is that of the first rank that did not end with 0. imports: what the process that is forked has imported.
    """
    with files_for(b"") as files, contextlib.ExitStack() as stack:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        if ranks:
            port = stack.enter_context(_store(files, imports))
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            shared |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
            environ |= {name: str(value) for name, value in shared.items()}
        running = os.pipe()
        processes = [
            Fork(
                f"{__name__}:be_rank",
                *words,
                imports=imports,
                environ=environ | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks else {}),
                cwd=Path.cwd(),
                descriptors=(*files, *running),
            )
            for rank in range(max(1, ranks))
        ]
        for end in running:
            os.close(end)
        code = _ended(processes, timeout_s)
        out, err = (os.pread(file, os.fstat(file).st_size, 0).decode() for file in files[1:])
        return subprocess.CompletedProcess(words, code, out, err)


def command(
    *words: str,
    cwd: Path,
    environ: Mapping[str, str],
    stdin: bytes = b"",
    imports: tuple[str, ...] = COMMANDS,
    module: str = "supervisor",
) -> subprocess.CompletedProcess[bytes]:
    """Run what `python -P -m MODULE WORDS` would in `cwd`, with this environment alone."""
    with files_for(stdin) as files:
        process = Fork(forks.PROGRAM, "-m", module, *words, imports=imports, environ=environ, cwd=cwd, descriptors=files)
        code = _ended([process], 240.0)
        out, err = (os.pread(file, os.fstat(file).st_size, 0) for file in files[1:])
        return subprocess.CompletedProcess(words, code, out, err)


def command_text(
    *words: str, cwd: Path, environ: Mapping[str, str], imports: tuple[str, ...] = COMMANDS, module: str = "supervisor"
) -> subprocess.CompletedProcess[str]:
    """Run the same, and return what it printed as text."""
    done = command(*words, cwd=cwd, environ=environ, imports=imports, module=module)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


@contextlib.contextmanager
def files_for(stdin: bytes) -> Iterator[tuple[int, int, int]]:
    """Open three files as stdin, stdout and stderr: a pipe would have to be read all the time."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        (Path(place) / "in").write_bytes(stdin)
        opened = []
        for name in ("in", "out", "err"):
            opened.append(os.open(Path(place) / name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644))
            stack.callback(os.close, opened[-1])
        yield opened[0], opened[1], opened[2]


def _ended(processes: list[Fork], timeout_s: float) -> int:
    """Await the end of all; return the first code that is not 0. Who is late is killed."""
    codes: list[int] = []
    waiting = list(processes)
    until = time.monotonic() + timeout_s
    while waiting:
        ready, _, _ = select.select(waiting, [], [], max(0.0, until - time.monotonic()))
        for process in ready:
            waiting.remove(process)
            codes.append(process.wait())
        if not ready:
            for late in waiting:
                late.kill()
            until += timeout_s
    return next((code for code in codes if code), 0)


@contextlib.contextmanager
def _store(files: tuple[int, int, int], imports: tuple[str, ...]) -> Iterator[str]:
    """Keep the store in which ranks meet in a process of its own; give its port."""
    read, write = os.pipe()
    holder = Fork(f"{__name__}:hold_store", imports=imports, environ=os.environ, cwd=Path.cwd(), descriptors=(*files, write))
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as port_pipe:
        port = port_pipe.read().decode()
    try:
        yield port
    finally:
        holder.kill()
        holder.wait()


def hold_store() -> None:
    """Be the process with the store: say its port on descriptor 3, and stay."""
    from torch.distributed import TCPStore  # noqa: PLC0415

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(3, str(store.port).encode())
    os.close(3)
    signal.pause()


def be_rank(*words: str) -> int:
    """Be a rank. 3 and 4 are a pipe, whose end for writing each rank closes when it has ended.

    Its peers may still wait in their last barrier, and gloo fails there if its connections are closed.
    """
    for end in (3, 4):
        os.set_inheritable(end, False)  # noqa: FBT003  by position alone
    code = forks.run_program(*words)
    os.close(4)
    select.select([3], [], [], PEERS_S)
    return code
