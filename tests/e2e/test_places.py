"""Places where clusters run jobs, each without something: the job recovers, a warning names what is missing, and no other is printed."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing import mounts
from tests.support import container
from tests.support.memory_group import memory_group
from tests.support.supervised import WAITS
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised, Surroundings

    Run = Callable[..., Supervised]

JOBS = Path(__file__).parents[1] / "jobs"
RANK = str(JOBS / "no_torch.py")
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
FAILS = ["--fail-rank=0", "--fail-at-step=12", "--fail-how=kill", "--fail-once-file=failed"]
HEALTHY = [RANK, "--steps=20", "--step-ms=20", "--save-every=5", "--progress=progress"]
JOB = [*HEALTHY, *FAILS]
SMALL = "health: shared memory (/dev/shm) has only 64 MiB: NCCL and data loaders may need more; the job continues (mount -o remount"
UNREAD = "kernel log: none to read, so the kernel's kills are unknown"  # the rest is cut short
DEGRADED = "journal.jsonl: no answer for 5 s; decisions are kept in memory until it answers"
LOST = "the journal's last records did not reach the disk"
#: What a disk may give that is slow, and a machine under load that serves one.
SLOW = (WAITS, DEGRADED)
#: What the container is, as its processes see it.
PLACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
room = os.statvfs("/dev/shm")
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")]
print(os.getpid(), os.getuid(), libc.ptrace(0, 0, 0, 0), ctypes.get_errno())
print(*caps, room.f_blocks * room.f_frsize, os.path.exists("/dev/kmsg"))
"""

