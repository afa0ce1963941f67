# ruff: noqa: ANN401  values as a command takes and prints them
"""`supervise stop`: real supervisors are asked, waited for, and what became of their job is shown."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.stop import stop, unit_of
from supervisor.cli.main import main
from supervisor.errors import SuperviseError
from supervisor.run import lock
from supervisor.view.reading import read_view
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.recorded_job import RecordedJob

ROOT = Path(__file__).parents[3]
STUBBORN = """
import pathlib, signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("began").touch()
threading.Event().wait()
"""


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a job; it is ended after the test, if it runs then."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "supervisor", *words]
        environ = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def stage(place: Path) -> str:
    """Return where the one job in this directory stands, by its journal."""
    (journal,) = place.glob(".supervise/*/nodes/*/journal.jsonl")
    return read_view(journal).stage


def began(place: Path, name: str = "began") -> None:
    wait_for((place / name).exists, "the job runs", 60)


@pytest.mark.process
def test_a_job_is_stopped_by_its_name_and_its_end_is_shown_and_how_to_start_it_again(
    tmp_path: Path, supervise: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    options = [f"--option{number:03}=value{number:03}" for number in range(100)]
    job = supervise("--job", "train", "--", "sh", "-c", "touch began; sleep 1000", "--hub-token=hunter2", "my dir/x", *options)
    began(tmp_path)
    assert main(["stop", "--job", "train"]) == 0
    assert job.wait(60) == 143
    out, err = capsys.readouterr()
    shown, again, first = out.splitlines()
    assert shown.startswith("job train: stopped")
    assert shown.endswith("(exit code 143)")
    assert again.startswith("start it again: ")
    words = f"""'touch began; sleep 1000' --hub-token="${{HUB_TOKEN:?}}" 'my dir/x' {" ".join(options)}"""
    assert again.endswith(f"--job train -- sh -c {words}"), "the whole command, with a variable for each secret"
    assert "hunter2" not in again
    assert first == "set HUB_TOKEN first: secrets are not shown"
    assert f"job train: asked to stop (pid {job.pid}); waiting up to 120 s" in err
    assert main(["stop", "--job", "train"]) == 0
    assert capsys.readouterr().out.startswith("job train does not run: stopped")
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == f"no job runs here: {tmp_path / '.supervise'}\n"
    assert main(["stop", "--job", "tran"]) == 64
    assert stat.S_IMODE((tmp_path / ".supervise/train/digest.key").stat().st_mode) == 0o600, "what the run hid is keyed"


@pytest.mark.slow
@pytest.mark.process
def test_a_long_stop_continues_and_can_be_hurried(
    tmp_path: Path, supervise: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = supervise("--set", "stop.deadline_s=100", "--", sys.executable, "-c", textwrap.dedent(STUBBORN))
    began(tmp_path)
    for begins in ("asked to stop", "its stop is under way"):  # asked once, waited for twice: the second does not hurry
        assert main(["stop", "--wait-s", "0.5"]) == 1
        err = capsys.readouterr().err
        assert begins in err
        assert re.search(r"not ended after 0\.5 s: [\w, ]+\. The stop continues: ", err)
        wait_for(lambda: stage(tmp_path) == "stopping", "the supervisor has taken the request", 60)
    assert job.poll() is None
    assert main(["stop", "--hurry", "--wait-s", "60"]) == 0
    assert job.wait(60) == 143


def held(written: RecordedJob, **process: Any) -> None:
    """Give the job's lock a holder that was made from this process."""
    from dataclasses import replace  # noqa: PLC0415  for this helper only

    path = written.directory / "lock"
    taken = lock.acquire(path, job=written.job, run="run-1")
    path.unlink()
    lock._link(path, replace(taken.record, process=replace(taken.record.process, **process)))  # noqa: SLF001  as another host wrote it


def test_a_job_that_runs_elsewhere_is_left_alone(written: RecordedJob) -> None:
    written.begin()
    written.close()
    held(written, hostname="gpu-9", machine_id="other")
    with pytest.raises(SuperviseError, match=r"cannot be stopped from here: pid .* on gpu-9 supervises it") as caught:
        stop(written.settings, "train")
    assert caught.value.exit_code == 64


def test_one_of_several_running_jobs_must_be_named(make_job: type[RecordedJob], root: Path) -> None:
    for name in ("a", "b"):
        job = make_job(root, name)
        job.begin()
        job.close()
        held(job)
    with pytest.raises(SuperviseError, match=r"several jobs run here: [ab], [ab]") as caught:
        stop(job.settings, None)
    assert (caught.value.exit_code, caught.value.hint) == (64, "Name one of them with --job.")


@pytest.mark.parametrize(
    ("environ", "cgroup", "unit"),
    [
        ({"SYSTEMD_EXEC_PID": "7"}, "/system.slice/system-supervise.slice/supervise@train.service", "supervise@train.service"),
        ({"SYSTEMD_EXEC_PID": "7"}, "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service", "--user train.service"),
        ({"SYSTEMD_EXEC_PID": "6"}, "/system.slice/cron.service", ""),
        ({}, "/system.slice/cron.service", ""),
        ({"SYSTEMD_EXEC_PID": "7"}, "/", ""),
    ],
)
def test_the_service_of_a_supervisor_that_systemd_started(environ: dict[str, str], cgroup: str, unit: str) -> None:
    assert unit_of(7, environ, cgroup) == unit
