"""A file of the user's is moved only where every condition holds, nothing else is touched, and the way back is written down first."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.catalogue import FILE_NAME, CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.examine import latest
from checkpointing.io import durable
from checkpointing.model import Identity, Verdict, Verification
from checkpointing.retention import ownership
from checkpointing.retention.aside import AsideRecord, advised_move
from checkpointing.verification import identity_of, verify
from tests.checkpointing import mounts
from tests.checkpointing.untouched import everything
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

Seen = dict[str, Identity]


@pytest.fixture
def torn(sound: bytes, tmp_path: Path) -> Path:
    """A checkpoint that was cut short, in the directory that the script lists."""
    (tmp_path / "ckpt").mkdir()
    path = tmp_path / "ckpt" / "step_120.pt"
    path.write_bytes(sound[: len(sound) // 2])
    return path


@pytest.fixture
def torn_tree(tmp_path: Path) -> Path:
    """A directory with shards, to be judged incomplete."""
    directory = tmp_path / "ckpt" / "global_step7"
    (directory / "sub").mkdir(parents=True)
    for name in ("rank_0.bin", "sub/rank_1.bin"):
        (directory / name).write_bytes(os.urandom(99))
    return directory


def judged(path: Path, verdict: Verdict = Verdict.BAD) -> Verification:
    identity = identity_of(str(path))
    assert identity is not None
    return Verification(str(path), identity, verdict, "torn: cut short")


def seen_at(path: Path) -> Seen:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file): Identity.of(file.stat()) for file in files}


def aside_of(tmp_path: Path) -> Path:
    return tmp_path / ".supervise-aside"


def but_ours(tmp_path: Path) -> list[tuple[Any, ...]]:
    """Return everything below the place of the test, but for our own records."""
    return everything(tmp_path, tmp_path / "state")


def record_in(state: Path) -> AsideRecord:
    """Return the record of a job's supervisor."""
    return AsideRecord(CheckpointCatalogue(state, is_writer=True))


def test_a_torn_checkpoint_lies_beside_the_listed_directory_and_can_return(torn: Path, tmp_path: Path) -> None:
    verification, seen, state = verify(str(torn)), seen_at(torn), tmp_path / "state"
    before, content = but_ours(tmp_path), torn.read_bytes()
    record = record_in(state)
    moved = record.move(verification, 3, seen, ranks_alive=False)
    assert (moved.to, moved.note) == (str(aside_of(tmp_path) / "torn-a"), "")
    assert (list(torn.parent.iterdir()), (aside_of(tmp_path) / "torn-a").read_bytes()) == ([], content)
    (change,) = record.changes()
    assert (change.kind, change.path, change.to, change.phase, change.identity) == (
        "moved",
        str(torn),
        moved.to,
        "done",
        verification.identity,
    )
    assert (change.reason, change.attempt) == (verification.reason, 3)
    (undone,) = record_in(state).undo()
    assert undone.problem == ""
    assert [row for row in but_ours(tmp_path) if not row[0].endswith(".supervise-aside")] == before
    assert (record.undo(), record.changes()[0].phase) == ((), "undone")


@pytest.mark.parametrize(
    "script", ["int(name.split('-')[1]) of each name", "a number anywhere in a walk", "the name's end", "its beginning"]
)
def test_no_listing_of_a_script_meets_what_was_set_aside(tmp_path: Path, script: str) -> None:
    directory = tmp_path / "ckpt"
    for step in (40, 60):
        (directory / f"step-{step}").mkdir(parents=True)
        (directory / f"step-{step}" / "model.pt").write_bytes(b"x")
    torn = directory / "step-60"
    assert record_in(tmp_path / "state").move(judged(torn), 1, seen_at(torn), ranks_alive=False).to
    names = [path.name for path in directory.iterdir()]
    if script.startswith("int"):
        steps = [int(name.split("-")[1]) for name in names]
    elif "walk" in script:
        walked = [os.path.join(top, name) for top, below, files in os.walk(directory) for name in (*below, *files)]  # noqa: PTH118 -- as a script does it
        steps = sorted({int(match[1]) for path in walked if (match := re.search(r"step-(\d+)", path))})
    else:
        steps = [int(path.name[5:]) for path in directory.glob("step-*" if "beginning" in script else "*[0-9]")]
    assert steps == [40]


