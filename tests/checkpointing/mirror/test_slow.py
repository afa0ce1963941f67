"""Uploads that are slower than the saves: what is under way arrives, and what had to go is named with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.mirror.process import Process, save

if TYPE_CHECKING:
    from pathlib import Path

    from tests.checkpointing.mirror.process import Directory

pytestmark = pytest.mark.process


def _saved(home: Path, step: int, n_bytes: int) -> tuple[Path, Path]:
    path = home / "ckpt" / f"step_{step}.pt"
    return path, save(path, n_bytes, step)


def test_an_upload_slower_than_the_saves_arrives_and_the_oldest_that_waits_goes(directory: Directory) -> None:
    first, *others = [_saved(directory.home, step, 8 << 20 if step == 1 else 1000) for step in (1, 2, 3, 4, 5)]  # before the upload begins
    with Process(directory, bandwidth_mib_s=2) as process:
        process.mirror(*first)
        process.wait_for("progress")
        for saved in others:
            process.mirror(*saved)
        assert [process.wait_for("alert", what="dropped")["path"][-4:] for _ in range(2)] == ["2.pt", "3.pt"]
        done = [process.wait_for("uploaded") for _ in range(3)]
        assert [(row["step"], row["left"]) for row in done] == [(1, 2), (5, 1), (4, 0)]
        assert set(process.alerts()) == {"dropped"}, "no disk was at fault"
    dropped = [row for row in process.events if row["ev"] == "alert"]
    assert "slower than the saves" in dropped[0]["message"]


def test_of_several_that_are_asked_for_at_once_the_newest_first_the_oldest_saves_go(directory: Directory) -> None:
    """As at the end of a run: what was saved since the last look is verified at once, the newest first."""
    saves = [_saved(directory.home, step, 8 << 20 if step == 1 else 1000) for step in (1, 2, 3, 4, 5)]
    with Process(directory, bandwidth_mib_s=2) as process:
        process.mirror(*saves[0])
        process.wait_for("progress")
        for saved in reversed(saves[1:]):
            process.mirror(*saved)
        assert [process.wait_for("alert", what="dropped")["path"][-4:] for _ in range(2)] == ["3.pt", "2.pt"]
        assert [process.wait_for("uploaded")["step"] for _ in range(3)] == [1, 5, 4]


def test_a_begun_upload_is_finished_by_the_next_process_before_newer_ones(directory: Directory) -> None:
    with Process(directory, bandwidth_mib_s=4) as process:
        process.mirror(*_saved(directory.home, 1, 20 << 20))
        while process.wait_for("progress")["sent"] == 0:
            pass  # until a part arrived
        process.mirror(*_saved(directory.home, 2, 1000))
        process.kill()
    with Process(directory, orders=process.undone()) as process:
        first = process.wait_for("uploaded")
        assert (first["step"], first["sent"] < first["bytes"]) == (1, True)
        assert process.wait_for("uploaded")["step"] == 2


def test_a_drop_names_the_trouble_that_keeps_the_uploads_waiting(directory: Directory) -> None:
    directory.root.rmdir()
    with Process(directory) as process:
        process.mirror(*_saved(directory.home, 1, 1000))
        process.wait_for("alert", what="denied")
        for step in (2, 3, 4):
            process.mirror(*_saved(directory.home, step, 1000))
        dropped = process.wait_for("alert", what="dropped")
    assert dropped["path"].endswith("step_1.pt")
    assert "no such directory: is it mounted?" in dropped["message"]
    assert dropped["hint"].startswith("make the directory")
