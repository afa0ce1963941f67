"""The unit in a real systemd: ready, watched, stopped, restarted where that helps and not where it cannot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from conftest import Machine

pytestmark = [pytest.mark.systemd, pytest.mark.slow, pytest.mark.process]

STAND_IN = "/opt/stand-in"
HERE_IN = f"User=trainer\nWorkingDirectory={Path(__file__).parents[2]}"
QUICK = "RestartSec=1"


@pytest.fixture
def own_bin_dir() -> str:
    """The directory of our own `supervise`."""
    return str(Path(sys.executable).parent)


@pytest.fixture(params=["stand-in", "supervise"])
def bin_dir(request: pytest.FixtureRequest) -> str:
    """A directory with a `supervise` in it: a stand-in of thirty lines, or ours."""
    return STAND_IN if request.param == "stand-in" else str(request.getfixturevalue("own_bin_dir"))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An instance name of the test's own: nothing is left over from another."""
    return "t" + "".join(char if char.isalnum() else "_" for char in request.node.name)[-40:]


def ended(machine: Machine, unit: str) -> bool:
    return machine.show(unit)["ActiveState"] in {"failed", "inactive"}


def test_the_unit_reports_ready_and_status_and_stops_by_term(machine: Machine, bin_dir: str, name: str) -> None:
    unit = machine.unit(name, ["sleep", "1000"], bin_dir, drop_in=HERE_IN)
    started = machine.run("systemctl", "start", unit)
    assert started.returncode == 0, machine.journal(unit)
    wait_for(lambda: machine.show(unit)["StatusText"])
    properties = machine.show(unit)
    assert (properties["ActiveState"], properties["SubState"], properties["Type"]) == ("active", "running", "notify")
    processes = machine.run("ps", "-o", "uid=,args=", "--ppid", properties["MainPID"], "--pid", properties["MainPID"]).stdout
    assert {line.split()[0] for line in processes.splitlines()} == {"4242"}, processes
    assert machine.run("stat", "-c", "%a %u", f"/var/lib/supervise/{name}").stdout == "700 4242\n"
    everything = f"/sys/fs/cgroup{properties['ControlGroup']}"
    listing = f"find {everything} -name cgroup.procs -exec cat {{}} + | xargs -n1 ps -o args= -p"
    wait_for(lambda: "sleep" in machine.run("sh", "-c", listing).stdout)
    assert machine.run("systemctl", "stop", unit, timeout=90).returncode == 0
    assert machine.show(unit)["ActiveState"] == "inactive"
    journal = machine.journal(unit)  # systemd forgets a unit that ended well
    assert "Deactivated successfully" in journal
    assert "Failed with result" not in journal
    assert machine.run("test", "-d", everything).returncode == 1, "processes are left"


def test_a_stop_in_which_the_ranks_saved_is_no_failure(machine: Machine, name: str) -> None:
    unit = machine.unit(name, ["sh", "-c", "trap 'exit 0' TERM; echo trapped; sleep 1000 & wait"], STAND_IN, drop_in=HERE_IN)
    assert machine.run("systemctl", "start", unit).returncode == 0, machine.journal(unit)
    wait_for(lambda: "trapped" in machine.journal(unit))
    assert machine.run("systemctl", "stop", unit, timeout=90).returncode == 0
    assert machine.show(unit)["ActiveState"] == "inactive", machine.journal(unit)
    assert "Deactivated successfully" in machine.journal(unit)


@pytest.mark.parametrize("code", [64, 65, 69, 78])
def test_a_failure_that_a_restart_cannot_mend_is_not_restarted(machine: Machine, name: str, code: int) -> None:
    unit = machine.unit(name, ["sh", "-c", f"exit {code}"], STAND_IN, drop_in=f"{HERE_IN}\n{QUICK}")
    machine.run("systemctl", "start", unit)
    wait_for(lambda: ended(machine, unit))
    machine.run("sleep", "2")  # RestartSec=1 would have passed: there is no event for "was not restarted"
    properties = machine.show(unit)
    assert (properties["ActiveState"], properties["ExecMainStatus"], properties["NRestarts"]) == ("failed", str(code), "0")


@pytest.mark.parametrize("code", [1, 3, 70, 75, 124])
def test_a_failure_that_a_restart_may_mend_is_restarted(machine: Machine, name: str, code: int) -> None:
    unit = machine.unit(name, ["sh", "-c", f"exit {code}"], STAND_IN, drop_in=f"{HERE_IN}\n{QUICK}")
    machine.run("systemctl", "start", unit)
    wait_for(lambda: int(machine.show(unit)["NRestarts"]) >= 1)
    assert machine.run("systemctl", "stop", unit).returncode == 0


def test_five_starts_in_an_hour_and_no_more(machine: Machine, name: str) -> None:
    unit = machine.unit(name, ["false"], STAND_IN, drop_in=f"{HERE_IN}\nRestartSec=100ms")
    machine.run("systemctl", "start", unit)
    wait_for(
        lambda: machine.show(unit)["ActiveState"] == "failed" and machine.show(unit)["NRestarts"] == "5", state=lambda: machine.show(unit)
    )
    assert "Start request repeated too quickly" in machine.journal(unit)


