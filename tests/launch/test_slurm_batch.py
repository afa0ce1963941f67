"""What a job of Slurm reports at its start: whether a notice will come, who hears it, and what the tasks of an array share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.launch import slurm_batch, system_command

STEP = {"SLURM_JOB_ID": "7100", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}
BATCH = {"SLURM_JOB_ID": "7100"}
ARRAY = {**STEP, "SLURM_ARRAY_JOB_ID": "7099", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_SUBMIT_DIR": "/project"}


def script(*lines: str, then: str = "srun supervise -- torchrun train.py") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), then, ""])


@pytest.mark.parametrize(
    ("text", "option"),
    [
        (script("--signal=USR1@120"), "--signal=USR1@120"),
        (script("--nodes=2 --signal B:SIGUSR2@300  # to save"), "--signal=B:USR2@300"),
        (script("--signal=B:10"), "--signal=B:USR1@60"),
        (script("--signal=RB:USR1@9", "--requeue"), "--signal=B:USR1@9"),
        (script("--signal=USR1@1", "--signal=USR2@2"), "--signal=USR2@2"),
        (script("--requeue  # not --signal=USR1@5"), None),
        (script("--requeue", then="srun x\n#SBATCH --signal=USR1@5"), None),
        ("", None),
    ],
)
def test_the_notice_of_a_batch_script_is_read_as_by_sbatch(text: str, option: str | None) -> None:
    notice_request = slurm_batch.notice_request(text)
    assert (None if notice_request is None else notice_request.option) == option


@pytest.mark.parametrize(
    ("environ", "text", "level", "words"),
    [
        (STEP, script("--signal=USR1@120"), "info", "a notice comes 120 to 180 s before the time limit"),
        (STEP, script("--signal=B:USR1@120"), "warning", "it has no trap for USR1, so it ends by that, and the job ends unsaved"),
        (STEP, script("--signal=B:USR1@120"), "warning", "write --signal=USR1@120"),
        (STEP, script("--signal=B:USR1@120", then="trap 'kill -USR1 $!' SIGUSR1\nsrun x & wait"), "info", "whose trap has to hand it on"),
        (STEP, script("--signal=B:USR1@120", then="# trap '' USR1\nsrun x"), "warning", "it has no trap"),
        (STEP, script(), "info", "write `#SBATCH --signal=USR1@120`, unless sbatch was given it"),
        (STEP, script("--signal=INT@120"), "warning", "after it the job does not come back; write USR1"),
        (STEP, script("--signal=TERM@120"), "warning", "takes USR1 and USR2 for a notice"),
        (BATCH, script("--signal=B:USR1@120", then="exec supervise x"), "info", "a notice comes 120"),
        (BATCH, script("--signal=USR1@120", then="exec supervise x"), "warning", "or write --signal=B:USR1@120 and `exec supervise …`"),
        (BATCH, script(then="exec supervise x"), "info", "write `#SBATCH --signal=B:USR1@120`"),
    ],
)
def test_the_report_on_a_notice_names_the_option_to_write(environ: dict[str, str], text: str, level: str, words: str) -> None:
    ((given_level, line),) = slurm_batch.of_notice(environ, text)
    assert (given_level, words in line) == (level, True), line


def test_no_notice_is_promised_to_a_process_that_slurm_does_not_signal() -> None:
    assert list(slurm_batch.of_notice(STEP, script("--signal=USR1@120"), is_heard=False)) == []


#: Reports as a supervise would that this shell starts.
ASKS = f"{sys.executable} -c 'from supervisor.launch.slurm_batch import deaf_shell; import os; print(deaf_shell(os.environ))'"


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "is_deaf"),
    [
        (f"{ASKS}; true", True),
        (f"exec {ASKS}", False),
        (f"trap 'kill -USR1 $!' USR1; {ASKS} & wait", False),
        (f"trap 'kill $!' TERM; {ASKS}; true", False),
        ('trap : CHLD; bash -c "$INNER; true"; true', True),
    ],
    ids=["shell", "exec", "hands-on", "term", "two-shells"],
)
def test_a_shell_that_hands_no_signal_on_is_reported(text: str, is_deaf: bool) -> None:  # noqa: FBT001  a parameter
    environ = {**os.environ, "INNER": ASKS, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(  # noqa: S603
        ["/bin/bash", "-c", f"export SLURM_TASK_PID=$$; {text}"], env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    assert ("which is a shell (bash), and not this supervise below it" in done.stdout) == is_deaf, done


def test_a_parent_of_another_kind_counts_as_one_that_hands_signals_on() -> None:
    assert slurm_batch.deaf_shell({"SLURM_TASK_PID": str(os.getpid())}) == ""
    assert slurm_batch.deaf_shell({"SLURM_TASK_PID": "x"}) == ""
    assert slurm_batch.deaf_shell({}) == ""


@pytest.mark.parametrize(
    ("environ", "name", "root", "record", "words"),
    [
        (ARRAY, "slurm-7099_3", "/project/.supervise", "ArrayTaskThrottle=2 ", ""),
        (ARRAY, "bert", "/project/.supervise", "ArrayTaskThrottle=2 ", "each task of array 7099 has the name bert"),
        (ARRAY, "bert", "/project/.supervise", "ArrayTaskThrottle=12 ", "each task of array 7099 has the name bert"),
        (ARRAY, "bert", "/project/.supervise", "ArrayTaskThrottle=1 ", ""),  # a chain: one task after another
        (ARRAY, "bert", "/project/.supervise", "", ""),  # nobody knows
        (ARRAY, "bert-3", "/project/.supervise", "JobId=1", ""),
        (ARRAY, "bert-30", "/project/.supervise", "JobId=1", "leave --job out (slurm-7099_3)"),
        (ARRAY, "slurm-7099_3", "/project/run-3/.supervise", "JobId=1", "such as --state-dir /project/.supervise"),
        ({**ARRAY, "SLURM_SUBMIT_DIR": "/home/u3"}, "slurm-7099_3", "/home/u3/.supervise", "JobId=1", ""),
        ({**ARRAY, "SLURM_ARRAY_TASK_COUNT": "1"}, "bert", "/project/run-3/.supervise", "JobId=1", ""),
        (STEP, "bert", "/project/run-3/.supervise", "JobId=1", ""),
    ],
)
def test_a_wrong_sharing_between_the_tasks_of_an_array_is_reported(
    environ: dict[str, str], name: str, root: str, record: str, words: str
) -> None:
    lines = [text for _, text in slurm_batch.of_array(environ, name, Path(root), record)]
    assert words in "".join(lines)
    assert bool(lines) == bool(words)


def test_only_the_first_node_of_a_job_asks_slurm() -> None:
    assert slurm_batch.is_first(BATCH)
    assert slurm_batch.is_first(STEP)
    assert not slurm_batch.is_first({**STEP, "SLURM_NODEID": "1"})


#: Keeps what it is asked; its script asks for a notice that the batch script alone gets.
SCONTROL = """#!/bin/sh
echo "$@" >> {place}/calls
. {place}/first
case $1 in
    -o) echo "JobId=7100 ArrayTaskThrottle=2 TimeLimit=$LIMIT" ;;
    write) printf '#!/bin/bash\\n#SBATCH --signal=B:USR1@90\\nsrun x\\n' ;;
