"""The example of unequal GPUs under supervise: a rank is killed, and the weights are those of one process with the whole batch."""
# ruff: noqa: RUF001  the sign of a product

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.waiting import wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "uneven_ddp.py"
PLAN = ("--knob", "batch_size:8=env:SUPERVISE_JOB_BATCH_SIZE", "--knob", "grad_accum:planned:48=plan:2.5,1")

pytestmark = [pytest.mark.process, pytest.mark.slow]


def start(words: list[str], cwd: Path, log: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "RANK", "WORLD_SIZE", "LOCAL_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    with (cwd / log).open("wb") as out:
        return subprocess.Popen(words, cwd=cwd, env={**kept, "OMP_NUM_THREADS": "1"}, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603  ours


def weights(text: str) -> set[float]:
    return {float(match) for match in re.findall(r"rank \d done: weights (\S+)", text)}


def test_a_killed_rank_and_unequal_shares_leave_the_weights_of_one_process_with_the_whole_batch(tmp_path: Path) -> None:
    alone = preloaded.run(str(EXAMPLE), f"--dir={tmp_path / 'alone'}", "--steps=60")
    assert alone.returncode == 0, alone.stderr
    (expected,) = weights(alone.stdout)

    job = ["torchrun", "--standalone", "--nproc-per-node=2", str(EXAMPLE), "--steps=60", "--save-every=5", "--step-ms=50"]
    process = start(["supervise", "--state-dir", str(tmp_path / "state"), *PLAN, "--", *job], tmp_path, "log")
    log = tmp_path / "log"
    try:
        wait_for(lambda: "saved step 20" in log.read_text(), "step 20", 60, alive=lambda: process.poll() is None)
        pid = re.search(r"rank 1 pid (\d+) starts at step 0", log.read_text())
        assert pid
        os.kill(int(pid[1]), signal.SIGKILL)
        assert process.wait(90) == 0, log.read_text()
    finally:
        process.terminate()
    text = log.read_text()
    assert "the global batch is shared by the speeds 2.5, 1: 6 × (6 + 2) = 48" in text, text
    started = re.findall(r"rank (\d) pid \d+ starts at step (\d+) with (\d+ x \d+) samples", text)
    assert {(rank, shares) for rank, _, shares in started} == {("0", "6 x 6"), ("1", "6 x 2")}, text
    assert sum(int(step) >= 20 for _, step, _ in started) == 2, text
    assert list(weights(text)) == [pytest.approx(expected, abs=2e-5)], text
