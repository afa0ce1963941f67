"""A state directory that fails, before and while the job runs: the job is not harmed, or nothing was started and the message says why."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.journal.records import Header, encode, scan
from supervisor.view.job_view import fold
from supervisor.view.opening import past_of
from tests.checkpointing import mounts
from tests.support.figures import within
from tests.support.folding import check_fold
from tests.support.small_disks import small_disk
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised, Surroundings

    Run = Callable[..., Supervised]

JOBS = Path(__file__).parents[1] / "jobs"
PLAIN = [sys.executable, str(JOBS / "no_torch.py")]
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
#: no_torch.py reads its checkpoint by itself: no rank is seen to load it.
HANDED_OVER = r"resume not confirmed: no rank was seen to load \S*ckpt/step-(\d+)\.pt"
LONG = ["--steps=100000", "--step-ms=20", "--progress=progress"]

pytestmark = pytest.mark.process


def journal_of(run: Supervised) -> Path:
    """Return the path of the journal."""
    (path,) = run.state.glob("*/nodes/*/journal.jsonl")
    return path


def can_have(*words: str) -> None:
    """Skip the test where this prefix cannot be had here."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs the program {words[0]}, which is not on PATH")
    done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        pytest.skip(f"not permitted here, run as root: {' '.join(words)[:60]}: {done.stderr.strip()}")


def steps_of(run: Supervised) -> list[int]:
    """Return the steps that rank 0 made, in their order, over all attempts."""
    return [step for rank, step in run.progress() if rank == 0]


# --- before the job

AS_ONE_WITHOUT_RIGHTS = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override,-dac_read_search")


def test_a_state_directory_that_cannot_be_written_is_named_and_nothing_is_started(
    supervise: Run, surroundings: type[Surroundings], tmp_path: Path
) -> None:
    prefix = AS_ONE_WITHOUT_RIGHTS if os.geteuid() == 0 else ()  # root may write anywhere, unless it gave that up
    if prefix:
        can_have(*prefix)
    state = tmp_path / "state"
    state.mkdir(mode=0o500)
    run = supervise("touch", "started", around=surroundings(prefix=prefix))
    assert run.exit_code() == 78
    assert f"{state}/e2e: Permission denied" in run.stderr
    assert "--state-dir" in run.stderr
    assert not (tmp_path / "started").exists()
    state.rmdir()
    state.write_text("a file")
    in_the_way = supervise("touch", "started")
    assert in_the_way.exit_code() == 78
    assert f"{state}: a file is in the way" in in_the_way.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
def test_a_journal_of_another_version_is_set_aside_with_a_sentence(supervise: Run, tmp_path: Path) -> None:
    first = supervise("true")
    assert first.exit_code() == 0
    journal = journal_of(first)
    other = encode(1, 1.0, 1.0, Header("e2e", "node", version="4.0")) + b'{"what":"is","not":"known"}\n'
    journal.write_bytes(other)
    first.journal_is_damaged = True
    status = first.ask("status")
    assert status.returncode == 78
    assert str(journal) in status.stderr
    assert "4.0" in status.stderr
    run = supervise("touch", "started")
    assert run.exit_code() == 0
    assert f"{journal}: another version of supervise wrote it (format 4.0" in run.stderr
    assert "set aside" in run.stderr
    assert journal.with_name("journal.jsonl.unreadable-1").read_bytes() == other
    assert (tmp_path / "started").exists()
    assert run.ask("status").returncode == 0


def cut_in_the_last_record(data: bytes) -> bytes:
    return data[:-40]


