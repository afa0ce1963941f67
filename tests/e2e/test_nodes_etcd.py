"""Several nodes whose rendezvous is etcd, which none of them serves and which outlives their job."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_nodes import ALONE, EVERY, NODES, STEPS, Cluster, answers, digest_of, selections
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.conftest import Supervised

TIMES = {"SUPERVISE_NODES_LEASE_S": "6", "SUPERVISE_NODES_WAIT_S": "10"}

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[int]:
    """Run an etcd server with its second API, which torch uses; return its port. Skip the test where that is not installed."""
    program = shutil.which("etcd")
    if program is None or importlib.util.find_spec("etcd") is None:
        pytest.skip("the package etcd-server and the module python-etcd are not both installed")
    port, peers = free_port(), free_port()
    clients, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    words = [program, "--enable-v2", f"--data-dir={tmp_path}/etcd", f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
    words += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
    with (tmp_path / "etcd.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: S603  the program found above
    wait_for(lambda: answers(port), "etcd", 60, alive=lambda: process.poll() is None)
    yield port
    process.terminate()
    process.wait(20)


def test_jobs_on_one_etcd_fail_and_go_on_each_with_a_control_store_of_its_own(
    supervise: Callable[..., Supervised], tmp_path: Path, etcd: int
) -> None:
    for job in ("first", "second"):  # what the first left in etcd must mean nothing to the second
        place = tmp_path / job
        place.mkdir()
        nodes = Cluster(supervise, place, "--step-ms=50", script=ALONE, etcd=etcd, job_id=job)
        pids = nodes.pids()
        nodes.reached(0, EVERY + 1)
        os.kill(pids[2], signal.SIGKILL)
        assert [run.exit_code(120) for run in nodes.runs] == [0] * NODES
        chosen = {row["chosen"]["step"] for run in nodes.runs for row in selections(run)}
        assert len(chosen) == 1
        assert (place / "digest").read_bytes() == digest_of(STEPS, ALONE)


def test_the_others_stop_with_75_when_the_host_of_the_control_store_is_lost_and_go_on_without_it_when_started_again(
    supervise: Callable[..., Supervised], tmp_path: Path, etcd: int
) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=50", "--steps=400", script=ALONE, etcd=etcd, nnodes="2:3", **TIMES)
    nodes.pids()
    nodes.reached(0, EVERY + 1)
    host = next(node for node, run in enumerate(nodes.runs) if list(run.state.glob("*/nodes/*/cluster/store.json")))
    others = [node for node in range(NODES) if node != host]
    nodes.runs[host].process.kill()
    assert [nodes.runs[node].exit_code(120) for node in others] == [75, 75]
    saved = nodes.steps()[-1]
    again = [nodes.start(node) for node in others]
    assert [run.exit_code(200) for run in again] == [0, 0]
    assert all(selections(run)[-1]["chosen"]["step"] >= saved for run in again)
