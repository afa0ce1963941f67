"""Where the ranks' output goes, in each of the cases that torchrun's options make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Go

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process

PRINT = "* print=hello;* exit=0"


def finish(agent: Any) -> None:  # noqa: ANN401  an Agent, of conftest.py
    agent.send(Go(1))
    agent.expect("stopped", 1, outcome="succeeded")
    assert agent.wait_exit() == 0


def test_merged_streams_and_output_hidden_by_a_filter_are_captured(start: Callable[..., Any]) -> None:
    agent = start("--standalone", "--nproc-per-node=2", "--local-ranks-filter=1", options=("--streams", "one"), JOB=PRINT)
    finish(agent)
    agent.wrote(1, 0, "both", b"hello\nhello\n")
    agent.wrote(1, 1, "both", b"hello\nhello\n")
    assert agent.streams(2) == {(0, "both", False, 1, False), (1, "both", True, 1, False)}


@pytest.mark.slow
def test_redirected_streams_stay_torchs_and_their_tails_are_reported_on_failure(start: Callable[..., Any]) -> None:
    agent = start("--standalone", "--nproc-per-node=2", "--redirects=0:1", "--log-dir=logs", JOB="0 print=text;0 sleep;1 wait=0;1 exit=3")
    agent.send(Go(1))
    stopped = agent.expect("stopped", 1)
    assert stopped["log_tails"] == [{"rank": 0, "name": "out", "text": "text\n"}]
    agent.wrote(1, 0, "err", b"text\n")
    assert agent.streams(3) == {(0, "err", True, 2, False), (1, "out", True, 1, False), (1, "err", True, 2, False)}
    agent.stop(1, exit_code=3)
    assert agent.wait_exit() == 3


@pytest.mark.slow
def test_on_a_terminal_rank_0_of_one_node_has_one_and_the_others_are_line_buffered(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start(options=("--streams", "tty", "--window", "33x99"), JOB=PRINT)
    finish(agent)
    agent.wrote(1, 0, "both", b"hello\nhello\n")  # no carriage returns: the real terminal adds them
    assert agent.streams(2) == {(0, "both", True, 1, True), (1, "both", True, 1, False)}
    first, second = (json.loads((tmp_path / f"facts-1-{r}").read_text()) for r in (0, 1))
    assert (first["tty"], first["SUPERVISE_JOB_LINEBUF"]) == (True, None)
    assert (second["tty"], second["SUPERVISE_JOB_LINEBUF"]) == (False, "1")
