"""The files of signatures that the user's settings name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.config import signatures
from supervisor.config.settings import Settings
from supervisor.config.trust import read_trusted

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


GOOD = """
[[signature]]
id = "cuda_oom.x"
cause = "cuda_oom"
where = ["line"]
anchors = ["out of everything"]
pattern = "out of everything"
weight = 0.9
"""


def test_a_file_changed_after_the_trust_check_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)

    def swapped(file: Path, subject: str) -> str | None:
        text = read_trusted(file, subject)
        file.write_text(GOOD.replace("cuda_oom.x", "cuda_oom.slipped_in"))
        return text

    monkeypatch.setattr(signatures, "read_trusted", swapped)
    settings = replace(Settings(), cwd=str(tmp_path), classify=replace(Settings().classify, signatures=("mine.toml",)))
    catalogue, problems = signatures.configured(settings)
    assert not problems
    assert catalogue.row("cuda_oom.x") is not None
    assert catalogue.row("cuda_oom.slipped_in") is None
