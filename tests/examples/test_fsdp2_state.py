"""The FSDP2 example under supervise: a rank is killed, and the run ends with the weights of an undisturbed run."""

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

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_state.py"
WEIGHTS = re.compile(r"rank 0 done: weights (\S+)")

pytestmark = [pytest.mark.process, pytest.mark.slow]


def start(words: list[str], cwd: Path, log: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "RANK", "WORLD_SIZE", "LOCAL_"))}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    with (cwd / log).open("wb") as out:
        return subprocess.Popen(words, cwd=cwd, env={**kept, "OMP_NUM_THREADS": "1"}, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603  ours


def finish(process: subprocess.Popen[bytes], cwd: Path, log: str) -> str:
    try:
        process.wait(120)
    finally:
        process.kill()
    text = (cwd / log).read_text()
    assert process.returncode == 0, text
    return text


def test_a_rank_that_is_killed_costs_the_steps_since_the_last_save_and_no_bit(tmp_path: Path) -> None:
    script = [str(EXAMPLE), "--steps=60", "--save-every=5"]
    undisturbed = WEIGHTS.search(preloaded.run(*script, f"--dir={tmp_path / 'whole'}", ranks=2).stdout)
    assert undisturbed

    torchrun = ["torchrun", "--standalone", "--nproc-per-node=2", *script]
    words = ["supervise", "--state-dir", str(tmp_path / "state"), "--", *torchrun, "--step-ms=50"]
    process = start(words, tmp_path, "log")
    try:
        log = tmp_path / "log"
        wait_for(lambda: "step 20/60" in log.read_text(), "step 20", alive=lambda: process.poll() is None)
        pid = re.search(r"rank 1 pid (\d+) starts at step 0", log.read_text())
        assert pid
        os.kill(int(pid[1]), signal.SIGKILL)
        text = finish(process, tmp_path, "log")
    finally:
        process.terminate()
    resumed = re.findall(r"rank (\d) pid \d+ starts at step ([1-9]\d*)", text)
    assert sorted(rank for rank, _ in resumed) == ["0", "1"], text
    assert len({step for _, step in resumed}) == 1, text
    assert int(resumed[0][1]) >= 20, text
    assert undisturbed[0] in text, text
    assert max(path.name for path in (tmp_path / "ckpt").iterdir()) == "step-00000060"
