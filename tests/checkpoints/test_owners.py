"""The owner of a loaded checkpoint: it is foreign only if neither this run nor an earlier run of the job can have written it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing.manifest import check
from checkpointing.manifest.documents import About, encode
from checkpointing.verification import verify
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.origin.owners import CheckpointOwners
from supervisor.checkpoints.recording.newest_save import NewestSave
from supervisor.checkpoints.recording.reports import CheckpointFound
from supervisor.core.checkpoint_model import CheckpointOwner
from supervisor.core.values import replace
from tests.checkpoints.test_lineages import Node, identity
from tests.support.few import few

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.checkpoints.recording.reports import CheckpointReport, SaveGone

OWN, NAMED, FOREIGN, UNKNOWN = CheckpointOwner
LONG_AGO = (1e9, 1e9)


class Restarted(Node):
    """A job whose first attempt saves, and whose second one loads. Its node's state lies as on a disk that nodes share."""

    def __init__(self, home: Path, *, saves: tuple[int, ...] = (20, 40), before: str = "", **settings: Any) -> None:  # noqa: ANN401 -- those of checkpoints
        """Run the first attempt. `before`: another training's checkpoint that lies there before the job."""
        super().__init__(home, **settings)
        self.reports: list[CheckpointReport] = []
        self.state = home / "nodes/node"
        self.state.mkdir(parents=True)
        (self.here / "ckpt").mkdir()
        if before:
            self.stray(before)
        self.run("run-a")
        self.attempt(1)
        for step in saves:
            self.save(step)

    def stray(
        self, name: str = "ckpt/step_5000.pt", content: dict[str, Any] | None = None, *, when: tuple[float, float] | None = None
    ) -> Path:
        """Put a file there that no rank of this job saves."""
        path = self.here / name
        path.parent.mkdir(exist_ok=True)
        torch.save({"w": torch.ones(64), **(content or {})}, path)
        if when is not None:
            os.utime(path, when)
        return path

    def loads(self, *names: str, attempt: int = 2, rank: int = 0) -> list[tuple[str, CheckpointOwner, int | None, bool]]:
        """Load in an attempt, and return what is known of each: its name, owner, step, whether one of this job followed."""
        if self.current != attempt:
            self.checkpoints.ended()
            self.checkpoints.select(1.0, attempt - 1)
            self.attempt(attempt)
        with (self.job.attempt_dir(attempt) / f"loads-{rank}.jsonl").open("a") as out:
            for name in names:
                out.write(json.dumps({"path": str(self.here / name), "t": 1e6, "complete": True, "via": "torch", "steps": 0}) + "\n")
        loads = self.checkpoints.loaded(attempt)
        return [(Path(load.path).name, load.owner, load.step, load.replaced) for load in loads]


@pytest.fixture
def job(tmp_path: Path) -> Restarted:
    return Restarted(tmp_path / "job")


def test_a_file_that_lay_there_before_the_job_is_another_trainings_though_a_declared_pattern_matches_it(tmp_path: Path) -> None:
    job = Restarted(tmp_path, saves=(20,), before="ckpt/step_5000.pt")
    assert job.loads("ckpt/step_5000.pt") == [("step_5000.pt", FOREIGN, 5000, False)]


@pytest.mark.parametrize(
    ("name", "content", "when", "step"),
    [
        ("ckpt/step_5000.pt", {}, None, 5000),
        ("ckpt/step_5000.pt", {}, LONG_AGO, 5000),
        ("ckpt/step_5000.pt", {"global_step": 30}, LONG_AGO, 5000),
        ("ckpt/step_30.pt", {"global_step": 5000}, LONG_AGO, 5000),
        ("ckpt/5000.pt", {}, LONG_AGO, 5000),
        ("ckpt/epoch_7.pt", {}, LONG_AGO, None),
    ],
)
def test_a_file_that_came_during_the_job_without_a_save_is_foreign(
    job: Restarted, name: str, content: dict[str, Any], when: tuple[float, float] | None, step: int | None
) -> None:
    job.stray(name, content, when=when)
    assert job.loads(name) == [(Path(name).name, FOREIGN, step, False)]


def own(_job: Restarted) -> str:
    return "ckpt/step_40.pt"


def linked(job: Restarted) -> str:
    (job.here / "ckpt/latest.pt").symlink_to("step_40.pt")
    return "ckpt/latest.pt"


