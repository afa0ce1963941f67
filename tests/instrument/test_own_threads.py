"""The record of a rank's imports, and the threads that are ours."""

from __future__ import annotations

import threading

from supervisor.instrument._supervise_shim.imports import ProcessState
from tests.support.waiting import wait_for


def test_a_thread_of_ours_is_no_change_that_the_script_made() -> None:
    """With it counted, what DDP imports after the first process group was left to the rank: torch._dynamo, the larger half."""
    before, end = ProcessState(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    wait_for(lambda: ProcessState().threads == before.threads + 1, "the thread runs", 10)
    assert ProcessState() != before
    assert ProcessState(1).threads == before.threads
    end.set()
    thread.join()
