"""What the lines of the ranks show about a job: its checkpoint places, this run's own files, and what the supervisor remembers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.model import Identity
from checkpointing.retention.ownership import not_written
from checkpointing.verification import identity_of
from supervisor.checkpoints.discovery import from_logs, record
from supervisor.checkpoints.discovery.from_logs import MOST_LOCATIONS, Discovery
from supervisor.core.model import RESUME, Knob, ResumeKind
from supervisor.knobs.knob_set import ResumeWay

if TYPE_CHECKING:
    from pathlib import Path


class Rank:
    """Writes the lines of one rank, as `_supervise_shim` does."""

    def __init__(self, attempt: Path, local_rank: int = 0) -> None:
        self.directory, self.local_rank, self.number, self.t = attempt, local_rank, 0, 0.0
        attempt.mkdir(parents=True, exist_ok=True)

    def line(self, kind: str, **row: Any) -> None:  # noqa: ANN401  a row of JSON
        """Append a line."""
        self.t += 1
        with (self.directory / f"{kind}-{self.local_rank}.jsonl").open("a") as out:
            out.write(json.dumps({"t": self.t, **row}) + "\n")

    def saves(self, path: str, *, ends: bool = True, well: bool = True, now: list[int] | None = None, **more: Any) -> None:  # noqa: ANN401  see line
        """Save, and come to its end or not."""
        self.number += 1
        self.line("saves", what="began", path=path, n=self.number, via="torch", **{"was": None, "file": False, **more})
        if ends:
            self.line("saves", what="ended", path=path, n=self.number, well=well, now=now or [1, self.number, 10, 5])

    def renames(self, old_path: str, path: str, **more: Any) -> None:  # noqa: ANN401  see line
        """Rename what was saved."""
        self.line("saves", what="renamed", path=path, was=old_path, now=[1, self.number, 10, 5], **more)

    def loads(self, path: str, steps: int = 0, via: str = "torch") -> None:
        """Load after so many steps."""
        self.line("loads", path=path, steps=steps, complete=True, via=via, inode=None, size=None, mtime_ns=None)


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path / "attempt-0001")


#: So many writes in a test of the bound.
MOST_WRITES = 512


def knows(tmp_path: Path, rank: Rank, run: str = "r1") -> Discovery:
    known = Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), run)
    known.absorb(rank.directory, 1)
    return known


def kinds(known: Discovery) -> dict[str, str]:
    return {place.pattern: place.kind for place in known.locations()}


def test_a_save_that_continues_in_the_same_archive_counts_once(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/model_100_steps.zip", file=True, steps=5)
    rank.saves("/j/model_100_steps.zip", file=True, steps=5, goes_on=True, was=[1, 1, 10, 5], ends=False)
    known = knows(tmp_path, rank)
    assert [(location.saved, location.in_training) for location in known.locations()] == [(1, 1)]
    assert [write.interrupted for write in known.writes("/j/model_100_steps.zip")] == [True]


def test_first_weights_that_one_rank_saves_for_the_others_are_no_resume(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/model.pt", steps=0)
    rank.loads("/j/model.pt")
    assert kinds(knows(tmp_path, rank)) == {"/j/model.pt": "seen"}
    rank.saves("/j/model.pt", steps=10)
    rank.loads("/j/other.pt")
    rank.saves("/j/other.pt", steps=0)
    assert kinds(knows(tmp_path / "again", rank)) == {"/j/model.pt": "candidate", "/j/other.pt": "checkpoint"}


def test_repeated_saves_are_candidates_and_no_checkpoints(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/once.pt")
    rank.saves("/j/ckpt.pt")
    rank.saves("/j/ckpt.pt")
    rank.saves("/j/c/step_1.pt")
    rank.saves("/j/c/step_2.pt")
    known = knows(tmp_path, rank)
    assert kinds(known) == {"/j/ckpt.pt": "candidate", "/j/c/step_[0-9]*.pt": "candidate", "/j/once.pt": "seen"}
    assert known.patterns() == ()
    assert set(known.patterns(candidates=True)) == {"/j/ckpt.pt", "/j/c/step_[0-9]*.pt"}


@pytest.mark.parametrize("first", ["saves", "loads"])
def test_a_saved_file_loaded_before_the_first_step_is_a_checkpoint(tmp_path: Path, rank: Rank, first: str) -> None:
    for action in (first, "loads" if first == "saves" else "saves"):
        getattr(rank, action)("/j/c/step_1.pt")
    known = knows(tmp_path, rank)
    assert known.patterns() == ("/j/c/step_[0-9]*.pt",)
    assert known.is_checkpoint("/j/c/step_300.pt")
    assert not known.is_checkpoint("/j/c/step_300_ema.pt")


def test_a_file_only_loaded_or_loaded_in_training_is_no_checkpoint(tmp_path: Path, rank: Rank) -> None:
    rank.loads("/models/pretrained.pt")
    rank.saves("/j/best.pt")
    rank.loads("/j/best.pt", steps=100)
    assert knows(tmp_path, rank).patterns() == ()


@pytest.mark.parametrize(("steps", "known"), [(0, True), (1, True), (2, False)])
def test_a_load_of_dcp_comes_after_the_step_with_which_it_makes_the_optimizer_s_state(
    tmp_path: Path,
    rank: Rank,
    steps: int,
    known: bool,  # noqa: FBT001  a column
) -> None:
    rank.saves("/j/step_1")
    rank.loads("/j/step_1", steps, "dcp")
    assert bool(knows(tmp_path, rank).patterns()) is known


def test_a_file_loaded_like_data_is_no_checkpoint_however_often_saved(tmp_path: Path, rank: Rank) -> None:
    for number in range(6):
        rank.saves(f"/j/features_{number}.pt")
    for number in range(6):
        rank.loads(f"/j/features_{number}.pt")
    known = knows(tmp_path, rank)
    assert kinds(known) == {"/j/features_[0-9]*.pt": "seen"}
    assert known.patterns(candidates=True) == ()


def test_a_resume_that_falls_back_to_an_older_one_is_no_data_set(tmp_path: Path, rank: Rank) -> None:
    for step in (1, 2, 3):
        rank.saves(f"/j/step_{step}.pt")
    rank.loads("/j/step_3.pt")
    rank.loads("/j/step_2.pt")
    assert knows(tmp_path, rank).patterns() == ("/j/step_[0-9]*.pt",)


def test_one_save_in_training_makes_a_candidate_and_none_makes_a_checkpoint(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/prepared.pt", steps=0)
    rank.saves("/j/ckpt.pt", steps=10)
    rank.saves("/j/.tmp-1", steps=10)
    rank.renames("/j/.tmp-1", "/j/last.pt", steps=10)
    for step in (10, 20):
        rank.saves(f"/j/out/checkpoint-{step}/optimizer.pt", steps=step)
        rank.saves(f"/j/features_{step}.pt", steps=0)
    known = knows(tmp_path, rank)
    assert kinds(known) == {
        "/j/prepared.pt": "seen",
        "/j/ckpt.pt": "candidate",
        "/j/last.pt": "candidate",
        "/j/out/checkpoint-[0-9]*": "candidate",
        "/j/features_[0-9]*.pt": "candidate",
    }
    again = Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), "r2")
    for lineage in (known, again):
        repeated = {
            place.pattern for place in lineage.locations() if lineage.is_repeated(place.pattern.replace("[0-9]*", "30"), in_training=True)
        }
        assert repeated == {"/j/out/checkpoint-[0-9]*"}, "what is sent to a mirror, and what is not"


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A step's directory with a file that is seen to be saved, one that a framework writes beside, and one of a person."""
    directory = tmp_path / "out" / "checkpoint-10"
    directory.mkdir(parents=True)
    for name in ("optimizer.pt", "config.json", "README.md"):
        (directory / name).write_text(name)
    return directory


