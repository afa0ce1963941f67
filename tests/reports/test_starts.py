"""Reports of starts: programs that start the ranks by themselves, addresses that lead nowhere, schedulers and wrappers around the job."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch.distributed.run import get_args_parser

from supervisor.cli import slurm
from supervisor.core.events import StopRequested
from supervisor.core.machine import decide
from supervisor.core.model import RankInfo
from supervisor.core.state import Attempt, JobState, Stage
from supervisor.job.identity import job_name
from supervisor.launch import system_command
from supervisor.launch.launchers import ignored_options
from tests.reports.conftest import DECLARED, OFTEN, SCRIPTS, torchrun
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

#: Task 0 of an array, whose own number is that of the array, and task 1.
TASKS = {
    "100_0": {"SLURM_JOB_ID": "100", "SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "0"},
    "100_1": {"SLURM_JOB_ID": "101", "SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "1"},
}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a scontrol on PATH that keeps its words in `calls`, and then runs what stands in `then`."""
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n. {tmp_path}/then\n')
    program.chmod(0o755)
    (tmp_path / "then").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("task", TASKS)
def test_lightning_15022_a_task_of_an_array_is_requeued_alone(scontrol: Path, task: str) -> None:
    assert slurm.requeue(scontrol, TASKS[task]) == 0
    assert (scontrol / "calls").read_text() == f"requeue {task}\n"


def test_lightning_15022_each_task_of_an_array_is_a_job_of_its_own(tmp_path: Path) -> None:
    assert {job_name("", environ, tmp_path, ["train"]).name for environ in TASKS.values()} == {"slurm-100_0", "slurm-100_1"}


def test_submitit_1713_a_controller_that_does_not_answer_holds_the_requeue_back_for_no_longer_than_its_deadline(
    scontrol: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_command, "SCONTROL_S", 0.2)
    (scontrol / "then").write_text("exec sleep 1000\n")
    assert slurm.requeue(scontrol, TASKS["100_0"]) == 1
    assert "does not requeue job 100_0" in capsys.readouterr().err


@pytest.mark.slow
def test_ultralytics_20044_the_ranks_that_a_program_starts_are_the_ranks_and_the_program_is_started_again(
    supervise: Callable[..., Supervised],
) -> None:
    outer = [sys.executable, str(SCRIPTS / "ultralytics_20044.py"), "own-environment", "--steps", "100", "--raise-at", "50"]
    run = supervise(*outer, options=DECLARED, **OFTEN)
    assert run.exit_code(250) == 0
    assert run.stdout == "training from step 0\ntraining from step 40\n"
    assert "incident 1 at step 49: rank 1 raised ValueError: sample 50 has no label. Restarting as attempt 2" in run.stderr
    assert "resumed at step 40" in run.stderr
    assert "done at step 100" in run.stderr
    assert "SCRATCH" not in run.stderr
    assert sorted(path.name for path in (run.place / "ckpt").iterdir()) == sorted(f"step-{n}.pt" for n in range(20, 101, 20))


