"""The event log of a real run: it has every event from the start on, in its order, however the run ends."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised

pytestmark = pytest.mark.process


def logged(run: Supervised) -> list[dict[str, Any]]:
    return [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]


@pytest.fixture
def start(supervise: Callable[..., Supervised], tmp_path: Path) -> Callable[..., Supervised]:
    """Start `supervise` on a rank that writes a file."""
    (tmp_path / "rank.py").write_text("open('started', 'w').close()\n")

    def start(*options: str, **environment: str) -> Supervised:
        ours = [sys.executable, "-m", "supervisor", "--job", "e2e", "--state-dir", str(tmp_path / "state"), *options]
        return supervise(*ours, "--", "python", "rank.py", around=Surroundings(without_us=True), **environment)

    return start


def test_events_are_logged_in_their_order(start: Callable[..., Supervised]) -> None:
    run = start()
    assert run.exit_code() == 0
    names = [line["event"] for line in logged(run)]
    assert names[0] == "run.started"
    assert names.index("attempt.begun") < names.index("attempt.started") < names.index("attempt.ended") < names.index("run.finished")
    times = [line["timestamp"] for line in logged(run)]
    assert times == sorted(times)


def test_what_was_logged_is_written_when_the_run_ends_by_an_error_before_its_ranks(
    start: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "no-directory").write_text("")
    options = "--checkpoints=saves/*.pt", f"--mirror=file://{tmp_path / 'no-directory'}"
    run = start(*options, SUPERVISE_TERMINAL_VERBOSITY="verbose")
    assert run.exit_code() not in {0, None}
    assert not (tmp_path / "started").exists()
    assert [line["event"] for line in logged(run)][:1] == ["run.started"], run.stderr
    assert '"event": "run.started"' in run.stderr
