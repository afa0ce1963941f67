"""The catalogue is lost with its disk, and the checkpoints are not: the mirror's manifests say again who wrote which."""

from __future__ import annotations

import dataclasses
import queue
from typing import TYPE_CHECKING

import pytest

from checkpointing.io.tree import ReadOptions
from checkpointing.reader.messages import CheckpointUploaded, ReaderEvent
from checkpointing.verification import verify
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.mirror import restore_process, session
from supervisor.checkpoints.mirror.uploads import MirrorUploads
from supervisor.config.settings import Checkpoints, Settings
from supervisor.core.values import replace
from tests.checkpoints.mirror.test_feed import UploadList
from tests.checkpoints.test_repair import JobOnDisk, Rank
from tests.support import forked_popen
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from supervisor.checkpoints.mirror.restore_process import RestoreAnswer


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    forked_popen.use_forks(monkeypatch)


class OneMirror(UploadList):
    """As if one mirror had been asked for nothing yet."""

    def __init__(self, mirror: str) -> None:
        super().__init__()
        self.mirror = mirror

    def held_paths(self) -> dict[str, frozenset[str]]:
        """It was not seen to hold anything."""
        return {self.mirror: frozenset()}


class MirroredJob(JobOnDisk):
    """A job with a directory as its mirror. Its second attempt went back to step 800, and saved step 850."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.mirror = str(tmp_path / "mirror")
        checkpoints = Checkpoints(paths=("ckpt/step_*.pt",), mirror=(self.mirror,), keep=1)
        self.job = replace(self.job, settings=dataclasses.replace(Settings(), checkpoints=checkpoints))
        (self.here / "ckpt").mkdir()
        (tmp_path / "mirror").mkdir()
        self.start("run-1")
        self.saved = [self.save(step, 1) for step in (800, 900, 1000)] + [self.save(850, 2)]

    def start(self, run: str) -> None:
        """Have a supervisor start; its attempts are in a scratch directory of its own."""
        scratch = self.job.scratch.parent / f"scratch-{run}"
        scratch.mkdir()
        self.job = replace(self.job, run_id=run, scratch=scratch)
        self.checkpoints = JobCheckpoints(self.job, self.reports.append)
        self.attempt = 0

    def save(self, step: int, attempt: int) -> Manifest:
        """Save, verify and record a checkpoint, as an attempt."""
        if attempt != self.attempt:
            self.attempt = attempt
            self.checkpoints.records.begin_run()
            self.checkpoints.began(attempt)
            self.rank = Rank(self.job.attempt_dir(attempt), self.here)
        path = self.rank.saves(f"ckpt/step_{step}.pt", step)
        return self.record(path)

    def record(self, path: Path) -> Manifest:
        """Do what the watcher does with a whole checkpoint."""
        self.checkpoints.records.absorb()
        manifest = self.checkpoints.recorder.record_verified(verify(str(path)), ReadOptions())
        assert manifest is not None
        self.checkpoints.recorder.note_newest(manifest)
        return manifest

    def upload(self) -> None:
        """Send all to the mirror, by the process that does so."""
        events: queue.Queue[ReaderEvent] = queue.Queue()
        failures: list[Exception] = []
        uploads = MirrorUploads(self.job, self.checkpoints.records.catalogue, events.put, failures.append)
        feed = self.checkpoints.mirror_feed(uploads, lambda: True)
        uploads.link.start()
        for manifest in self.saved:
            feed.send(manifest)
            event: ReaderEvent | None = None
            while not isinstance(event, CheckpointUploaded):
                event = events.get(timeout=PATIENCE_S)
                self.checkpoints.records.mirrored.took(event)
        uploads.close(20.0)
        assert failures == []

    def lose_catalogue(self) -> None:
        """Lose what was recorded, and start again."""
        self.checkpoints.records.catalogue.file.unlink()
        self.start(f"{self.job.run_id}+")

    def ask(self, texts: list[str]) -> None:
        """Ask the mirrors, as each start does."""

        def never() -> RestoreAnswer:
            raise AssertionError("a good one is here")

        answer = session.ask(self.checkpoints, never, lambda took: restore_process.list_manifests(self.job, took, texts.append))
        assert answer is None

    def chosen(self) -> int | None:
        """Return the step from which the next attempt begins."""
        self.checkpoints.ended()
        chosen = self.checkpoints.select(1.0, 1).chosen
        return None if chosen is None else chosen.step


@pytest.fixture
def mirrored(tmp_path: Path) -> MirroredJob:
    job = MirroredJob(tmp_path)
    job.upload()
    return job


@pytest.mark.process
def test_an_uploaded_checkpoint_is_recorded_and_not_sent_by_the_next_start(mirrored: MirroredJob) -> None:
    assert mirrored.chosen() == 850
    rows = [(manifest, mirrored.checkpoints.records.mirrored.holds(mirrored.mirror, manifest)) for manifest in mirrored.saved]
    assert all(holds for _, holds in rows)
    mirrored.start("run-2")
    uploads = OneMirror(mirrored.mirror)
    feed = mirrored.checkpoints.mirror_feed(uploads, lambda: True)
    for manifest in mirrored.saved:
        feed.send(manifest)
    assert uploads.sent == []
    mirrored.rank = Rank(mirrored.job.attempt_dir(1), mirrored.here)
    mirrored.checkpoints.records.begin_run()
    mirrored.checkpoints.began(1)
    feed.send(mirrored.record(mirrored.rank.saves("ckpt/step_850.pt", 851)))
    assert uploads.sent == ["step_850.pt"], "it was written anew"


@pytest.mark.process
def test_from_the_mirrors_manifests_the_same_checkpoint_is_chosen_and_nothing_is_sent_or_removed(mirrored: MirroredJob) -> None:
    mirrored.lose_catalogue()
    assert mirrored.chosen() == 1000, "without a word of who wrote which the greatest step counts"
    mirrored.lose_catalogue()
    texts: list[str] = []
    mirrored.ask(texts)
    assert texts == []
    assert mirrored.chosen() == 850
    records = mirrored.checkpoints.records
    assert [(row.about.run, row.about.attempt) for row in records.manifests.all() if row.step == 850] == [("run-1", 2)]
    uploads = OneMirror(mirrored.mirror)
    feed = mirrored.checkpoints.mirror_feed(uploads, lambda: True)
    manifests = [mirrored.record(mirrored.here / "ckpt" / manifest.name) for manifest in mirrored.saved]
    for manifest in manifests:
        feed.send(manifest)
        assert records.mirrored.holds(mirrored.mirror, manifest)
    assert uploads.sent == []
    checkpoints = mirrored.checkpoints
    checkpoints.retention.prune(manifests[-1], checkpoints.recorder, feed, checkpoints._parts)  # noqa: SLF001  as the watcher does
    left = {path.name for path in (mirrored.here / "ckpt").iterdir()}
    assert left == {manifest.name for manifest in mirrored.saved}, "who wrote them is not known any more: keep = 1 removes none"


@pytest.mark.process
def test_an_unreachable_mirror_is_named_and_the_local_checkpoints_are_read(mirrored: MirroredJob, tmp_path: Path) -> None:
    mirrored.lose_catalogue()
    (tmp_path / "mirror").rename(tmp_path / "away")
    (tmp_path / "mirror").write_text("no directory")
    texts: list[str] = []
    mirrored.ask(texts)
    assert "could not be listed" in " ".join(texts)
    assert mirrored.chosen() == 1000
