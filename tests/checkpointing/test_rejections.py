"""Rejections: recorded durably, about one identity, and never in anybody's way."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from checkpointing.model import CheckpointingError, Identity
from checkpointing.rejections import Rejections

ONE, OTHER = Identity(1, 2, 3, 4), Identity(1, 2, 3, 5)


def test_a_fence_survives_and_holds_for_its_identity_alone(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "checkpoints"
    Rejections(directory).add([("/a/ü\udc80.pt", ONE, "torn"), ("/b.pt", ONE, "torn")])
    rejections = Rejections(directory)
    assert rejections.problem is None
    rejection = rejections.get("/a/ü\udc80.pt", ONE)
    assert rejection is not None
    assert (rejection.reason, rejection.kind) == ("torn", "torn")
    assert rejections.get("/a/ü\udc80.pt", OTHER) is None
    assert rejections.get("/c.pt", ONE) is None
    assert directory.stat().st_mode & 0o777 == 0o700
    assert os.listdir(directory) == ["fences.json"]  # noqa: PTH208 -- the names are all that is asked for


def test_a_new_identity_replaces_the_old_fence(tmp_path: Path) -> None:
    rejections = Rejections(tmp_path)
    rejections.add([("/a.pt", ONE, "first")])
    rejections.add([("/a.pt", OTHER, "second")])
    again = Rejections(tmp_path)
    assert again.get("/a.pt", ONE) is None
    rejection = again.get("/a.pt", OTHER)
    assert rejection is not None
    assert rejection.reason == "second"


def test_the_record_is_durable_before_add_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def recorded(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    Rejections(tmp_path).add([("/a.pt", ONE, "torn")])
    assert [re.sub(r"\.tmp-[0-9a-f]{20}$", "", path) for path in synced] == [f"{tmp_path}/.fences.json", str(tmp_path)]
    synced.clear()
    Rejections(tmp_path).add([("/a.pt", ONE, "torn")])
    assert synced == []  # nothing new, nothing written


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 1, "fences": [{}]}', b"\xff", b"[" * 10**5])
def test_a_damaged_record_is_reported_and_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fences.json").write_bytes(content)
    rejections = Rejections(tmp_path)
    assert rejections.problem is not None
    assert "could not be read" in rejections.problem
    rejections.add([("/a.pt", ONE, "torn")])
    assert rejections.problem is None
    assert Rejections(tmp_path).get("/a.pt", ONE) is not None


def test_a_record_of_a_newer_version_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "fences.json").write_text(json.dumps({"version": 2, "fences": []}))
    with pytest.raises(CheckpointingError, match="version 2 was written by a newer supervise") as caught:
        Rejections(tmp_path)
    assert caught.value.hint.startswith("install that version")


def test_where_nothing_can_be_written_the_fence_holds_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rejections = Rejections(tmp_path / "file" / "checkpoints")
    rejections.add([("/a.pt", ONE, "torn")])
    assert rejections.get("/a.pt", ONE) is not None
    assert rejections.problem is not None
    assert "could not be recorded" in rejections.problem
