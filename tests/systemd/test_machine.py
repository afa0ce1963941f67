"""What only a whole machine shows: a reboot, a power cut, the kernel's log, a node that is waited for, an alert of systemd's own."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from conftest import Machine

pytestmark = [pytest.mark.systemd, pytest.mark.slow, pytest.mark.process]
OURS = str(Path(sys.executable).parent)
TRAIN = """
import os, sys, time
import torch
step = torch.load(sys.argv[2])["step"] if sys.argv[1:] else 0
print(f"begins at step {step}", flush=True)
os.makedirs("ckpt", exist_ok=True)
while True:
    step += 1
    time.sleep(0.1)
    if step % 5 == 0:
        torch.save({"step": step}, "ckpt/new")
        os.replace("ckpt/new", f"ckpt/step-{step:08}.pt")
        print(f"saved {step}", flush=True)
"""
CONFIG = f"""
[job]
command = ["{sys.executable}", "train.py"]
[checkpoints]
paths = ["ckpt/*.pt"]
[knobs.resume]
args = "--resume {{resume}}"
"""
#: What `supervise systemd install` and `systemctl enable` leave on the disk.
ENABLED = {
    "etc/supervise/bert.toml": CONFIG,
    "etc/supervise/bert.env": f"PATH={OURS}:/usr/bin:/bin\n",
    "etc/systemd/system/supervise@bert.service.d/job.conf": "[Service]\nUser=trainer\nWorkingDirectory=/srv/job\n",
    "etc/systemd/system/multi-user.target.wants/supervise@bert.service": "-> /etc/systemd/system/supervise@.service",
}
UNIT = "supervise@bert.service"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["reboot", "power cut"])
def test_the_job_is_started_at_boot_and_continues_from_its_checkpoint(
    boot: Callable[..., AbstractContextManager[Machine]], tmp_path: Path, how: str
) -> None:
    place = tmp_path / "srv" / "job"  # systemd-tmpfiles sets the mode of /srv itself
    place.mkdir(parents=True)
    (place / "train.py").write_text(TRAIN)
    place.chmod(0o777)  # the user of the job is nobody here
    with boot(ENABLED, tmp_path) as machine:
        wait_for(lambda: "saved 10" in machine.journal(UNIT), state=lambda: machine.journal(UNIT))
        if how == "reboot":
            machine.run("systemctl", "reboot")
            wait_for(lambda: not Path(f"/proc/{machine.pid}/cmdline").exists())
    with boot(ENABLED, tmp_path) as machine:
        wait_for(lambda: "begins at step" in machine.journal(UNIT), state=lambda: machine.journal(UNIT))
        journal = machine.journal(UNIT)
        (began,) = (line for line in journal.splitlines() if line.startswith("begins at step"))
        assert int(began.split()[-1]) >= 10, journal
        assert ("continues with run" in journal) == (how == "power cut"), journal


def test_the_kernel_s_log_is_readable_as_the_unit_s_user(machine: Machine) -> None:
    process = machine.run("sh", "-c", "mknod -m 644 /dev/kmsg c 1 11 && systemctl restart systemd-journald")
    assert process.returncode == 0, process.stderr
    wait_for(lambda: machine.run("journalctl", "-k", "-q", "-n", "1").stdout)
    denied = machine.as_user("head", "-c", "1", "/dev/kmsg")
    if denied.returncode == 0:
        pytest.skip("this kernel lets every user read /dev/kmsg: sysctl kernel.dmesg_restrict=1")
    to_file = "StandardOutput=truncate:/var/lib/supervise/klog/out\nStandardError=journal"
    unit = machine.unit("klog", [f"{OURS}/supervise", "doctor", "--json"], OURS, drop_in=f"User=trainer\n{to_file}")
    machine.run("mkdir", "-p", "/var/lib/supervise/klog")
    machine.run("systemctl", "start", unit, timeout=120)
    wait_for(lambda: machine.show(unit)["ActiveState"] in {"failed", "inactive"})
    document = json.loads(machine.run("cat", "/var/lib/supervise/klog/out").stdout)
    results = [row for row in document["results"] if row["check"] == "kernel_log"]
    assert results
    assert not [row for row in results if row["result"] == "unknown"]


def test_a_node_that_is_missing_does_not_fail_the_start(machine: Machine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=x"]
    unit = machine.unit("waits", [*words, "train.py"], OURS, drop_in="User=trainer\nTimeoutStartSec=40\nWatchdogSec=20\nRestart=no")
    machine.run("systemctl", "start", "--no-block", unit)
    wait_for(lambda: "waits for the other nodes" in machine.show(unit).get("StatusText", ""), state=lambda: machine.journal(unit))
    machine.run("sleep", "45")  # TimeoutStartSec=40 would have passed
    properties = machine.show(unit)
    assert (properties["ActiveState"], properties["SubState"]) == ("activating", "start"), machine.journal(unit)
    assert machine.run("systemctl", "stop", unit, timeout=120).returncode == 0
    assert "timed out" not in machine.journal(unit)


def test_a_mirror_that_is_waited_for_does_not_fail_the_start(machine: Machine) -> None:
    """Its address is one of this machine's that takes connections and never answers: the booted one has the same network."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        more = '[checkpoints]\npaths = ["ckpt/*.pt"]\nmirror = ["s3://bucket/jobs"]\n'
        unit = machine.unit("mirrored", ["true"], OURS, drop_in="User=trainer\nTimeoutStartSec=15\nWatchdogSec=8\nRestart=no")
        machine.write("/etc/supervise/mirrored.toml", machine.run("cat", "/etc/supervise/mirrored.toml").stdout + more)
        keys = "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\nAWS_EC2_METADATA_DISABLED=true\n"
        keys += f"AWS_DEFAULT_REGION=x\nAWS_ENDPOINT_URL=http://127.0.0.1:{silent.getsockname()[1]}\n"
        machine.write("/etc/supervise/mirrored.env", f"PATH={OURS}:/usr/bin:/bin\n{keys}")
        machine.run("systemctl", "start", "--no-block", unit)
        awaited = "looks for the newest checkpoint in the mirror"
        wait_for(lambda: awaited in machine.show(unit).get("StatusText", ""), state=lambda: machine.journal(unit))
        machine.run("sleep", "18")  # TimeoutStartSec=15 would have passed
        properties = machine.show(unit)
        assert (properties["ActiveState"], properties["SubState"], properties["StatusText"]) == ("activating", "start", awaited), (
            machine.journal(unit)
        )
        assert machine.run("systemctl", "stop", unit, timeout=120).returncode == 0
    assert "timed out" not in machine.journal(unit)
    assert "nothing shows that the command takes a checkpoint" in machine.journal(unit, "-p", "warning")


