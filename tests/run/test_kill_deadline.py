"""The time that is left, from what the environment says: settings, Slurm's variable and tool, systemd's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from supervisor.config.settings import Settings, Stop
from supervisor.run import kill_deadline
from tests.support.figures import within
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = Settings()
SET = replace(NOTHING, stop=Stop(left_s=90.0, notice_s=400.0))
ONLY_LEFT = replace(NOTHING, stop=Stop(left_s=90.0))
SLURM = {"SLURM_JOB_ID": "7"}


def tool(place: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a tool of that name first on PATH. However long a busy machine needs to start it, its answer is in time."""
    monkeypatch.setattr(kill_deadline, "ANSWER_S", 60.0)
    path = place / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")


def scontrol(place: Path, ends_in_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scontrol that prints what the real one does, in local time."""
    end = datetime.fromtimestamp(time.time() + ends_in_s, UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    tool(
        place, "scontrol", f'[ "$4" = 7 ] && echo "JobId=7 JobName=x StartTime=2026-01-01T00:00:00 EndTime={end} Deadline=N/A"', monkeypatch
    )


def ends_in(seconds: float) -> dict[str, str]:
    """Slurm's environment of a job with so much of its time limit left."""
    return {**SLURM, "SLURM_JOB_END_TIME": str(int(time.time() + seconds))}


@pytest.mark.parametrize(
    ("signum", "left_s"), [(signal.SIGTERM, 90.0), (signal.SIGHUP, 90.0), (signal.SIGUSR1, 400.0), (signal.SIGUSR2, 400.0)]
)
def test_the_setting_is_above_all(signum: int, left_s: float) -> None:
    assert kill_deadline.left_s(signum, ends_in(500), SET) == left_s
    assert not kill_deadline.must_ask(signum, ends_in(500), SET)


def test_a_notice_is_worth_more_than_what_is_left_from_term_to_kill() -> None:
    left_s = kill_deadline.left_s(signal.SIGUSR1, ends_in(600), ONLY_LEFT)  # --signal=USR1@600
    assert left_s is not None
    assert 595 < left_s <= 598
    assert kill_deadline.left_s(signal.SIGUSR1, {}, ONLY_LEFT) == 90.0  # and no less, where nobody knows more


def test_of_an_array_the_end_of_the_own_task_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "scontrol", f"echo $4 > {tmp_path}/asked", monkeypatch)
    kill_deadline.left_s(signal.SIGTERM, {**SLURM, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, NOTHING)
    assert (tmp_path / "asked").read_text() == "7_3\n"


def test_a_person_has_all_the_time_there_is() -> None:
    assert kill_deadline.left_s(signal.SIGINT, ends_in(500), SET) is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_where_nothing_is_known_nothing_is_reported(signum: int) -> None:
    assert kill_deadline.left_s(signum, {}, NOTHING) is None
    assert not kill_deadline.must_ask(signum, {}, NOTHING)


def test_slurms_notice_leaves_the_rest_of_the_time_limit_and_asks_nobody() -> None:
    left_s = kill_deadline.left_s(signal.SIGUSR1, ends_in(120), NOTHING)
    assert left_s is not None
    assert 115 < left_s <= 118
    assert not kill_deadline.must_ask(signal.SIGUSR1, ends_in(120), NOTHING)


def test_an_older_slurm_without_the_variable_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, 120, monkeypatch)
    assert kill_deadline.must_ask(signal.SIGUSR1, SLURM, NOTHING)
    left_s = kill_deadline.left_s(signal.SIGUSR1, SLURM, NOTHING)
    assert left_s is not None
    assert 115 < left_s <= 118


@pytest.mark.parametrize(
    ("told_s", "least", "most"),
    [
        pytest.param(300, 238, 298, id="the end was moved to that of a grace of five minutes"),
        pytest.param(7200, 28, 28, id="scancel: the end is where it was, and KillWait counts"),
        pytest.param(0, 28, 28, id="the time limit is reached"),
    ],
)
def test_slurms_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_s: float, least: float, most: float) -> None:
    scontrol(tmp_path, told_s, monkeypatch)
    environ = ends_in(7200 if told_s else 0)
    assert kill_deadline.must_ask(signal.SIGTERM, environ, NOTHING)
    left_s = kill_deadline.left_s(signal.SIGTERM, environ, NOTHING)
    assert left_s is not None
    assert least <= left_s <= most


