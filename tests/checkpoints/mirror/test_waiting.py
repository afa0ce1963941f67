"""What waits for a mirror: each save for itself."""

from __future__ import annotations

from pathlib import Path

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest import documents
from supervisor.checkpoints.mirror import WAITING_TABLE
from supervisor.checkpoints.mirror.waiting import WaitingUploads
from tests.checkpointing.mirror.process import save


def test_two_saves_to_one_path_wait_both_and_each_is_held(tmp_path: Path) -> None:
    waiting = WaitingUploads(CheckpointCatalogue(tmp_path / "state", is_writer=True), tmp_path / "state")
    path = tmp_path / "ckpt" / "last.pt"
    contents = []
    for step in (1, 2):
        described = save(path, 1000, step)
        waiting.hold(documents.decode(described.read_bytes()))
        contents.append(path.read_bytes())
        path.unlink()  # as a save that replaces the file
    assert [documents.decode(row.manifest.encode()).step for row in waiting.rows()] == [1, 2]
    again = WaitingUploads(CheckpointCatalogue(tmp_path / "state"), tmp_path / "state")
    catalogue = CheckpointCatalogue(tmp_path / "state")
    assert (catalogue.count(WAITING_TABLE), catalogue.count("nothing")) == (2, 0), "as `status` counts them"
    paths = [row.held[0].path for row in again.rows()]
    assert [Path(name).read_bytes() for name in paths] == contents
