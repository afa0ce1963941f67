"""`supervise drill`: the user's own job with one fault in it, recovered for real, and an account of what that cost."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from supervisor.cli import main
from tests.jobs import light
from tests.support.supervised import clean_environment

ROOT = Path(__file__).parents[2]
JOB = ["torchrun", "--standalone", "--nproc-per-node=2", str(ROOT / "examples" / "train_ddp.py"), "--steps=100000", "--save-every=5"]
RESUMED = ["--set", "checkpoints.paths=ckpt/step-*.pt", "--set", "knobs.resume.args=--resume {resume}"]
ALONE = [word.replace("per-node=2", "per-node=1") for word in JOB]
#: A job without torch that reports its steps.
BEATING = ["python", str(ROOT / "tests" / "jobs" / "no_torch.py"), "--beat", "--steps=100000", "--step-ms=20", "--save-every=5"]
BATCH = ["--batch-size=4", "--grad-accum=1"]

pytestmark = pytest.mark.process


def drill(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a drill to its end."""
    return subprocess.run(  # noqa: S603  # the program under test
        ["supervise", "drill", *words],  # noqa: S607  # by PATH, as a user starts it
        cwd=place,
        env=clean_environment(COLUMNS="200"),  # no row of a report continues in the next line
        capture_output=True,
        text=True,
        check=False,
    )


def line_of(done: subprocess.CompletedProcess[str], pattern: str) -> re.Match[str]:
    """The line of the report that is like this."""
    report = done.stdout[done.stdout.find("drill ") :]
    match = re.search(pattern, report, re.MULTILINE)
    assert match, f"no {pattern} in {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return match


def test_a_killed_rank_is_recovered_and_the_lost_steps_are_counted(tmp_path: Path) -> None:
    done = drill(tmp_path, "kill", "--at-step", "7", *RESUMED, "--", *BEATING)
    assert done.returncode == 0
    struck = int(line_of(done, r"^drill kill: rank 0 was killed at step (\d+) -+$")[1])
    resumed = line_of(done, r"recovered  at step (\d+) from \S+/step-0*(\d+)\.pt; (\d+) steps? made again")
    assert struck >= 7
    assert int(resumed[1]) == int(resumed[2])
    assert int(resumed[3]) == struck - int(resumed[1])
    assert float(line_of(done, r"noticed    after ([\d.]+) s: rank 0: killed by signal 9")[1]) < 3
    line_of(done, r"next step  [\d.]+ s after the fault")
    line_of(done, r"exit code  143, as the drill ended the job")


@pytest.mark.slow
def test_a_killed_rank_of_two_is_recovered(tmp_path: Path) -> None:
    done = drill(tmp_path, "kill", "--at-step", "7", "--rank", "1", *RESUMED, "--", *JOB)
    assert done.returncode == 0
    struck = int(line_of(done, r"^drill kill: rank 1 was killed at step (\d+) -+$")[1])
    resumed = line_of(done, r"recovered  at step (\d+) from \S+/step-0*(\d+)\.pt; (\d+) steps? made again")
    assert struck >= 7
    assert int(resumed[1]) == int(resumed[2])
    assert int(resumed[3]) == struck - int(resumed[1])
    assert float(line_of(done, r"noticed    after ([\d.]+) s: rank 1: killed by signal 9")[1]) < 3
    line_of(done, r"next step  [\d.]+ s after the fault")
    line_of(done, r"exit code  143, as the drill ended the job")


@pytest.mark.slow
def test_out_of_memory_halves_the_batch_that_was_declared(tmp_path: Path) -> None:
    knobs = ["--set", 'knobs.declared=["batch_size=--batch-size", "grad_accum=--grad-accum"]']
    done = drill(tmp_path, "oom", "--at-step", "7", *knobs, *RESUMED, "--", *ALONE, *BATCH)
    assert done.returncode == 0
    line_of(done, r"^drill oom: rank 0 ran out of memory at step 7 -+$")
    line_of(done, r"decided    cuda_oom \(0\.9\d\): restart")
    line_of(done, r"changed    --batch-size 4→2")
    line_of(done, r"changed    --grad-accum 1→2")
    line_of(done, r"recovered  at step 5 from ckpt/step-00000005\.pt; 2 steps made again")
    line_of(done, r"not shown  whether the losses continue as before: `supervise drill resume` compares them")
    assert [path.name for path in tmp_path.iterdir()] == [".supervise"], "the job's own directory is as it was: no checkpoint is there"


@pytest.mark.slow
def test_a_preempted_job_is_started_again_and_continues(tmp_path: Path) -> None:
    done = drill(tmp_path, "preempt", "--at-step", "7", *RESUMED, "--", *ALONE)
    assert done.returncode == 0
    line_of(done, r"^drill preempt: notice was given \(USR1\), with 10 s left, at step \d+ -+$")
    line_of(done, r"saved      by the script itself, before it ended")  # at its TERM: it knows nothing of us
    line_of(done, r"recovered  at step \d+ from \S+\.pt; 0 steps made again")


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["bitrot"], "Add --checkpoints"), (["kill", "--set", "instrument.enabled=false"], "Leave out --set instrument.enabled=false")],
    ids=["bitrot", "kill"],
)
def test_a_drill_that_cannot_be_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["drill", *words, "--", "touch", "started"]) == 64
    assert hint in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
def test_a_job_that_ends_before_the_step_is_reported_and_no_success(tmp_path: Path) -> None:
    done = drill(tmp_path, "kill", "--", "true")
    assert done.returncode == 1
    line_of(done, r"the job ended \(0\) before step 10; nothing was rehearsed")