def test_its_name_holds_no_number_however_often(tmp_path: Path) -> None:
    record, names = record_in(tmp_path / "state"), []
    for number in range(30):
        path = tmp_path / "ckpt" / f"step-{number}.pt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        names.append(record.move(judged(path), 1, seen_at(path), ranks_alive=False).to.rpartition("/")[2])
    assert (names[0], names[25:28], len(set(names))) == ("torn-a", ["torn-z", "torn-aa", "torn-ab"], 30)
    assert not re.search(r"\d", "".join(names))


def test_a_second_one_of_the_same_name_replaces_nothing_and_both_go_back(torn: Path, tmp_path: Path) -> None:
    record = record_in(tmp_path / "state")
    for content in (b"first", b"second"):
        torn.write_bytes(content)
        assert record.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to
    assert sorted(file.read_bytes() for file in aside_of(tmp_path).glob("torn-*")) == [b"first", b"second"]
    assert [undone.problem[-18:] for undone in record.undo()] == ["", "move it away first"], "the newest first; its place is taken then"
    assert torn.read_bytes() == b"second"
    torn.unlink()
    assert [(undone.change.path, undone.problem) for undone in record.undo()] == [(str(torn), "")]
    assert torn.read_bytes() == b"first"


def test_a_part_in_a_directory_of_a_step_goes_beside_the_directory_that_is_listed(tmp_path: Path) -> None:
    part = tmp_path / "ckpt" / "step-60" / "model.pt"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    assert record_in(tmp_path / "state").move(judged(part), 1, seen_at(part), ranks_alive=False).to == str(aside_of(tmp_path) / "torn-a")


@pytest.mark.process
def test_a_directory_on_its_own_file_system_keeps_torn_checkpoints_inside(tmp_path: Path) -> None:
    with mounts.tmpfs(tmp_path / "ckpt", 1 << 20) as directory:
        torn = directory / "step-60.pt"
        torn.write_bytes(b"x")
        moved = record_in(tmp_path / "state").move(judged(torn), 1, seen_at(torn), ranks_alive=False)
        assert moved.to == str(directory / ".supervise-aside" / "torn-a")
        assert moved.note == f"{tmp_path} is another file system than {directory}"
        assert advised_move(str(torn)) == f"mv {torn} {directory}/.supervise-aside/torn-b"


