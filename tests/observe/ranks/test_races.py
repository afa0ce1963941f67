"""A rank that died of reading what another rank was writing: told from a damaged file by the times of the load and the save."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.classify.engine import classify
from supervisor.core.model import Cause, Claim, Evidence, RankInfo
from supervisor.observe.ranks import races
from supervisor.report.wording import what_text

if TYPE_CHECKING:
    from pathlib import Path

FILE = "/data/last.pt"
RANKS = (RankInfo(4, 0, 100, 1), RankInfo(5, 1, 101, 1))  # of the second node
RAISED = Evidence("error_file", "exception", "RuntimeError: PytorchStreamReader failed finding central directory", 5, 20.5)
TRACE = Evidence("error_file", "traceback", 'Traceback\n  File "/home/me/train.py", line 7, in main\n    torch.load(p)', 5, 20.5)
ZIP = Evidence("error_file", "checkpoint_corrupt.torch_zip", RAISED.text, 5, 20.5, claim=Claim(Cause.CHECKPOINT_CORRUPT, 0.95))
LOAD = {"path": FILE, "began": 20.0, "t": 20.4, "complete": False, "via": "torch", "steps": 0}


def saved(began: float, ended: float | None, path: str = FILE, **more: Any) -> list[dict[str, Any]]:  # noqa: ANN401  fields of a row
    rows = [{"what": "began", "path": path, "t": began, "n": 1, "steps": 3, **more}]
    return rows if ended is None else [*rows, {"what": "ended", "path": path, "t": ended, "n": 1, "well": True}]


def evidence_of(
    place: Path, loads: list[dict[str, Any]], saves: list[dict[str, Any]], reported: tuple[Evidence, ...] = (RAISED,), writer: int = 0
) -> tuple[Evidence, ...]:
    """Return what the logs of rank 5 (loads) and of another one of the node (saves) show."""
    (place / "loads-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in loads))
    (place / f"saves-{writer}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in saves))
    return races.evidence(place, RANKS, reported)


@pytest.mark.parametrize(
    ("began", "ended"),
    [(19.0, None), (19.0, 21.0), (20.2, 20.3), (20.2, 25.0), (19.0, 20.1)],
    ids=["cut", "around", "within", "later", "tail"],
)
def test_a_save_that_overlaps_the_load_is_a_race(tmp_path: Path, began: float, ended: float | None) -> None:
    (fact,) = evidence_of(tmp_path, [LOAD], saved(began, ended))
    assert fact.text == f"rank 5 read what rank 4 was writing: {FILE}"
    assert fact.rank == 5
    assert dict(fact.fields) == {"race_writer": "4", "path": FILE}
    assert fact.t < RAISED.t


@pytest.mark.parametrize(
    ("loads", "saves"),
    [
        ([LOAD], saved(18.0, 19.9)),
        ([LOAD], saved(20.5, None)),
        ([LOAD], saved(19.0, None, path="/data/.last.pt.tmp")),
        ([LOAD, {**LOAD, "complete": True, "t": 20.45}], saved(19.0, None)),
        ([{**LOAD, "t": 12.0, "began": 11.0}], saved(10.0, None)),
        ([], saved(19.0, None)),
        ([LOAD], []),
    ],
    ids=["before", "after", "renamed", "tried again", "survived", "no load", "no save"],
)
def test_other_orders_of_saves_and_loads_are_no_race(tmp_path: Path, loads: list[dict[str, Any]], saves: list[dict[str, Any]]) -> None:
    assert evidence_of(tmp_path, loads, saves) == ()


def test_a_file_that_the_script_opened_is_whole_once_it_was_closed(tmp_path: Path) -> None:
    assert evidence_of(tmp_path, [LOAD], saved(18.0, 19.9, file=True))
    assert not evidence_of(tmp_path, [LOAD], saved(17.0, 18.5, file=True))


def test_a_ranks_own_write_or_a_rank_without_an_exception_is_no_race(tmp_path: Path) -> None:
    assert not evidence_of(tmp_path, [LOAD], saved(19.0, None), writer=1)
    (tmp_path / "saves-1.jsonl").unlink()
    assert not evidence_of(tmp_path, [LOAD], saved(19.0, None), reported=(Evidence("error_file", "exception", "KeyError: 'x'", 4, 20.5),))


@pytest.mark.parametrize("raised", [(RAISED, TRACE, ZIP), (RAISED, TRACE)], ids=["corrupt", "raised"])
def test_the_race_is_the_verdict_with_the_line_of_code(tmp_path: Path, raised: tuple[Evidence, ...]) -> None:
    ends = (Evidence("exit", "exit_code", "1", 5, 20.7), Evidence("heartbeat", "phase", "load", 5))
    verdict = classify((*raised, *ends, *evidence_of(tmp_path, [LOAD], saved(19.0, None))))
    assert (verdict.cause, verdict.rank, verdict.transient) == (Cause.CHECKPOINT_CORRUPT, 5, True)
    assert verdict.summary == f"rank 5 read what rank 4 was writing: {FILE}"
    facts = dict(verdict.facts)
    assert (facts["race_writer"], facts["file"], facts["line"]) == ("4", "/home/me/train.py", "7")
    assert what_text(verdict) == "A rank read a checkpoint while another rank was writing it"
