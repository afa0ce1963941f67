"""What KILL did not end is waited for, named, and let go of once it is gone: real processes, one of them in uninterruptible sleep."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.classify.engine import classify
from supervisor.config.settings import Settings
from supervisor.config.signatures import configured
from supervisor.core.model import Cause, Evidence
from supervisor.guardian import ownership, process_tree
from supervisor.guardian.ownership import LeftProcess
from supervisor.job.identity import boot_id
from supervisor.observe import collect
from supervisor.observe.hangs.procfs import ThreadWait
from supervisor.run import left_processes
from tests.checkpointing import mounts
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process
WRITER = "import sys; open(sys.argv[1], 'ab', buffering=0).write(b'x')"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:  # noqa: S607
        yield process
        process.kill()


def left(process: subprocess.Popen[bytes], **change: int) -> LeftProcess:
    entry = process_tree.read(process.pid)
    assert entry is not None
    return LeftProcess(process.pid, change.get("start_ticks", entry.start_ticks), "still there after KILL", unkilled=True)


def test_an_end_is_seen_when_it_comes(sleeper: subprocess.Popen[bytes]) -> None:
    reporter = MagicMock()
    processes = left_processes.LeftProcesses(MagicMock(), reporter)
    unkilled = left(sleeper)
    for _ in range(2):
        processes.report_from_us(1, [unkilled, LeftProcess(1, 1, "it may not be signalled")], "others")
    processes.await_named()
    assert reporter.alerted.call_count == 1, "it is reported once"
    assert processes.unkilled_pids == (sleeper.pid,)
    assert f"pid {sleeper.pid} " in processes.refusal(0.01)
    killer = threading.Timer(0.05, sleeper.kill)
    killer.start()
    assert not processes.refusal(30.0)
    assert not processes.unkilled_pids


def test_another_process_with_the_same_pid_is_not_waited_for(sleeper: subprocess.Popen[bytes]) -> None:
    assert ownership.await_end([left(sleeper, start_ticks=1)], 30.0) == ()


def test_a_process_in_uninterruptible_sleep_is_named_with_its_file_and_waited_for(tmp_path: Path) -> None:
    with mounts.freezable(tmp_path / "disk") as disk:
        file = disk.place / "step-1.pt"
        file.touch()
        disk.freeze()
        with subprocess.Popen([sys.executable, "-c", WRITER, str(file)]) as process:  # noqa: S603 - the test's own
            try:
                wait_for(lambda: (entry := process_tree.read(process.pid)) and entry.state == "D", "state D")
                top = process_tree.read(process.pid)
                ending = ownership.TreeTermination(process.pid, signal.SIGKILL, 0.0, 0.2, top=top)
                ends = threading.Event()
                t = 0.0
                while not ending.tick(t):
                    ends.wait(0.02)
                    t += 0.02
                (leftover,) = ending.left
                assert (leftover.pid, leftover.unkilled) == (process.pid, True)
                text = left_processes.refusal([leftover.pid])
                assert f"pid {process.pid} (python" in text
                assert f"state D, in write of {file} on {disk.place} (ext4))" in text
                record = str(tmp_path / "processes")
                ownership.record_process(record, process.pid, boot_id(), "c" * 32, ownership.UNKILLED)
                (again,) = ownership.end_recorded(ownership.read_records(record), boot_id()).left
                assert (again.pid, again.start_ticks, again.unkilled) == (leftover.pid, leftover.start_ticks, True)
            finally:
                disk.thaw()
            assert process.wait(PATIENCE_S) == -signal.SIGKILL  # that KILL was not lost


def test_the_refusal_is_evidence_for_a_wait_with_the_pid(sleeper: subprocess.Popen[bytes]) -> None:
    catalogue, problems = configured(Settings())
    assert not problems
    refused = Evidence("launcher", "exception", left_processes.refusal([sleeper.pid]), t=1.0)
    facts = (refused, *collect.claims((refused,), lambda: (catalogue, None)))  # type: ignore[arg-type, return-value]  # no log is scanned
    verdict = classify(facts)
    assert verdict.cause is Cause.IO_ERROR
    assert dict(verdict.facts)["pid"] == str(sleeper.pid)
    assert str(sleeper.pid) in verdict.summary


@pytest.mark.parametrize(
    ("code", "state", "text"),
    [
        ("while True: pass", "R", "has not ended yet after KILL, and waits for no disk and no driver"),
        ("time.sleep(600)", "S", "survives KILL"),
    ],
    ids=["computes", "waits"],
)
def test_the_alert_blames_no_disk_where_a_process_waits_for_nothing(code: str, state: str, text: str) -> None:
    reporter = MagicMock()
    words = [sys.executable, "-c", f"import time\nprint(flush=True)\n{code}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:  # noqa: S603 - the test's own, never killed: it stands for one that was
        assert process.stdout is not None
        process.stdout.readline()  # an interpreter that starts is in other states, too
        wait_for(lambda: (entry := process_tree.read(process.pid)) and entry.state == state, f"state {state}")
        processes = left_processes.LeftProcesses(MagicMock(), reporter)
        processes.report_from_us(3, [left(process)], "others")
        processes.await_named()
        process.kill()
    (alert,) = (call.args[0] for call in reporter.alerted.call_args_list)
    assert f"{text}: no attempt is started beside it" in alert.text


def test_the_deciding_thread_waits_for_no_process_that_survives_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc of each may hang as the process does; 8 ranks with 8 loaders each are 72 of them. All are alerted to after half a second."""
    answers, reporter, calls = threading.Event(), MagicMock(), queue.SimpleQueue[Callable[[], None]]()
    loop: Any = SimpleNamespace(call_soon=calls.put)
    monkeypatch.setattr(left_processes.procfs, "waits", lambda _pid: answers.wait() and ThreadWait("D", "nfs_wait"))
    processes = left_processes.LeftProcesses(loop, reporter)
    remaining: Any = [{"pid": 10_000_000 + n, "why": "survives KILL", "start_ticks": 1, "unkilled": True} for n in range(72)]
    thread = threading.Thread(target=lambda: processes.report_from_guardian(1, remaining), daemon=True)
    thread.start()
    thread.join(2.0)
    has_gone_on = not thread.is_alive()
    calls.get(timeout=PATIENCE_S)()  # what the loop does next
    answers.set()
    assert has_gone_on
    assert [call.args[0].subject for call in reporter.alerted.call_args_list] == [str(row["pid"]) for row in remaining]
    assert processes.names.startswith("pid 10000000 (?), pid 10000001 (?), ")


def test_left_processes_are_named_by_their_pids_if_no_thread_can_start(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaders may use up the limit on processes for a moment."""
    reporter = MagicMock()
    monkeypatch.setattr(threading.Thread, "start", MagicMock(side_effect=RuntimeError("can't start new thread")))
    left_processes.LeftProcesses(MagicMock(), reporter).report_from_us(1, [left(sleeper)], "others")
    (alert,) = (call.args[0] for call in reporter.alerted.call_args_list)
    assert alert.text.startswith(f"pid {sleeper.pid} survives KILL")