esac
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a recording scontrol first on PATH."""
    program = tmp_path / "scontrol"
    program.write_text(SCONTROL.format(place=tmp_path))
    program.chmod(0o755)
    (tmp_path / "first").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LIMIT", "01:00:00")
    return tmp_path


@pytest.mark.process
def test_the_controller_is_asked_for_the_task_of_an_array_and_for_its_script(scontrol: Path) -> None:
    rows = list(slurm_batch.reports(ARRAY, "bert", Path("/project/.supervise")))
    assert [level for level, _ in rows] == ["warning", "warning"]
    assert [text.partition(":")[0] for _, text in rows][1] == "--signal=B"
    assert (scontrol / "calls").read_text() == "-o show job 7099_3\nwrite batch_script 7099_3 -\n"


@pytest.mark.process
def test_a_job_without_a_limit_gets_no_report(scontrol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMIT", "UNLIMITED")
    assert list(slurm_batch.reports(STEP, "slurm-7100", scontrol)) == []


@pytest.mark.process
def test_a_controller_that_does_not_answer_is_given_up(scontrol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_command, "SCONTROL_S", 0.2)
    (scontrol / "first").write_text("exec sleep 1000\n")
    assert list(slurm_batch.reports(STEP, "slurm-7100", scontrol)) == []
