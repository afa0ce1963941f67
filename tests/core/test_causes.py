"""Causes: ours have a row each, and a name that a signature of the user's gives is a cause like them wherever causes are read."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from supervisor.core.causes import CAUSE_TABLE, OWN_CAUSE
from supervisor.core.model import Cause, FailureVerdict


def test_each_of_ours_has_a_row_of_its_own() -> None:
    assert list(CAUSE_TABLE) == list(Cause)
    assert OWN_CAUSE not in CAUSE_TABLE.values()
    assert not any(cause.is_own for cause in Cause)


def test_a_cause_of_the_users_own_is_one_value_wherever_it_is_read() -> None:
    own = Cause("solver_diverged")
    verdict = FailureVerdict(own, 0.95, "it diverged", "solver_diverged:x")
    assert own.is_own
    assert own not in list(Cause)
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=FailureVerdict).cause is own
    assert pickle.loads(pickle.dumps(own)) is own  # noqa: S301  our own bytes
    assert (str(own), own.value, CAUSE_TABLE[own]) == ("solver_diverged", "solver_diverged", OWN_CAUSE)


@pytest.mark.parametrize("name", ["", "ab", "Solver", "our-solver", "1_solver", "a b c", "x" * 41, "sol\nver"])
def test_a_text_that_can_be_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid Cause"):
        Cause(name)
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value"):
        msgspec.convert(name, Cause)
