"""A process of the job that KILL does not end: it is named, nothing is started beside it, and the job continues once it is gone."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian import process_tree
from tests.checkpointing import mounts
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.checkpointing.mounts import FreezableFs
    from tests.support.supervised import Supervised

    Run = Callable[..., Supervised]

pytestmark = pytest.mark.process

JOB = Path(__file__).parents[1] / "jobs" / "no_torch.py"
WRITER = "import os, sys; open('writer', 'w').write(f'{os.getpid()}\\n'); open(sys.argv[1], 'ab', buffering=0).write(b'x')"
#: Each attempt says that it started; the first one has a child that writes to the disk.
BESIDE = 'echo started >> starts; [ -e writer ] || {python} -c {writer} {file} & exec {python} {job} "$@"'
STEPS = ["--steps=100000", "--step-ms=20", "--progress=progress", "--save-every=1"]
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
FAILING = ["--fail-rank=0", "--fail-at-step=100", "--fail-once-file=failed"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FreezableFs]:
    with mounts.freezable(tmp_path / "disk") as volume:
        (volume.place / "file").touch()
        volume.freeze()
        yield volume


def job(disk: FreezableFs, *more: str) -> list[str]:
    """Return a job of which the child of the first attempt's rank waits for the disk."""
    words = {"python": sys.executable, "writer": WRITER, "file": str(disk.place / "file"), "job": str(JOB)}
    return ["sh", "-c", BESIDE.format(**{name: shlex.quote(word) for name, word in words.items()}), "sh", *STEPS, *more]


def stuck_writer(run: Supervised) -> int:
    """Return the pid of the child once it waits in the kernel."""
    file = run.place / "writer"
    pid = int(wait_for(lambda: file.exists() and file.read_text().endswith("\n") and file.read_text(), "the child", 60))
    wait_for(lambda: (process := process_tree.read(pid)) and process.state == "D", "state D")
    return pid


def starts(run: Supervised) -> int:
    """Return how often the command was started."""
    return len((run.place / "starts").read_text().splitlines())


@pytest.mark.slow
def test_the_next_attempt_waits_for_it_and_begins_when_it_is_gone(supervise: Run, disk: FreezableFs) -> None:
    run = supervise(*job(disk, *FAILING), options=RESUMING)
    pid = stuck_writer(run)
    named = run.wait_for_line(rf"pid {pid} \(python\S*, state D[^)]*\(ext4\)\) survives KILL: no attempt is started beside it")
    assert str(disk.place / "file") in named[0]
    wait_for(lambda: '"action":"BeginAttempt"' in run.journal() or "BeginAttempt" in run.journal(), "the order of the second attempt")
    assert starts(run) == 1
    disk.thaw()
    run.wait_for_line(rf"pid {pid}, which had survived KILL, is gone")
    wait_for(lambda: starts(run) == 2, "the second attempt")
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 143


@pytest.mark.slow
def test_the_job_waits_for_an_unkillable_process_with_its_pid_on_the_card(supervise: Run, disk: FreezableFs) -> None:
    run = supervise(*job(disk, *FAILING), options=RESUMING)
    pid = stuck_writer(run)
    run.wait_for_line(rf"incident 1\b.*UnkilledProcess: pid {pid} .*Restarting as attempt 3", 90)
    assert starts(run) == 1
    card = run.ask("why").stdout
    assert re.search(
        rf"waits for the end of process {pid} \({re.escape(str(disk.place / 'file'))}\); attempt 3 starts after", " ".join(card.split())
    ), card
    disk.thaw()
    wait_for(lambda: starts(run) == 2, "the next attempt", 90)
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 143


def waits_for_it(again: Supervised, pid: int, attempt: int, disk: FreezableFs) -> None:
    """See that the next supervisor starts no rank beside the process, and does once the disk answers."""
    again.wait_for_line(rf"pid {pid} \(python\S*, state D[^)]*\(ext4\)\) survives KILL")
    again.wait_for_line(f"attempt {attempt} is not started yet")
    assert starts(again) == 1
    disk.thaw()
    wait_for(lambda: starts(again) == 2, "the attempt")
    again.signal(signal.SIGTERM)
    assert again.exit_code() == 143


@pytest.mark.slow
def test_a_stop_ends_in_time_and_the_next_start_waits_for_what_it_left(supervise: Run, disk: FreezableFs) -> None:
    run = supervise(*job(disk), options=[*RESUMING, "--set", "stop.deadline_s=2"])
    pid = stuck_writer(run)
    run.wait_for_step(3)
    run.signal(signal.SIGTERM)
    assert run.exit_code(20) == 143
    assert f"pid {pid} (python" in run.stderr
    again = supervise(*job(disk), options=RESUMING)
    waits_for_it(again, pid, 1, disk)


@pytest.mark.slow
def test_the_successor_of_a_killed_supervisor_waits_for_an_unkillable_process(supervise: Run, disk: FreezableFs) -> None:
    run = supervise(*job(disk), options=RESUMING)
    pid = stuck_writer(run)
    run.wait_for_step(300)  # the record of processes is written every few seconds
    run.signal(signal.SIGKILL)
    run.exit_code()
    again = supervise(*job(disk), options=RESUMING)
    waits_for_it(again, pid, 2, disk)


@pytest.mark.slow
def test_a_rank_of_torchrun_that_waits_for_a_disk_is_not_started_twice(supervise: Run, disk: FreezableFs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import os, sys, time
from supervisor import worker
with open(f"started-{{os.environ['RANK']}}", "a") as file:
    file.write("started\\n")
first = not os.path.exists("writer")
for step in range(1, 100000):
    worker.heartbeat(step)
    time.sleep(0.02)
    if step == 50 and first and os.environ["RANK"] == "1":
        open("writer.tmp", "w").write(f"{{os.getpid()}}\\n")
        os.rename("writer.tmp", "writer")
        open({str(disk.place / "file")!r}, "ab", buffering=0).write(b"x")
    if step == 100 and first and os.environ["RANK"] == "0":
        sys.exit(7)
""")
    run = supervise("torchrun", "--nproc-per-node=2", str(script), options=["--set", "stop.grace_s=1"])
    pid = stuck_writer(run)
    run.wait_for_line(rf"pid {pid} \(\S+, state D[^)]*\(ext4\)\) survives KILL: no attempt is started beside it")
    run.wait_for_line("attempt 2 is not started yet")
    assert (tmp_path / "started-1").read_text() == "started\n"
    disk.thaw()
    wait_for(lambda: (tmp_path / "started-1").read_text() == "started\n" * 2, "the second attempt", 60)
    run.signal(signal.SIGTERM)
    run.exit_code()