def hard_linked(job: Restarted) -> str:
    os.link(job.here / "ckpt/step_40.pt", job.here / "ckpt/last.pt")
    return "ckpt/last.pt"


def copied(job: Restarted) -> str:
    shutil.copy2(job.here / "ckpt/step_40.pt", job.here / "ckpt/step_9040.pt")
    return "ckpt/step_9040.pt"


def renamed(job: Restarted) -> str:
    path, new = job.save(60, "ckpt/new.pt"), job.here / "ckpt/step_60.pt"
    path.rename(new)
    row = {"what": "renamed", "was": str(path), "path": str(new), "now": identity(new), "t": 99.0, "steps": 1}
    with (job.job.attempt_dir(1) / "saves-0.jsonl").open("a") as out:
        out.write(json.dumps(row) + "\n")
    return "ckpt/step_60.pt"


def torn_and_put_back(job: Restarted) -> str:
    job.look()
    job.save(90, "ckpt/last.pt")
    job.look()
    job.save(91, "ckpt/last.pt", cut=True)
    return "ckpt/last.pt"


def restored_from_the_mirror(job: Restarted) -> str:
    path = job.stray("ckpt/step_900.pt", when=LONG_AGO)
    manifest = check.build(verify(str(path)), About("job", "other-node-run", began=1_000_000_000, attempt=1))
    job.checkpoints.restored(str(path), 1_000_000_000, encode(manifest).decode())
    return "ckpt/step_900.pt"


def of_an_earlier_run(job: Restarted) -> str:
    job.look()
    job.checkpoints.ended()
    for run in ("run-b", "run-c"):  # its save log is two runs back
        job.run(run)
        job.attempt(1)
        job.save(10, "ckpt/last.pt")
    return "ckpt/step_40.pt"


def of_another_node(job: Restarted) -> str:
    """Requeued on a node that has its own records, and whose disk is shared."""
    job.look()
    job.checkpoints.ended()
    job.state = job.state.with_name("node-b")
    job.state.mkdir()
    job.run("run-b")
    job.attempt(1)
    job.save(10, "ckpt/last.pt")
    return "ckpt/step_40.pt"


@pytest.mark.parametrize(
    "ready",
    few([own, linked, hard_linked, copied, renamed, torn_and_put_back, restored_from_the_mirror, of_an_earlier_run, of_another_node], 5),
)
def test_the_ordinary_ways_are_all_this_jobs_own(job: Restarted, ready: Callable[[Restarted], str]) -> None:
    name = ready(job)
    assert [owner for _, owner, _, _ in job.loads(name)] == [OWN]


def test_our_own_copy_that_was_handed_over_is_this_jobs(job: Restarted) -> None:
    job.save(50, "ckpt/last.pt")
    job.look()
    (copy,) = job.checkpoints.records.copies.spares()
    assert CheckpointOwners(job.checkpoints.records).owner_of(copy.copy_path) == (OWN, "")


def test_a_save_without_a_hook_is_unknown_and_not_foreign(tmp_path: Path) -> None:
    job = Restarted(tmp_path, saves=())
    job.stray("ckpt/step_40.pt")
    assert job.loads("ckpt/step_40.pt") == [("step_40.pt", UNKNOWN, None, False)]


def test_on_several_nodes_a_save_without_a_hook_is_unknown(job: Restarted) -> None:
    job.stray(when=LONG_AGO)
    job.checkpoints = JobCheckpoints(job.job, job.reports.append, several_nodes=True)
    assert job.loads("ckpt/step_5000.pt") == [("step_5000.pt", UNKNOWN, None, False)]


@pytest.mark.parametrize("words", [("--resume", "ckpt/step_5000.pt"), ("--resume=./ckpt/step_5000.pt",)])
def test_a_path_in_the_command_was_chosen_by_the_user(job: Restarted, words: tuple[str, ...]) -> None:
    job.stray(when=LONG_AGO)
    job.job = replace(job.job, command=("python", "train.py", *words))
    job.checkpoints = JobCheckpoints(job.job, job.reports.append)
    assert job.loads("ckpt/step_5000.pt") == [("step_5000.pt", NAMED, None, False)]


def test_a_declared_path_without_wildcards_is_a_choice_and_the_directory_of_the_checkpoints_is_none(tmp_path: Path) -> None:
    job = Restarted(tmp_path, paths=("ckpt/*.pt", "ckpt/step_5000.pt"))
    job.stray(when=LONG_AGO)
    assert job.loads("ckpt/step_5000.pt") == [("step_5000.pt", NAMED, None, False)]


