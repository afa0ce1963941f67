"""Where in a Slurm job this process runs, by its variables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACE: Final = ("SLURM_JOB_ID", "SLURM_STEP_ID")
_TASKS: Final = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES")
#: The variables that are read here.
NAMES: Final = (*_PLACE, *_TASKS)
#: slurm.h: steps that srun did not start have numbers from here on: the batch script, the shell of salloc, what ssh brought in.
_FIRST_SPECIAL: Final = 0xFFFF_FFF0


def place(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the numbers of the job and of the step that srun started: "" where there is none."""
    job, step = (environ.get(name, "") for name in _PLACE)
    is_step = job and step.isascii() and step.isdecimal() and int(step) < _FIRST_SPECIAL
    return job, step if is_step else ""


def missing_tasks(environ: Mapping[str, str]) -> str:
    """Return that fewer tasks run than SLURM_NTASKS_PER_NODE promises a script (Lightning #20391); "" where that is not so."""
    tasks, on_each, nodes = (int(text) if (text := environ.get(name, "")).isascii() and text.isdecimal() else 0 for name in _TASKS)
    wanted = on_each * max(nodes, 1)
    if not 0 < tasks < wanted:
        return ""
    return (
        f"Slurm runs {tasks} {'task' if tasks == 1 else 'tasks'} (SLURM_NTASKS), and SLURM_NTASKS_PER_NODE says {on_each}: a script that"
        f" takes its world size from the latter waits for ranks that nobody starts; give --ntasks={wanted}, or start them with torchrun"
    )
