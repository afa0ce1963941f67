"""One word for where a job stands."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core.model import Hang, HangKind, Phase, Progress
from supervisor.core.values import replace
from supervisor.journal.records import RunBegan, RunEnded
from supervisor.view.incidents import RecordedFailure, RecordedIncident
from supervisor.view.job_view import JobView
from supervisor.view.status import StateWord, state_of
from tests.support.pages import page_text

HANG = (1.0, Hang(HangKind.LATE, "rank 1 does not come"))
GIVEN_UP = RecordedIncident(1, "run-1", 1.0, 1, "the disk is full", Progress(), [RecordedFailure(1)], outcome="given_up")
RUNS = {"run": RunBegan("run-1"), "stage": "running", "attempt": 1}


@pytest.mark.parametrize(
    ("fields", "alive", "trains", "word"),
    [
        ({}, False, False, StateWord.NO_RUN),
        ({**RUNS, "stage": "selecting"}, True, False, StateWord.STARTING),
        ({**RUNS, "stage": "starting"}, True, False, StateWord.STARTING),
        ({**RUNS, "progress": Progress(phase=Phase.IMPORT)}, True, False, StateWord.STARTING),
        ({**RUNS, "progress": Progress(phase=Phase.DATA)}, True, False, StateWord.STARTING),
        (RUNS, True, False, StateWord.RUNNING),
        (RUNS, True, True, StateWord.TRAINING),
        (RUNS, None, True, StateWord.TRAINING),
        ({**RUNS, "hang": HANG}, True, True, StateWord.HUNG),
        ({**RUNS, "stage": "teardown"}, True, True, StateWord.RESTARTING),
        ({**RUNS, "attempt": 2, "stage": "waiting"}, True, False, StateWord.RESTARTING),
        ({**RUNS, "attempt": 2, "progress": Progress(phase=Phase.LOAD)}, True, False, StateWord.RESTARTING),
        ({**RUNS, "attempt": 2}, True, True, StateWord.TRAINING),
        ({**RUNS, "stage": "selecting", "missing": 2}, True, False, StateWord.WAITING),
        ({**RUNS, "stage": "stopping", "hang": HANG}, True, True, StateWord.STOPPING),
        ({**RUNS, "hang": HANG}, False, True, StateWord.DIED),
        ({**RUNS, "stage": "ended", "end": RunEnded(0)}, False, False, StateWord.DONE),
        ({**RUNS, "stage": "ended", "end": RunEnded(75)}, False, False, StateWord.STOPPED),
        ({**RUNS, "stage": "ended", "end": RunEnded(130)}, False, False, StateWord.STOPPED),
        ({**RUNS, "stage": "ended", "end": RunEnded(143)}, False, False, StateWord.STOPPED),
        ({**RUNS, "stage": "ended", "end": RunEnded(75), "incidents": [GIVEN_UP]}, False, False, StateWord.FAILED),
        (
            {**RUNS, "stage": "ended", "end": RunEnded(75), "incidents": [replace(GIVEN_UP, run_id="run-0")]},
            False,
            False,
            StateWord.STOPPED,
        ),
        (
            {**RUNS, "stage": "ended", "end": RunEnded(75), "incidents": [replace(GIVEN_UP, outcome="stopped")]},
            False,
            False,
            StateWord.STOPPED,
        ),
        ({**RUNS, "stage": "ended", "end": RunEnded(65)}, False, False, StateWord.FAILED),
        ({**RUNS, "stage": "ended", "end": RunEnded(1)}, False, False, StateWord.FAILED),
    ],
)
def test_a_job_stands_in_one_state(fields: dict[str, Any], alive: bool | None, trains: bool, word: StateWord) -> None:  # noqa: FBT001
    assert state_of(JobView(**fields), alive=alive, trains=trains) is word


def test_every_state_is_tested_and_described_in_the_guide() -> None:
    tried = {row[3] for row in test_a_job_stands_in_one_state.pytestmark[0].args[1]}  # type: ignore[attr-defined]
    assert tried == set(StateWord)
    table = page_text("pages.md").partition("| state | what it is |")[2].partition("\n\n")[0]
    words = {row.split("|")[1].strip(" `") for row in table.splitlines()[2:]}
    assert words == {word.value for word in StateWord}
