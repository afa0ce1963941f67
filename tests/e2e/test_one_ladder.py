"""From the first failure to the last KILL there is one grace: also for what a rank left behind in a session of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_nodes import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

GRACE_S, LEAST_S = 3.0, 1.0
#: Each rank but rank 1, and a daemon of its own, ignore TERM; rank 1 is killed once those of rank 0 are there, or of all ranks.
SCRIPT = """
import os, pathlib, signal, sys, time

if os.environ["SUPERVISE_JOB_ATTEMPT"] != "1":
    sys.exit()
place, rank = pathlib.Path(os.environ["PLACE"]), os.environ["RANK"]
if rank == "1":
    while len(list(place.glob("daemon-*"))) < int(os.environ["WORLD_SIZE"]) - 1:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    if not os.fork():
        (place / f"daemon-{rank}").touch()
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def moments(run: Supervised, event: str) -> list[float]:
    rows: list[dict[str, Any]] = [json.loads(line)["rec"] for line in run.journal().splitlines()]
    return [row["t"] for row in rows if row["kind"] == "event" and row["body"]["event"] == event]


@pytest.mark.process
@pytest.mark.slow
def test_a_rank_and_a_daemon_of_it_that_ignore_term_are_gone_after_one_grace(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(SCRIPT)
    options = ["--set", f"stop.grace_s={GRACE_S}"]
    run = supervise("torchrun", "--standalone", "--nproc-per-node=2", script, options=options, PLACE=str(tmp_path))
    run.exit_code(60)
    failed, ended = moments(run, "RankExited")[0], moments(run, "AttemptEnded")[0]
    assert GRACE_S <= ended - failed < GRACE_S + LEAST_S + 1.5, "a second grace would be 6 s in all"


@pytest.mark.process
@pytest.mark.slow
def test_the_ranks_of_all_nodes_are_torn_down_and_started_at_the_same_time(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(SCRIPT)
    nodes = Cluster(supervise, tmp_path, options=["--set", f"stop.grace_s={GRACE_S}"], script=[str(script)], PLACE=str(tmp_path))
    for run in nodes.runs:
        run.exit_code(120)
    failed = min(t for run in nodes.runs for t in moments(run, "RankExited"))
    ended = [moments(run, "AttemptEnded")[0] - failed for run in nodes.runs]
    assert GRACE_S <= max(ended) < GRACE_S + LEAST_S + 2.0, f"one node after the other would take {2 * GRACE_S:.0f} s: {ended}"
    started = [moments(run, "AttemptStarted")[1] for run in nodes.runs]
    assert max(started) - min(started) < GRACE_S, started
