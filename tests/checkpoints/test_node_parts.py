"""Nodes with directories of their own, each with a shard: they resume from a save that every node ended, once the mirror has all of it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from checkpointing.manifest import documents
from checkpointing.manifest.documents import PART, Manifest
from checkpointing.mirror import keys
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl
from checkpointing.model import Verdict
from checkpointing.retention import free_space, prune
from checkpointing.verification import verify
from supervisor.checkpoints import node_agreement
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.mirror import restore_process
from supervisor.core.actions import SelectCheckpoint
from tests.checkpointing.mirror.process import upload, waiting
from tests.checkpoints.test_node_agreement import Nodes, ignore
from tests.support import forked_popen, node_parts
from tests.support.few import few
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    forked_popen.use_forks(monkeypatch)


class Uploads:
    """Takes the place of one node's mirror process: it sends at once, or when it is released."""

    def __init__(self, state: Path, mirror: str) -> None:
        self._state, self._backend = state, open_backend(mirror)
        self.held, self.waiting, self.n_asked, self.n_sent = False, list[tuple[str, Manifest]](), 0, 0

    def send(self, manifest: Manifest) -> None:
        """Send a part."""
        self.waiting.append((manifest.path, manifest))
        if not self.held:
            self.release()

    def is_sending(self, path: str, _content: str) -> bool:
        """Return whether it waits; at the third question it is sent."""
        is_waiting = any(path == waiting for waiting, _ in self.waiting)
        self.n_asked += is_waiting
        if self.n_asked > 2:
            self.release()
        return is_waiting

    def held_paths(self) -> dict[str, frozenset[str]]:
        """No mirror holds anything."""
        return {}

    def whole_saves(self) -> frozenset[str]:
        """Return what is whole in the mirror now."""
        return frozenset(key for key in self._keys() if keys.holds_parts(key))

    def _keys(self) -> list[str]:
        return [stored.key.removesuffix(keys.MANIFEST) for stored in self._backend.list("job/") if stored.key.endswith(f"/{keys.MANIFEST}")]

    def drop(self, path: str) -> None:
        """Never send a part, because newer ones wait."""
        self.waiting = [upload for upload in self.waiting if upload[0] != path]

    def release(self) -> None:
        """Send what waits."""
        unsent, self.waiting = self.waiting, []
        self.n_sent += len(unsent)
        for path, manifest in unsent:
            entry = waiting(path, documents.encode(manifest))
            upload(self._backend, entry, TransferControl())


