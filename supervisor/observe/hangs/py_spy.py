"""Python stacks by py-spy, where it is installed: of processes that do not catch our signal.

It reads without stopping the process: one that waits for a dead file system cannot be stopped, and one that makes no progress need not be.
With `--native` it takes seconds: not here.
"""

from __future__ import annotations

import shutil

from supervisor.launch.system_command import run_system_command
from supervisor.observe.hangs.frames import ThreadStack, parse_py_spy

PROGRAM = "py-spy"


def stacks(pid: int, *, deadline_s: float) -> tuple[tuple[ThreadStack, ...], str]:
    """Return the stacks of a process, or none and the reason."""
    program = shutil.which(PROGRAM)
    if program is None:
        return (), "py-spy is not installed"
    answer = run_system_command([program, "dump", "--nonblocking", "--json", "--pid", str(pid)], deadline_s)
    if answer is None:
        return (), "py-spy did not end in time"
    threads = parse_py_spy(answer.text)
    return threads, "" if threads else f"py-spy ended with {answer.code} and no stacks"