@pytest.mark.bench
@pytest.mark.process
def test_a_tool_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_s = kill_deadline.ANSWER_S
    tool(tmp_path, "scontrol", "exec sleep 600", monkeypatch)
    monkeypatch.setattr(kill_deadline, "ANSWER_S", answer_s)
    began = time.monotonic()
    assert kill_deadline.left_s(signal.SIGTERM, ends_in(3600), NOTHING) == pytest.approx(28)
    assert within(answer_s + 3, since=began)


@pytest.mark.process
def test_a_tool_that_does_not_answer_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "scontrol", f"sleep 600 & echo $! > {tmp_path}/pid; wait", monkeypatch)
    monkeypatch.setattr(kill_deadline, "ANSWER_S", 1.0)
    written = tmp_path / "pid"

    def is_asked() -> bool:
        """Return whether the tool came so far in the time that it has; on a busy machine its shell may not."""
        kill_deadline.left_s(signal.SIGTERM, ends_in(3600), NOTHING)
        return written.exists() and written.read_text().endswith("\n")

    wait_for(is_asked, "the tool has started what it waits for")
    pid = int(written.read_text())
    wait_for(lambda: not is_running(pid), "the end of what scontrol started", 10)


ENDS_FIRST = """
import os, pathlib, signal, sys, threading, time
from supervisor.run import kill_deadline
from supervisor.config.settings import Settings
threading.Thread(target=kill_deadline.left_s, args=(signal.SIGTERM, {"SLURM_JOB_ID": "7"}, Settings()), daemon=True).start()
while not (pathlib.Path(sys.argv[1]).exists() and pathlib.Path(sys.argv[1]).read_text().endswith("\\n")):
    time.sleep(0.01)
"""


@pytest.mark.process
def test_an_early_end_leaves_no_tool_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "scontrol", f"sleep 600 & echo $! > {tmp_path}/pid; wait", monkeypatch)
    subprocess.run([sys.executable, "-c", ENDS_FIRST, str(tmp_path / "pid")], check=True)  # noqa: S603  our own words
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_running(pid), "the end of what scontrol started", 10)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1min 30s", 90.0),
        ("10s", 10.0),
        ("500ms", 0.5),
        ("1h 2min 3s 4ms", 3723.004),
        ("infinity", None),
        ("", None),
        ("[not set]", None),
    ],
)
def test_a_time_span_of_systemds(text: str, seconds: float | None) -> None:
    assert kill_deadline.span_s(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("0::/system.slice/supervise@train.service", "show --property=TimeoutStopUSec --value supervise@train.service"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service",
            "--user show --property=TimeoutStopUSec --value train.service",
        ),
    ],
)
def test_the_unit_is_asked_for_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, words: str) -> None:
    (tmp_path / "cgroup").write_text(group + "\n")
    tool(tmp_path, "systemctl", f'[ "$*" = "{words}" ] && echo "1min 30s"', monkeypatch)
    assert kill_deadline.unit_stop_s(tmp_path / "cgroup") == 90.0
    for started_by_it in ({"NOTIFY_SOCKET": "/run/n"}, {"SYSTEMD_EXEC_PID": str(os.getpid())}):
        assert kill_deadline.must_ask(signal.SIGTERM, started_by_it, NOTHING)
        assert not kill_deadline.must_ask(signal.SIGUSR1, started_by_it, NOTHING)
    assert not kill_deadline.must_ask(signal.SIGTERM, {"INVOCATION_ID": "of the terminal's", "SYSTEMD_EXEC_PID": "1"}, NOTHING)


def test_outside_of_a_unit_systemd_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    assert kill_deadline.unit_stop_s(tmp_path / "cgroup") is None
    assert kill_deadline.unit_stop_s(tmp_path / "absent") is None
