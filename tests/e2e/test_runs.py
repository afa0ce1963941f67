"""One job, several runs: what a start says of the run before it, and that what was written of it can still be read."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process


def look_of(why: str) -> list[str]:
    """Return the words of the command that `why` names for the output."""
    (line,) = (line.split() for line in why.splitlines() if line.startswith("  look "))
    return line[2:]


@pytest.mark.slow
def test_the_output_of_a_failed_run_is_shown_after_a_good_one(supervise: Callable[..., Supervised]) -> None:
    script = "if [ -e flag ]; then echo good; else echo bad; exit 3; fi"
    first = supervise("bash", "-c", script, options=("--set", "restart.max_attempts=1"))
    assert first.exit_code() == 1
    (first.place / "flag").touch()
    again = supervise("bash", "-c", script, options=("--set", "restart.max_attempts=1"))
    assert again.exit_code() == 0
    assert "command changed" not in again.stderr
    why = again.ask("why").stdout
    assert "given up, exit code 1 --" in why
    command, *options = look_of(why)
    assert again.ask(command, *options).stdout == "bad\n"
    assert again.ask("logs").stdout == "good\n"


@pytest.mark.slow
def test_a_changed_command_opens_a_new_run_says_so_and_hides_nothing(supervise: Callable[..., Supervised]) -> None:
    first = supervise("bash", "-c", "echo began; sleep 300")
    first.wait_for_line("^began$")
    first.rank_pids()
    first.signal(signal.SIGKILL)
    first.exit_code()
    first.wait_for_nothing_left()
    assert "incident 1 of job e2e: supervise died" in first.ask("why").stdout
    again = supervise("true")
    assert again.exit_code() == 0
    assert again.stderr.count("a new run begins, because the command changed") == 1
    assert "left without an end record" in again.stderr
    for number in ((), ("1",)):
        why = again.ask("why", *number).stdout
        assert "incident 1 of job e2e: supervise died" in why
        command, *options = look_of(why)
        assert again.ask(command, *options).stdout == "began\n"
