"""`supervise` as process 1 of a pid namespace, as in a container: it reaps, ends on signals, and answers the probes of a pod."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from supervisor.job import loop_beat
from tests.support.supervised import Surroundings, clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

CAN = os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("nsenter") is not None
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not CAN, reason="needs a pid namespace: run as root, with unshare and nsenter (Debian: apt-get install util-linux)"),
]

CONTAINER = Surroundings(prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
TRAIN = """
import pathlib, time
from supervisor import worker
step = 0
while not pathlib.Path("end").exists():
    time.sleep(0.05)
    if pathlib.Path("go").exists():
        step += 1
        worker.report(loss=1.0, step=step)
"""


def first_process(run: Supervised) -> psutil.Process:
    """Return `supervise`, which is process 1 in there, as it is seen from here."""

    def look() -> psutil.Process | None:
        children = psutil.Process(run.process.pid).children()
        return children[0] if children else None

    return wait_for(look, "process 1", 30, alive=run.alive)


def inside(run: Supervised, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the container, as `kubectl exec` does."""
    enter = ["nsenter", "--target", str(first_process(run).pid), "--pid", "--mount", *words]
    return subprocess.run(enter, cwd=run.place, env=clean_environment(), capture_output=True, text=True, check=False)  # noqa: S603


def states(parent: psutil.Process) -> dict[int, str]:
    """Return the state of each child of a process, by pid."""
    by_pid = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(ppid) == parent.pid:
                by_pid[int(entry.name)] = state
    return by_pid


def test_process_1_reaps_orphans_of_strangers_lets_them_live_and_ends_on_term(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, "-c", "import time; time.sleep(300)", options=["--set", "instrument.enabled=false"], around=CONTAINER)
    run.rank_pids()
    first = first_process(run)
    mine = set(states(first))
    # a shell of `kubectl exec` that leaves two processes behind: one that ends once both were seen, one that stays
    ends = run.place / "one-ends"
    waits = f"(while [ ! -e '{ends}' ]; do sleep 0.1; done &)"
    assert inside(run, "sh", "-c", f"exec >/dev/null 2>&1; {waits}; (sleep 100 &)").returncode == 0
    orphans = wait_for(lambda: len(pids := set(states(first)) - mine) == 2 and pids, "the orphans of process 1", 30)
    ends.touch()
    (left,) = wait_for(lambda: len(pids := set(states(first)) & orphans) == 1 and pids, "one of them to be reaped", 30)
    assert states(first)[left] in "SR", "a process of somebody else was ended"
    first.send_signal(signal.SIGTERM)
    assert run.exit_code() == 143


@pytest.mark.slow
def test_term_while_modules_are_imported_ends_process_1_before_anything_starts(supervise: Callable[..., Supervised]) -> None:
    run = supervise("touch", "began", around=CONTAINER)
    first = first_process(run)
    while run.alive():
        with contextlib.suppress(psutil.NoSuchProcess):
            first.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert run.exit_code() == 143
    assert run.journal() == ""
    assert not (run.place / "began").exists()


def test_the_probes_of_a_pod_live_from_the_start_on_ready_from_the_first_step_on(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, "-c", TRAIN, around=CONTAINER)
    run.rank_pids()
    live = inside(run, "supervise", "status", "--job", "e2e", "--probe", "live")
    assert (live.returncode, live.stdout) == (0, "job e2e: live\n")
    ready = inside(run, "supervise", "status", "--job", "e2e", "--probe", "ready")
    assert (ready.returncode, ready.stdout) == (1, "job e2e: its ranks do not train yet\n")
    other = inside(run, "supervise", "status", "--job", "other", "--probe", "live")
    assert (other.returncode, other.stdout) == (1, "no supervise of job other runs here\n")
    (run.place / "go").touch()
    wait_for(
        lambda: inside(run, "supervise", "status", "--job", "e2e", "--probe", "ready").returncode == 0,
        "the first step",
        60,
        alive=run.alive,
    )
    (run.place / "end").touch()
    assert run.exit_code() == 0
    (scratch,) = re.findall(r'"scratch":"([^"]+)"', run.journal())  # other tests run jobs of this name, and share /dev/shm
    assert not (Path(scratch) / loop_beat.FILE_NAME).exists()


@pytest.mark.slow
def test_a_loop_that_stands_still_is_not_alive(supervise: Callable[..., Supervised]) -> None:
    run = supervise(sys.executable, "-c", TRAIN)
    run.rank_pids()
    assert run.ask("status", "--probe", "live").returncode == 0
    run.signal(signal.SIGSTOP)
    probe = wait_for(lambda: (done := run.ask("status", "--probe", "live")).returncode and done, "the probe to fail", 90)
    assert f"the loop of process {run.process.pid} has not turned for 3" in probe.stdout
    run.signal(signal.SIGCONT)
    wait_for(lambda: run.ask("status", "--probe", "live").returncode == 0, "the loop to turn", 30)
    (run.place / "end").touch()
    assert run.exit_code() == 0
