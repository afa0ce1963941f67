"""A torn checkpoint is moved, replaced by its copy, or left before an attempt, and `undo` reverses that, file by file.

Every file outside the state directory is where and what it was, but for the renames in the journal.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import Manifests
from checkpointing.model import Candidate, Verdict
from checkpointing.reader.messages import ReadCheckpoint
from checkpointing.reader.one_pass import OnePass
from checkpointing.retention.aside import AsideRecord
from checkpointing.verification import identity_of, verify
from supervisor.checkpoints.discovery.record import WRITE
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.repair import RepairPermission
from supervisor.config.settings import Checkpoints, Settings
from supervisor.core.values import replace
from supervisor.instrument._supervise_shim import layout
from supervisor.job.job import Job
from supervisor.observe.ranks import heartbeats
from tests.e2e.untouched import Listing, listing, renamed
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.checkpoints.recording.reports import CheckpointReport


class Rank:
    """A rank of attempt 1 that saves, logs it as `_supervise_shim` does, and was killed in the middle."""

    def __init__(self, place: Path, script: Path) -> None:
        """Take the attempt's directory, and that of the script."""
        self.file, self.here, self.number = place / "saves-0.jsonl", script, 0
        place.mkdir(parents=True)

    def line(self, **row: Any) -> None:  # noqa: ANN401  a row of JSON
        """Append a row to the save log."""
        with self.file.open("a") as out:
            out.write(json.dumps({"t": self.number, **row}) + "\n")

    def saves(self, name: str, step: int, *, cut: bool = False, key: str = "step", **more: Any) -> Path:  # noqa: ANN401  see line
        """Save a step to a file under `key`, and come to the end of it or not."""
        path = self.here / name
        self.number += 1
        self.line(what="began", path=str(path), n=self.number, via="torch", was=stat_of(path), file=False, steps=step, **more)
        torch.save({key: step, "w": torch.ones(256)}, path)
        if cut:
            with path.open("r+b") as file:
                file.truncate(500)
        else:
            self.line(what="ended", path=str(path), n=self.number, well=True, now=stat_of(path))
        return path

    def loads(self, name: str) -> None:
        """Log that a load was tried before the first step."""
        row = {"t": self.number, "path": str(self.here / name), "complete": False, "via": "torch", "steps": 0}
        with (self.file.parent / "loads-0.jsonl").open("a") as out:
            out.write(json.dumps(row) + "\n")

    def made_steps(self, steps: int) -> None:
        """Leave the heartbeat of a rank that had made so many steps when it died."""
        heartbeats.create(self.file.parent / "heartbeat", 1)
        slot = {layout.PID: 1, layout.STEPS: steps}
        words = struct.pack(f"<{heartbeats.WORDS}q", *(slot.get(at, 0) for at in range(heartbeats.WORDS)))
        data = (self.file.parent / "heartbeat").read_bytes()
        (self.file.parent / "heartbeat").write_bytes(data[: layout.SLOT_BYTES] + words)

    def makes(self, name: str) -> list[list[Any]]:
        """Make a directory, and return what the log has of it at each save in it."""
        (self.here / name).mkdir(parents=True)
        st = (self.here / name).stat()
        return [[str(self.here / name), st.st_dev, st.st_ino]]


def stat_of(path: Path) -> list[int] | None:
    if not path.exists():
        return None
    st = path.stat()
    return [st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns]


