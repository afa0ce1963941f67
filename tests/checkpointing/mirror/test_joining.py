"""Nodes that send their parts of one checkpoint: it is in the mirror once the last part is, and a restore brings all of it, or nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from checkpointing import examine
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check, documents
from checkpointing.manifest.documents import About, NodePart
from checkpointing.mirror import joining, keys, listing, removal, restore
from checkpointing.mirror.backends import Unavailable
from checkpointing.mirror.restore import PartsMissing, PathOccupied
from checkpointing.mirror.source import TransferControl, held_files
from checkpointing.mirror.upload import CheckpointUpload
from checkpointing.model import Verdict
from checkpointing.verification import verify, verify_part
from supervisor.checkpoints.mirror.waiting import WaitingUploads
from tests.checkpointing.formats.directories.test_rank_shards import deepspeed
from tests.checkpointing.mirror.process import upload, waiting
from tests.support import node_parts

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from checkpointing.mirror.backends import Backend
    from tests.checkpointing.mirror.process import Place

SAVE, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node_parts.save_whole(tmp_path_factory.mktemp("dcp") / "step_40")


class Nodes:
    """Two nodes, each with its part of a checkpoint in a directory of its own."""

    def __init__(self, home: Path, whole: Path, backend: Backend, save: str = SAVE, files: node_parts.Files = node_parts.FILES) -> None:
        self.whole, self.backend, self.save, self._home = whole, backend, save, home
        self.paths = node_parts.split(whole, home / "node-0", home / "node-1", files=files)

    def part(self, node: int, *, save: str = "") -> Manifest:
        """Return what a node records of its part."""
        part = verify_part(str(self.paths[node]), ReadOptions())
        assert part is not None
        manifest = check.build(part.present, About("job", f"run-{node}", began=100, attempt=1))
        return replace(manifest, host=f"host-{node}", save=save or self.save, part=NodePart(node, part.absent, part.leads))

    def send(self, node: int, *, save: str = "") -> str:
        """Send a node's part, as its mirror process does."""
        manifest = self.part(node, save=save)
        entry = waiting(str(self.paths[node]), documents.encode(manifest))
        return upload(self.backend, entry, TransferControl(pause=lambda _s: None))

    def restore(self, node: int) -> restore.Restored | None:
        """Restore to where a node saves, as its supervisor does: only that place is permitted."""
        own = str(self.paths[node].parent)
        return restore.newest(
            [self.backend], "job", refusal=lambda path: None if path.startswith(f"{own}/") else ("is elsewhere", "move it")
        )

    def is_whole(self, node: int) -> bool:
        """Return whether a node has all files, as they were saved."""
        here = {path.name: path.read_bytes() for path in self.paths[node].iterdir()}
        return here == {path.name: path.read_bytes() for path in self.whole.iterdir()}


@pytest.fixture
def nodes(place: Place, whole: Path) -> Nodes:
    return Nodes(place.home, whole, place.backend())


def test_a_part_with_the_content_of_a_waiting_part_is_sent_too(nodes: Nodes, tmp_path: Path) -> None:
    frozen = [nodes.part(1, save=save) for save in (SAVE, OTHER)]
    assert frozen[0].id == frozen[1].id
    waiting_uploads = WaitingUploads(CheckpointCatalogue(tmp_path / "state", is_writer=True), tmp_path / "state")
    held = [waiting_uploads.hold(manifest) for manifest in frozen]
    assert [row.id for row in waiting_uploads.rows()] == [SAVE, OTHER]
    assert waiting_uploads.hold(frozen[1]) == held[1]


@pytest.mark.process
@pytest.mark.parametrize("first", [0, 1])
def test_the_last_part_makes_the_checkpoint_and_each_node_gets_all_of_it(nodes: Nodes, place: Place, first: int) -> None:
    assert nodes.send(first) == ""
    assert nodes.restore(0) is None, "it was never a checkpoint"
    with pytest.raises(PartsMissing, match=r"not all nodes have sent their part: .* sent by host-"):
        restore.of_save([nodes.backend], "job", SAVE)
    key = nodes.send(1 - first)
    assert key == f"job/nodes/parts/step-40/{SAVE}/"
    assert sorted(name.removeprefix(key) for name in place.objects()) == [
        "data/.metadata",
        "data/__0_0.distcp",
        "data/__0_1.distcp",
        "manifest.json",
        "parts/0.json",
        "parts/1.json",
    ]
    shutil.rmtree(nodes.paths[1].parent)  # this node's disk was wiped, the other's has its part
    before = (nodes.paths[0] / "__0_0.distcp").stat()
    for node in (0, 1):
        done = nodes.restore(node)
        assert done is not None
        assert (done.path, done.manifest.step, done.is_proven) == (str(nodes.paths[node]), 40, True)
        assert nodes.is_whole(node)
        assert verify(str(nodes.paths[node])).verdict is Verdict.VERIFIED
        assert list(nodes.paths[node].parent.iterdir()) == [nodes.paths[node]], "nothing is left beside it"
    after = (nodes.paths[0] / "__0_0.distcp").stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns), "what was there was not touched"
    again = nodes.restore(0)
    assert again is not None
    assert again.fetched_bytes == 0
    by_hand = restore.newest([nodes.backend], "job", into=str(place.home / "elsewhere"))  # supervise checkpoints restore --to
    assert by_hand is not None
    assert verify(by_hand.path).verdict is Verdict.VERIFIED


