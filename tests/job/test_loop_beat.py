"""The file by which a probe sees whether a loop turns."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from supervisor.job import loop_beat
from supervisor.job.loop_beat import LoopBeat, SeenLoop, newest

if TYPE_CHECKING:
    from pathlib import Path


def seen(directory: Path, job: str | None = None) -> SeenLoop:
    beat = newest(job, [directory], time.monotonic())
    assert beat is not None
    return beat


def test_a_turning_loop_is_alive_and_a_standing_one_is_not(tmp_path: Path) -> None:
    beat, now = LoopBeat(tmp_path, "bert"), time.monotonic()
    beat.beat()
    assert seen(tmp_path).fault(now) == ""
    assert seen(tmp_path).fault(now + loop_beat.BELIEVED_S - 1) == ""
    assert "has not turned for 4" in seen(tmp_path).fault(now + loop_beat.BELIEVED_S + 12)


def test_the_end_and_the_start_ask_for_more_time_and_a_shorter_line_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    beat, now = LoopBeat(tmp_path, "bert"), time.monotonic()
    beat.beat(1e8, ready=False)
    assert seen(tmp_path).fault(now + 1e7) == ""
    beat.beat(1.0, ready=True)
    assert seen(tmp_path).ready
    assert seen(tmp_path).fault(now + 5) != ""


def test_a_loop_without_its_process_is_not_alive(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        LoopBeat(tmp_path, "bert").beat(1e8)
        os._exit(0)
    os.waitpid(child, 0)
    assert seen(tmp_path).fault(time.monotonic()) == f"process {child} of supervise is gone"


def test_a_process_of_another_pid_namespace_is_judged_by_its_time_alone() -> None:
    now = time.monotonic()
    other = SeenLoop("bert", 1, 42, pid_namespace=7, until_s=now + 5, ready=True)
    assert other.fault(now) == ""
    assert other.fault(now + 6) != ""


def test_the_beat_of_a_job_is_found_among_several_directories(tmp_path: Path) -> None:
    for name in ("a", "b", "empty", "foreign"):
        (tmp_path / name).mkdir()
    LoopBeat(tmp_path / "a", "first").beat(100)
    LoopBeat(tmp_path / "b", "second").beat(200)
    (tmp_path / "foreign" / loop_beat.FILE_NAME).write_bytes(b"\xff{]")
    directories, now = list(tmp_path.iterdir()), time.monotonic()
    assert newest("first", directories, now) == newest("first", [tmp_path / "a"], now)
    assert seen(tmp_path / "b") == newest(None, directories, now)
    assert newest("third", directories, now) is None


def test_the_beat_of_a_gone_process_hides_no_other_of_the_job(tmp_path: Path) -> None:
    for name in ("gone", "alive"):
        (tmp_path / name).mkdir()
    child = os.fork()
    if child == 0:
        LoopBeat(tmp_path / "gone", "bert").beat(loop_beat.START_S)
        os._exit(0)
    os.waitpid(child, 0)
    LoopBeat(tmp_path / "alive", "bert").beat(ready=True)
    assert newest("bert", tmp_path.iterdir(), time.monotonic()) == seen(tmp_path / "alive")


def test_a_directory_that_takes_nothing_costs_nothing(tmp_path: Path) -> None:
    LoopBeat(tmp_path / "gone", "bert").beat()
    assert newest(None, [tmp_path / "gone"], time.monotonic()) is None


def test_of_two_jobs_of_one_name_that_of_the_state_directory_is_meant(tmp_path: Path) -> None:
    now = time.monotonic()
    places = [tmp_path / "a", tmp_path / "b"]
    for place, root, believed_s in zip(places, ("/data/a", "/data/b"), (10, 1000), strict=True):
        place.mkdir()
        LoopBeat(place, "bert", root).beat(believed_s)
    pick = lambda root: newest("bert", places, now, root)  # noqa: E731
    meant = {root: (loop := pick(root)) and loop.root for root in ("/data/a", "/data/b", "", "/data/c")}
    assert meant == {"/data/a": "/data/a", "/data/b": "/data/b", "": "/data/b", "/data/c": "/data/b"}
