"""The right checkpoint is chosen, kept and restored over runs, steps back and killed supervisors: real files, a real mirror.

Ranks save, and log it as `_supervise_shim` does. A selection, the directory, the mirror and a fresh node then have what they must.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io.tree import ReadOptions
from checkpointing.lineage import RUN
from checkpointing.manifest.documents import VERIFIED
from checkpointing.mirror import listing, restore
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.verification import verify as check_file
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.mirror.uploads import MirrorUploads
from supervisor.checkpoints.recording.reports import CheckpointAlert, CheckpointPruned, CheckpointTrouble
from supervisor.cli.checkpoints import verify
from supervisor.config.settings import Checkpoints, Settings
from supervisor.job.job import Job
from tests.support.few import few
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from supervisor.checkpoints.mirror.feed import MirrorFeed
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.core.events import CheckpointSelected

DEADLINE_S = 60.0
GRAIN_S = 0.05


class Node:
    """One supervisor after another of one job in one place; `run` and `attempt` begin them."""

    def __init__(self, home: Path, **settings: Any) -> None:  # noqa: ANN401 -- those of checkpoints
        """Make the directories."""
        self.here, self.state, self.scratch, self.mirror = (home / name for name in ("here", "state", "scratch", "mirror"))
        for directory in (self.here, self.state, self.scratch, self.mirror):
            directory.mkdir(parents=True)
        declared = {"paths": ("ckpt/*.pt", "last.pt"), "mirror": (str(self.mirror),), **settings}
        self.settings = replace(Settings(), checkpoints=Checkpoints(**declared))
        self.events: list[Mapping[str, Any]] = []
        self.pruned: list[tuple[str, str]] = []
        self.without_copy: list[str] = []
        self.number = self.current = 0

    def run(self, run_id: str, *, goes_on: bool = False) -> CheckpointSelected:
        """Begin a run, or continue with one whose supervisor was killed, and select for its first attempt."""
        if not goes_on:
            shutil.rmtree(self.scratch)
            self.scratch.mkdir()
        self.job = Job("job", run_id, "node", ("true",), self.here, {}, self.settings, self.state, self.scratch, "cookie")
        self.checkpoints = JobCheckpoints(self.job, self._took)
        self.feed: MirrorFeed | None = None
        return self.checkpoints.select(1.0, 0)

    def _took(self, report: CheckpointReport) -> None:
        match report:
            case CheckpointPruned(path, _, reason):
                self.pruned.append((os.path.basename(path), reason))  # noqa: PTH119 -- strings
            case CheckpointAlert(CheckpointTrouble.NO_COPY, text):
                self.without_copy.append(text)

    def attempt(self, number: int) -> None:
        """Start the ranks of an attempt, by more than the grain of the files' clock after the last save."""
        last = max((path.stat().st_mtime for path in self.here.rglob("*.pt")), default=0.0)
        wait_for(lambda: abs(time.time() - last) > GRAIN_S, "another time")
        self.current = number
        self.job.attempt_dir(number).mkdir()
        self.checkpoints.began(number)

    def trains(self, number: int) -> tuple[str, ...]:
        """Start the ranks of an attempt, which make a step. Returns what a person should know of the checkpoints before it."""
        self.attempt(number)
        return self.checkpoints.accuse(f"attempt {number} trained from an older one")

    def save(self, step: int, name: str = "", *, cut: bool = False) -> Path:
        """Save as a rank does, into a file of its own or in place, to the end or not."""
        path = self.here / (name or f"ckpt/step_{step}.pt")
        path.parent.mkdir(exist_ok=True)
        self.number += 1
        log = self.job.attempt_dir(self.current) / "saves-0.jsonl"
        rows = [{"what": "began", "path": str(path), "n": self.number, "via": "torch", "was": identity(path), "file": False}]
        torch.save({"step": step, "w": torch.full((4096,), float(step))}, path)
        if cut:
            os.truncate(path, 700)
        else:
            rows.append({"what": "ended", "path": str(path), "n": self.number, "well": True, "now": identity(path)})
        with log.open("a") as out:
            out.writelines(json.dumps({"t": self.number, **row}) + "\n" for row in rows)
        return path

    def look(self) -> None:
        """Have the watcher read what is there."""
        watcher = self.checkpoints.watcher(self.feed)
        assert watcher is not None
        watcher.start()
        assert watcher.finish(DEADLINE_S)

    def stops(self, attempt: int, *avoid: str) -> CheckpointSelected:
        """End the ranks, and select for the next attempt. `avoid`: names of files that are poisoned."""
        self.checkpoints.ended()
        return self.checkpoints.select(2.0, attempt, tuple(str(self.here / name) for name in avoid))

    @contextmanager
    def mirrored(self) -> Iterator[None]:
        """Run the reader process meanwhile."""
        failures: list[Exception] = []
        catalogue = self.checkpoints.records.catalogue
        uploads = MirrorUploads(self.job, catalogue, lambda event: self.events.append(msgspec.to_builtins(event)), failures.append)
        uploads.link.start()
        self.feed = self.checkpoints.mirror_feed(uploads, lambda: True)
        yield
        self.feed = None
        assert (uploads.close(DEADLINE_S), failures) == (0, [])

    def arrives(self, step: int) -> None:
        """Save, look, and wait until it is in the mirror, which is tidied then."""
        before = len(self.events)
        self.save(step)
        self.look()

        def is_there() -> bool:
            return ("uploaded", step) in [(row["ev"], row.get("step")) for row in self.events[before:]]

        wait_for(is_there, f"step {step} in the mirror", DEADLINE_S)

    def in_mirror(self) -> list[int | None]:
        """Return the steps that the mirror holds, the newest first."""
        return [checkpoint.manifest.step for checkpoint in listing.newest_first(open_backend(str(self.mirror)), "job")[0]]

    def on_a_fresh_node(self, tmp_path: Path) -> int | None:
        """Return the step that an empty disk gets."""
        done = restore.newest([open_backend(str(self.mirror))], "job", into=str(tmp_path / "fresh"))
        assert done is not None
        return done.manifest.step

    def on_disk(self) -> list[int]:
        """Return the steps in the directory."""
        return sorted(int(path.stem.removeprefix("step_")) for path in (self.here / "ckpt").glob("*.pt"))