@pytest.mark.slow
@pytest.mark.process
def test_shards_of_deepspeed_are_one_checkpoint_to_which_latest_leads(place: Place, tmp_path: Path) -> None:
    whole = deepspeed(tmp_path / "whole", dp=4)
    names = sorted(path.name for path in whole.iterdir())
    second = tuple(name for name in names if "rank_2_" in name or "rank_3_" in name)
    nodes = Nodes(place.home, whole, place.backend(), files=(tuple(name for name in names if name not in second), second))
    assert nodes.send(1) == ""
    assert nodes.send(0)
    for node in (0, 1):
        assert nodes.restore(node) is not None
        assert nodes.is_whole(node)
        assert (nodes.paths[node].parent / "latest").read_text() == whole.name
        assert [verification.verdict for verification in examine.look(str(nodes.paths[node].parent))] == [Verdict.VERIFIED]


@pytest.mark.process
def test_a_node_that_dies_between_its_part_and_the_joint_manifest(nodes: Nodes, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.send(0)

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(joining, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            nodes.send(1)
    manifest = f"job/nodes/parts/step-40/{SAVE}/manifest.json"
    assert manifest not in place.objects()
    shutil.rmtree(nodes.paths[1])
    done = restore.of_save([nodes.backend], "job", SAVE, refusal=lambda path: None if "node-1" in path else ("is elsewhere", ""))
    assert done.path == str(nodes.paths[1])
    assert nodes.is_whole(1)
    assert manifest in place.objects(), "the reader wrote it"


@pytest.mark.slow
@pytest.mark.process
def test_a_node_that_died_during_its_upload_continues(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.send(1)
    real, n_puts = type(nodes.backend).put, 0

    def put(self: Backend, key: str, body: object) -> object:
        nonlocal n_puts
        n_puts += 1
        if n_puts > 1:
            raise KeyboardInterrupt
        return real(self, key, body)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(type(nodes.backend), "put", put)
        with pytest.raises(KeyboardInterrupt):
            nodes.send(0)
    assert nodes.restore(0) is None
    assert nodes.send(0)
    assert nodes.restore(0) is not None
    assert nodes.is_whole(0)


@pytest.mark.process
def test_parts_of_two_saves_are_never_one_checkpoint(nodes: Nodes, tmp_path: Path) -> None:
    """The same directory, saved twice: one node was killed in the second save, and its part of the first had arrived."""
    later = Nodes(tmp_path / "later", node_parts.save_whole(tmp_path / "again" / "step_40", seed=2), nodes.backend, OTHER)
    nodes.send(1)
    later.send(0)
    assert listing.newest_first(nodes.backend, "job")[0] == []
    assert nodes.restore(0) is None
    nodes.send(0)
    (checkpoint,) = listing.newest_first(nodes.backend, "job")[0]
    assert checkpoint.manifest.save == SAVE
    assert later.send(1)
    assert {entry.manifest.save for entry in listing.newest_first(nodes.backend, "job")[0]} == {SAVE, OTHER}


@pytest.mark.slow
@pytest.mark.process
def test_a_nodes_differing_files_stay_and_nothing_is_mixed(nodes: Nodes) -> None:
    nodes.send(0)
    nodes.send(1)
    shard = nodes.paths[0] / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")  # torn by a later save
    before = {path.name: path.read_bytes() for path in nodes.paths[0].iterdir()}
    with pytest.raises(PathOccupied):
        nodes.restore(0)
    assert {path.name: path.read_bytes() for path in nodes.paths[0].iterdir()} == before


@pytest.mark.process
def test_a_kill_while_the_missing_files_are_put_in_place_leaves_what_the_next_start_completes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.send(0)
    nodes.send(1)
    from checkpointing.io import durable  # noqa: PLC0415 -- what is patched

    real = durable.rename_exclusive

    def rename(source: str, target: str) -> None:
        if target.endswith("/.metadata"):
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "rename_exclusive", rename)
        with pytest.raises(KeyboardInterrupt):
            nodes.restore(1)
    assert verify(str(nodes.paths[1])).verdict is Verdict.INCOMPLETE
    assert nodes.restore(1) is not None
    assert nodes.is_whole(1)


@pytest.mark.process
def test_a_part_that_changed_is_removed_without_those_of_other_nodes(nodes: Nodes, place: Place) -> None:
    nodes.send(0)
    sent = set(place.objects())
    part = nodes.part(1)
    upload = CheckpointUpload(nodes.backend, keys.key_of(part), TransferControl())
    key = upload.complete(part, documents.encode(part), held_files(str(nodes.paths[1]), part))
    assert key + keys.MANIFEST in place.objects()
    assert upload.abandon() == ()
    assert set(place.objects()) == sent
    nodes.send(1)
    removal.remove(nodes.backend, key)
    assert place.objects() == {}


@pytest.mark.slow
@pytest.mark.process
def test_a_mirror_that_is_away_when_the_parts_are_joined_is_asked_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.send(0)
    real, n_calls = joining.write, 0

    def write(backend: Backend, key: str) -> bool:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            raise Unavailable("503", hint="")
        return real(backend, key)

    monkeypatch.setattr(joining, "write", write)
    assert nodes.send(1)
    assert n_calls == 2
