"""What real processes wait for: a file, the peer of a socket, a pipe, another process; and who left a file there."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.observe.hangs import awaited, procfs
from supervisor.observe.hangs.awaited import Awaited, AwaitedKind, Surroundings
from supervisor.observe.hangs.polled import PRESENCE
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Ranks

pytestmark = pytest.mark.process


@pytest.fixture
def waiting() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give a list for processes; they are ended after the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        if process.stdin is not None:
            process.stdin.close()


def python(code: str, **options: int) -> subprocess.Popen[bytes]:
    """Start Python with this code."""
    return subprocess.Popen([sys.executable, "-c", code], **options)  # type: ignore[call-overload, no-any-return]  # noqa: S603 - ours


def seen(process: subprocess.Popen[bytes]) -> Awaited:
    """Await that a process waits for something, and return that."""
    waits = wait_for(lambda: awaited.of_call(process.pid, procfs.waits(process.pid), Surroundings()), "its wait", 20)
    return waits[0]


CALLS = {
    "recv": "s.recv(1)",
    "poll": "p = select.poll(); p.register(s, select.POLLIN); p.poll()",
    "select": "select.select([s], [], [])",
    "epoll": "e = select.epoll(); e.register(s, select.EPOLLIN); e.poll()",
    "with a timeout": "s.settimeout(1000); s.recv(1)",
}


@pytest.mark.parametrize("call", CALLS)
def test_the_peer_of_a_socket(waiting: list[subprocess.Popen[bytes]], call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import select, socket\ns = socket.create_connection(('127.0.0.1', {port}))\n{CALLS[call]}"
        waiting.append(python(code))
        wait = seen(waiting[0])
        assert (wait.kind, wait.name, wait.lives) == (AwaitedKind.SOCKET, f"127.0.0.1:{port}", True)


def test_the_other_end_of_a_pipe_is_named(waiting: list[subprocess.Popen[bytes]]) -> None:
    waiting.append(python("input()", stdin=subprocess.PIPE))
    wait = seen(waiting[0])
    assert (wait.kind, wait.lives) == (AwaitedKind.PIPE, True)
    assert f"process {os.getpid()} (" in wait.text


def test_a_named_pipe_that_nobody_opens(waiting: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    waiting.append(python(f"open({str(tmp_path / 'fifo')!r})"))
    wait = seen(waiting[0])
    assert (wait.kind, wait.name, wait.lives) == (AwaitedKind.PIPE, str(tmp_path / "fifo"), False)


def test_the_child_waited_for_is_named_with_its_own_wait(waiting: list[subprocess.Popen[bytes]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
        waiting.append(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"))
        child_wait = wait_for(lambda: wait if "which waits for" in (wait := seen(waiting[0])).text else None, "the child's own wait", 20)
        assert child_wait.kind is AwaitedKind.PROCESS
        assert child_wait.text.endswith(f"which waits for 127.0.0.1:{port}")
        os.kill(int(child_wait.name), signal.SIGKILL)


def test_the_process_that_holds_a_lock(waiting: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code = f"import fcntl; fcntl.flock(open({str(tmp_path / 'lock')!r}, 'w'), fcntl.LOCK_EX)"
        waiting.append(python(code))
        wait = seen(waiting[0])
        assert wait.name == str(tmp_path / "lock")
        assert wait.text.startswith(f"process {os.getpid()} (")
        assert wait.text.endswith(", which holds the lock")


def of_file(path: Path, begun: dict[int, float] | None = None) -> Awaited:
    """Return a file that is asked for."""
    return awaited.of_polled(os.getpid(), [(PRESENCE, str(path))], Surroundings(begun))[0]


def test_a_file_that_a_killed_attempt_left(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    os.utime(tmp_path / "lock", (150.0, 150.0))
    now = time.time()
    wait = of_file(tmp_path / "lock", {1: 100.0, 2: 200.0, 3: now})
    assert wait.is_left
    assert wait.text.endswith("; no process has it open; left by attempt 1, which is over)")
    older = of_file(tmp_path / "lock", {1: 200.0})
    assert older.is_left
    assert older.text.endswith("; older than this run)")


def test_a_file_of_this_attempt_or_of_an_unknown_one_is_not_called_left(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert not of_file(tmp_path / "lock", {1: 100.0}).is_left
    assert not of_file(tmp_path / "lock").is_left
    waits = awaited.of_polled(os.getpid(), [("path", str(tmp_path / "lock"))], Surroundings({1: time.time() + 9}))
    assert not waits[0].is_left, "the loop reads it: its end is not what it waits for"


def test_a_file_that_a_living_process_has_open_locks_or_is_named_in_is_not_called_left(
    waiting: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    begun = {1: time.time() + 100.0}
    with (tmp_path / "open").open("w"):
        wait = of_file(tmp_path / "open", begun)
        assert (wait.lives, wait.is_left) == (True, False)
        assert f"process {os.getpid()} (" in wait.text
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    wait = of_file(tmp_path / "pid", begun)
    assert (wait.lives, wait.is_left) == (True, False)
    assert "it names process" in wait.text
    waiting.append(python("pass"))
    waiting[0].wait(30)
    (tmp_path / "pid").write_text(f"{waiting[0].pid}\n")
    wait = of_file(tmp_path / "pid", begun)
    assert wait.is_left
    assert f"it names process {waiting[0].pid}, which is gone" in wait.text


@pytest.mark.parametrize("way", ["link/open", "directory/../directory/open"])
def test_a_file_that_a_living_process_has_open_is_not_called_left_by_whatever_path_it_is_asked_for(tmp_path: Path, way: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    begun = {1: time.time() + 100.0}
    with (tmp_path / "directory/open").open("w"):
        assert not of_file(tmp_path / way, begun).is_left
    assert of_file(tmp_path / way, begun).is_left


def test_a_file_of_another_user_is_not_called_left_because_those_processes_are_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    begun, owner = {1: time.time() + 100.0}, (tmp_path / "lock").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    wait = of_file(tmp_path / "lock", begun)
    assert (wait.is_left, wait.text.endswith("; of another user, whose processes are hidden)")) == (False, True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # sees all; a file server may give its files to nobody
    assert of_file(tmp_path / "lock", begun).is_left


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    wait = of_file(tmp_path / "done")
    assert wait.text == f"the file {tmp_path}/done, which is not there"
    assert not wait.is_left


@pytest.mark.parametrize(("seconds", "text"), [(119, "119 s"), (180, "3 min"), (7200, "2 h"), (250_000, "2 days 21 h")])
def test_the_age_of_a_file_that_is_left_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, text: str) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    now = time.time()
    os.utime(lock, (now - seconds, now - seconds))
    monkeypatch.setattr(time, "time", lambda: now)  # a busy machine may take a second between
    assert f"({text} old; no process has it open" in of_file(lock).text


POLLS = """
import os, sys, time
class Baton:
    def __init__(self, path): self.path = path
    def wait(self):
        while os.path.exists(self.path): time.sleep(0.05)
Baton(sys.argv[1]).wait()
"""


def test_the_file_that_a_rank_polls_is_had_from_its_loop(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "baton.py").write_text(POLLS)
    (tmp_path / "lock").touch()
    ranks.start(str(tmp_path / "baton.py"), str(tmp_path / "lock"))
    (wait,) = wait_for(lambda: ranks.look().ranks[0].process.awaits, "the wait in a look", alive=lambda: ranks.processes[0].poll() is None)
    assert wait.name == str(tmp_path / "lock")
    (tmp_path / "lock").unlink()
    assert ranks.processes[0].wait(PATIENCE_S) == 0, "the loop continued as if nobody had looked"
