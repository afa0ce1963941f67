"""A directory of one incident: the evidence from many streams, and the rank that failed first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from supervisor.classify.engine import classify
from supervisor.classify.logs.scanner import PlainScanner
from supervisor.cli.classify import incident_logs
from supervisor.cli.classify.incident_logs import Log, Stream
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence, FailureVerdict

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CATALOGUE, _ = signatures.read()
SCANNER = PlainScanner(CATALOGUE.anchors)
BUG = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 12, in main\n    run()\nValueError: num_samples should be positive\n'
)
DIED = 1_800_000_000


def incident(directory: Path, *logs: tuple[str, str, int]) -> Log:
    """One of streams: name, text, and how many seconds after the first its file was last changed."""
    for name, text, after_s in logs:
        (directory / name).write_text(text)
        os.utime(directory / name, (DIED + after_s,) * 2)
    ranks = (int(name.split("-")[1].split(".")[0]) if name.startswith("rank-") else None for name, _, _ in logs)
    return Log(str(directory), tuple(Stream((directory / name,), rank) for (name, _, _), rank in zip(logs, ranks, strict=True)))


def evidence(log: Log) -> tuple[Evidence, ...]:
    return incident_logs.read(log, CATALOGUE, SCANNER)[0]


def verdict(log: Log) -> FailureVerdict:
    return classify(evidence(log))


def test_of_many_streams_a_bounded_number_of_findings_is_kept_and_none_is_pushed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_logs, "MOST_PLACES", 100)
    many = [(f"rank-{rank}.err", BUG.replace("num_samples", f"num_samples {rank}") * 20, 60 - rank) for rank in range(40)]
    xid = "[12.000001] NVRM: Xid (PCI:0000:9c:00): 79, GPU has fallen off the bus.\n"
    log = incident(tmp_path, *many[:20], ("agent.err", xid, 0), *many[20:])
    facts = evidence(log)
    assert len(facts) <= 3 * 100
    assert classify(facts).cause is Cause.GPU_LOST
    raised = {(fact.rank, fact.line) for fact in facts if fact.name == "exception"}
    assert raised == {(fact.rank, fact.line) for fact in facts if fact.name == "traceback"}, "an exception and its frames stay together"


def test_the_rank_that_wrote_last_failed_last(tmp_path: Path) -> None:
    logs = [(f"rank-{rank}.err", BUG.replace("num_samples", f"sample {rank}"), after_s) for rank, after_s in enumerate((30, 10, 20, 40))]
    assert verdict(incident(tmp_path, *logs)).rank == 1


def test_a_copy_whose_files_were_written_by_name_does_not_tell_who_failed_first(tmp_path: Path) -> None:
    logs = [(f"rank-{rank}.err", BUG.replace("num_samples", f"sample {rank}"), rank) for rank in range(4)]
    assert {fact.t for fact in evidence(incident(tmp_path, *logs))} == {0.0}
    assert all(fact.t > 0 for fact in evidence(incident(tmp_path, *logs[:3])) if fact.name == "exception")
