"""What a journal of months costs: bytes on the disk, and the time until `status` and `report` have read it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.job import identity
from supervisor.journal.records import scan
from supervisor.view.job_view import fold
from supervisor.view.reading import read_end, read_view
from tests.support.long_journal import write_months

if TYPE_CHECKING:
    from collections.abc import Callable

DAYS, MOST_BYTES = 90, 60_000_000


def path_below(root: Path) -> Path:
    return root / "months" / "nodes" / identity.node_name() / "journal.jsonl"


def cpu_s(call: Callable[[], object]) -> float:
    """Return the seconds of CPU that a call takes: a busy machine makes it no slower."""
    began = time.process_time()
    call()
    return time.process_time() - began


def test_two_days_cost_their_share_and_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_below(tmp_path)
    size = write_months(path, identity.node_name(), monkeypatch, 2)
    # the samples of the pace are all in the first days
    assert size < 1.15 * 2 / DAYS * MOST_BYTES
    view = read_view(path)
    assert view == fold(scan(path))
    assert (len(view.incidents), view.counters.verified) == (6, 47)
    assert cpu_s(lambda: read_end(path)) < 0.1


def test_a_report_of_progress_costs_270_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    write_months(path, "node", monkeypatch, 0.2)
    quiet = [line for line in path.read_bytes().splitlines() if b'"ProgressObserved"' in line and b'"state"' not in line]
    assert len(quiet) > 200
    assert max(map(len, quiet)) <= 270


def command_cpu_s(place: Path, name: str, *more: str) -> tuple[float, str]:
    """Return the seconds of CPU of a command, with the start of Python, and what it printed."""
    command = [str(Path(sys.executable).with_name("supervise")), name, "--job", "months", "--state-dir", str(place), *more]
    code = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime); print(done.stdout)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)  # noqa: S603
    used, _, printed = done.stdout.partition("\n")
    return float(used), printed


@pytest.mark.slow
def test_ninety_days_are_60_mb_status_takes_0_3_s_and_report_2_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, small = path_below(tmp_path / "big"), tmp_path / "small"
    size = write_months(path, identity.node_name(), monkeypatch, DAYS)
    write_months(path_below(small), identity.node_name(), monkeypatch, 0.01)
    start_s, _ = min(command_cpu_s(small, "status", "--json") for _ in range(5))
    status_s, status = min(command_cpu_s(tmp_path / "big", "status", "--json") for _ in range(5))
    report_s, report = min(command_cpu_s(tmp_path / "big", "report", "--json") for _ in range(3))
    sys.stderr.write(f"{DAYS} days: {size / 1e6:.1f} MB, status {status_s:.2f} s, report {report_s:.2f} s of CPU\n")
    assert size <= MOST_BYTES
    assert status_s <= max(0.3, start_s + 0.05), "on a busy machine the start of Python alone takes longer"
    assert report_s <= 2.0
    view = fold(scan(path))
    assert read_view(path) == view
    assert json.loads(status)["incidents"] == len(view.incidents) == 3 * DAYS - 1
    assert json.loads(report)["runs"][0]["attempts"] == 3 * DAYS
