"""Starts tests/jobs/hangs.py with a pathology, triggers it from outside, and waits until the job hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.journal.records import EventTaken, Record, event_of, scan
from tests.checkpointing import mounts
from tests.support.waiting import is_running, wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
#: The limits of docs/explanation/hangs.md, thirty times shorter.
SOON = {
    "SUPERVISE_HANG_TRAIN_S": "2",
    "SUPERVISE_HANG_PHASE_S": "20",
    "_SUPERVISE_TEST_INTERVALS": "0.04",
}
SCRIPT = Path(__file__).parents[1] / "jobs" / "hangs.py"
#: The hang comes once the supervisor has read the heartbeats a few times.
STEPS, AT, EPOCH = 160, 112, 20
#: What a pathology needs beyond its name: its step, or another culprit.
WORDS = {
    "fewer": (f"--at={6 * EPOCH}",),
    "one_sided": ("--culprit=0",),
    "stuck_save": ("--culprit=0",),
}


def command(pathology: str, *more: str) -> list[str]:
    """Return the command of two ranks that have this pathology."""
    words = [f"--pathology={pathology}", f"--at={AT}", f"--steps={STEPS}", f"--epoch-steps={EPOCH}", *WORDS.get(pathology, ()), *more]
    return ["torchrun", "--standalone", "--nproc-per-node=2", str(SCRIPT), "--progress=progress", "--pids=pids", "--digest=digest", *words]


@contextlib.contextmanager
def mounted(pathology: str, place: Path) -> Iterator[Callable[[], None]]:
    """Give what `fuse` and `frozen` read and write in `place`; what this yields has it hang, once the culprit is there."""
    place.mkdir(exist_ok=True)
    mount = place / "mnt"

    def reached() -> None:
        wait_for((place / "reached").exists, "the culprit at its file system")

    if pathology == "fuse":
        with mounts.served(mount, place / "behind") as server:
            (place / "behind" / "data").write_bytes(b"x")

            def stop() -> None:
                reached()
                mounts.hang(server, mount)
                (place / "hung").touch()

            yield stop
    elif pathology == "frozen":
        with mounts.ext4(mount):

            def freeze() -> None:
                reached()
                mounts.freeze(mount)
                (place / "hung").touch()

            yield freeze
    else:
        yield lambda: None


def pids(run: Supervised) -> dict[int, int]:
    """Return rank → pid of the newest attempt, as the ranks wrote them."""
    return {int(rank): int(pid) for rank, pid in words_of(run.place / "pids")}


def last_progress_s(run: Supervised) -> float:
    """Return the seconds since a rank made its last step; 0 before the first."""
    rows = words_of(run.place / "progress")
    return (time.monotonic_ns() - max(int(row[2]) for row in rows)) / 1e9 if rows else 0.0


def stands_still(run: Supervised, for_s: float, deadline_s: float = 60.0) -> list[int]:
    """Await that no rank made a step for so long while all of them live; return the steps that they made."""
    wait_for(lambda: last_progress_s(run) >= for_s, f"{for_s} s without a step", deadline_s, alive=run.alive)
    assert all(is_running(pid) for pid in pids(run).values())
    return [max((step for number, step in run.progress() if number == rank), default=0) for rank in sorted(pids(run))]


def line_of(text: str) -> int:
    """Return the number of the first line of the script that has this text: where the culprit stands."""
    return next(number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line)


def taken(run: Supervised, event: str) -> list[dict[str, Any]]:
    """Return the fields of each event of this kind that the job's supervisor has recorded."""
    paths = sorted(run.state.glob("*/nodes/*/journal.jsonl"))
    records = (record.body for path in paths for record in scan(path) if isinstance(record, Record))
    return [
        msgspec.json.decode(msgspec.json.encode(event_of(body))) for body in records if isinstance(body, EventTaken) and body.event == event
    ]


def record_times(run: Supervised) -> list[float]:
    """Return when each record of the journal was made, in Unix seconds."""
    paths = sorted(run.state.glob("*/nodes/*/journal.jsonl"))
    return [record.t for path in paths for record in scan(path) if isinstance(record, Record)]


def confirmed(run: Supervised, deadline_s: float = 120.0) -> dict[str, Any]:
    """Await the first confirmed hang; return its fields, of which `look` is the text that was kept."""
    event = wait_for(lambda: taken(run, "HangConfirmed"), "a confirmed hang", deadline_s, alive=run.alive)[0]
    looks = wait_for(lambda: list(run.state.glob("*/nodes/*/*/*/hang.txt")), "the text of the look", 15.0)
    hang: dict[str, Any] = {**event["hang"], "look": looks[0].read_text()}
    return hang


def stop(run: Supervised, *ranks: int) -> None:
    """Stop these ranks once the job's steps are known."""
    run.wait_for_step(AT)
    for rank in ranks:
        os.kill(pids(run)[rank], signal.SIGSTOP)
