"""The example, without us: interrupted anywhere and resumed, it ends with the model of an uninterrupted run."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support import preloaded

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

pytestmark = pytest.mark.process


def start(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603  # our own example


def finish(process: subprocess.Popen[str], *, code: int) -> str:
    """Await the end; return what was printed on stdout."""
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, out + err
    return out


def alone(words: list[str]) -> str:
    """Run one process to its end; return what was printed on stdout."""
    done = preloaded.run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digest(output: str) -> str:
    match = re.search(r"model sha256 ([0-9a-f]{64})", output)
    assert match, output
    return match[1]


@pytest.mark.slow
def test_two_ranks_interrupted_by_term_resume_bit_for_bit(tmp_path: Path) -> None:
    script = [*TORCHRUN, str(EXAMPLE), "--steps=120", "--save-every=1000", "--log-every=5"]
    whole = digest(finish(start([*script, "--ckpt-dir=whole"], tmp_path), code=0))

    interrupted = start([*script, "--ckpt-dir=cut"], tmp_path)
    assert interrupted.stdout is not None
    for line in interrupted.stdout:
        if line.startswith("step 10/"):
            break
    interrupted.send_signal(signal.SIGTERM)
    out = finish(interrupted, code=1)  # torchrun's own answer to SIGTERM
    assert "stopped by SIGTERM after step" in out
    (checkpoint,) = (tmp_path / "cut").iterdir()
    step = int(checkpoint.stem.removeprefix("step-"))
    assert 10 <= step < 120

    out = finish(start([*script, "--ckpt-dir=cut", f"--resume={checkpoint}"], tmp_path), code=0)
    assert f"at step {step}: 2 ranks" in out
    assert digest(out) == whole


@pytest.mark.slow
def test_one_process_without_torchrun_resumes_over_an_epoch_with_another_batch_shape(tmp_path: Path) -> None:
    # 100 blocks of text: the 60 steps of 8 samples go round it five times
    checkpoints = tmp_path / "ckpt"
    script = [str(EXAMPLE), "--steps=60", "--save-every=30", "--keep=2", "--corpus-bytes=6500", f"--ckpt-dir={checkpoints}"]
    resumed = f"--resume={checkpoints / 'step-00000030.pt'}"
    whole = digest(alone([*script, "--batch-size=8"]))
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000030.pt", "step-00000060.pt"]
    final = torch.load(checkpoints / "step-00000060.pt", weights_only=True)
    assert final["position"] == 60 * 8

    assert digest(alone([*script, "--batch-size=8", "--workers=1", resumed])) == whole

    halved = digest(alone([*script, "--batch-size=4", "--grad-accum=2", resumed]))
    assert halved != whole  # other dropout masks: the same text, yet not the same bits
    again = torch.load(checkpoints / "step-00000060.pt", weights_only=True)
    assert again["position"] == 60 * 8


@pytest.mark.slow
def test_a_checkpoint_of_another_text_is_refused(tmp_path: Path) -> None:
    script = [str(EXAMPLE), f"--ckpt-dir={tmp_path}", "--steps=1"]
    alone([*script, "--corpus-bytes=6500"])
    refused = preloaded.run(*script, "--corpus-bytes=7000", f"--resume={tmp_path / 'step-00000001.pt'}")
    assert refused.returncode == 1
    assert "trained on another text" in refused.stderr