class PartNodes(Nodes):
    """Two nodes whose ranks save together with torch.distributed.checkpoint, each to its own disk."""

    def __init__(self, place: Path, *, with_mirror: bool = True, is_second_early: bool = False, **keep: int) -> None:
        """`is_second_early`: the run of node 1 began before that of node 0. keep: settings of the checkpoints."""
        mirror = place / "mirror"
        mirror.mkdir()
        super().__init__(place, 2, shared=False, pattern="step_*", mirror=(str(mirror),), **keep)
        self._place, self._n_saves, self._n_made = place, 0, 0
        self.uploads = [Uploads(node.records.job.state, str(mirror)) for node in self.nodes]
        for node in (0, 1) if with_mirror else ():
            self.connect(node)
        if is_second_early:
            self.nodes[0].records.begin_run()
            self.nodes[0].records.order.restored(int(time.time()) + 100)
        self.attempt(1)

    def connect(self, node: int) -> None:
        """Give a node its mirror."""
        node_side = self.nodes[node]
        node_side.mirror_feed(self.uploads[node], lambda: None)
        node_side.restore_saves_with(lambda save, job=node_side.records.job: restore_process.restore(job, lambda _text: None, save))  # type: ignore[misc]

    def take_over(self, node: int) -> None:
        """Have a new supervisor continue with the run of one that was killed."""
        self.nodes[node] = JobCheckpoints(self.nodes[node].records.job, ignore, several_nodes=True)
        self.nodes[node].node_offer.look_s = 0.0
        self.connect(node)

    def attempt(self, number: int) -> list[int | None]:
        """Agree, and begin an attempt. Return the step that each node resumes from."""
        selections = self.agree(*(SelectCheckpoint(number, nodes=2, node=n, last_agreement=number - 1) for n in range(2)))
        for node in self.nodes:
            node.began(number)
        self.number, self.selections, self._n_saves = number, selections, 0
        return self.steps(selections)

    def save_together(self, step: int, *, cut: int | None = None, seed: int = 1, is_nan: bool = False) -> None:
        """Save a step on both nodes, and log it as the ranks do. The rank of node `cut` is killed in it."""
        self._n_saves += 1
        self._n_made += 1
        whole = node_parts.save_whole(self._place / f"whole-{self._n_made}" / f"step_{step}", step, seed, is_nan=is_nan)
        for node, node_side in enumerate(self.nodes):
            path = self.directories[node] / whole.name
            log = node_side.records.job.attempt_dir(self.number) / "saves-0.jsonl"
            log.parent.mkdir(parents=True, exist_ok=True)
            row = {"path": str(path), "n": self._n_saves, "t": time.time(), "via": "dcp", "steps": step}
            rows = [{**row, "what": "began", "was": [*stat(path)[:2], -1, 0] if path.exists() else None}]
            path.mkdir(exist_ok=True)
            for name in node_parts.FILES[node] if cut is None else node_parts.FILES[node][-1:]:
                shutil.copyfile(whole / name, path / name)
            if cut != node:
                rows.append({**row, "what": "ended", "well": cut is None, "now": [*stat(path)[:2], -1, 0]})
            with log.open("a") as out:
                out.writelines(json.dumps(one_row) + "\n" for one_row in rows)

    def send_parts(self, *nodes: int) -> None:
        """Let nodes record and send their parts, as their watchers do while the ranks run."""
        for node in nodes:
            self.nodes[node].records.absorb()
            self.nodes[node].node_offer.record_parts()
            assert self.uploads[node].n_sent

    def look(self, *nodes: int) -> None:
        """Let the watchers of nodes look exactly twice: a look sends parts, and the next sees what is whole with them."""
        for node in nodes:
            node_side = self.nodes[node]
            for _ in range(2):
                watcher = node_side.watcher(node_side.node_offer.feed)
                assert watcher is not None
                watcher.finish(0.0)  # its first look is the last
                watcher.start()
                assert watcher.finish(PATIENCE_S)

    def on_disk(self, node: int) -> list[int]:
        """Return the steps of which a node has anything."""
        return sorted(int(path.name.removeprefix("step_")) for path in self.directories[node].iterdir() if not path.name.startswith("."))

    def are_whole(self, step: int) -> bool:
        """Return whether each node has all of a step."""
        return all(verify(str(directory / f"step_{step}")).verdict is Verdict.VERIFIED for directory in self.directories)


def stat(path: Path) -> tuple[int, int]:
    st = path.stat()
    return st.st_dev, st.st_ino


