"""The recorded job of a test, and where its state directory is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.recorded_job import RecordedJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def written(root: Path) -> RecordedJob:
    return RecordedJob(root)


@pytest.fixture
def make_job() -> type[RecordedJob]:
    return RecordedJob