def numbers(path: Path, size: int | None = None) -> list[int]:
    st = path.stat()
    return [st.st_dev, st.st_ino, st.st_size if size is None else size, st.st_mtime_ns]


@pytest.mark.parametrize("how", ["made", "absent", "there before"])
def test_a_frameworks_extra_files_count_in_a_directory_of_this_run_alone(tmp_path: Path, rank: Rank, torn: Path, how: str) -> None:
    if how == "absent":
        rank.saves(str(torn), now=numbers(torn, -1))
        rank.saves(f"{torn}/optimizer.pt", now=numbers(torn / "optimizer.pt"))
    else:
        directories = [[str(torn), *numbers(torn)[:2]]] if how == "made" else []
        rank.saves(f"{torn}/optimizer.pt", now=numbers(torn / "optimizer.pt"), made=directories)
    knows(tmp_path, rank)
    known = Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), "r1")  # it outlives the supervisor
    seen = {"optimizer.pt"} if how == "there before" else {"optimizer.pt", "config.json"}
    assert {path.rpartition("/")[2] for path in known.written_files(str(torn), time.time_ns())} == seen
    (torn / "config.json").write_text("another's, once no rank was alive")
    until = (torn / "config.json").stat().st_ctime_ns - 1
    assert {path.rpartition("/")[2] for path in known.written_files(str(torn), until)} == {"optimizer.pt"}
    assert Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), "r2").written_files(str(torn), time.time_ns()) == {}


