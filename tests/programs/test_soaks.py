"""Real programs under `supervise drill soak`: they come back from each fault, and their losses are those of a quiet run.

SOAK_MINUTES says how long each soak takes; without it one program has a short soak.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.programs.program_runs import environment, lay_out
from tests.programs.table import PROGRAMS
from tests.support.own_processes import alone
from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

LONG_MINUTES = os.environ.get("SOAK_MINUTES")
MINUTES = float(LONG_MINUTES or 3)
STEPS, EVERY, RATE = 1_000_000, 50, 240
#: A loop of its own whose saves overwrite one file, the HF Trainer, and FSDP2 with a directory for each save.
NAMES = ("nanogpt-torchrun", "hf", "fsdp") if LONG_MINUTES else ("nanogpt",)
LONG = {"PROGRAM_STEPS": str(STEPS), "PROGRAM_EVERY": str(EVERY), "PROGRAM_PRINTS": "1", "PYTHONUNBUFFERED": "1"}

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(int(MINUTES * 60) + 600)]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_comes_back_from_each_fault_of_a_soak_and_its_losses_are_those_of_a_quiet_run(tmp_path: Path, name: str) -> None:
    program = next(program for program in PROGRAMS if program.name == name)
    place = lay_out(program, tmp_path / "program")
    longer = [word.format(steps=STEPS, every=EVERY) for word in program.longer]
    order = [f"--hours={MINUTES / 60:.4f}", f"--rate={RATE}", "--seed=1"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        done = subprocess.run(  # noqa: S603  the program under test
            [*alone(), "supervise", *program.options, "drill", "soak", *order, "--", *program.command, *longer],
            cwd=place,
            env=clean_environment(COLUMNS="200", **environment(program), **LONG),
            stdout=out,
            stderr=err,
            check=False,
        )
    text = (tmp_path / "out").read_text(errors="replace")
    report = text[text.rfind("drill soak: ") :]
    print(f"{name}:\n{report}")  # noqa: T201  the figures, with pytest -s
    assert done.returncode == 0, report + (tmp_path / "err").read_text(errors="replace")[-4000:]
    assert "the job came back from each ---" in report
    assert re.search(r"\n  losses +the same as in the quiet run at ", report)
    assert not [line for line in report.splitlines() if line.endswith("  no")], "a fault got another cause"
