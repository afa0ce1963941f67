"""What the status and the report say of a step's time, and of how a job scales over its nodes."""

from __future__ import annotations

from supervisor.core.step_shares import StepShares
from supervisor.report.layout import Tone
from supervisor.report.step_section import scaling_of, step_facts
from supervisor.view.spans import RunLedger, TimeSpan, TimeState

MEMBERS = {2: ("a", "b")}


def run(*rows: tuple[int, float, float]) -> RunLedger:
    """Return a run with a span of training for each attempt, seconds and steps."""
    ledger, t = RunLedger("run-1", 0.0), 0.0
    for attempt, took_s, steps in rows:
        ledger.spans.append(TimeSpan(t, t + took_s, TimeState.PRODUCTIVE, attempt, first_step=0, last_step=steps))
        t += took_s
    return ledger


def test_a_job_of_two_nodes_is_compared_with_its_own_attempt_on_one() -> None:
    scaling = scaling_of([(run((1, 100, 200), (2, 100, 340)), MEMBERS)])
    assert scaling is not None
    assert (scaling.nodes, scaling.steps_per_s, scaling.of_one, scaling.efficiency) == (2, 3.4, 2.0, 0.85)
    assert scaling.text == "85 % of 2 times one node: 3.4 steps/s on 2 nodes, 2 steps/s on one (where the global batch is the same)"


def test_an_earlier_run_on_one_node_counts_too() -> None:
    scaling = scaling_of([(run((1, 100, 200)), {}), (run((2, 100, 400)), MEMBERS)])
    assert scaling is not None
    assert scaling.efficiency == 1.0


def test_without_a_minute_on_one_node_no_scaling_is_shown() -> None:
    assert scaling_of([(run((2, 100, 400)), MEMBERS)]) is None
    assert scaling_of([(run((1, 50, 100), (2, 100, 400)), MEMBERS)]) is None
    assert scaling_of([(run((1, 100, 200)), {})]) is None
    assert scaling_of([]) is None


def test_the_rank_that_others_wait_for_stands_first() -> None:
    facts = step_facts(StepShares((19, 31, 41, 5, 0, 0, 4), 4, 3, (60, 30, 2, 5, 0, 0, 3), 55, 0))
    assert [(fact.label, fact.text, fact.tone) for fact in facts] == [
        ("step time", "rank 3 waits 60 % of the time for data, the others wait 55 % for rank 3", Tone.WARNING),
        ("", "communication 41 %, forward and backward 31 %, data 19 %, optimizer 5 %, other code 4 %", Tone.PLAIN),
    ]
    (fact,) = step_facts(StepShares((5, 85, 0, 5, 0, 0, 5), 4))
    assert (fact.label, fact.tone) == ("step time", Tone.PLAIN)
    assert step_facts(None) == []
