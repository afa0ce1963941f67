"""Several nodes whose rendezvous is etcd, which none of them serves and which outlives their job."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_nodes import ALONE, EVERY, NODES, STEPS, Cluster, digest_of, selections
from tests.support import etcd_server
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.conftest import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[int]:
    """Run an etcd server; return its port."""
    if importlib.util.find_spec("etcd") is None:
        pytest.skip("the module python-etcd, which torch needs, is not installed")
    with etcd_server.running(tmp_path) as port:
        yield port


def node_name(run: Supervised) -> str:
    """Return the name of a node in the protocol."""
    file = next(run.state.glob("*/nodes/*/cluster/node.json"))
    return str(json.loads(file.read_text("utf-8"))["memory"]["node"])


def serving(nodes: Cluster, etcd: int, job: str = "e2e") -> int:
    """Return which node serves the control store, by the record in etcd."""
    with urllib.request.urlopen(f"http://127.0.0.1:{etcd}/v2/keys/supervise/{job}/control-store", timeout=10) as answer:
        record = json.loads(json.load(answer)["node"]["value"])
    return [node_name(run) for run in nodes.runs].index(record["node"])


def test_jobs_on_one_etcd_fail_and_go_on_each_with_a_control_store_of_its_own(
    supervise: Callable[..., Supervised], tmp_path: Path, etcd: int
) -> None:
    for job in ("first", "second"):  # what the first left in etcd must mean nothing to the second
        place = tmp_path / job
        place.mkdir()
        go_on = place / "go-on"
        hold = [f"--hold-at={EVERY + 2}", f"--held-until={go_on}"]
        nodes = Cluster(supervise, place, *hold, script=ALONE, etcd=etcd, job_id=job)
        pids = nodes.pids()
        nodes.reached(0, EVERY + 1)
        os.kill(pids[2], signal.SIGKILL)
        wait_for(lambda: all(run.attempts() >= 2 for run in nodes.runs), "the second attempt", 60)  # noqa: B023  waited for in this round
        go_on.touch()
        assert [run.exit_code(120) for run in nodes.runs] == [0] * NODES
        chosen = {row["chosen"]["step"] for run in nodes.runs for row in selections(run)}
        assert len(chosen) == 1
        assert (place / "digest").read_bytes() == digest_of(STEPS, ALONE)


def test_another_node_serves_the_control_store_when_its_host_is_lost_and_the_job_goes_on(
    supervise: Callable[..., Supervised], tmp_path: Path, etcd: int
) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=50", "--steps=400", script=ALONE, etcd=etcd, nnodes="2:3")
    nodes.pids()
    nodes.reached(0, EVERY + 1)
    host = serving(nodes, etcd)
    others = [node for node in range(NODES) if node != host]
    nodes.runs[host].process.kill()
    saved = nodes.steps()[-1]
    assert [nodes.runs[node].exit_code(200) for node in others] == [0, 0]
    assert serving(nodes, etcd) in others
    found = [selections(nodes.runs[node])[-1] for node in others]
    assert found[0]["chosen"]["step"] == found[1]["chosen"]["step"] >= saved
    told = {next(line for line in nodes.runs[node].stderr.splitlines() if "incident 1" in line) for node in others}
    assert len(told) == 1, "both tell the same"
    assert "is lost: it served the control store" in told.pop()
