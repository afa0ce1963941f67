"""A node's report as the coordinator reads it: by its own clock, and as far as it understands it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.cluster.reports import decode_report, decode_reports, encode_report
from supervisor.core.causes import CAUSE_TABLE, OWN_CAUSE
from supervisor.core.model import Cause, Claim, Evidence, Gpu, RankExit
from supervisor.core.state import Attempt, NodeReport
from supervisor.core.values import replace

SIGNAL = Evidence("exit", "signal", "11", 1, t=100.0)
CLAIMED = Evidence("log", "cuda.oom", "CUDA out of memory", 1, t=99.0, claim=Claim(Cause.CUDA_OOM, 0.9))
GPUS = (Gpu(0, "GPU-1"),)
REPORT = NodeReport(
    "b/1", Attempt(3, began_t=10.0, over_t=101.0, deaths=(RankExit(1, 101, 1, signal=11),), evidence=(SIGNAL, CLAIMED)), GPUS
)


def changed(**attempt: Any) -> str:  # noqa: ANN401  JSON
    """Return the text of the report with other values of its attempt."""
    row = json.loads(encode_report(REPORT, None))
    row["report"]["attempt"].update(attempt)
    return json.dumps(row)


def test_a_report_has_its_times_by_the_coordinators_clock() -> None:
    assert decode_report(encode_report(REPORT, None)) == REPORT
    attempt = decode_report(encode_report(REPORT, 5.0)).attempt
    assert attempt.evidence is not None
    assert (attempt.began_t, attempt.started_t, attempt.over_t, attempt.evidence[0].t) == (15.0, None, 106.0, 105.0)


def test_unknown_values_of_the_next_version_are_left_out_of_a_report() -> None:
    rows = json.loads(encode_report(REPORT, None))["report"]["attempt"]["evidence"]
    rows[1]["claim"]["cause"] = "new/in-the-next-version"
    report = decode_report(changed(evidence=[*rows, "no fact"], ended_for=rows[1:], hang={"kind": "new"}, new_field=7))
    unclaimed = replace(CLAIMED, claim=None)
    assert report == replace(REPORT, attempt=replace(REPORT.attempt, evidence=(SIGNAL, unclaimed), ended_for=(unclaimed,)))


def test_a_cause_that_only_another_node_s_signatures_name_counts_as_a_cause_of_the_user_s_own() -> None:
    rows = json.loads(encode_report(REPORT, None))["report"]["attempt"]["evidence"]
    rows[1]["claim"]["cause"] = "new_in_the_next_version"
    attempt = decode_report(changed(evidence=rows)).attempt
    assert attempt.evidence is not None
    claim = attempt.evidence[1].claim
    assert claim is not None
    assert (claim.cause, claim.cause.is_own, claim.weight) == ("new_in_the_next_version", True, 0.9)
    assert CAUSE_TABLE[claim.cause] is OWN_CAUSE


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "7", "{}", '{"offset_s": "x", "report": {}}', '{"offset_s": 0, "report": {}}', "[" * 100_000]
)
def test_a_node_whose_report_cannot_be_read_is_one_without_a_report(text: str) -> None:
    reports, missing = decode_reports((("a/1", text), ("b/1", encode_report(REPORT, 0.0))), (("c/1", "lost"),))
    assert reports == (REPORT,)
    assert [node for node, _ in missing] == ["c/1", "a/1"]
    assert missing[1][1].startswith("its report could not be read: ")
