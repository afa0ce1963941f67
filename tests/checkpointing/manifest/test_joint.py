"""What several nodes recorded of one save becomes one manifest, or none: never of two saves, never with a file missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpointing.manifest import joint
from checkpointing.manifest.documents import About, File, Manifest, ManifestDamaged, NodePart, decode, encode
from checkpointing.mirror import keys
from checkpointing.model import Identity

SAVE, OTHER = "0123456789abcdef", "fedcba9876543210"


def part(node: int, files: dict[str, int], absent: dict[str, int | None], *, leads: bool = False, step: int | None = None) -> Manifest:
    return Manifest(
        name="step_40",
        is_tree=True,
        layout="dcp",
        files=tuple(File(name, 0, 0, ()) if not n else File(name, 8, n, (n,)) for name, n in sorted(files.items())),
        path=f"/node-{node}/step_40",
        identity=Identity(1, node, 8, 5),
        host=f"host-{node}",
        step=step,
        about=About("job", f"run-{node}", began=100 + node, attempt=3),
        saved_unix_ns=1000 + node,
        save=SAVE,
        part=NodePart(node, tuple(absent.items()), leads),
    )


HEAD = part(0, {".metadata": 1, "__0_0.distcp": 2}, {"__1_0.distcp": 8}, leads=True, step=40)
TAIL = part(1, {"__1_0.distcp": 3, "rng_1.pth": 4}, {".metadata": None})


def test_parts_of_one_save_become_one_manifest_in_whatever_order_they_come() -> None:
    manifest, why = joint.join([TAIL, HEAD])
    assert why == ""
    assert manifest is not None
    assert joint.join([HEAD, TAIL])[0] == manifest
    assert [file.path for file in manifest.files] == [".metadata", "__0_0.distcp", "__1_0.distcp", "rng_1.pth"]
    assert (manifest.part, manifest.step, manifest.about, manifest.saved_unix_ns) == (None, 40, HEAD.about, 1001)
    assert manifest.places == (("host-0", "/node-0/step_40"), ("host-1", "/node-1/step_40"))
    for document in (manifest, HEAD, TAIL):
        assert decode(encode(document)) == document
    assert keys.key_of(manifest) == keys.key_of(HEAD) == keys.key_of(TAIL)
    assert [keys.document_name(document) for document in (HEAD, TAIL, manifest)] == [
        "parts/0.json",
        "parts/1.json",
        "manifest.json",
    ]


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        ([HEAD], "__1_0.distcp is in no part"),
        ([TAIL], "the part that shows which files there must be is missing"),
        ([], "the part that shows which files there must be is missing"),
        ([HEAD, part(2, {"__2_0.distcp": 3}, {".metadata": None})], "__1_0.distcp is in no part"),
    ],
)
def test_where_a_part_is_missing_there_is_no_checkpoint(parts: list[Manifest], missing: str) -> None:
    assert joint.join(parts) == (None, missing)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(TAIL, save=OTHER), "different saves"),
        (replace(TAIL, name="step_60"), "different saves"),
        (replace(TAIL, step=60), "steps 40 and 60"),
        (replace(TAIL, files=(File("__1_0.distcp", 9, 3, (3,)),)), "has 9 bytes, and 8 were expected"),
        (part(1, {"__1_0.distcp": 3, "__0_0.distcp": 7}, {".metadata": None}), "two nodes have different files __0_0.distcp"),
    ],
)
def test_parts_that_contradict_each_other_are_never_joined(other: Manifest, why: str) -> None:
    with pytest.raises(joint.PartsDiffer, match=why):
        joint.join([HEAD, other])


def test_a_shard_that_another_save_left_is_not_taken_in() -> None:
    manifest, _ = joint.join([HEAD, part(1, {"__1_0.distcp": 3, "__3_0.distcp": 9}, {".metadata": None})])
    assert manifest is not None
    assert "__3_0.distcp" not in {file.path for file in manifest.files}


def test_a_part_belongs_to_a_save() -> None:
    with pytest.raises(ManifestDamaged, match="part of no save"):
        decode(encode(replace(HEAD, save="")))
    with pytest.raises(ManifestDamaged, match="names no save"):
        decode(encode(replace(HEAD, save="../../other")))