@pytest.mark.parametrize("taken", ["a file", "a link", "somebody else's", "read only"])
def test_an_unusable_place_beside_keeps_torn_checkpoints_inside(
    torn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    if taken == "a file":
        aside_of(tmp_path).write_text("mine")
    elif taken == "read only":
        make = durable.make_directory

        def refused(path: str, mode: int = 0o700) -> None:
            if path == str(aside_of(tmp_path)):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            make(path, mode)

        monkeypatch.setattr(durable, "make_directory", refused)  # a bind mount of the one directory that may be written
    elif taken == "a link":
        (tmp_path / "elsewhere").mkdir()
        aside_of(tmp_path).symlink_to(tmp_path / "elsewhere")
    else:
        lstat = os.lstat

        def of_another(path: str) -> os.stat_result:
            st = lstat(path)
            return os.stat_result((*st[:4], st.st_uid + 1, *st[5:])) if str(path) == str(aside_of(tmp_path)) else st

        monkeypatch.setattr(os, "lstat", of_another)
    moved = record_in(tmp_path / "state").move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    assert moved.to == str(torn.parent / ".supervise-aside" / "torn-a")
    assert moved.note == f"{aside_of(tmp_path)} cannot be used by this user"


def test_two_jobs_beside_each_other_undo_their_own_alone(tmp_path: Path) -> None:
    records = {name: record_in(tmp_path / f"state-{name}") for name in ("a", "b")}
    torn = {name: tmp_path / f"ckpt-{name}" / "step-60.pt" for name in records}
    for name, path in torn.items():
        path.parent.mkdir()
        path.write_text(name)
        assert records[name].move(judged(path), 1, seen_at(path), ranks_alive=False).to
    assert [undone.change.path for undone in records["a"].undo()] == [str(torn["a"])]
    assert (torn["a"].read_text(), torn["b"].exists()) == ("a", False)
    assert [undone.problem for undone in records["b"].undo()] == [""]


RACER = """
import os, sys
from pathlib import Path
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.model import Identity, Verdict, Verification
from checkpointing.retention.aside import AsideRecord
state, *paths = sys.argv[1:]
record = AsideRecord(CheckpointCatalogue(Path(state), is_writer=True))
print("ready", flush=True)
sys.stdin.readline()
for path in paths:
    identity = Identity.of(os.stat(path))
    torn = Verification(path, identity, Verdict.BAD, "torn")
    moved = record.move(torn, 1, {path: identity}, ranks_alive=False)
    assert moved.to, moved.reason
"""


@pytest.mark.process
def test_two_nodes_at_once_lose_nothing_and_each_undoes_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "ckpt"
    directory.mkdir()
    of_nodes = [[directory / f"node{node}-{number}.pt" for number in range(10)] for node in (0, 1)]
    for path in (path for paths in of_nodes for path in paths):
        path.write_text(path.name)
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path / f"state{node}"), *map(str, paths)], stdin=-1, stdout=-1, text=True)  # noqa: S603 -- the text above
        for node, paths in enumerate(of_nodes)
    ]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate(timeout=PATIENCE_S)
    assert [racer.returncode for racer in racers] == [0, 0]
    changes = [record_in(tmp_path / f"state{node}").changes() for node in (0, 1)]
    assert [[(change.id, change.phase) for change in of_node] for of_node in changes] == [[(number, "done") for number in range(1, 11)]] * 2
    assert len({change.to for of_node in changes for change in of_node}) == 20
    for node, paths in enumerate(of_nodes):
        assert not any(path.exists() for path in paths)
        assert not any(undone.problem for undone in record_in(tmp_path / f"state{node}").undo())
        assert all(path.read_text() == path.name for path in paths)


def test_a_directory_that_a_person_removed_to_have_the_room_is_no_error(torn: Path, tmp_path: Path) -> None:
    record = record_in(tmp_path / "state")
    to = record.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to
    shutil.rmtree(aside_of(tmp_path))
    assert (record.standing(), record.directory_of(str(torn))) == ((), "")
    assert [undone.problem for undone in record.undo()] == [f"{to} is not there any more"]


def test_the_command_for_a_person_leads_to_the_same_place(torn: Path, tmp_path: Path) -> None:
    command = advised_move(str(torn))
    assert command == f"mkdir -p {aside_of(tmp_path)} && mv {torn} {aside_of(tmp_path)}/torn-a"
    subprocess.run(["bash", "-c", command], check=True)  # noqa: S603, S607 -- the command above
    assert not torn.exists()
    torn.write_bytes(b"again")
    assert advised_move(str(torn)) == f"mv {torn} {aside_of(tmp_path)}/torn-b", "nothing is replaced"


