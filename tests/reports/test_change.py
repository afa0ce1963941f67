"""What we changed ourselves is suspected before the user's program; ranks that race for a path; a kill that makes a peer's GPU fault."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.reports.conftest import DECLARED, OFTEN, SCRIPTS, alone, torchrun
from tests.support.ports import answers, free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.mark.slow  # tests/scenarios/stories/own_changes.toml and tests/observe/ranks/test_late_paths.py show the parts
def test_a_path_that_another_rank_made_a_moment_later_gets_one_more_try(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("torchtitan_909.py", "listed", "--steps", "40"), options=DECLARED, **OFTEN)
    assert run.exit_code(120) == 0
    assert run.attempts() == 2
    assert "outputs/test is there by now" in run.ask("why").stdout
    assert "correct the program" not in run.stderr


class TwoNodes:
    """The training with a bound checkpoint on two nodes of loopback, of which one may continue alone."""

    def __init__(self, supervise: Callable[..., Supervised], place: Path) -> None:
        self._supervise, self.place, self._port = supervise, place, free_port()
        self.runs = [self.start(0)]
        wait_for(lambda: answers(self._port), "the rendezvous", 60, alive=self.runs[0].alive)
        self.runs.append(self.start(1))

    def start(self, node: int) -> Supervised:
        """Start a node, or start it again."""
        command = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-id=bound", "--nnodes=1:2"]
        command += [
            "--nproc-per-node=1",
            "--rdzv-conf=last_call_timeout=60,join_timeout=40",
            str(SCRIPTS / "deepspeed_5405.py"),
            str(self.place),
        ]
        command += ["--steps=5000", "--save-every=10", "--pace-s=0.02"]
        options = ("--checkpoints", f"{self.place}/ckpt/step-*.pt", "--resume-args", "--resume {resume}")
        return self._supervise(*command, options=options, place=self.place / f"node-{node}", **OFTEN)

    def saved(self) -> int:
        """Return how many checkpoints there are."""
        return len(list((self.place / "ckpt").glob("step-*.pt")))


@pytest.mark.slow
def test_a_checkpoint_bound_to_its_number_of_ranks_waits_for_the_lost_node_and_no_checkpoint_is_rejected(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    nodes = TwoNodes(supervise, tmp_path)
    first, lost = nodes.runs
    wait_for(lambda: nodes.saved() >= 2, "two checkpoints", 90, alive=first.alive)
    lost.process.kill()
    first.wait_for_line(r"waits for 1 more node\(s\), for at most 40 s; then the run stops \(75\)", 120)
    why = first.ask("why").stdout
    sentence = "the program saved with 2 ranks and loads with 2 only; 1 is left here; the next attempt waits for 2 nodes"
    assert sentence in " ".join(why.split())
    assert "correct the program" not in why
    held = nodes.saved()
    again = nodes.start(1)
    wait_for(lambda: nodes.saved() > held, "both to train on", 120, alive=lambda: first.alive() and again.alive())
    assert "rejected" not in first.stderr
    for run in (again, first):
        run.signal(signal.SIGTERM)
    assert nodes.saved() >= held


def rows(run: Supervised, *words: str) -> dict[str, Any]:
    """Return what a command prints as JSON."""
    document: dict[str, Any] = json.loads(run.ask(*words, "--json").stdout)
    return document


@pytest.mark.slow
def test_a_gpu_that_faults_as_its_peer_was_killed_is_not_put_out_of_use(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("ace_1398.py", "--steps", "40"), options=DECLARED, **OFTEN)
    assert run.exit_code(120) == 0
    assert run.attempts() == 2
    verdict = rows(run, "why", "1")["incidents"][0]["failures"][0]["decision"]["verdict"]
    assert (verdict["cause"], verdict["rank"]) == ("killed_unknown", 1)
    assert "Quarantine" not in run.journal()


@pytest.mark.slow
def test_a_micro_batch_that_does_not_start_is_taken_back_and_not_tried_again(supervise: Callable[..., Supervised]) -> None:
    script = alone("deepspeed_batch.py", "--steps", "60", "--micro-batch=8", "--accum=1")
    run = supervise(*script, options=(*DECLARED, "--knob", "batch_size=--micro-batch", "--knob", "grad_accum=--accum"), **OFTEN)
    assert run.exit_code(150) == 0
    assert run.attempts() == 3
    assert "with --micro-batch 4 -> 8, --accum 2 -> 1" in run.stderr
    assert "attempt 2 ran with --micro-batch 4, --accum 2, which supervise set, and failed before its first step" in run.stderr
    assert "correct the program" not in run.stderr
    assert "trained with" not in run.stderr, "the batch is the command's again"
