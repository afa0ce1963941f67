"""One hang over two nodes: each node knows who did not come, one of them says so, and all end for it together. And what is none."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.pathologies import hanging_jobs
from tests.pathologies.hanging_jobs import AT, RESUMING, SCRIPT, line_of, taken
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(240)]

#: The limit, and half of it between two looks: the hang is to be named within limit + 2 x half, and what two looks and their way take.
TRAIN_S, PHASE_S = 4.0, 30.0
NAMED_S = TRAIN_S + 2 * TRAIN_S / 2
SLACK_S = 8.0


def two_nodes(start: Callable[..., Supervised], place: Path, pathology: str, *words: str, on_hang: str) -> list[Supervised]:
    """Start a job of two nodes with one rank each; the first serves the rendezvous."""
    port = free_port()
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=hang", "--rdzv-conf=last_call_timeout=1"]
    files = [f"--ckpt-dir={place}/ckpt", "--progress=progress", "--pids=pids", f"--digest={place}/digest"]
    job = [f"--pathology={pathology}", f"--at={AT}", "--steps=160", "--epoch-steps=20", *files, *words]
    command = ["torchrun", *rendezvous, "--nnodes=2", "--nproc-per-node=1", str(SCRIPT), *job]
    options = ["--checkpoints", f"{place}/ckpt/*.pt", *RESUMING[2:], "--on-hang", on_hang]
    limits = {"SUPERVISE_HANG_TRAIN_S": f"{TRAIN_S:g}", "SUPERVISE_HANG_PHASE_S": f"{PHASE_S:g}", "_SUPERVISE_TEST_INTERVALS": "0.04"}
    runs = [start(*command, options=options, place=place / "node-0", **limits)]
    wait_for(lambda: answers(port), "node 0 to serve the rendezvous", 60, alive=runs[0].alive)
    runs.append(start(*command, options=options, place=place / "node-1", **limits))
    return runs


def confirmed(run: Supervised) -> dict[str, Any]:
    """Await a confirmed hang on a node."""
    event: dict[str, Any] = wait_for(lambda: taken(run, "HangConfirmed"), "a confirmed hang", 90, alive=run.alive)[0]
    return event


def test_a_rank_that_does_not_come_is_named_with_its_node_on_both_and_ends_both_for_one_reason(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    runs = two_nodes(supervise, tmp_path, "pipe", on_hang="restart")
    events = [confirmed(run) for run in runs]
    took_s = max(hanging_jobs.last_progress_s(run) for run in runs)
    hangs = [event["hang"] for event in events]
    assert hangs[0] == hangs[1]
    assert hangs[0]["text"].startswith("rank 0 waits in all_reduce (seq ")
    assert "; rank 1 on node " in hangs[0]["text"]
    assert f"is in pipe (hangs.py:{line_of('os.read(descriptor, 1)')})" in hangs[0]["text"]
    assert (hangs[0]["kind"], hangs[0]["ranks"], hangs[0]["node"].partition(":")[2]) == ("late", [1], "1")
    assert TRAIN_S < hangs[0]["still_s"] <= NAMED_S + SLACK_S
    assert took_s <= NAMED_S + 2 * SLACK_S
    assert sorted(event.get("acting", "") == "" for event in events) == [False, True], "one acts for both"
    assert [run.exit_code(120) for run in runs] == [0, 0]
    decisions = [[event["decision"] for event in taken(run, "DecisionMade") if event.get("decision")] for run in runs]
    assert decisions[0] == decisions[1]
    (decision,) = decisions[0]
    assert (decision["verdict"]["cause"], decision["verdict"]["rank"]) == ("hang_no_error", 1)
    assert decision["verdict"]["node"] == hangs[0]["node"]
    cards = [run.ask("why").stdout for run in runs]
    assert all(f"rank 1 on {hangs[0]['node']}" in card for card in cards)
    looks = [path.read_text() for run in runs for path in run.state.glob("*/nodes/*/incidents/*/hang.txt")]
    assert any("-- ranks of node" in look and "hangs.py" in look for look in looks)


def test_with_warn_one_node_alerts_and_the_status_of_both_shows_the_sentence(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    runs = two_nodes(supervise, tmp_path, "one_sided", on_hang="warn")
    text = confirmed(runs[0])["hang"]["text"]
    assert confirmed(runs[1])["hang"]["text"] == text
    assert text.endswith(": they wait for ever")
    for run in runs:
        wait_for(lambda run=run: text in " ".join(run.ask("status").stdout.split()), "the hang in the status", 30, alive=run.alive)  # type: ignore[misc]
    alerts = [
        row
        for run in runs
        for file in run.state.glob("*/nodes/*/supervise.log")
        for row in map(json.loads, file.read_text().splitlines())
        if row["event"] == "alert.raised"
    ]
    assert [row["kind"] for row in alerts] == ["hang"]
    for run in runs:
        run.process.terminate()
    for run in runs:
        run.exit_code(60)


def test_a_node_that_saves_while_the_other_one_waits_is_no_hang(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    began = time.monotonic()
    runs = two_nodes(supervise, tmp_path, "slow_save", "--long-s=12", "--at=140", on_hang="restart")
    assert [run.exit_code(150) for run in runs] == [0, 0]
    assert time.monotonic() - began > 12
    assert [run.attempts() for run in runs] == [1, 1]
    assert not [event for run in runs for event in taken(run, "HangConfirmed")]
    assert any(taken(run, "HangSuspected") for run in runs), "it was looked at"


def test_a_load_over_a_slow_disk_is_named_as_slow_and_ends_nothing(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    """Fewer bytes than a sign of life, for eleven times the limit."""
    runs = two_nodes(supervise, tmp_path, "slow_load", "--long-s=45", on_hang="restart")
    hangs = [confirmed(run)["hang"] for run in runs]
    assert hangs[0] == hangs[1]
    assert (hangs[0]["kind"], hangs[0]["ranks"]) == ("late", [1])
    assert "is in slow_load (hangs.py:" in hangs[0]["text"]
    assert "iB/s of " in hangs[0]["text"]
    assert [run.exit_code(150) for run in runs] == [0, 0]
    assert [run.attempts() for run in runs] == [1, 1]
    assert all(event["hang"]["slow"] for run in runs for event in taken(run, "HangConfirmed"))
