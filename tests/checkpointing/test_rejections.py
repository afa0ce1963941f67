"""Rejections: recorded durably, about one identity, and never in anybody's way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.model import Identity
from checkpointing.rejections import Rejections

if TYPE_CHECKING:
    import pytest

ONE, OTHER = Identity(1, 2, 3, 4), Identity(1, 2, 3, 5)


def test_a_fence_survives_and_holds_for_its_identity_alone(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "checkpoints"
    Rejections(CheckpointCatalogue(directory, is_writer=True)).add([("/a/ü\udc80.pt", ONE, "torn"), ("/b.pt", ONE, "torn")])
    rejections = Rejections(CheckpointCatalogue(directory, is_writer=True))
    rejection = rejections.get("/a/ü\udc80.pt", ONE)
    assert rejection is not None
    assert (rejection.reason, rejection.kind) == ("torn", "torn")
    assert rejections.get("/a/ü\udc80.pt", OTHER) is None
    assert rejections.get("/c.pt", ONE) is None
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_new_identity_replaces_the_old_fence(tmp_path: Path) -> None:
    rejections = Rejections(CheckpointCatalogue(tmp_path, is_writer=True))
    rejections.add([("/a.pt", ONE, "first")])
    rejections.add([("/a.pt", OTHER, "second")])
    again = Rejections(CheckpointCatalogue(tmp_path, is_writer=True))
    assert again.get("/a.pt", ONE) is None
    rejection = again.get("/a.pt", OTHER)
    assert rejection is not None
    assert rejection.reason == "second"


def test_a_rejection_is_durable_before_add_returns_and_written_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def recorded(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    rejections = Rejections(CheckpointCatalogue(tmp_path, is_writer=True))
    rejections.add([("/a.pt", ONE, "torn")])
    assert synced[-1] == f"{tmp_path}/catalogue.jsonl"
    synced.clear()
    rejections.add([("/a.pt", ONE, "torn")])
    Rejections(CheckpointCatalogue(tmp_path, is_writer=True)).add([("/a.pt", ONE, "torn")])
    assert synced == []


def test_where_nothing_can_be_written_the_fence_holds_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    catalogue = CheckpointCatalogue(tmp_path / "file" / "checkpoints", is_writer=True)
    rejections = Rejections(catalogue)
    rejections.add([("/a.pt", ONE, "torn")])
    assert rejections.get("/a.pt", ONE) is not None
    assert "could not be written" in str(catalogue.problem)
