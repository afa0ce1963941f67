"""Faults of one node of several on loopback, and what all nodes make of them: one decision, one checkpoint, the same card, nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.machines import assert_one_job, cards_of, events_of
from tests.e2e.test_nodes import ALONE, EVERY, NODES, STEPS, Cluster, digest_of, selections
from tests.support.faketime import faketime
from tests.support.figures import is_within
from tests.support.supervised import processes_with
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

OUT_OF_MEMORY = str(Path(__file__).parents[1] / "jobs" / "out_of_memory.py")
KNOBS = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum=--accum")


def end_well(nodes: Cluster, steps: int = STEPS, script: tuple[str, ...] = ALONE) -> None:
    """Demand what must hold after each fault."""
    assert [run.exit_code(300) for run in nodes.runs] == [0] * NODES
    for run in nodes.runs:
        run.wait_for_nothing_left(20)
    assert_one_job(nodes.runs)
    if script == ALONE:
        assert (nodes.place / "digest").read_bytes() == digest_of(steps, script)


def all_begin(runs: Sequence[Supervised], attempts: int) -> None:
    """Await that every node began so many attempts, of this start of its supervisor and earlier ones."""
    for run in runs:
        wait_for(lambda run=run: run.attempts() >= attempts, f"attempt {attempts}", 180, alive=run.alive)


def last_attempt(run: Supervised) -> int:
    """Return the number of the newest attempt in a node's journal."""
    rows = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return max((row["attempt"] for row in rows if row["event"] == "attempt.begun"), default=0)


def test_a_coordinator_whose_clock_is_wrong_by_an_hour_is_not_dropped_and_the_first_failure_is_the_first_for_all(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "wrong").mkdir()
    wrong = faketime(tmp_path / "wrong")
    (tmp_path / "wrong" / "clock").write_text("+3600\n")
    go_on = tmp_path / "go-on"
    late = 0  # fails a moment after node 1, by a clock that shows another hour
    words = {
        1: ["--fail-here", f"--fail-at-step={EVERY + 6}", "--step-ms=0"],
        late: ["--fail-here", f"--fail-at-step={EVERY + 7}", "--step-ms=150", "--ignore-term"],
    }
    words = {of: [*options, "--fail-how=exception", f"--fail-once-file={tmp_path}/once-{of}"] for of, options in words.items()}
    job = ["--step-ms=150", f"--hold-at={EVERY + 5}", f"--held-until={go_on}"]
    nodes = Cluster(supervise, tmp_path, *job, script=ALONE, words=words, environments={late: wrong})
    for rank in range(NODES):
        nodes.reached(rank, EVERY + 4)
    (first,) = nodes.runs[1].rank_pids()
    go_on.touch()
    end_well(nodes)
    assert [run.attempts() for run in nodes.runs] == [2] * NODES
    assert len(cards_of(nodes.runs)) == 1, cards_of(nodes.runs)
    assert cards_of(nodes.runs).pop().partition(": ")[2].startswith(f"rank {first} raised RuntimeError"), (first, cards_of(nodes.runs))
    assert all((tmp_path / f"once-{of}").exists() for of in (1, late)), "both failed by themselves"
    assert [row["chosen"]["step"] for run in nodes.runs for row in selections(run)] == [EVERY] * NODES