pytestmark = pytest.mark.process


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory group with much less than the machine has."""
    with memory_group(1500) as cgroup:
        yield cgroup


def inside(tmp_path: Path, group: Path, *deny: str) -> tuple[str, ...]:
    """Return the words that run a command in a container, whose home is tmp_path/home. Skips the test where none can be made."""
    home = tmp_path / "home"
    home.mkdir()
    words = container.words(home, group, deny)
    seen = subprocess.run([*words, sys.executable, "-I", "-S", "-c", PLACE], capture_output=True, text=True, check=False)  # noqa: S603
    if seen.returncode:
        pytest.skip(f"no container can be made here, which needs root and namespaces: {seen.stderr.strip()}")
    assert seen.stdout.split() == ["1", str(container.UID), "-1", "1", "0" * 16, str(64 << 20), "False"]
    return words


def warnings(run: Supervised) -> list[str]:
    """Return what was warned of, but for the load of a checkpoint, which no rank without torch is seen to do."""
    head = "supervise: warning: "
    texts = [line.removeprefix(head) for line in run.stderr.splitlines() if line.startswith(head)]
    return [text for text in texts if not text.startswith("resume not confirmed: no rank was seen to load")]


def steps(run: Supervised) -> list[int]:
    return [step for _, step in run.progress()]


@pytest.mark.slow
def test_in_an_unprivileged_container_on_storage_without_locks_a_killed_rank_is_recovered_and_only_the_small_dev_shm_is_warned_of(
    supervise: Run, surroundings: type[Surroundings], tmp_path: Path, group: Path
) -> None:
    words = inside(tmp_path, group)
    with mounts.served(tmp_path / "state", tmp_path / "behind", "--no-locks"):
        run = supervise(sys.executable, *JOB, options=RESUMING, around=surroundings(prefix=words), HOME=str(tmp_path / "home"))
        run.state = tmp_path / "behind"
        assert run.exit_code() == 0
        (small,) = (text for text in warnings(run) if not text.endswith(SLOW) and "% full" not in text)  # the disk is the machine's
        assert small.startswith(SMALL)
        assert steps(run) == [*range(1, 12), *range(11, 21)]
        assert UNREAD in " ".join(run.ask("why").stdout.split())
        assert "of 1.5 GiB memory available, by the limit of /sys/fs/cgroup" in run.journal()
        run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("deny", [("pidfd_open",)], ids=["no pidfds"])
def test_torchrun_in_a_container_is_restarted_by_its_agent_and_from_outside_where_there_are_no_pidfds(
    supervise: Run, surroundings: type[Surroundings], tmp_path: Path, group: Path, deny: tuple[str, ...]
) -> None:
    words = inside(tmp_path, group, *deny)
    command = ["torchrun", "--standalone", "--nproc-per-node=2", *JOB]
    run = supervise(*command, options=RESUMING, around=surroundings(prefix=words), HOME=str(tmp_path / "home"))
    assert run.exit_code() == 0
    small, *more = warnings(run)
    assert small.startswith(SMALL)
    outside = "torchrun is run as a plain command and restarted from outside: pidfd_open: Operation not permitted"
    assert more == ([outside] if deny else [])
    assert max(steps(run)) == 20
    assert steps(run).count(1) == 2, "once a rank"
    run.wait_for_nothing_left()


# --- the state directory


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_slow_state_directory_is_named_and_the_job_does_not_wait_for_each_of_its_answers(supervise: Run, tmp_path: Path) -> None:
    """Each record of a checkpoint takes 12 s and more: the end waits for those of the last ones, `checkpoints.finish_s` at most."""
    with mounts.served(tmp_path / "state", tmp_path / "behind", "--each-s=0.01", "--fsync-s=6"):
        run = supervise(sys.executable, *JOB, "--save-every=10", options=RESUMING, SUPERVISE_CHECKPOINTS_FINISH_S="200")
        run.state = tmp_path / "behind"
        assert run.exit_code(300) == 0
        # a catalogue that is written so slowly holds up the look at the checkpoints, too
        waits, *degraded, lost = (text for text in warnings(run) if not text.startswith("no byte for 30 s from "))
        assert waits == f"waiting for {tmp_path}/state, {WAITS}"
        assert re.fullmatch(rf"{LOST}: {tmp_path}/state/\S+/journal.jsonl: no answer for \d s", lost)
        assert degraded
        assert {text.rpartition("/")[2] for text in degraded} == {DEGRADED}
        assert steps(run) == [*range(1, 12), *range(11, 21)]
        run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["no failure", "a failure"])
def test_a_hanging_state_directory_costs_no_step_and_a_restart_waits_for_it(supervise: Run, tmp_path: Path, *, fails: bool) -> None:
    """The end waits as long as for a mirror: `checkpoints.finish_s`, for the last checkpoint, which cannot be recorded as verified."""
    with mounts.served(tmp_path / "state", tmp_path / "behind") as server:
        held = ["--hold-at=8", f"--held-until={tmp_path}/go-on"]
        run = supervise(
            sys.executable, *(JOB if fails else HEALTHY), *held, options=RESUMING, SUPERVISE_CHECKPOINTS_FINISH_S="60" if fails else "3"
        )
        run.state = tmp_path / "behind"
        run.journal_is_damaged = True  # where nothing fails its last records never get there
        wait_for(lambda: 7 in steps(run) and '"CheckpointVerified"' in run.journal(), "a verified save", 60, alive=run.alive)
        degraded = run.stderr.count(DEGRADED)  # before it hung, on a machine under load
        mounts.hang(server, tmp_path / "state")
        (tmp_path / "go-on").touch()
        if fails:
            wait_for(lambda: 11 in steps(run) and run.stderr.count(DEGRADED) > degraded, "the restart to wait", 60, alive=run.alive)
            assert max(steps(run)) == 11
            server.send_signal(signal.SIGCONT)
        assert run.exit_code() == 0
        server.send_signal(signal.SIGCONT)
        assert steps(run) == ([*range(1, 12), *range(11, 21)] if fails else [*range(1, 21)])
        others = [text for text in warnings(run) if not text.endswith(SLOW)]
        if fails:
            assert others == []
        else:
            done, lost = others
            assert "the newest verified checkpoint is " in done
            assert done.endswith("(step 5); the last save was not verified in time: `supervise checkpoints verify PATH` checks it")
            assert re.fullmatch(rf"{LOST}: {tmp_path}/state/\S+/journal.jsonl: no answer for \d s", lost)
        run.wait_for_nothing_left()


# --- a home that cannot be written

READ_ONLY = ("unshare", "--mount", "sh", "-c", 'mount --bind . . && mount -o remount,bind,ro . && cd "$PWD" && exec "$@"', "sh")


@pytest.mark.slow
def test_a_read_only_directory_is_reported_with_the_option_that_helps(
    supervise: Run, surroundings: type[Surroundings], tmp_path: Path
) -> None:
    home, ckpt = tmp_path / "home", tmp_path / "ckpt"
    home.mkdir()
    done = subprocess.run([*READ_ONLY, "true"], cwd=home, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode or shutil.which("unshare") is None:
        pytest.skip(f"needs the right to mount: run as root, with unshare: {done.stderr.strip()}")
    around = surroundings(prefix=READ_ONLY)
    refused = supervise("touch", "started", place=home, around=around, HOME=str(home))
    assert refused.exit_code() == 78
    assert f"no state directory: {home}/state: Read-only file system" in refused.stderr
    assert "--state-dir" in refused.stderr
    options = ["--state-dir", str(tmp_path / "state"), "--checkpoints", f"{ckpt}/*.pt", "--resume-args", "--resume {resume}"]
    files = [f"--ckpt-dir={ckpt}", f"--progress={tmp_path}/progress", f"--fail-once-file={tmp_path}/failed"]
    run = supervise(sys.executable, *JOB, *files, options=options, place=home, around=around, HOME=str(home))
    run.state = tmp_path / "state"
    assert run.exit_code() == 0
    assert warnings(run) == []
    assert [int(line.split()[1]) for line in (tmp_path / "progress").read_text().splitlines()] == [*range(1, 12), *range(11, 21)]