def test_data_and_a_base_model_elsewhere_are_none_of_this_jobs_business(job: Restarted) -> None:
    job.stray("data/tokens_5000.pt")
    job.stray("base/model.pt")
    assert job.loads("data/tokens_5000.pt", "base/model.pt", "ckpt/step_40.pt") == [("step_40.pt", OWN, None, False)]


def test_a_foreign_checkpoint_dropped_for_an_own_one_is_not_trained_on(job: Restarted) -> None:
    job.stray(when=LONG_AGO)
    assert job.loads("ckpt/step_5000.pt", "ckpt/step_40.pt") == [("step_5000.pt", FOREIGN, 5000, True), ("step_40.pt", OWN, None, False)]


def test_the_last_loaded_file_counts_and_another_kind_replaces_none(job: Restarted) -> None:
    job.stray(when=LONG_AGO)
    job.save(41, "ckpt/scaler.pt")
    (first, second, third) = job.loads("ckpt/step_40.pt", "ckpt/step_5000.pt", "ckpt/scaler.pt")
    assert (second, first[1], third[1]) == (("step_5000.pt", FOREIGN, 5000, False), OWN, OWN)


def test_a_file_of_a_checkpoint_that_is_a_directory(tmp_path: Path) -> None:
    job = Restarted(tmp_path, paths=("ckpt/step-*",))
    for name in ("model.pt", "optim.pt"):
        job.save(60, f"ckpt/step-60/{name}")
        job.stray(f"ckpt/step-5000/{name}", when=LONG_AGO)
    names = ("ckpt/step-60/model.pt", "ckpt/step-60/optim.pt", "ckpt/step-5000/model.pt", "ckpt/step-5000/optim.pt")
    assert job.loads(*names) == [("step-60", OWN, None, False), ("step-5000", FOREIGN, 5000, False)]


def test_the_directory_of_the_checkpoints_may_be_a_link_to_another_disk(job: Restarted, tmp_path: Path) -> None:
    (job.here / "ckpt").rename(tmp_path / "scratch")
    (job.here / "ckpt").symlink_to(tmp_path / "scratch")
    job.stray(when=LONG_AGO)
    (job.here / "ckpt/latest.pt").symlink_to("step_5000.pt")
    assert job.loads("ckpt/step_5000.pt") == [("step_5000.pt", FOREIGN, 5000, False)]
    assert job.loads("ckpt/latest.pt", rank=1) == [("step_5000.pt", FOREIGN, 5000, False)]
    assert job.loads("ckpt/step_40.pt", attempt=3) == [("step_40.pt", OWN, None, False)]


def test_another_jobs_save_into_the_same_directory_is_foreign(job: Restarted, tmp_path: Path) -> None:
    other = Restarted(tmp_path / "other", saves=())
    other.here = job.here
    other.save(5000)
    other.checkpoints.records.absorb()
    assert job.loads("ckpt/step_5000.pt") == [("step_5000.pt", FOREIGN, 5000, False)]
    assert [load.why for load in job.checkpoints.loaded(2)] == ["no rank of this job saved it, and each of their saves next to it is known"]


# the selection


def test_a_script_that_is_handed_its_checkpoint_is_not_given_another_trainings_beyond_this_run(job: Restarted) -> None:
    stray = job.stray()
    job.look()
    job.checkpoints.records.script_chooses = False
    job.checkpoints.ended()
    selection = job.checkpoints.select(2.0, 1, reached=45)
    assert selection.chosen is not None
    assert selection.chosen.path.endswith("step_40.pt")
    assert any(str(stray) in note and "another training" in note for note in selection.notes)
    assert [path for path, _ in selection.refused] == [str(stray)]


def test_a_foreign_checkpoint_is_chosen_if_the_run_began_from_it_or_has_no_step(job: Restarted) -> None:
    stray = str(job.stray())
    job.checkpoints.ended()
    for known in ({"reached": 45, "begun_from": (stray,)}, {"reached": None}):
        chosen = job.checkpoints.select(2.0, 1, **known).chosen
        assert chosen is not None
        assert chosen.path == stray


