"""Runs `supervise` and writes down where its deciding loop could have waited for a disk, a process, another machine or a thread.

    LOOP_WAITS=FILE python tests/support/loop_waits.py supervise --job x -- CMD

Each call of the loop's thread that may wait is a line of FILE: what it waits for, and the functions of supervise that led to it, the
innermost first. Files in memory are none of them: those of /dev/shm, /proc and /sys. A mount that hangs shows as one of these lines
would, at the first such call; so the edge is watched, and no mount is needed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parents[2]
#: Files that the kernel has in its own memory.
IN_MEMORY = ("/dev/shm/", "/proc/", "/sys/", "/dev/null", "/dev/kmsg")  # noqa: S108
#: Audited calls that take a path or a descriptor first (docs.python.org/3/library/audit_events.html).
OF_PATHS = frozenset(
    {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime", "os.chmod"}
)
OTHERS = frozenset(
    {"subprocess.Popen", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "os.system", "os.posix_spawn", "shutil.rmtree"}
)

_link_of = os.readlink  # as it is before it is watched

_loop_thread = 0
_lines: list[str] = []


def _places() -> str:
    """Return the functions of supervise on the stack, the innermost first."""
    frame, places = sys._getframe(2), []  # noqa: SLF001
    while frame is not None and len(places) < 4:
        path = frame.f_code.co_filename
        if path.startswith(str(HERE)) and "/tests/" not in path and ".venv" not in path:
            places.append(f"{os.path.relpath(path, HERE)}:{frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(places)


def _note(wait: str) -> None:
    if threading.get_ident() == _loop_thread:
        _lines.append(f"{wait} | {_places()}")


def _is_on_disk(path: object) -> bool:
    if isinstance(path, int):
        try:
            path = _link_of(f"/proc/self/fd/{path}")
        except OSError:
            return False
        return path.startswith("/") and not path.startswith((*IN_MEMORY, "/dev/"))
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return bool(text) and not f"{text}/".startswith(IN_MEMORY)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if threading.get_ident() != _loop_thread:
        return
    if event in OTHERS or (event in OF_PATHS and _is_on_disk(args[0])):
        _lines.append(f"{event} {args[0]!r} | {_places()}")


def _watched(module: Any, name: str, describe: Callable[..., str]) -> None:  # noqa: ANN401  any module or class
    """Have each call of a function noted for which `describe` gives a text."""
    call = getattr(module, name)

    def noted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        text = describe(*args, **kwargs)
        if text:
            _note(text)
        return call(*args, **kwargs)

    setattr(module, name, noted)


def _wait(_condition: object, timeout: float | None = None) -> str:
    """Whether a wait for another thread is one: a thread's start is over in microseconds, and a time-out of 0 is none."""
    starts = sys._getframe(3).f_code.co_name == "start"  # noqa: SLF001  Thread.start < Event.wait < Condition.wait
    return "" if starts or (timeout is not None and timeout <= 0) else f"a thread's wait of {timeout} s"


def install() -> None:
    """Watch all that may wait, from the moment at which the loop runs."""
    from supervisor.run.loop import Loop  # noqa: PLC0415

    run = Loop.run

    def running(loop: Loop) -> Any:  # noqa: ANN401
        global _loop_thread  # noqa: PLW0603
        _loop_thread = threading.get_ident()
        try:
            return run(loop)
        finally:
            _loop_thread = 0

    Loop.run = running  # type: ignore[method-assign]
    for name in ("stat", "lstat", "statvfs", "readlink"):
        _watched(os, name, lambda path, *_args, name=name, **_kwargs: f"os.{name} {path!r}" if _is_on_disk(path) else "")
    for name in ("write", "pwrite", "pread", "read", "fsync", "fdatasync", "fstat", "ftruncate"):
        _watched(os, name, lambda fd, *_args, name=name: f"os.{name} {_link_of(f'/proc/self/fd/{fd}')}" if _is_on_disk(fd) else "")
    _watched(threading.Condition, "wait", _wait)
    _watched(threading.Thread, "join", lambda _thread, timeout=None: "" if timeout == 0 else f"a thread's end, {timeout} s")
    _watched(subprocess.Popen, "wait", lambda _process, timeout=None: f"a process's end, {timeout} s")
    _watched(time, "sleep", lambda seconds: f"{seconds} s")
    _watched(socket.socket, "sendall", lambda sock, *_args: "a peer that does not read" if sock.gettimeout() != 0.0 else "")
    sys.addaudithook(_audit)


def main() -> int:
    """Run the command line behind this file."""
    sys.path.insert(0, str(HERE))
    del sys.argv[0]
    import supervise_command  # noqa: PLC0415

    install()
    try:
        return supervise_command.main()
    finally:
        Path(os.environ["LOOP_WAITS"]).write_text("".join(f"{line}\n" for line in _lines))


if __name__ == "__main__":
    sys.exit(main())
