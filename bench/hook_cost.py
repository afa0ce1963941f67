"""What the heartbeat costs a step: heartbeat.py, run in a process of its own, judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from figures import Figure, at_most
from runs import DEADLINE_S, BenchError

HERE = Path(__file__).parent


def measure(_place: Path, _pairs: int) -> list[Figure]:
    """Run it once; it takes its own medians over many rounds."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    words = [sys.executable, str(HERE / "heartbeat.py")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)  # noqa: S603  # our own
    if done.returncode != 0:
        msg = f"heartbeat.py: {done.stderr[-2000:]}"
        raise BenchError(msg)
    costs = json.loads(done.stdout)
    return [
        at_most("heartbeat_own_code", costs["own_ns"]["median"], 1000.0, "ns", **costs["own_ns"]),
        at_most("heartbeat_collective", costs["life_ns"]["collective"], 1000.0, "ns", **costs["life_ns"]),
        at_most("heartbeat_per_step", costs["step_us"]["difference"], 10.0, "us", **costs["step_us"]),
        at_most("instrumented_python_start", costs["start_cpu_ms"]["difference"], 10.0, "ms", **costs["start_cpu_ms"]),
    ]
