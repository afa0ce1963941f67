"""What reviews found, seen from outside: each of these jobs was once harmed by us."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised, Surroundings

NO_TORCH = str(Path(__file__).parents[1] / "jobs" / "no_torch.py")

pytestmark = pytest.mark.process


def agent_of(run: Supervised) -> int:
    """Return the pid of torchrun's agent, the parent of rank 0."""
    return int(Path(f"/proc/{run.rank_pids()[0]}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_a_job_that_ends_while_supervise_is_stopped_is_not_run_again(supervise: Callable[..., Supervised]) -> None:
    run = supervise(
        "torchrun", "--standalone", "--nproc-per-node=1", NO_TORCH, "--steps=40", "--hold-at=9", "--pids=pids", "--progress=progress"
    )
    run.wait_for_step(8)
    agent = agent_of(run)
    run.signal(signal.SIGSTOP)
    (run.place / "go-on").touch()
    wait_for(lambda: not is_running(agent), "the end of torchrun's agent")
    run.signal(signal.SIGCONT)
    assert run.exit_code() == 0
    assert (run.place / "pids").read_text().count("\n") == 1
    assert run.attempts() == 1


ARGUMENTS = "import os, sys; print(sys.argv[1:], os.environ.get('LOAD_FROM'))"


@pytest.mark.slow
def test_braces_and_variables_of_the_users_own_reach_the_script(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ARGUMENTS)
    run = supervise("torchrun", "--standalone", "--nproc-per-node=1", script, "--save-to", "ckpt/step_{step}.pt", LOAD_FROM="base.pt")
    assert run.exit_code() == 0
    assert run.stdout == "['--save-to', 'ckpt/step_{step}.pt'] base.pt\n"


def children_of(parent: int) -> list[int]:
    """Return the pids of its living children."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [pid for pid in map(int, text.split()) if is_running(pid)]


def zombies_of(parent: int) -> list[int]:
    """Return the pids of its children that have ended and were not collected."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state == "Z" and int(ppid) == parent:
                    pids.append(int(entry.name))
    return pids


@pytest.mark.slow
def test_a_guardians_death_ends_the_job_and_none_of_what_was_there_before_us(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings]
) -> None:
    shell = ("bash", "-c", 'sleep 277 & echo $! > before; exec "$@"', "bash")
    job = ["--steps=400", "--step-ms=10", "--daemon=daemon", "--daemon-env=inherit", "--progress=progress"]
    run = supervise("torchrun", "--standalone", "--nproc-per-node=1", NO_TORCH, *job, around=surroundings(prefix=shell))
    run.wait_for_step(3)
    (guardian,) = (pid for pid in children_of(run.process.pid) if b"guardian" in Path(f"/proc/{pid}/cmdline").read_bytes())
    (daemon,) = (int(line) for line in (run.place / "daemon").read_text().split())
    agent = agent_of(run)
    os.kill(guardian, signal.SIGKILL)
    wait_for(lambda: run.attempts() == 2, "attempt 2")
    assert not any(map(is_running, (guardian, agent, daemon)))
    assert is_running(int((run.place / "before").read_text()))
    wait_for(lambda: zombies_of(run.process.pid) == [], "the end of the zombies", 8)
    assert run.exit_code() == 0
    assert is_running(int((run.place / "before").read_text()))
