"""The checkpoint of the next attempt comes into memory while the ranks of the last one are still being ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

SCRIPT = Path(__file__).parents[1] / "jobs" / "reads_ahead.py"


@pytest.mark.process
@pytest.mark.slow
def test_a_checkpoint_is_in_memory_before_the_last_process_is_killed_and_the_next_attempt_reads_no_disk(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir()
    options = ["--checkpoints", f"{place}/*.safetensors", "--set", "stop.grace_s=2"]
    run = supervise(sys.executable, SCRIPT, place, options=options, PYTHONPATH=str(Path(__file__).parents[2]))
    wait_for(lambda: "CheckpointVerified" in run.journal(), "a verified checkpoint", 60, alive=run.alive)
    (place / "verified").touch()
    assert run.exit_code(60) == 0
    if float((place / "dropped").read_text()) > 0.1:
        pytest.skip("this file system keeps its files in memory: set TMPDIR to a directory on a disk")
    assert float((place / "beside").read_text()) == 1.0, "read while a process of attempt 1 was left"
    loaded = json.loads((place / "loaded").read_text())
    assert (loaded["in_memory"], loaded["whole"]) == (1.0, True)
    assert loaded["read_bytes"] < 1 << 20, "nothing of the checkpoint came from the disk"