def test_each_node_gets_the_rest_of_the_newest_save_and_all_resume_from_it(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(20)
    nodes.save_together(40)
    assert nodes.attempt(2) == [40, 40]
    assert nodes.are_whole(40)
    assert not nodes.are_whole(20), "only what is resumed from is brought"
    nodes.save_together(60)
    assert nodes.attempt(3) == [60, 60]
    assert nodes.attempt(4) == [60, 60], "it is here now"


def test_a_wiped_disk_is_filled_from_the_mirror(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(40)
    nodes.send_parts(0, 1)
    shutil.rmtree(nodes.directories[1])
    nodes.directories[1].mkdir()
    assert nodes.attempt(2) == [40, 40]
    assert nodes.are_whole(40)


@pytest.mark.parametrize("cut", few([0, 1]))
def test_a_save_in_which_a_node_was_killed_is_no_checkpoint_and_all_take_the_one_before(tmp_path: Path, cut: int) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(40)
    nodes.save_together(60, cut=cut)
    assert nodes.attempt(2) == [40, 40]
    assert "step_60" in str(nodes.selections[0].refused)


def test_a_directory_that_is_saved_to_again_never_gives_a_mix_of_two_saves(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(20)
    nodes.save_together(40, seed=1)
    nodes.send_parts(1)  # of the first save; then both save again, and one is killed
    nodes.save_together(40, cut=1, seed=2)
    assert nodes.attempt(2) == [20, 20]


@pytest.mark.slow
def test_a_directory_that_is_saved_to_again_with_the_same_content_is_sent_again(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(40)
    nodes.send_parts(0, 1)
    before = nodes.uploads[0].whole_saves()
    nodes.save_together(40)
    nodes.send_parts(0, 1)
    assert len(before) == 1
    assert len(nodes.uploads[0].whole_saves()) == 2
    assert nodes.attempt(2) == [40, 40]


def test_a_supervisor_that_takes_over_records_the_part_of_the_last_save(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(20)
    nodes.save_together(40)
    nodes.take_over(1)
    assert nodes.attempt(2) == [40, 40]


def test_a_record_of_parts_that_cannot_be_written_is_reported_and_one_of_a_part_that_is_gone_is_removed(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(20)
    nodes.save_together(40)
    nodes.send_parts(0, 1)
    node = nodes.nodes[0]
    catalogue = node.records.catalogue
    assert len(catalogue.all(PART)) == 2
    shutil.rmtree(nodes.directories[0] / "step_20")
    watcher = node.watcher(node.node_offer.feed)
    assert watcher is not None
    watcher.start()
    assert watcher.finish(PATIENCE_S)
    (left,) = catalogue.all(PART)
    assert left.step == 40
    content = catalogue.file.read_bytes()
    catalogue.file.write_bytes(content.replace(b'"save":"', b'"save" "'))
    assert not list(node.node_offer.saves(()))
    assert str(catalogue.file) in str(node.problems)


@pytest.mark.slow
def test_parts_of_two_saves_to_one_directory_are_never_joined(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path)
    nodes.save_together(20)
    nodes.save_together(40, seed=1)
    nodes.send_parts(1)
    nodes.save_together(40, seed=2)
    nodes.send_parts(0)
    shutil.rmtree(nodes.directories[1] / "step_40")  # this node has sent what it had in the first save, that one what it has of the second
    assert nodes.attempt(2) == [20, 20]


def test_a_part_that_is_still_sent_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agreement, "LOOK_AGAIN_S", 0.01)
    nodes = PartNodes(tmp_path)
    nodes.uploads[1].held = True
    nodes.save_together(20)
    assert nodes.attempt(2) == [20, 20]
    assert nodes.uploads[1].n_asked > 2


@pytest.mark.slow
def test_a_part_that_no_node_sends_any_more_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agreement, "LOOK_AGAIN_S", 1e9)
    nodes = PartNodes(tmp_path)
    nodes.save_together(20)
    nodes.send_parts(0)
    shutil.rmtree(nodes.directories[1])  # with the part, and with what knew of it
    nodes.directories[1].mkdir()
    assert nodes.attempt(2) == [None, None]
    assert all("not all nodes have sent their part" in str(selection.node_offers) for selection in nodes.selections)


def test_without_a_mirror_all_nodes_stop_and_learn_the_missing_parts(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, with_mirror=False)
    nodes.save_together(40)
    assert nodes.attempt(2) == [None, None]
    for node_side in nodes.selections:
        assert "no --mirror holds them all" in str(node_side.node_offers)
        assert [text for _, text in node_side.node_offers[:2]] == [
            f"step 40, {directory}/step_40, of which other nodes have the rest" for directory in nodes.directories
        ]
        for node in (0, 1):
            source, target = f"n{1 - node}:{nodes.directories[1 - node]}/step_40", f"{nodes.directories[node]}/"
            assert f"on n{node}: rsync -a --ignore-existing {source} {target}" in node_side.remedy


def test_keep_removes_the_parts_of_saves_that_the_mirror_has_whole(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=2)
    for step in (20, 40, 60, 80):
        nodes.save_together(step)
        nodes.look(0, 1)
    nodes.look(0)  # it sent its part of 80 before the other did
    assert [nodes.on_disk(node) for node in (0, 1)] == [[60, 80]] * 2
    assert nodes.attempt(2) == [80, 80]
    assert nodes.are_whole(80)


def test_keep_removes_no_part_whose_whole_is_not_in_the_mirror(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    nodes.save_together(20)
    nodes.look(0, 1)
    nodes.uploads[1].held = True  # its link is slow
    for step in (40, 60):
        nodes.save_together(step)
        nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[20, 40, 60]] * 2, "only 20 is whole, and the newest that is stays"
    nodes.uploads[1].drop(f"{nodes.directories[1]}/step_40")
    nodes.uploads[1].release()
    nodes.look(0, 1)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[40, 60]] * 2


def test_a_disk_without_room_for_the_next_parts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, int]] = []

    def forecast(directory: str, n_bytes: int) -> free_space.Forecast:
        requests.append((directory, n_bytes))
        return free_space.Forecast(directory, free_space.Room.ENOUGH, n_bytes, 2, 0)

    monkeypatch.setattr(free_space, "forecast", forecast)
    nodes = PartNodes(tmp_path)
    nodes.save_together(20)
    nodes.look(1)
    part = sum((nodes.directories[1] / "step_20" / name).stat().st_size for name in node_parts.FILES[1])
    assert requests == [(str(nodes.directories[1]), part)]


def test_keep_leaves_a_part_whose_save_another_node_did_not_end(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    nodes.save_together(20)
    nodes.save_together(40, cut=1)
    nodes.look(0, 1)
    assert nodes.attempt(2) == [20, 20]
    for step in (60, 80):
        nodes.save_together(step)
        nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[20, 40, 80]] * 2, "20 is what they resumed from, and 40 is in no mirror"


@pytest.mark.slow
def test_keep_removes_what_was_brought_from_the_mirror_once_the_nodes_resume_from_a_newer_one(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    nodes.save_together(20)
    nodes.look(0, 1)
    assert nodes.attempt(2) == [20, 20]
    nodes.look(0, 1)
    for step in (40, 60):
        nodes.save_together(step)
        nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[20, 60]] * 2
    assert nodes.are_whole(20)
    assert nodes.attempt(3) == [60, 60]
    nodes.save_together(80)
    nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[60, 80]] * 2
    assert nodes.are_whole(60)


