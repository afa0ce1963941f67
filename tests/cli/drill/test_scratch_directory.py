"""The scratch directory links some files and leaves others out; nothing of the original changes."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from checkpointing.discover import find
from supervisor.cli.drill import confinement, scratch_directory
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, text: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a little of everything."""
    monkeypatch.setattr(scratch_directory, "MOST_ENTRIES", 22)
    place = tmp_path / "project"
    for name in (
        "train.py",
        "conf/model.yaml",
        ".git/HEAD",
        "venv/pyvenv.cfg",
        "venv/lib/x.py",
        "out/log.txt",
        "ckpt/step-5.pt",
        "ckpt/notes.txt",
    ):
        written(place / name)
    for number in range(30):
        written(place / "images" / f"{number}.png")
    (place / "best.pt").hardlink_to(place / "ckpt" / "step-5.pt")
    (place / "latest.pt").symlink_to("ckpt/step-5.pt")
    (place / "data").symlink_to(tmp_path / "elsewhere")
    written(tmp_path / "elsewhere" / "part-0")
    os.mkfifo(place / "fifo")
    return place


def linked(project: Path, *patterns: str) -> Path:
    target = project.parent / "scratch"
    target.mkdir()
    scratch_directory.link_files(project, target, find(patterns, str(project)).candidates, excluded=())
    return target


def test_directories_are_made_anew_and_files_are_links(project: Path) -> None:
    scratch = linked(project, "ckpt/*.pt")
    for name in ("train.py", "conf/model.yaml", "out/log.txt", "ckpt/notes.txt", ".git/HEAD"):
        assert (scratch / name).readlink() == project / name
        assert not (scratch / name).parent.is_symlink()
    assert (scratch / "images").readlink() == project / "images"  # it has more files than links are made
    assert (scratch / "data").readlink() == project.parent / "elsewhere"
    assert not (scratch / "fifo").exists()


def test_a_known_checkpoint_is_left_out_under_each_of_its_names(project: Path) -> None:
    scratch = linked(project, "ckpt/*.pt")
    assert (scratch / "ckpt").is_dir()
    assert not (scratch / "ckpt").is_symlink()
    assert [name for name in ("ckpt/step-5.pt", "best.pt", "latest.pt") if os.path.lexists(scratch / name)] == []


def test_the_checkpoint_directory_is_made_anew_however_full(project: Path) -> None:
    for number in range(10, 40):
        written(project / "ckpt" / f"step-{number}.pt")
    assert list((linked(project, "ckpt/*.pt") / "ckpt").iterdir()) == [project.parent / "scratch" / "ckpt" / "notes.txt"]


def test_a_scratch_directory_goes_without_the_files_that_its_links_lead_to(project: Path) -> None:
    before = sorted(path.relative_to(project) for path in project.rglob("*"))
    directory = scratch_directory.make(project, project, ())
    assert not list(directory.work.glob(f"{scratch_directory.DRILL_PREFIX}*"))
    written(directory.state / "journal")
    directory.remove(keep_state=True)
    assert [path.name for path in directory.root.iterdir()] == ["state"]
    scratch_directory.make(project, project, ()).remove(keep_state=False)  # the next drill
    assert sorted(path.relative_to(project) for path in project.rglob("*")) == before


def test_the_next_drill_removes_a_killed_ones_directory_and_keeps_running_ones(project: Path) -> None:
    left, running = scratch_directory.make(project, project, ()), scratch_directory.make(project, project, ())
    os.close(left.lock)  # as the kernel does for a killed process
    directory = scratch_directory.make(project, project, ())
    assert sorted(project.glob(f"{scratch_directory.DRILL_PREFIX}*")) == sorted([running.root, directory.root])
    for scratch in (directory, running):
        scratch.remove(keep_state=False)
    assert (project / "train.py").exists()


