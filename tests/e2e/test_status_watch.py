"""`supervise status --watch` on a terminal, beside a real training of two gloo ranks, from its start to its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.screen import watching
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

TRAIN = Path(__file__).parents[2] / "examples" / "train_ddp.py"
pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_training_is_watched_from_its_start_to_its_end(supervise: Callable[..., Supervised]) -> None:
    command = ["torchrun", "--standalone", "--nproc-per-node=2", TRAIN, "--steps=100", "--save-every=40", "--step-ms=150"]
    run = supervise(*command, options=("--checkpoints", "ckpt/*.pt"))
    wait_for(lambda: run.status().get("run"), "the run's record", 60, alive=run.alive)
    with watching(run.state, rows=45, columns=100) as screen:
        screen.read_until(lambda _: bool(screen.pages) and ": starting " in screen.pages[0], 60)
        screen.read_until(lambda _: any(re.search(r"\d %, step \d+ of 100, .* steps/s, about .* left", page) for page in screen.pages), 120)
        screen.read_until(lambda _: any(re.search(r"loss +[▁-█]+ (falls|rises) from", page) for page in screen.pages), 120)
        screen.read_until(lambda _: any(" left" in page and "loss " in page for page in screen.pages[:-1]), 60)
        page = next(page for page in reversed(screen.pages[:-1]) if " left" in page)  # the last one may be unfinished
        assert ": training " in page
        assert re.search(r"total from its log \(step \d+/100\)|total from --steps=100", " ".join(page.split()))
        assert re.findall(r"(?m)^rank (\d) +\d+ +\d+ .*MiB$", page) == ["0", "1"]
        assert screen.process.wait(120) == 0, "it ends with the job"
        screen.read_until(lambda _: ": done " in screen.pages[-1] and "look" in screen.pages[-1].replace("files", "look"), 10)
        assert "100 %, step 100 of 100" in screen.pages[-1]
    assert run.exit_code(30) == 0
    states = [match[1] for page in screen.pages if (match := re.match(r"-- job e2e on \S+: (\w+) ", page))]
    assert [state for at, state in enumerate(states) if at == 0 or state != states[at - 1]] == ["starting", "training", "done"]
