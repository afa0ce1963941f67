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
    manifest = check.build(verify(str(sound_file)), About("job", "run", 2, (("lr", "1"),)), sha256=True, part_bytes=PART, now=lambda: 5.9)
    assert (manifest.name, manifest.is_tree, manifest.layout, manifest.step, manifest.made_unix_s) == (
        "step_120.pt",
        False,
        "torch_zip",
        120,
        5,
    )
    assert (manifest.n_bytes, manifest.about.world_size) == (sound_file.stat().st_size, 2)
    moved = sound_file.rename(sound_file.with_name("elsewhere"))
    verification = check.check(str(moved), decode(encode(manifest)))
    assert (verification.verdict, verification.level, verification.step, verification.reason) == (Verdict.VERIFIED, "digest", 120, "")


def test_every_changed_byte_shows_and_the_part_is_named(sound_file: Path) -> None:
    manifest = check.build(verify(str(sound_file)), part_bytes=PART)
    content = sound_file.read_bytes()
    for at in (0, PART - 1, PART, len(content) - 1):
        sound_file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        verification = check.check(str(sound_file), manifest)
        assert verification.verdict is Verdict.BAD
        assert f"1 of {-(-len(content) // PART)} parts" in verification.reason
        assert f"between {at // PART * PART / 2**20:.6g} and" in verification.reason


@pytest.mark.parametrize("change", [-1, 1, -5000, 5000])
def test_another_size_shows_without_reading(sound_file: Path, change: int) -> None:
    manifest = check.build(verify(str(sound_file)))
    os.truncate(sound_file, sound_file.stat().st_size + change)
    verification = check.check(str(sound_file), manifest, reading=ReadOptions(interrupted=lambda: True))
    assert verification.verdict is Verdict.BAD
    assert "was recorded with" in verification.reason


def test_a_directory_is_proven_file_by_file(tree: Path) -> None:
    manifest = check.build(found_at(tree), part_bytes=PART)
    assert [file.path for file in manifest.files] == ["empty", "rank_0.bin", "sub/rank_1.bin"]
    assert (manifest.is_tree, manifest.n_bytes, len(manifest.files[1].parts)) == (True, 10_000 + PART, 3)
    assert check.check(str(tree), manifest).verdict is Verdict.VERIFIED
    (tree / "README").write_text("of no matter")
    assert check.check(str(tree), manifest).verdict is Verdict.VERIFIED


def test_a_missing_shard_a_changed_one_and_one_of_another_kind_are_reported(tree: Path) -> None:
    manifest = check.build(found_at(tree), part_bytes=PART)
    shard = tree / "sub" / "rank_1.bin"
    content = shard.read_bytes()
    shard.unlink()
    verification = check.check(str(tree), manifest)
    assert (verification.verdict, verification.reasons) == (Verdict.INCOMPLETE, ("sub/rank_1.bin is missing",))
    os.mkfifo(shard)
    assert check.check(str(tree), manifest).verdict is Verdict.INCOMPLETE
    shard.unlink()
    outside = tree.parent / "outside"
    outside.write_bytes(content)
    shard.symlink_to(outside)
    assert check.check(str(tree), manifest).verdict is Verdict.INCOMPLETE
    shard.unlink()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert check.check(str(tree), manifest).verdict is Verdict.BAD
    assert check.check(str(tree), manifest, only=["rank_0.bin"]).verdict is Verdict.VERIFIED


def test_only_the_members_that_belong_to_it_are_recorded(tree: Path) -> None:
    manifest = check.build(found_at(tree, files=("rank_0.bin",)), part_bytes=PART)
    assert [file.path for file in manifest.files] == ["rank_0.bin"]


def test_a_directory_where_a_file_was_and_the_reverse(tree: Path, sound_file: Path) -> None:
    of_file, of_tree = check.build(verify(str(sound_file))), check.build(found_at(tree))
    assert check.check(str(tree), of_file).reason == "expected a file, found a directory"
    assert check.check(str(sound_file), of_tree).reason == "expected a directory, found a file"
    gone = check.check(str(sound_file) + ".gone", of_file)
    assert (gone.verdict, gone.reason) == (Verdict.UNKNOWN, "it could not be read: No such file or directory")


def test_a_file_changed_since_its_verification_is_not_recorded(sound_file: Path) -> None:
    verification = verify(str(sound_file))
    os.utime(sound_file, ns=(1, 1))
    with pytest.raises(check.CheckpointChanged, match="since"):
        check.build(verification)


@pytest.mark.parametrize("at", ["file", "tree"])
def test_a_file_that_changes_during_the_read_is_not_judged(sound_file: Path, tree: Path, at: str) -> None:
    path = sound_file if at == "file" else tree
    changed = sound_file if at == "file" else tree / "rank_0.bin"
    verification = verify(str(sound_file)) if at == "file" else found_at(tree)
    manifest = check.build(verification)
    content = changed.read_bytes()

    def writer_comes(_seconds: float) -> None:
        changed.write_bytes(content + b"more")

    slow = Throttle(1e9, burst_bytes=1, wait=writer_comes)
    assert check.check(str(path), manifest, reading=ReadOptions(slow)).verdict is Verdict.WRITING
    verification = verify(str(sound_file)) if at == "file" else found_at(tree)
    content += b"and"
    with pytest.raises(check.CheckpointChanged, match="while"):
        check.build(verification, reading=ReadOptions(Throttle(1e9, burst_bytes=1, wait=writer_comes)))


def test_reading_can_be_given_up(sound_file: Path) -> None:
    manifest = check.build(verify(str(sound_file)))
    verification = check.check(str(sound_file), manifest, reading=ReadOptions(interrupted=lambda: True))
    assert (verification.verdict, verification.reason) == (Verdict.UNKNOWN, "not read to the end: nobody waits for it any more")
    with pytest.raises(Interrupted):
        check.build(verify(str(sound_file)), reading=ReadOptions(interrupted=lambda: True))


def test_sha256_shows_what_was_made_to_fit(sound_file: Path) -> None:
    manifest = check.build(verify(str(sound_file)), sha256=True)
    document = encode(manifest).decode()
    assert manifest.files[0].sha256 in document
    (file,) = manifest.files
    forged = type(file)(file.path, file.n_bytes, file.crc64nvme, file.parts, "0" * 64)
    other = type(manifest)(manifest.name, manifest.is_tree, manifest.layout, (forged,), manifest.path, manifest.identity)
    assert "SHA-256" in check.check(str(sound_file), other).reason


def test_checking_touches_nothing(tree: Path, sound_file: Path) -> None:
    manifest = check.build(found_at(tree))
    (tree / "rank_0.bin").write_bytes(b"torn")
    before = everything(tree.parent)
    assert check.check(str(tree), manifest).verdict is Verdict.BAD
    assert everything(tree.parent) == before
    assert sound_file.exists()
