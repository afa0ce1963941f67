"""Manifests: what they say, what is refused, and where they are kept."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io import staging
from checkpointing.manifest import digest, documents
from checkpointing.manifest.documents import VERSION, About, File, Manifest, ManifestDamaged, Manifests, Newer, NodePart
from checkpointing.model import Identity, Lineage, NonFinite
from tests.support.pages import page_text

if TYPE_CHECKING:
    from pathlib import Path


def file_of(path: str, content: bytes, part_bytes: int = 10, *, sha256: bool = False) -> File:
    hasher = digest.Hasher(part_bytes=part_bytes, sha256=sha256)
    hasher.update(memoryview(content))
    checksums = hasher.digest()
    return File(path, checksums.n_bytes, checksums.crc64nvme, checksums.parts, checksums.sha256)


TREE = Manifest(
    name="global_step300",
    is_tree=True,
    layout="deepspeed",
    files=(file_of("empty", b""), file_of("größe/rank_0.pt", b"0123456789abcdef", sha256=True)),
    path="/job/ckpt/global_step300",
    identity=Identity(1, 2, 16, 1795231314100015330),
    host="node-3",
    step=300,
    within=(2, 100),
    about=About("gpt2", "run-1", 8, (("batch_size", "16"),)),
    made_unix_s=1795262517,
    part_bytes=10,
)
FILE = Manifest(
    "a.pt", is_tree=False, layout="", files=(file_of("a.pt", b"x"),), path="/a.pt", identity=Identity(1, 2, 1, 3), part_bytes=10, epoch=4
)


def signed(document: dict[str, Any]) -> bytes:
    """A document with the digest that fits it, as a writer of another version makes it."""
    document.pop("digest", None)
    return json.dumps({**document, "digest": documents._own_digest(document)}).encode()  # noqa: SLF001 -- to break all but this


@pytest.mark.parametrize("manifest", [TREE, FILE], ids=["tree", "file"])
def test_a_written_manifest_is_read_back(manifest: Manifest) -> None:
    raw = documents.encode(manifest)
    assert documents.decode(raw) == manifest
    # the digest is about what is said, not how it is laid out
    assert documents.decode(json.dumps(json.loads(raw), indent=3, ensure_ascii=False).encode()) == manifest


def test_each_member_is_on_the_page() -> None:
    finite = (NonFinite("w", "NaN", 3, was_finite=True, finite_step=1),)
    part = replace(FILE, save="0" * 16, part=NodePart(0, (("b.pt", None),), leads=True), content_step=7, non_finite=finite)
    page = page_text("checkpoint-format.md").partition("## The document")[2].partition("## Identity")[0]
    for document in (json.loads(documents.encode(TREE)), json.loads(documents.encode(part))):
        for name in (*document, *document["files"][-1], *document["source"], *document.get("part", ())):
            assert f"`{name}`" in page


def test_every_cut_and_every_flip_shows() -> None:
    raw = documents.encode(TREE).rstrip()
    for at in range(len(raw)):
        with pytest.raises(ManifestDamaged):
            documents.decode(raw[:at])
    chance = random.Random(5)  # noqa: S311 -- the same ones each time
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << chance.randrange(8)
        try:
            read = documents.decode(bytes(flipped))
        except ManifestDamaged:
            continue
        assert read == TREE, at  # an escape in capitals says the same


def test_a_later_version_is_read_as_long_as_it_allows_that() -> None:
    document = json.loads(documents.encode(TREE))
    later = {**document, "version": 7, "colour": {"of": "blue"}, "files": [{**row, "blake3": "00"} for row in document["files"]]}
    assert documents.decode(signed(later)) == TREE
    with pytest.raises(Newer, match=f"version {VERSION + 1}"):
        documents.decode(signed({**document, "reader": VERSION + 1, "files": "elsewhere"}))


def test_a_manifest_of_version_1_is_read_and_has_no_lineage() -> None:
    manifest = replace(TREE, saved_unix_ns=7, about=replace(TREE.about, began=5, attempt=2))
    document = json.loads(documents.encode(manifest))
    assert documents.decode(documents.encode(manifest)) == manifest
    assert manifest.about.lineage == Lineage(5, "run-1", 2)
    old = {name: value for name, value in document.items() if name not in {"saved_unix_ns", "run_began_unix_s", "attempt"}}
    read = documents.decode(signed({**old, "version": 1}))
    assert read == replace(TREE, saved_unix_ns=0)
    assert (document["reader"], read.about.lineage, read.saved_ns) == (1, None, TREE.made_unix_s * 10**9)


def replaced(**members: Any) -> dict[str, Any]:  # noqa: ANN401 -- whatever JSON has
    return {**json.loads(documents.encode(TREE)), **members}


def with_file(**members: Any) -> dict[str, Any]:  # noqa: ANN401 -- whatever JSON has
    document = json.loads(documents.encode(TREE))
    document["files"][1].update(members)
    return document


WRONG: dict[str, dict[str, Any]] = {
    "another_document": replaced(format="card"),
    "leads_up": with_file(path="../rank_0.pt"),
    "absolute": with_file(path="/etc/passwd"),
    "name_is_a_path": replaced(name="a/b"),
    "name_leads_up": replaced(name=".."),
    "a_nul": with_file(path="a\0b"),
    "parts_do_not_combine": with_file(parts=["00" * 8, "00" * 8]),
    "a_part_is_missing": with_file(parts=[]),
    "sizes_do_not_add_up": replaced(bytes=17),
    "no_files": replaced(files=[], bytes=0),
    "twice_the_same": replaced(files=[json.loads(documents.encode(TREE))["files"][0]] * 2, bytes=0),
    "true_is_no_count": replaced(step=True),
    "negative": replaced(step=-1),
    "a_fraction": replaced(step=1.5),
    "parts_of_nothing": replaced(part_bytes=0),
    "half_a_pair": replaced(within=[1]),
    "kind": replaced(kind="pipe"),
    "a_file_that_is_two": replaced(kind="file"),
    "sha": with_file(sha256="zz"),
    "source": replaced(source=None),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_nonsensical_manifest_is_refused_though_its_digest_fits(name: str) -> None:
    with pytest.raises(ManifestDamaged):
        documents.decode(signed(WRONG[name]))


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"format": "supervise-checkpoint"}'])
def test_bytes_that_are_no_manifest_are_refused(raw: bytes) -> None:
    with pytest.raises(ManifestDamaged):
        documents.decode(raw)


def test_a_name_that_occurs_twice_is_refused() -> None:
    raw = documents.encode(TREE)
    with pytest.raises(ManifestDamaged, match="twice"):
        documents.decode(raw.replace(b'"step":300', b'"step":300,"step":300'))


def test_contents_have_ids_of_their_own() -> None:
    other = Manifest("a.pt", is_tree=False, layout="", files=(file_of("a.pt", b"y"),), path="/b", identity=FILE.identity, part_bytes=10)
    assert FILE.id != other.id
    assert len(FILE.id) == 16


def test_the_last_manifest_of_a_path_is_kept(tmp_path: Path) -> None:
    kept = Manifests(CheckpointCatalogue(tmp_path / "state", is_writer=True))
    assert (kept.get("/a.pt"), list(kept.all())) == (None, [])
    assert kept.put(TREE)
    assert kept.put(FILE)
    renewed = replace(FILE, step=9)
    assert kept.put(renewed)
    assert (kept.get("/a.pt"), kept.get(TREE.path), kept.get("/b.pt")) == (renewed, TREE, None)
    assert sorted(manifest.name for manifest in kept.all()) == ["a.pt", "global_step300"]
    assert not list((tmp_path / "state").rglob(".*"))


def test_a_manifest_of_a_terabyte_comes_back_as_it_was(tmp_path: Path) -> None:
    parts = tuple((number * 0x9E3779B97F4A7C15) & (1 << 64) - 1 for number in range(1 << 15))
    large = replace(FILE, files=(File("a.pt", 1 << 40, 2**64 - 1, parts),), part_bytes=32 << 20, non_finite=(NonFinite("w", "NaN", 2**40),))
    Manifests(CheckpointCatalogue(tmp_path, is_writer=True)).put(large)
    assert Manifests(CheckpointCatalogue(tmp_path)).get("/a.pt") == large


def test_only_what_is_surely_gone_is_swept(tmp_path: Path) -> None:
    kept = Manifests(CheckpointCatalogue(tmp_path / "state", is_writer=True))
    (tmp_path / "there.pt").touch()
    (tmp_path / "mounted_on").mkdir()
    for path in ("there.pt", "gone.pt", "not_mounted/x.pt", "mounted_on/y.pt"):
        manifest = Manifest("a.pt", False, "", FILE.files, str(tmp_path / path), FILE.identity, part_bytes=10)  # noqa: FBT003 -- no tree
        kept.put(manifest)
    assert kept.sweep() == 1
    assert sorted(kept_manifest.path.removeprefix(f"{tmp_path}/") for kept_manifest in kept.all()) == [
        "mounted_on/y.pt",
        "not_mounted/x.pt",
        "there.pt",
    ]


def test_threads_may_write_one_name_at_the_same_time(tmp_path: Path) -> None:
    target = str(tmp_path / "one.json")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: staging.write(target, bytes([number]) * 1000), range(64)))  # raises what any of them raised
    content = (tmp_path / "one.json").read_bytes()
    assert content == content[:1] * 1000
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
