"""Sets of files in a job: learned, listed and owned as one checkpoint; saves that no declared pattern finds; saves that a mirror holds."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from typing import TYPE_CHECKING

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Verdict
from checkpointing.reader.one_pass import OnePass, digested
from checkpointing.retention import ownership
from checkpointing.verification import identity_of, verify
from supervisor.checkpoints.discovery import locations
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.recording.reports import SavesCounted, SavesMissed
from supervisor.checkpoints.watch import CheckpointWatch
from supervisor.core.values import replace
from tests.checkpoints.test_repair import JobOnDisk, disk

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.discover import Listing
    from checkpointing.manifest.documents import Manifest

__all__ = ["disk"]


class Mirror:
    """Takes the place of the reader process, and holds at once what it is sent."""

    def __init__(self) -> None:
        self.paths: frozenset[str] = frozenset()

    def is_sending(self, path: str, name: str) -> bool:  # noqa: ARG002  the protocol's
        """Nothing is under way."""
        return False

    def whole_saves(self) -> frozenset[str]:
        """No node has a part of a save."""
        return frozenset()

    def held_paths(self) -> dict[str, frozenset[str]]:
        """All that was sent."""
        return {"s3://b": self.paths}

    def send(self, manifest: Manifest) -> None:
        """Take a checkpoint."""
        self.paths |= {manifest.path}


def pair(disk: JobOnDisk, directory: str, step: int, names: tuple[str, ...] = ("model.pt", "optim.pt")) -> Path:
    """Save a set, as a rank that makes the directory does."""
    directories = disk.rank.makes(directory)
    for name in names:
        (disk.here / directory / name).parent.mkdir(exist_ok=True)
        disk.rank.saves(f"{directory}/{name}", step, made=directories)
    return disk.here / directory


def declaring(disk: JobOnDisk, *patterns: str) -> JobCheckpoints:
    """Begin anew with declared checkpoints."""
    checkpoints = dataclasses.replace(disk.job.settings.checkpoints, paths=patterns)
    disk.job = replace(disk.job, settings=dataclasses.replace(disk.job.settings, checkpoints=checkpoints))
    disk.checkpoints = JobCheckpoints(disk.job, disk.reports.append)
    disk.checkpoints.began(1)
    return disk.checkpoints


def names(disk: JobOnDisk, listing: Listing) -> list[str]:
    return [candidate.path[len(str(disk.here)) + 1 :] for candidate in listing.candidates]


@pytest.mark.parametrize(
    ("directory", "members", "location"),
    [
        ("ckpt/step-{}", ("model.pt", "optim.pt"), "ckpt/step-[0-9]*"),
        ("out/epoch_{}", ("model/w.pt", "optim/w.pt"), "out/epoch_[0-9]*"),
        ("out/step_{}", ("rank0/x.pt", "rank_1/x.pt"), "out/step_[0-9]*"),
        ("ckpt/{}", ("model.pt", "optim.pt"), "ckpt/[0-9]*"),
    ],
)
def test_the_files_of_a_set_are_learned_as_one_checkpoint(disk: JobOnDisk, directory: str, members: tuple[str, ...], location: str) -> None:
    for step in (20, 40):
        pair(disk, directory.format(step), step, members)
    records = disk.checkpoints.records
    records.absorb()
    assert records.discovery is not None
    [learned] = records.discovery.locations()
    assert (learned.pattern, learned.saved, learned.in_training) == (f"{disk.here}/{location}", 2, 2)
    assert names(disk, records.locations.listing(candidates=True)) == [directory.format(step) for step in (20, 40)]
    assert records.discovery.saved() == tuple(str(disk.here / directory.format(step)) for step in (20, 40))


def test_single_files_in_a_directory_of_an_epoch_are_learned_by_themselves(disk: JobOnDisk) -> None:
    disk.rank.makes("epoch_1")
    for step in (100, 200):
        disk.rank.saves(f"epoch_1/step-{step}.pt", step)
    disk.checkpoints.records.absorb()
    assert names(disk, disk.checkpoints.records.locations.listing(candidates=True)) == ["epoch_1/step-100.pt", "epoch_1/step-200.pt"]


def test_a_declared_file_of_each_set_is_not_listed_a_second_time_as_the_set(disk: JobOnDisk) -> None:
    records = declaring(disk, "ckpt/step-*/model.pt").records
    for step in (20, 40):
        pair(disk, f"ckpt/step-{step}", step)
    records.absorb()
    assert names(disk, records.locations.listing(candidates=True)) == ["ckpt/step-20/model.pt", "ckpt/step-40/model.pt"]


def test_the_scripts_files_in_each_set_are_its_own_and_a_persons_are_not(disk: JobOnDisk) -> None:
    sets = []
    for step in (20, 40):
        sets.append(pair(disk, f"ckpt/step-{step}", step))
        for name in ("meta.json", "log.txt", "tokens.npz"):
            (sets[-1] / name).write_text("{}")
    disk.checkpoints.records.absorb()
    discovery = disk.checkpoints.records.discovery
    assert discovery is not None

    def why_not(path: Path) -> str:
        identity = identity_of(str(path))
        assert identity is not None
        return ownership.not_written(str(path), identity, discovery.written_files(str(path), time.time_ns() + 10**9, identity))

    assert why_not(sets[0]) == ""
    (sets[0] / "notes.txt").write_text("mine")
    assert why_not(sets[0]) == f"it is not known as written by this job in this run: {sets[0]}/notes.txt"


def test_a_set_whose_save_was_cut_between_two_files_is_moved_out_of_the_way_as_a_whole(disk: JobOnDisk) -> None:
    for step in (20, 40):
        pair(disk, f"ckpt/step-{step}", step)
    torn = pair(disk, "ckpt/step-60", 60, ("model.pt",))
    disk.rank.loads("ckpt/step-20/model.pt")
    assert list(disk.repairs()) == ["ckpt/step-60"]
    assert disk.moved() == [(str(torn), f"{disk.here}/.supervise-aside/torn-a")]


def watch(checkpoints: JobCheckpoints, disk: JobOnDisk, mirror: Mirror | None = None) -> CheckpointWatch:
    feed = None if mirror is None else checkpoints.mirror_feed(mirror, lambda: True)
    return CheckpointWatch(
        checkpoints.records,
        checkpoints.recorder,
        checkpoints.shared,
        checkpoints.retention,
        checkpoints._parts,  # noqa: SLF001  as JobCheckpoints hands it over
        newest_save=checkpoints._newest_save,  # noqa: SLF001  as above
        feed=feed,
        has_rank_0=lambda: True,
        reader=OnePass(),
        report=disk.reports.append,
    )


def test_saves_that_no_declared_pattern_finds_are_reported_once_with_the_pattern_that_does(disk: JobOnDisk) -> None:
    watching = watch(declaring(disk, "ckpt/step-*.pt"), disk)
    for step in (20, 40):
        pair(disk, f"ckpt/step-{step}", step)
        for _ in range(3):
            watching._look()  # noqa: SLF001  one round of its thread
    reported = [report for report in disk.reports if isinstance(report, SavesMissed)]
    assert reported == [SavesMissed(f"{disk.here}/ckpt/step-20", ("ckpt/step-*.pt",), "ckpt/step-[0-9]*")]


@pytest.mark.parametrize("pattern", ["ckpt/step-*", "ckpt", "ckpt/step-*/*.pt", "ckpt/step-*/model.pt", "**/*.pt"])
def test_a_pattern_that_finds_the_saves_is_no_news(disk: JobOnDisk, pattern: str) -> None:
    watching = watch(declaring(disk, pattern), disk)
    for step in (20, 40):
        pair(disk, f"ckpt/step-{step}", step)
        for _ in range(3):
            watching._look()  # noqa: SLF001  one round of its thread
    assert not [report for report in disk.reports if isinstance(report, SavesMissed)]


def test_a_look_lists_a_set_of_many_files_no_oftener_than_a_set_of_few(disk: JobOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    watching, listed = watch(declaring(disk, "ckpt/*"), disk), list[object]()
    monkeypatch.setattr(locations, "find", lambda *args, **options: listed.append(args) or find(*args, **options))
    watching._look()  # noqa: SLF001  one round of its thread
    n_listed = []
    for step, n_files in ((20, 2), (40, 40)):
        pair(disk, f"ckpt/step-{step}", step, tuple(f"model-{number:05d}-of-{n_files:05d}.pt" for number in range(1, n_files + 1)))
        listed.clear()
        watching._look()  # noqa: SLF001  as above
        n_listed.append(len(listed))
    assert n_listed[1] <= n_listed[0]


def test_a_declared_pattern_that_matches_no_checkpoint_is_reported_at_the_start(disk: JobOnDisk) -> None:
    pair(disk, "runs/a/step-20", 20)
    (disk.here / "logs").mkdir()
    (disk.here / "logs/train.txt").write_text("x")
    checkpoints = declaring(disk, "runs", "logs", "absent/*.pt")
    checkpoints.records.begin_run()
    first, second = checkpoints.records.take_notes((), "")
    assert first == (
        f"--checkpoints runs matches {disk.here}/runs, which is not a checkpoint of a known layout: declare 'runs/a/step-[0-9]*' instead"
    )
    assert second.startswith(f"--checkpoints logs matches {disk.here}/logs, which is not a checkpoint of a known layout: `supervise")


def test_how_many_saves_the_mirror_holds_is_counted_with_those_that_nothing_proves(disk: JobOnDisk) -> None:
    checkpoints, mirror = declaring(disk, "ckpt/*"), Mirror()
    watching = watch(checkpoints, disk, mirror)
    whole = pair(disk, "ckpt/step-20", 20)
    torn = pair(disk, "ckpt/step-40", 40)
    (torn / "optim.pt").write_bytes(b"torn")
    watching._look()  # noqa: SLF001  one round of its thread
    verification = verify(str(whole))
    assert verification.verdict is Verdict.VERIFIED
    watching._verified(verification, digested(verification, "train", ReadOptions()), True)  # noqa: FBT003, SLF001  as the watcher does
    watching._look()  # noqa: SLF001  as above
    counted = [report.text for report in disk.reports if isinstance(report, SavesCounted)]
    assert counted == ["0 of 2 saves are in s3://b", "1 of 2 saves are in s3://b"]


def test_a_state_directory_that_is_full_keeps_no_checkpoint_from_the_mirror(disk: JobOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, mirror = declaring(disk, "ckpt/*"), Mirror()
    watching = watch(checkpoints, disk, mirror)
    watching._look()  # noqa: SLF001  one round of its thread
    whole = pair(disk, "ckpt/step-20", 20)

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(CheckpointCatalogue, "_append", full)
    watching._look()  # noqa: SLF001  as above
    verification = verify(str(whole))
    watching._verified(verification, digested(verification, "train", ReadOptions()), True)  # noqa: FBT003, SLF001  as the watcher does
    assert mirror.paths == {str(whole)}
    assert "No space left" in str(checkpoints.records.catalogue.not_written)
