"""The moments of the ranks' starts: those of the last rank, once all of them made a step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervisor.observe.ranks import start_files

if TYPE_CHECKING:
    from pathlib import Path


def test_the_last_rank_counts_once_all_have_made_a_step(tmp_path: Path) -> None:
    (tmp_path / "start-0.json").write_text(json.dumps({"hello": 1, "imported": 9, "loaded": 12, "first_step": 20}))
    (tmp_path / "start-1.json").write_text('{"hello": 2, "impo')
    assert start_files.read(tmp_path, 2) is None, "it is being written"
    (tmp_path / "start-1.json").write_text(json.dumps({"hello": 2, "imported": 8, "first_step": 21, "more": 3, "grouped": "x"}))
    assert start_files.read(tmp_path, 2) == {"hello": 2, "imported": 9, "loaded": 12, "first_step": 21}
    assert start_files.read(tmp_path, 3) is None
    (tmp_path / "start-1.json").write_text("[]")
    assert start_files.read(tmp_path, 2) is None
