"""A manifest is built in one pass, and shows what no structure shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from checkpointing.io.reader import Interrupted, Throttle
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check
from checkpointing.manifest.documents import About, decode, encode
from checkpointing.model import Verdict, Verification
from checkpointing.verification import identity_of, verify
from tests.checkpointing.untouched import everything

if TYPE_CHECKING:
    from pathlib import Path

PART = 4096


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory of files, as sharded saves leave them."""
    directory = tmp_path / "global_step7"
    (directory / "sub").mkdir(parents=True)
    for name, size in (("rank_0.bin", 10_000), ("sub/rank_1.bin", PART), ("empty", 0)):
        (directory / name).write_bytes(os.urandom(size))
    return directory


def found_at(path: Path, **more: object) -> Verification:
    """What a verification of a directory of ours says, without its format."""
    identity = identity_of(str(path))
    assert identity is not None
    return Verification(str(path), identity, Verdict.VERIFIED, step=7, level="layout", format="deepspeed", **more)  # type: ignore[arg-type]


def test_a_file_that_is_the_same_is_proven_wherever_it_lies(sound_file: Path) -> None:
    made = check.build(verify(str(sound_file)), About("job", "run", 2, (("lr", "1"),)), sha256=True, part_bytes=PART, now=lambda: 5.9)
    assert (made.name, made.is_tree, made.layout, made.step, made.made_unix_s) == ("step_120.pt", False, "torch_zip", 120, 5)
    assert (made.n_bytes, made.about.world_size) == (sound_file.stat().st_size, 2)
    moved = sound_file.rename(sound_file.with_name("elsewhere"))
    found = check.check(str(moved), decode(encode(made)))
    assert (found.verdict, found.level, found.step, found.reason) == (Verdict.VERIFIED, "digest", 120, "")


def test_every_changed_byte_shows_and_the_part_is_named(sound_file: Path) -> None:
    made = check.build(verify(str(sound_file)), part_bytes=PART)
    content = sound_file.read_bytes()
    for at in (0, PART - 1, PART, len(content) - 1):
        sound_file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        found = check.check(str(sound_file), made)
        assert found.verdict is Verdict.BAD
        assert f"1 of {-(-len(content) // PART)} parts" in found.reason
        assert f"between {at // PART * PART / 2**20:.6g} and" in found.reason


@pytest.mark.parametrize("change", [-1, 1, -5000, 5000])
def test_another_size_shows_without_reading(sound_file: Path, change: int) -> None:
    made = check.build(verify(str(sound_file)))
    os.truncate(sound_file, sound_file.stat().st_size + change)
    found = check.check(str(sound_file), made, reading=ReadOptions(interrupted=lambda: True))
    assert found.verdict is Verdict.BAD
    assert "was recorded with" in found.reason


def test_a_directory_is_proven_file_by_file(tree: Path) -> None:
    made = check.build(found_at(tree), part_bytes=PART)
    assert [file.path for file in made.files] == ["empty", "rank_0.bin", "sub/rank_1.bin"]
    assert (made.is_tree, made.n_bytes, len(made.files[1].parts)) == (True, 10_000 + PART, 3)
    assert check.check(str(tree), made).verdict is Verdict.VERIFIED
    (tree / "README").write_text("of no matter")
    assert check.check(str(tree), made).verdict is Verdict.VERIFIED


def test_a_missing_shard_a_changed_one_and_one_of_another_kind_are_reported(tree: Path) -> None:
    made = check.build(found_at(tree), part_bytes=PART)
    shard = tree / "sub" / "rank_1.bin"
    content = shard.read_bytes()
    shard.unlink()
    found = check.check(str(tree), made)
    assert (found.verdict, found.reasons) == (Verdict.INCOMPLETE, ("sub/rank_1.bin is missing",))
    os.mkfifo(shard)
    assert check.check(str(tree), made).verdict is Verdict.INCOMPLETE
    shard.unlink()
    outside = tree.parent / "outside"
    outside.write_bytes(content)
    shard.symlink_to(outside)
    assert check.check(str(tree), made).verdict is Verdict.INCOMPLETE
    shard.unlink()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert check.check(str(tree), made).verdict is Verdict.BAD
    assert check.check(str(tree), made, only=["rank_0.bin"]).verdict is Verdict.VERIFIED


def test_only_the_members_that_belong_to_it_are_recorded(tree: Path) -> None:
    made = check.build(found_at(tree, files=("rank_0.bin",)), part_bytes=PART)
    assert [file.path for file in made.files] == ["rank_0.bin"]


def test_a_directory_where_a_file_was_and_the_reverse(tree: Path, sound_file: Path) -> None:
    of_file, of_tree = check.build(verify(str(sound_file))), check.build(found_at(tree))
    assert check.check(str(tree), of_file).reason == "expected a file, found a directory"
    assert check.check(str(sound_file), of_tree).reason == "expected a directory, found a file"
    gone = check.check(str(sound_file) + ".gone", of_file)
    assert (gone.verdict, gone.reason) == (Verdict.UNKNOWN, "it could not be read: No such file or directory")


def test_what_changed_since_it_was_verified_is_not_recorded(sound_file: Path) -> None:
    found = verify(str(sound_file))
    os.utime(sound_file, ns=(1, 1))
    with pytest.raises(check.CheckpointChanged, match="since"):
        check.build(found)


@pytest.mark.parametrize("at", ["file", "tree"])
def test_what_changes_while_it_is_read_is_not_recorded_and_not_judged(sound_file: Path, tree: Path, at: str) -> None:
    path = sound_file if at == "file" else tree
    changed = sound_file if at == "file" else tree / "rank_0.bin"
    found = verify(str(sound_file)) if at == "file" else found_at(tree)
    made = check.build(found)
    content = changed.read_bytes()

    def writer_comes(_seconds: float) -> None:
        changed.write_bytes(content + b"more")

    slow = Throttle(1e9, burst_bytes=1, wait=writer_comes)
    assert check.check(str(path), made, reading=ReadOptions(slow)).verdict is Verdict.WRITING
    found = verify(str(sound_file)) if at == "file" else found_at(tree)
    content += b"and"
    with pytest.raises(check.CheckpointChanged, match="while"):
        check.build(found, reading=ReadOptions(Throttle(1e9, burst_bytes=1, wait=writer_comes)))


def test_reading_can_be_given_up(sound_file: Path) -> None:
    made = check.build(verify(str(sound_file)))
    found = check.check(str(sound_file), made, reading=ReadOptions(interrupted=lambda: True))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "not read to the end: nobody waits for it any more")
    with pytest.raises(Interrupted):
        check.build(verify(str(sound_file)), reading=ReadOptions(interrupted=lambda: True))


def test_sha256_shows_what_was_made_to_fit(sound_file: Path) -> None:
    made = check.build(verify(str(sound_file)), sha256=True)
    document = encode(made).decode()
    assert made.files[0].sha256 in document
    (file,) = made.files
    forged = type(file)(file.path, file.n_bytes, file.crc64nvme, file.parts, "0" * 64)
    other = type(made)(made.name, made.is_tree, made.layout, (forged,), made.path, made.identity)
    assert "SHA-256" in check.check(str(sound_file), other).reason


def test_checking_touches_nothing(tree: Path, sound_file: Path) -> None:
    made = check.build(found_at(tree))
    (tree / "rank_0.bin").write_bytes(b"torn")
    before = everything(tree.parent)
    assert check.check(str(tree), made).verdict is Verdict.BAD
    assert everything(tree.parent) == before
    assert sound_file.exists()
