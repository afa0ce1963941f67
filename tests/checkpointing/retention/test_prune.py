"""Removing the user's own: only what the policy lets go, this job wrote, and nothing uses; and what a kill cut short is ended."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import About, File, Manifest
from checkpointing.model import Identity, NonFinite
from checkpointing.retention import prune, rules
from checkpointing.retention.prune import PRUNED, Pruned, PruneRow
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from pathlib import Path

PROVEN = 4
STEPS = (1, 2, 3, PROVEN)


def row(  # noqa: PLR0913 -- keywords, each with a default
    path: Path, step: int, *, seen: bool = True, in_use: bool = False, uploading: bool = False, is_rejected: bool = False
) -> PruneRow:
    identity = identity_of(str(path))
    assert identity is not None
    members = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    manifest = Manifest(
        name=path.name,
        is_tree=path.is_dir(),
        layout="torch_zip",
        files=(File(path.name, 4, step, (step,)),),
        path=str(path),
        identity=identity,
        step=step,
        about=About("job", "run"),
        made_unix_s=step,
        part_bytes=5 << 20,
    )
    noted = {str(file): Identity.of(file.stat()) for file in members} if seen else {}
    return PruneRow(manifest, noted, in_use=in_use, uploading=uploading, is_rejected=is_rejected)


@pytest.fixture
def saved(tmp_path: Path) -> dict[int, Path]:
    paths = {step: tmp_path / "ckpt" / f"step_{step}.pt" for step in STEPS}
    (tmp_path / "ckpt").mkdir()
    for step, path in paths.items():
        path.write_bytes(b"%04d" % step)
    return paths


def record_of(proven: Path) -> CheckpointCatalogue:
    """Return the catalogue of the job."""
    return CheckpointCatalogue(proven.parents[1] / "state", is_writer=True)


def pruned(rows: list[PruneRow], policy: rules.RetentionPolicy, proven: Path) -> tuple[Pruned, ...]:
    return prune.prune(rows, policy, str(proven), record_of(proven))


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_only_the_newest_stay_and_nothing_is_left_of_the_others(tmp_path: Path, saved: dict[int, Path]) -> None:
    done = pruned([row(saved[n], n) for n in STEPS], rules.RetentionPolicy(2), saved[PROVEN])
    assert [(outcome.step, outcome.reason) for outcome in done] == [(1, ""), (2, "")]
    assert left(tmp_path / "ckpt") == ["step_3.pt", "step_4.pt"]
    assert left(tmp_path / ".supervise-aside") == []
    rows = record_of(saved[PROVEN]).all(PRUNED)
    assert [(gone.path, gone.step, gone.n_bytes, gone.reason) for gone in rows] == [
        (str(saved[step]), step, 4, "the newest 2 stay") for step in (1, 2)
    ]


def test_the_first_of_each_so_many_steps_stays(tmp_path: Path, saved: dict[int, Path]) -> None:
    pruned([row(saved[n], n) for n in STEPS], rules.RetentionPolicy(1, 2), saved[PROVEN])
    assert left(tmp_path / "ckpt") == ["step_1.pt", "step_2.pt", "step_4.pt"]


@pytest.mark.parametrize(
    "reason", ["not ours", "in use", "uploading", "rejected", "written since", "a second name", "something leads to it"]
)
def test_a_protected_checkpoint_stays(tmp_path: Path, saved: dict[int, Path], reason: str) -> None:
    rows = {n: row(saved[n], n) for n in STEPS}
    if reason == "written since":
        saved[1].write_bytes(b"another")
    elif reason == "a second name":
        os.link(saved[1], tmp_path / "best.pt")
        rows[1] = row(saved[1], 1)
    elif reason == "something leads to it":
        rows[1] = PruneRow(rows[1].manifest, rows[1].seen, leads="best.pt")
    else:
        rows[1] = row(
            saved[1],
            1,
            seen=reason != "not ours",
            in_use=reason == "in use",
            uploading=reason == "uploading",
            is_rejected=reason == "rejected",
        )
    pruned(list(rows.values()), rules.RetentionPolicy(2), saved[PROVEN])
    assert left(tmp_path / "ckpt") == ["step_1.pt", "step_3.pt", "step_4.pt"]


def test_a_checkpoint_whose_removal_cannot_be_recorded_stays(tmp_path: Path, saved: dict[int, Path]) -> None:
    (tmp_path / "state").write_text("a file is in the way")
    done = pruned([row(saved[n], n) for n in STEPS], rules.RetentionPolicy(3), saved[PROVEN])
    assert [str(tmp_path / "state") in gone.reason for gone in done] == [True]
    assert len(left(tmp_path / "ckpt")) == len(STEPS)


def test_checkpoints_removed_long_ago_are_forgotten(saved: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "_MOST_ROWS", 2)
    pruned([row(saved[n], n) for n in STEPS], rules.RetentionPolicy(1), saved[PROVEN])
    assert [gone.step for gone in record_of(saved[PROVEN]).all(PRUNED)] == [2, 3]


def test_the_newest_one_with_finite_weights_stays_beside_those_in_which_they_turned(tmp_path: Path, saved: dict[int, Path]) -> None:
    lost = (NonFinite("model.weight", "NaN", 0, was_finite=True, finite_step=2),)
    rows = [row(saved[n], n) for n in STEPS]
    rows = [replace(kept, manifest=replace(kept.manifest, non_finite=lost)) if kept.manifest.step in {3, 4} else kept for kept in rows]
    pruned(rows, rules.RetentionPolicy(1), saved[PROVEN])
    assert left(tmp_path / "ckpt") == ["step_2.pt", "step_4.pt"]


def test_no_checkpoint_goes_unless_a_remaining_one_was_just_proven(tmp_path: Path, saved: dict[int, Path]) -> None:
    rows = [row(saved[n], n) for n in STEPS]
    assert pruned(rows, rules.RetentionPolicy(2), saved[1]) == (), "what was proven is itself to go"
    saved[PROVEN].write_bytes(b"torn")
    assert pruned(rows, rules.RetentionPolicy(1), saved[PROVEN]) == (), "what was proven is not there any more"
    assert len(left(tmp_path / "ckpt")) == len(STEPS)


def test_a_directory_goes_only_if_each_file_in_it_is_the_jobs(tmp_path: Path) -> None:
    paths = {n: tmp_path / "ckpt" / f"checkpoint-{n}" for n in STEPS}
    for path in paths.values():
        path.mkdir(parents=True)
        (path / "model.bin").write_bytes(b"m")
        (path / "notes.txt").write_bytes(b"mine")
    rows = {n: row(paths[n], n) for n in STEPS}
    own = {str(paths[2] / "model.bin"): rows[2].seen[str(paths[2] / "model.bin")]}
    rows[2] = PruneRow(rows[2].manifest, own)
    done = pruned(list(rows.values()), rules.RetentionPolicy(1), paths[PROVEN])
    assert [outcome.step for outcome in done if not outcome.reason] == [1, 3]
    assert "notes.txt" in next(outcome.reason for outcome in done if outcome.step == 2)
    assert left(tmp_path / "ckpt") == ["checkpoint-2", "checkpoint-4"]


def test_a_file_written_before_the_rename_is_given_back(saved: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = prune.durable.rename_exclusive

    def rename(old: str, new: str) -> None:
        if old == str(saved[1]):
            saved[1].write_bytes(b"written at the last moment")
        real(old, new)

    monkeypatch.setattr(prune.durable, "rename_exclusive", rename)
    done = pruned([row(saved[n], n) for n in (1, PROVEN)], rules.RetentionPolicy(1), saved[PROVEN])
    assert [outcome.reason for outcome in done] == ["it was written meanwhile"]
    assert record_of(saved[PROVEN]).all(PRUNED) == ()
    assert saved[1].read_bytes() == b"written at the last moment"


def test_a_removal_that_another_supervisor_completes_counts_as_done(saved: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = prune.durable.rename_exclusive

    def rename(old: str, new: str) -> None:
        real(old, new)
        prune.finish([old], record_of(saved[PROVEN]))  # as one that takes it for what a kill left

    monkeypatch.setattr(prune.durable, "rename_exclusive", rename)
    done = pruned([row(saved[n], n) for n in (1, PROVEN)], rules.RetentionPolicy(1), saved[PROVEN])
    assert [(outcome.step, outcome.reason) for outcome in done] == [(1, "")]
    assert left(saved[PROVEN].parent) == ["step_2.pt", "step_3.pt", "step_4.pt"]


@pytest.mark.parametrize("is_tree", [False, True])
def test_a_removal_cut_short_by_a_kill_is_finished_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_tree: bool
) -> None:
    paths = {step: tmp_path / "ckpt" / f"step_{step}" for step in STEPS}
    (tmp_path / "ckpt").mkdir()
    for step, path in paths.items():
        if is_tree:
            path.mkdir()
        (path / "model.pt" if is_tree else path).write_bytes(b"%04d" % step)
    rows = [row(paths[step], step) for step in STEPS]

    def killed(_hidden: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prune, "_destroy", killed)
    with pytest.raises(KeyboardInterrupt):
        pruned(rows, rules.RetentionPolicy(3), paths[PROVEN])
    assert left(tmp_path / "ckpt") == ["step_2", "step_3", "step_4"]
    (hidden,) = (tmp_path / ".supervise-aside").iterdir()
    monkeypatch.undo()
    rewritten = hidden.with_name("pruned-1-2-3")
    rewritten.write_bytes(b"written at the last moment, before the kill")
    assert pruned(rows[1:], rules.RetentionPolicy(3), paths[PROVEN]) == ()
    assert left(tmp_path / ".supervise-aside") == [rewritten.name]


def test_a_file_written_just_before_a_kill_goes_back_to_its_place(
    tmp_path: Path, saved: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(saved[step], step) for step in STEPS]
    real = prune.durable.rename_exclusive

    def killed(old: str, new: str) -> None:
        saved[1].write_bytes(b"written at the last moment")
        real(old, new)
        raise KeyboardInterrupt

    monkeypatch.setattr(prune.durable, "rename_exclusive", killed)
    with pytest.raises(KeyboardInterrupt):
        pruned(rows, rules.RetentionPolicy(3), saved[PROVEN])
    assert not saved[1].exists()
    monkeypatch.undo()
    saved[1].write_bytes(b"and once more")
    assert pruned(rows[1:], rules.RetentionPolicy(3), saved[PROVEN]) == ()
    assert saved[1].read_bytes() == b"and once more", "nothing is replaced"
    saved[1].unlink()
    assert pruned(rows[1:], rules.RetentionPolicy(3), saved[PROVEN]) == ()
    assert (saved[1].read_bytes(), left(tmp_path / ".supervise-aside")) == (b"written at the last moment", [])
    assert record_of(saved[PROVEN]).all(PRUNED) == ()
