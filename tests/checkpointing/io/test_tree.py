"""What a directory is listed as: bounded, never followed out of, and another one once anything in it changes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed.checkpoint as dcp

from checkpointing.discover import find
from checkpointing.io import tree
from checkpointing.io.reader import FileReader, Short
from checkpointing.io.tree import Tree
from checkpointing.model import Verdict
from checkpointing.verification import Cache, identity_of, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    top = tmp_path / "step_3"
    (top / "deep/er").mkdir(parents=True)
    (top / "a.pt").write_text("a")
    (top / "deep/er/b.pt").write_text("bb")
    return top


def test_each_entry_is_listed_with_its_kind(directory: Path) -> None:
    os.mkfifo(directory / "fifo")
    (directory / "loop").symlink_to("loop")
    (directory / "gone").symlink_to("absent")
    (directory / "out").symlink_to("/etc/hosts")
    (directory / "device").symlink_to("/dev/null")
    (directory / "up").symlink_to("..")
    (directory / "within").symlink_to("deep/er/b.pt")
    (directory / "sideways").symlink_to("deep")
    listed = Tree(str(directory))
    assert {name: entry.what for name, entry in listed.entries.items()} == {
        "a.pt": "",
        "deep/er/b.pt": "",
        "fifo": "a FIFO",
        "loop": "a link that leads nowhere",
        "gone": "a link that leads nowhere",
        "out": "a link that leads out of the directory",
        "device": "a link that leads out of the directory",
        "up": "a link that leads out of the directory",
        "within": "",
        "sideways": "a link to a directory",
    }
    assert listed.files == ("a.pt", "deep/er/b.pt", "within")
    assert (listed.read_small("within"), listed.read_small("within", 1)) == (b"bb", b"b")
    with pytest.raises(KeyError):
        listed.open("out")


def test_a_part_of_it_is_a_tree(directory: Path) -> None:
    below = Tree(str(directory)).sub("deep")
    assert (below.name, below.files, below.top(), below.read_small("er/b.pt")) == ("deep", ("er/b.pt",), {"er"}, b"bb")
    assert below.identity == Tree(str(directory / "deep")).identity
    assert Tree(str(directory), levels=1).top() == Tree.names_of(str(directory)).top() == {"a.pt", "deep"}


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda d: (d / "deep/er/b.pt").write_text("cc"),
    "size": lambda d: (d / "a.pt").write_text("aa"),
    "time": lambda d: os.utime(d / "a.pt", ns=(1, 1)),
    "more": lambda d: (d / "c.pt").write_text(""),
    "less": lambda d: (d / "a.pt").unlink(),
    "renamed": lambda d: (d / "a.pt").rename(d / "deep/a.pt"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_its_identity_follows_its_files(directory: Path, name: str) -> None:
    before = identity_of(str(directory))
    assert identity_of(str(directory)) == before
    CHANGES[name](directory)
    assert identity_of(str(directory)) != before


def test_names_beyond_the_bound_are_reported(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"w": torch.ones(2)}, checkpoint_id=str(directory))
    assert verify(str(directory)).verdict is Verdict.VERIFIED
    monkeypatch.setattr(tree, "MOST_ENTRIES", 5)
    assert Tree(str(directory)).truncated
    verification = verify(str(directory))
    assert (verification.verdict, verification.reason) == (
        Verdict.UNKNOWN,
        "not all of it could be listed: it has more names than are read",
    )
    monkeypatch.undo()
    (directory / "/".join("abcdefgh")).mkdir(parents=True)
    assert Tree(str(directory)).truncated


def test_a_directory_that_may_not_be_listed_is_unknown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_path: str) -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "scandir", broken)
    verification = verify(str(directory))
    assert (verification.verdict, verification.reason) == (Verdict.UNKNOWN, "it could not be read: Input/output error")


def test_a_window_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    with FileReader(str(path)) as source:
        part = source.window(2, 5)
        assert (part.size, part.read(0, 5), part.window(1, 99).read(0, 4)) == (5, b"23456", b"3456")
        for offset, length in ((0, 6), (5, 1), (9, 1)):
            with pytest.raises(Short):
                part.read(offset, length)
        assert (source.window(8, 9).size, source.window(20, 1).size, source.read(0, 10)) == (2, 0, b"0123456789")


def test_a_directory_is_one_candidate_and_its_members_are_none(tmp_path: Path) -> None:
    for step in (1, 2):
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"w": torch.ones(2)}, checkpoint_id=str(tmp_path / f"out/step_{step}"))
    torch.save({}, tmp_path / "out/step_2/extra.pt")
    torch.save({}, tmp_path / "out/step_3.pt")
    (tmp_path / "latest").symlink_to("out/step_2")
    all_three = ["out/step_1", "out/step_2", "out/step_3.pt"]
    for patterns, names in (
        (["out/**"], all_three),
        (["out/*", "out/step_2/*.pt"], all_three),
        (["out"], all_three),
        (["out/step_2", "latest"], ["out/step_2"]),
        (["latest"], ["out/step_2"]),
        (["out/step_2/*.pt"], ["out/step_2/extra.pt"]),
    ):
        listing = find(patterns, str(tmp_path))
        assert [os.path.relpath(candidate.path, tmp_path) for candidate in listing.candidates] == names, patterns
        assert all(candidate.identity == identity_of(candidate.path) for candidate in listing.candidates)
        assert all(candidate.is_directory == (not candidate.path.endswith(".pt")) for candidate in listing.candidates)
        assert listing.problems == ()
    newest = find(["out/step_2"], str(tmp_path)).candidates[0]
    assert newest.mtime_ns == (tmp_path / "out/step_2/extra.pt").stat().st_mtime_ns


def test_the_verdict_on_a_directory_is_remembered_until_it_changes(tmp_path: Path) -> None:
    path = str(tmp_path / "step_1")
    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"w": torch.ones(2)}, checkpoint_id=path)
    cache, verification = Cache(), verify(path)
    cache.put(verification)
    assert cache.get(path, verification.identity) is verification
    os.unlink(f"{path}/.metadata")  # noqa: PTH108 -- a string as verify takes it
    now = identity_of(path)
    assert now is not None
    assert cache.get(path, now) is None
    assert verify(path).verdict is Verdict.INCOMPLETE
