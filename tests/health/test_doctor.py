"""`supervise doctor`: what people see, what programs read, the exit code, and what --fix clears away."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from health import render
from health.checks.kernel_log import kernel_log
from health.doctor import Diagnosis, Doctor
from health.local_time import stamped
from health.model import Ask, CheckResult, Reading, Readings, Result
from health.probing.runner import OUTCOME
from health.thresholds import Thresholds
from supervisor.cli.doctor.fix import fix
from supervisor.config.settings import JobSection, Settings
from supervisor.job import identity
from tests.support import preloaded
from tests.support.few import few_rows
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from health.model import Json
    from tests.support.fake_nvml import FakeNvml

SUPERVISE = shutil.which("supervise")
pytestmark = pytest.mark.process


def doctor(*options: str, cwd: Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return preloaded.command_text("doctor", *options, cwd=cwd, environ=os.environ if environ is None else environ)


def gpu_results(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    return [row for row in json.loads(done.stdout)["results"] if row["check"].startswith("gpu_")]


def test_the_worst_result_comes_first_with_its_evidence_and_repair(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set({"1.remap_failure": 1, "0.temperature": 90, "0.field.230": 1}, gpus=4)
    done = doctor(cwd=tmp_path, environ=fake_nvml.environ)
    assert done.returncode == 69
    lines = done.stdout.splitlines()
    places = [next(i for i, line in enumerate(lines) if word in line) for word in ("gpu_recovery", "gpu_remap", "gpu_temperature")]
    assert places == sorted(places)
    assert "FAILED blocks" in lines[places[0]]
    assert "nvidia-smi --gpu-reset -i 0000:10:00.0" in done.stdout
    assert "gpu_power" not in done.stdout, "what is well takes no line"
    assert lines[-1] == "this node is not fit for a job until each FAILED check is repaired; no job starts here before"
    (reset,) = [line.strip() for line in lines if "--gpu-reset" in line]
    assert reset == "repair: reset the GPU: nvidia-smi --gpu-reset -i 0000:10:00.0"
    assert "look: nvidia-smi -q -i 0000:10:00.0" in [line.strip() for line in lines], "a command that only looks is no repair"
    assert not [line for line in lines if line != line.rstrip()], "no line is filled with blanks"


@pytest.mark.slow
def test_a_healthy_check_is_shown_with_all(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    done = doctor("--all", cwd=tmp_path, environ=fake_nvml.environ)
    assert "gpu_power" in done.stdout


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ([Result.OK], "this node is fit for a job"),
        ([Result.OK, Result.DEGRADED], "this node is fit for a job (1 degraded: look at it at the next occasion)"),
        ([Result.UNKNOWN, Result.UNKNOWN], "this node is fit for a job (2 could not be judged)"),
        ([Result.FAILED], "this node is not fit for a job until each FAILED check is repaired"),
    ],
)
def test_the_last_line_is_the_verdict_and_the_one_before_has_the_time(results: list[Result], verdict: str) -> None:
    check_results = [CheckResult(f"check_{number}", "host", result, f"reason {number}") for number, result in enumerate(results)]
    lines = shown(Diagnosis(tuple(check_results), (), 0.25, 1795434400.0, Readings()))
    assert lines[-1] == verdict
    assert f", {stamped(1795434400.0).rstrip()}, in 0.2 s" in lines[-2]


def test_an_event_has_the_time_of_a_clock_on_the_wall_and_each_row_is_one_line() -> None:
    events = [
        {"kind": "oom", "code": "memcg", "severity": "error", "meaning": "killed", "line": f"[ 9{n}.5] Killed {n}", "age_s": 100.0 - n}
        for n in range(3)
    ]
    for number, event in enumerate(events):
        event["last_time"] = float(number)
    now = Readings([Reading("kernel_log", "kernel", "kernel.findings", cast("Json", events), t=1795434500.0)])
    skipped = [CheckResult(name, "host", Result.SKIPPED, "none is here") for name in ("disk_nvme", "net_reach")]
    lines = shown(Diagnosis((*kernel_log(now, None, Thresholds()), *skipped), ("nvml: x: not permitted, root may",), 0.25, 1.0, now))
    first, last = stamped(1795434400.0), stamped(1795434402.0)
    assert lines[1:4] == [
        f"DEGRADED  kernel_log  oom memcg: killed (3 times since {first.rstrip()})",
        f"                        {last}Killed 2",
        "                        look: dmesg -T",
    ]
    assert lines[5:8] == [
        "skipped: disk_nvme: none is here",
        "skipped: net_reach: none is here",
        "could not be checked: nvml: x: not permitted, root may",
    ]
    assert "1 degraded, 2 skipped" in lines[8], "counted as they are shown"


def shown(diagnosis: Diagnosis) -> list[str]:
    out = io.StringIO()
    render.show(diagnosis, out)
    return out.getvalue().splitlines()


def test_json_is_one_object_and_the_job_s_own_paths_port_and_room_are_looked_at(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set({"1.persistence": 0}, gpus=2)
    kept = tmp_path / "kept"
    (kept / "checkpoint-1").mkdir(parents=True)
    (kept / "checkpoint-1" / "config.json").write_text("{}")
    with (kept / "checkpoint-1" / "model.safetensors").open("wb") as huge:
        huge.truncate(shutil.disk_usage(tmp_path).free + (1 << 40))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        environ = {key: value for key, value in fake_nvml.environ.items() if key not in {"MASTER_PORT", "PET_MASTER_PORT"}}
        environ |= {"SUPERVISE_CHECKPOINTS": "kept/*", "SUPERVISE_COMMAND": f"torchrun --master-port {port} train.py"}
        done = doctor("--json", cwd=tmp_path, environ=environ)
    document = json.loads(done.stdout)
    assert (document["v"], document["blocks_a_start"], document["fit"], done.returncode) == (1, True, False, 69)
    assert any(row["blocks"] for row in document["results"])
    mine = [row for row in gpu_results(done) if row["result"] != "ok"]
    assert mine == [{
        "check": "gpu_persistence", "subject": "gpu:GPU-00000000-0000-4000-8000-000000000001", "result": "degraded", "evidence": [],
        "reason": "GPU 1 (GPU-00000000-0000-4000-8000-000000000001, 0000:11:00.0): persistence mode is off", "repair": "configure",
        "command": "nvidia-smi -pm 1 -i 0000:11:00.0", "look": [], "blocks": False, "t": None,
    }]  # fmt: skip
    assert sum(document["counts"].values()) == len(document["results"])
    rows = {(row["check"], row["subject"]): row for row in document["results"]}
    assert rows["disk_paths", f"path:{kept}"]["result"] == "ok"
    room = rows["disk_space", f"path:{kept}"]
    assert (room["result"], room["blocks"]) == ("failed", True)
    assert "one checkpoint takes" in room["reason"]
    assert f"port {port} is taken: process {os.getpid()} (" in rows["net_ports", f"listen:{port}"]["reason"]


@pytest.mark.parametrize(
    ("check", "blocks", "code"), [("net_ports", False, 0), ("disk_paths", False, 69), ("gpu_errors", True, 69), ("kernel_log", False, 69)]
)
def test_the_exit_code_is_of_the_node_and_not_of_a_taken_port(check: str, blocks: bool, code: int) -> None:  # noqa: FBT001
    diagnosis = Diagnosis(
        (CheckResult(check, "x", Result.FAILED, "port 29500 is taken: process 7", blocks=blocks),), (), 0.1, 1.0, Readings(())
    )
    assert (diagnosis.exit_code, diagnosis.to_json()["fit"]) == (code, code == 0)
    (verdict,) = [line for line in shown(diagnosis) if line.startswith("this node is ")]
    assert verdict.startswith("this node is not fit" if code else "this node is fit for a job (port 29500 is taken: process 7)")


@pytest.mark.slow
def test_a_node_whose_running_job_holds_its_port_is_fit(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        environ = {key: value for key, value in os.environ.items() if key not in {"MASTER_PORT", "PET_MASTER_PORT"}}
        environ["SUPERVISE_COMMAND"] = f"torchrun --master-port {holder.getsockname()[1]} train.py"
        done = doctor("--json", cwd=tmp_path, environ=environ)
    failed = {row["check"] for row in json.loads(done.stdout)["results"] if row["result"] == "failed"}
    assert "net_ports" in failed
    assert done.returncode == (69 if failed - {"net_ports"} else 0)


@pytest.mark.slow
def test_the_doctor_works_without_a_gpu_and_reports_it(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
    done = doctor("--json", cwd=tmp_path, environ=environ)
    if any(row["result"] == "ok" for row in gpu_results(done) if row["check"] == "gpu_driver"):
        pytest.skip("a GPU is here, and this test is about a node without one")
    assert done.stderr == ""
    assert {row["result"] for row in gpu_results(done)} <= {"skipped", "unknown"}
    assert "gpu_driver" in {row["check"] for row in gpu_results(done)}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to drop root's rights (Debian: apt-get install util-linux)")
def test_the_doctor_works_without_roots_rights(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set({"all.err.nvmlDeviceGetComputeRunningProcesses_v3": 4})  # what a driver answers who is not root
    bare = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    done = subprocess.run(  # noqa: S603 -- ours
        [*bare, str(SUPERVISE), "doctor"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, env=fake_nvml.environ
    )
    assert done.returncode in {0, 69}, "the rest of this node is not the test's"
    assert done.stderr == ""
    assert "could not be checked: nvml: gpu.processes: not permitted, root may" in done.stdout


@pytest.mark.parametrize(
    ("options", "text"),
    few_rows(
        [
            ("--nodes --kernel-log -", "--kernel-log cannot be combined with --nodes, which does not examine this node"),
            ("--nodes --fix", "--fix cannot be combined with --nodes, which does not examine this node"),
            ("--kernel-log - --watch 1", "--watch cannot be combined with --kernel-log, which does not examine this node"),
            ("--kernel-log - --all", "--all cannot be combined with --kernel-log, which does not examine this node"),
            ("--nodes --all", "--all cannot be combined with --nodes, which does not examine this node"),
            ("--nnodes 3", "--nnodes requires --nodes"),
            ("--nodes --nnodes 3", "--nnodes needs --node-rank and --master"),
            ("--nodes --nnodes 2 --node-rank 2 --master a:1", "--node-rank 2 is not below --nnodes 2"),
            ("--nodes --node-rank 1", "--node-rank 1 is not below --nnodes 1"),
            ("--nodes --nnodes 2 --node-rank 0 --master a", "--master a is not HOST:PORT"),
            ("--nodes --nnodes 2 --node-rank 0 --master a:70000", "--master a:70000 is not HOST:PORT"),
            ("--nodes --rehearse bogus", "argument --rehearse: no fault: 'bogus'"),
        ],
        2,
    ),
)
def test_options_that_do_not_go_together_are_refused(options: str, text: str, tmp_path: Path) -> None:
    done = doctor(*options.split(), cwd=tmp_path)
    assert text in done.stderr
    assert (done.returncode, done.stdout) == (64, "")


def test_watch_tells_what_moves_and_ends_by_interrupt(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    assert SUPERVISE is not None
    with subprocess.Popen(  # noqa: S603 -- ours
        [SUPERVISE, "doctor", "--json", "--watch", "0.1"], cwd=tmp_path, env=fake_nvml.environ, stdout=subprocess.PIPE, text=True
    ) as watch:
        killer = threading.Timer(60, watch.kill)
        killer.start()
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["v"] == 1
        fake_nvml.set({"1.ecc_unc_vol": 1, "1.ecc_unc_agg": 3, "events": "0:8:79"})
        texts: set[str] = set()
        while texts != {"gpu_ecc", "gpu_events"}:  # an event stays in sight, though it is delivered once
            output = json.loads(watch.stdout.readline())
            texts = {row["check"] for row in output["results"] if row["result"] == "failed" and row["check"].startswith("gpu_")}
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
        assert watch.wait(PATIENCE_S) == 69
        killer.cancel()


def test_a_watch_of_weeks_keeps_each_kind_of_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watching, looks = Doctor(Ask(), lasting=True), iter(range(1, 301))

    def sample(*_: object) -> Readings:
        t = float(next(looks))
        kinds = (("xid", 31), ("ecc_single_bit_storm", 0))
        arrived: list[Json] = [{"kind": kind, "data": data, "t": t, "pci": "5e:00.0"} for kind, data in kinds]
        if t == 1.0:
            arrived.append({"kind": "xid", "data": 79, "t": t, "pci": "5e:00.0"})
        done = Reading("runner", "probe:nvml", OUTCOME, {"state": "answered"}, t=t)
        return Readings([Reading("nvml", "gpu:0", "gpu.events", arrived, t=t), done])

    monkeypatch.setattr("health.probing.runner.Runner.sample", sample)
    for _ in range(300):
        diagnosis = watching.examine()
    shown = [(result.event, result.t, result.evidence[0]) for result in diagnosis.results if result.check == "gpu_events"]
    assert len(shown) == 3
    assert ("xid 79", 1.0) in [row[:2] for row in shown], "an event stays in sight"
    assert all("300 times since the first look" in evidence for event, _, evidence in shown if event != "xid 79")


def test_fix_clears_away_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    assert SUPERVISE is not None
    started = tmp_path / "started"
    script = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(600)"
    with subprocess.Popen(  # noqa: S603 -- ours
        [SUPERVISE, "--job", "fixed", "--", sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as job:
        deadline = time.monotonic() + 60
        while not started.exists():
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.05)
        state = tmp_path / ".supervise" / "fixed" / "nodes" / identity.node_name()
        scratch = identity.job_dir_path(state)
        assert scratch.exists()
        (alive,) = fix(Settings(job=JobSection(state_dir=str(tmp_path / ".supervise"))))
        assert "fixed: passed over: its supervisor runs" in alive
        assert scratch.exists()
        job.kill()
    done = doctor("--fix", cwd=tmp_path)
    assert f"fixed: removed {scratch}" in done.stderr
    assert "fixed: a stale lock is gone" in done.stderr
    assert not scratch.exists()
    assert not (state / "lock").exists()
    (nothing,) = fix(Settings(job=JobSection(state_dir=str(tmp_path / ".supervise"))))
    assert "nothing to clear away" in nothing
