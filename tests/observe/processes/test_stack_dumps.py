"""Stacks are asked for only where asking cannot harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.instrument._supervise_shim.layout import STACKS_SIGNAL, start_ticks_of
from supervisor.observe.processes import stack_dumps
from supervisor.observe.ranks import heartbeats
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]
WAITS = """
import sys, threading
begun = threading.Event()
def stuck(): begun.set(); threading.Event().wait()
def idle(): print('ready', flush=True); sys.stdin.read()
threading.Thread(target=stuck, daemon=True).start()
begun.wait()
idle()
"""


@contextmanager
def _running(directory: Path, *, instrumented: bool = True) -> Iterator[tuple[int, int]]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "PYTHON"))}
    if instrumented:
        heartbeats.create(directory / "heartbeat", 1)
        shim_variables = {"SUPERVISE_JOB_DIR": str(directory.parent), "SUPERVISE_JOB_ATTEMPT": "1", "SUPERVISE_JOB_SHIM": "rank"}
        env |= shim_variables | {"PYTHONPATH": str(ROOT / "supervisor" / "instrument")}
    with subprocess.Popen([sys.executable, "-c", WAITS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        ticks = start_ticks_of(process.pid)
        assert ticks is not None
        yield process.pid, ticks
        process.send_signal(signal.SIGCONT)
        assert process.poll() is None
        process.communicate(b"")
    assert process.returncode == 0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    attempt_directory = tmp_path / "attempt-0001"
    attempt_directory.mkdir()
    return attempt_directory


def test_all_threads_of_a_rank_again_and_again(directory: Path) -> None:
    with _running(directory) as (pid, ticks):
        for _ in range(2):
            text = stack_dumps.request(pid, ticks, directory, deadline_s=60)
            assert "in idle" in text
            assert "in stuck" in text
            assert text.count("in idle") == 1  # each answer holds one dump


def test_a_dump_is_read_once_its_handler_has_ended_however_long_it_was_put_aside(tmp_path: Path) -> None:
    file, writes = tmp_path / "stacks", threading.Event()
    file.write_text("the half")
    writes.set()

    def write_the_rest() -> None:
        time.sleep(4 * stack_dumps.QUIET_POLLS * stack_dumps.POLL_S)
        file.write_text("the half, and the rest")
        writes.clear()

    thread = threading.Thread(target=write_the_rest)
    thread.start()
    stack_dumps._wait_written(file, 0, time.monotonic() + 60, writes.is_set)  # noqa: SLF001  what the kernel shows is played
    assert file.read_text() == "the half, and the rest"
    thread.join()


#: Its handler writes to a pipe, and stands still in the midst of it where that is full.
SLOW_HANDLER = """
import faulthandler, sys, time
faulthandler.register(int(sys.argv[1]), int(sys.argv[2]), all_threads=True, chain=False)
print('ready', flush=True)
time.sleep(600)
"""


def test_the_kernel_shows_whether_a_handler_has_ended() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    words = [sys.executable, "-c", SLOW_HANDLER, str(STACKS_SIGNAL), str(write)]
    with subprocess.Popen(words, pass_fds=[write], stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert not stack_dumps._is_handled(process.pid, STACKS_SIGNAL)  # noqa: SLF001  as above
        process.send_signal(STACKS_SIGNAL)
        assert stack_dumps._is_handled(process.pid, STACKS_SIGNAL)  # noqa: SLF001
        reader = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(read, 65536), b"")])
        reader.start()
        wait_for(lambda: not stack_dumps._is_handled(process.pid, STACKS_SIGNAL), "the end of the handler")  # noqa: SLF001
        process.kill()
    os.close(write)
    reader.join()
    os.close(read)


def test_a_process_that_does_not_catch_the_signal_is_left_alone(directory: Path) -> None:
    with _running(directory, instrumented=False) as (pid, ticks):
        assert "not instrumented" in stack_dumps.request(pid, ticks, directory)
        (directory / f"stacks-0-{pid}.txt").touch()
        assert "does not catch" in stack_dumps.request(pid, ticks, directory)


def test_another_process_of_the_same_pid_is_left_alone(directory: Path) -> None:
    with _running(directory) as (pid, ticks):
        assert "gone" in stack_dumps.request(pid, ticks - 1, directory)
        (path,) = directory.glob("stacks-*")
        assert path.read_text() == ""
    assert stack_dumps.request(pid, ticks, directory).startswith("no stacks: ")


def test_a_stopped_process_is_left_alone(directory: Path) -> None:
    with _running(directory) as (pid, ticks):
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        assert "is stopped" in stack_dumps.request(pid, ticks, directory)


def test_the_stacks_signal_is_the_one_that_python_names() -> None:
    assert signal.SIGRTMAX - 3 == STACKS_SIGNAL
