"""What the patterns match, and what they leave alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from checkpointing.discover import find

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A job's directory, the name of which looks like a pattern."""
    job = tmp_path / "run[1]*"
    for name in (
        "ckpt/step_1.pt",
        "ckpt/step_2.pt",
        "ckpt/step_3.pt.tmp",
        "ckpt/step_3.pt.tmp-77",
        "ckpt/.tmp-step_4.pt",
        "ckpt/.hidden.pt",
        "ckpt/notes.txt",
        "ckpt/deep/er/step_5.pt",
        "ckpt/.git/step_6.pt",
    ):
        path = job / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return job


def paths_of(job: Path, *patterns: str) -> list[str]:
    listing = find(patterns, str(job))
    assert listing.problems == ()
    return [os.path.relpath(candidate.path, job) for candidate in listing.candidates]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["ckpt/*.pt"], ["ckpt/step_1.pt", "ckpt/step_2.pt"]),
        (["./ckpt//step_[12].pt"], ["ckpt/step_1.pt", "ckpt/step_2.pt"]),
        (["ckpt/**/*.pt"], ["ckpt/deep/er/step_5.pt", "ckpt/step_1.pt", "ckpt/step_2.pt"]),
        (["**/step_5.pt", "**/**/step_?.pt"], ["ckpt/deep/er/step_5.pt", "ckpt/step_1.pt", "ckpt/step_2.pt"]),
        (["ckpt/step_1.pt", "ckpt/*.pt"], ["ckpt/step_1.pt", "ckpt/step_2.pt"]),
        (["ckpt/*"], ["ckpt/notes.txt", "ckpt/step_1.pt", "ckpt/step_2.pt"]),
        (["ckpt/deep/*/*.pt"], ["ckpt/deep/er/step_5.pt"]),
        (["absent/*.pt", "ckpt/absent.pt", "ckpt/step_1.pt/*.pt"], []),
    ],
)
def test_patterns(tree: Path, patterns: list[str], names: list[str]) -> None:
    assert paths_of(tree, *patterns) == names


def test_absolute_patterns_and_home(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tree.with_name("plain")
    tree.rename(plain)
    assert paths_of(plain, f"{plain}/ckpt/*_1.pt") == ["ckpt/step_1.pt"]
    monkeypatch.setenv("HOME", str(plain))
    assert paths_of(plain, "~/ckpt/*_1.pt") == ["ckpt/step_1.pt"]


def test_one_file_of_several_names_is_one_candidate(tree: Path) -> None:
    (tree / "ckpt/latest.pt").symlink_to("step_2.pt")
    (tree / "ckpt/again.pt").symlink_to("latest.pt")
    os.link(tree / "ckpt/step_1.pt", tree / "ckpt/best.pt")
    assert paths_of(tree, "ckpt/*.pt") == ["ckpt/step_1.pt", "ckpt/step_2.pt"]
    assert paths_of(tree, "ckpt/latest.pt") == ["ckpt/step_2.pt"]


def test_links_that_lead_nowhere_or_in_circles(tree: Path) -> None:
    (tree / "ckpt/gone.pt").symlink_to("absent.pt")
    (tree / "ckpt/deep/up").symlink_to("..")
    (tree / "ckpt/deep/up2").symlink_to("..")
    assert paths_of(tree, "ckpt/**/*.pt") == ["ckpt/deep/er/step_5.pt", "ckpt/step_1.pt", "ckpt/step_2.pt"]
    (tree / "ckpt/self.pt").symlink_to("self.pt")
    assert find(["ckpt/self.pt"], str(tree)).candidates == ()


def test_paths_other_than_regular_files_are_left_alone(tree: Path) -> None:
    os.mkfifo(tree / "ckpt/fifo.pt")
    (tree / "ckpt/null.pt").symlink_to("/dev/null")
    (tree / "ckpt/directory.pt").mkdir()
    assert paths_of(tree, "ckpt/*.pt") == ["ckpt/step_1.pt", "ckpt/step_2.pt"]


def test_a_distributed_checkpoint_is_a_candidate_that_is_reported(tree: Path) -> None:
    (tree / "ckpt/step_9").mkdir()
    (tree / "ckpt/step_9/.metadata").write_text("")
    assert paths_of(tree, "ckpt/step_*") == ["ckpt/step_1.pt", "ckpt/step_2.pt", "ckpt/step_9"]


def test_identity_follows_the_content(tree: Path) -> None:
    def identity() -> object:
        return find(["ckpt/step_1.pt"], str(tree)).candidates[0].identity

    before = identity()
    assert identity() == before
    os.utime(tree / "ckpt/step_1.pt", ns=(1, 1))
    assert identity() != before


def test_a_name_that_no_journal_can_hold_is_a_problem(tree: Path) -> None:
    with open(os.fsencode(tree) + b"/ckpt/step_8\xff.pt", "wb"):  # noqa: PTH123 -- pathlib takes no bytes
        pass
    listing = find(["ckpt/step_8*"], str(tree))
    assert listing.candidates == ()
    assert listing.problems == ((f"{tree}/ckpt/step_8\\xff.pt", "its name is not UTF-8"),)


def test_a_directory_that_could_not_be_listed_is_reported(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def broken(path: str) -> object:
        if path.endswith("/ckpt"):
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "scandir", broken)
    assert find(["ckpt/*.pt"], str(tree)).problems == ((f"{tree}/ckpt", "it could not be read: Input/output error"),)


@pytest.mark.parametrize(("pattern", "problems"), [("ckpt/*.pt", 1), ("*/*.pt", 0), ("**/*.pt", 0)])
def test_a_forbidden_directory_under_a_wildcard_is_no_problem(
    tree: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, problems: int
) -> None:
    real = os.scandir

    def forbidden(path: str) -> object:
        if path.endswith("/ckpt"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    assert len(find([pattern], str(tree)).problems) == problems
