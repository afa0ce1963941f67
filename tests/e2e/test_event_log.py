"""The event log of a real run: what renders it is imported after the ranks are started, and nothing that was logged before is lost."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.supervised import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

#: `supervise`, which writes when structlog is imported, and by which thread.
WATCHED = """
import sys, threading, time
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "structlog":
            with open("imported", "a") as file:
                print(time.clock_gettime(time.CLOCK_BOOTTIME), threading.current_thread().name, file=file)
sys.meta_path.insert(0, Watch())
from supervise_command import main
sys.exit(main())
"""
RANK = """
import os
with open("/proc/self/stat") as file:
    ticks = int(file.read().rpartition(")")[2].split()[19])
print(ticks / os.sysconf("SC_CLK_TCK"), file=open("started", "w"))
"""

pytestmark = pytest.mark.process


def logged(run: Supervised) -> list[dict[str, Any]]:
    return [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]


@pytest.fixture
def start(supervise: Callable[..., Supervised], tmp_path: Path) -> Callable[..., Supervised]:
    """Start `supervise` so that `imported` shows when it imported structlog."""
    (tmp_path / "watched.py").write_text(WATCHED)
    (tmp_path / "rank.py").write_text(RANK)

    def start(*options: str, **environment: str) -> Supervised:
        supervise_words = [sys.executable, "watched.py", "--job", "e2e", "--state-dir", str(tmp_path / "state"), *options]
        return supervise(*supervise_words, "--", "python", "rank.py", around=Surroundings(without_us=True), **environment)

    return start


def test_the_renderer_of_the_log_is_imported_after_the_ranks_start(start: Callable[..., Supervised], tmp_path: Path) -> None:
    run = start(SUPERVISE_TERMINAL_VERBOSITY="verbose", SUPERVISE_TERMINAL_LOG_FORMAT="console")
    assert run.exit_code() == 0
    ((imported, thread),) = [line.split() for line in (tmp_path / "imported").read_text().splitlines()]
    started = float((tmp_path / "started").read_text())
    assert (thread, float(imported) >= started) == ("eventlog-shown", True)
    names = [line["event"] for line in logged(run)]
    assert names[0] == "run.started"
    assert names.index("attempt.begun") < names.index("attempt.started") < names.index("attempt.ended") < names.index("run.finished")
    times = [line["timestamp"] for line in logged(run)]
    assert times == sorted(times)


@pytest.mark.slow
def test_log_lines_are_written_when_the_run_fails_before_its_ranks(start: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "no-directory").write_text("")
    options = "--checkpoints=saves/*.pt", f"--mirror=file://{tmp_path / 'no-directory'}"
    run = start(*options, SUPERVISE_TERMINAL_VERBOSITY="verbose", SUPERVISE_TERMINAL_LOG_FORMAT="console")
    assert run.exit_code() not in {0, None}
    assert not (tmp_path / "started").exists()
    assert [line["event"] for line in logged(run)][:1] == ["run.started"], run.stderr
    assert (tmp_path / "imported").exists()
    assert "[info     ] run.started " in run.stderr
