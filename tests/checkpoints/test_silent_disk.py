"""A job whose disk answers no read of its checkpoints: the checkpoint that it resumes from, and its reports meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.discover import Listing
from checkpointing.io.reader import Interrupted
from supervisor.checkpoints.mirror import session
from supervisor.checkpoints.recording.reports import ReadMoved, ReadReported
from tests.checkpoints.test_repair import JobOnDisk
from tests.scale.patterned_disk import PatternedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> JobOnDisk:
    """A job that declared nothing, and saves in place."""
    return JobOnDisk(tmp_path)


@pytest.fixture
def disk(job: JobOnDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[PatternedDisk]:
    """Its disk."""
    disk = PatternedDisk(monkeypatch)
    disk.passes_time_for(job.checkpoints.records.reads)
    yield disk
    disk.answer()


def loaded_and_saved(job: JobOnDisk, *steps: int) -> list[Path]:
    """Save as a script does whose checkpoints were learned."""
    (job.here / "ckpt").mkdir(exist_ok=True)
    paths = [job.rank.saves(f"ckpt/step_{step}.pt", step) for step in steps]
    job.rank.loads(f"ckpt/step_{steps[0]}.pt")
    job.checkpoints.records.absorb()
    return paths


def test_a_verified_undeclared_checkpoint_is_handed_over_without_a_read(job: JobOnDisk, disk: PatternedDisk) -> None:
    (path,) = loaded_and_saved(job, 100)
    torch.save({"step": 100, "bulk": torch.rand(8 << 18)}, path)  # 8 MiB
    job.keep_copy(path)
    disk.n_read = 0
    event = job.checkpoints.select(1.0, 2)
    assert event.chosen is not None
    assert (event.chosen.path, event.chosen.level) == (str(path), "identity")
    assert disk.n_read < 1 << 20


def test_a_silent_checkpoint_is_named_and_the_older_one_is_taken(job: JobOnDisk, disk: PatternedDisk) -> None:
    old, new = loaded_and_saved(job, 100, 200)
    disk.hung.add(new)
    event = job.checkpoints.select(1.0, 2)
    assert event.chosen is not None
    assert (event.chosen.path, event.silent) == (str(old), ((str(new), "no byte came for 120 s: its disk does not answer"),))
    lines = [report.text for report in job.reports if isinstance(report, ReadReported)]
    assert lines[0] == f"no byte for 30 s from {new} (it is passed over after 120 s)"


def test_checkpoints_on_a_silent_disk_are_not_bad_but_the_mirror_is_asked(job: JobOnDisk, disk: PatternedDisk) -> None:
    paths = loaded_and_saved(job, 100, 200)
    disk.hung |= set(paths)
    event = job.checkpoints.select(1.0, 2)
    assert (event.chosen, [path for path, _ in event.silent], event.torn) == (None, [str(path) for path in reversed(paths)], ())
    assert job.checkpoints.has_good() is False


def test_a_directory_that_cannot_be_listed_is_no_empty_one(job: JobOnDisk, disk: PatternedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = loaded_and_saved(job, 100)
    answers, locations = threading.Event(), job.checkpoints.records.locations

    def listing(**_how: object) -> Listing:
        disk.n_hanging += 1
        answers.wait()
        return Listing(())

    monkeypatch.setattr(locations, "listing", listing)
    event = job.checkpoints.select(1.0, 2)
    asked = session.ask(
        job.checkpoints,
        lambda: pytest.fail("the mirror would write to the same disk"),
        lambda _took: pytest.fail("nothing is listed"),
    )
    answers.set()
    assert (event.chosen, event.n_found > 0, asked) == (None, True, None)
    ((place, why),) = event.silent
    assert str(path).startswith(place)
    assert "no byte" in why


def test_a_selection_reports_its_moves_and_ends_once_it_is_abandoned(job: JobOnDisk, disk: PatternedDisk) -> None:
    (path,) = loaded_and_saved(job, 100)
    job.checkpoints.select(1.0, 2)
    job.checkpoints.note_move()
    assert ReadMoved() in job.reports
    job.checkpoints.records.cache._found.clear()  # noqa: SLF001 -- as after a new start
    disk.hung.add(path)
    job.checkpoints.read_while(lambda: not disk.n_hanging)
    with pytest.raises(Interrupted):
        job.checkpoints.select(1.0, 3)
