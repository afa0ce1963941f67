"""`supervise profile` and `supervise --trace` at a real job of two ranks: it is profiled while it trains, and continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

ROOT = Path(__file__).parents[2]
SUPERVISE = str(Path(sys.executable).with_name("supervise"))
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_job_is_profiled_and_trains_on_and_says_who_waits_for_whom(supervise: Callable[..., Supervised]) -> None:
    run = supervise("torchrun", "--standalone", "--nproc-per-node=2", str(ROOT / "tests" / "jobs" / "step_parts.py"), "loader")
    wait_for(lambda: (run.status().get("step_shares") or {}).get("rank") == 1, "who waits for whom", 200, alive=run.alive)
    words = [SUPERVISE, "profile", "--torch", "--steps", "3", "--state-dir", str(run.state)]
    done = subprocess.run(words, cwd=run.place, capture_output=True, text=True, check=False)  # noqa: S603  our own command
    assert done.returncode == 0, done.stderr
    assert "__getitem__ (" in done.stdout
    traces = sorted(run.place.glob("profile-*.trace.json"))
    assert len(traces) == 2
    assert all(json.loads(trace.read_text())["traceEvents"] for trace in traces)
    (stacks,) = run.place.glob("profile-*.collapsed")
    assert {line.partition(";")[0] for line in stacks.read_text().splitlines()} == {"rank 0", "rank 1"}
    step = run.status()["step"]
    wait_for(lambda: run.status()["step"] > step, "more steps", 60, alive=run.alive)
    (run.place / "end").touch()
    assert run.exit_code(deadline_s=60) == 0


def test_the_first_attempt_is_traced_where_that_is_asked_for_and_the_user_s_own_values_hold(supervise: Callable[..., Supervised]) -> None:
    names = ("TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "TORCH_FR_BUFFER_SIZE")
    show = f"import json, os; print(json.dumps({{n: os.environ.get(n) for n in {names!r}}}))"
    run = supervise(sys.executable, "-c", show, options=["--trace"], NCCL_DEBUG="WARN")
    assert run.exit_code(deadline_s=60) == 0
    shown = json.loads(next(line for line in run.stdout.splitlines() if line.startswith("{")))
    assert shown == {"TORCH_DISTRIBUTED_DEBUG": "INFO", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": None, "TORCH_FR_BUFFER_SIZE": "2000"}
