"""From the generated evidence of each cause, the classification finds that cause."""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.core.model import Cause, Phase
from supervisor.strategies import consent
from tests.simulation.faults import KINDS, Strike, evidence, heartbeat

SHOWN = [(cause, kind, sure) for cause, kinds in KINDS.items() for kind in range(len(kinds)) for sure in (True, False)]


@pytest.mark.parametrize(("cause", "kind", "sure"), SHOWN)
def test_each_cause_is_found_from_its_evidence(cause: Cause, kind: int, sure: bool) -> None:  # noqa: FBT001
    strike = Strike(cause, 10, Phase.TRAIN, 0, kind, sure)
    verdict = classify(evidence(strike, 100.0, heartbeat(strike, 10, 10)))
    assert verdict.cause is cause
    proven = any(consent.proves(fact, cause) for fact in verdict.because)
    assert strike.clear == (consent.is_sure(cause, verdict.confidence) and proven)


def test_there_is_one_for_every_cause() -> None:
    assert set(KINDS) == set(Cause)
