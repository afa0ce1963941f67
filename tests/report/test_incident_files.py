"""The small files of an incident: written beside the loop, and no loss goes unreported."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from supervisor.report.incident_files import IncidentFiles

if TYPE_CHECKING:
    from pathlib import Path

#: What the writer's queue holds.
QUEUED = 1000


class HungDisk:
    """A directory that is not there until `answers` is set."""

    def __init__(self, directory: Path) -> None:
        self.asked, self.answers, self._directory = threading.Event(), threading.Event(), directory

    def __call__(self) -> Path:
        """Wait as long as the disk hangs."""
        self.asked.set()
        assert self.answers.wait(60)
        return self._directory


def test_files_that_a_hung_disk_left_no_room_for_are_reported_with_their_number(tmp_path: Path) -> None:
    lost: list[tuple[str, str]] = []
    disk = HungDisk(tmp_path)
    files = IncidentFiles(lambda subject, cause: lost.append((subject, cause)))
    files.write_soon(disk, "first.txt", "1")
    assert disk.asked.wait(60)
    for number in range(QUEUED + 3):
        files.write_soon(disk, f"{number}.txt", "more")
    assert not lost
    disk.answers.set()
    files.close(60)
    assert lost == [("3 files", "the disk did not answer, and the queue was full")]
    assert len(list(tmp_path.iterdir())) == 1 + QUEUED
    assert (tmp_path / "first.txt").read_text() == "1\n"


def test_files_that_a_hung_disk_keeps_waiting_are_reported_at_the_end(tmp_path: Path) -> None:
    lost: list[tuple[str, str]] = []
    disk = HungDisk(tmp_path)
    files = IncidentFiles(lambda subject, cause: lost.append((subject, cause)))
    files.write_soon(disk, "card.txt", "1")
    assert disk.asked.wait(60)
    files.close(0.05)
    assert lost == [("the last files", "the disk did not answer within 0.05 s")]
    disk.answers.set()


def test_a_file_that_cannot_be_written_is_reported_by_name_and_the_next_is_written(tmp_path: Path) -> None:
    lost: list[tuple[str, str]] = []
    files = IncidentFiles(lambda subject, cause: lost.append((subject, cause)))
    files.write_soon(lambda: tmp_path / "missing", "card.txt", "1")
    files.write_soon(lambda: tmp_path, "card\0.txt", "1")
    files.write_soon(lambda: tmp_path, "card.txt", "2")
    files.close(60)
    assert lost == [("card.txt", "No such file or directory"), ("card\0.txt", "embedded null byte")]
    assert (tmp_path / "card.txt").read_text() == "2\n"
