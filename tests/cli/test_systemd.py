"""`supervise print systemd`, and `supervise systemd install`, `run` and `alert`."""

from __future__ import annotations

import json
import os
import pwd
import stat
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.cli.systemd import command, installation
from supervisor.errors import SuperviseError
from supervisor.job import identity, known_jobs
from supervisor.run import start
from tests.cli.jobs import stories
from tests.cli.jobs.stories import Story
from tests.support.recorded_job import RecordedJob

USER = next(row.pw_name for row in pwd.getpwall() if row.pw_uid != 0)


def install(root: Path, *words: str) -> int:
    return main(["systemd", "install", "--root", str(root), *words])


def test_print_prints_a_unit_as_it_is_and_without_a_name_all(capfd: pytest.CaptureFixture[str]) -> None:
    for name in installation.names():
        assert main(["print", "systemd", name]) == 0
        assert capfd.readouterr().out == (installation.UNITS / name).read_text()
    assert main(["print", "systemd"]) == 0
    assert [line[5:] for line in capfd.readouterr().out.splitlines() if line.startswith("#### ")] == installation.names()
    assert main(["print", "systemd", "supervise.service"]) == 64
    assert "supervise@.service" in capfd.readouterr().err


def test_the_example_of_a_job_is_a_configuration_that_resumes() -> None:
    example = tomllib.loads(installation.text("job.toml"))
    assert "{resume}" in example["knobs"]["resume"]["args"]
    assert example["checkpoints"]["paths"]


def test_install_sets_a_job_up_and_keeps_what_a_person_wrote(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "100% mine"
    place.mkdir()
    assert install(tmp_path, "bert", "--user", USER, "--directory", str(place)) == 0
    assert "next: write " in capfd.readouterr().out
    system = tmp_path / "etc/systemd/system"
    drop_in = system / "supervise@bert.service.d/job.conf"
    assert drop_in.read_text() == f"[Service]\nUser={USER}\nWorkingDirectory={tmp_path}/100%% mine\n"
    assert (system / "supervise-alert@bert.service.d/job.conf").read_text() == drop_in.read_text()
    environment = tmp_path / "etc/supervise/bert.env"
    assert environment.read_text() == f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin\n"
    assert {path.name for path in system.glob("*.service")} == {path.name for path in installation.UNITS.glob("*.service")}
    assert oct((system / "supervise@.service").stat().st_mode) == "0o100644"
    drop_in.write_text("mine\n")
    (system / "supervise@.service").write_text("older\n")
    (tmp_path / "etc/supervise/bert.toml").touch()
    assert install(tmp_path, "bert", "--user", USER, "--directory", str(place)) == 0
    out = capfd.readouterr().out
    assert drop_in.read_text() == "mine\n"
    assert (system / "supervise@.service.old").read_text() == "older\n"
    assert f"replaced   {system}/supervise@.service" in out
    assert f"unchanged  {system}/supervise-doctor.timer" in out
    assert "next: sudo systemctl enable --now supervise@bert" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("a/b", "--user", USER), "not a job name: 'a/b'"),
        (("bert",), "no user for the job bert"),
        (("bert", "--user", "root"), "the job bert would run as root"),
    ],
)
def test_an_impossible_unit_is_refused_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    assert install(tmp_path, *words) == 64
    assert says in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("user", "directory", "says"),
    [
        ("nobody-has-this-name", "/", "no such user: nobody-has-this-name"),
        ("root", "/", "the job bert would run as root"),
        (USER, "/no/such", "no such directory: /no/such"),
    ],
)
def test_a_user_or_directory_that_the_system_lacks_is_refused(user: str, directory: str, says: str) -> None:
    with pytest.raises(SuperviseError, match=says) as refused:
        installation.job_unit("bert", user, Path(directory))
    assert refused.value.exit_code == 64


def test_the_user_who_called_sudo_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", USER)
    assert install(tmp_path, "bert", "--directory", str(tmp_path)) == 0
    assert f"User={USER}\n" in (tmp_path / "etc/systemd/system/supervise@bert.service.d/job.conf").read_text()


def test_a_directory_that_cannot_be_written_names_the_command_that_can(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").touch()
    assert install(tmp_path) == 78
    assert "cannot install the units" in (err := capfd.readouterr().err)
    assert "Run it as root: sudo /" in err


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_their_owner_reads_environment_files_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert install(tmp_path / "image", "bert", "--user", USER) == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "image/etc/supervise").iterdir()}
    assert modes == {"bert.env": 0o600, "doctor.env": 0o600}
    for path in (tmp_path / "image").rglob("*"):
        if path.suffix != ".env":
            assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644), path


def test_an_environment_file_that_others_can_read_is_narrowed_and_its_content_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "etc/supervise"
    place.mkdir(parents=True)
    for name, mode in (("bert.env", 0o644), ("doctor.env", 0o400)):
        (place / name).write_text("WANDB_API_KEY=secret\n")
        (place / name).chmod(mode)
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / "elsewhere").chmod(0o644)
    (place / "linked.env").symlink_to(tmp_path / "elsewhere")
    assert install(tmp_path, "bert", "--user", USER) == 0
    assert install(tmp_path, "linked", "--user", USER) == 0
    out = capfd.readouterr().out
    assert f"protected  {place}/bert.env" in out
    assert f"kept       {place}/doctor.env" in out
    assert [stat.S_IMODE((place / name).stat().st_mode) for name in ("bert.env", "doctor.env", "linked.env")] == [0o600, 0o400, 0o644]
    assert (place / "bert.env").read_text() == "WANDB_API_KEY=secret\n"


