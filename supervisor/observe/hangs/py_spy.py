"""Python stacks by py-spy, where it is installed: of processes that do not catch our signal.

It stops the process for some milliseconds, and cannot read one that is stopped already. With `--native` it takes seconds: not here.
"""

from __future__ import annotations

import shutil
import subprocess

from supervisor.observe.hangs.frames import ThreadStack, parse_py_spy

PROGRAM = "py-spy"


def stacks(pid: int, *, deadline_s: float) -> tuple[tuple[ThreadStack, ...], str]:
    """Return the stacks of a process, or none and the reason."""
    program = shutil.which(PROGRAM)
    if program is None:
        return (), "py-spy is not installed"
    try:
        done = subprocess.run(  # noqa: S603 - found on PATH, with a number
            [program, "dump", "--json", "--pid", str(pid)], capture_output=True, text=True, timeout=max(deadline_s, 0.1), check=False
        )
    except subprocess.TimeoutExpired:
        return (), f"py-spy did not end within {deadline_s:.0f} s"
    except OSError as error:
        return (), f"py-spy: {error.strerror}"
    found = parse_py_spy(done.stdout)
    return found, "" if found else f"py-spy: {(done.stderr.strip().splitlines() or ['it printed no stacks'])[-1]}"
