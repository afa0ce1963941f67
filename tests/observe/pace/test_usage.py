"""What the kernel counts of a thread, read from processes that really wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.observe.pace.usage import ThreadUsage, stolen_ticks, thread_usage
from tests.support.waiting import wait_for

pytestmark = pytest.mark.process
WAITS = {
    "time.sleep": ("import time; time.sleep(60)", True),
    "a pipe": ("import os; os.read(os.pipe()[0], 1)", False),
    "a lock": ("import threading; threading.Event().wait()", False),
}


@pytest.mark.parametrize("name", WAITS)
def test_only_a_timed_sleep_is_asleep_and_a_wait_for_another_process_is_not(name: str) -> None:
    script, is_asleep = WAITS[name]
    process = subprocess.Popen([sys.executable, "-c", script])  # noqa: S603  our own script

    def usage() -> ThreadUsage | None:
        wchan = Path(f"/proc/{process.pid}/wchan").read_text(encoding="ascii")
        is_there = {"time.sleep": "nanosleep", "a pipe": "pipe", "a lock": "futex"}[name] in wchan
        return thread_usage(process.pid) if is_there else None

    try:
        wait_for(usage, "the process to wait", 20)
        reading = usage()
        assert reading is not None
        assert (reading.is_asleep, reading.is_blocked, reading.run_ns > 0) == (is_asleep, False, True)
    finally:
        process.kill()
        process.wait()


def test_of_a_process_that_is_gone_nothing_is_known_and_the_stolen_time_is_a_part_of_all() -> None:
    with subprocess.Popen(["true"]) as process:  # noqa: S607  of the system
        process.wait()
    assert thread_usage(process.pid) is None
    assert thread_usage(os.getpid()) is not None
    ticks = stolen_ticks()
    assert ticks is not None
    assert 0 <= ticks[0] < ticks[1]