def cut_in_the_middle(data: bytes) -> bytes:
    return data[: data.index(b"\n", len(data) // 2) + 60]


def cut_in_the_first_record(data: bytes) -> bytes:
    return data[:50]


def zeros_at_the_end(data: bytes) -> bytes:
    return data + bytes(4096)


def a_byte_in_the_middle(data: bytes) -> bytes:
    at = data.index(b"\n", len(data) // 2) + 80
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def a_page_in_the_middle(data: bytes) -> bytes:
    at = len(data) // 2
    return data[: at - 600] + bytes(600) + data[at:]


DAMAGES = [cut_in_the_last_record, cut_in_the_middle, cut_in_the_first_record, zeros_at_the_end, a_byte_in_the_middle, a_page_in_the_middle]


@pytest.mark.slow
def test_a_torn_journal_is_reported_and_the_next_start_continues(supervise: Run, tmp_path: Path) -> None:
    """Each damage is done to the journal of a run that had a failure and recovered."""
    job = [*PLAIN, "--steps=4", "--save-every=1", "--fail-rank=0", "--fail-at-step=3", "--fail-how=kill", "--fail-once-file=failed"]
    first = supervise(*job, options=RESUMING)
    assert first.exit_code() == 0
    assert first.attempts() == 2
    whole = journal_of(first).read_bytes()
    reports = 0
    for damage in DAMAGES:
        place = tmp_path / damage.__name__
        shutil.copytree(first.state, place / "state")
        (place / "state" / journal_of(first).relative_to(first.state)).write_bytes(damage(whole))
        again = supervise("true", place=place)
        again.journal_is_damaged = True
        assert again.exit_code() == 0, again.stderr
        assert "warning: journal: " in again.stderr, damage.__name__
        reports += 1
        past = past_of(fold(scan(journal_of(again))))
        assert check_fold(scan(journal_of(again))), damage.__name__
        assert past.last_end is not None
        assert past.last_end.exit_code == 0
    assert reports == len(DAMAGES)
    status = again.status()
    assert (status["stage"], status["exit_code"]) == ("ended", 0)


# --- while the job runs


@pytest.fixture
def small_state(tmp_path: Path) -> Iterator[Path]:
    """A state directory on a file system of 32 MiB."""
    with small_disk(tmp_path / "state", "size=32m,mode=0700") as directory:
        yield directory


def fill(path: Path) -> None:
    """Write to `path` until the disk is full. Raises OSError then."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.slow
def test_200_mib_of_output_on_a_disk_of_32_mib_that_a_stranger_then_fills_costs_no_step(
    supervise: Run, surroundings: type[Surroundings], small_state: Path
) -> None:
    job = [*PLAIN, "--steps=40", "--step-ms=50", "--flood-mib-s=200", "--save-every=1", "--progress=progress", "--pids=pids"]
    with Path(os.devnull).open("wb") as nowhere:
        run = supervise(*job, options=RESUMING, around=surroundings(stdout=nowhere.fileno()))
    run.wait_for_step(21)  # 10 MiB in each
    with pytest.raises(OSError, match="No space left"):
        fill(small_state / "stranger")
    at = max(steps_of(run))
    os.kill(int((run.place / "pids").read_text().split()[1]), signal.SIGKILL)
    assert run.exit_code() == 0
    assert at >= 21
    resumed = run.wait_for_line(HANDED_OVER)
    assert int(resumed[1]) >= at - 1  # the newest checkpoint: disks of others are not ours to fear for
    assert sorted(set(steps_of(run))) == list(range(1, 41))
    assert steps_of(run).count(1) == 1
    assert len((run.place / "pids").read_text().splitlines()) == 2
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_state_directory_that_is_deleted_under_us_harms_nobody(supervise: Run, tmp_path: Path) -> None:
    job = [*PLAIN, "--steps=60", "--step-ms=20", "--save-every=1", "--progress=progress", "--pids=pids"]
    run = supervise(*job, options=RESUMING)
    run.journal_is_damaged = True
    run.wait_for_step(5)
    shutil.rmtree(run.state)
    pid = int((run.place / "pids").read_text().split()[1])
    run.wait_for_step(max(steps_of(run)) + 5)
    os.kill(pid, signal.SIGKILL)
    assert run.exit_code() == 0
    assert int(run.wait_for_line(HANDED_OVER)[1]) >= 9
    cause = "journal.jsonl: it was deleted while it was written"
    assert run.stderr.count(f"{cause}; decisions are kept in memory") == 1
    assert run.stderr.count(f"{cause}\n") == 1, "once more at the end, with the records that are lost"
    assert len((tmp_path / "pids").read_text().splitlines()) == 2
    assert sorted(set(steps_of(run))) == list(range(1, 61))
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_job_without_its_lock_and_journal_is_not_ended_when_the_lease_is_due(supervise: Run) -> None:
    run = supervise(*PLAIN, "--steps=26", "--step-ms=1000", "--progress=progress")
    run.journal_is_damaged = True
    run.wait_for_step(1)
    shutil.rmtree(run.state)
    assert run.exit_code() == 0  # two leases later
    assert steps_of(run) == list(range(1, 27))


NO_SHM = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro,size=16k none /dev/shm && exec "$@"', "sh")


@pytest.mark.bench
def test_a_stop_is_obeyed_while_the_jobs_own_directory_hangs(supervise: Run, surroundings: type[Surroundings], tmp_path: Path) -> None:
    place, go = tmp_path / "work", tmp_path / "go"
    place.mkdir()
    dies = f"until [ -e {go} ]; do sleep 0.05; done; kill -9 $$"
    around = surroundings(prefix=("env", "-C", str(place)))
    run = supervise("bash", "-c", dies, options=["--set", "instrument.enabled=false", "--set", "health.enabled=false"], around=around)
    wait_for(lambda: run.attempts() == 1, "the job runs", 30, alive=run.alive)
    with mounts.dead(place):
        go.touch()
        wait_for(lambda: '"BeginAttempt",{"attempt":2' in run.journal(), "the next attempt", 30, alive=run.alive)
        run.signal(signal.SIGTERM)
        asked = time.monotonic()
        assert run.exit_code() == 143
        assert within(8, since=asked)
        assert run.attempts() == 1
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_without_dev_shm_heartbeats_are_kept_in_the_state_directory(supervise: Run, surroundings: type[Surroundings]) -> None:
    can_have(*NO_SHM)
    job = [
        *PLAIN,
        *LONG,
        "--steps=40",
        "--save-every=1",
        "--fail-rank=0",
        "--fail-at-step=20",
        "--fail-how=kill",
        "--fail-once-file=failed",
    ]
    run = supervise(*job, options=RESUMING, around=surroundings(prefix=NO_SHM))
    run.wait_for_step(3)
    assert list(run.state.glob("*/nodes/*/shm/attempt-0001/heartbeat"))
    assert run.exit_code() == 0
    assert run.attempts() == 2
    assert '"source":"heartbeat","name":"phase"' in run.journal()
    assert int(run.wait_for_line(HANDED_OVER)[1]) == 19
    assert not list(run.state.glob("*/nodes/*/shm"))


# --- asking about it


@pytest.mark.slow
def test_status_why_and_logs_while_it_runs_and_when_supervise_is_gone(supervise: Run) -> None:
    job = [
        *PLAIN,
        *LONG,
        "--save-every=1",
        "--fail-rank=0",
        "--fail-at-step=5",
        "--fail-how=kill",
        "--fail-once-file=failed",
        "--print-steps",
    ]
    run = supervise(*job, options=RESUMING)
    run.wait_for_step(8)  # not before the second attempt
    # the ranks may be ahead of the journal, which has a thread of its own
    wait_for(lambda: run.status()["attempt"] == 2 and run.status()["stage"] == "running", "the second attempt in status", alive=run.alive)
    status = run.status()
    assert (status["stage"], status["attempt"], status["incidents"], status["exit_code"]) == ("running", 2, 1, None)
    assert status["supervisor"] == {"pid": run.process.pid, "alive": True}
    (scratch,) = set(re.findall(r'"scratch":"([^"]+)"', run.journal()))
    assert (Path(scratch) / "attempt-0002" / "heartbeat").exists()  # where the progress in status comes from
    shown = run.ask("status").stdout
    assert ": restarting --" in shown, "its steps are not seen"
    assert "attempt 2, since" in shown
    why = run.ask("why").stdout
    assert "killed by SIGKILL" in why
    assert "step 4 from" in why
    assert run.ask("logs", "--attempt", "1", "--rank", "0").stdout == "".join(f"rank 0 step {n}\n" for n in range(1, 5))
    command = ["supervise", "logs", "--job", run.job, "--state-dir", str(run.state), "-f"]
    environment = {name: value for name, value in run.environment.items() if value != run.mark}
    with subprocess.Popen(command, env=environment, cwd=run.place, stdout=subprocess.PIPE, text=True) as follower:  # noqa: S603
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "rank 0 step 5\n"
            followed_at = max(steps_of(run))
            run.wait_for_step(followed_at + 5)
            run.signal(signal.SIGKILL)
            run.exit_code()
            run.wait_for_nothing_left()
            rest = follower.stdout.read()
            assert follower.wait(PATIENCE_S) == 0
        finally:
            follower.kill()
    last = 5 + len(rest.splitlines())
    assert last >= followed_at + 4
    assert rest == "".join(f"rank 0 step {n}\n" for n in range(6, last + 1))
    gone = run.status()
    assert gone["supervisor"] == {"pid": run.process.pid, "alive": False}
    assert gone["exit_code"] is None
    assert "supervise died" in run.ask("why").stdout
    logs = run.ask("logs")
    assert logs.returncode == 0
    assert logs.stdout == "rank 0 step 5\n" + rest
    assert max(steps_of(run)) - last in (0, 1)  # killed between the step and the line that tells it
