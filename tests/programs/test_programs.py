"""Real programs, with the options of known-programs.md or none, and each fault of the table: nothing is lost, the cause is right."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpointing.mounts import tmpfs
from tests.programs.program_runs import Drive, judge
from tests.programs.table import FAULTS, PROGRAMS, Cell, cells

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs.table import TrainingProgram
    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process
PROGRAM = {program.name: program for program in PROGRAMS}
FAULT = {fault.name: fault for fault in FAULTS}


def _case(cell: Cell) -> object:
    marks = [pytest.mark.timeout(300) if cell.fast else pytest.mark.slow]
    if cell.wrong:
        marks.append(pytest.mark.xfail(strict=True, reason=cell.wrong))
    elif cell.unseen:
        marks.append(pytest.mark.xfail(strict=False, reason="not run yet"))
    return pytest.param(cell, id=f"{cell.program}-{cell.fault}", marks=marks)


@pytest.mark.parametrize("cell", [_case(cell) for cell in cells()])
def test_no_work_is_lost_and_the_cause_is_right(
    supervise: Callable[..., Supervised], tmp_path: Path, bare: Callable[[TrainingProgram], dict[str, Any]], cell: Cell
) -> None:
    program, fault = PROGRAM[cell.program], FAULT[cell.fault]
    wanted = bare(program)
    small = tmpfs(tmp_path / program.directory, 1 << 20) if fault.act == "fill" else contextlib.nullcontext()
    with small:
        drive = Drive(program, fault, supervise, tmp_path)
        judge(drive, drive.act(), wanted)


def test_each_program_gets_its_three_faults_and_each_fault_is_put_into_two() -> None:
    pairs = [(cell.program, cell.fault) for cell in cells()]
    assert all((program, fault) in pairs for program in PROGRAM for fault in ("torn", "term", "oom"))
    assert all(sum(name == fault for _, name in pairs) >= 2 for fault in FAULT)
    assert len(pairs) == len(set(pairs))


def test_the_table_in_the_readme_is_that_of_the_tests() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "bench/faults.py", "--check"], cwd=root, timeout=60, check=False)
    assert done.returncode == 0, "run `python bench/faults.py`"
