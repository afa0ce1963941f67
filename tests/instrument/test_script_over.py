"""A rank says when its script is over: before the interpreter waits for threads, and before what atexit has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.job.clock import Clock
from supervisor.observe.collect import beats
from tests.jobs import light

if TYPE_CHECKING:
    from pathlib import Path

    from tests.instrument.conftest import Attempt

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("script", "code", "is_over"),
    [
        pytest.param("", 0, True, id="it ran to its end"),
        pytest.param("import sys; sys.exit(0)", 0, True, id="it left by sys.exit"),
        pytest.param("import atexit, os; atexit.register(os.abort)", -6, True, id="an abort in atexit"),
        pytest.param(
            "import os; threading.Thread(target=lambda: (threading.main_thread().join(), os._exit(7))).start()", 7, True, id="a thread"
        ),
        pytest.param("raise ValueError", 1, False, id="an exception"),
        pytest.param("import sys; sys.excepthook = print; raise ValueError", 1, False, id="an exception that another hook takes"),
        pytest.param("import os; os._exit(0)", 0, False, id="os._exit"),
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, False, id="a signal"),
    ],
)
def test_the_end_of_a_script(attempt: Attempt, tmp_path: Path, script: str, code: int, is_over: bool) -> None:  # noqa: FBT001  a fact
    path = tmp_path / "train.py"
    path.write_text(f"import threading\n{script}\n")
    assert attempt.run(str(path), env=attempt.env(RANK="0")).returncode == code
    (beat,) = attempt.beats()
    assert beat.script_over is is_over
    facts = beats(attempt.directory / "heartbeat", Clock.start())
    assert ("script_over" in {fact.name for fact in facts}) is is_over


GROUP = f"""
{light.IMPORT}
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
weight = torch.nn.Parameter(torch.ones(1))
optimizer = light_sgd(torch, [weight])
def step():
    weight.sum().backward()
    optimizer.step()
step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "is_over"),
    [
        pytest.param("dist.destroy_process_group()", True, id="it gave up its group"),
        pytest.param("dist.destroy_process_group(); step()", False, id="and trained on", marks=pytest.mark.slow),
        pytest.param(
            "try:\n    raise ValueError\nfinally:\n    dist.destroy_process_group()", False, id="after an exception", marks=pytest.mark.slow
        ),
    ],
)
def test_the_end_of_the_process_group(attempt: Attempt, tmp_path: Path, then: str, is_over: bool) -> None:  # noqa: FBT001  a fact
    path = tmp_path / "train.py"
    indented = then.replace("\n", "\n    ")
    path.write_text(f"{GROUP}import os\ntry:\n    {indented}\nfinally:\n    os._exit(0)\n")
    attempt.run(str(path), env=attempt.env(RANK="0"))
    (beat,) = attempt.beats()
    assert beat.steps > 0
    assert beat.script_over is is_over
