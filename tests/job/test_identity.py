"""Which job, whose run, which directories."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to another user: run as root")
NOBODY = 65534
COMMAND = ["torchrun", "train.py"]


def test_a_job_is_called_by_its_flag_else_by_slurm_else_by_directory_and_command() -> None:
    environ = {"SLURM_JOB_ID": "4711"}
    assert identity.job_name("mine", environ, Path("/w"), COMMAND) == identity.JobName("mine", "--job")
    assert identity.job_name("", environ, Path("/w"), COMMAND).name == "slurm-4711"
    own = identity.job_name("", {}, Path("/data/my proj"), COMMAND)
    assert own.name.startswith("my-proj-")
    assert own == identity.job_name("", {}, Path("/data/my proj"), COMMAND)
    others = [(Path("/data/my-proj"), COMMAND), (Path("/data/my proj"), ["torchrun train.py"]), (Path("/"), COMMAND)]
    names = [identity.job_name("", {}, cwd, command).name for cwd, command in others]
    assert len({own.name, *names}) == 4


def test_a_changed_argument_begins_a_new_job_that_names_the_one_of_before(tmp_path: Path) -> None:
    def written(name: str, t: float) -> None:
        journal = tmp_path / name / "nodes" / "n" / "journal.jsonl"
        journal.parent.mkdir(parents=True)
        journal.touch()
        os.utime(journal, (t, t))

    first, second, third = (identity.job_name("", {}, Path("/data/my proj"), [*COMMAND, argument]) for argument in ("--a", "--b", "--c"))
    assert identity.job_of_another_command(tmp_path / "none", first) is None
    assert identity.job_of_another_command(tmp_path, first) is None
    written(first.name, 100.0)
    written("other-0123abcd", 900.0)
    assert identity.job_of_another_command(tmp_path, first) is None, "it is no new job"
    assert identity.job_of_another_command(tmp_path, second) == (first.name, 100.0)
    written(second.name, 200.0)
    assert identity.job_of_another_command(tmp_path, third) == (second.name, 200.0)
    assert identity.job_of_another_command(tmp_path, identity.JobName("mine", "--job")) is None


def test_the_job_of_a_drill_is_known_by_its_directory() -> None:
    assert identity.is_drill(Path("/w/.supervise/.drill-a1b2/state/bert/nodes/n"))
    assert not identity.is_drill(Path("/w/.supervise/bert/nodes/n"))


@pytest.mark.parametrize("name", ["..", ".", "a/b", "-x", " ", "a" * 65, "a\nb", "naïve", "a b"])
def test_a_name_that_cannot_be_a_directorys_is_refused(name: str) -> None:
    with pytest.raises(SuperviseError, match="not a job name") as caught:
        identity.job_name(name, {}, Path("/w"), COMMAND)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert "--job" in caught.value.hint


def test_the_commands_that_read_know_a_job_only_where_it_was_named() -> None:
    assert identity.known_job_name("mine", {}) == "mine"
    assert identity.known_job_name("", {"SLURM_JOB_ID": "4711"}) == "slurm-4711"
    assert identity.known_job_name("", {}) is None


PERSON: dict[str, str] = {}
SLURM = {"SLURM_RESTART_COUNT": "2"}
SYSTEMD = {"SYSTEMD_EXEC_PID": str(os.getpid())}
SHELL_BELOW_A_UNIT = {"SYSTEMD_EXEC_PID": "1"}


@pytest.mark.parametrize("environ", [PERSON, SLURM, SYSTEMD])
def test_a_run_without_an_end_or_with_code_75_continues(environ: dict[str, str]) -> None:
    assert identity.decide_run(None, environ, ended=False).kind == "continue"
    assert identity.decide_run(75, environ, ended=True).kind == "continue"


@pytest.mark.parametrize("code", [0, 65, 69, 78])
@pytest.mark.parametrize("environ", [PERSON, SLURM, SYSTEMD])
def test_after_a_final_end_every_start_opens_a_new_run(code: int, environ: dict[str, str]) -> None:
    assert identity.decide_run(code, environ, ended=True).kind == "new"


@pytest.mark.parametrize("code", [1, 42, 70, 124, 137])
def test_after_any_other_end_a_machines_start_continues_and_a_persons_is_new(code: int) -> None:
    kinds = [identity.decide_run(code, environ, ended=True).kind for environ in (PERSON, SHELL_BELOW_A_UNIT, SLURM, SYSTEMD)]
    assert kinds == ["new", "new", "continue", "continue"]


@pytest.mark.parametrize("code", [129, 130, 143])
def test_a_run_stopped_by_a_person_is_not_continued_by_systemd(code: int) -> None:
    assert identity.decide_run(code, SYSTEMD, ended=True).kind == "new"
    assert identity.decide_run(code, SLURM, ended=True).kind == "continue"  # preempted, and queued again


@pytest.mark.process
def test_a_process_is_known_by_pid_and_start_and_its_zombie_is_none() -> None:
    me = identity.this_process()
    assert (me.pid, me.start_ticks) == (os.getpid(), identity.start_ticks(os.getpid()))
    assert me.boot_id
    assert me.pid_namespace
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    assert (identity.start_ticks(process.pid) or 0) >= me.start_ticks
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    assert identity.start_ticks(process.pid) is None
    process.communicate()
    assert identity.start_ticks(process.pid) is None


def test_run_ids_sort_by_time_and_do_not_repeat() -> None:
    ids = [identity.new_run_id() for _ in range(50)]
    assert len(set(ids)) > 45  # two bytes against starts within one second
    assert ids[0][:15] <= ids[-1][:15]


def test_a_run_id_names_the_second_in_which_the_run_began_wherever_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone in ("UTC", "Europe/Berlin"):  # in July its clocks are an hour ahead of what time.timezone says
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert identity.run_began_t("20260701T120000-4ba6") == 1782907200
        assert abs(identity.run_began_t(identity.new_run_id()) - time.time()) < 3600
    monkeypatch.undo()
    time.tzset()
    assert identity.run_began_t("run-1") == 0


def test_the_state_directory_is_made_for_us_alone(tmp_path: Path) -> None:
    path = identity.make_node_state("deep/state", tmp_path, "j", "n")
    assert path == tmp_path / "deep/state/j/nodes/n" == identity.node_state("deep/state", tmp_path, "j", "n")
    assert [part.stat().st_mode & 0o777 for part in (path, *path.parents)][:4] == [0o700] * 4
    assert list(path.iterdir()) == []
    assert identity.make_node_state("deep/state", tmp_path, "j", "n") == path


def refused(root: str, cwd: Path) -> SuperviseError:
    with pytest.raises(SuperviseError, match="no state directory") as caught:
        identity.make_node_state(root, cwd, "j", "n")
    assert caught.value.exit_code == ExitCode.CONFIG
    assert "--state-dir" in caught.value.hint
    return caught.value


@pytest.mark.parametrize("place", ["state", "state/j", "state/j/nodes/n"])
def test_a_file_in_the_way_is_named(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")
    assert f"{path}: a file is in the way" in refused("state", tmp_path).message
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert f"{path}: a symbolic link that leads nowhere is in the way" in refused("state", tmp_path).message


def test_a_place_that_cannot_be_written_is_named() -> None:
    assert "/proc/state: " in refused("/proc/state", Path("/")).message


def test_a_directory_of_the_job_that_others_may_write_is_refused_and_a_group_may_share_the_root(tmp_path: Path) -> None:
    path = identity.make_node_state("state", tmp_path, "j", "n")
    (tmp_path / "state").chmod(0o2770)
    assert identity.make_node_state("state", tmp_path, "j", "n") == path
    (tmp_path / "state" / "j").chmod(0o770)
    assert "others may write it (mode 0770" in refused("state", tmp_path).message


@as_root
@pytest.mark.parametrize("part", ["state", "state/j", "state/j/nodes/n"])
def test_another_users_directory_is_refused(tmp_path: Path, part: str) -> None:
    identity.make_node_state("state", tmp_path, "j", "n")
    os.chown(tmp_path / part, NOBODY, -1)
    assert f"belongs to uid {NOBODY}" in refused("state", tmp_path).message


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


def test_the_jobs_directory_in_memory_is_ours_alone_and_the_same_after_a_restart(tmp_path: Path, shm: Path) -> None:
    state = identity.make_node_state("state", tmp_path, "j", "n")
    other = identity.make_node_state("state", tmp_path, "k", "n")
    path = identity.make_job_dir(state, shm)
    assert path.parent == shm
    assert path.name.startswith(f"supervise-{os.geteuid()}-")
    assert path.stat().st_mode & 0o777 == 0o700
    assert identity.make_job_dir(state, shm) == path != identity.make_job_dir(other, shm)


def test_a_link_or_an_open_directory_of_that_name_is_left_alone(tmp_path: Path, shm: Path) -> None:
    state = identity.make_node_state("state", tmp_path, "j", "n")
    path = identity.make_job_dir(state, shm)
    path.chmod(0o777)
    assert identity.make_job_dir(state, shm) == state / "shm"
    path.rmdir()
    path.symlink_to(tmp_path)
    assert identity.make_job_dir(state, shm) == state / "shm"
    assert (state / "shm").stat().st_mode & 0o777 == 0o700


@as_root
def test_another_users_directory_of_that_name_is_left_alone(tmp_path: Path, shm: Path) -> None:
    state = identity.make_node_state("state", tmp_path, "j", "n")
    os.chown(identity.make_job_dir(state, shm), NOBODY, -1)
    assert identity.make_job_dir(state, shm) == state / "shm"


def test_without_memory_to_share_the_state_directory_will_do(tmp_path: Path) -> None:
    state = identity.make_node_state("state", tmp_path, "j", "n")
    assert identity.make_job_dir(state, tmp_path / "missing") == state / "shm"
    assert identity.make_job_dir(state, Path("/proc")) == state / "shm"  # there, and without room