class JobOnDisk:
    """A job with its files on this disk, before its next attempt."""

    def __init__(self, tmp_path: Path) -> None:
        """Make the directories."""
        self.here, self.state = tmp_path / "here", tmp_path / "state"
        for directory in (self.here, self.state, tmp_path / "scratch"):
            directory.mkdir()
        settings = dataclasses.replace(Settings(), checkpoints=Checkpoints())
        self.job = Job("train", "run-1", "node", ("true",), self.here, {}, settings, self.state, tmp_path / "scratch", "cookie")
        self.rank = Rank(self.job.attempt_dir(1), self.here)
        self.reports: list[CheckpointReport] = []
        self.checkpoints = JobCheckpoints(self.job, self.reports.append)
        self.checkpoints.began(1)

    def keep_copy(self, path: Path) -> None:
        """Make the copy that the watcher makes."""
        self.checkpoints.records.absorb()
        checkpoints, identity = self.checkpoints, identity_of(str(path))
        assert identity is not None
        with checkpoints.retention.copying(Candidate(str(path), identity, None)) as copy:
            order = ReadCheckpoint(0, str(path), checkpoints.records.provenance.trusts(str(path)), copy=copy)
            answer = OnePass(self.job.name).read(order, threading.Event())
            manifest = checkpoints.recorder.record(answer)
            assert manifest is not None
            checkpoints.retention.keep_copy(manifest, answer, checkpoints.recorder)

    def repairs(self) -> dict[str, str]:
        """Select, once no rank is alive; return what was repaired."""
        self.checkpoints.ended()
        return {path[len(str(self.here)) + 1 :]: action for path, action in self.checkpoints.select(1.0, 2).repaired}

    def moved(self) -> list[tuple[str, str]]:
        """Return what the journal says was moved."""
        return [(change.path, change.to) for change in self.aside.changes() if (change.kind, change.phase) == ("moved", "done")]

    def files(self, *without: Path) -> Listing:
        """Return every file of the job's, and every one that was set aside."""
        return listing(self.here, self.here.parent / ".supervise-aside", without=without)

    @property
    def aside(self) -> AsideRecord:
        """The record of what was set aside."""
        return self.checkpoints.records.moves


@pytest.fixture
def disk(tmp_path: Path) -> JobOnDisk:
    return JobOnDisk(tmp_path)


class Config:
    """What a script may save beside its tensors; to load it, it is called, as an enum's member is."""

    def __reduce__(self) -> tuple[type[Config], tuple[()]]:  # noqa: D105 (its class says it)
        return Config, ()


def test_a_call_of_a_class_of_its_own_is_no_danger_in_a_file_of_this_job_and_one_in_any_other(disk: JobOnDisk) -> None:
    path = disk.rank.saves("ckpt.pt", 10)
    disk.rank.number += 1
    disk.rank.line(what="began", path=str(path), n=disk.rank.number, via="torch", was=stat_of(path), file=False)
    torch.save({"step": 10, "config": Config()}, path)
    disk.rank.line(what="ended", path=str(path), n=disk.rank.number, well=True, now=stat_of(path))
    strange = disk.here / "strange.pt"
    torch.save({"step": 99, "config": Config()}, strange)
    disk.checkpoints.records.absorb()
    assert [verify(str(file), own=disk.checkpoints.records.provenance.trusts(str(file))).verdict for file in (path, strange)] == [
        Verdict.VERIFIED,
        Verdict.DANGEROUS,
    ]
    disk.keep_copy(path)
    catalogue = disk.checkpoints.records.catalogue
    catalogue.remove(WRITE, *(write.path for write in catalogue.all(WRITE)))
    trusts = JobCheckpoints(replace(disk.job, run_id="run-9"), disk.reports.append).records.provenance.trusts
    assert (trusts(str(path)), trusts(str(strange))) == (True, False), "what was recorded of this job is this job's"


def is_trusted(disk: JobOnDisk, path: Path) -> bool:
    disk.checkpoints.records.absorb()
    return disk.checkpoints.records.provenance.trusts(str(path))