def test_a_file_unlinked_by_an_upload_stays_the_jobs_while_unchanged(tmp_path: Path, rank: Rank, torn: Path) -> None:
    rank.saves(f"{torn}/optimizer.pt", now=numbers(torn / "optimizer.pt"), made=[[str(torn), *numbers(torn)[:2]]])
    known = knows(tmp_path, rank)
    proven, before = identity_of(str(torn)), (torn / "config.json").stat().st_ctime_ns - 1
    pinned = tmp_path / "pin"
    pinned.hardlink_to(torn / "config.json")
    assert f"{torn}/config.json" not in known.written_files(str(torn), before, proven)
    pinned.unlink()
    assert f"{torn}/config.json" in known.written_files(str(torn), before, proven)
    (torn / "config.json").write_text("another's")
    assert f"{torn}/config.json" not in known.written_files(str(torn), before, proven)


def test_a_card_that_peft_wrote_is_the_job_s(tmp_path: Path, rank: Rank, torn: Path) -> None:
    rank.saves(f"{torn}/optimizer.pt", now=numbers(torn / "optimizer.pt"), made=[[str(torn), *numbers(torn)[:2]]])
    known = knows(tmp_path, rank)
    assert f"{torn}/README.md" not in known.written_files(str(torn), time.time_ns())
    (torn / "README.md").write_text("---\nbase_model: x\nlibrary_name: peft\n---\n\n# Model Card\n")
    assert f"{torn}/README.md" in known.written_files(str(torn), time.time_ns())


def test_a_directory_that_replaces_the_one_made_is_another(tmp_path: Path, rank: Rank, torn: Path) -> None:
    rank.saves(f"{torn}/optimizer.pt", now=numbers(torn / "optimizer.pt"), made=[[str(torn), *numbers(torn)[:2]]])
    known = knows(tmp_path, rank)
    torn.rename(tmp_path / "kept")  # its inode stays in use
    torn.mkdir()
    (torn / "config.json").write_text("another's")
    assert f"{torn}/config.json" not in known.written_files(str(torn), time.time_ns())


def test_a_checkpoint_of_many_files_can_be_removed_when_newer_ones_are_there(tmp_path: Path, rank: Rank) -> None:
    """Three checkpoints of 300 files each, as 300 ranks write them: the oldest is this job's too."""
    known = Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), "r1")
    oldest = tmp_path / "checkpoint-10"
    for step in (10, 20, 30):
        directory = tmp_path / f"checkpoint-{step}"
        directory.mkdir()
        for number in range(300):
            path = directory / f"rng_state_{number}.pth"
            path.write_bytes(b"state")
            rank.saves(str(path), now=numbers(path))
        known.absorb(rank.directory, 1)
    identity = identity_of(str(oldest))
    assert identity is not None
    assert not_written(str(oldest), identity, known.written_files(str(oldest), 0)) == ""


