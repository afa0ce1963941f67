"""Whether the next saves fit is read off real file systems, and nothing is taken from them for it."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING

import pytest

from checkpointing.retention import free_space
from checkpointing.retention.free_space import Room
from tests.checkpointing.mounts import tmpfs

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_two_saves_fit(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    forecast = free_space.forecast(str(tmp_path), 20 * MIB)
    assert (forecast.room, forecast.n_saves, forecast.reason) == (Room.ENOUGH, 2, "")
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_mtime_ns == before


@pytest.mark.parametrize(("save_mib", "room", "fit"), [(3, Room.ENOUGH, 2), (5, Room.SHORT, 1), (20, Room.SHORT, 0)])
def test_free_space_is_counted_in_saves(tmp_path: Path, save_mib: int, room: Room, fit: int) -> None:
    with tmpfs(tmp_path / "disk", 8 * MIB) as disk:
        forecast = free_space.forecast(str(disk), save_mib * MIB)
        assert (forecast.room, forecast.n_saves) == (room, fit)


def test_the_forecast_neither_allocates_nor_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = list[int](), os.open

    def seen(path: str, flags: int, *more: int, **others: int) -> int:
        opened.append(flags)
        return real(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", seen)
    with tmpfs(tmp_path / "disk", 64 * MIB) as disk:
        free_space.forecast(str(disk), 16 * MIB)
    assert [flags for flags in opened if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)] == []


def test_a_disk_without_inodes_is_short(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 8 * MIB, inodes=3) as disk:
        while os.statvfs(disk).f_favail:
            (disk / f"{os.statvfs(disk).f_favail}").touch()
        forecast = free_space.forecast(str(disk), 1)
    assert (forecast.room, "inodes" in forecast.reason) == (Room.SHORT, True)


def test_a_limit_on_the_size_of_files_is_found(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
    try:
        forecast = free_space.forecast(str(tmp_path), 2 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (forecast.room, forecast.n_saves, forecast.reason) == (
        Room.SHORT,
        0,
        "the limit on the size of a file (ulimit -f) is less than one save",
    )


def test_the_space_of_an_unreadable_directory_is_unknown(tmp_path: Path) -> None:
    forecast = free_space.forecast(str(tmp_path / "gone"), 1)
    assert (forecast.room, forecast.n_saves, os.strerror(errno.ENOENT) in forecast.reason) == (Room.UNKNOWN, 0, True)