@pytest.mark.parametrize("action", ["a file", "a file of a directory", "a directory", "written since", "the rest of a save"])
def test_a_checkpoint_replaced_by_another_program_is_not_trusted(disk: JobOnDisk, action: str) -> None:
    """A download, or another user of a shared directory, may put a file with a call there."""
    is_tree = action in {"a file of a directory", "a directory"}
    path = hf(disk, 10) if is_tree else disk.rank.saves("ckpt.pt", 10, cut=action == "the rest of a save")
    disk.checkpoints.records.absorb()
    disk.checkpoints.ended()
    assert disk.checkpoints.records.discovery is not None
    disk.checkpoints.records.discovery.stat_interrupted_saves()
    assert is_trusted(disk, path), "it is the job's own"
    later = JobCheckpoints(replace(disk.job, run_id="run-9"), disk.reports.append).records.provenance
    assert later.trusts(str(path)), "the next run knows it"
    other = disk.here.parent / "download"
    if action == "a directory":
        shutil.copytree(path, other)
        shutil.rmtree(path)
    else:
        torch.save({"step": 10, "config": Config()}, other)
    target = path / "training_args.bin" if action == "a file of a directory" else path
    if action == "written since":
        target.write_bytes(other.read_bytes())
    else:
        other.replace(target)
    assert not is_trusted(disk, path)
    assert not later.trusts(str(path))
    assert action == "a directory" or verify(str(path), own=is_trusted(disk, path)).verdict is Verdict.DANGEROUS


def test_the_job_s_own_is_trusted_while_it_is_saved_when_it_was_moved_and_where_our_copy_took_its_place(disk: JobOnDisk) -> None:
    path = disk.rank.saves("ckpt.pt", 10)
    before = stat_of(path)
    disk.keep_copy(path)
    disk.rank.number += 1
    disk.rank.line(what="began", path=str(path), n=disk.rank.number, via="torch", was=before, file=False, steps=20)
    assert is_trusted(disk, path), "not touched yet"
    path.write_bytes(b"PK\x03\x04 the first of it")
    assert is_trusted(disk, path), "half of it"
    assert "was put in its place" in disk.repairs()["ckpt.pt"]
    assert stat_of(path) not in (None, before)
    assert is_trusted(disk, path), "it is our copy, which has another inode"
    disk.rank.saves("model.tmp", 30)
    (disk.here / "model.tmp").rename(disk.here / "model.pt")
    old_path, identity = str(disk.here / "model.tmp"), stat_of(disk.here / "model.pt")
    disk.rank.line(what="renamed", path=str(disk.here / "model.pt"), was=old_path, now=identity, steps=30)
    assert is_trusted(disk, disk.here / "model.pt")
    disk.rank.number += 1
    with (disk.here / "open.pt").open("wb") as file:
        row = {"path": str(disk.here / "open.pt"), "n": disk.rank.number}
        disk.rank.line(what="began", **row, via="torch", was=None, file=True, steps=40)
        file.write(b"PK\x03\x04")
        disk.rank.line(what="ended", **row, well=True, now=stat_of(disk.here / "open.pt"))
        file.write(bytes(100))
    assert is_trusted(disk, disk.here / "open.pt"), "the script closed it after the save"