def test_the_sockets_of_a_loaders_workers_have_room_below_a_long_working_directory(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "node"
    temporary.mkdir()
    (temporary / ".drill-killed").symlink_to("gone")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    deep = project / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(scratch_directory, "_LONGEST_TMPDIR", len(str(deep)))
    directory = scratch_directory.make(deep, project, ())
    assert directory.short is not None
    assert [path.name for path in temporary.iterdir()] == [directory.short.name], "a killed drill's link is gone"
    (directory.short / "file").touch()
    assert (directory.root / "tmp" / "file").exists()
    directory.remove(keep_state=False)
    assert list(temporary.iterdir()) == []
    short = scratch_directory.make(project, project, ())
    assert short.short is None
    short.remove(keep_state=False)


def test_a_kernel_that_cannot_confine_is_refused_before_anything_is_made(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "version", lambda: 0)
    with pytest.raises(SuperviseError, match="Landlock") as error:
        scratch_directory.make(project, project, ())
    assert error.value.exit_code == 64
    assert "add --yes to the drill in the copy" in error.value.hint
    assert not list(project.glob(f"{scratch_directory.DRILL_PREFIX}*"))
    directory = scratch_directory.make(project, project, (), may_escape=True)
    assert (directory.work / "train.py").is_symlink()
    directory.remove(keep_state=False)


def test_a_link_into_shared_memory_is_refused_and_nothing_is_left(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_directory, "SHARED_MEMORY", str(project.parent / "elsewhere"))
    with pytest.raises(SuperviseError, match="data leads to") as error:
        scratch_directory.make(project, project, ())
    assert error.value.exit_code == 64
    assert not list(project.glob(f"{scratch_directory.DRILL_PREFIX}*"))


def test_a_place_that_cannot_hold_it_is_named_with_what_helps(project: Path) -> None:
    with pytest.raises(SuperviseError, match=r"train\.py") as error:
        scratch_directory.make(project / "train.py", project, ())
    assert "--scratch-dir" in error.value.hint


ATTEMPTS = {
    "write": lambda path: path.write_text("changed"),
    "append": lambda path: path.open("a").close(),
    "truncate": lambda path: os.truncate(path, 0),
    "remove": lambda path: path.unlink(),
    "rename": lambda path: path.rename(path.with_name("moved")),
    "rename over": lambda path: path.with_name("other").replace(path),
    "make": lambda path: path.with_name("new").touch(),
    "make a directory": lambda path: path.with_name("new").mkdir(),
    "link": lambda path: path.with_name("new").symlink_to(path),
}


@pytest.mark.skipif(
    confinement.version() < 3, reason="needs Landlock with truncate: Linux 6.2 or later, with landlock in /sys/kernel/security/lsm"
)
@pytest.mark.parametrize("way", ATTEMPTS)
def test_a_confined_process_cannot_change_files_outside(tmp_path: Path, way: str) -> None:
    original, inside = written(tmp_path / "ckpt" / "step-5.pt"), tmp_path / "scratch"
    written(original.with_name("other"))
    inside.mkdir()
    (inside / "link.pt").symlink_to(original)
    child = os.fork()
    if not child:
        code = 1
        try:
            confinement.confine([str(inside), str(tmp_path / "absent"), "/dev"])
            (inside / "own").write_text("a file of its own")
            (inside / "own").rename(inside / "renamed")
            with open(os.devnull, "w", encoding="ascii") as nowhere:  # noqa: PTH123  a device
                nowhere.write("x")
            denied = 0
            for path in (original, *([inside / "link.pt"] if way in {"write", "append", "truncate"} else [])):
                try:
                    ATTEMPTS[way](path)
                except PermissionError:
                    denied += 1
            code = 0 if denied == (2 if way in {"write", "append", "truncate"} else 1) and original.read_text() == "text" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert original.read_text() == "text"
    assert sorted(path.name for path in original.parent.iterdir()) == ["other", "step-5.pt"]
