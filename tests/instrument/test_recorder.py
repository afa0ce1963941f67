"""The thread that answers what a rank's collectives are: it answers again and again, and is in nobody's way."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch._C import _distributed_c10d as c10d

from supervisor.observe.hangs import recorder
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from conftest import Attempt

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not hasattr(c10d, "_dump_fr_trace_json"), reason="torch 2.6 records no collectives of gloo: install torch 2.7 or later"
    ),
]

GROUP = """
import os, sys, threading
import torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1, timeout=timedelta(seconds=77))
assert threading.enumerate() == [threading.main_thread()]
dist.all_reduce(torch.ones(3, 2))
dist.barrier()
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
#: Ends of a rank beside the one in order: the code that follows, and its exit code.
ENDS = {
    "without": ("", 0),
    "SystemExit": ("raise SystemExit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "exception": ("raise ValueError", 1),
    "exec": ("os.execv('/bin/true', ['true'])", 0),
    "SIGTERM": ("import signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "fork": (
        "pid = os.fork()\nif not pid:\n    os._exit(5)\nassert os.waitpid(pid, 0)[1] >> 8 == 5\nsys.exit(6)",
        6,
    ),
}


def ended(attempt: Attempt, code: str, asks: int) -> tuple[int, list[recorder.RecordedCollectives]]:
    """Run a rank, let so many ask it at once, and let it end; return its exit code and the answers."""
    command = [sys.executable, "-c", GROUP + code]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=attempt.env(), stdin=pipe, stdout=pipe, stderr=null) as rank:  # noqa: S603 - our own interpreter
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        # the thread that answers may begin after the group is made
        wait_for(lambda: recorder.request(attempt.directory, pid, deadline_s=20).groups, "the first answer")
        with ThreadPoolExecutor() as askers:
            answers = list(askers.map(lambda _: recorder.request(attempt.directory, pid, deadline_s=60), range(asks)))
        rank.communicate(b"\n", timeout=PATIENCE_S)
    assert recorder.request(attempt.directory, pid).unreadable == "it does not answer"
    return rank.returncode, answers


def test_a_rank_answers_all_who_ask_what_its_collectives_are_and_ends_as_ever(attempt: Attempt) -> None:
    code, answers = ended(attempt, "dist.destroy_process_group()", 6)
    assert code == 0
    assert answers == 6 * [answers[0]]
    (group,) = answers[0].groups
    assert (group.ranks, group.backend, group.timeout_s) == ((0,), "gloo", 77.0)
    assert [(collective.operation, collective.sequence, collective.sizes) for collective in group.last] == [
        ("all_reduce", 1, ((3, 2),)),
        ("barrier", 2, ()),
    ]
    assert group.pending is None


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_the_recorder_blocks_no_exit(attempt: Attempt, end: str) -> None:
    code, expected = ENDS[end]
    assert ended(attempt, code, 1)[0] == expected


def _states(pid: int) -> set[str]:
    """Return the states of a process's threads."""
    return {stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


@pytest.mark.slow
def test_a_stopped_rank_continues_after_unread_requests(attempt: Attempt) -> None:
    command = [sys.executable, "-c", GROUP]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=attempt.env(), stdin=pipe, stdout=pipe) as rank:  # noqa: S603 - our own interpreter
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        rank.send_signal(signal.SIGSTOP)
        wait_for(lambda: _states(pid) == {"T"}, "the stop of all threads")
        for _ in range(3):
            assert "did not answer" in recorder.request(attempt.directory, pid, deadline_s=0.1).unreadable
        rank.send_signal(signal.SIGCONT)
        wait_for(lambda: recorder.request(attempt.directory, pid).groups, "an answer")
        rank.communicate(b"\n", timeout=PATIENCE_S)
    assert rank.returncode == 0
