"""A training whose weights turn NaN without an exception: it runs to its end, and nobody is left in the dark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.selfresuming import fast

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("short_intervals")]

SCRIPT = """
import os, sys, time, torch
os.makedirs("ckpt", exist_ok=True)
print("resumed from", sys.argv[1:], flush=True)
for step, number in ((100, 1.0), (200, float("nan"))):
    torch.save({"model": {"w": torch.tensor([1.0, number, 3.0])}, "step": step}, f"ckpt/step_{step}.pt")
while not os.path.exists("go"):
    time.sleep(0.05)
if len(sys.argv) == 1:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_weights_that_turn_nan_are_reported_while_it_runs_and_at_exit_0(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--checkpoints", "ckpt/*.pt", "--resume-args", "{resume}", "--config", str(fast(tmp_path))]
    run = supervise(sys.executable, "train.py", options=options)
    run.wait_for_line("the last finite one is of step 100")
    assert "model.w is not finite: NaN at element 1" in run.status()["numbers"]
    (tmp_path / "go").touch()
    assert run.exit_code() == 0
    assert run.stdout.splitlines() == ["resumed from []", f"resumed from ['{tmp_path}/ckpt/step_100.pt']"]
    assert "step_200.pt: its weights hold NaN" in run.stderr
    assert "torn" not in run.stderr
    assert "check the loss before you use the result" in run.stderr.splitlines()[-2]
