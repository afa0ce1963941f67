"""Real ranks that wait for another one by a file, a queue, a socket, a lock or torch's store: the one that stands is late, not they."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import HangKind
from supervisor.observe.hangs import diagnosis
from supervisor.observe.hangs.rank_progress import compare
from tests.observe.hangs.conftest import ROOT
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.core.model import Hang
    from tests.observe.hangs.conftest import Ranks

pytestmark = pytest.mark.process

SCRIPT = ROOT / "tests" / "jobs" / "waits.py"
#: What rank 0 is seen to wait for. The first of each kind are tried at every test, the others at the slow ones.
WAITS = {
    "file": r"in file \(waits\.py:\d+\), waiting for the file \S+/part, which is not there",
    "connection": r"in connection \(waits\.py:\d+\), waiting for 127\.0\.0\.1:\d+ \(rank 1\)",
    "lock": r"blocked in flock of \S+/lock \(\S+\), waiting for process \d+ \(python\S*\), which holds the lock \(rank 1\)",
    "pattern": r"in pattern \(waits\.py:\d+\), waiting for the file \S+/part-\*, which is not there",
    "content": r"in content \(waits\.py:\d+\), waiting for the file \S+/ready",
    "connection_in_turns": r"in connection_in_turns \(waits\.py:\d+\), waiting for 127\.0\.0\.1:\d+ \(rank 1\)",
    "http": r"in http \(waits\.py:\d+\)",
    "thread_queue": r"in thread_queue \(waits\.py:\d+\)",
    "remote_queue": r"waiting for 127\.0\.0\.1:\d+ \(rank 1\)",
    "lock_in_turns": r"in lock_in_turns \(waits\.py:\d+\), waiting for the file \S+/lock \(.*locked by process \d+ .*\) \(rank 1\)",
    "store_wait": r"in store_wait \(waits\.py:\d+\), waiting for a key of torch's store at 127\.0\.0\.1:\d+",
    "store_get": r"in store_get \(waits\.py:\d+\), waiting for a key of torch's store at 127\.0\.0\.1:\d+",
}
FAST = ("file", "connection", "lock")


def seen(ranks: Ranks, how: str, place: Path) -> Hang:
    """Return what two looks show of ranks that wait so: the first between which nothing moved, and which show the wait."""
    ranks.start(str(SCRIPT), how, str(place), count=2)
    wait_for((place / "begun").exists, "the wait", 30.0)
    first = ranks.look()

    def hang() -> Hang | None:
        nonlocal first
        time.sleep(1.0)  # over which the looks count CPU time and wake-ups
        before, first = first, ranks.look()
        if compare(before, first).moved:
            return None  # it was still importing
        finding = diagnosis.hang(before, first, still_s=90, limit_s=60, calibrated=True)
        # on a busy machine the wake-ups of one second may cost as much as work does, or a rank answers too late: the next second shows it
        is_shown = how not in WAITS or (finding.kind is HangKind.LATE and re.search(WAITS[how], finding.text))
        return finding if is_shown and "did not answer" not in finding.text else None

    return wait_for(hang, "two looks that show the wait", 30.0)


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how in FAST else pytest.mark.slow) for how in WAITS])
def test_the_standing_rank_is_late_and_not_the_one_that_waits_for_it(ranks: Ranks, tmp_path: Path, how: str) -> None:
    hang = seen(ranks, how, tmp_path)
    assert (hang.kind, hang.ranks, hang.busy) == (HangKind.LATE, (1,), False), hang
    assert re.search(r"; rank 1 is in stand \(waits\.py:\d+\)$", hang.text), hang


@pytest.mark.slow
@pytest.mark.parametrize(("how", "is_busy"), [("computes", True), ("own_queue", False)])
def test_a_rank_that_computes_or_waits_for_its_own_child_waits_for_no_other(
    ranks: Ranks,
    tmp_path: Path,
    how: str,
    is_busy: bool,  # noqa: FBT001  a table
) -> None:
    hang = seen(ranks, how, tmp_path)
    assert (hang.kind, hang.ranks, hang.busy) == (HangKind.STILL, (), is_busy), hang
