"""The report of a soak, and when it is sound."""

from __future__ import annotations

import pytest

from supervisor.cli.drill.comparison import LossComparison, LossResult
from supervisor.cli.drill.drilled_job import Decision
from supervisor.cli.drill.soak.faults import ROWS
from supervisor.cli.drill.soak.report import FaultResult, SoakReport
from supervisor.cli.drill.soak.schedule import SoakFault
from supervisor.core.model import Cause, FailureVerdict, Plan, PlanKind
from supervisor.report.layout import FactPage, Surface, render
from supervisor.report.table import render_table


def decided(t: float, cause: str, confidence: float, reason: str) -> Decision:
    return Decision(t, FailureVerdict(Cause(cause), confidence, "", ""), Plan(PlanKind.RESTART, reason, "", ""))


KILLED = decided(10.0, "killed_unknown", 0.9, "rank 1 was killed")


def soak(*faults: FaultResult, losses: LossResult = LossResult.SAME) -> SoakReport:
    return SoakReport(5, 12.0, 1.0, list(faults), 1200.0, 900.0, LossComparison(losses, "the words"))


def back(kind: SoakFault = SoakFault.RANK, decision: Decision | None = KILLED) -> FaultResult:
    return FaultResult(kind, ROWS[kind].title.format(rank=1), 120, 9.0, 12.34, 20, decision)


def lines_of(report: SoakReport, address: str = "") -> list[str]:
    """Return what is printed, without the rule behind the outcome."""
    surface = Surface(200)
    texts = [render(page, surface) if isinstance(page, FactPage) else render_table(page, surface) for page in report.pages(address)]
    return [line.rstrip(" -") for line in "\n".join(texts).splitlines()]


def test_a_row_shows_the_fault_its_cost_and_the_verdict() -> None:
    lines = lines_of(soak(back(), back(SoakFault.LOADER, None)))
    assert lines == [
        "-- drill soak: 2 faults; the job came back from each",
        "  goodput  75% of 20 min with faults made steps for the first time",
        "  losses   the words",
        "  again    supervise … drill soak --seed 5 --hours 1 --rate 12 -- …",
        "#  fault                 at step  trains after  steps again  cause: action                   right",
        "1  rank 1 killed             120  12 s                   20  killed_unknown (0.90): restart  yes",
        "2  rank 1's loader slow      120  12 s                   20  nothing                         yes",
    ]


def test_a_wrong_cause_is_shown_as_wrong_and_is_no_lost_job() -> None:
    wrong = soak(back(SoakFault.DISK, KILLED))
    assert lines_of(wrong)[-1].endswith("killed_unknown (0.90): restart  no")
    assert wrong.is_sound


def test_a_fault_that_the_job_does_not_come_back_from_is_a_finding() -> None:
    never, ended = back(), back()
    never.back_s, ended.ended_with = None, 65
    for lost, text in ((never, "never"), (ended, "12 s, ended with 65")):
        report = soak(back(), lost)
        assert not report.is_sound
        lines = lines_of(report, "--job a --state-dir s")
        assert lines[0] == "-- drill soak: 2 faults; the job did not come back by itself from 1"
        assert text in lines[-1]
        assert "  more     supervise why --job a --state-dir s" in lines


def test_a_fault_during_which_a_person_ended_the_soak_is_no_finding() -> None:
    fault = back()
    fault.back_s, fault.interrupted = None, True
    assert soak(fault).is_sound
    assert "not yet" in lines_of(soak(fault))[-1]


@pytest.mark.parametrize(("losses", "is_sound"), [(LossResult.NEAR, True), (LossResult.UNKNOWN, True), (LossResult.DIFFERENT, False)])
def test_losses_other_than_those_of_the_quiet_run_are_a_finding(losses: LossResult, *, is_sound: bool) -> None:
    assert soak(back(), losses=losses).is_sound is is_sound


def test_a_soak_without_a_fault_shows_nothing() -> None:
    report = soak()
    assert not report.is_sound
    assert lines_of(report)[0] == "-- drill soak: no fault was put into the job; nothing is shown"


def test_omitted_faults_and_unasked_failures_are_listed_with_reasons() -> None:
    report = soak(back())
    report.left_out = {SoakFault.TORN: "no save", SoakFault.LOADER: "no loader", SoakFault.DISK: "no save"}
    report.besides = [decided(500.0, "hang_no_error", 0.8, "rank 0 waits")]
    lines = lines_of(report)
    assert "  left out  torn, disk: no save" in lines
    assert "  left out  loader: no loader" in lines
    assert "  besides   hang_no_error (0.80): restart: rank 0 waits" in lines


def test_each_kind_has_a_row() -> None:
    assert set(ROWS) == set(SoakFault)
