"""What `supervise status` and `supervise report` take on the journal of a month: the whole command, with the start of Python.

The journal is what the supervisor's own writer makes of a job that trains for 30 days: a report of progress every minute, a verified
checkpoint every quarter of an hour. `python bench/bench.py --only status` measures it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from classify import cpu_seconds
from figures import at_most
from runs import BenchError

from supervisor.core.events import AttemptEnded, AttemptStarted, CheckpointSelected, CheckpointVerified, ProgressObserved, SupervisorStarted
from supervisor.core.machine import decide
from supervisor.core.model import CheckpointRef, Phase, Policy, RankInfo
from supervisor.job import identity
from supervisor.journal.records import RunBegan
from supervisor.view.opening import open_journal

if TYPE_CHECKING:
    from figures import Figure

    from supervisor.core.events import Event

DAYS = 30
LEAST_RUNS = 11
_PENDING_BYTES = 4 << 20


class _Listener:
    """The listener for the journal's condition: none."""

    def journal_synced(self, seq: int) -> None:
        """Do nothing."""

    def journal_degraded(self, text: str) -> None:
        """Stop: a bench's disk has to work."""
        raise BenchError(text)

    def journal_recovered(self) -> None:
        """Do nothing."""


def write_journal(state_root: Path) -> int:
    """Write the journal; return its bytes."""
    path = state_root / "weeks" / "nodes" / identity.node_name() / "journal.jsonl"
    journal, past = open_journal(path, job="weeks", node=identity.node_name(), listener=_Listener())
    state, t, step = past.state, 1_790_000_000.0, 0
    journal.append(RunBegan("run-1", ("train.py",), pid=1, start_ticks=1), t=t, durable=True)

    def feed(event: Event) -> None:
        nonlocal state
        state, actions = decide(state, event)
        journal.record(event, actions, state, durable=bool(actions))

    feed(SupervisorStarted(t, "run-1", Policy(checkpoints_declared=True), False))  # noqa: FBT003  does not continue
    feed(CheckpointSelected(t, state.attempt.number, None, 0))
    feed(AttemptStarted(t, state.attempt.number, tuple(RankInfo(rank, rank, 100 + rank, 7) for rank in range(8)), 8))
    for _ in range(DAYS * 24 * 4):
        for _ in range(15):
            t, step = t + 60, step + 138
            feed(ProgressObserved(t, state.attempt.number, step, step, Phase.TRAIN))
        reference = CheckpointRef(f"/data/checkpoints/step_{step:08d}.pt", step, "full")
        feed(CheckpointVerified(t, state.attempt.number, reference, state.attempt.number))
        while journal.health().pending_bytes > _PENDING_BYTES:
            time.sleep(0.001)
    feed(AttemptEnded(t, state.attempt.number, "succeeded"))
    if not journal.close(60):
        raise BenchError(f"{path} could not be written")
    return path.stat().st_size


def measure(place: Path, runs: int) -> list[Figure]:
    """Run each command again and again."""
    place.mkdir(parents=True)
    size = write_journal(place)
    return [figure for name, most_s in (("status", 2.0), ("report", 4.0)) for figure in _measured(name, most_s, place, size, runs)]


def _measured(name: str, most_s: float, place: Path, size: int, runs: int) -> list[Figure]:
    command = [str(Path(sys.executable).with_name("supervise")), name, "--job", "weeks", "--state-dir", str(place)]
    environment = dict(os.environ)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)  # noqa: S603  our own command; into the page cache
    wall, cpu = [], []
    for _ in range(max(runs, LEAST_RUNS)):
        began = time.monotonic()
        cpu.append(cpu_seconds(command, environment, (0,))[0])
        wall.append(time.monotonic() - began)
    detail = {"runs": len(wall), "journal_bytes": size, "cpu_s": round(statistics.median(cpu), 3)}
    return [at_most(f"{name} on the journal of a month", statistics.median(wall), most_s, "s", **detail)]
