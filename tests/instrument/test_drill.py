"""The fault of a drill strikes in a drill alone: a production run does not react to an order that lies in the job's directory."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.drill.faults import SHIM
from tests.jobs import light

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Attempt

pytestmark = pytest.mark.process

TRAIN = (
    light.IMPORT
    + """
import torch
try:
    import mark
except ImportError:
    print("no sitecustomize of the user")
model = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, model.parameters())
for step in range(3):
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
print("trained", model.weight.isnan().any().item())
"""
)


def run(attempt: Attempt, kind: str, pythonpath: str | None) -> tuple[str, str]:
    """Order a fault at the second step, and return what the training printed."""
    (attempt.job_dir / "drill").write_text(json.dumps({"kind": kind, "step": 1, "rank": 3}))
    done = attempt.run("-c", TRAIN, env=attempt.env(pythonpath=pythonpath, RANK="3", LOCAL_RANK="0"))
    return done.stdout, done.stderr


@pytest.mark.slow
def test_without_the_drill_s_shim_an_order_has_no_effect(attempt: Attempt) -> None:
    assert run(attempt, "oom", None) == ("no sitecustomize of the user\ntrained False\n", "")
    assert list(attempt.job_dir.glob("drill-*")) == []


@pytest.mark.slow
def test_with_the_drill_s_shim_memory_runs_out_and_the_user_s_sitecustomize_runs_too(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "sitecustomize.py").write_text("import sys; sys.modules['mark'] = sys\n")
    stdout, stderr = run(attempt, "oom", f"{SHIM}{os.pathsep}{tmp_path / 'user'}")
    assert "OutOfMemoryError: CUDA out of memory." in stderr
    assert stdout == ""
    assert json.loads((attempt.job_dir / "drill-struck-3").read_text())["step"] == 1
    assert attempt.beats()[0].steps == 1


@pytest.mark.slow
def test_with_the_drill_s_shim_the_gradients_become_nan(attempt: Attempt) -> None:
    assert run(attempt, "nan", str(SHIM)) == ("no sitecustomize of the user\ntrained True\n", "")


def test_a_rank_that_has_imported_the_optimizers_already_as_a_standby_has_is_struck_too(attempt: Attempt) -> None:
    (attempt.job_dir / "drill").write_text(json.dumps({"kind": "nan", "step": 1, "rank": None}))
    hand_over = f"import sys, torch.optim; sys.path.append({str(SHIM)!r}); import _supervise_drill, _supervise_shim\n"
    done = attempt.run_forked("-c", f"{hand_over}_supervise_drill.prepare(_supervise_shim.instrument)\n{TRAIN}")
    assert done.stdout.endswith("trained True\n"), done.stderr
