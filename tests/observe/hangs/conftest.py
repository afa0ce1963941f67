"""Ranks as the supervisor starts them, without one: processes with our instrumentation in an attempt's directory, and looks at them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import RankInfo
from supervisor.instrument._supervise_shim.layout import start_ticks_of
from supervisor.observe.hangs import look
from supervisor.observe.ranks import heartbeats
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "jobs" / "hangs.py"


@dataclass
class Ranks:
    """The ranks of one test. `directory`: the attempt's."""

    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *argv: str, count: int = 1, cwd: Path | None = None) -> None:
        """Start so many ranks of one command of Python's."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SUPERVISE_", "PYTHON", "TORCH", "GLOO"))}
        env |= {"SUPERVISE_JOB_DIR": str(self.directory.parent), "SUPERVISE_JOB_ATTEMPT": "1", "SUPERVISE_JOB_SHIM": "rank"}
        env |= {"PYTHONPATH": str(ROOT / "supervisor" / "instrument"), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for rank in range(count):
            numbered = env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            place = cwd or self.directory.parent
            command = [sys.executable, *argv]
            self.processes.append(subprocess.Popen(command, env=numbered, cwd=place, start_new_session=True))  # noqa: S603 - our own interpreter

    @property
    def infos(self) -> tuple[RankInfo, ...]:
        """The ranks, as the supervisor knows them."""
        rows = ((number, process.pid, start_ticks_of(process.pid)) for number, process in enumerate(self.processes))
        return tuple(RankInfo(number, number, pid, ticks or 0) for number, pid, ticks in rows)

    def beats(self) -> dict[int, heartbeats.RankHeartbeat]:
        """Return the heartbeats by rank."""
        return {beat.rank: beat for beat in heartbeats.read(self.directory / "heartbeat")}

    def look(self, infos: tuple[RankInfo, ...] | None = None) -> look.Look:
        """Take a look at all of them."""
        return look.take(infos or self.infos, self.directory, beats=self.beats())


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path / "job" / "attempt-0001")
    heartbeats.create(ranks.directory / "heartbeat", 4)
    yield ranks
    for process in ranks.processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.wait(30)
