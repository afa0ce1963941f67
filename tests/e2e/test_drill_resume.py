"""`supervise drill resume`: what a job resumes is compared with what it saved, in a scratch directory, and the next start says so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.jobs import light
from tests.support.supervised import clean_environment

TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=1"]
RESUMED = ["--set", "checkpoints.paths=ckpt/step-*.pt", "--set", "knobs.resume.args=--resume {resume}"]
TRAIN = [*TORCHRUN, "ddp_small.py", "--light", "--step-ms=20", "--steps=100000", "--print-losses", "--save-every=20"]

pytestmark = pytest.mark.process


def drill(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a drill to its end."""
    return subprocess.run(  # noqa: S603  # the program under test
        ["supervise", "drill", "resume", *words],  # noqa: S607  # by PATH, as a user starts it
        cwd=place,
        env=clean_environment(COLUMNS="200"),  # no row of a report continues in the next line
        capture_output=True,
        text=True,
        check=False,
    )


def report(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the rows of the report by name."""
    rows = re.findall(r"^  (\w+) +(.+)$", done.stdout[done.stdout.find("drill resume: ") :], re.MULTILINE)
    assert rows, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return dict(rows)


def files(place: Path) -> dict[str, bytes]:
    """Return the content of each file that is not in the state directory."""
    paths = (path for path in sorted(place.rglob("*")) if path.is_file() and ".supervise" not in path.parts)
    return {str(path.relative_to(place)): path.read_bytes() for path in paths}


def opening(place: Path, *words: str) -> str:
    """Start the job, and stop it when its opening lines are printed; return the line on the resume."""
    with subprocess.Popen(  # noqa: S603  # the program under test
        ["supervise", *words],  # noqa: S607  # by PATH, as a user starts it
        cwd=place,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stderr is not None
        line = next(line for line in started.stderr if "resume: " in line)
        started.terminate()
        started.stderr.read()
    return line.removeprefix("supervise: ").strip()


def test_a_resume_is_proven_without_a_file_of_the_user_s_changed_and_the_start_says_so(project: Path) -> None:
    (project / "train.py").write_text(COUNTED)
    before = files(project)
    done = drill(project, *RESUMED, "--", "python", "train.py")
    fields = report(done)
    assert (done.returncode, fields["proven"]) == (0, "yes"), done.stdout
    saved = re.search(r"a checkpoint was saved after step (\d+); rank 0 was killed after step \d+ -+$", done.stdout, re.MULTILINE)
    assert saved
    assert fields["loaded"] == f"ckpt/step-{int(saved[1]):08d}.pt, saved after step {saved[1]}"
    assert re.fullmatch(r"the same \d+ as in the first attempt", fields["losses"])
    assert files(project) == before
    assert not list((project / ".supervise").glob(".drill-*"))
    line = opening(project, *RESUMED, "--", "python", "train.py")
    assert re.fullmatch(r"resume: proven on \d{4}-\d\d-\d\d for this command \(checkpoint, losses\)", line)


def test_a_write_outside_of_the_scratch_directory_is_refused_by_the_kernel(tmp_path: Path) -> None:
    place, result = tmp_path / "project", tmp_path / "results" / "last.pt"
    place.mkdir()
    result.parent.mkdir()
    result.write_text("the result of a week")
    (place / "train.py").write_text(f"import os\nos.system('rm -f {result}')\nopen({str(result)!r}, 'w')\n")
    done = drill(place, "--", "python", "train.py")
    assert done.returncode == 1
    assert result.read_text() == "the result of a week"
    assert "drill resume: the job failed (rank 0 raised PermissionError: [Errno 13] Permission denied" in done.stdout
    assert "--writable DIR" in report(done)["advice"]
    assert (place / ".supervise").exists()
    kept = re.search(r"--state-dir (\S+)$", done.stdout, re.MULTILINE)
    assert kept
    assert [path.name for path in Path(kept[1]).parent.iterdir()] == ["state"]


@pytest.mark.slow
def test_two_ranks_that_load_the_same_checkpoint_are_proven(project: Path) -> None:
    (project / "train.py").write_text(COUNTED)
    done = drill(project, *RESUMED, "--", "torchrun", "--standalone", "--nproc-per-node=2", "train.py")
    rows = report(done)
    assert (done.returncode, rows["proven"]) == (0, "yes"), done.stdout
    assert re.fullmatch(r"ckpt/step-0*(\d+)\.pt on 2 ranks, saved after step \1", rows["loaded"])


@pytest.mark.slow
def test_a_script_that_loads_its_weights_alone_is_not_proven(project: Path) -> None:
    (project / "train.py").write_text(COUNTED.replace('optimizer.load_state_dict(content["optimizer"]); ', ""))
    done = drill(project, *RESUMED, "--", "python", "train.py")
    rows = report(done)
    assert (done.returncode, rows["proven"]) == (1, "no"), done.stdout
    assert re.match(r"ckpt/step-0*\d+\.pt, saved after step \d+", rows["loaded"])
    assert "the first is the same, the next is" in rows["losses"]


@pytest.mark.slow
def test_a_script_that_is_given_nothing_and_starts_from_scratch_is_not_proven(project: Path) -> None:
    done = drill(project, "--", *TRAIN)
    fields = report(done)
    assert (done.returncode, fields["proven"]) == (1, "no"), done.stdout
    assert fields["loaded"].startswith("no: ")
    assert fields["losses"] == "those of the beginning: it started from scratch"
    assert (
        opening(project, "--", *TRAIN)
        == "resume: not tested yet whether this command resumes; `supervise drill resume -- CMD` tests it in about a minute"
    )


@pytest.mark.slow
def test_a_script_that_never_saves_is_given_up_after_the_deadline(project: Path) -> None:
    done = drill(project, "--deadline-s=20", "--", *TRAIN[:-2], "--print-losses", "--save-every=0")
    assert done.returncode == 1
    assert "20 s were over before a checkpoint was saved; nothing is proven" in done.stdout


#: Ranks that exchange their gradients by hand, print their loss and report their step.
COUNTED = (
    light.IMPORT
    + """
import os, time, torch, torch.distributed as dist
from supervisor import worker
dist.init_process_group("gloo", **({} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}))
torch.manual_seed(3)
model = torch.nn.Linear(4, 4)
optimizer = light_sgd(torch, model.parameters())
step = 0
os.makedirs("ckpt", exist_ok=True)
if "--resume" in sys.argv:
    content = torch.load(sys.argv[sys.argv.index("--resume") + 1], weights_only=True)
    model.load_state_dict(content["model"]); optimizer.load_state_dict(content["optimizer"]); step = content["step"]
while True:
    optimizer.zero_grad()
    loss = (model(inputs := torch.randn(2, 4, generator=torch.Generator().manual_seed(step))) - inputs).square().mean(); loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad); parameter.grad /= dist.get_world_size()
    optimizer.step(); step += 1
    worker.heartbeat(step); print(f"step {step} loss {loss.item():.6f}")
    time.sleep(0.02)
    if step % 100 == 5 and dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"ckpt/new-{step}")
        os.replace(f"ckpt/new-{step}", f"ckpt/step-{step:08d}.pt")
"""
)
