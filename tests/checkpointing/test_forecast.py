"""Whether the next saves fit is tried on real file systems, and nothing is left of the trial."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import pytest

from checkpointing import forecast
from checkpointing.forecast import Room
from tests.checkpointing.mounts import ext2, tmpfs, with_quota

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_two_saves_fit_and_it_was_tried(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    told = forecast.forecast(str(tmp_path), 20 * MIB)
    assert (told.room, told.fit, told.proven, told.reason) == (Room.ENOUGH, 2, True, "")
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_mtime_ns == before  # nothing ever had a name there: no watcher is woken, no kill leaves a file


@pytest.mark.parametrize(("save_mib", "room", "fit"), [(3, Room.ENOUGH, 2), (5, Room.SHORT, 1), (20, Room.SHORT, 0)])
def test_what_is_free_is_counted_in_saves(tmp_path: Path, save_mib: int, room: Room, fit: int) -> None:
    with tmpfs(tmp_path / "disk", 8 * MIB) as disk:
        told = forecast.forecast(str(disk), save_mib * MIB)
        assert (told.room, told.fit) == (room, fit)
        assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize == 8 * MIB  # all of it came back


def test_a_disk_without_inodes_is_short(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 8 * MIB, inodes=3) as disk:
        while os.statvfs(disk).f_favail:
            (disk / f"{os.statvfs(disk).f_favail}").touch()
        told = forecast.forecast(str(disk), 1)
    assert (told.room, "inodes" in told.reason) == (Room.SHORT, True)


def test_a_quota_that_statvfs_does_not_see_is_found(tmp_path: Path) -> None:
    with with_quota(tmp_path / "disk", 10 * MIB) as part:
        assert forecast.forecast(str(part), 3 * MIB).room is Room.ENOUGH
        told = forecast.forecast(str(part), 7 * MIB)
    assert (told.room, told.fit, told.reason) == (Room.SHORT, 1, "the quota is used up")
    assert told.free_bytes > 14 * MIB


def test_a_limit_on_the_size_of_files_is_found(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        told = forecast.forecast(str(tmp_path), 2 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (told.room, told.fit, told.reason) == (Room.SHORT, 0, "files may not be that large")


def test_where_nothing_can_be_reserved_a_little_is_written_and_that_is_told(tmp_path: Path) -> None:
    with ext2(tmp_path / "disk", 40 * MIB) as disk:
        told = forecast.forecast(str(disk), 5 * MIB)
    assert (told.room, told.proven, "reserves nothing" in told.reason) == (Room.ENOUGH, False, True)


def test_what_cannot_be_looked_at_is_unknown(tmp_path: Path) -> None:
    told = forecast.forecast(str(tmp_path / "gone"), 1)
    assert (told.room, told.fit, os.strerror(errno.ENOENT) in told.reason) == (Room.UNKNOWN, None, True)
