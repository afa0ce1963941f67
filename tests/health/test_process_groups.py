"""A child is killed with all its children, whichever ends first; a pid that now belongs to another process is left alone."""

from __future__ import annotations

import subprocess

import pytest

from health.probing.process_groups import kill_group
from tests.support.waiting import is_running, wait_for

pytestmark = pytest.mark.process


@pytest.mark.parametrize("collected", [True, False], ids=["the child was waited for", "the child is a zombie"])
def test_a_process_that_a_child_left_in_its_group_is_killed(collected: bool) -> None:  # noqa: FBT001
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    with child.stdout as out:
        pid = int(out.read())
    if collected:
        child.wait()
    kill_group(child)
    child.wait()
    wait_for(lambda: not is_running(pid), "its end", 20)


def test_a_number_that_another_process_has_by_now_is_left_alone() -> None:
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as another:
        ended = subprocess.Popen(["/bin/true"], start_new_session=True)
        ended.wait()
        ended.pid = another.pid
        kill_group(ended)
        assert another.poll() is None
        another.kill()
        assert another.wait() == -9


def test_a_group_that_is_empty_is_no_error() -> None:
    ended = subprocess.Popen(["/bin/true"], start_new_session=True)
    ended.wait()
    kill_group(ended)
