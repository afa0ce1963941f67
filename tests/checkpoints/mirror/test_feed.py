"""Which checkpoints are sent to a mirror where nothing is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpointing.io.tree import ReadOptions
from checkpointing.verification import verify
from tests.checkpoints.test_repair import JobOnDisk, disk

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest

__all__ = ["disk"]


class UploadList:
    """Takes the place of the reader process: what it was given to send."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def is_sending(self, path: str, name: str) -> bool:  # noqa: ARG002  the protocol's
        """Nothing is under way."""
        return False

    def held_paths(self) -> dict[str, frozenset[str]]:
        """No mirror holds anything."""
        return {}

    def whole_saves(self) -> frozenset[str]:
        """No node has a part of a save."""
        return frozenset()

    def send(self, manifest: Manifest) -> None:
        """Take a checkpoint."""
        self.sent.append(manifest.path.rpartition("/")[2])


def send(disk: JobOnDisk, path: Path, uploads: UploadList) -> None:
    """Do what the watcher does with a checkpoint that it found whole."""
    checkpoints = disk.checkpoints
    checkpoints.records.absorb()
    manifest = checkpoints.recorder.record_verified(verify(str(path)), ReadOptions())
    assert manifest is not None
    checkpoints.mirror_feed(uploads, lambda: True).send(manifest)


def test_a_file_saved_again_in_training_is_sent_in_the_first_attempt(disk: JobOnDisk) -> None:
    uploads = UploadList()
    for step in (10, 20, 30):
        send(disk, disk.rank.saves(f"step_{step}.pt", step), uploads)
    assert uploads.sent == ["step_20.pt", "step_30.pt"]


def test_a_file_saved_once_or_before_the_first_step_is_not_sent(disk: JobOnDisk) -> None:
    uploads = UploadList()
    send(disk, disk.rank.saves("export.pt", 100), uploads)
    for number in (1, 2, 3):
        send(disk, disk.rank.saves(f"features_{number}.pt", 0), uploads)
    assert uploads.sent == []
