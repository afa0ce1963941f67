"""A unit that `supervise systemd install` wrote: it is ready, survives a killed rank, shows its status, and stops."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from conftest import Machine

pytestmark = [pytest.mark.systemd, pytest.mark.process]
OURS = str(Path(sys.executable).parent)


def test_a_job_is_ready_with_its_rank_outlives_its_death_and_stops(machine: Machine) -> None:
    unit = machine.installed("short", '[job]\ncommand = ["sleep", "1000"]\n', OURS, "/")
    started = machine.run("systemctl", "start", unit)
    assert started.returncode == 0, machine.journal(unit)
    properties = machine.show(unit)
    assert properties["ActiveState"] == "active"

    def ranks() -> list[str]:
        return machine.run("sh", "-c", f"pgrep -x sleep | grep -xFf /sys/fs/cgroup{properties['ControlGroup']}/cgroup.procs").stdout.split()

    (rank,) = ranks()  # at once: READY comes when it runs
    adjusted = [int(machine.run("cat", f"/proc/{pid}/oom_score_adj").stdout) for pid in (rank, properties["MainPID"])]
    assert adjusted[0] == adjusted[1] + 100
    limits = machine.run("cat", f"/proc/{rank}/limits").stdout
    assert re.search(r"^Max core file size +0 +unlimited", limits, re.MULTILINE), limits
    machine.run("kill", "-KILL", rank)
    wait_for(lambda: "attempt 2 runs" in machine.show(unit)["StatusText"], state=lambda: machine.show(unit)["StatusText"])
    assert ranks() != [rank]
    answer = machine.as_user(f"{OURS}/supervise", "why", "--job", "short")  # in /: nobody named a directory
    assert answer.returncode == 0, answer.stderr
    assert "SIGKILL" in answer.stdout
    assert machine.run("systemctl", "stop", unit, timeout=90).returncode == 0
    assert "Deactivated successfully" in machine.journal(unit)
    notices = machine.journal(unit, "-p", "notice")
    assert "supervise: incident 1" in notices
    assert "journal and logs:" not in notices