def test_keep_removes_nothing_while_the_nodes_agree(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    for step in (20, 40):
        nodes.save_together(step)
    nodes.send_parts(0, 1)
    for node_side in nodes.nodes:
        node_side.node_offer.list_checkpoints((), ())
    nodes.look(0, 1)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[20, 40]] * 2
    for node_side in nodes.nodes:
        node_side.began(1)
    nodes.save_together(60)
    nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[60]] * 2


@pytest.mark.slow
def test_nodes_that_agree_wait_for_one_removal_and_not_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, destroy = PartNodes(tmp_path, keep=1), prune._destroy  # noqa: SLF001
    for step in (20, 40, 60):
        nodes.save_together(step)
        nodes.send_parts(0, 1)
    retention = nodes.nodes[0].retention
    agreeing, waits = threading.Thread(target=retention.pause), list[bool]()

    def destroyed(hidden: str) -> None:  # in a watcher's thread, which reports what is raised
        agreeing.start()
        wait_for(lambda: retention._is_paused, "the nodes to begin to agree", 20.0)  # noqa: SLF001
        agreeing.join(0.2)
        waits.append(agreeing.is_alive())
        destroy(hidden)

    monkeypatch.setattr(prune, "_destroy", destroyed)
    nodes.look(0)
    agreeing.join(PATIENCE_S)
    assert not agreeing.is_alive()
    assert waits == [True], "for this one"
    assert nodes.on_disk(0) == [40, 60]
    retention.go_on()
    monkeypatch.undo()
    nodes.save_together(80)
    nodes.look(1, 0)
    assert nodes.on_disk(0) == [80]


