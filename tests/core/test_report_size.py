"""What a node reports is bounded, and what explains comes first: the verdict on many nodes is that on all that they saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from supervisor.cluster.reports import decode_reports, encode_report
from supervisor.core.actions import ReportDecision
from supervisor.core.events import ReportsGathered
from supervisor.core.model import Cause, Claim, Evidence, JobDecision, RankInfo
from supervisor.core.nodes import joint_decision
from supervisor.core.nodes.report_size import bounded
from supervisor.core.numeric import rank_list
from supervisor.core.state import Attempt, JobState, NodeReport, Stage
from supervisor.core.values import replace
from supervisor.journal import records
from supervisor.report.card import card
from tests.support.storms import RANKS, node_report

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of the JSON of one node's report.
MOST_BYTES = 48 << 10
#: What the judge of a thousand nodes may take. The transport's part of 300 MiB is the rest.
MOST_SECONDS, MOST_MIB = 2.0, 200


def size(report: NodeReport) -> int:
    """Return the bytes of a report as it is sent."""
    return len(json.dumps(msgspec.to_builtins(report)))


def decision(reports: Sequence[NodeReport]) -> tuple[ReportsGathered, JobDecision]:
    """Return what is decided on these reports of all nodes of an attempt."""
    members = tuple(report.node for report in reports)
    state = JobState(stage=Stage.FOLLOWING, attempt=replace(reports[0].attempt, members=members))
    gathered = ReportsGathered(2000.0, 3, tuple(reports), (), "failure", members[-1], "rank 1: killed by signal 6")
    return gathered, joint_decision.decided(state, gathered)


def named(decided: JobDecision) -> tuple[object, ...]:
    """Return what a decision says of the failure, without the list of what else was seen."""
    verdict = decided.verdict
    return verdict.cause, verdict.confidence, verdict.rank, verdict.node, verdict.summary, verdict.fingerprint, decided.plan


def test_a_storm_of_time_outs_fits_and_its_first_error_and_all_ends_are_there() -> None:
    whole = node_report(0, culprit=5)
    assert size(whole) > 2 * MOST_BYTES, "the input is of true size"
    report = bounded(whole)
    assert size(report) < MOST_BYTES
    facts = report.attempt.evidence or ()
    assert [fact for fact in facts if fact.source in {"exit", "error_file"}] == [
        fact for fact in whole.attempt.evidence or () if fact.source in {"exit", "error_file"}
    ]
    assert {fact.name for fact in facts if fact.claim} == {fact.name for fact in whole.attempt.evidence or () if fact.claim}
    (counted,) = [fact for fact in facts if fact.name == "left_out"]
    number = len(whole.attempt.evidence or ()) - (len(facts) - 1)
    assert counted.text.startswith(f"{number} more facts of 7 ranks were left out of the report (")
    assert "nccl_timeout.watchdog" in counted.text


def test_a_small_report_is_sent_as_it_is() -> None:
    facts = (Evidence("exit", "signal", "11", 1, t=5.0), Evidence("heartbeat", "step", "64", 1), Evidence("log", "x", "a line", 1))
    report = NodeReport("a/1", Attempt(1, evidence=facts))
    assert bounded(report) == report


def test_without_room_the_ends_come_first_then_the_surest_claim_and_the_rest_is_counted() -> None:
    ends = tuple(Evidence("exit", "signal", "9", rank, t=9.0) for rank in range(4))
    claims = tuple(
        Evidence("log", f"s.{weight}", f"{weight} " + "x" * 1500, 1, t=1.0, claim=Claim(Cause.CUDA_OOM, weight / 10))
        for weight in range(10)
    )
    report = bounded(NodeReport("a/1", Attempt(1, evidence=(*claims, *ends))), 6000)
    facts = report.attempt.evidence or ()
    assert [fact.name for fact in facts] == ["s.7", "s.8", "s.9", *["signal"] * 4, "left_out"]
    assert facts[-1].text.startswith("7 more facts of 1 rank were left out of the report (1 s.0, 1 s.1, ")


def test_a_node_of_many_ranks_reports_how_each_ended() -> None:
    ranks = tuple(RankInfo(rank, rank, 100 + rank, 1) for rank in range(64))
    facts = [
        fact
        for rank in range(64)
        for fact in (
            Evidence("exit", "exit_code", "1", rank, t=9.0),
            Evidence("error_file", "exception", f"RuntimeError: rank {rank}" + "y" * 1900, rank, t=8.0),
            Evidence("error_file", "traceback", "Traceback\n" + "z" * 1900, rank, t=8.0),
        )
    ]
    report = bounded(NodeReport("a/1", Attempt(1, ranks=ranks, evidence=tuple(facts))))
    assert size(report) < 112 << 10
    assert len([fact for fact in report.attempt.evidence or () if fact.source == "exit"]) == 64


@pytest.mark.parametrize("culprit", [None, 43, 7])
def test_the_verdict_is_that_on_all_that_the_nodes_saw(culprit: int | None) -> None:
    whole = [node_report(node, culprit=culprit) for node in range(8)]
    _, expected = decision(whole)
    _, decided = decision([bounded(report) for report in whole])
    assert named(decided) == named(expected)
    assert expected.verdict.rank == (0 if culprit is None else culprit)


def test_the_records_and_pages_of_a_hundred_nodes_stay_small() -> None:
    reports = [bounded(node_report(node, culprit=403)) for node in range(100)]
    gathered, decided = decision(reports)
    assert (decided.verdict.rank, decided.verdict.node) == (403, "node0050:50")
    record = records.event_taken(gathered, (), attempt=3, stage="following")
    assert len(records.encode(1, 1.0, 1.0, record)) < 1 << 20
    assert len(msgspec.json.encode(decided)) < 64 << 10
    page = card("job", ReportDecision(1, 3, decided.verdict, decided.plan, None), None, address="--job job")
    assert len(page.facts) < 20
    assert max(len(fact.text) for fact in page.facts) < 400


def test_of_many_ranks_a_text_names_the_first_and_counts_the_others() -> None:
    assert rank_list([5, 0, 1, 2]) == "ranks 0-2, 5"
    assert rank_list(range(0, 1000, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 492 more"
    assert rank_list(range(8000)) == "ranks 0-7999"


@pytest.mark.slow
def test_a_thousand_nodes_are_judged_in_two_seconds_with_bounded_memory() -> None:
    """In a process of its own, so that the memory is that of the reports as they came in, and of the verdict."""
    done = subprocess.run([sys.executable, "-m", __name__, "1000"], capture_output=True, text=True, check=True)  # noqa: S603  this file
    took_s, mib, rank = (float(word) for word in done.stdout.split())
    assert rank == 1000 * RANKS // 2 + 3
    assert took_s <= MOST_SECONDS
    assert mib <= MOST_MIB


def main(nodes: int) -> None:
    """Print the processor's seconds for judging so many nodes, the most memory in MiB, and the culprit."""
    import time  # noqa: PLC0415

    culprit = nodes * RANKS // 2 + 3
    texts = [(str(node), encode_report(bounded(node_report(node, culprit=culprit)), 0.5)) for node in range(nodes)]
    began = time.process_time()
    reports, _ = decode_reports(texts, ())
    decoded = time.process_time()
    _, decided = decision(reports)
    took_s = time.process_time() - decoded
    status = Path("/proc/self/status").read_text(encoding="ascii")  # the most of ru_maxrss may be that of the process that started this one
    peak_mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    print(took_s, peak_mib, decided.verdict.rank)  # noqa: T201
    print(f"decoding {sum(len(text) for _, text in texts) >> 20} MiB took {decoded - began:.2f} s", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
