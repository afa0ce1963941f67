"""What an attempt is about to run: equal while nothing is changed, another once the script, a module beside it or a package is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.knobs.program_identity import measure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A job's directory with its script and a module, and an environment with an interpreter, torchrun and one package."""
    (tmp_path / "train.py").write_text("import model\n", encoding="utf-8")
    (tmp_path / "model.py").write_text("WIDTH = 4\n", encoding="utf-8")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    launcher = tmp_path / "env" / "bin" / "torchrun"
    launcher.write_text(f"#!{tmp_path}/env/bin/python\n", encoding="utf-8")
    launcher.chmod(0o755)
    (tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "torch-2.13.dist-info").mkdir(parents=True)
    return tmp_path


COMMANDS = (["torchrun", "--nproc-per-node=2", "train.py", "--lr=1"], ["env/bin/python", "train.py", "--lr=1"])


def of(command: list[str], place: Path) -> dict[str, str]:
    return dict(measure(command, place, {"PATH": f"{place}/env/bin"}))


@pytest.mark.parametrize("command", COMMANDS, ids=["torchrun", "python"])
def test_each_part_shows_its_own_change_and_no_other(command: list[str], place: Path) -> None:
    before = of(command, place)
    assert set(before) == {"command", "script", "packages"}
    assert of(command, place) == before
    (place / "notes.txt").write_text("of no account", encoding="utf-8")
    assert of(command, place) == before

    def changed() -> set[str]:
        now = of(command, place)
        return {name for name in before if now[name] != before[name]}

    assert {name for name, digest in of([*command, "--more"], place).items() if digest != before[name]} == {"command"}
    (place / "model.py").write_text("WIDTH = 16\n", encoding="utf-8")
    assert changed() == {"script"}
    (place / "env" / "lib" / "python3.11" / "site-packages" / "einops-0.8.dist-info").mkdir()
    assert changed() == {"script", "packages"}


def test_an_unreadable_file_is_left_out_of_the_identity(place: Path) -> None:
    before = of(COMMANDS[0], place)
    (place / "train.py").rename(place / "away.py")
    assert of(COMMANDS[0], place) == {name: before[name] for name in ("command", "packages")}


def test_a_command_without_python_has_its_words_alone(tmp_path: Path) -> None:
    assert set(of(["bash", "-c", "true"], tmp_path)) == {"command"}