@pytest.mark.parametrize(
    ("address", "text"),
    [(" 127.0.0.1", "MASTER_ADDR=' 127.0.0.1' has a blank in it"), ("[::1]", "MASTER_ADDR='[::1]' has brackets")],
)
def test_pytorch_121807_and_verl_2550_an_address_that_can_never_be_one_is_refused_before_the_start(
    supervise: Callable[..., Supervised], address: str, text: str
) -> None:
    environ = {"MASTER_ADDR": address, "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    run = supervise(sys.executable, SCRIPTS / "kubeflow_2794.py", **environ)
    assert run.exit_code(100) == 78
    assert text in run.stderr
    assert run.attempts() == 0


@pytest.fixture
def closing_port() -> Iterator[str]:
    """Have kubeflow_2794.py at a port of this host."""
    port = str(free_port())
    with subprocess.Popen([sys.executable, str(SCRIPTS / "kubeflow_2794.py"), port]) as server:  # noqa: S603  ours
        yield port
        server.kill()


NOWHERE = "nowhere-7.invalid"
UNRESOLVED = rf"cannot resolve the host name '{NOWHERE}', where the ranks are to meet"
NO_STORE = r"something answers at 127\.0\.0\.1:\d+, where the ranks are to meet, but it is not a store"


@pytest.mark.slow
def test_pytorch_150532_a_name_that_leads_nowhere_is_a_sentence_and_is_waited_for(
    supervise: Callable[..., Supervised], closing_port: str
) -> None:
    """Ten minutes long, as tests/scenarios/stories/ends.toml tells: in a cluster a name appears after its host."""
    environ = {"MASTER_ADDR": NOWHERE, "MASTER_PORT": closing_port, "RANK": "1", "WORLD_SIZE": "2"}
    run = supervise(sys.executable, SCRIPTS / "kubeflow_2794.py", _SUPERVISE_TEST_INTERVALS="0.04", **environ)
    run.wait_for_line(UNRESOLVED)
    wait_for(lambda: run.attempts() >= 3, "a third attempt", 200, alive=run.alive)
    run.signal(signal.SIGTERM)
    assert run.exit_code(60) == 143
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_kubeflow_2794_a_service_that_is_not_a_store_is_a_sentence_and_the_tries_are_bounded(
    supervise: Callable[..., Supervised], closing_port: str
) -> None:
    where = f"--rdzv-endpoint=127.0.0.1:{closing_port}"
    command = ["torchrun", "--nnodes=2", "--rdzv-backend=c10d", where, "--rdzv-conf=read_timeout=3,join_timeout=5"]
    run = supervise(*command, SCRIPTS / "kubeflow_2794.py")
    assert run.exit_code(280) == 75
    run.wait_for_line(NO_STORE)
    assert run.attempts() <= 4


SAVES_WHEN_ASKED = Path(__file__).parents[1] / "jobs" / "saves_on_request.py"


@pytest.mark.slow
def test_conda_10351_the_ranks_below_a_wrapper_that_is_deaf_to_term_save_and_nothing_is_left(supervise: Callable[..., Supervised]) -> None:
    wrapper = [sys.executable, str(SCRIPTS / "conda_10351.py")]
    training = ["torchrun", "--standalone", "--nproc-per-node=2", str(SAVES_WHEN_ASKED)]
    run = supervise(*wrapper, *training, options=("--checkpoints", "ckpt/step-*.pt"))
    wait_for(lambda: (run.place / "steps").exists() and len((run.place / "steps").read_text().split("\n")) > 10, "ten steps", 120)
    run.signal(signal.SIGTERM)
    assert run.exit_code(120) == 75
    run.wait_for_nothing_left()
    (saved,) = {int(line.split()[1]) for line in (run.place / "told").read_text().splitlines()}
    assert [path.name for path in (run.place / "ckpt").iterdir()] == [f"step-{saved:08d}.pt"]
    assert run.attempts() == 1


def test_uv_13756_an_interrupt_that_a_wrapper_sends_again_after_200_ms_is_one() -> None:
    state = JobState(stage=Stage.RUNNING, attempt=Attempt(1, ranks=(RankInfo(0, 0, 10, 1),), world_size=1))
    state, first = decide(state, StopRequested(7.0, signal.SIGINT))
    assert first
    assert decide(state, StopRequested(7.2, signal.SIGINT))[1] == ()


@pytest.mark.slow
def test_dagster_slurm_193_a_shell_whose_wait_a_notice_interrupts_is_no_failed_rank(supervise: Callable[..., Supervised]) -> None:
    command = ["bash", str(SCRIPTS / "dagster_slurm_193.sh"), *torchrun("training.py", "--steps", "5000")]
    run = supervise(*command, options=DECLARED, **OFTEN)
    run.wait_for_line("training from step 0", 120)
    run.signal(signal.SIGUSR1)
    assert run.exit_code(120) == 75
    run.wait_for_nothing_left()
    assert run.attempts() == 1
    assert "no incident" in run.stderr


@pytest.mark.parametrize(
    "words", ["--rdzv-conf=timeout=900 --rdzv-conf=last_call_timeout=3", "--rdzv_conf timeout=900 --rdzv-c last_call_timeout=3"]
)
def test_basilica_493_the_rdzv_conf_that_torchrun_ignores_is_named(words: str) -> None:
    command = ["torchrun", "--nnodes=1:2", *words.split(), "train.py", "--rdzv-conf=of=the-script"]
    assert get_args_parser().parse_args(command[1:]).rdzv_conf == "last_call_timeout=3"
    assert ignored_options(command, {}) == (
        (
            "torchrun takes the last --rdzv-conf alone: --rdzv-conf=timeout=900 has no effect;"
            " write --rdzv-conf=timeout=900,last_call_timeout=3"
        ),
    )
    assert not ignored_options(["torchrun", "--rdzv-conf=timeout=900", "train.py", "--rdzv-conf=of=the-script"], {})
    assert not ignored_options(["python", "train.py"], {})


@pytest.mark.slow
def test_basilica_493_is_reported_at_the_start(supervise: Callable[..., Supervised]) -> None:
    run = supervise("torchrun", "--rdzv-conf=timeout=900", "--rdzv-conf=last_call_timeout=3", "absent.py")
    run.wait_for_line(r"warning: torchrun takes the last --rdzv-conf alone: --rdzv-conf=timeout=900 has no effect")
    assert run.exit_code(100) != 0
