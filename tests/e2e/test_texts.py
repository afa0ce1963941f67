"""Texts that guides quote, as a script writes them: one cause while the job runs and from its log. Each has a near-miss beside it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised

SCRIPT = """
import sys
class DistBackendError(RuntimeError):
    __module__ = "torch.distributed"
{body}
"""


def leaves_after(line: str) -> str:
    return f"print({line!r}, file=sys.stderr)\nsys.exit(1)"


def losses(one: str) -> str:
    return f"for step in range(9):\n    print('step', step, {one!r})\nsys.exit(1)"


CHAIN = "try:\n    {{}}['labels']\nexcept KeyError as error:\n    raise RuntimeError('training failed') from {cause}"
#: What the script does, its cause, and what the card says beside it.
TEXTS = {
    "NCCL timeout": ("raise DistBackendError('NCCL timeout after 1800 seconds')", "nccl_timeout", ""),
    "near: its setting": ("raise ValueError('NCCL timeout must be positive')", "user_code", ""),
    "NCCL warns": (leaves_after("n1:41:77 [0] NCCL WARN Unhandled System Error while waiting for event"), "nccl_network", ""),
    "near: about NCCL's warnings": (leaves_after("NCCL WARN marks a warning; an unhandled system error is one"), "unknown", ""),
    "empty file": ("raise RuntimeError('Checkpoint file is empty: /ckpt/step_100.pt')", "checkpoint_corrupt", ""),
    "near: no file": ("raise RuntimeError('Checkpoint file is missing: /ckpt/step_100.pt')", "user_code", ""),
    "corrupted file": ("raise ValueError('Corrupted file in checkpoint: /ckpt/step_100/model.pt')", "checkpoint_corrupt", ""),
    "near: another file": ("raise ValueError('Corrupted file in the list: /data/list.txt')", "user_code", ""),
    "loss=nan": (losses("loss=nan"), "nan_loss", ""),
    "near: loss=0.5": (losses("loss=0.5 val_loss=nan"), "unknown", ""),
    "torchvision": (
        "raise RuntimeError('operator torchvision::nms does not exist')",
        "dependency",
        "`pip install --no-deps 'torchvision==0.N.*'` in the job's environment, where N is torch's minor version plus 15",
    ),
    "near: an operator of its own": ("raise RuntimeError('operator mine::nms does not exist')", "user_code", ""),
    "a missing package": (
        "raise ModuleNotFoundError(\"No module named 'deepspeed'\", name='deepspeed')",
        "dependency",
        "run `pip install deepspeed` in the job's environment",
    ),
    "near: a file of its own": (
        "raise ModuleNotFoundError(\"No module named 'our_models'\", name='our_models')",
        "dependency",
        "install what provides our_models, or correct the import",
    ),
    "the root of a chain": (CHAIN.format(cause="error"), "user_code", "failed: KeyError: 'labels'"),
    "near: one that was handled": (CHAIN.format(cause="None"), "user_code", "failed: RuntimeError: training failed"),
}
#: That which the fast tests run, too: a chain. The texts of all causes are read by tests/corpus and tests/classify.
FAST = ("the root of a chain",)

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TEXTS])
def test_a_text_has_one_cause_while_the_job_runs_and_in_its_log(supervise: Callable[..., Supervised], tmp_path: Path, name: str) -> None:
    body, cause, shown = TEXTS[name]
    (tmp_path / "train.py").write_text(SCRIPT.format(body=body))
    run = supervise(
        "python",
        "train.py",
        options=()
        if shown
        else (
            "--set",
            "restart.max_attempts=1",
        ),
    )  # which would be all that the card says
    assert run.exit_code() > 0
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    assert {line["cause"] for line in lines if line["event"] == "plan.decided"} == {cause}
    assert shown in " ".join(run.stderr.split())
    written = b"".join(path.read_bytes() for path in run.state.glob("*/nodes/*/attempts/0001/rank-0.*"))
    (tmp_path / "job.log").write_bytes(written)
    done = subprocess.run(["supervise", "classify", "--json", "job.log"], cwd=tmp_path, capture_output=True, text=True, check=True)  # noqa: S607
    assert json.loads(done.stdout)["cause"] == ("none" if cause == "unknown" else cause), "an exit code is in no output of a rank"