@pytest.mark.slow
def test_a_supervisor_that_takes_over_removes_the_older_parts_of_its_run(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    for step in (20, 40):
        nodes.save_together(step)
    nodes.send_parts(0, 1)
    for node in (0, 1):
        nodes.take_over(node)
    nodes.look(0, 1)
    assert nodes.on_disk(0) == [20, 40], "the nodes have not met: they may resume from any"
    assert nodes.attempt(2) == [40, 40]
    nodes.save_together(60)
    nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[40, 60]] * 2


@pytest.mark.parametrize("changes", few(["a file of somebody's", "written since", "a link leads to it"]))
def test_keep_leaves_a_part_that_was_changed_since_its_save(tmp_path: Path, changes: str) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    nodes.save_together(20)
    nodes.look(0, 1)
    part = nodes.directories[0] / "step_20"
    if changes == "a link leads to it":
        (tmp_path / "best").symlink_to(part)
    else:
        (part / ("notes.txt" if changes == "a file of somebody's" else node_parts.FILES[0][-1])).write_bytes(b"mine")
    nodes.save_together(40)
    nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[20, 40], [40]]


@pytest.mark.slow
def test_the_first_part_of_each_so_many_steps_stays(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1, keep_every=50)
    for step in (20, 40, 60, 80, 100):
        nodes.save_together(step)
        nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[20, 60, 100]] * 2


def test_the_last_part_of_before_the_weights_turned_to_nan_stays(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    for step in (20, 40, 60, 80):
        nodes.save_together(step, is_nan=step > 40)
        nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[40, 80], [80]], "node 0 has the metadata, which names the weights"
    (joint,) = (tmp_path / "mirror").glob("job/nodes/parts/step-80/*/manifest.json")
    assert documents.decode(joint.read_bytes()).has_lost_weights, "so the mirror keeps the last finite one, too"
    assert nodes.attempt(2) == [40, 40]


@pytest.mark.slow
def test_a_checkpoint_brought_by_a_node_is_ordered_by_this_nodes_run(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=2, is_second_early=True)  # each node counts its own run, and the joint manifest has that of node 0
    for attempt, step in ((2, 20), (3, 40)):
        nodes.save_together(step)
        nodes.look(0, 1)
        assert nodes.attempt(attempt) == [step] * 2
    for step in (60, 80):
        nodes.save_together(step)
        nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[40, 60, 80]] * 2


@pytest.mark.slow
def test_the_parts_that_were_saved_last_stay_whatever_their_order(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=2)
    for step in (60, 80, 20, 40, 10, 30):  # a part can lack the step that the whole has, and the order is of steps
        nodes.save_together(step)
        nodes.look(0, 1)
    nodes.look(0)
    assert [nodes.on_disk(node) for node in (0, 1)] == [[10, 30, 60, 80]] * 2


@pytest.mark.slow
def test_a_part_that_is_saved_anew_when_the_older_ones_are_to_go_lets_none_go(tmp_path: Path) -> None:
    nodes = PartNodes(tmp_path, keep=1)
    nodes.save_together(20)
    nodes.look(0, 1)
    node = nodes.nodes[0]
    feed, parts = node.node_offer.feed, node._parts  # noqa: SLF001
    assert feed is not None
    (manifest,) = feed.whole(parts)
    (Path(manifest.path) / node_parts.FILES[0][-1]).write_bytes(b"the next save to the same directory")
    node.retention.prune(manifest, node.recorder, feed, parts)
    assert nodes.on_disk(0) == [20]
