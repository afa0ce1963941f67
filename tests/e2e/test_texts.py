"""Texts that guides quote, as a script writes them: one cause while the job runs and from its log. Each has a near-miss beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import preloaded
from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

SCRIPT = """
import sys
class DistBackendError(RuntimeError):
    __module__ = "torch.distributed"
{body}
"""


def leaves_after(line: str) -> str:
    return f"print({line!r}, file=sys.stderr)\nsys.exit(1)"


def losses(figure: str) -> str:
    return f"for step in range(9):\n    print('step', step, {figure!r})\nsys.exit(1)"


CHAIN = "try:\n    {{}}['labels']\nexcept KeyError as error:\n    raise RuntimeError('training failed') from {cause}"
#: What the script does, its cause, and what the card says beside it.
TEXTS = {
    "NCCL timeout": ("raise DistBackendError('NCCL timeout after 1800 seconds')", "nccl_timeout", ""),
    "near: its setting": ("raise ValueError('NCCL timeout must be positive')", "user_code", ""),
    "NCCL warns": (leaves_after("n1:41:77 [0] NCCL WARN Unhandled System Error while waiting for event"), "nccl_network", ""),
    "near: about NCCL's warnings": (leaves_after("NCCL WARN marks a warning, and ends nothing"), "unknown", ""),
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
#: That which a whole run is made with: a chain, and the root of it on the card. The texts of all causes are read by tests/corpus.
RUN = "the root of a chain"

pytestmark = [pytest.mark.process, pytest.mark.slow]


def cause_of(log: Path) -> str:
    """Return what `supervise classify` makes of a log, or "unknown" where nothing in it failed: an exit code is in no output."""
    done = preloaded.command("classify", "--json", log.name, cwd=log.parent, environ=clean_environment())
    assert done.returncode == 0, done.stderr
    cause: str = json.loads(done.stdout)["cause"]
    return "unknown" if cause == "none" else cause


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_one_cause_in_its_log(tmp_path: Path, name: str) -> None:
    body, cause, shown = TEXTS[name]
    (tmp_path / "train.py").write_text(SCRIPT.format(body=body))
    words = [sys.executable, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # noqa: S603  a script of ours
    assert done.returncode > 0
    (tmp_path / "job.log").write_bytes(done.stdout)
    assert cause_of(tmp_path / "job.log") == cause
    if "install" in shown:
        page = preloaded.command("classify", "job.log", cwd=tmp_path, environ=clean_environment())
        assert shown.lower() in " ".join(page.stdout.decode().split()).lower(), "a card and a page begin it differently"


def test_a_text_has_the_same_cause_while_the_job_runs(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    body, cause, shown = TEXTS[RUN]
    (tmp_path / "train.py").write_text(SCRIPT.format(body=body))
    run = supervise("python", "train.py")
    assert run.exit_code() > 0
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    assert {line["cause"] for line in lines if line["event"] == "plan.decided"} == {cause}
    assert shown in " ".join(run.stderr.split())
    written = b"".join(path.read_bytes() for path in run.state.glob("*/nodes/*/attempts/0001/rank-0.*"))
    (tmp_path / "job.log").write_bytes(written)
    assert cause_of(tmp_path / "job.log") == cause
