"""Defects that are known and not mended yet, each as a test that states what is right and is expected to fail (`xfail`, strict).

A later change replaces the code that is at fault, so it is left as it is until then. When that change is there, the test passes; a strict
xfail that passes is a failure of the suite, so the marker must go with the mend, and the test moves beside its subject. The reason of
each marker names that change.

| test | what is wrong | later |
| --- | --- | --- |
| test_people.py | alerts and programs of alerts do not get the proxy; a heartbeat's refusal is not reported | what people see |
"""

from __future__ import annotations

import pytest

FOR_PEOPLE = "later: what people see"


def later(reason: str) -> pytest.MarkDecorator:
    """Mark a test that fails by its own assertion until the later change of that name is there."""
    return pytest.mark.xfail(strict=True, reason=reason, raises=AssertionError)


def prepared(condition: object, what: str) -> None:
    """Fail the test outright, whatever it is expected to do, where its preparation did not succeed."""
    if not condition:
        pytest.fail(what)
