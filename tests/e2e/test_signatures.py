"""Signatures of the user's own, in a run: what they hold up, which is nothing."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

ROW = """
[[signature]]
id = "data_error.{name}"
cause = "data_error"
where = ["line"]
anchors = ["xxxx"]
pattern = '{pattern}'
weight = 0.9
"""
#: It prints a line in which such patterns backtrack without end, again and again, and is healthy.
HEALTHY = "import time\nwhile True:\n    print('x' * 12_000, flush=True)\n    time.sleep(0.01)\n"
ENDLESS = [ROW.format(name=f"endless{number}", pattern=f"(?:(x+x+)+y{number})") for number in range(30)]

pytestmark = pytest.mark.process


@pytest.mark.bench
def test_patterns_without_end_are_left_out_with_a_word_and_term_ends_the_job(tmp_path: Path, supervise: Callable[..., Supervised]) -> None:
    (tmp_path / "mine.toml").write_text("".join(ENDLESS))
    run = supervise("python", "-c", HEALTHY, SUPERVISE_CLASSIFY_SIGNATURES="mine.toml")
    run.wait_for_line(r"warning: signature data_error.endless29 of \S+mine.toml is not in use: its search of one line may take too long")
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    run.exit_code(deadline_s=20)
    assert within(10, since=began)
    assert run.stderr.count("data_error.endless0 of") == 1
