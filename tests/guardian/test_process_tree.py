"""Who our children are, by the kernel's own list."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

#: Run in a process of its own: a test's process may have any children.
CHILDREN = """
    import os, signal
    from supervisor.guardian.libc import become_subreaper
    from supervisor.guardian.process_tree import has_only

    become_subreaper()
    assert has_only(())
    read, write = os.pipe()
    command = os.fork()
    if command == 0:
        helper = os.fork()
        if helper == 0:
            signal.pause()
        os.write(write, b"%d" % helper)
        signal.pause()
    helper = int(os.read(read, 20))
    assert has_only({command}), "a helper descends from the command"
    assert not has_only(())
    other = os.fork()
    if other == 0:
        os._exit(0)
    os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
    assert not has_only({command}), "one that has ended and is not reaped"
    os.waitpid(other, 0)
    assert has_only({command})
    os.kill(command, signal.SIGKILL)
    os.waitid(os.P_PID, command, os.WEXITED | os.WNOWAIT)
    assert not has_only({command}), "the helper came to us when the command died"
    os.kill(helper, signal.SIGKILL)
    for pid in (command, helper):
        os.waitpid(pid, 0)
    assert has_only(())
"""


def test_a_process_has_only_the_children_that_it_spares() -> None:
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        pytest.skip("this kernel does not list children: it needs CONFIG_PROC_CHILDREN")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", textwrap.dedent(CHILDREN)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
