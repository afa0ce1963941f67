"""The examples of docs/guides/training-scripts.md: killed, asked to stop, and run alone, they resume and end with the same weights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

EXAMPLE = Path(__file__).parents[3] / "examples" / "resumable.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
WEIGHTS = re.compile(r"rank 0 done: weights (\S+)")

pytestmark = pytest.mark.process


def start(words: list[str], cwd: Path, log: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "RANK", "WORLD_SIZE", "LOCAL_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    with (cwd / log).open("wb") as out:
        return subprocess.Popen(words, cwd=cwd, env={**kept, "OMP_NUM_THREADS": "1"}, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603 -- ours


def finish(process: subprocess.Popen[bytes], cwd: Path, log: str, code: int = 0) -> str:
    try:
        process.wait(90)
    finally:
        process.kill()
    text = (cwd / log).read_text()
    assert process.returncode == code, text
    return text


def weights_after(steps: int, cwd: Path) -> str:
    """Return what an uninterrupted run by two ranks ends with."""
    words = [*TORCHRUN, str(EXAMPLE), "--dir", "whole", f"--steps={steps}"]
    match = WEIGHTS.search(finish(start(words, cwd, "whole.log"), cwd, "whole.log"))
    assert match
    return match[1]


@pytest.mark.slow
def test_the_first_example_of_the_page_runs_as_it_stands_and_resumes(tmp_path: Path) -> None:
    page = EXAMPLE.parents[1] / "docs" / "guides" / "training-scripts.md"
    program = page.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "train.py").write_text(program)
    for attempt in ("first", "second"):
        finish(start([sys.executable, "train.py"], tmp_path, attempt), tmp_path, attempt)
        names = sorted(path.name for path in (tmp_path / "ckpt").iterdir())
        assert names == ["step-00001000.pt", "step-00002000.pt", "step-00003000.pt"]


@pytest.mark.slow
def test_under_supervise_a_rank_that_is_killed_costs_the_steps_since_the_last_save(tmp_path: Path) -> None:
    weights = weights_after(60, tmp_path)
    job = ["torchrun", "--standalone", "--nproc-per-node=2", str(EXAMPLE), "--steps=60", "--save-every=5", "--step-ms=50"]
    process = start(["supervise", "--state-dir", str(tmp_path / "state"), "--", *job], tmp_path, "log")
    try:
        log = tmp_path / "log"
        wait_for(lambda: "step 20/60" in log.read_text(), "step 20", 60, alive=lambda: process.poll() is None)
        pid = re.search(r"rank 0 pid (\d+) starts at step 0 from scratch", log.read_text())
        assert pid
        os.kill(int(pid[1]), signal.SIGKILL)
        text = finish(process, tmp_path, "log")
    finally:
        process.terminate()
    resumed = re.findall(r"rank (\d) pid \d+ starts at step (\d+) from (step-\d+\.pt)", text)
    assert {rank for rank, _, _ in resumed} == {"0", "1"}, text
    assert len({step for _, step, _ in resumed}) == 1, text
    assert int(resumed[0][1]) >= 20, text
    assert weights in text, text
    assert max(path.name for path in (tmp_path / "ckpt").iterdir()) == "step-00000060.pt"


@pytest.mark.slow
def test_a_stopped_job_saves_and_the_next_start_continues_there(tmp_path: Path) -> None:
    job = ["torchrun", "--standalone", "--nproc-per-node=2", str(EXAMPLE), "--steps=60", "--save-every=1000", "--step-ms=50"]
    words = ["supervise", "--state-dir", str(tmp_path / "state"), "--", *job]
    process = start(words, tmp_path, "log")
    try:
        wait_for(lambda: "step 20/60" in (tmp_path / "log").read_text(), "step 20", 60, alive=lambda: process.poll() is None)
        process.terminate()
        finish(process, tmp_path, "log", 75)
    finally:
        process.kill()
    (saved,) = (tmp_path / "ckpt").glob("step-????????.pt")
    text = finish(start(words, tmp_path, "again"), tmp_path, "again")
    assert len(re.findall(rf"starts at step {int(saved.stem[5:])} from {saved.name}", text)) == 2, text


@pytest.mark.slow
def test_the_example_runs_without_torchrun_and_the_supervisor(tmp_path: Path) -> None:
    alone = [sys.executable, str(EXAMPLE), "--save-every=10"]
    assert "starts at step 0 from scratch" in finish(start([*alone, "--steps=20"], tmp_path, "one"), tmp_path, "one")
    newest = tmp_path / "ckpt" / "step-00000020.pt"
    os.truncate(newest, newest.stat().st_size - 100)
    text = finish(start([*alone, "--steps=30"], tmp_path, "two"), tmp_path, "two")
    assert "starts at step 10 from step-00000010.pt" in text
    assert re.search(r"passed over \S+/step-00000020.pt: ", text)