def test_the_timer_examines_the_node_and_an_unfit_one_alerts(machine: Machine) -> None:
    machine.installed("timed", '[job]\ncommand = ["true"]\n', OURS, "/")
    unit, alert = "supervise-doctor.service", "/var/lib/supervise/doctor/alert"
    machine.write("/etc/supervise/doctor.toml", f'[[alerts.sink]]\nkind = "exec"\ndetail = "lines"\ncommand = ["tee", "{alert}"]\n')
    machine.write("/etc/supervise/doctor.env", f"PATH={OURS}:/usr/bin:/bin\nSUPERVISE_HEALTH_THRESHOLDS=disk_full_share=0.0001\n")
    machine.write("/etc/systemd/system/supervise-doctor.timer.d/now.conf", "[Timer]\nRandomizedDelaySec=0\nOnActiveSec=1\n")
    assert machine.run("systemctl", "daemon-reload").returncode == 0
    started = machine.run("systemctl", "enable", "--now", "supervise-doctor.timer")
    assert started.returncode == 0, started.stderr
    wait_for(lambda: machine.show(unit)["ActiveState"] == "failed", state=lambda: machine.journal(unit))
    assert machine.show(unit)["ExecMainStatus"] == "69"
    assert "this node is not fit for a job" in machine.journal(unit)
    calendar = machine.show("supervise-doctor.timer")
    assert (calendar["ActiveState"], calendar["UnitFileState"]) == ("active", "enabled")
    assert calendar["NextElapseUSecRealtime"].endswith("00:00:00 UTC") or "00:" in calendar["NextElapseUSecRealtime"]
    sender = "supervise-alert@doctor.service"
    wait_for(lambda: machine.run("test", "-s", alert).returncode == 0, state=lambda: machine.journal(sender))
    sent = json.loads(machine.run("cat", alert).stdout)
    assert (sent["event"], sent["job"]) == ("unit_failed", "doctor")
    assert f"{unit} failed" in sent["lines"][0]
    assert "systemctl status supervise-doctor" in sent["command"]
    machine.write("/etc/supervise/doctor.env", f"PATH={OURS}:/usr/bin:/bin\n")
    machine.run("systemctl", "start", unit, timeout=120)
    wait_for(lambda: machine.show(unit)["ActiveState"] in {"failed", "inactive"})
    fit = machine.show(unit)["ActiveState"] == "inactive"
    (verdict,) = [line for line in machine.journal(unit).splitlines() if line.startswith("this node is ")][1:]
    assert verdict.startswith("this node is fit for a job") == fit


def test_a_unit_that_failed_for_good_alerts(machine: Machine) -> None:
    sink = '[[alerts.sink]]\nkind = "exec"\ndetail = "lines"\ncommand = ["tee", "/var/lib/supervise/wrong/alert"]\n'
    unit = machine.installed("wrong", f'[job]\ncommand = ["true"]\nnonsense = 1\n{sink}', OURS, "/")
    assert machine.run("systemctl", "start", unit, timeout=120).returncode != 0
    assert "nonsense" in machine.show(unit).get("StatusText", "")
    alert = "supervise-alert@wrong.service"
    wait_for(lambda: machine.run("test", "-s", "/var/lib/supervise/wrong/alert").returncode == 0, state=lambda: machine.journal(alert))
    sent = json.loads(machine.run("cat", "/var/lib/supervise/wrong/alert").stdout)
    assert (sent["event"], sent["job"]) == ("unit_failed", "wrong")
    assert f"{unit} failed" in sent["lines"][0]


def test_a_job_that_supervise_gave_up_alerts_once_and_shows_in_the_status(machine: Machine) -> None:
    sink = '[[alerts.sink]]\nkind = "exec"\ncommand = ["tee", "-a", "/var/lib/supervise/fails/alert"]\n'
    unit = machine.installed("fails", f'[job]\ncommand = ["sh", "-c", "exit 42"]\n{sink}', OURS, "/")
    machine.run("systemctl", "start", unit, timeout=120)
    alert = "supervise-alert@fails.service"
    wait_for(lambda: "supervise alerted already" in machine.journal(alert), state=lambda: machine.journal(unit) + machine.journal(alert))
    properties = machine.show(unit)
    assert (properties["ExecMainStatus"], properties["NRestarts"]) == ("65", "0")
    assert properties["StatusText"].startswith("failed, exit code 42: Perhaps the training program itself failed; supervise why ")
    sent = machine.run("cat", "/var/lib/supervise/fails/alert").stdout
    assert '"given_up"' in sent
    assert '"unit_failed"' not in sent
    card = machine.journal(unit, "-p", "err")
    assert "-- incident " in card
    assert "journal and logs:" not in card
