"""Two nodes on loopback with directories of their own, whose ranks save shards together: they resume from what S3 has of both."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.model import Verdict
from checkpointing.verification import verify
from tests.e2e.test_nodes import selections
from tests.support.ports import answers, free_port
from tests.support.supervised import Bucket, Supervised, clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = str(Path(__file__).parents[1] / "jobs" / "dcp_parts.py")
STEPS, EVERY = 120, 20

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


class TwoNodes:
    """The nodes of one job; each has a working directory, a state directory and checkpoints of its own."""

    def __init__(self, start: Callable[..., Supervised], place: Path, bucket: Bucket) -> None:
        self._start, self.place, self._bucket = start, place, bucket
        self._port = free_port()
        self.runs = [self.start(0)]
        wait_for(lambda: answers(self._port), "node 0 to serve the rendezvous", 60, alive=self.runs[0].alive)
        self.runs.append(self.start(1))

    def start(self, node: int) -> Supervised:
        """Start a node, or start it again."""
        torchrun = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-id=e2e", "--nnodes=2"]
        script = [SCRIPT, f"--steps={STEPS}", f"--save-every={EVERY}", "--save-ms=1500", "--step-ms=20"]
        script += [f"--progress={self.place}/progress", f"--hold-at={4 * EVERY + 6}", f"--held-until={self.place}/go-on"]
        options = ["--checkpoints", "ckpt/step_*", "--resume-args", "--resume {resume}", "--mirror", self._bucket.url, "--keep=2"]
        quick = {"_SUPERVISE_TEST_INTERVALS": "0.04", **self._bucket.reach}
        command = [*torchrun, "--nproc-per-node=1", *script, f"--digest={self.place}/digest"]
        return self._start(*command, options=options, place=self.place / f"node-{node}", **quick)

    def steps_of(self, rank: int) -> int:
        """Return the newest step that a rank made."""
        file = self.place / "progress"
        rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return max((int(row[1]) for row in rows if row[0] == str(rank)), default=0)

    def reached(self, step: int) -> None:
        """Await that both ranks made a step: they are in the save of it, if it is one that is saved."""
        is_there = lambda: min(self.steps_of(0), self.steps_of(1)) >= step  # noqa: E731
        wait_for(is_there, f"step {step}", 120, alive=lambda: all(run.alive() for run in self.runs))


def digest_of_plain_torchrun(place: Path) -> bytes:
    """Run the job without supervise, on one node."""
    job = ["torchrun", "--standalone", "--nproc-per-node=2", SCRIPT, f"--steps={STEPS}", f"--digest={place}/digest"]
    subprocess.run(job, env=clean_environment(), check=True, capture_output=True)  # noqa: S603  # plain torchrun
    return (place / "digest").read_bytes()


@pytest.mark.slow  # tests/checkpoints/test_node_parts.py shows each case in a moment
def test_a_kill_in_a_save_and_a_wiped_disk_of_nodes_whose_shards_lie_on_their_own_disks(
    supervise: Callable[..., Supervised], tmp_path: Path, bucket: Bucket
) -> None:
    nodes = TwoNodes(supervise, tmp_path, bucket)
    wait_for(lambda: all(run.attempts() >= 1 for run in nodes.runs), "the first attempt", 60)
    ranks = nodes.runs[1].rank_pids(1)
    nodes.reached(3 * EVERY)
    os.kill(ranks[1], signal.SIGKILL)  # the shards of this save are there, its metadata is not
    wait_for(lambda: all(run.attempts() >= 2 for run in nodes.runs), "the second attempt", 90)
    for node, run in enumerate(nodes.runs):
        (row,) = selections(run)
        assert (row["chosen"]["step"], row["chosen"]["path"]) == (2 * EVERY, f"{run.place}/ckpt/step_{2 * EVERY}")
        assert verify(row["chosen"]["path"]).verdict is Verdict.VERIFIED, "this node has the shards of both"
        assert "do not share all directories of their checkpoints" in run.stderr, node
    nodes.reached(4 * EVERY + 5)  # and no step more
    wait_for(lambda: bucket.has_whole(4 * EVERY), "both parts in the mirror", 90, alive=lambda: all(run.alive() for run in nodes.runs))

    lost = nodes.runs[1]
    lost.process.kill()
    lost.wait_for_nothing_left()
    for name in ("ckpt", "state"):
        shutil.rmtree(lost.place / name)
    (tmp_path / "go-on").touch()
    nodes.runs[1] = nodes.start(1)
    assert [run.exit_code(180) for run in nodes.runs] == [0, 0]
    assert f"restored {lost.place}/ckpt/step_{4 * EVERY} of step {4 * EVERY} from {bucket.url}" in nodes.runs[1].stderr
    assert selections(nodes.runs[0])[-1]["chosen"]["step"] == 4 * EVERY
    assert not (nodes.runs[0].place / "ckpt" / f"step_{EVERY}").exists(), "the mirror has it whole, and newer ones"
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "digest").read_bytes() == digest_of_plain_torchrun(tmp_path / "plain")
