"""Ends a child with all that it started in its process group."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess


def kill_group(leader: subprocess.Popen[Any]) -> None:
    """Kill a child that leads a process group (`start_new_session=True`), and the rest of its group where the child has ended.

    A fork that is under way cannot slip away: the kernel signals a group and adds a member to it under one lock.

    The group of a child that was waited for is killed too, unless its number belongs to another process by now. The kernel gives a
    number to a new process only where no process and no group has it, so a new owner of it shows that the group is empty. Example:
    the child ends and is collected, its `sleep` lives on in group 71; no new process gets the number 71, and /proc/71 does not exist.
    """
    if leader.poll() is None or not Path(f"/proc/{leader.pid}").exists():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it is empty, or runs with another user's rights (a set-uid tool)
            os.killpg(leader.pid, signal.SIGKILL)