def test_the_recorded_files_of_a_save_suffice_to_remove_it(tmp_path: Path, rank: Rank) -> None:
    """So the test above fails for its own reason: a checkpoint of few files is this job's too."""
    directory = tmp_path / "checkpoint-10"
    directory.mkdir()
    path = directory / "rng_state_0.pth"
    path.write_text(json.dumps("state"))
    rank.saves(str(path), now=numbers(path))
    known, identity = knows(tmp_path, rank), identity_of(str(directory))
    assert identity is not None
    assert not_written(str(directory), identity, known.written_files(str(directory), 0)) == ""


def test_the_files_of_one_directory_are_one_save(tmp_path: Path, rank: Rank) -> None:
    for name in ("optimizer.pt", "scheduler.pt", "model.safetensors"):
        rank.saves(f"/j/out/checkpoint-10/{name}")
    assert {place.pattern: place.saved for place in knows(tmp_path, rank).locations()} == {"/j/out/checkpoint-[0-9]*": 1}


def test_one_save_of_all_ranks_is_one(tmp_path: Path, rank: Rank) -> None:
    other = Rank(rank.directory, 1)
    for source in (rank, other):
        source.saves("/j/dcp", ends=False)
    assert [place.saved for place in knows(tmp_path, rank).locations()] == [1]


def test_files_of_a_joint_save_count_as_made_by_the_job(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/a.pt", ends=False)
    Rank(rank.directory, 1).saves("/j/a.pt", ends=False, was=[1, 2, 0, 5])
    (write,) = knows(tmp_path, rank).writes("/j/a.pt")
    assert (write.created_by_job, write.interrupted) == (True, True)


def test_a_save_of_an_attempt_that_is_dead_does_not_stay_under_way(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/a.pt", ends=False)
    known = knows(tmp_path, rank)
    after = Rank(tmp_path / "attempt-0002")
    after.saves("/j/a.pt")
    known.absorb(after.directory, 2)
    (write,) = known.writes("/j/a.pt")
    assert not write.interrupted


def test_a_save_counts_under_its_final_name(tmp_path: Path, rank: Rank) -> None:
    for step in (1, 2):
        rank.saves("/j/.tmp-xyz")
        rank.renames("/j/.tmp-xyz", f"/j/step_{step}.pt")
    known = knows(tmp_path, rank)
    assert {place.pattern: place.saved for place in known.locations()} == {"/j/step_[0-9]*.pt": 2}
    (write,) = known.writes("/j/step_2.pt")
    assert (write.after, write.interrupted) == ((1, 2, 10, 5), False)
    assert known.writes("/j/.tmp-xyz") == ()


def test_a_link_is_followed_to_what_was_saved(tmp_path: Path, rank: Rank) -> None:
    (tmp_path / "step_5.pt").touch()
    (tmp_path / "latest.pt").symlink_to("step_5.pt")
    rank.saves(f"{tmp_path}/step_5.pt")
    rank.loads(f"{tmp_path}/latest.pt")
    assert knows(tmp_path, rank).patterns() == (f"{tmp_path}/step_[0-9]*.pt",)


@pytest.mark.parametrize(("how", "cut"), [({}, False), ({"ends": False}, True), ({"well": False}, True)], ids=["whole", "killed", "raised"])
def test_a_write_of_this_run_is_recorded_with_its_interruption(tmp_path: Path, rank: Rank, how: dict[str, bool], cut: bool) -> None:  # noqa: FBT001  a column
    rank.saves("/j/ckpt.pt")
    rank.saves("/j/ckpt.pt", **how)
    (write,) = knows(tmp_path, rank).writes("/j/ckpt.pt")
    assert write.interrupted is cut


def test_places_stay_known_and_writes_of_another_run_do_not_count(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/ckpt.pt")
    rank.loads("/j/ckpt.pt")
    knows(tmp_path, rank)
    again, another = (
        Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), "r1"),
        Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), "r2"),
    )
    assert again.patterns() == another.patterns() == ("/j/ckpt.pt",)
    assert [write.path for write in again.writes("/j/ckpt.pt")] == ["/j/ckpt.pt"]
    assert another.writes("/j/ckpt.pt") == ()
    assert [place.pattern for place in record.read_locations(tmp_path / "checkpoints")] == ["/j/ckpt.pt"]


