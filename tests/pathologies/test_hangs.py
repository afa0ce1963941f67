"""`supervise` finds, names and cures hangs of tests/jobs/hangs.py, and reports those that it does not end."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import HangKind
from tests.pathologies import hanging_jobs
from tests.pathologies.hanging_jobs import RESUMING, SOON, command, confirmed, line_of, mounted, stop, taken
from tests.support import preloaded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

NO_TORCH = hanging_jobs.SCRIPT.with_name("no_torch.py")

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Found:
    """What is to be found of a pathology. text: in the sentence; line: of the script, in the look; reason: the line that explains it.

    No line is found of a process that waits for a file, because it answers no signal.
    """

    kind: HangKind
    ranks: tuple[int, ...] | None
    text: str
    line: str = ""
    reason: str = ""


#: One of each kind; tests/observe/hangs/test_look.py looks at all pathologies. A mismatch is ended by default.
FOUND = {
    "fewer": Found(
        HangKind.MISMATCH,
        None,
        r"barrier.*all_reduce|all_reduce.*barrier",
        "self.dist.all_reduce(parameter.grad)",
        "return  # one batch fewer",
    ),
    "swallowed": Found(HangKind.MISMATCH, None, r"all_reduce", "self.dist.all_reduce(parameter.grad)", "except KeyError:"),
    "python_loop": Found(HangKind.LATE, (1,), r"rank 1 .*hangs\.py:\d+", "while self.place:"),
    "frozen": Found(HangKind.BLOCKED, (1,), r"rank 1 is blocked in D state in open\w* of \S+/mnt/more on \S+/mnt \(ext4\)"),
}


@pytest.fixture(scope="session")
def digest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Give the end state of an uninterrupted run without supervise."""
    place = tmp_path_factory.mktemp("whole")
    files = (f"--{name}={place / name}" for name in ("ckpt-dir", "progress", "pids", "digest"))
    done = preloaded.run(*command("none", *files)[3:], ranks=2)
    assert done.returncode == 0, done.stderr
    return (place / "digest").read_bytes()


def test_a_hang_of_a_script_without_torch_is_found_and_a_restart_cures_it(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    files = ["--progress=progress", "--digest=digest", "--save-every=20"]
    fault = ["--fail-rank=0", "--fail-at-step=42", "--fail-how=hang", "--fail-once-file=hung"]
    job = [sys.executable, str(NO_TORCH), "--beat", "--steps=60", "--step-ms=20", *files, *fault]
    soon = {**SOON, "SUPERVISE_HANG_PHASE_S": SOON["SUPERVISE_HANG_TRAIN_S"]}  # twenty steps may be made before the second look
    run = supervise(*job, options=[*RESUMING, "--on-hang", "restart"], **soon)
    hang = confirmed(run)
    assert hang["kind"] == HangKind.STILL, hang
    assert re.search(r"rank 0 is in strike \(job_parts\.py:\d+\)", hang["text"]), hang["text"]
    assert re.search(r"job_parts\.py:\d+ strike\n", hang["look"]), hang["look"]
    assert taken(run, "HangSuspected")
    assert run.exit_code() == 0
    assert run.attempts() == 2
    steps = [step for _, step in run.progress()]
    assert steps == [*range(1, 42), *range(41, 61)], "it continued from its newest checkpoint"
    state = functools.reduce(lambda state, step: hashlib.sha256(f"{state} {step}".encode()).hexdigest(), range(1, 61), "seed")
    assert (tmp_path / "digest").read_text() == state
    page = run.ask("why").stdout
    assert "hang" in page
    assert "job_parts.py" in page
    run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("pathology", FOUND)
def test_a_hang_is_found_and_a_restart_cures_it(
    supervise: Callable[..., Supervised], tmp_path: Path, digest: bytes, pathology: str
) -> None:
    due = FOUND[pathology]
    with mounted(pathology, tmp_path) as stuck:
        action = "auto" if due.kind is HangKind.MISMATCH else "restart"
        run = supervise(*command(pathology), options=[*RESUMING, "--standby", "off", "--on-hang", action], **SOON)
        stuck()
        hang = confirmed(run)
        assert hang["kind"] == due.kind, hang
        assert due.ranks is None or tuple(hang["ranks"]) == due.ranks, hang
        assert re.search(due.text, hang["text"]), hang["text"]
        assert f"hangs.py:{line_of(due.line)}" in hang["look"] if due.line else "answers no signal" in hang["look"], hang["look"]
        assert hang["reason"].startswith(f"hangs.py:{line_of(due.reason)}: ") if due.reason else hang["reason"] == "", hang["reason"]
        assert hang["calibrated"]
        assert taken(run, "HangSuspected")
        assert hang["busy"] == (pathology == "python_loop")
        if pathology == "frozen":
            hanging_jobs.mounts.thaw(tmp_path / "mnt")  # no signal ends who waits for it
        assert run.exit_code() == 0
    assert run.attempts() == 2
    assert (tmp_path / "digest").read_bytes() == digest
    page = run.ask("why").stdout
    assert "hang" in page
    assert not due.reason or re.search(rf"hangs\.py:{line_of(due.reason)}: ", page), page
    run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one", "all"])
def test_stopped_ranks_are_found_and_a_restart_cures_it(
    supervise: Callable[..., Supervised], tmp_path: Path, digest: bytes, ranks: tuple[int, ...]
) -> None:
    run = supervise(*command("none"), options=[*RESUMING, "--on-hang", "restart"], **SOON)
    stop(run, *ranks)
    hang = confirmed(run)
    assert (hang["kind"], tuple(hang["ranks"])) == (HangKind.STOPPED, ranks), hang
    assert run.exit_code() == 0
    assert run.attempts() == 2
    assert (tmp_path / "digest").read_bytes() == digest


@pytest.mark.slow
def test_a_stopped_rank_is_reported_by_auto_and_continues(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("none"), options=[*RESUMING, "--on-hang", "auto"], **SOON)
    stop(run, 1)
    assert confirmed(run)["kind"] == HangKind.STOPPED
    run.wait_for_line(r"no progress for \d+ s: .*the job continues")
    os.kill(hanging_jobs.pids(run)[1], signal.SIGCONT)
    assert run.exit_code() == 0
    assert run.attempts() == 1
    assert taken(run, "HangCleared")
    assert "continues after" in run.stderr


@pytest.mark.slow
def test_warn_does_not_end_what_waits_for_ever(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("fewer"), options=[*RESUMING, "--on-hang", "warn"], **SOON)
    assert confirmed(run)["kind"] == HangKind.MISMATCH
    hanging_jobs.stands_still(run, 12.0)
    assert run.attempts() == 1
    assert len(re.findall(r"the job continues", run.stderr)) == 1
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 143


@pytest.mark.slow
def test_auto_does_not_end_a_rank_that_is_late_before_torch_does(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise(*command("pipe"), options=[*RESUMING, "--on-hang", "auto"], **SOON)
    assert confirmed(run)["kind"] == HangKind.LATE
    run.wait_for_line(r"no progress for \d+ s: .*the job continues")
    with (tmp_path / "fifo").open("wb") as fifo:
        fifo.write(b"x")
    assert run.exit_code() == 0
    assert run.attempts() == 1