def identity(path: Path) -> list[int] | None:
    if not path.exists():
        return None
    st = path.stat()
    return [st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns]


def chosen(selected: CheckpointSelected) -> tuple[str, int | None]:
    assert selected.chosen is not None, selected
    return os.path.basename(selected.chosen.path), selected.chosen.step  # noqa: PTH119 -- strings


def test_the_mirror_keeps_the_newest_of_a_run_that_began_anew_in_the_place_of_another(tmp_path: Path) -> None:
    node = Node(tmp_path, mirror_keep=2)
    node.run("run-a")
    node.attempt(1)
    with node.mirrored():
        node.arrives(99_000)
        node.arrives(100_000)
    node.run("run-b")  # whose script takes no notice, and begins from scratch
    node.attempt(1)
    with node.mirrored():
        node.arrives(500)
        wait_for(lambda: node.in_mirror() == [500, 100_000], "the mirror is tidied", DEADLINE_S)
        node.arrives(1000)
        node.arrives(1500)
    assert node.in_mirror() == [1500, 1000]
    assert node.on_a_fresh_node(tmp_path) == 1500
    assert chosen(node.run("run-c")) == ("step_1500.pt", 1500)


def test_a_step_back_holds_in_the_mirror_and_for_the_next_start(tmp_path: Path) -> None:
    node = Node(tmp_path, mirror_keep=2)
    node.run("run-a")
    node.attempt(1)
    with node.mirrored():
        for step in (800, 900, 1000):
            node.arrives(step)
        assert chosen(node.stops(1, "ckpt/step_1000.pt", "ckpt/step_900.pt")) == ("step_800.pt", 800)
        node.trains(2)
        for step in (850, 890):
            node.arrives(step)
    assert node.in_mirror() == [890, 850]
    again = node.run("run-b")
    assert (chosen(again), again.notes) == (("step_890.pt", 890), ())
    assert node.on_a_fresh_node(tmp_path) == 890