@pytest.mark.process
def test_a_directory_without_locks_will_do(tmp_path: Path, sound: bytes) -> None:
    with mounts.served(tmp_path / "disk", tmp_path / "behind", "--no-locks"):
        torn = tmp_path / "disk" / "ckpt" / "step_120.pt"
        torn.parent.mkdir()
        torn.write_bytes(sound[: len(sound) // 2])
        record = record_in(tmp_path / "state")
        moved = record.move(verify(str(torn)), 3, seen_at(torn), ranks_alive=False)
        assert moved.to == str(tmp_path / "disk" / ".supervise-aside" / "torn-a")
        assert [(outcome.change.path, outcome.problem) for outcome in record.undo()] == [(str(torn), "")]
        assert torn.exists()


@pytest.mark.process
def test_where_the_disk_of_the_record_is_full_nothing_is_moved(torn: Path, tmp_path: Path) -> None:
    with mounts.tmpfs(tmp_path / "state", 64 << 10) as state:
        with (state / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        before = everything(torn.parent)
        record = record_in(state)
        with pytest.raises(OSError, match="No space left"):
            record.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
        assert (everything(torn.parent), record.changes()) == (before, ())
        (state / "filler").unlink()
        assert record.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to


def test_a_reader_of_the_catalogue_moves_nothing(torn: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="another process writes the catalogue"):
        AsideRecord(CheckpointCatalogue(tmp_path / "state")).move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    assert torn.exists()


def test_a_directory_is_moved_whole(torn_tree: Path, tmp_path: Path) -> None:
    record = record_in(tmp_path / "state")
    before = everything(torn_tree.parent)
    moved = aside_of(tmp_path) / "torn-a"
    assert record.move(judged(torn_tree, Verdict.INCOMPLETE), 1, seen_at(torn_tree), ranks_alive=False).to == str(moved)
    assert (list(torn_tree.parent.iterdir()), (moved / "sub" / "rank_1.bin").exists()) == ([], True)
    record.undo()
    assert everything(torn_tree.parent) == before


ALLOWED = (Verdict.BAD, Verdict.INCOMPLETE)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict not in ALLOWED])
def test_no_other_verdict_moves_anything(torn: Path, tmp_path: Path, verdict: Verdict) -> None:
    before = everything(tmp_path)
    refused = record_in(tmp_path / "state").move(judged(torn, verdict), 1, seen_at(torn), ranks_alive=False)
    assert (refused.to, verdict.value in refused.reason) == ("", True)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("change", ["never seen", "another inode", "another size", "another time", "rank alive", "written since", "a link"])
def test_each_condition_alone_keeps_a_file_where_it_is(torn: Path, tmp_path: Path, change: str) -> None:
    verification, seen = judged(torn), seen_at(torn)
    identity = seen[str(torn)]
    if change == "never seen":
        seen = {}
    elif change == "another inode":
        seen[str(torn)] = replace(identity, ino=identity.ino + 1)
    elif change == "another size":
        seen[str(torn)] = replace(identity, size=identity.size + 1)
    elif change == "another time":
        seen[str(torn)] = replace(identity, mtime_ns=identity.mtime_ns - 1)
    elif change == "written since":
        torn.write_bytes(b"anew")
    elif change == "a link":
        torn.rename(tmp_path / "real")
        torn.symlink_to(tmp_path / "real")
    before = everything(tmp_path)
    refused = record_in(tmp_path / "state").move(verification, 1, seen, ranks_alive=change == "rank alive")
    assert refused.to == ""
    assert refused.reason
    assert everything(tmp_path) == before


@pytest.mark.parametrize("change", ["a file of somebody else's", "a fifo", "a link out", "a shard changed"])
def test_a_directory_that_is_not_all_this_jobs_stays(torn_tree: Path, tmp_path: Path, change: str) -> None:
    seen = seen_at(torn_tree)
    if change == "a file of somebody else's":
        (torn_tree / "notes.txt").write_text("precious")
    elif change == "a fifo":
        os.mkfifo(torn_tree / "fifo")
    elif change == "a link out":
        (torn_tree / "link").symlink_to("/etc/hostname")
    else:
        (torn_tree / "rank_0.bin").write_bytes(b"other")
    verification = judged(torn_tree, Verdict.INCOMPLETE)
    before = everything(tmp_path)
    assert ownership.why_not(verification, seen, ranks_alive=False)
    assert not record_in(tmp_path / "state").move(verification, 1, seen, ranks_alive=False).to
    assert everything(tmp_path) == before


def test_no_file_is_replaced_by_a_move_nor_by_its_undo(torn: Path, tmp_path: Path) -> None:
    record = record_in(tmp_path / "state")
    aside_of(tmp_path).mkdir()
    taken, second = aside_of(tmp_path) / "torn-a", aside_of(tmp_path) / "torn-b"
    taken.write_text("a person's")
    assert record.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to == str(second)
    torn.write_text("written anew")
    (undone,) = record.undo()
    assert "was written since" in undone.problem
    assert (torn.read_text(), taken.read_text(), second.exists()) == ("written anew", "a person's", True)
    torn.unlink()
    assert record.undo()[0].problem == ""
    record.move(judged(torn), 2, seen_at(torn), ranks_alive=False)
    second.unlink()
    assert "not there any more" in record.undo()[0].problem


def test_a_rename_that_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        durable.rename_exclusive(str(tmp_path / "a"), str(tmp_path / "b"))
    durable.rename_exclusive(str(tmp_path / "a"), str(tmp_path / "c"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_where_the_record_cannot_be_written_nothing_is_moved_nor_moved_back(torn: Path, tmp_path: Path) -> None:
    record = record_in(tmp_path / "state")
    to = record.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to
    torn.write_bytes(b"again")
    file = tmp_path / "state" / FILE_NAME
    file.rename(tmp_path / "kept")
    file.mkdir()
    before = everything(torn.parent)
    with pytest.raises(OSError, match=f"catalogue could not be written: {file}"):
        record.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    torn.rename(tmp_path / "away")
    with pytest.raises(OSError, match=f"catalogue could not be read: {file}"):
        record.undo()
    (tmp_path / "away").rename(torn)
    assert (everything(torn.parent), os.path.lexists(to)) == (before, True)


def test_a_torn_row_is_passed_over_and_written_after(torn: Path, tmp_path: Path) -> None:
    record_in(tmp_path / "state").move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    file = tmp_path / "state" / FILE_NAME
    os.truncate(file, file.stat().st_size - 7)  # the machine went down in "done"
    record = record_in(tmp_path / "state")
    assert [change.phase for change in record.changes()] == ["intent"]
    assert record.undo()[0].problem == ""
    assert torn.exists()
    assert [change.phase for change in record_in(tmp_path / "state").changes()] == ["undone"]


def test_an_intent_whose_rename_never_came_is_settled_by_what_is_there(torn: Path, tmp_path: Path) -> None:
    moved = record_in(tmp_path / "state").move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    os.rename(moved.to, torn)  # noqa: PTH104 -- a path as the package has them
    file = tmp_path / "state" / FILE_NAME
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    assert [(undone.change.phase, undone.problem) for undone in record_in(tmp_path / "state").undo()] == [("intent", "")]
    assert torn.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.examine import latest
from checkpointing.io import durable
from checkpointing.retention import aside
from checkpointing.model import Identity, Verdict, Verification
path, state, where = sys.argv[1:]
identity = Identity.of(os.stat(path))
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
rename = durable.rename_exclusive
if where == "before": durable.rename_exclusive = die
else: durable.rename_exclusive = lambda a, b: (rename(a, b), die())
record = aside.AsideRecord(CheckpointCatalogue(Path(state), is_writer=True))
record.move(Verification(path, identity, Verdict.BAD, "torn"), 1, {path: identity}, ranks_alive=False)
"""


@pytest.mark.process
@pytest.mark.parametrize("where", ["before", "after"])
def test_killed_at_the_rename_the_way_back_is_known(torn: Path, tmp_path: Path, where: str) -> None:
    content, state = torn.read_bytes(), tmp_path / "state"
    argv = [sys.executable, "-c", KILLED, str(torn), str(state), where]
    ended = subprocess.run(argv, check=False)  # noqa: S603 -- this interpreter and the text above
    assert ended.returncode == -signal.SIGKILL
    assert torn.exists() == (where == "before")
    answers = record_in(state).undo()
    assert [undone.problem for undone in answers] == [""]
    assert torn.read_bytes() == content


def put(aside: AsideRecord, tmp_path: Path, *, kept: bool = True) -> Path:
    """Put a copy of ours in the place of what was moved."""
    copy, temporary, path = tmp_path / "copy", tmp_path / "ckpt" / ".putting", tmp_path / "ckpt" / "step_120.pt"
    if kept:
        copy.write_bytes(b"good")
    temporary.write_bytes(b"good")
    assert aside.put(str(temporary), str(path), str(copy), 1, "its copy") == ""
    return path


def test_a_copy_put_back_is_removed_before_the_users_own_returns(torn: Path, tmp_path: Path) -> None:
    content, aside = torn.read_bytes(), record_in(tmp_path / "state")
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    assert put(aside, tmp_path).read_bytes() == b"good"
    assert [(undone.change.kind, undone.problem) for undone in aside.undo()] == [("put_back", ""), ("moved", "")]
    assert torn.read_bytes() == content
    assert [path.name for path in torn.parent.iterdir()] == ["step_120.pt"]


def test_a_copy_put_back_is_kept_if_it_is_the_only_one(torn: Path, tmp_path: Path) -> None:
    aside = record_in(tmp_path / "state")
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    put(aside, tmp_path, kept=False)
    assert not any(undone.problem for undone in aside.undo())
    assert (aside_of(tmp_path) / "kept-b").read_bytes() == b"good"


def test_a_file_that_the_training_wrote_since_stays(torn: Path, tmp_path: Path) -> None:
    aside = record_in(tmp_path / "state")
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    put(aside, tmp_path).write_bytes(b"the training's own")
    assert ["was written since" in undone.problem for undone in aside.undo()] == [True, True]
    assert torn.read_bytes() == b"the training's own"


def test_a_file_at_the_destination_is_not_replaced(torn: Path, tmp_path: Path) -> None:
    aside: Any = record_in(tmp_path / "state")
    temporary = torn.parent / ".putting"
    temporary.write_bytes(b"good")
    content = torn.read_bytes()
    assert "File exists" in aside.put(str(temporary), str(torn), "copy", 1, "why")
    assert (torn.read_bytes(), aside.changes()[0].phase, aside.undo()) == (content, "failed", ())


def test_a_name_that_is_taken_at_the_last_moment_is_not_taken_for_ours(torn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, is_quick = durable.rename_exclusive, True

    def outrun(old: str, new: str) -> None:
        if is_quick:
            with open(new, "wb") as theirs:  # noqa: PTH123 -- a path as the package has them
                theirs.write(b"theirs")
        rename(old, new)

    monkeypatch.setattr(durable, "rename_exclusive", outrun)
    aside = record_in(tmp_path / "state")
    answer = aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    assert (answer.to, answer.reason) == ("", "it could not be renamed: File exists")
    assert [change.phase for change in aside.changes()] == ["failed"]
    is_quick = False
    assert aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to == str(aside_of(tmp_path) / "torn-aa"), "nothing was replaced"


def test_a_stranger_under_the_name_of_what_was_moved_is_not_moved_back(torn: Path, tmp_path: Path) -> None:
    aside = record_in(tmp_path / "state")
    to = aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "theirs").replace(to)
    before = but_ours(tmp_path)
    assert ["is not the file that was moved there" in undone.problem for undone in aside.undo()] == [True]
    assert but_ours(tmp_path) == before


@pytest.mark.process
def test_a_kill_during_a_removal_leaves_no_half_directory(torn_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aside, copy, temporary = record_in(tmp_path / "state"), tmp_path / "copy", torn_tree.parent / ".putting"
    aside.move(judged(torn_tree), 1, seen_at(torn_tree), ranks_alive=False)
    for directory in (copy, temporary):
        (directory / "sub").mkdir(parents=True)
        (directory / "sub" / "rank_1.bin").write_bytes(b"good")
    assert aside.put(str(temporary), str(torn_tree), str(copy), 1, "its copy") == ""
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(shutil, "rmtree", lambda path: (os.remove(f"{path}/sub/rank_1.bin"), os.kill(os.getpid(), signal.SIGKILL)))  # noqa: PTH107 -- one expression
        aside.undo()
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert not torn_tree.exists()
    assert [undone.problem for undone in aside.undo()] == ["", ""]
    assert sorted(path.name for path in torn_tree.iterdir()) == ["rank_0.bin", "sub"]


PATTERNS = (
    "ckpt/*",
    "ckpt/**",
    "ckpt/**/*",
    "ckpt",
    "*",
    "**/torn-*",
    ".supervise-aside/*",
    "ckpt/.supervise-aside/*",
    "*/.supervise-aside",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_and_no_search_of_ours_finds_what_was_set_aside(tmp_path: Path, sound: bytes, pattern: str) -> None:
    whole = tmp_path / "ckpt" / "step-40.pt"
    for place in (aside_of(tmp_path), tmp_path / "ckpt" / ".supervise-aside"):
        (place / "torn-a" / "global_step60").mkdir(parents=True)
        (place / "torn-a" / "global_step60" / "model.pt").write_bytes(sound)
        (place / "torn-b.pt").write_bytes(sound)
    whole.write_bytes(sound)
    assert {candidate.path for candidate in find(pattern, str(tmp_path)).candidates} <= {str(whole)}
    chosen = latest(str(tmp_path / "ckpt")).chosen
    assert chosen is not None
    assert chosen.path == str(whole)
