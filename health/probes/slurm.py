"""Where in a Slurm job this process runs, by its variables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The variables that `place` reads.
NAMES: Final = ("SLURM_JOB_ID", "SLURM_STEP_ID")
#: slurm.h: steps that srun did not start have numbers from here on: the batch script, the shell of salloc, what ssh brought in.
_FIRST_SPECIAL: Final = 0xFFFF_FFF0


def place(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the numbers of the job and of the step that srun started: "" where there is none."""
    job, step = (environ.get(name, "") for name in NAMES)
    is_step = job and step.isascii() and step.isdecimal() and int(step) < _FIRST_SPECIAL
    return job, step if is_step else ""
