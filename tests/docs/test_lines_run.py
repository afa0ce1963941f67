"""Every command line of ours on any page is run here, in this process, or the table names the test that runs it, or the reason for none.

The commands that read share one job, which is recorded once. A command that trains is planned here, and of each kind one trains among
the slow tests.
"""

from __future__ import annotations

import gc
import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

from supervisor.cli.main import main
from tests.docs.test_typed import LINES, ROOT, parse, words_of
from tests.support.recorded_job import RecordedJob
from tests.support.supervised import clean_environment
from tests.support.waiting import patience_s

#: Pages whose own tests type each of their commands: test_commands.py, test_tutorial.py.
TYPED_WHOLE = re.compile(r"README\.md|docs/explanation/(how-a-failure-is-handled|one-night)\.md|docs/tutorial/.*")
#: What a person writes for a word of the page. Files have the names that the page gives them.
FILLED = {
    r"\bCMD\b|(?<=-- )torchrun …$": "torchrun train.py",
    r" …$": " train.py",
    r"\bCAUSE\b": "cuda_oom",
    r"\bCOMMAND\b": "status",
    r" \[SINK\]": "",
    r"\bURL\b|s3://\S+": "mirror",
    r"/var/log/|/var/lib/node_exporter/": "",
    r"--nnodes=N\b": "--nnodes=1",
    r"listen=9409": "listen=127.0.0.1:0",
    r"--rank 3\b": "--rank 1",
    r"\bUUID\b": "all",
    r"^classify --json$": "classify --json LOG",
}
E2E, SLURM, CLI = "tests/e2e/", "tests/slurm/", "tests/cli/"
SHARDED = "GPUs; the two tools read the configurations in tests/docs/test_sharded_training.py"
#: What is not run here: the test that runs it, or why no test does.
ELSEWHERE = {
    "-- accelerate launch --config_file fsdp.yaml train.py": SHARDED,
    "-- deepspeed train.py --deepspeed_config ds.json": SHARDED,
    "-- torchrun --nnodes=4:5": "four machines; tests/e2e/test_nodes.py has nodes in network namespaces",
    "-- torchrun --nproc-per-node=2 examples/resumable.py": (
        "tests/checkpointing/training/test_resumable.py::test_under_supervise_a_rank_that_is_killed_costs_the_steps_since_the_last_save"
    ),
    "--checkpoints 'ckpt/*.pt' --resume-args '--resume {resume}' drill resume -- torchrun --nproc-per-node=8 train.py": (
        E2E + "test_drill_resume.py::test_two_ranks_that_load_the_same_checkpoint_are_proven"
    ),
    "--checkpoints 'ckpt/*.pt' --resume-args '--resume {resume}' drill soak --hours 8 --rate 12 -- torchrun --nproc-per-node=8 train.py": (
        E2E + "test_drill_soak.py::test_the_job_comes_back_from_each_fault_and_its_losses_are_those_of_a_quiet_run"
    ),
    "--checkpoints 'ckpt/*.pt' --resume-args '--resume {resume}' drill preempt --at-step 200 -- torchrun --nproc-per-node=8 train.py": (
        E2E + "test_drill.py::test_a_preempted_job_is_started_again_and_continues"
    ),
    "bundle --job bert": CLI + "jobs/test_bundle.py::test_the_bundle_holds_the_incidents_files_and_lists_the_missing_ones",
    "checkpoints convert ckpt/step_12000.pt export --to hf --dtype bf16": (
        CLI + "test_convert.py::test_a_checkpoint_is_converted_and_its_losses_are_listed"
    ),
    "checkpoints quarantine --withdraw PATH": CLI + "test_checkpoints.py::test_a_quarantine_is_withdrawn_by_the_same_command",
    "doctor --json": "tests/health/test_doctor.py::test_json_is_one_object_and_the_job_s_own_paths_port_and_room_are_looked_at",
    "doctor --nodes --nnodes 8 --node-rank N --master HOST:PORT": "tests/health/nodecheck/test_real.py::test_a_cable_that_really_is_slow",
    "doctor --nodes --nproc-per-node 8": "tests/health/nodecheck/test_real.py::test_eight_healthy_ranks_on_a_loaded_machine",
    "drill resume -- torchrun …": E2E + "test_drill_resume.py::test_two_ranks_that_load_the_same_checkpoint_are_proven",
    "nodes exclude gpu-9 --why 'its disk fails' --drain": (
        SLURM + "test_kinds_of_jobs.py::test_a_node_is_drained_with_its_reason_for_an_operator_and_for_nobody_else"
    ),
    "print accelerate > accelerate.yaml": CLI + "printing/test_launchers.py::test_the_commands_print_this_node",
    "print nccl > nccl.env": CLI + "printing/test_launchers.py::test_the_commands_print_this_node",
    "print torchrun -- python train.py > run.sh": CLI + "printing/test_launchers.py::test_the_commands_print_this_node",
    "profile --seconds 5": E2E + "test_profile.py::test_a_job_is_profiled_and_trains_on_and_says_who_waits_for_whom",
    "slurm exit-code": SLURM + "test_printed_script.py::test_on_several_nodes_the_code_of_the_job_counts_and_not_the_highest_of_its_nodes",
    "slurm requeue": SLURM + "test_batch_script.py::test_a_preempted_job_saves_is_requeued_resumes_where_it_saved_and_finishes",
    "status --probe live": E2E + "test_container.py::test_the_probes_of_a_pod_live_from_the_start_on_ready_from_the_first_step_on",
    "status --probe ready": E2E + "test_container.py::test_the_probes_of_a_pod_live_from_the_start_on_ready_from_the_first_step_on",
    "status --stacks": E2E + "test_stacks.py::test_the_stack_of_each_rank_is_shown_while_the_job_continues",
    "systemd install bert --user alice": CLI + "test_systemd.py::test_install_sets_a_job_up_and_keeps_what_a_person_wrote",
    "ui --listen 0.0.0.0:9410 --set ui.token_file=$HOME/.ui-token": (CLI + "ui/test_server.py::test_any_address_is_served_with_a_token"),
}
LOG = "Traceback (most recent call last):\n  File 'train.py', line 7, in <module>\n    main()\nValueError: shard is damaged: s-7.tar\n"
TRAIN = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--accum", type=int, default=1)
parser.parse_args()
print(f"rank {os.environ.get('RANK', '0')} is done", flush=True)
"""

pytestmark = pytest.mark.process


def is_name(line: str) -> bool:
    """Tell whether the text only names the command: it lacks words that it needs, or another line has it with its words."""
    try:
        parse(words_of(line))
    except click.MissingParameter:
        return True
    return bool(re.fullmatch("[a-z -]+", line)) and any(other.startswith(f"{line} ") for other in PAGES_OF)


PAGES_OF: dict[str, set[str]] = {}
for _page, _line in LINES:
    PAGES_OF.setdefault(re.sub(r"\s+", " ", re.split(r"\s{2,}#", _line)[0]).strip(), set()).add(_page)
HERE = sorted(
    line
    for line, pages in PAGES_OF.items()
    if line not in ELSEWHERE and not is_name(line) and not any(TYPED_WHOLE.fullmatch(page) for page in pages)
)


def filled(line: str) -> list[str]:
    """Return the words that a person types, up to where the shell takes over."""
    for word, value in FILLED.items():
        line = re.sub(word, value, line)
    words = shlex.split(line)
    return words[: words.index(">")] if ">" in words else words


TRAININGS = list({tuple(filled(line)): line for line in HERE if not parse(words_of(line))}.values())  # each command once


def with_training(place: Path) -> Path:
    """Put a training and the directories that its command lines name into a directory."""
    for directory in ("mirror", "textfile"):
        (place / directory).mkdir()
    (place / "train.py").write_text(TRAIN)
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with a job that failed twice, its logs and checkpoints, and all files that the pages name."""
    place = with_training(tmp_path_factory.mktemp("typed"))
    job = RecordedJob(place / ".supervise", "bert")
    job.begin()
    job.start(1)
    job.progress(5, 3, step=3)
    for attempt in (1, 2, 3):
        job.log(attempt, "rank-1.log", LOG.encode())
    job.fail(10)
    job.restart(20)
    job.fail(40)
    job.restart(50)
    job.succeed(60)
    for directory in ("ckpt", "DIR", "DIRECTORY"):
        (place / directory).mkdir()
        torch.save({"step": 3, "w": torch.ones(9)}, place / directory / "step_3.pt")
    for name in ("FILE", "LOG", "slurm-1234.out"):
        (place / name).write_text(LOG)
    with gzip.open(place / "kern.log.2.gz", "wt") as file:
        file.write("Nov 30 08:00:00 gpu-7 kernel: eth0: link is up\n")
    (place / "alerts.toml").write_text(
        f'[[alerts.sink]]\nkind = "exec"\ncommand = ["tee", "alerts.json"]\n[checkpoints]\nmirror = ["{place / "mirror"}"]\n'
    )
    here = ["--job", "bert", "--state-dir", str(place / ".supervise")]
    assert main(["nodes", "exclude", "gpu-9", *here[2:]]) == 0
    assert main(["checkpoints", "push", *here, "--mirror", str(place / "mirror"), str(place / "ckpt" / "step_3.pt")]) == 0
    return place


