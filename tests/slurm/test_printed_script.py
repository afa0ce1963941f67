"""The script of `supervise print slurm`, without a Slurm: what srun gets, and which exit codes bring the job back."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.printing import slurm as batch
from supervisor.errors import ExitCode, SuperviseError
from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = ["torchrun", "--nproc-per-node=8", "train.py", "--name", "it's $HOME"]
#: Slurm's two programs as the script sees them: srun keeps its words and ends as it is told to.
SRUN = '#!/bin/bash\nprintf "%s\\n" "$@" > words\nexit "$CODE"\n'
SCONTROL = '#!/bin/bash\necho "$@" >> scontrol.calls\n'
#: `supervise slurm requeue` and `exit-code`, which tests/cli/test_nodes.py runs; BROKEN: as one that is not to be found.
SUPERVISE = """#!/bin/bash
[ -n "$BROKEN" ] && exit 127
case $2 in
    exit-code) echo "$JOB_CODE"; echo "$@" > asked ;;
    requeue) echo "supervise $@" >> scontrol.calls ;;
esac
"""


def run_script(place: Path, text: str, code: int = 0, **environ: str) -> tuple[int, list[str], str]:
    """Run a script between stand-ins for Slurm; return its exit code, the words of srun, and what it asked of scontrol."""
    for name, program in (("srun", SRUN), ("scontrol", SCONTROL), ("supervise", SUPERVISE)):
        (place / name).write_text(program)
        (place / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "4711", "CODE": str(code), **environ}
    job["PATH"] = f"{place}:{os.defpath}"
    done = subprocess.run(["/bin/bash", "-c", text], cwd=place, env=job, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert done.stderr == ""
    calls = place / "scontrol.calls"
    return done.returncode, (place / "words").read_text().splitlines(), calls.read_text() if calls.exists() else ""


def test_the_words_stay_as_they_are_on_several_nodes_too(tmp_path: Path) -> None:
    text = batch.script(["--checkpoints", "ckpt/*.pt"], TRAIN, nodes=2, notice_s=60, sbatch=["gpus-per-node=8", "--signal=USR2@30"])
    assert text.splitlines()[:2] == ["#!/bin/bash", "#SBATCH --gpus-per-node=8"]
    assert [line for line in text.splitlines() if "--signal" in line] == [next(line for line in text.splitlines() if "USR2@30" in line)]
    _, words, _ = run_script(tmp_path, text, SLURM_CPUS_PER_TASK="16", JOB_CODE="0")
    assert words == ["--cpus-per-task=16", "supervise", "--checkpoints", "ckpt/*.pt", "--", *TRAIN]  # the nodes: supervisor/launch/slurm.py


def test_on_one_node_and_for_another_command_nothing_is_added(tmp_path: Path) -> None:
    assert run_script(tmp_path, batch.script([], TRAIN, nodes=1, notice_s=60))[1] == ["supervise", "--", *TRAIN]
    assert run_script(tmp_path, batch.script([], ["sh", "t.sh"], nodes=2, notice_s=60), JOB_CODE="0")[1] == [
        "supervise",
        "--",
        "sh",
        "t.sh",
    ]


@pytest.mark.parametrize(
    ("code", "comes_back"),
    [(ExitCode.REQUEUE, True), (143, True), (129, True)]
    + [(code, False) for code in (0, 1, 130, 137, *(code for code in ExitCode if code not in {ExitCode.REQUEUE, ExitCode.BAD_NODE}))],
)
def test_the_job_is_requeued_only_where_it_is_to_continue(tmp_path: Path, code: int, comes_back: bool) -> None:  # noqa: FBT001  a parameter
    ended, _, asked = run_script(tmp_path, batch.script([], TRAIN, nodes=1, notice_s=60), code)
    assert (ended, asked) == (code, "supervise slurm requeue\n" if comes_back else "")


def test_after_an_end_for_want_of_a_fit_node_only_our_command_may_bring_the_job_back(tmp_path: Path) -> None:
    text = batch.script(["--state-dir", "state"], TRAIN, nodes=1, notice_s=60)
    assert run_script(tmp_path, text, ExitCode.BAD_NODE)[2] == "supervise slurm requeue --state-dir state --elsewhere\n"
    (tmp_path / "scontrol.calls").unlink()
    assert run_script(tmp_path, text, ExitCode.BAD_NODE, BROKEN="yes")[2] == "", "Slurm itself would take the same node"


def test_options_demanded_by_a_site_are_taken_if_they_fit(tmp_path: Path) -> None:
    text = batch.script([], TRAIN, nodes=2, notice_s=60, sbatch=["ntasks=2", "ntasks-per-node=1", "signal=R:USR2@9"])
    assert all(f"#SBATCH --{line}" in text for line in ("ntasks=2", "ntasks-per-node=1", "signal=R:USR2@9"))
    assert run_script(tmp_path, text, JOB_CODE="0")[0] == 0


def test_the_output_of_an_array_has_the_numbers_of_its_tasks(tmp_path: Path) -> None:
    text = batch.script([], TRAIN, nodes=1, notice_s=60, sbatch=["array=0-7"])
    assert "#SBATCH --output=%x-%A_%a.out" in text
    assert "#SBATCH --output=x" in batch.script([], TRAIN, nodes=1, notice_s=60, sbatch=["array=0-7", "output=x"])
    assert run_script(tmp_path, text)[0] == 0


def test_without_our_command_slurm_itself_is_asked_and_a_state_directory_of_its_own_is_named(tmp_path: Path) -> None:
    text = batch.script(["--state-dir", "/shared/a b"], TRAIN, nodes=1, notice_s=60)
    assert run_script(tmp_path, text, 75)[2] == "supervise slurm requeue --state-dir /shared/a b\n"
    (tmp_path / "scontrol.calls").unlink()
    assert run_script(tmp_path, text, 75, BROKEN="yes")[2] == "requeue 4711\n"


def test_of_an_array_the_script_names_its_own_task_and_waits_for_no_controller_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = {"BROKEN": "yes", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0"}
    assert run_script(tmp_path, batch.script([], TRAIN, nodes=1, notice_s=60), 75, **array)[2] == "requeue 4711_0\n"
    monkeypatch.setattr(batch, "_LIMIT_S", 1)
    monkeypatch.setitem(globals(), "SCONTROL", SCONTROL + "exec sleep 1000\n")
    assert run_script(tmp_path, batch.script([], TRAIN, nodes=1, notice_s=60), 75, **array)[0] == ExitCode.REQUEUE


@pytest.mark.parametrize(("highest", "of_job", "comes_back"), [(137, 75, True), (75, 0, False), (75, 1, False), (143, 143, True)])
def test_on_several_nodes_the_code_of_the_job_counts_and_not_the_highest_of_its_nodes(
    tmp_path: Path,
    highest: int,
    of_job: int,
    comes_back: bool,  # noqa: FBT001  a parameter
) -> None:
    text = batch.script(["--job", "bert", "--set", "terminal.verbosity=quiet", "--state-dir", "/shared/a b"], TRAIN, nodes=3, notice_s=60)
    ended, _, asked = run_script(tmp_path, text, highest, JOB_CODE=str(of_job))
    assert (ended, bool(asked)) == (of_job, comes_back)
    assert (tmp_path / "asked").read_text() == f"slurm exit-code --job bert --state-dir /shared/a b {highest}\n"
    assert run_script(tmp_path, text, highest, BROKEN="yes")[0] == highest


@pytest.mark.parametrize(
    ("nodes", "sbatch", "command", "error"),
    [
        (2, (), ["torchrun", "--standalone", "t.py"], "torchrun --standalone runs on one node"),
        (1, ["gpus per node=8"], ["true"], "not an #SBATCH line: 'gpus per node'"),
        (1, ["time=1\nrm -r x"], ["true"], "not an #SBATCH line: 'time'"),
        (1, ["hetjob"], ["true"], "the script describes one component of a job"),
        (2, ["ntasks-per-node=8"], ["true"], "one supervise looks after all ranks of a node: --sbatch ntasks-per-node=8"),
        (2, ["ntasks=16"], ["true"], "one supervise looks after all ranks of a node: --sbatch ntasks=16"),
        (1, ["signal=B:USR1@60"], ["true"], "the notice would come to the batch script alone"),
    ],
)
def test_an_impossible_script_is_an_error(nodes: int, sbatch: list[str], command: list[str], error: str) -> None:
    with pytest.raises(SuperviseError, match=error) as raised:
        batch.script([], command, nodes=nodes, notice_s=60, sbatch=sbatch)
    assert raised.value.exit_code == ExitCode.USAGE


def test_the_options_of_run_arrive_in_the_script(tmp_path: Path) -> None:
    """All kinds: a file, a text, a truth, several, assignments, and what only the command itself takes."""
    options = [
        "--config",
        "a b.toml",
        "--job",
        "bert",
        "--no-batch-change",
        "--checkpoints",
        "a/*",
        "--checkpoints",
        "b/*",
        "--set",
        "terminal.verbosity=quiet",
    ]
    command = ["supervise", *options, "print", "slurm", "--notice-s", "90", "--", "python", "t.py"]
    done = subprocess.run(command, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
    assert "#SBATCH --signal=USR1@90 " in done.stdout
    words = run_script(tmp_path, done.stdout)[1]
    assert words[0] == "supervise"
    assert words[-3:] == ["--", "python", "t.py"]
    assert sorted(words[1:-3]) == sorted(options)