def test_a_write_of_the_previous_run_is_still_this_nodes(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/ckpt/last.pt")
    knows(tmp_path, rank)
    later = knows(tmp_path, Rank(tmp_path / "attempt-0002"), "r2")
    assert (later.writes("/ckpt/last.pt"), later.wrote_earlier("/ckpt/last.pt"), later.wrote_earlier("/ckpt/other.pt")) == ((), True, False)


def test_lines_are_read_once_and_a_torn_one_when_it_is_whole(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/ckpt.pt")
    known = knows(tmp_path, rank)
    assert not known.absorb(rank.directory, 1)
    with (rank.directory / "saves-0.jsonl").open("a") as out:
        out.write('{"t": 3, "what": "began", "path": "/j/ckpt.pt", "n": 2, "was"')
        out.flush()
        assert not known.absorb(rank.directory, 1)
        out.write(": null}\n\xff nonsense\n[]\n")
    assert known.absorb(rank.directory, 1)
    assert [(place.saved, place.kind) for place in known.locations()] == [(2, "candidate")]


def test_a_file_of_lines_that_was_begun_anew_counts_nothing_twice(tmp_path: Path, rank: Rank) -> None:
    for _ in range(3):
        rank.saves("/j/ckpt.pt")
    known = knows(tmp_path, rank)
    file = rank.directory / "saves-0.jsonl"
    half = file.with_suffix(".half")
    half.write_text("\n".join(file.read_text().splitlines()[-2:]) + "\n")
    half.rename(file)
    rank.saves("/j/ckpt.pt")
    known.absorb(rank.directory, 1)
    assert [place.saved for place in known.locations()] == [4]


def test_the_discovery_is_bounded_and_forgets_other_files_first(tmp_path: Path, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_logs, "MOST_WRITES", MOST_WRITES)
    rank.saves("/j/ckpt.pt")
    rank.loads("/j/ckpt.pt")
    for number in range(MOST_WRITES + 50):
        rank.saves(f"/j/x{number}q.pt")
    known = knows(tmp_path, rank)
    assert len(known.locations()) == MOST_LOCATIONS
    assert known.patterns() == ("/j/ckpt.pt",)
    assert len(CheckpointCatalogue(tmp_path / "checkpoints").all(record.WRITE)) == MOST_WRITES


def test_a_discovery_that_cannot_be_recorded_is_still_known(tmp_path: Path, rank: Rank) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    rank.saves("/j/ckpt.pt")
    rank.loads("/j/ckpt.pt")
    assert knows(tmp_path, rank).patterns() == ("/j/ckpt.pt",)


def handed(tmp_path: Path, rank: Rank, kind: ResumeKind | None, files: str = "") -> tuple[str, ...]:
    known = Discovery(CheckpointCatalogue(tmp_path / "checkpoints", is_writer=True), "r1")
    known.set_resume_way(None if kind is None else ResumeWay(Knob(RESUME, "", "--again", counts=kind), files=files))
    known.absorb(rank.directory, 1)
    return known.patterns()


def test_a_declared_way_of_resuming_makes_a_saved_file_a_checkpoint(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/out/ckpt.pt")
    assert [handed(tmp_path, rank, kind) for kind in (None, ResumeKind.ITSELF)] == [(), ()]
    assert [handed(tmp_path, rank, kind) for kind in (ResumeKind.SWITCH, ResumeKind.PATH)] == [("/j/out/ckpt.pt",)] * 2
    rank.saves("/j/vocabulary.bin")  # once, and nothing in its name says that it is one
    assert handed(tmp_path, rank, ResumeKind.PATH) == ("/j/out/ckpt.pt",)


def test_a_switch_is_turned_on_by_any_of_two_places_and_a_path_is_not_guessed(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/out/model.pt")
    rank.saves("/j/out/weights.pt")
    assert len(handed(tmp_path, rank, ResumeKind.SWITCH)) == 2
    assert handed(tmp_path, rank, ResumeKind.PATH) == ()
    rank.loads("/j/out/model.pt")
    assert handed(tmp_path, rank, ResumeKind.PATH) == ("/j/out/model.pt",)


def test_where_a_program_names_its_checkpoints_each_location_of_that_name_counts_and_no_other(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/j/version_0/checkpoints/epoch=0-step=4.ckpt")
    rank.loads("/j/version_0/checkpoints/epoch=0-step=4.ckpt")  # the second attempt did, and saves to a directory of its own
    rank.saves("/j/version_1/checkpoints/epoch=1-step=8.ckpt")
    rank.saves("/j/export/model.pt")
    assert handed(tmp_path, rank, ResumeKind.PATH) == ("/j/version_0/checkpoints/epoch=[0-9]*-step=[0-9]*.ckpt",)
    texts = handed(tmp_path, rank, ResumeKind.PATH, "*.ckpt")
    assert [pattern.split("/")[2] for pattern in texts] == ["version_0", "version_1"]


def test_a_save_has_ended_where_a_rank_saw_it_and_no_other_save_of_the_file_is_under_way(tmp_path: Path, rank: Rank) -> None:
    rank.saves("/a/whole.pt", now=[1, 2, 10, 5])
    rank.saves("/a/failed.pt", well=False)
    rank.saves("/a/open.pt", file=True)  # the script closes it later, and more is written then
    rank.saves("/a/begun.pt")
    rank.saves("/a/begun.pt", ends=False)
    known = knows(tmp_path, rank)
    assert [write.path for write in known.ended()] == ["/a/whole.pt"]
    assert known.is_ended("/a/whole.pt", Identity(1, 2, 10, 5))
    assert not known.is_ended("/a/whole.pt", Identity(1, 2, 10, 6)), "written since"
    assert not known.is_ended("/a/begun.pt", Identity(1, 4, 10, 5))


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({"steps": 10}, {"steps": 10}, True),
        ({"steps": 10}, {"steps": 20}, False),
        ({"steps": 10}, {"steps": 10, "path": "/j/rank1.pt"}, False),
        ({"steps": 10, "via": "dcp"}, {"steps": 10, "via": "dcp"}, False),
        ({"steps": 10, "path": "/dev/null"}, {"steps": 10, "path": "/dev/null"}, False),
        ({"steps": 10}, {"steps": 10, "t": 100.0}, False),
    ],
    ids=["one file", "another step", "a file each", "a directory of all", "nowhere", "later"],
)
def test_two_ranks_that_save_one_step_to_one_file_are_found_once(
    tmp_path: Path, rank: Rank, first: dict[str, Any], second: dict[str, Any], *, shared: bool
) -> None:
    other = Rank(rank.directory, 1)
    for writer, more in ((rank, first), (other, second)):
        writer.line("saves", **{"what": "began", "path": "/j/last.pt", "n": 1, "via": "torch", "was": None, **more})
    known = knows(tmp_path, rank)
    shared_save = known.shared_saves.take()
    assert (shared_save is not None and (shared_save.path, shared_save.ranks) == ("/j/last.pt", (0, 1))) is shared
    for writer in (rank, other):
        writer.line("saves", what="began", path="/j/again.pt", n=2, via="torch", was=None, steps=30)
    known.absorb(rank.directory, 1)
    assert (known.shared_saves.take() is None) is shared


def test_one_rank_that_saves_repeatedly_to_one_file_is_no_shared_save(tmp_path: Path, rank: Rank) -> None:
    for _ in range(3):
        rank.saves("/j/last.pt", steps=10)
    assert knows(tmp_path, rank).shared_saves.take() is None