@pytest.fixture
def at(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in that directory, with the environment of a user and nothing of the machine that tests."""
    user = {"PATH": clean_environment()["PATH"], "HOME": str(place), "SHELL": "/bin/bash", "LANG": "C.UTF-8", "TERM": "xterm"}
    for name in set(os.environ) - set(user):
        monkeypatch.delenv(name)
    for name, value in {**user, "SUPERVISE_CONFIG": "alerts.toml"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize("line", [line for line in HERE if parse(words_of(line))])
@pytest.mark.usefixtures("at")
def test_a_command_does_what_it_is_for(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(filled(line))
    gc.enable()
    printed = capfd.readouterr()
    assert code == 0, printed.err
    assert printed.out or printed.err
    if line.endswith("--json"):
        assert printed.out.startswith(("{", "["))


@pytest.mark.parametrize("line", TRAININGS)
@pytest.mark.usefixtures("at")
def test_each_documented_training_has_a_plan_of_its_failures(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    options, _, command = f"{line} ".partition("-- ") if " -- " in line or line.startswith("-- ") else (line, "", "")
    assert main(filled(f"{options} plan -- {command or 'CMD'}")) == 0, capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("begins", ["-- torchrun …", "--knob batch_size=--batch-size --knob grad_accum", "--mirror ", "--trace "])
def test_a_command_that_trains_trains(begins: str, tmp_path: Path) -> None:
    (line,) = [line for line in TRAININGS if line.startswith(begins)]
    command = filled(line if "-- " in line else f"{line} -- CMD")
    done = subprocess.run(  # noqa: S603  what our pages say
        [str(Path(sys.executable).with_name("supervise")), *command],
        cwd=with_training(tmp_path), env=clean_environment(HOME=str(tmp_path)), capture_output=True, text=True,
        timeout=patience_s(120), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 0 is done" in done.stdout


def test_the_table_has_no_line_that_is_on_no_page_and_its_tests_are_there() -> None:
    assert set(ELSEWHERE) <= set(PAGES_OF)
    for line, where in ELSEWHERE.items():
        file, _, name = where.partition("::")
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), line
