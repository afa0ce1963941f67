"""Which checkpoint is newer: by run, attempt and step, on one node and in a mirror in which the runs of several nodes meet."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing import ordering
from checkpointing.candidates import SelectionOptions
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.lineage import Lineages
from checkpointing.manifest import check
from checkpointing.manifest.documents import About, File, Manifest, Manifests
from checkpointing.mirror import keys, removal
from checkpointing.mirror.listing import MirroredCheckpoint, MirrorLocation
from checkpointing.model import UNKNOWN_LINEAGE, Candidate, Identity, Lineage, NonFinite
from checkpointing.ordering import Generations, Order, RollBack
from checkpointing.retention import rules
from checkpointing.select import newest
from checkpointing.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from checkpointing.mirror.backends import Backend


def manifest_of(step: int | None, run: str, saved_s: int, lineage: tuple[int, int] | None = None, name: str = "") -> Manifest:
    """Describe a file; `lineage` is when its run began and its attempt."""
    began, attempt = lineage or (None, None)
    file = File(name or f"{run}-{step}", 0, 0, ())
    path, identity = f"/ckpt/{name or step}", Identity(1, 1, 0, saved_s * 10**9)
    about = About("job", run, began=began, attempt=attempt)
    return Manifest(file.path, is_tree=False, layout="", files=(file,), path=path, identity=identity, step=step, about=about)


def in_order(*manifests: Manifest) -> list[tuple[str, int | None]]:
    generations = Generations(manifests)
    return [
        (manifest.about.run, manifest.step) for manifest in sorted(manifests, key=lambda manifest: generations.age(manifest, manifest.path))
    ]


def test_a_later_run_goes_before_a_higher_step_and_within_it_a_later_attempt() -> None:
    a = [manifest_of(step, "a", 100 + step // 1000, (100, 1)) for step in (99_000, 100_000)]
    b = [manifest_of(1000, "b", 320, (300, 1)), manifest_of(800, "b", 310, (300, 1)), manifest_of(850, "b", 330, (300, 2))]
    assert in_order(*a, *b) == [("b", 850), ("b", 1000), ("b", 800), ("a", 100_000), ("a", 99_000)]


def test_concurrent_runs_of_several_nodes_are_ordered_by_save_time() -> None:
    """Rank 0 moved from node x, which had begun first and was lost, to node y, whose attempts are counted anew."""
    x = [manifest_of(190, "x", 1190, (1000, 6)), manifest_of(200, "x", 1200, (1000, 6))]
    y = [manifest_of(205, "y", 1210, (999, 2)), manifest_of(210, "y", 1220, (999, 2))]
    assert [step for _, step in in_order(*x, *y)] == [210, 205, 200, 190]
    assert in_order(*x, *y, manifest_of(5, "z", 1230, (1221, 1)))[0] == ("z", 5)


def test_a_checkpoint_sent_by_hand_is_ordered_by_its_time() -> None:
    old = [manifest_of(900, "a", 1_767_230_000, (1_767_225_600, 1)), manifest_of(100, "b", 1_767_320_000, (1_767_312_000, 1))]
    by_hand = manifest_of(2000, "by-hand", 1_767_320_001)
    assert [step for _, step in in_order(*old)] == [100, 900]
    assert [step for _, step in in_order(*old, by_hand)] == [2000, 100, 900]
    assert [step for _, step in in_order(manifest_of(10, "by-hand", 50), manifest_of(20, "elsewhere", 20))] == [20, 10], (
        "nothing but the step is known"
    )


def kept(manifest: Manifest, backend: Backend) -> MirroredCheckpoint:
    return MirroredCheckpoint(backend, MirrorLocation(keys.key_of(manifest), "job", manifest.about.run, 0, 0.0), manifest)


def test_a_run_prunes_its_own_checkpoints_and_leaves_concurrent_runs_alone() -> None:
    backend: Backend = None  # type: ignore[assignment] -- nothing is asked of it
    a = [manifest_of(step, "a", 100 + step // 1000, (100, 1)) for step in (98_000, 99_000, 100_000)]
    first, second = manifest_of(500, "b", 310, (300, 1)), manifest_of(1000, "b", 320, (300, 1))
    beside = [manifest_of(step, "c", 300 + step, (301, 1)) for step in (1, 2, 3)]

    def gone(*manifests: Manifest, arrived: Manifest) -> list[int | None]:
        return [
            checkpoint.manifest.step
            for checkpoint in removal.may_go([kept(m, backend) for m in manifests], rules.RetentionPolicy(2), keys.key_of(arrived))
        ]

    assert gone(*a, first, arrived=first) == [98_000, 99_000]
    assert gone(*a, first, second, arrived=second) == [98_000, 99_000, 100_000]
    assert gone(*a, first, second, *beside, arrived=second) == [98_000, 99_000, 100_000], "the other node's stay"
    assert gone(*a[1:], manifest_of(1, "b", 305, (300, 1)), first, second, arrived=second) == [99_000, 100_000, 1]
    late = manifest_of(7, "a", 330, (100, 2))  # what a run that is over had left waiting
    assert gone(*a, late, first, second, arrived=late) == [98_000, 99_000]


def test_the_last_finite_one_stays_in_a_mirror_while_the_newest_hold_nan() -> None:
    backend: Backend = None  # type: ignore[assignment] -- nothing is asked of it
    lost = (NonFinite("model.w", "NaN", 0, was_finite=True, finite_step=200),)
    finite = [manifest_of(step, "a", 100 + step, (100, 1)) for step in (100, 200)]
    turned = [replace(manifest_of(step, "a", 100 + step, (100, 1)), non_finite=lost) for step in (300, 400, 500, 600)]
    rows = [kept(manifest, backend) for manifest in (*finite, *turned)]
    gone = removal.may_go(rows, rules.RetentionPolicy(2), keys.key_of(turned[-1]))
    assert [checkpoint.manifest.step for checkpoint in gone] == [100, 300, 400]


def save(path: Path, step: int, at_s: float) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save({"step": step, "w": torch.ones(8)}, path)
    os.utime(path, (at_s, at_s))


@pytest.fixture
def ckpt(tmp_path: Path) -> Path:
    return tmp_path / "ckpt"


def test_two_saves_in_one_clock_tick_are_ordered_by_epoch(ckpt: Path) -> None:
    for epoch in (9, 10, 8):
        save(ckpt / f"epoch_{epoch}.pt", epoch, 100)
    ordered = Order().newest_candidates(find(["*.pt"], str(ckpt)).candidates)
    assert [os.path.basename(candidate.path) for candidate in ordered] == ["epoch_10.pt", "epoch_9.pt", "epoch_8.pt"]  # noqa: PTH119 -- a name


def test_a_newer_state_under_a_lower_step_is_taken_and_reported(ckpt: Path) -> None:
    save(ckpt / "step_140.pt", 140, 100)
    save(ckpt / "step_100.pt", 100, 200)

    def lineage_of(candidate: Candidate) -> Lineage:
        return Lineage(1, "run", 1 if candidate.mtime_ns < 150e9 else 2)

    listing = find(["*.pt"], str(ckpt))
    assert (checkpoint := newest(listing).chosen) is not None
    assert checkpoint.step == 140
    selected = newest(listing, SelectionOptions(order=Order(lineage_of)))
    assert selected.chosen is not None
    assert selected.chosen.step == 100
    assert selected.notes == (
        f"{ckpt}/step_100.pt (step 100) is newer than {ckpt}/step_140.pt (step 140): it was saved later in the same run",
    )
    by_hand = newest(listing, SelectionOptions(order=Order(lambda save: UNKNOWN_LINEAGE if save.mtime_ns < 150e9 else Lineage(2, "b", 1))))
    assert by_hand.notes[0].endswith("(step 140): a later run saved it")


def test_a_rolled_back_checkpoint_is_taken_only_where_no_other_exists(ckpt: Path) -> None:
    for step in (800, 1000):
        save(ckpt / f"step_{step}.pt", step, step)
    save(ckpt / "last.pt", 1000, 1000)
    order = Order(lambda _candidate: Lineage(1, "run", 1), (RollBack(Lineage(1, "run", 1), 1000, str(ckpt / "step_1000.pt")),))
    selected = newest(find(["*.pt"], str(ckpt)), SelectionOptions(order=order))
    assert selected.chosen is not None
    assert (selected.chosen.step, selected.notes) == (800, ())
    (ckpt / "step_800.pt").unlink()
    assert (left := newest(find(["*.pt"], str(ckpt)), SelectionOptions(order=order)).chosen) is not None
    assert left.step == 1000, "not even then is the training begun from scratch"
    later = replace(order, lineage_of=lambda _candidate: Lineage(1, "run", 2))
    assert not later.of_candidate(find(["*.pt"], str(ckpt)).candidates[0], None).is_rolled_back


def test_a_step_back_from_a_checkpoint_without_a_step_means_that_content_alone() -> None:
    poisoned, older = manifest_of(None, "a", 10, (1, 1), "x"), manifest_of(None, "a", 5, (1, 1), "y")
    order = Order(roll_backs=(RollBack(Lineage(1, "a", 1), None, "/ckpt/x", poisoned.id),))
    assert order.of_manifest(poisoned, ordering.COPY, "").is_rolled_back
    assert not order.of_manifest(replace(older, path="/ckpt/x"), ordering.COPY, "").is_rolled_back


# what a node remembers


def test_a_run_is_later_than_all_that_is_known_whatever_the_clock_says(tmp_path: Path) -> None:
    first = Lineages(CheckpointCatalogue(tmp_path, is_writer=True), "a")
    assert first.begin_run(tuple, 1000)
    first.begin_attempt(1, 1001 * 10**9)
    first.write()
    second = Lineages(CheckpointCatalogue(tmp_path, is_writer=True), "b")
    assert second.begin_run(lambda: (manifest_of(5, "a", 2000, (1000, 1)),), 500), "the clock was set back"
    assert second.current == Lineage(2001, "b", 0)
    second.raise_began(7000)  # of what was restored from a mirror
    assert second.current.began == 7001
    second.begin_attempt(1, 600 * 10**9)
    second.raise_began(9000)
    assert second.current == Lineage(7001, "b", 1)
    second.write()
    again = Lineages(CheckpointCatalogue(tmp_path, is_writer=True), "b")
    assert not again.begin_run(lambda: (manifest_of(5, "a", 2000, (1000, 1)), manifest_of(7, "b", 3000, (7001, 1))), 1)
    assert again.current == Lineage(7001, "b", 1)
    assert again.attempt_at(601 * 10**9) == Lineage(7001, "b", 1), "a manifest moves no beginning that is recorded"


def test_a_file_without_a_manifest_belongs_to_the_attempt_that_ran_when_it_was_modified(tmp_path: Path) -> None:
    lineages = Lineages(CheckpointCatalogue(tmp_path, is_writer=True), "a")
    lineages.begin_attempt(1, 110 * 10**9)  # the disk had not answered yet
    lineages.begin_run(tuple, 100)
    lineages.begin_attempt(2, 200 * 10**9)
    at = [lineages.attempt_at(t * 10**9) for t in (50, 110, 199, 200, 999)]
    assert at == [UNKNOWN_LINEAGE, Lineage(100, "a", 1), Lineage(100, "a", 1), Lineage(100, "a", 2), Lineage(100, "a", 2)]


def test_a_record_that_is_lost_is_made_anew_from_the_manifests(tmp_path: Path) -> None:
    lineages = Lineages(CheckpointCatalogue(tmp_path, is_writer=True), "b")
    assert lineages.begin_run(lambda: (manifest_of(5, "a", 150, (100, 1)), manifest_of(6, "a", 250, (100, 2))), 300)
    for known in (lineages, Lineages(CheckpointCatalogue(tmp_path), "b")):
        assert [known.attempt_at(t * 10**9) for t in (160, 260)] == [Lineage(100, "a", 1), Lineage(100, "a", 2)]


def test_a_manifest_shows_when_a_directory_was_saved(tmp_path: Path) -> None:
    save(tmp_path / "ckpt" / "step_5.pt", 5, 1234)
    built = check.build(verify(str(tmp_path / "ckpt" / "step_5.pt")), now=lambda: 9999.0)
    manifests = Manifests(CheckpointCatalogue(tmp_path / "state", is_writer=True))
    assert manifests.put(built)
    (read,) = manifests.all()
    assert (read.saved_unix_ns, replace(read, is_tree=True).saved_ns) == (1234 * 10**9, 1234 * 10**9)
