"""A listing that is made again and again: an unchanged path is not read, and no change is missed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from checkpointing.discover import find
from checkpointing.io.listing_cache import MOST_S, ListingCache

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.model import Candidate

HOUR = 3600.0


class Looks:
    """A clock that is set by hand, listings, and how many calls of stat and lstat each took."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.t, self.n_stats = place, HOUR, 0
        self.cache = ListingCache(clock=lambda: self.t)
        for name in ("stat", "lstat"):
            real = getattr(os, name)

            def counted(*args: object, real: object = real, **more: object) -> object:
                self.n_stats += 1
                return real(*args, **more)  # type: ignore[operator]

            monkeypatch.setattr(os, name, counted)

    def at(self, t: float, pattern: str = "*.pt") -> dict[str, Candidate]:
        """List at `t` seconds after the first listing."""
        self.t, self.n_stats = HOUR + t, 0
        listing = find([pattern], str(self.place), self.cache)
        self.cache.end_listing()
        return {candidate.path.removeprefix(f"{self.place}/"): candidate for candidate in listing.candidates}


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(tmp_path, monkeypatch)


def old(path: Path, content: bytes = b"one") -> Path:
    """Write a file that has stood still for two hours."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1_000_000, 1_000_000))
    return path


def test_an_unchanged_directory_is_not_examined_each_time(looks: Looks, tmp_path: Path) -> None:
    for number in range(50):
        old(tmp_path / f"step_{number}.pt")
    first = looks.at(0)
    assert looks.n_stats >= 50
    looks.at(5)
    assert looks.at(10) == first
    assert looks.n_stats == 1, "the directory"
    assert looks.at(MOST_S + 1) == first
    assert looks.n_stats >= 50


def test_a_file_that_is_replaced_or_new_or_gone_is_seen_at_once(looks: Looks, tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        old(tmp_path / name)
    before = {**looks.at(0), **looks.at(5), **looks.at(10)}
    old(tmp_path / "new", b"two").rename(tmp_path / "a.pt")
    old(tmp_path / "c.pt")
    (tmp_path / "b.pt").unlink()
    after = looks.at(15)
    assert set(after) == {"a.pt", "c.pt"}
    assert after["a.pt"].identity != before["a.pt"].identity


def test_a_file_that_is_rewritten_in_place_is_seen_after_a_tenth_of_the_time_that_it_stood_still(looks: Looks, tmp_path: Path) -> None:
    path = old(tmp_path / "last.pt")
    looks.at(0)
    path.write_bytes(b"another")
    looks.at(MOST_S + 1)
    for t in range(70, 270, 5):
        looks.at(t)
    path.write_bytes(b"a third one")
    assert looks.at(271)["last.pt"].identity.size == 7, "not yet"
    assert looks.at(295)["last.pt"].identity.size == 11


def test_a_file_that_appears_while_we_look_is_looked_at_until_it_stands_still(looks: Looks, tmp_path: Path) -> None:
    looks.at(0)
    path = old(tmp_path / "step_1.pt")  # by the clock of a file server that is behind, it has stood still for long
    looks.at(5)
    path.write_bytes(b"not at its end yet")
    assert looks.at(7)["step_1.pt"].identity.size == 18


def test_a_second_change_within_one_tick_of_a_coarse_clock_is_seen(looks: Looks, tmp_path: Path) -> None:
    old(tmp_path / "a.pt")
    tick = (2_000_000, 2_000_000)
    os.utime(tmp_path, tick)
    assert set(looks.at(0)) == {"a.pt"}
    old(tmp_path / "b.pt")
    os.utime(tmp_path, tick)
    assert set(looks.at(1)) == {"a.pt", "b.pt"}


def test_a_new_checkpoint_in_a_directory_is_seen_at_once(looks: Looks, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for t in (0, 5, 700, 705):
        assert looks.at(t, "out") == {}
    old(tmp_path / "out" / "step_5" / ".metadata")
    old(tmp_path / "out" / "step_5" / "__0_0.distcp")
    assert set(looks.at(710, "out")) == {"out/step_5"}
    for t in range(715, 1500, 5):
        looks.at(t, "out/*")
    old(tmp_path / "out" / "step_5" / "__1_0.distcp")
    assert looks.at(1500, "out/*")["out/step_5"].identity.size == 9
    counts = []
    for t in range(1505, 2100, 5):
        looks.at(t, "out/*")
        counts.append(looks.n_stats)
    assert sorted(counts)[len(counts) // 2] < 5, "none of its files, most of the time"


def test_a_rewrite_in_place_that_the_caller_knows_of_is_seen_at_once(looks: Looks, tmp_path: Path) -> None:
    path = old(tmp_path / "ckpt.pt")
    before = looks.at(0)["ckpt.pt"].identity
    path.write_bytes(b"another")
    assert looks.at(1)["ckpt.pt"].identity == before
    looks.cache.forget(str(path))
    assert looks.at(2)["ckpt.pt"].identity.size == len(b"another")
