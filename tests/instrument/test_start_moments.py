"""When a rank came how far on its way to the first training step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.observe.ranks import start_files

if TYPE_CHECKING:
    from conftest import Attempt

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, time
import wave
from pathlib import Path
from supervisor import worker
file = Path(os.environ["SUPERVISE_JOB_DIR"], "attempt-0001", "start-0.json")
imported = time.monotonic_ns()
with worker.phase("init"):
    import colorsys
with worker.phase("load"):
    loading = time.monotonic_ns()
with worker.phase("load"):
    pass
loaded = time.monotonic_ns()
worker.heartbeat(41)
worker.heartbeat(41)
print(file.exists(), imported, loading, loaded, time.monotonic_ns())
worker.heartbeat(42)
first = file.read_bytes()
worker.heartbeat(43)
print(file.read_bytes() == first)
"""


@pytest.mark.process
def test_the_moments_of_a_start_are_written_once_at_the_first_step(attempt: Attempt) -> None:
    done = attempt.run("-c", SCRIPT, env=attempt.env(pythonpath=str(ROOT)))
    before, *times, unchanged = done.stdout.split()
    assert (before, unchanged) == ("False", "True"), done.stderr
    imported, loading, loaded, stepping = map(int, times)
    moments = start_files.read(attempt.directory, 1)
    assert moments is not None
    assert tuple(moments) == start_files.MOMENTS
    assert list(moments.values()) == sorted(moments.values())
    assert moments["hello"] < moments["imported"] < imported, "what is imported later belongs to the part in which it is"
    assert moments["loading"] < loading < moments["loaded"] < loaded < stepping < moments["first_step"]


@pytest.mark.process
def test_a_process_that_is_no_rank_writes_none(attempt: Attempt) -> None:
    script = "import os; from supervisor import worker; os.fork() and os.wait() or [worker.heartbeat(n) for n in (1, 2)]"
    done = attempt.run("-c", script, env=attempt.env(pythonpath=str(ROOT)))
    assert done.returncode == 0, done.stderr
    assert json.dumps(sorted(attempt.names())).count("start-") == 0