def test_a_step_back_holds_for_the_next_start_without_later_saves(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("run-a")
    node.attempt(1)
    for step in (800, 900, 1000):
        node.save(step)
    node.save(1000, "last.pt")  # the same state under a second name
    node.look()
    assert chosen(node.stops(1, "ckpt/step_1000.pt")) == ("step_900.pt", 900)
    rejected = str(node.here / "ckpt" / "step_1000.pt")
    withdraws = f"it is used again after `supervise checkpoints quarantine --job job --withdraw {rejected}`"
    reason = "attempt 2 trained from an older one"
    assert node.trains(2) == (f"checkpoint out of use from now on: {rejected}: {reason}; {withdraws}",)
    node.stops(2, "ckpt/step_1000.pt")
    next_run = node.run("run-b")
    assert chosen(next_run) == ("step_900.pt", 900)
    (note,) = next_run.notes
    assert note.startswith(f"checkpoint out of use: {rejected}")  # last.pt is counted beside it, if it was read
    assert note.endswith(f": {reason}; {withdraws}")
    again = node.stops(0)
    assert (chosen(again), again.notes) == (("step_900.pt", 900), ())


def test_a_step_back_after_which_no_attempt_trained_is_forgotten_with_its_run(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("run-a")
    node.attempt(1)
    for step in (900, 1000):
        node.save(step)
    node.look()
    assert chosen(node.stops(1, "ckpt/step_1000.pt")) == ("step_900.pt", 900)
    node.attempt(2)
    node.stops(2, "ckpt/step_1000.pt")
    next_run = node.run("run-b")
    assert (chosen(next_run), next_run.notes) == (("step_1000.pt", 1000), ())


def test_a_step_back_holds_on_another_host_that_sees_the_same_disk(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.state = tmp_path / "state" / "nodes" / "x"
    node.state.mkdir(parents=True)
    node.run("run-a")
    node.attempt(1)
    for step in (800, 900, 1000):
        node.save(step)
    node.look()
    node.stops(1, "ckpt/step_1000.pt", "ckpt/step_900.pt")
    node.trains(2)
    node.save(850)
    node.look()
    node.stops(2, "ckpt/step_1000.pt", "ckpt/step_900.pt")
    # only times tell it there: let the first attempt have begun 100 s earlier, and have saved 50 s ago
    catalogue = CheckpointCatalogue(node.state / "checkpoints", is_writer=True)
    (run,) = catalogue.all(RUN)
    (number, began_ns), *others = run.attempts
    catalogue.put(RUN, replace(run, attempts=((number, began_ns - 100 * 10**9), *others)))
    for step in (800, 900, 1000):
        path = node.here / "ckpt" / f"step_{step}.pt"
        os.utime(path, (path.stat().st_mtime - 50,) * 2)
    node.state = tmp_path / "state" / "nodes" / "y"
    node.state.mkdir()
    assert chosen(node.run("run-b")) == ("step_850.pt", 850)


def test_a_state_that_was_written_later_under_a_lower_step_is_taken_and_that_is_reported(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("run-a")
    node.attempt(1)
    node.save(100)
    node.save(140)
    node.look()
    node.stops(1)
    node.attempt(2)
    node.save(60)
    node.save(100)
    selected = node.stops(2)  # before the watcher saw them
    assert chosen(selected) == ("step_100.pt", 100)
    ckpt = node.here / "ckpt"
    assert selected.notes == (
        f"{ckpt}/step_100.pt (step 100) is newer than {ckpt}/step_140.pt (step 140): it was saved later in the same run",
    )


def test_copies_follow_a_step_back_and_a_new_run(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("run-a")
    node.attempt(1)
    for step in (800, 900, 1000):
        node.save(step, "last.pt")
        node.look()
    assert chosen(node.stops(1, "last.pt"))[1] == 900
    node.attempt(2)
    for step in (850, 875):
        node.save(step, "last.pt")
        node.look()
    assert [copy.manifest.step for copy in node.checkpoints.records.copies.all()] == [900, 850, 875]  # 900 is in use
    node.save(890, "last.pt", cut=True)
    assert chosen(node.stops(2, "last.pt"))[1] == 875, "and not step 1000, which was given up"
    assert chosen(node.run("run-b"))[1] == 875


def test_a_declared_file_in_a_directory_of_its_own_is_copied_from_its_first_save_on(tmp_path: Path) -> None:
    node = Node(tmp_path, paths=("sub/ckpt.pt",), mirror=())
    (node.here / "sub").mkdir()
    node.run("run-a")
    node.attempt(1)
    node.save(1, "sub/ckpt.pt")
    node.look()
    node.save(2, "sub/ckpt.pt", cut=True)
    assert chosen(node.stops(1))[1] == 1


def test_a_copy_that_cannot_be_made_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, paths=("last.pt",), mirror=())
    node.run("run-a")
    node.attempt(1)
    real = os.statvfs
    full = lambda path: os.statvfs_result((*real(path)[:4], 3, *real(path)[5:]))  # noqa: E731 -- three blocks are free
    monkeypatch.setattr(os, "statvfs", full)
    for step in (1, 2):
        node.save(step, "last.pt")
        node.look()
    path = node.here / "last.pt"
    (text,) = node.without_copy
    assert text.startswith(
        f"a kill during the next save of {path} would lose it: the file is written in place, and has no copy: the disk would not"
    )
    monkeypatch.undo()
    node.save(3, "last.pt.new")
    os.replace(node.here / "last.pt.new", path)  # noqa: PTH105 -- as scripts do
    row = {"what": "renamed", "path": str(path), "was": f"{path}.new", "now": identity(path), "t": 9}
    with (node.job.attempt_dir(1) / "saves-0.jsonl").open("a") as out:
        out.write(json.dumps(row) + "\n")
    node.look()
    (copy,) = node.checkpoints.records.copies.all()
    shares = os.stat(copy.place).st_nlink > 1 or os.stat(copy.place).st_ino != path.stat().st_ino  # noqa: PTH116 -- a link, or a reflink
    assert (copy.manifest.step, shares) == (3, True)


@pytest.mark.parametrize("removed", few([1, 2]))
def test_a_checkpoint_that_the_script_removed_as_too_old_is_not_reported(tmp_path: Path, removed: int) -> None:
    node = Node(tmp_path, paths=("*.pt",))
    node.run("run-a")
    node.attempt(1)
    for number in (1, 2):
        node.save(number, f"last-{'ab'[number - 1]}.pt")
        node.look()
    assert len(node.checkpoints.records.copies.all()) == 2
    (node.here / f"last-{'ab'[removed - 1]}.pt").unlink()
    notes = node.run("run-b").notes
    assert ["was removed before this run" in note for note in notes] == [True] * (removed == 2)


def test_a_checkpoint_removed_by_a_person_does_not_return_from_a_copy(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("run-a")
    node.attempt(1)
    node.save(100_000, "last.pt")
    node.look()
    (node.here / "last.pt").unlink()
    anew = node.run("run-b")
    assert anew.chosen is None
    assert anew.n_found == 0
    assert "was removed before this run, so its kept copy is not used" in anew.notes[0]
    node.attempt(1)
    node.save(10, "last.pt", cut=True)
    assert node.stops(1).chosen is None
    node.attempt(2)
    node.save(10, "last.pt")
    node.look()
    node.save(20, "last.pt", cut=True)
    assert chosen(node.stops(2))[1] == 10


def test_a_checkpoint_cut_off_in_its_save_does_not_count_as_removed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("run-a")
    node.attempt(1)
    node.save(100, "last.pt")
    node.look()
    node.save(200, "last.pt", cut=True)
    node.look()
    (node.here / "last.pt").unlink()  # a script that removes the old one first, and was killed before it wrote the new one
    assert chosen(node.run("run-b"))[1] == 100


def test_checkpoints_written_before_a_takeover_are_pruned_after_it(tmp_path: Path) -> None:
    node = Node(tmp_path, keep=2, mirror=())
    node.run("run-a")
    node.attempt(1)
    for step in (10, 20, 30):
        node.save(step)
    node.look()
    assert node.on_disk() == [20, 30]
    for step in (40, 50, 60):
        node.save(step)  # and the supervisor is killed before it saw any of them
    node.run("run-a", goes_on=True)
    node.attempt(2)
    node.look()  # reads what is there at the start
    node.save(70)
    node.look()
    assert node.on_disk() == [60, 70], node.pruned  # 60 is what the attempt was begun with
    assert node.checkpoints.records.discovery is not None
    assert {place.pattern.rpartition("/")[2]: place.saved for place in node.checkpoints.records.discovery.locations()} == {
        "step_[0-9]*.pt": 7
    }


def test_the_last_save_before_a_power_cut_is_newer_than_the_recorded_one(tmp_path: Path) -> None:
    """The watcher had begun to look before the attempt began, and recorded one save of it. The next one it did not see."""
    node = Node(tmp_path)
    node.run("20260101T000000-aaaa")
    node.attempt(1)
    recorded = node.checkpoints.recorder.record_verified(check_file(str(node.save(5))), ReadOptions())
    assert recorded is not None
    node.save(10)
    shutil.rmtree(node.scratch / "attempt-0001")  # the logs of the ranks are in memory
    selected = node.run("20260101T000000-aaaa", goes_on=True)
    assert chosen(selected) == ("step_10.pt", 10)
    assert not selected.notes


def test_an_attempt_whose_beginning_a_power_cut_took_is_known_from_what_it_saved(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("20260101T000000-aaaa")
    node.attempt(1)
    assert node.checkpoints.recorder.record_verified(check_file(str(node.save(5))), ReadOptions()) is not None
    node.save(10)
    catalogue = CheckpointCatalogue(node.state / "checkpoints", is_writer=True)
    catalogue.put(RUN, replace(catalogue.all(RUN)[-1], attempts=()))
    shutil.rmtree(node.scratch / "attempt-0001")
    selected = node.run("20260101T000000-aaaa", goes_on=True)
    assert chosen(selected) == ("step_10.pt", 10)
    assert not selected.notes


def test_another_runs_files_fill_no_quota_and_are_not_removed(tmp_path: Path) -> None:
    node = Node(tmp_path, keep=2, mirror=())
    node.run("run-a")
    node.attempt(1)
    for step in (99_000, 100_000):
        node.save(step)
        node.look()
    node.run("run-b")
    node.attempt(1)
    for step in (10, 20, 30):
        node.save(step)
        node.look()
    assert node.on_disk() == [20, 30, 99_000, 100_000]
    for step in (20, 99_000):
        node.save(step)  # of equal step: the second run wrote its own over it
    node.look()
    assert chosen(node.stops(1))[1] == 99_000


@pytest.mark.parametrize("files", few(["here", "gone"]))
def test_files_of_nobody_knows_when_stand_behind_those_of_a_run(tmp_path: Path, files: str) -> None:
    node = Node(tmp_path)
    (node.here / "ckpt").mkdir()
    for step in (5, 7000):
        path = node.here / "ckpt" / f"step_{step}.pt"
        torch.save({"step": step, "w": torch.ones(8)}, path)
        os.utime(path, (1e9, 1e9))
    assert chosen(node.run("run-a"))[1] == 7000
    node.attempt(1)
    node.look()
    node.save(50)
    node.look()
    if files == "gone":
        catalogue = CheckpointCatalogue(node.state / "checkpoints", is_writer=True)
        assert catalogue.remove(VERIFIED, *(manifest.path for manifest in catalogue.all(VERIFIED)))
    selected = node.stops(1)
    assert chosen(selected)[1] == 50
    assert "is newer than" in selected.notes[0]


def test_latest_names_what_a_resume_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By name and content alone, by the order of the runs, after a step back, behind a fence, and where only a copy is left."""
    node = Node(tmp_path)

    def latest(directory: str) -> tuple[str, int | None]:
        verify.latest(str(node.here / directory), node.state / "checkpoints", as_json=True)
        row = json.loads(capfd.readouterr().out)
        return os.path.basename(row["path"]), row["step"]  # noqa: PTH119 -- strings

    node.run("run-a")
    node.attempt(1)
    node.save(100)
    (node.here / "ckpt" / "step_9000.pt").write_bytes(node.save(90).read_bytes())  # another one's name
    node.look()
    assert chosen(node.stops(1)) == latest("ckpt") == ("step_9000.pt", 9000)
    (node.here / "ckpt" / "step_9000.pt").unlink()
    node.save(140)
    node.look()
    assert chosen(node.stops(1)) == latest("ckpt") == ("step_140.pt", 140)
    stepped_back = chosen(node.stops(1, "ckpt/step_140.pt"))
    assert latest("ckpt") == ("step_140.pt", 140), "the older one is only tried"
    node.trains(2)
    assert stepped_back == latest("ckpt")
    assert stepped_back[1] != 140
    node.save(110)
    node.save(120, cut=True)
    node.look()
    assert chosen(node.stops(2, "ckpt/step_140.pt")) == latest("ckpt") == ("step_110.pt", 110)
    assert chosen(node.run("run-b")) == latest("ckpt") == ("step_110.pt", 110)
    node.attempt(1)
    node.save(7, "last.pt")
    node.look()
    node.save(8, "last.pt", cut=True)
    shutil.rmtree(node.here / "ckpt")
    selected = node.stops(1)
    assert selected.chosen is not None
    assert "/copies/" in selected.chosen.path
    assert latest("") == chosen(selected) == ("last.pt", 7)


def test_the_beginning_of_an_attempt_is_on_disk_before_the_watcher_looks_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run("20260101T000000-aaaa")
    watcher = node.checkpoints.watcher()
    assert watcher is not None
    watcher.start()
    catalogue = CheckpointCatalogue(node.state / "checkpoints")
    wait_for(lambda: catalogue.all(RUN), "its first look")
    node.attempt(1)
    wait_for(lambda: [number for number, _ in catalogue.all(RUN)[-1].attempts] == [1], "the attempt", 20)
    assert watcher.finish(DEADLINE_S)
