"""A directory with some files of a checkpoint whose rest lies on other nodes: what is here is checked, and it is no checkpoint."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from checkpointing.formats import zip_layout
from checkpointing.io.reader import FileReader
from checkpointing.io.tree import ReadOptions
from checkpointing.model import Verdict
from checkpointing.verification import VerifiedPart, verify, verify_part
from tests.checkpointing.formats.directories.test_rank_shards import deepspeed
from tests.support import node_parts

if TYPE_CHECKING:
    from pathlib import Path

SHARD = "__0_1.distcp"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node_parts.save_whole(tmp_path_factory.mktemp("dcp") / "step_40")


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> tuple[Path, ...]:
    return node_parts.split(whole, tmp_path / "node-0", tmp_path / "node-1")


def part_at(path: Path) -> VerifiedPart | None:
    return verify_part(str(path), ReadOptions())


def boundaries(shard: Path) -> list[int]:
    """Return where each item of a shard ends."""
    ends = [0]
    with FileReader(str(shard)) as source:
        while ends[-1] < source.size:
            length = zip_layout.length_at(source, ends[-1])
            assert length is not None
            ends.append(ends[-1] + length)
    return ends[1:]


def test_each_node_has_a_part_and_none_a_checkpoint(whole: Path, parts: tuple[Path, ...]) -> None:
    head, tail = (part_at(path) for path in parts)
    assert head is not None
    assert tail is not None
    assert (head.leads, head.absent) == (True, ((SHARD, (whole / SHARD).stat().st_size),))
    assert (tail.leads, tail.absent) == (False, ((".metadata", None),))
    assert (head.present.files, tail.present.files) == node_parts.FILES
    assert {node_part.present.level for node_part in (head, tail)} == {"structure"}
    assert (head.present.step, tail.present.step) == (40, 40)
    assert [verify(str(path)).verdict for path in parts] == [Verdict.INCOMPLETE] * 2
    assert part_at(whole) is None, "it is whole"


def test_a_shard_without_the_metadata_is_a_part_only_as_whole_items(whole: Path, parts: tuple[Path, ...], tmp_path: Path) -> None:
    shard = parts[1] / SHARD
    content, ends = shard.read_bytes(), boundaries(shard)
    assert ends[-1] == len(content)
    assert len(ends) > 1
    for size in (0, *ends, *(end - 1 for end in ends), *range(1, len(content), len(content) // 20)):
        shard.write_bytes(content[:size])
        assert (part_at(parts[1]) is not None) == (size in (0, *ends)), size
    all_of_it = shutil.copytree(whole, tmp_path / "whole")
    for at in range(0, len(content), len(content) // 40):  # torch's padding has no checksum: what the metadata helps to find is found here
        for path in (shard, all_of_it / SHARD):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            os.utime(path, (1.0, 1.0))  # else it is younger than the metadata, and of another save
        assert (part_at(parts[1]) is not None) == (verify(str(all_of_it)).verdict is Verdict.VERIFIED), at
    shard.write_bytes(content + b"more")
    assert part_at(parts[1]) is None


def test_a_part_with_the_metadata_is_one_only_if_its_own_shards_are_whole(parts: tuple[Path, ...]) -> None:
    shard = parts[0] / "__0_0.distcp"
    content = shard.read_bytes()
    for damaged in (content[:-1], content + b"x", content[:200] + b"\xff" + content[201:]):
        shard.write_bytes(damaged)
        assert part_at(parts[0]) is None
    shard.write_bytes(content)
    (parts[0] / ".metadata").write_bytes((parts[0] / ".metadata").read_bytes()[:-10])
    assert part_at(parts[0]) is None


def test_a_save_that_has_not_ended_on_the_node_of_rank_0_is_no_part(parts: tuple[Path, ...]) -> None:
    (parts[0] / ".metadata").rename(parts[0] / ".metadata.tmp")
    assert part_at(parts[0]) is None


@pytest.mark.parametrize("stage", [2, 3])
def test_shards_of_deepspeed_on_two_nodes(tmp_path: Path, stage: int) -> None:
    path = deepspeed(tmp_path / "0", dp=4, stage=stage)
    other = tmp_path / "1" / path.name
    other.mkdir(parents=True)
    moved = [file for file in sorted(path.iterdir()) if "rank_2_" in file.name or "rank_3_" in file.name]
    for file in moved:
        file.rename(other / file.name)
    head, tail = part_at(path), part_at(other)
    assert head is not None
    assert tail is not None
    assert (head.leads, {name for name, _ in head.absent}) == (True, {file.name for file in moved})
    assert tail.leads == (stage == 3), "each file of stage 3 has the numbers of ranks"
    assert {name for name, _ in tail.absent} & {file.name for file in path.iterdir()}
    (other / moved[0].name).write_bytes((other / moved[0].name).read_bytes()[:-50])
    assert part_at(other) is None