def test_a_supervisor_that_hangs_is_ended_and_started_again(machine: Machine, bin_dir: str, name: str) -> None:
    unit = machine.unit(name, ["sleep", "1000"], bin_dir, drop_in=f"{HERE_IN}\n{QUICK}\nWatchdogSec=3")
    assert machine.run("systemctl", "start", unit).returncode == 0, machine.journal(unit)
    machine.run("sleep", "5")  # longer than WatchdogSec: the pings must be coming
    properties = machine.show(unit)
    assert (properties["ActiveState"], properties["NRestarts"]) == ("active", "0"), machine.journal(unit)
    machine.run("kill", "-STOP", properties["MainPID"])
    wait_for(
        lambda: machine.show(unit)["NRestarts"] == "1" and machine.show(unit)["ActiveState"] == "active", state=lambda: machine.show(unit)
    )
    assert "Watchdog timeout" in machine.journal(unit)
    assert machine.run("systemctl", "stop", unit, timeout=90).returncode == 0


def test_the_unit_is_started_again_after_kill_9_and_no_old_process_is_left(machine: Machine, bin_dir: str, name: str) -> None:
    unit = machine.unit(name, ["sh", "-c", "sleep 1000 & sleep 1001"], bin_dir, drop_in=f"{HERE_IN}\n{QUICK}")
    assert machine.run("systemctl", "start", unit).returncode == 0, machine.journal(unit)
    properties = machine.show(unit)
    everything = f"/sys/fs/cgroup{properties['ControlGroup']}"

    def sleepers() -> set[str]:
        return set(machine.run("sh", "-c", f"pgrep --full '^sleep 100[01]$' | grep -xFf {everything}/cgroup.procs").stdout.split())

    wait_for(lambda: len(sleepers()) == 2)
    before = sleepers()
    machine.run("kill", "-KILL", properties["MainPID"])
    wait_for(
        lambda: machine.show(unit)["NRestarts"] == "1" and machine.show(unit)["ActiveState"] == "active", state=lambda: machine.show(unit)
    )
    wait_for(lambda: len(sleepers()) == 2)
    assert not before & sleepers()
    assert machine.run("systemctl", "stop", unit, timeout=90).returncode == 0
    assert machine.run("test", "-d", everything).returncode == 1, "processes are left"


def test_a_job_that_ends_well_is_over(machine: Machine, bin_dir: str, name: str) -> None:
    unit = machine.unit(name, ["sh", "-c", "sleep 1; echo all is done"], bin_dir, drop_in=f"{HERE_IN}\n{QUICK}")
    assert machine.run("systemctl", "start", unit).returncode == 0, machine.journal(unit)
    wait_for(lambda: ended(machine, unit))
    assert machine.show(unit)["ActiveState"] == "inactive"
    assert "all is done" in machine.journal(unit)
    assert "Deactivated successfully" in machine.journal(unit)


def test_a_failure_that_repeats_itself_is_given_up_by_both(machine: Machine, own_bin_dir: str, name: str) -> None:
    unit = machine.unit(name, ["sh", "-c", "exit 42"], own_bin_dir, drop_in=f"{HERE_IN}\n{QUICK}")
    machine.run("systemctl", "start", unit)
    wait_for(lambda: ended(machine, unit))
    machine.run("sleep", "2")  # RestartSec=1 would have passed
    properties = machine.show(unit)
    assert (properties["ActiveState"], properties["ExecMainStatus"], properties["NRestarts"]) == ("failed", "65", "0"), machine.journal(
        unit
    )
    assert "rank 0 exited with code 42" in machine.journal(unit)


def test_a_unit_without_a_user_does_not_run(machine: Machine, name: str) -> None:
    unit = machine.unit(name, ["true"], STAND_IN, drop_in=QUICK)
    assert machine.run("systemctl", "start", unit).returncode != 0
    machine.run("sleep", "2")  # RestartSec=1 would have passed
    properties = machine.show(unit)
    assert (properties["ActiveState"], properties["ExecMainStatus"], properties["NRestarts"]) == ("failed", "217", "0")
    assert "status=217/USER" in machine.journal(unit)


def test_root_is_refused(machine: Machine, own_bin_dir: str, name: str) -> None:
    unit = machine.unit(name, ["true"], own_bin_dir, drop_in=f"User=root\n{QUICK}")
    assert machine.run("systemctl", "start", unit).returncode != 0
    machine.run("sleep", "2")  # RestartSec=1 would have passed
    properties = machine.show(unit)
    assert (properties["ActiveState"], properties["ExecMainStatus"], properties["NRestarts"]) == ("failed", "78", "0")
    assert "Set User= in a drop-in" in machine.journal(unit)
    assert "exit code 78" in properties["StatusText"]


def test_a_supervise_that_is_not_found_is_reported(machine: Machine, name: str) -> None:
    unit = machine.unit(name, ["true"], "/nonexistent", drop_in=f"{HERE_IN}\n{QUICK}")
    assert machine.run("systemctl", "start", unit).returncode != 0
    wait_for(lambda: ended(machine, unit))
    assert machine.show(unit)["ExecMainStatus"] == "127"
    assert machine.show(unit)["NRestarts"] == "0"
    assert "supervise" in machine.journal(unit)


def test_a_unit_without_a_config_file_is_not_tried(machine: Machine) -> None:
    started = machine.run("systemctl", "start", "supervise@nobody-wrote-one.service")
    assert started.returncode != 0
    assert "Assertion failed" in started.stderr