def test_below_another_root_the_users_and_directories_of_the_image_count(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "srv/bert").mkdir(parents=True)
    passwd = tmp_path / "etc/passwd"
    passwd.write_text("root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\ntrainer:x:4242:4242::/srv:/bin/sh\n")
    assert install(tmp_path, "bert", "--user", "trainer", "--directory", "/srv/bert") == 0
    assert "warning" not in capfd.readouterr().err
    assert install(tmp_path, "other", "--user", USER, "--directory", "/srv/bert") == 64, "a user of the host alone"
    assert f"no such user in the image: {USER}: not in {passwd}" in capfd.readouterr().err
    assert install(tmp_path, "other", "--user", "toor", "--directory", "/srv/bert") == 64
    assert "would run as root" in capfd.readouterr().err
    assert install(tmp_path, "mounted", "--user", "trainer", "--directory", "/data/later") == 0
    assert "the image has no directory /data/later" in capfd.readouterr().err
    passwd.unlink()
    assert install(tmp_path, "unknown", "--user", "trainer", "--directory", "/srv/bert") == 0
    assert f"{passwd} is not there: whether the image has the user trainer is not known" in capfd.readouterr().err


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the jobs' configurations, with one of a job whose alerts go into a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "CONFIGURATION", tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("MONITOR_UNIT", "supervise@bert.service")
    sink = f'[[alerts.sink]]\nkind = "exec"\ndetail = "lines"\ncommand = ["sh", "-c", "cat > {tmp_path}/alert"]\n'
    (tmp_path / "bert.toml").write_text(f'[job]\ncommand = ["true"]\n{sink}')
    (tmp_path / "bert.toml").chmod(0o600)
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="it tests a refusal of root: run as root")
def test_run_refuses_root(configured: Path, capfd: pytest.CaptureFixture[str]) -> None:
    del configured
    assert main(["systemd", "run", "bert"]) == 78
    assert "sudo systemctl edit supervise@bert" in capfd.readouterr().err


@pytest.mark.parametrize(("code", "of_unit"), [(0, 0), (1, 65), (42, 65), (65, 65), (75, 75), (137, 137)])
def test_a_unit_ends_with_65_for_a_code_of_the_program_so_that_systemd_does_not_start_it_again(
    configured: Path, monkeypatch: pytest.MonkeyPatch, code: int, of_unit: int
) -> None:
    del configured
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(start, "run", lambda *_: code)
    assert main(["systemd", "run", "bert"]) == of_unit


@pytest.mark.process
def test_alert_says_which_unit_failed_and_how(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SERVICE_RESULT", "exit-code"), ("EXIT_CODE", "exited"), ("EXIT_STATUS", "78")):
        monkeypatch.setenv(f"MONITOR_{name}", value)
    assert main(["systemd", "alert", "bert"]) == 0
    alert = json.loads((configured / "alert").read_text())
    assert (alert["event"], alert["severity"], alert["job"]) == ("unit_failed", "critical", "bert")
    assert alert["command"].startswith("systemctl status supervise@bert.service")
    assert alert["lines"] == ["supervise@bert.service failed: exit-code, exited 78"]


@pytest.mark.process
def test_a_run_that_ended_for_another_reason_than_its_last_incident_is_alerted(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SERVICE_RESULT", "exit-code"), ("EXIT_CODE", "exited"), ("EXIT_STATUS", "65")):
        monkeypatch.setenv(f"MONITOR_{name}", value)
    alert = configured / "alert"
    for give_up in (True, False):
        root = configured / ("given up" if give_up else "resolved")
        monkeypatch.setenv("SUPERVISE_STATE_DIR", str(root))
        job = RecordedJob(root, "bert")
        if give_up:
            stories.bug(partial(Story, job))
        else:
            job.begin()
            job.start(1)
            job.progress(2, 3, step=3)
            job.fail(5)
            job.restart(9)
            job.end(65)
        assert main(["systemd", "alert", "bert"]) == 0
        assert alert.exists() is not give_up, root


def test_a_job_without_a_configuration_is_named(configured: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["systemd", "alert", "gpt"]) == 78
    assert f"no such configuration file: {configured}/gpt.toml" in capfd.readouterr().err
    assert main(["systemd", "run", "../gpt"]) in {64, 78}


def test_a_unit_s_state_is_found_by_the_name_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_jobs, "UNITS", tmp_path / "units")
    environ = {"XDG_STATE_HOME": str(tmp_path / "home")}
    assert known_jobs.recall("bert", environ) is None
    unit, by_hand = tmp_path / "units" / "bert", tmp_path / "by hand"
    for age, root in enumerate((unit, by_hand)):
        journal = root / "bert" / "nodes" / identity.node_name() / "journal.jsonl"
        journal.parent.mkdir(parents=True)
        journal.touch()
        os.utime(journal, (1000 - age, 1000 - age))
    assert known_jobs.recall("bert", environ) == unit
    known_jobs.remember("bert", by_hand, environ)
    assert known_jobs.recall("bert", environ) == unit
    os.utime(next(by_hand.rglob("journal.jsonl")), (2000, 2000))
    assert known_jobs.recall("bert", environ) == by_hand