def test_a_megabyte_of_evidence_on_each_node_delays_no_decision(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    """The script fails on all nodes alike, once, and prints so much with it."""
    once = {node: ["--fail-here", f"--fail-once-file={tmp_path}/once-{node}"] for node in range(NODES)}
    go_on = tmp_path / "go-on"  # they fail at the same time, also where one of them is told to end before
    job = ["--step-ms=50", "--ignore-term", f"--hold-at={EVERY + 4}", f"--held-until={go_on}"]
    job += [f"--fail-at-step={EVERY + 5}", f"--fail-how=exception:{1 << 20}"]
    nodes = Cluster(supervise, tmp_path, *job, script=ALONE, words=once)
    for rank in range(NODES):
        nodes.reached(rank, EVERY + 3)
    go_on.touch()
    end_well(nodes)
    assert [path.stat().st_size > 1 << 20 for run in nodes.runs for path in run.state.glob("*/nodes/*/attempts/0001/rank-*.err")] == [
        True
    ] * NODES
    failed_t = max((tmp_path / f"once-{node}").stat().st_mtime for node in range(NODES))
    decided_t = max(next(event.data["t"] for event in events_of(run) if event.event == "DecisionMade") for run in nodes.runs)
    print(f"decided {decided_t - failed_t:.1f} s after the last failure")  # noqa: T201  the figure is for people
    assert is_within(decided_t - failed_t, 8.0)
    for run in nodes.runs:
        assert "RuntimeError: the fault that the test ordered" in " ".join(run.ask("why").stdout.split())


def test_a_node_that_is_slow_is_not_lost(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=80", "--steps=300", script=ALONE)
    nodes.reached(0, EVERY)
    slow = nodes.runs[1]
    for _ in range(10):  # it gets a tenth of its time
        halted = list(processes_with(slow.mark))
        _signal(halted, signal.SIGSTOP)
        time.sleep(1.8)
        _signal(halted, signal.SIGCONT)
        time.sleep(0.2)
    end_well(nodes, 300)
    assert [run.attempts() for run in nodes.runs] == [1] * NODES


def _signal(pids: Sequence[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def test_the_job_continues_while_all_supervisors_are_restarted_one_after_another(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    job = ["--step-ms=20", "--save-on-term", f"--hold-at={2 * EVERY + 5}", f"--held-until={go_on}"]
    nodes = Cluster(supervise, tmp_path, *job, script=ALONE)
    for rank in range(NODES):
        nodes.reached(rank, EVERY + 1)
    before = max(last_attempt(run) for run in nodes.runs)
    for node, how in enumerate((signal.SIGTERM, signal.SIGKILL)):
        run = nodes.runs[node]
        os.kill(run.process.pid, how)
        run.exit_code(120)
        run.wait_for_nothing_left(20)
        nodes.runs[node] = nodes.start(node)
        look = lambda before=before: _together(nodes, before)  # noqa: E731
        before = wait_for(look, f"all to train together after node {node}", 240, alive=nodes.runs[node].alive)
    go_on.touch()
    end_well(nodes)


def _together(nodes: Cluster, beyond: int) -> int:
    """Return the attempt that all nodes are in, once it is newer than one, else 0."""
    numbers = {last_attempt(run) for run in nodes.runs}
    return max(numbers) if len(numbers) == 1 and min(numbers) > beyond else 0


def test_memory_that_runs_out_on_one_node_halves_the_batch_of_all(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = ["--batch-size=32", "--accum=1", "--fits=8", "--oom-rank=1", f"--rows={log}", "--steps=5"]
    nodes = Cluster(supervise, tmp_path, *job, options=KNOBS, script=(OUT_OF_MEMORY,), _SUPERVISE_TEST_INTERVALS="0.04")
    end_well(nodes, script=())
    rows = [line.split() for line in log.read_text().splitlines()]
    assert {(int(micro), int(accum), int(batch)) for _, _, micro, accum, batch, _, attempt in rows if attempt == "3"} == {(8, 4, 64)}
    assert {rank for rank, step, *_ in rows if step == "5"} == {"0", "1"}
    for run in nodes.runs:
        begun = [dict(row["overrides"]) for row in _logged(run, "attempt.begun")]
        assert begun == [{}, {"batch_size": "16", "grad_accum": "2"}, {"batch_size": "8", "grad_accum": "4"}]
    assert len(cards_of(nodes.runs)) == 1, cards_of(nodes.runs)
    assert "rank 1" in cards_of(nodes.runs).pop()


def _logged(run: Supervised, event: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [row for row in rows if row["event"] == event]


def test_a_newest_checkpoint_that_is_damaged_on_one_node_is_resumed_from_by_none(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    checkpoints = "{place}/node-{node}/ckpt"
    go_on = tmp_path / "go-on"
    job = ["--step-ms=20", f"--hold-at={2 * EVERY + 5}", f"--held-until={go_on}", "--all-save"]
    nodes = Cluster(supervise, tmp_path, *job, script=ALONE, checkpoints=checkpoints)
    for rank in range(NODES):
        nodes.reached(rank, 2 * EVERY + 4)
    newest = Path(checkpoints.format(place=tmp_path, node=1)) / f"step-{2 * EVERY:06d}.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    os.kill(next(iter(nodes.runs[0].rank_pids().values())), signal.SIGKILL)
    all_begin(nodes.runs, 2)
    go_on.touch()
    end_well(nodes)
    for node, run in enumerate(nodes.runs):
        (row,) = selections(run)
        assert row["chosen"]["path"] == f"{checkpoints.format(place=tmp_path, node=node)}/step-{EVERY:06d}.pt"
    assert len(cards_of(nodes.runs)) == 1, cards_of(nodes.runs)


def test_a_returning_node_without_the_newest_checkpoint_leaves_and_the_others_continue(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    own = "{place}/node-{node}/ckpt"
    job = ("--step-ms=20", "--steps=3000", "--all-save")
    # of the two that have it none is left out: one of them alone could not continue
    nodes = Cluster(supervise, tmp_path, *job, count=3, nnodes="2:3", script=ALONE, checkpoints=own, last_call_s=30)
    for rank in range(3):
        nodes.reached(rank, EVERY + 5)
    *others, lost = nodes.runs
    lost.process.kill()
    lost.wait_for_nothing_left(20)
    all_begin(others, 2)
    known = {path.name for path in (lost.place / "ckpt").glob("*.pt")}
    assert known
    nodes.reached(0, 10 * EVERY, of=others)
    for run in others:
        for name in known:
            (run.place / "ckpt" / name).unlink(missing_ok=True)
    nodes.runs[2] = nodes.start(2)
    assert [run.exit_code(300) for run in nodes.runs] == [0, 0, 65]
    why = " ".join(nodes.runs[2].ask("why").stdout.split())
    assert "this node does not have what the other nodes resume from" in why
    assert "put the checkpoints on storage that all nodes share, or copy the newest" in why
    assert_one_job(others)
    assert (tmp_path / "digest").read_bytes() == digest_of(3000, ALONE)
