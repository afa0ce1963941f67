"""Where in a Slurm job this process runs, by its variables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACE: Final = ("SLURM_JOB_ID", "SLURM_STEP_ID")
_TASKS: Final = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES")
_COMPONENTS: Final = "SLURM_HET_SIZE"
#: The variables that are read here.
NAMES: Final = (*_PLACE, *_TASKS, _COMPONENTS)
#: slurm.h: steps that srun did not start have numbers from here on: the batch script, the shell of salloc, what ssh brought in.
_FIRST_SPECIAL: Final = 0xFFFF_FFF0
_MOST_DIGITS: Final = 18  # Python refuses to read a number of thousands


def job_id(environ: Mapping[str, str]) -> str:
    """Return the job's number as Slurm's tools are asked for it, "" outside of a job: of an array's task 100_7.

    One task of an array has the array's own number as its SLURM_JOB_ID, and by that number scontrol takes all of them: `scontrol requeue
    100` requeues each task (https://slurm.schedmd.com/job_array.html).
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array.isdecimal() and task.isdecimal() else environ.get("SLURM_JOB_ID", "")


def place(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the numbers of the job and of the step that srun started: "" where there is none."""
    job, step = (environ.get(name, "") for name in _PLACE)
    is_step = job and number(environ, _PLACE[1], _FIRST_SPECIAL) < _FIRST_SPECIAL
    return job, step if is_step else ""


def components(environ: Mapping[str, str]) -> int:
    """Return of how many components a heterogeneous job is; 0 for any other job, and outside of a job."""
    return number(environ, _COMPONENTS)


def missing_tasks(environ: Mapping[str, str]) -> str:
    """Return that fewer tasks run than SLURM_NTASKS_PER_NODE promises a script (Lightning #20391); "" where that is not so.

    The components of a heterogeneous job have figures of their own, and their step has those of the first.
    """
    tasks, on_each, nodes = (number(environ, name) for name in _TASKS)
    wanted = on_each * max(nodes, 1)
    if not 0 < tasks < wanted or components(environ):
        return ""
    return (
        f"Slurm runs {tasks} {'task' if tasks == 1 else 'tasks'} (SLURM_NTASKS), and SLURM_NTASKS_PER_NODE says {on_each}: a script that"
        f" takes its world size from the latter waits for ranks that nobody starts; give --ntasks={wanted}, or start them with torchrun"
    )


def lone_task(environ: Mapping[str, str]) -> str:
    """Return that a rank outside of srun is the only one of the tasks that SLURM_NTASKS promises it; "" where that is not so."""
    (job, step), tasks = place(environ), number(environ, _TASKS[0])
    if not job or step or tasks <= 1:
        return ""
    return (
        f"Slurm planned {tasks} tasks for the job (SLURM_NTASKS), and outside of srun one runs: a script that takes its world size from"
        " that waits for ranks that nobody starts"
    )


def number(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    """Return the number that one of Slurm's variables holds; the default where it holds none."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else default
