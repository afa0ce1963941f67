"""The global batch of a real job whose nodes are lost and come back, and nodes that wait because they are too few."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_nodes import ALONE, EVERY, JOBS, Cluster
from tests.support.ports import free_port
from tests.support.supervised import Supervised, clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 400
SCRIPT = str(JOBS / "same_batch.py")
#: Read by every Python of a node, before its script: a rank of the node check fails in each of its meetings.
REHEARSAL = """
import sys
if sys.argv[0].endswith("nodecheck/__main__.py"):
    sys.argv += ["--deadline", "70", "--rehearse", "fail:1:1"]
"""
KNOBS = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum=--accum")


def rows(log: Path) -> list[tuple[int, ...]]:
    """Return step, ranks, micro-batch, accumulation and global batch of each step, in the order in which they were made."""
    return [tuple(map(int, line.split()[:5])) for line in log.read_text().splitlines()]


def losses(log: Path) -> dict[int, float]:
    """Return the loss of each step; of one that was made twice, that of the last time."""
    return {int(words[0]): float(words[5]) for words in map(str.split, log.read_text().splitlines())}


def uninterrupted(place: Path) -> Path:
    """Train alone with the same global batch; returns the log."""
    log = place / "alone"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, SCRIPT, f"--steps={STEPS}", "--batch-size=24", "--accum=1", f"--made={log}"]
    subprocess.run(command, env={**clean_environment(), **alone}, cwd=place, check=True)  # noqa: S603 (our own)
    return log


def test_two_of_three_nodes_continue_with_the_same_global_batch_until_the_third_returns(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    job = ("--batch-size=8", "--accum=1", f"--made={log}", "--step-ms=50", f"--steps={STEPS}")
    nodes = Cluster(supervise, tmp_path, *job, count=3, nnodes="2:3", script=(SCRIPT,), options=KNOBS)
    nodes.reached(0, EVERY + 5)
    *others, lost = nodes.runs
    lost.process.kill()
    wait_for(lambda: rows(log)[-1][1] == 2, "the others to train on", 60, alive=others[0].alive)
    again = nodes.start(2)
    runs = (*others, again)
    assert [run.exit_code(200) for run in runs] == [0] * 3
    seen = {row[1:] for row in rows(log)}
    assert seen == {(3, 8, 1, 24), (2, 6, 2, 24)}
    assert rows(log)[-1][1:] == (3, 8, 1, 24), "it was taken in"
    assert losses(log) == pytest.approx(losses(uninterrupted(tmp_path)), rel=1e-6)
    for run in others:
        assert "the global batch stays: 3 × 8 × 1 = 24, now 2 × 6 × 2 = 24 (--batch-size 8 → 6; --accum 1 → 2)" in run.stderr  # noqa: RUF001
        assert "3 ranks again, with the global batch and the values that they had" in run.stderr


def test_nodes_of_which_two_hold_one_replica_train_as_two_and_the_third_takes_the_place_of_a_lost_one(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    job = ("--batch-size=8", "--accum=1", f"--made={log}", "--step-ms=50", f"--steps={STEPS}")
    nodes = Cluster(supervise, tmp_path, *job, count=3, nnodes="2:3", script=(SCRIPT,), options=(*KNOBS, "--model-parallel=2"))
    nodes.reached(0, EVERY + 5)
    first, *others = nodes.runs
    trains = [run for run in nodes.runs if run.status().get("ranks")]
    assert len(trains) == 2, "the third is a spare"
    lost = next(run for run in others if run in trains)
    lost.process.kill()
    assert [run.exit_code(200) for run in nodes.runs if run is not lost] == [0, 0]
    assert {row[1] for row in rows(log)} == {2}, "never three ranks, of which one holds half a replica"
    assert rows(log)[-1][0] == STEPS
    assert (
        "a replica, one copy of the model, has 2 ranks (--model-parallel 2): if GPUs or nodes are lost, only whole replicas train on"
        in first.stderr
    )


def test_too_few_nodes_wait_for_one_more_take_it_and_stop_with_75_when_none_comes(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=50", "--steps=20000", count=3, nnodes="2:3", script=ALONE, join_s=45)
    nodes.reached(0, EVERY + 5)
    first, *others = nodes.runs
    for run in others:
        run.process.kill()
    waits = wait_for(lambda: first.status()["waits"], "one node to wait for another", 90, alive=first.alive)
    assert waits["nodes"] == 1
    assert "waits for 1 more node(s), for at most 45 s; then the run stops (75)" in first.stderr
    assert "for 1 more node(s), until" in first.ask("status").stdout
    page = " ".join(first.ask("why").stdout.split())
    assert re.search(r"what Node \S+ is lost: .* node_lost, \d+ % sure", page), page
    assert "supervise waits for 1 more node until" in page
    assert "then it stops (exit code 75)" in page
    again = nodes.start(1)
    wait_for(lambda: first.attempts() >= 2, "two of them to train on", 60, alive=first.alive)
    assert first.status()["waits"] is None
    wait_for(lambda: first.status()["incident"] is None, "a step of the two", 60, alive=first.alive)
    again.process.kill()
    assert first.exit_code(150) == 75
    assert "1 of the 2 nodes that the job needs are there, and no other came in time" in first.ask("why").stdout
    assert first.status()["incidents"] == 2, "that they waited is no failure"


def test_a_node_that_fails_the_node_check_stops_alone_and_comes_not_back(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(REHEARSAL)
    log = tmp_path / "log"
    job = ("--batch-size=8", "--accum=1", f"--made={log}", "--step-ms=50", f"--steps={STEPS}")
    options = (*KNOBS, "--check-nodes", "start")
    nodes = Cluster(
        supervise,
        tmp_path,
        *job,
        count=3,
        nnodes="2:3",
        script=("--max-restarts=0", SCRIPT),
        options=options,
        last_call_s=30,
        PYTHONPATH=str(tmp_path / "site"),
    )
    is_over = lambda run: not run.alive() and run.exit_code() == 75  # noqa: E731
    bad = wait_for(lambda: next((run for run in nodes.runs if is_over(run)), None), "a node to stop", 200)
    assert "fails the node check: rehearsal: rank" in bad.stderr
    others = [run for run in nodes.runs if run is not bad]
    wait_for(lambda: log.exists() and rows(log)[-1][0] > EVERY, "the others to train", 120, alive=others[0].alive)
    again = nodes.start(nodes.runs.index(bad))
    assert again.exit_code(60) == 69
    assert "this node is excluded since" in again.stderr
    assert [run.exit_code(200) for run in others] == [0, 0]
    assert {row[1:] for row in rows(log)} == {(2, 6, 2, 24)}
    assert [run.attempts() for run in others] == [1, 1]
    assert all("leaves the job" in run.stderr for run in others)
    assert [run.status()["incidents"] for run in others] == [0, 0], "that a node left is no failure"
    ledgers = [path for run in nodes.runs for path in run.state.glob(".gpus/*.jsonl")]
    assert len(ledgers) == 1
