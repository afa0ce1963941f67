"""The list of 200 jobs with journals of a week, and the page of a job of 90 days: what a look costs, and how soon it is there."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.job import identity
from tests.cli.ui.conftest import moment_later, spent_s
from tests.support.long_journal import write_months
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.ui.conftest import ServedPage

WATCHED_S = 20.0
LOG = b"".join(
    b"step %d/5000000 loss %.4f lr 3.0e-4 grad_norm 0.7 tokens/s 31000\n" % (number, 9 / (number + 1)) for number in range(20_000)
)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
def test_two_hundred_jobs_of_a_week_and_one_of_ninety_days(
    serve: Callable[..., ServedPage], root: Path, sleeper: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, supervisor = identity.node_name(), (pid := sleeper().pid, identity.start_ticks(pid))

    def journal_of(job: str) -> Path:
        return root / job / "nodes" / node / "journal.jsonl"

    write_months(journal_of("months"), node, monkeypatch, 90, supervisor=supervisor)
    write_months(journal_of("runs-0"), node, monkeypatch, 7, supervisor=supervisor)
    write_months(journal_of("done-0"), node, monkeypatch, 7)
    for kind, count in (("runs", 100), ("done", 99)):
        for number in range(1, count):
            journal_of(f"{kind}-{number}").parent.mkdir(parents=True)
            os.link(journal_of(f"{kind}-0"), journal_of(f"{kind}-{number}"))
    for number in range(100):
        output = journal_of(f"runs-{number}").parent / "attempts" / "0022"
        output.mkdir(parents=True)
        (output / "rank-0.out").write_bytes(LOG)
    page = serve(root)
    wait_for(lambda: "not read yet" not in page.ask().text, "all journals to be read", 300)
    month = f"/jobs/months/{node}"
    for path in ("/", month):
        first, before = page.ask(path), spent_s(page.process.pid)
        while (answer := page.ask(path)).headers["x-as-of"] == first.headers["x-as-of"]:
            moment_later(1)  # what took long to make stays ten times as long
        took_s = spent_s(page.process.pid) - before
        print(f"{path}: {took_s:.2f} s of a CPU, {len(answer.text) / 1024:.0f} KiB")  # noqa: T201
        assert took_s < 1.0, path
    assert re.findall("<h1>(.*)</h1>", page.ask().text) == ["200 jobs, 101 run"]
    before, began = spent_s(page.process.pid), time.monotonic()
    while time.monotonic() < began + WATCHED_S:  # as two browsers do
        for path in ("/", month):
            page.ask(path)
        moment_later(2)
    share = (spent_s(page.process.pid) - before) / (time.monotonic() - began)
    print(f"share of a CPU: {share:.3f}")  # noqa: T201
    assert share < 0.25, "a tenth is aimed at, and on a busy machine making a page takes longer than its CPU time"