def test_numbering_that_begins_anew_is_chosen_by_the_attempt_and_not_by_its_number(job: Restarted) -> None:
    job.stops(1)
    job.attempt(2)
    job.save(10)
    job.checkpoints.ended()
    chosen = job.checkpoints.select(2.0, 2, reached=45).chosen
    assert chosen is not None
    assert chosen.path.endswith("step_10.pt")


# what counts as progress


def heard_of(job: Restarted) -> list[tuple[str, int]]:
    """Have the watcher read what is there; return the names that the core hears of, with the attempt of each."""
    reports: list[CheckpointReport] = []
    job.checkpoints = JobCheckpoints(job.job, reports.append)
    job.checkpoints.began(job.current)
    job.look()
    return [(Path(report.ref.path).name, report.attempt) for report in reports if isinstance(report, CheckpointFound)]


def test_a_concurrent_save_of_another_training_is_no_progress_of_the_attempt(job: Restarted) -> None:
    assert ("step_40.pt", 1) in heard_of(job)
    job.stray("ckpt/step_5000.pt")
    assert ("step_5000.pt", 1) not in heard_of(job)


@pytest.mark.parametrize("words", [(), ("--init", "ckpt/step_5000.pt")])
def test_nor_is_the_base_that_is_selected_before_the_run_has_a_step(tmp_path: Path, words: tuple[str, ...]) -> None:
    job = Restarted(tmp_path, saves=(), before="ckpt/step_5000.pt")
    job.job = replace(job.job, command=("python", "train.py", *words))
    job.checkpoints = JobCheckpoints(job.job, job.reports.append)
    selected = job.checkpoints.select(1.0, 0)
    assert selected.chosen is not None
    assert (Path(selected.chosen.path).name, selected.is_foreign) == ("step_5000.pt", True)


# the newest save


class Watched:
    """What the watch of the newest save reports, at a clock of the test's."""

    def __init__(self, job: Restarted) -> None:
        """Watch the job's saves."""
        self.job, self.now = job, 0.0
        self.reports: list[SaveGone] = []
        self.watch = NewestSave(job.checkpoints.records, self.reports.append, lambda: self.now)

    def after(self, seconds: float, *, is_at_rest: bool = False) -> list[tuple[str, bool]]:
        """Return what was reported by then, since the last time."""
        self.now += seconds
        self.job.checkpoints.records.absorb_logs()
        self.watch.read()
        self.watch.look(is_at_rest=is_at_rest)
        rows = [(Path(report.path).name, report.is_over) for report in self.reports]
        self.reports.clear()
        return rows


def test_a_newest_save_that_is_removed_is_reported_once_and_a_newer_one_ends_it(job: Restarted) -> None:
    watched = Watched(job)
    assert watched.after(0) == []
    (job.here / "ckpt/step_40.pt").unlink()
    assert watched.after(1) == []
    assert watched.after(11) == [("step_40.pt", False)]
    assert watched.after(60) == []
    job.save(60)
    assert watched.after(1) == [("step_60.pt", True)]
    (job.here / "ckpt/step_60.pt").unlink()
    assert watched.after(1) == []
    assert watched.after(11) == [("step_60.pt", False)]


def test_once_no_rank_is_left_nothing_newer_is_waited_for(job: Restarted) -> None:
    (job.here / "ckpt/step_40.pt").unlink()
    assert Watched(job).after(0, is_at_rest=True) == [("step_40.pt", False)]


def rotated(job: Restarted) -> None:
    job.save(60)
    (job.here / "ckpt/step_40.pt").unlink()


def removed_before_the_next_save(job: Restarted) -> None:
    (job.here / "ckpt/step_40.pt").unlink()
    job.save(60, cut=True)


def given_another_name(job: Restarted) -> None:
    renamed(job)


def an_older_one_removed(job: Restarted) -> None:
    (job.here / "ckpt/step_20.pt").unlink()


def a_scratch_file_removed(job: Restarted) -> None:
    job.save(41, "ckpt/eval.pt").unlink()


def a_file_elsewhere_removed(job: Restarted) -> None:
    job.save(41, "export/model_41.pt").unlink()


@pytest.mark.parametrize(
    "happens",
    [rotated, removed_before_the_next_save, given_another_name, an_older_one_removed, a_scratch_file_removed, a_file_elsewhere_removed],
)
def test_the_ordinary_ways_of_a_rotation_are_not_reported(job: Restarted, happens: Callable[[Restarted], None]) -> None:
    happens(job)
    watched = Watched(job)
    assert watched.after(0) + watched.after(11) == []
