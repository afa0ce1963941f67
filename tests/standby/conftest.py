"""A job directory, and an interpreter with libraries of the tests' own."""

from __future__ import annotations

import venv
from typing import TYPE_CHECKING

import pytest

from tests.standby.libraries import LIBRARIES, PARTS
from tests.standby.ways import Job

if TYPE_CHECKING:
    from pathlib import Path

    from pytest import TempPathFactory  # noqa: PT013


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "job")


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: TempPathFactory) -> str:
    """Return the path of an interpreter that has LIBRARIES installed, and nothing else."""
    place = tmp_path_factory.mktemp("interpreter")
    venv.create(place, symlinks=True)
    packages = next(place.glob("lib/python*/site-packages"))
    for name, text in LIBRARIES.items():
        parts = PARTS.get(name)
        (packages / f"{name}.py").write_text(text) if parts is None else _package(packages / name, {"__init__": text, **parts})
    return str(place / "bin" / "python")


def _package(place: Path, parts: dict[str, str]) -> None:
    place.mkdir()
    for name, text in parts.items():
        (place / f"{name}.py").write_text(text)