def hf(disk: JobOnDisk, step: int, *, cut: bool = False, is_new: bool = True) -> Path:
    """Save as transformers does."""
    name = f"out/checkpoint-{step}"
    directories = disk.rank.makes(name) if is_new else []
    directory = disk.here / name
    (directory / "config.json").write_text("{}")
    disk.rank.saves(f"{name}/pytorch_model.bin", step, made=directories)
    disk.rank.saves(f"{name}/training_args.bin", step, made=directories)
    disk.rank.saves(f"{name}/optimizer.pt", step, made=directories, cut=cut)
    if not cut:
        disk.rank.saves(f"{name}/scheduler.pt", step, made=directories)
        disk.rank.saves(f"{name}/rng_state.pth", step, made=directories)
        (directory / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return directory


def test_a_torn_directory_of_the_job_is_moved_with_what_the_framework_wrote_beside_and_back(disk: JobOnDisk) -> None:
    hf(disk, 10)
    torn = hf(disk, 20, cut=True)
    before = disk.files()
    assert "moved to" in disk.repairs()["out/checkpoint-20"]
    assert disk.moved() == [(str(torn), f"{disk.here}/.supervise-aside/torn-a")]
    assert disk.files() == renamed(before, disk.moved())
    assert [outcome.problem for outcome in disk.aside.undo()] == [""]
    assert disk.files() == before


def test_an_abandoned_selection_moves_no_file(disk: JobOnDisk) -> None:
    hf(disk, 10)
    hf(disk, 20, cut=True)
    before = disk.files()
    permission = RepairPermission()
    permission.revoke()  # the core gave it up and begins an attempt, whose ranks write here
    disk.checkpoints.ended()
    assert disk.checkpoints.select(1.0, 2, permission=permission).repaired == ()
    assert disk.files() == before


def test_no_file_is_moved_where_ranks_of_other_nodes_may_write(disk: JobOnDisk) -> None:
    disk.checkpoints = JobCheckpoints(disk.job, disk.reports.append, several_nodes=True)
    disk.checkpoints.began(1)
    hf(disk, 10)
    hf(disk, 20, cut=True)
    before = disk.files()
    assert disk.repairs() == {}
    assert disk.files() == before


def test_a_torn_directory_of_an_unknown_format_is_moved(disk: JobOnDisk) -> None:
    for step in (10, 20):
        disk.rank.saves(f"out/step_{step}/state.bin", step, made=disk.rank.makes(f"out/step_{step}"))
    directories = disk.rank.makes("out/step_30")
    torn = disk.here / "out/step_30"
    disk.rank.number += 1
    disk.rank.line(what="began", path=str(torn / "state.bin"), n=disk.rank.number, via="torch", was=None, file=False, made=directories)
    before = disk.files()
    assert "a save began it and did not end" in disk.repairs()["out/step_30"]
    assert disk.moved() == [(str(torn), f"{disk.here}/.supervise-aside/torn-a")]
    assert disk.files() == renamed(before, disk.moved())
    assert [outcome.problem for outcome in disk.aside.undo()] == [""]
    assert disk.files() == before


def test_an_empty_directory_that_this_run_did_not_make_stays(disk: JobOnDisk) -> None:
    for step in (10, 20):
        disk.rank.saves(f"out/step_{step}/state.bin", step, made=disk.rank.makes(f"out/step_{step}"))
    (disk.here / "out/step_30").mkdir()
    before = disk.files()
    assert disk.repairs() == {}
    assert disk.files() == before


def a_name_of_the_frameworks(disk: JobOnDisk) -> None:
    (disk.here / "out/checkpoint-20").mkdir(parents=True)
    (disk.here / "out/checkpoint-20" / "tokenizer.json").write_text("a person's, from before")
    hf(disk, 20, cut=True, is_new=False)


def another_name(disk: JobOnDisk) -> None:
    (hf(disk, 20, cut=True) / "README.md").write_text("a person's")


def once_nobody_was_alive(disk: JobOnDisk) -> None:
    directory = hf(disk, 20, cut=True)
    disk.checkpoints.ended()
    disk.checkpoints.ended = lambda: None  # type: ignore[method-assign]  it ended before what comes now
    until = disk.checkpoints._repair._ranks_ended_ns  # type: ignore[union-attr]  # noqa: SLF001  what it is about
    while not (directory / "vocab.txt").exists() or (directory / "vocab.txt").stat().st_ctime_ns <= until:
        (directory / "vocab.txt").write_text("a person's")


def a_link(disk: JobOnDisk) -> None:
    (disk.here / "out" / "mine.json").write_text("a person's")
    os.link(disk.here / "out" / "mine.json", hf(disk, 20, cut=True) / "vocab.json")


def changed(disk: JobOnDisk) -> None:
    (hf(disk, 20, cut=True) / "pytorch_model.bin").write_bytes(b"PK\x03\x04 another's")


def a_pointer(disk: JobOnDisk) -> None:
    hf(disk, 20, cut=True)
    (disk.here / "out" / "latest").write_text("checkpoint-20")


def a_symbolic_link(disk: JobOnDisk) -> None:
    hf(disk, 20, cut=True)
    (disk.here / "last").symlink_to("out/checkpoint-20")


STAYS: dict[str, tuple[Callable[[JobOnDisk], None], str]] = {
    "a name of the framework's": (a_name_of_the_frameworks, ""),
    "another name": (another_name, ""),
    "once nobody was alive": (once_nobody_was_alive, ""),
    "a hard link": (a_link, ""),
    "changed since": (changed, ""),
    "a pointer": (a_pointer, "out/latest leads to it"),
    "a symbolic link": (a_symbolic_link, "last leads to it"),
}


@pytest.mark.parametrize(("damage", "why"), STAYS.values(), ids=STAYS)
def test_a_torn_checkpoint_with_a_foreign_file_or_a_link_to_it_stays(
    disk: JobOnDisk, damage: Callable[[JobOnDisk], None], why: str
) -> None:
    (disk.here / "out").mkdir()
    hf(disk, 10)
    damage(disk)
    before = disk.files()
    assert verify(str(disk.here / "out/checkpoint-20")).verdict in (Verdict.BAD, Verdict.INCOMPLETE)
    repairs = disk.repairs()
    assert disk.moved() == []
    assert disk.files() == before
    assert (why in repairs["out/checkpoint-20"]) if why else not repairs


@pytest.mark.parametrize("leads", [False, True], ids=["alone", "a link leads to it"])
def test_a_file_that_no_rank_was_seen_to_load_is_put_back_after_its_second_save_was_cut_off(disk: JobOnDisk, leads: bool) -> None:  # noqa: FBT001  a column
    path = disk.rank.saves("ckpt.pt", 10)
    (disk.here / "export.pt").write_bytes(b"PK\x03\x04 somebody's")
    if leads:
        (disk.here / "latest.pt").symlink_to("ckpt.pt")
    disk.keep_copy(path)
    disk.rank.saves("ckpt.pt", 20, cut=True)
    before = disk.files(disk.here / "latest.pt")
    assert "the copy of step 10 was put in its place" in disk.repairs()["ckpt.pt"]
    assert torch.load(path)["step"] == 10
    after = disk.files(path, disk.here / "latest.pt")
    assert after == renamed(before, [(str(path), f"{disk.here.parent}/.supervise-aside/torn-a")])
    assert [outcome.problem for outcome in disk.aside.undo()] == ["", ""]
    assert disk.files(disk.here / "latest.pt") == before


class Refuses:
    """An object that cannot be pickled."""

    def __reduce__(self) -> tuple[object, ...]:  # noqa: D105 (its class says it)
        raise RuntimeError("this cannot be pickled")


@pytest.mark.parametrize("left", ["what torch left", "an empty zip", "no byte"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["it raised", "killed in it"])
def test_a_file_whose_second_save_failed_before_its_first_object_is_put_back(disk: JobOnDisk, left: str, is_killed: bool) -> None:  # noqa: FBT001  a column
    path = disk.rank.saves("ckpt.pt", 10)
    disk.keep_copy(path)
    disk.rank.number += 1
    row = {"path": str(path), "n": disk.rank.number}
    disk.rank.line(what="began", **row, via="torch", was=stat_of(path), file=False, steps=20)
    with pytest.raises(RuntimeError):
        torch.save({"step": 20, "w": Refuses()}, path)
    if left != "what torch left":
        path.write_bytes(b"PK\x05\x06" + bytes(18) if left == "an empty zip" else b"")
    if not is_killed:
        disk.rank.line(what="ended", **row, well=False, now=stat_of(path))
    assert "the copy of step 10 was put in its place" in disk.repairs()["ckpt.pt"]
    assert torch.load(path)["step"] == 10


def test_a_torn_file_without_a_copy_stays_and_its_command_is_reported_until_a_rank_was_seen_to_load_it(disk: JobOnDisk) -> None:
    path = disk.rank.saves("ckpt.pt", 10)
    disk.rank.saves("ckpt.pt", 20, cut=True)
    before = disk.files()
    repair = disk.repairs()["ckpt.pt"]
    assert "left where it is, because it has no copy, and no whole checkpoint lies next to it" in repair
    assert disk.files() == before
    aside = disk.here.parent / ".supervise-aside"
    assert repair.endswith(f"to have the script begin without it: mkdir -p {aside} && mv {path} {aside}/torn-a")
    disk.rank.loads("ckpt.pt")
    assert "moved to" in disk.repairs()["ckpt.pt"]
    assert disk.moved() == [(str(path), f"{aside}/torn-a")]


def test_a_failed_put_back_leaves_the_target_of_a_link_in_place(disk: JobOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.keep_copy(disk.rank.saves("ckpt.pt", 10))
    disk.rank.saves("ckpt.pt", 20, cut=True)
    (disk.here / "latest.pt").symlink_to("ckpt.pt")
    before = disk.files()
    monkeypatch.setattr(disk.checkpoints.records.copies, "put_back", lambda *_: "the disk is full")  # a disk that is full
    assert "left where it is: the copy could not be put there: the disk is full" in disk.repairs()["ckpt.pt"]
    assert disk.files() == before
    assert disk.moved() == []


def test_a_copy_that_ranks_were_given_stays_whatever_is_saved_since(tmp_path: Path) -> None:
    disk = JobOnDisk(tmp_path)
    settings = dataclasses.replace(disk.job.settings, checkpoints=Checkpoints(paths=("ckpt.pt",)))
    disk.checkpoints = checkpoints = JobCheckpoints(replace(disk.job, settings=settings), disk.reports.append)
    checkpoints.began(1)
    for step in (10, 20):
        path = disk.rank.saves("ckpt.pt", step)
        disk.keep_copy(path)
    disk.rank.saves("ckpt.pt", 30, cut=True)
    checkpoints.ended()
    chosen = checkpoints.select(1.0, 2).chosen
    assert chosen is not None
    assert (chosen.step, chosen.path == str(path)) == (20, False)
    for step in (30, 40, 50):
        disk.keep_copy(disk.rank.saves("ckpt.pt", step))
    assert os.path.exists(chosen.path)  # noqa: PTH110  a plain string


def test_a_failed_move_aside_does_not_change_the_chosen_checkpoint(disk: JobOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hf(disk, 10)
    torn = hf(disk, 20, cut=True)
    disk.rank.loads("out/checkpoint-10/optimizer.pt")

    def full(*_: Any, **__: Any) -> None:  # noqa: ANN401  whatever it is called with
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(AsideRecord, "move", full)
    disk.checkpoints.ended()
    selected = disk.checkpoints.select(1.0, 2)
    assert selected.chosen is not None
    assert selected.chosen.path == str(whole)
    assert [(path, "could not be moved: [Errno 28]" in action) for path, action in selected.repaired] == [(str(torn), True)]


def test_the_manifests_of_what_is_gone_go_at_the_start_of_a_run(disk: JobOnDisk) -> None:
    paths = [disk.rank.saves(name, 1) for name in ("gone.pt", "there.pt")]
    for path in paths:
        disk.keep_copy(path)
    paths[0].unlink()
    watcher = disk.checkpoints.watcher()
    assert watcher is not None
    watcher.start()
    assert watcher.finish(PATIENCE_S)
    assert [manifest.path for manifest in Manifests(CheckpointCatalogue(disk.state / "checkpoints", is_writer=True)).all()] == [
        str(paths[1])
    ]


def of_trainer(disk: JobOnDisk, *names: str) -> Path:
    """Save as transformers does, up to the files named, and make no step after that."""
    directories = disk.rank.makes("out/checkpoint-10")
    for name in names:
        disk.rank.saves(f"out/checkpoint-10/{name}", 10, made=directories)
    (disk.here / "out/checkpoint-10/config.json").write_text("{}")
    return disk.here / "out/checkpoint-10"


def trainer_without_its_state(disk: JobOnDisk) -> Path:
    return of_trainer(disk, "pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")


def trainer_without_an_optimizer(disk: JobOnDisk) -> Path:
    return of_trainer(disk, "pytorch_model.bin", "training_args.bin")


def trainer_cut_in_its_optimizer(disk: JobOnDisk) -> Path:
    return hf(disk, 10, cut=True)


def accelerate_without_its_random_states(disk: JobOnDisk) -> Path:
    directories = disk.rank.makes("out/checkpoint_10")
    for name in ("pytorch_model.bin", "optimizer.bin", "scheduler.bin"):
        disk.rank.saves(f"out/checkpoint_10/{name}", 10, made=directories)
    return disk.here / "out/checkpoint_10"


def a_file_of_lightning(disk: JobOnDisk) -> Path:
    (disk.here / "out").mkdir()
    return disk.rank.saves("out/last.ckpt", 10, cut=True)


FIRST: dict[str, Callable[[JobOnDisk], Path]] = {
    "transformers, killed before the optimizer": trainer_without_an_optimizer,
    "transformers, killed before trainer_state.json": trainer_without_its_state,
    "transformers, killed in the optimizer": trainer_cut_in_its_optimizer,
    "accelerate, killed before the random states": accelerate_without_its_random_states,
    "Lightning, killed in its file": a_file_of_lightning,
}


@pytest.mark.parametrize("save", FIRST.values(), ids=FIRST)
def test_the_torn_first_save_of_all_is_set_aside_before_the_next_attempt_and_back(
    disk: JobOnDisk, save: Callable[[JobOnDisk], Path]
) -> None:
    torn = save(disk)
    disk.rank.made_steps(10)
    before = disk.files()
    repair = disk.repairs()[str(torn)[len(str(disk.here)) + 1 :]]
    assert "moved to" in repair
    assert repair.endswith("it was the first save, and nothing older lies there: the run begins anew")
    assert [path for path, _ in disk.moved()] == [str(torn)]
    assert disk.files() == renamed(before, disk.moved())
    assert [change.problem for change in disk.aside.undo()] == [""]
    assert disk.files() == before
    assert disk.repairs() == {} or "moved back once" in next(iter(disk.repairs().values()))


@pytest.mark.parametrize("steps", [11, None], ids=["it trained on after the save", "its steps are not known"])
@pytest.mark.parametrize("save", [trainer_without_its_state, accelerate_without_its_random_states])
def test_a_first_save_of_whose_end_nothing_is_proven_stays_though_a_framework_would_write_more(
    disk: JobOnDisk, save: Callable[[JobOnDisk], Path], steps: int | None
) -> None:
    save(disk)  # a script of its own may write files under such names, and not all of them
    if steps is not None:
        disk.rank.made_steps(steps)
    before = disk.files()
    assert disk.repairs() == {}
    assert (disk.moved(), disk.files()) == ([], before)


def test_a_whole_first_save_stays_though_the_ranks_died_right_after_it(disk: JobOnDisk) -> None:
    hf(disk, 10)
    disk.rank.made_steps(10)
    before = disk.files()
    assert disk.repairs() == {}
    assert disk.files() == before


def test_a_first_save_over_what_an_earlier_run_left_stays(disk: JobOnDisk) -> None:
    (disk.here / "out").mkdir()
    torch.save({"step": 5}, disk.here / "out/last.ckpt")
    disk.rank.saves("out/last.ckpt", 10, cut=True)
    disk.rank.made_steps(10)
    disk.repairs()
    assert disk.moved() == []
