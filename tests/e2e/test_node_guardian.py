"""A supervisor that is killed on one of several nodes: its guardian tells the others, which train alone and would notice nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster.model import ClusterRules
from tests.e2e.test_nodes import ALONE, NODES, Cluster
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_supervisor_that_is_killed_ends_the_attempt_of_all_as_soon_as_its_ranks_are_ended(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=300", script=ALONE)
    nodes.reached(0, 10)
    killed = nodes.runs[1]
    killed.process.kill()
    killed_t = time.monotonic()
    wait_for(lambda: "its supervise died, and its processes are ended" in nodes.runs[0].journal(), "the word of its guardian", 60)
    assert time.monotonic() - killed_t < ClusterRules().closed_s
    killed.wait_for_nothing_left(20)
    nodes.runs[1] = nodes.start(1)
    assert [run.exit_code(120) for run in nodes.runs] == [0] * NODES
    assert nodes.runs[0].attempts() == 2
