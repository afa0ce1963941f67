"""Checkpoints of a terabyte: a verified one is taken at once, another is read to its end, and a dead disk is given up.

The short form of each reads little in `make test`; the long one (`slow`) reads as much as fits into a minute.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.candidates import SelectionOptions
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.io.read_watch import ReadWatch
from checkpointing.manifest.documents import Manifests
from checkpointing.select import Selection, newest
from tests.scale.patterned_disk import TIB, PatternedDisk, manifest_of, save

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB, GIB = 1 << 20, 1 << 30
#: A read of the whole content, in the fast tier and in the slow one.
READ = [pytest.param(96 * MIB, id="96 MiB"), pytest.param(32 * GIB, id="32 GiB", marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[PatternedDisk]:
    """A disk for files of true size."""
    patterned = PatternedDisk(monkeypatch)
    yield patterned
    patterned.answer()


class Large:
    """A directory of large checkpoints, with the manifests of those that were verified."""

    def __init__(self, place: Path, disk: PatternedDisk) -> None:
        """Begin with none."""
        self.place, self.disk = place / "ckpt", disk
        self.place.mkdir()
        self.manifests = Manifests(CheckpointCatalogue(place / "state", is_writer=True))
        self.watch = ReadWatch()
        disk.passes_time_for(self.watch)

    def save(self, step: int, n_bytes: int, *, verified: bool) -> Path:
        """Save one; `verified`: it was read through once, long ago."""
        path = save(self.place / f"step_{step}.safetensors", n_bytes, step)
        if verified:
            assert self.manifests.put(manifest_of(path, step))
        return path

    def choose(self, *, suspect: bool = False) -> Selection:
        """Select as the supervisor does that was started anew: nothing is cached."""
        self.disk.n_read = 0
        listing = find(["*.safetensors"], str(self.place), declared=True)
        return newest(listing, SelectionOptions(manifests=self.manifests, suspect=suspect, watch=self.watch, prefer_finite=False))


@pytest.fixture
def large(tmp_path: Path, disk: PatternedDisk) -> Large:
    """An empty directory on that disk."""
    return Large(tmp_path, disk)


def chosen(selection: Selection) -> tuple[str, str]:
    assert selection.chosen is not None, selection
    return Path(selection.chosen.path).name, selection.chosen.level


@pytest.mark.parametrize("n_bytes", [GIB, TIB])
def test_a_verified_checkpoint_is_taken_by_its_metadata_whatever_its_size(large: Large, n_bytes: int) -> None:
    for step in (1, 2, 3):
        large.save(step, n_bytes, verified=True)
    assert chosen(large.choose()) == ("step_3.safetensors", "identity")
    assert 0 < large.disk.n_read < MIB  # the header, and nothing of the terabyte


@pytest.mark.parametrize("n_bytes", READ)
def test_an_unverified_checkpoint_is_read_to_its_end_before_an_older_one(large: Large, n_bytes: int) -> None:
    large.save(1, TIB, verified=True)
    large.save(2, n_bytes, verified=False)
    assert chosen(large.choose()) == ("step_2.safetensors", "layout")
    assert large.disk.n_read >= n_bytes


@pytest.mark.parametrize("n_bytes", READ)
def test_every_byte_of_a_suspected_checkpoint_is_compared_with_its_record(large: Large, n_bytes: int) -> None:
    path = large.save(1, n_bytes, verified=True)
    assert chosen(large.choose(suspect=True)) == ("step_1.safetensors", "digest")
    assert large.disk.n_read >= n_bytes
    large.disk.changed[path] = n_bytes * 2 // 3
    selection = large.choose(suspect=True)
    assert selection.chosen is None
    assert "is not as recorded" in selection.torn[0][1]


def test_a_terabyte_that_was_cut_off_is_refused_by_its_header(large: Large) -> None:
    large.save(1, TIB, verified=True)
    path = large.save(2, TIB, verified=False)
    os.truncate(path, TIB - MIB)
    selection = large.choose()
    assert (chosen(selection), [Path(row[0]).name for row in selection.torn]) == (("step_1.safetensors", "identity"), [path.name])
    assert large.disk.n_read < MIB


def test_a_terabyte_on_a_disk_of_0_bytes_a_second_gives_way_to_the_older_verified_one(large: Large) -> None:
    large.save(1, TIB, verified=True)
    hung = large.save(2, TIB, verified=False)
    large.disk.hung.add(hung)
    selection = large.choose()
    assert chosen(selection) == ("step_1.safetensors", "identity")
    assert selection.silent == ((str(hung), "no byte came for 120 s: its disk does not answer"),)


def test_where_the_whole_disk_is_dead_none_is_refused_and_none_is_taken(large: Large) -> None:
    large.disk.hung |= {large.save(step, TIB, verified=step == 1) for step in range(1, 13)}
    selection = large.choose()
    assert (selection.chosen, selection.n_found, len(selection.silent), selection.torn) == (None, 12, 12, ())