@pytest.mark.slow
def test_a_job_that_does_not_come_to_the_step_is_given_up(tmp_path: Path) -> None:
    done = drill(tmp_path, "kill", "--deadline-s", "5", "--", "sleep", "1000")
    assert done.returncode == 1
    line_of(done, r"5\.0 s were over before step 10; nothing was rehearsed")


@pytest.mark.slow
def test_a_flipped_bit_is_found_and_an_older_checkpoint_taken_and_those_of_the_user_stay(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-00000900.pt").write_bytes(b"the result of a week")
    job = [*ALONE[:-1], "--save-every=60"]  # so many that the drill is over before the job comes round to the damaged one's step again
    done = drill(tmp_path, "bitrot", "--at-step", "125", *RESUMED, "--", *job)
    assert done.returncode == 0
    damaged = line_of(done, r"^drill bitrot: rank 0 was killed, with a bit of (\S+) flipped, at step \d+ -+$")[1]
    resumed = line_of(done, r"recovered  at step (\d+) from (ckpt/step-0*\1\.pt); \d+ steps? made again")
    assert resumed[2] != damaged
    assert {path.name: path.read_bytes() for path in (tmp_path / "ckpt").iterdir()} == {"step-00000900.pt": b"the result of a week"}


@pytest.mark.slow
def test_an_unnoticed_hang_of_a_rank_is_undone(tmp_path: Path) -> None:
    job = [*JOB[:3], str(ROOT / "tests" / "jobs" / "ddp_small.py"), "--light", "--save-on-term", "--step-ms=20", *JOB[4:]]
    done = drill(tmp_path, "hang", "--at-step", "7", "--rank", "1", "--patience-s", "2", *RESUMED, "--", *job)
    assert done.returncode == 1
    line_of(done, r"^drill hang: rank 1 was stopped at step \d+ -+$")
    line_of(done, r"noticed    not within 2\.0 s")
    line_of(done, r"undone     the drill let the rank continue")
    line_of(done, r"exit code  143, as the drill ended the job")  # within its stop deadline: a stopped rank would have had to be killed


@pytest.mark.slow
def test_a_rank_that_hangs_is_found_and_the_job_resumes(tmp_path: Path) -> None:
    done = drill(tmp_path, "hang", "--at-step", "7", "--rank", "1", *RESUMED, "--", *JOB)
    assert done.returncode == 0
    struck = int(line_of(done, r"^drill hang: rank 1 was stopped at step (\d+) -+$")[1])
    noticed = line_of(done, r"noticed    after ([\d.]+) s: .*rank 1 .*stopped")
    assert float(noticed[1]) > 10  # a step that takes so long is no hang
    line_of(done, r"decided    hang_no_error \(0\.\d+\): restart")
    resumed = int(line_of(done, r"recovered  at step (\d+) from \S+/step-0*\1\.pt; \d+ steps? made again")[1])
    assert 5 <= resumed <= struck
    line_of(done, r"exit code  143, as the drill ended the job")


@pytest.mark.slow
def test_unnoticed_nan_is_reported_with_a_setting_that_finds_it(tmp_path: Path) -> None:
    done = drill(tmp_path, "nan", "--at-step", "7", "--patience-s", "2", *RESUMED, "--", *ALONE)
    assert done.returncode == 1
    line_of(done, r"^drill nan: rank \d and all others got gradients of NaN at step \d+ -+$")
    line_of(done, r"noticed    no incident within 2\.0 s")
    line_of(done, r"advice     --set loss\.on_nan=restart, where the script prints or reports its loss, or a check")
    assert not (tmp_path / "ckpt").exists(), "what it saved of NaN is gone with the scratch directory"


@pytest.mark.slow
def test_a_job_that_ends_before_anybody_notices_is_not_reported_as_awaited(tmp_path: Path) -> None:
    job = ["--steps=12" if word.startswith("--steps") else word for word in ALONE]
    done = drill(tmp_path, "nan", "--at-step", "8", "--patience-s", "60", *RESUMED, "--", *job)
    assert done.returncode == 1
    line_of(done, r"^drill nan: rank \d and all others got gradients of NaN at step 8 -+$")
    line_of(done, r"noticed    no: the job had ended by then$")
    line_of(done, r"exit code  0$")


@pytest.mark.slow
def test_nan_that_the_script_looks_for_is_answered_by_an_older_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(light.IMPORT + LOOKS)
    job = ["python", str(script)]
    done = drill(tmp_path, "nan", "--at-step", "12", *RESUMED, "--", *job)
    assert done.returncode == 0
    struck = int(line_of(done, r"^drill nan: rank 0 and all others got gradients of NaN at step (\d+) -+$")[1])
    line_of(done, r"decided    nan_loss \(0\.9\d?\): restart")
    assert int(line_of(done, r"recovered  at step (\d+) from \S+\.pt")[1]) <= struck


#: Comes after light.IMPORT.
LOOKS = """
import os, sys, time, torch
model = torch.nn.Linear(4, 4)
optimizer = light_sgd(torch, model.parameters())
step = 0
os.makedirs("ckpt", exist_ok=True)
if "--resume" in sys.argv:
    content = torch.load(sys.argv[sys.argv.index("--resume") + 1], weights_only=True)
    model.load_state_dict(content["model"]); optimizer.load_state_dict(content["optimizer"]); step = content["step"]
while True:
    loss = model(torch.ones(4)).square().sum()
    if not loss.isfinite():
        raise FloatingPointError(f"loss is {loss.item()} at step {step}")
    optimizer.zero_grad(); loss.backward(); optimizer.step(); step += 1
    time.sleep(0.02)
    if step % 5 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"ckpt/new-{step}")
        os.replace(f"ckpt/new-{step}", f"ckpt/step-{step:08d}.pt")
"""
