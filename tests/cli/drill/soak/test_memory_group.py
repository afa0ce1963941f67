"""The control group in which a soak lets a job's memory run out: of it alone, and not above the process's own group."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from health.probes.control_groups import ControlGroup
from supervisor.cli.drill.soak import memory_group
from supervisor.cli.drill.soak.memory_group import ROOM_BYTES, MemoryGroup

if TYPE_CHECKING:
    from pathlib import Path

#: Enters the group, then takes more memory than its limit permits.
TAKES = f"""
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print("in", flush=True)
sys.stdin.readline()
taken = [b"1" * (16 << 20) for _ in range({4 * ROOM_BYTES >> 24})]
print("not reached")
"""


@pytest.mark.parametrize(
    ("version", "used", "limit", "none"),
    [(1, "memory.usage_in_bytes", "memory.limit_in_bytes", "-1"), (2, "memory.current", "memory.max", "max")],
)
def test_the_limit_lies_above_what_the_job_uses_and_is_taken_away(tmp_path: Path, version: int, used: str, limit: str, none: str) -> None:
    (tmp_path / used).write_text("1000\n")
    group = MemoryGroup(ControlGroup(tmp_path, version, own=True))
    assert group.tighten() == 1000
    assert (tmp_path / limit).read_text() == str(1000 + ROOM_BYTES)
    group.loosen()
    assert (tmp_path / limit).read_text() == none


def test_no_group_is_made_where_none_is_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("health.probes.control_groups.read", lambda _: [ControlGroup(tmp_path, 1, own=False)])
    assert memory_group.make() is None
    monkeypatch.setattr("health.probes.control_groups.read", lambda _: [ControlGroup(tmp_path, 1, own=True)])
    assert memory_group.make() is None  # no controller: it takes no limit
    assert list(tmp_path.iterdir()) == []


def test_the_empty_group_of_a_killed_drill_goes_and_one_in_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "supervise-drill-00000000").mkdir()
    (tmp_path / "supervise-drill-11111111" / "in use").mkdir(parents=True)
    monkeypatch.setattr("health.probes.control_groups.read", lambda _: [ControlGroup(tmp_path, 1, own=True)])
    memory_group.make()
    assert [path.name for path in tmp_path.iterdir()] == ["supervise-drill-11111111"]


@pytest.mark.process
def test_the_kernel_ends_a_process_of_the_group_and_no_other() -> None:
    group = memory_group.make()
    if group is None:
        pytest.skip("needs a writable control group of memory: run as root (in a container: --privileged)")
    try:
        command = [sys.executable, "-c", TAKES, str(group.group.directory)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as taker:  # noqa: S603  our own interpreter
            assert taker.stdout is not None
            assert taker.stdout.readline() == "in\n"
            group.tighten()
            assert taker.communicate("go\n")[0] == ""
        assert taker.returncode == -signal.SIGKILL
        kills, _ = group.group.memory_events() or (0, 0)
        assert kills == 1
    finally:
        group.remove()
    assert not group.group.directory.exists()
