"""Several nodes, and who decides for them: see the table of this package."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from supervisor.run import left_processes as module
from supervisor.run.left_processes import LeftProcesses
from tests.known_defects import ONE_COORDINATOR, later, prepared

if TYPE_CHECKING:
    import pytest


@later(ONE_COORDINATOR)
def test_the_deciding_thread_waits_for_no_process_that_survives_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc of each may hang as the process does; 8 ranks with 8 loaders each are 72 of them."""
    answers = threading.Event()
    monkeypatch.setattr(module, "ANSWER_S", 60.0)
    monkeypatch.setattr(module.procfs, "waits", lambda _pid: answers.wait() and SimpleNamespace(state="D", file=None, wchan="nfs_wait"))
    loop: Any = SimpleNamespace(call_soon=lambda _call: None)
    reporter: Any = SimpleNamespace(note=lambda *_: None, print_message=lambda _: None, alerted=lambda _: None, alert_over=lambda *_: None)
    left: Any = [{"pid": 10_000_000 + n, "why": "survives KILL", "start_ticks": 1, "unkilled": True} for n in range(2)]
    thread = threading.Thread(target=lambda: LeftProcesses(loop, reporter).report_from_guardian(1, left), daemon=True)
    thread.start()
    thread.join(2.0)
    has_gone_on = not thread.is_alive()
    answers.set()
    thread.join(20)
    prepared(not thread.is_alive(), "it did not end")
    assert has_gone_on
