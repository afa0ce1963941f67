"""Two nodes whose environments differ: what matters is named on both before a rank starts, and what cannot work starts none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_nodes import ALONE
from tests.support.figures import is_within
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
#: From the nodes' meeting until their ranks may start.
COMPARED_S = 2.0


def start_both(
    supervise: Callable[..., Supervised],
    place: Path,
    script: Sequence[str],
    second: Sequence[str],
    options: Sequence[str] = (),
    **of_second: str,
) -> list[Supervised]:
    """Start two nodes; the second has a script and variables of its own."""
    port = free_port()
    words = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=e2e", "--nnodes=2", "--nproc-per-node=1"]
    runs = [supervise(*words, *script, options=options, place=place / "node-0")]
    wait_for(lambda: answers(port), "node 0 to serve the rendezvous", 60, alive=runs[0].alive)
    return [*runs, supervise(*words, *second, options=options, place=place / "node-1", **of_second)]


def compared_s(run: Supervised) -> float:
    """Return how long it took from the nodes' meeting until their ranks might start, by the journal."""
    times = {rec["body"]["event"]: rec["t"] for line in run.journal().splitlines() if (rec := json.loads(line)["rec"])["kind"] == "event"}
    return float(times["CheckpointSelected"] - times["NodesGathered"])


def differs(run: Supervised, name: str, value: str) -> bool:
    """Return whether a value is reported to be set on one node alone: torch numbers nodes of one host by their pids, which wrap."""
    set_there, unset = rf"{value} on node (?P<a>\d) \(\S+\)", r"unset on node (?P<b>\d) \(\S+\)"
    text = " ".join(run.stderr.split())
    match = re.search(f"{name} differs: (?:{set_there}; {unset})", text) or re.search(f"{name} differs: (?:{unset}; {set_there})", text)
    return match is not None and {match["a"], match["b"]} == {"0", "1"}


@pytest.mark.slow
def test_an_important_difference_of_nodes_is_named_on_both_and_the_job_runs(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    other = tmp_path / "other" / Path(ALONE[0]).name
    other.parent.mkdir()
    for name in (other.name, "job_parts.py"):
        shutil.copy(Path(ALONE[0]).with_name(name), other.parent)
    with other.open("a") as file:
        file.write("# another revision\n")
    files = [f"--ckpt-dir={tmp_path}/ckpt", f"--progress={tmp_path}/progress", "--steps=3"]
    runs = start_both(supervise, tmp_path, [*ALONE, *files], [str(other), *files], NCCL_PROTO="LL")
    assert [run.exit_code(120) for run in runs] == [0, 0]
    for run in runs:
        assert differs(run, "the nodes are not alike: NCCL_PROTO", "LL"), run.stderr
        assert f"the nodes are not alike: the script {other.name} differs: sha256 " in run.stderr
        assert "the clock" not in run.stderr
        assert is_within(compared_s(run), COMPARED_S)


@pytest.mark.slow  # tests/health/nodecheck/test_environments.py shows it
def test_an_unworkable_difference_of_nodes_ends_both_with_78_before_a_rank_starts(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    files = [f"--progress={tmp_path}/progress", "--steps=3"]
    runs = start_both(supervise, tmp_path, [*ALONE, *files], [*ALONE, *files], TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert [run.exit_code(120) for run in runs] == [78, 78]
    for run in runs:
        assert differs(run, "TORCH_DISTRIBUTED_DEBUG", "DETAIL"), run.stderr
        assert "--set health.enabled=false" in run.stderr
        assert '"event":"AttemptStarted"' not in run.journal()
    assert not (tmp_path / "progress").exists()


@pytest.mark.slow
def test_nodes_that_are_not_compared_start_despite_a_difference(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    files = [f"--ckpt-dir={tmp_path}/ckpt", f"--progress={tmp_path}/progress", "--steps=3"]
    runs = start_both(supervise, tmp_path, [*ALONE, *files], [*ALONE, *files], options=["--set", "health.enabled=false"], NCCL_PROTO="LL")
    assert [run.exit_code(120) for run in runs] == [0, 0]
    assert all("not alike" not in run.stderr for run in runs)
