"""A file of the user's is moved only where every condition holds, nothing else is touched, and the way back is written down first."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.io import durable
from checkpointing.model import Identity, Verdict, Verification
from checkpointing.retention import ownership
from checkpointing.retention.move_journal import FILE_NAME, MoveJournal
from checkpointing.verification import identity_of, verify
from tests.checkpointing import mounts
from tests.checkpointing.untouched import everything

if TYPE_CHECKING:
    from pathlib import Path

Seen = dict[str, Identity]


@pytest.fixture
def torn(sound_file: Path) -> Path:
    """A checkpoint that was cut short."""
    os.truncate(sound_file, sound_file.stat().st_size // 2)
    return sound_file


@pytest.fixture
def torn_tree(tmp_path: Path) -> Path:
    """A directory with shards, to be judged incomplete."""
    directory = tmp_path / "global_step7"
    (directory / "sub").mkdir(parents=True)
    for name in ("rank_0.bin", "sub/rank_1.bin"):
        (directory / name).write_bytes(os.urandom(99))
    return directory


def judged(path: Path, verdict: Verdict = Verdict.BAD) -> Verification:
    identity = identity_of(str(path))
    assert identity is not None
    return Verification(str(path), identity, verdict, "torn: cut short")


def seen_at(path: Path) -> Seen:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {str(one): Identity.of(one.stat()) for one in files}


def test_what_this_job_tore_is_moved_beside_and_back(torn: Path, tmp_path: Path) -> None:
    found, seen, state = verify(str(torn)), seen_at(torn), tmp_path / "state"
    before = everything(tmp_path, state)
    aside = MoveJournal(str(state))
    moved = aside.move(found, 3, seen, ranks_alive=False)
    assert moved.to == f"{torn}.torn-3"
    assert everything(tmp_path, state) == sorted((path.replace(str(torn), moved.to), *rest) for path, *rest in before)
    (change,) = aside.changes()
    assert (change.kind, change.path, change.to, change.phase, change.identity) == ("moved", str(torn), moved.to, "done", found.identity)
    (undone,) = MoveJournal(str(state)).undo()
    assert (undone.problem, everything(tmp_path, state)) == ("", before)
    assert (aside.undo(), aside.changes()[0].phase) == ((), "undone")


@pytest.mark.process
def test_a_state_directory_without_locks_will_do(torn: Path, tmp_path: Path) -> None:
    with mounts.served(tmp_path / "state", tmp_path / "behind", "--no-locks"):
        aside = MoveJournal(str(tmp_path / "state"))
        moved = aside.move(verify(str(torn)), 3, seen_at(torn), ranks_alive=False)
        assert moved.to == f"{torn}.torn-3"
        assert [(one.change.path, one.problem) for one in aside.undo()] == [(str(torn), "")]
        assert torn.exists()


def test_a_directory_is_moved_whole(torn_tree: Path, tmp_path: Path) -> None:
    aside = MoveJournal(str(tmp_path / "state"))
    before = everything(tmp_path, tmp_path / "state")
    moved = torn_tree.with_name(f".{torn_tree.name}.torn-1")
    assert aside.move(judged(torn_tree, Verdict.INCOMPLETE), 1, seen_at(torn_tree), ranks_alive=False).to == str(moved)
    assert not torn_tree.exists()
    assert not [path for path in torn_tree.parent.iterdir() if path.name.startswith(torn_tree.name[:4])], "a script would take it"
    aside.undo()
    assert everything(tmp_path, tmp_path / "state") == before


ALLOWED = (Verdict.BAD, Verdict.INCOMPLETE)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict not in ALLOWED])
def test_no_other_verdict_moves_anything(torn: Path, tmp_path: Path, verdict: Verdict) -> None:
    before = everything(tmp_path)
    refused = MoveJournal(str(tmp_path / "state")).move(judged(torn, verdict), 1, seen_at(torn), ranks_alive=False)
    assert (refused.to, verdict.value in refused.reason) == ("", True)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("change", ["never seen", "another inode", "another size", "another time", "rank alive", "written since", "a link"])
def test_each_condition_alone_keeps_a_file_where_it_is(torn: Path, tmp_path: Path, change: str) -> None:
    found, seen = judged(torn), seen_at(torn)
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
    refused = MoveJournal(str(tmp_path / "state")).move(found, 1, seen, ranks_alive=change == "rank alive")
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
    found = judged(torn_tree, Verdict.INCOMPLETE)
    before = everything(tmp_path)
    assert ownership.why_not(found, seen, ranks_alive=False)
    assert not MoveJournal(str(tmp_path / "state")).move(found, 1, seen, ranks_alive=False).to
    assert everything(tmp_path) == before


def test_nothing_is_replaced_by_a_move_nor_by_moving_back(torn: Path, tmp_path: Path) -> None:
    aside = MoveJournal(str(tmp_path / "state"))
    taken, second = tmp_path / "step_120.pt.torn-1", tmp_path / "step_120.pt.torn-1.2"
    taken.write_text("of an earlier run")
    assert aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to == str(second)
    torn.write_text("written anew")
    (undone,) = aside.undo()
    assert "was written since" in undone.problem
    assert (torn.read_text(), taken.read_text(), second.exists()) == ("written anew", "of an earlier run", True)
    torn.unlink()
    assert aside.undo()[0].problem == ""
    torn.unlink()
    aside.move(judged(taken), 2, seen_at(taken), ranks_alive=False)
    taken.with_name(f"{taken.name}.torn-2").unlink()
    assert "not there any more" in aside.undo()[0].problem


def test_a_rename_that_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        durable.rename_exclusive(str(tmp_path / "a"), str(tmp_path / "b"))
    durable.rename_exclusive(str(tmp_path / "a"), str(tmp_path / "c"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_where_the_journal_cannot_be_written_nothing_is_moved(torn: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE_NAME).mkdir()
    before = everything(tmp_path)
    with pytest.raises(OSError, match="directory"):
        MoveJournal(str(tmp_path / "state")).move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    assert everything(tmp_path) == before


def test_a_torn_line_is_passed_over_and_written_after(torn: Path, tmp_path: Path) -> None:
    aside = MoveJournal(str(tmp_path / "state"))
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    journal = tmp_path / "state" / FILE_NAME
    os.truncate(journal, journal.stat().st_size - 7)  # the machine went down in "done"
    assert [change.phase for change in aside.changes()] == ["intent"]
    assert aside.undo()[0].problem == ""
    assert torn.exists()
    rows = [line for line in journal.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(row)["phase"] for row in rows] == ["intent", "undone"]


def test_an_intent_whose_rename_never_came_is_settled_by_what_is_there(torn: Path, tmp_path: Path) -> None:
    aside = MoveJournal(str(tmp_path / "state"))
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    torn.with_name("step_120.pt.torn-1").rename(torn)
    journal = tmp_path / "state" / FILE_NAME
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    assert [(undone.change.phase, undone.problem) for undone in aside.undo()] == [("intent", "")]
    assert torn.exists()


KILLED = """
import os, signal, sys
from checkpointing.io import durable
from checkpointing.retention import move_journal
from checkpointing.model import Identity, Verdict, Verification
path, state, where = sys.argv[1:]
identity = Identity.of(os.stat(path))
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
rename = durable.rename_exclusive
if where == "before": durable.rename_exclusive = die
else: durable.rename_exclusive = lambda a, b: (rename(a, b), die())
move_journal.MoveJournal(state).move(Verification(path, identity, Verdict.BAD, "torn"), 1, {path: identity}, ranks_alive=False)
"""


@pytest.mark.process
@pytest.mark.parametrize("where", ["before", "after"])
def test_killed_at_the_rename_the_way_back_is_known(torn: Path, tmp_path: Path, where: str) -> None:
    content, state = torn.read_bytes(), tmp_path / "state"
    argv = [sys.executable, "-c", KILLED, str(torn), str(state), where]
    ended = subprocess.run(argv, check=False, timeout=60)  # noqa: S603 -- this interpreter and the text above
    assert ended.returncode == -signal.SIGKILL
    assert torn.exists() == (where == "before")
    answers = MoveJournal(str(state)).undo()
    assert [undone.problem for undone in answers] == [""]
    assert torn.read_bytes() == content


def put(aside: MoveJournal, tmp_path: Path, *, kept: bool = True) -> Path:
    """Put a copy of ours in the place of what was moved."""
    copy, temporary, path = tmp_path / "state" / "copy", tmp_path / ".putting", tmp_path / "step_120.pt"
    if kept:
        copy.write_bytes(b"good")
    temporary.write_bytes(b"good")
    assert aside.put(str(temporary), str(path), str(copy), 1, "its copy") == ""
    return path


def test_what_was_put_back_is_taken_away_again_before_the_users_own_returns(torn: Path, tmp_path: Path) -> None:
    content, aside = torn.read_bytes(), MoveJournal(str(tmp_path / "state"))
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    assert put(aside, tmp_path).read_bytes() == b"good"
    assert [(undone.change.kind, undone.problem) for undone in aside.undo()] == [("put_back", ""), ("moved", "")]
    assert torn.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state", "step_120.pt"]


def test_what_was_put_back_and_is_the_only_one_left_is_kept(torn: Path, tmp_path: Path) -> None:
    aside = MoveJournal(str(tmp_path / "state"))
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    put(aside, tmp_path, kept=False)
    assert not any(undone.problem for undone in aside.undo())
    assert (tmp_path / "step_120.pt.kept-1").read_bytes() == b"good"


def test_what_the_training_wrote_since_stays(torn: Path, tmp_path: Path) -> None:
    aside = MoveJournal(str(tmp_path / "state"))
    aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    put(aside, tmp_path).write_bytes(b"the training's own")
    assert ["was written since" in undone.problem for undone in aside.undo()] == [True, True]
    assert torn.read_bytes() == b"the training's own"


def test_what_stands_in_the_place_is_not_replaced(torn: Path, tmp_path: Path) -> None:
    aside: Any = MoveJournal(str(tmp_path / "state"))
    temporary = tmp_path / ".putting"
    temporary.write_bytes(b"good")
    content = torn.read_bytes()
    assert "File exists" in aside.put(str(temporary), str(torn), "copy", 1, "why")
    assert (torn.read_bytes(), aside.changes()[0].phase, aside.undo()) == (content, "failed", ())


def test_a_name_that_is_taken_at_the_last_moment_is_not_taken_for_ours(torn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = durable.rename_exclusive

    def outrun(old: str, new: str) -> None:
        with open(new, "wb") as theirs:  # noqa: PTH123 -- a path as the package has them
            theirs.write(b"theirs")
        rename(old, new)

    monkeypatch.setattr(durable, "rename_exclusive", outrun)
    aside = MoveJournal(str(tmp_path / "state"))
    answer = aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False)
    assert (answer.to, answer.reason) == ("", "it could not be renamed: File exists")
    assert [change.phase for change in aside.changes()] == ["failed"]


def test_a_stranger_under_the_name_of_what_was_moved_is_not_moved_back(torn: Path, tmp_path: Path) -> None:
    aside = MoveJournal(str(tmp_path / "state"))
    to = aside.move(judged(torn), 1, seen_at(torn), ranks_alive=False).to
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "theirs").replace(to)
    before = everything(tmp_path, tmp_path / "state")
    assert ["is not what was moved there" in undone.problem for undone in aside.undo()] == [True]
    assert everything(tmp_path, tmp_path / "state") == before


@pytest.mark.process
def test_a_kill_while_a_directory_is_taken_away_again_leaves_no_half_of_it(
    torn_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside, copy, temporary = MoveJournal(str(tmp_path / "state")), tmp_path / "state" / "copy", tmp_path / ".putting"
    aside.move(judged(torn_tree), 1, seen_at(torn_tree), ranks_alive=False)
    for one in (copy, temporary):
        (one / "sub").mkdir(parents=True)
        (one / "sub" / "rank_1.bin").write_bytes(b"good")
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
