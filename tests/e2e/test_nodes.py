"""Several nodes on loopback, each a `supervise` with an agent of its own: all resume from the same checkpoint, or none begins."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import Supervised, clean_environment
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DDP = str(Path(__file__).parents[1] / "jobs" / "ddp_small.py")
NODES, STEPS, EVERY = 3, 60, 20

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def free_port() -> int:
    """Return a port that nothing is bound to."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Cluster:
    """The nodes of one job; `place` is what they share."""

    place: Path
    runs: list[Supervised]

    def pids(self, attempt: int = 1) -> dict[int, int]:
        """Return rank → pid over all nodes."""
        return {rank: pid for run in self.runs for rank, pid in run.rank_pids(attempt).items()}

    def reached(self, rank: int, step: int) -> None:
        """Await that a rank made a step."""

        def look() -> bool:
            with contextlib.suppress(FileNotFoundError):
                rows = [line.split() for line in (self.place / "progress").read_text().splitlines()]
                return any(row[:2] == [str(rank), str(step)] for row in rows)
            return False

        wait_for(look, f"step {step} of rank {rank}", 90, alive=lambda: all(run.alive() for run in self.runs))

    def resumed(self) -> list[str]:
        """Return what each node said of how its last attempt began."""
        return [
            next((line for line in reversed(run.stderr.splitlines()) if "resumed at" in line or "FROM SCRATCH" in line), "")
            for run in self.runs
        ]


def cluster(
    start: Callable[..., Supervised],
    place: Path,
    *job: str,
    options: Sequence[str] = (),
    nnodes: str = str(NODES),
    checkpoints: str = "{place}/ckpt",
) -> Cluster:
    """Start all nodes. `checkpoints` may hold {node}."""
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=e2e", f"--nnodes={nnodes}", "--nproc-per-node=1"]
    runs = []
    for node in range(NODES):
        directory = checkpoints.format(place=place, node=node)
        files = [f"--progress={place}/progress", f"--ckpt-dir={directory}", f"--digest={place}/digest"]
        declared = ["--checkpoints", f"{directory}/*.pt", "--resume-args", "--resume {resume}", *options]
        command = ["torchrun", *where, "--rdzv-conf=last_call_timeout=2", DDP, "--light", f"--steps={STEPS}", f"--save-every={EVERY}"]
        runs.append(start(*command, *files, *job, options=declared, place=place / f"node-{node}"))
    return Cluster(place, runs)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Give the digest of the model after a run in which nothing fails."""
    place = tmp_path_factory.mktemp("uninterrupted")
    job = ["torchrun", "--standalone", f"--nproc-per-node={NODES}", DDP, "--light", f"--steps={STEPS}", f"--digest={place}/digest"]
    subprocess.run(job, env=clean_environment(), check=True, timeout=90, capture_output=True)  # noqa: S603  # plain torchrun
    return (place / "digest").read_bytes()


def test_a_rank_killed_while_another_saves_leaves_one_checkpoint_that_all_resume_from(
    supervise: Callable[..., Supervised], tmp_path: Path, uninterrupted: bytes
) -> None:
    nodes = cluster(supervise, tmp_path, "--save-ms=1500", "--save-on-term", "--step-ms=20")
    pids = nodes.pids()
    nodes.reached(0, 2 * EVERY)  # rank 0 is in the save of this step, and ends it although it is told to end
    os.kill(pids[2], signal.SIGKILL)
    assert [run.exit_code(120) for run in nodes.runs] == [0] * NODES
    assert all(f"resumed at step {2 * EVERY} from {tmp_path}/ckpt" in line for line in nodes.resumed()), nodes.resumed()
    assert (tmp_path / "digest").read_bytes() == uninterrupted
