"""Jobs that do not hang are never called hung, though each hang is to be ended and the limits are ten times shorter.

Here are the examples, the demo and a few programs; `pytest --eager-hangs tests/programs` runs each cell of known-programs.md so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import EAGER, clean_environment
from tests.jobs.working_names import WORKS
from tests.pathologies.hanging_jobs import taken
from tests.programs.program_runs import Drive, judge
from tests.programs.table import FAULTS, PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Supervised
    from tests.programs.table import TrainingProgram

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
PROGRAM = {program.name: program for program in PROGRAMS}
FAULT = {fault.name: fault for fault in FAULTS}

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.eager_hangs, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    "words", [("train_ddp.py", "--steps=400"), ("resumable.py", "--steps=600", "--step-ms=20")], ids=lambda words: words[0]
)
def test_an_example(supervise: Callable[..., Supervised], words: tuple[str, ...]) -> None:
    run = supervise(*TORCHRUN, str(EXAMPLES / words[0]), *words[1:])
    assert run.exit_code() == 0
    assert run.attempts() == 1


def test_the_demo(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**clean_environment(**EAGER), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = [sys.executable, "examples/demo.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    journals = [path.read_text() for path in tmp_path.glob("demo-run/state/*/nodes/*/journal.jsonl")]
    assert journals
    assert not any('"event":"HangConfirmed"' in journal for journal in journals)


@pytest.mark.parametrize(
    ("program", "fault"), [("plain", "kill"), ("numpy", "supervisor"), ("elastic", "worker"), ("fsdp", "torn"), ("nanogpt", "term")]
)
def test_a_program(
    supervise: Callable[..., Supervised], tmp_path: Path, bare: Callable[[TrainingProgram], dict[str, Any]], program: str, fault: str
) -> None:
    wanted = bare(PROGRAM[program])
    drive = Drive(PROGRAM[program], FAULT[fault], supervise, tmp_path)
    judge(drive, drive.act(), wanted)


WORKING = Path(__file__).parents[1] / "jobs" / "working.py"


@pytest.mark.parametrize("at", [40, 0], ids=["between steps", "before the first step"])
@pytest.mark.parametrize("work", WORKS)
def test_what_works_in_one_place_that_looks_like_waiting(supervise: Callable[..., Supervised], work: str, at: int) -> None:
    """No GPU is among them: a kernel that computes for long is not to be had here (`make gpu`)."""
    short = {**EAGER, "SUPERVISE_HANG_PHASE_S": EAGER["SUPERVISE_HANG_TRAIN_S"]} if at == 0 else {}
    run = supervise(*TORCHRUN, str(WORKING), f"--work={work}", f"--at={at}", **short)
    assert run.exit_code(120) == 0
    assert run.attempts() == 1
    assert not taken(run, "HangConfirmed")
    assert taken(run, "HangSuspected") or work == "sleep", "it looked like a hang, or this shows nothing"
