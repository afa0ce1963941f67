"""An agent that hands its ranks' pipes over, and a command on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Side

pytestmark = pytest.mark.process

AGENT = """
    import json, os, socket, sys
    link, output = int(sys.argv[1]), int(sys.argv[2])
    sock = socket.socket(fileno=output)
    pids = []
    attempt = 1
    def ranks(attempt):
        for rank in range(4):
            read_fd, write_fd = os.pipe()
            about = {"attempt": attempt, "rank": rank, "name": "both", "show": rank < 3, "to": 1, "pty": False}
            socket.send_fds(sock, [json.dumps(about).encode()], [read_fd])
            os.close(read_fd)
            if os.fork() == 0:
                for n in range(2000):
                    os.write(write_fd, b"%d:" % rank + b"abcdefghij" * 20 + b"\\n")
                os._exit(0)
            os.close(write_fd)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                break
    agent = socket.socket(fileno=link)
    print("agent speaks", flush=True)
    ranks(1)
    agent.sendall(b"done\\n")
    assert agent.recv(10) == b"go\\n"
    print("agent again", flush=True)
    ranks(2)
"""


def test_an_agents_ranks_come_over_its_link_untorn_filtered_and_attempt_by_attempt(tmp_path: Path) -> None:
    # the driver cannot take a descriptor from us, so the agent's link is made by a small wrapper inside of it
    code = textwrap.dedent("""
        import os, socket, sys, threading
        from supervisor.launch.guardian_client import GuardianClient
        exited, left = threading.Event(), threading.Event()
        def on_event(event):
            if event["ev"] == "exited":
                exited.set()
            elif event["ev"] == "survivors":
                left.set()
            elif event["ev"] in ("refused", "spawn_failed"):
                print(event, file=sys.stderr)
        guardian = GuardianClient.start(on_event, lambda: os._exit(9))
        ours, theirs = socket.socketpair()
        here = os.getcwd()
        with theirs:
            argv = [sys.executable, "-c", sys.argv[1], "{link_fd}", "{output_fd}"]
            guardian.spawn(attempt=1, kind="agent", argv=argv, env=dict(os.environ), cwd=here, log_dir=here + "/1", fds=[theirs.fileno()])
        assert ours.recv(10) == b"done\\n"
        guardian.log_dir(2, here + "/2")
        ours.sendall(b"go\\n")
        assert exited.wait(50)
        guardian.finish()
        assert left.wait(60)
    """)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", code, textwrap.dedent(AGENT)]
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False, cwd=tmp_path, env=env)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.splitlines()
    expected = [b"%d:" % rank + b"abcdefghij" * 20 for rank in range(3)]
    assert sorted(lines) == sorted([b"agent speaks", b"agent again", *(line for line in expected for _ in range(4000))])
    # its own words at the turn of an attempt may still be counted to the one before: nothing orders them against the supervisor's request
    assert b"".join(path.read_bytes() for path in sorted(tmp_path.glob("*/agent.out"))) == b"agent speaks\nagent again\n"
    for attempt in (1, 2):
        for rank in range(4):
            assert (tmp_path / str(attempt) / f"rank-{rank}.log").stat().st_size == 2000 * 203


@pytest.mark.parametrize("ends", [False, True], ids=["lives", "has ended"])
def test_early_output_of_an_agent_is_logged_with_its_first_attempt(side: Callable[..., Side], ends: bool) -> None:  # noqa: FBT001
    driver = side()
    early = driver.run(
        script("import time; print('early', flush=True)" + "; time.sleep(100)" * (not ends)), attempt=0, kind="agent", log_dir=""
    )
    if ends:
        driver.wait("exited", pid=early["pid"])
    until(lambda: tails(driver) == ["early\n"], subject="the first line")
    assert not list(driver.directory.iterdir())
    driver.call("log_dir", 1, str(driver.logs()))
    until(lambda: (driver.logs() / "agent.out").exists() and "early" in (driver.logs() / "agent.out").read_text(), subject="the log")
    driver.call("end", "all", grace_s=0.0)
    driver.wait("ended")
    assert (driver.logs() / "agent.out").read_text() == "early\n"


def tails(side: Side) -> list[str]:
    side.call("tails", 1)
    return [tail["text"] for tail in side.wait("tails")["tails"] if tail["text"]]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


def test_on_a_terminal_the_command_has_a_terminal_of_the_same_size(side: Callable[..., Side]) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 117, 0, 0))
    driver = side(stdin=slave, stdout=slave, stderr=slave)
    pid = driver.run(
        script("""
        import os, signal, sys
        size = lambda: tuple(os.get_terminal_size(1))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})  # a handler would wait for input()'s read, if that had begun
        print(*(os.isatty(fd) for fd in (0, 1, 2)), *size(), flush=True)
        signal.sigwait({signal.SIGWINCH})
        print("resized", *size(), flush=True)
        print("answer", input(), flush=True)
        sys.stdout.write("\\x1b[1m\\rbar\\r\\n")
        """)
    )["pid"]
    seen = b""

    def read_until(text: bytes) -> bytes:
        nonlocal seen
        deadline = time.monotonic() + 60
        while text not in seen:
            assert select.select([master], [], [], max(0, deadline - time.monotonic()))[0], seen
            seen += os.read(master, 4096)
        return seen

    read_until(b"True True True 117 31\r\n")
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 66, 0, 0))
    os.kill(driver.hello["pid"], signal.SIGWINCH)  # as the kernel does to the foreground group of a controlling terminal
    read_until(b"resized 66 20\r\n")
    os.write(master, b"typed\n")
    read_until(b"answer typed\r\n")
    read_until(b"\x1b[1m\rbar\r\r\n")  # one \r is the outer terminal's own: ours changed no byte
    assert pid
    assert driver.wait("exited")["code"] == 0
    driver.close()
    for fd in (master, slave):
        with contextlib.suppress(OSError):
            os.close(fd)
