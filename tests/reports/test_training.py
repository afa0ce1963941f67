"""The training that the reports' scripts share does what they suppose: it resumes where it was killed, and it ends well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reports.conftest import DECLARED, OFTEN, torchrun

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Supervised

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_training_without_a_failure_is_done(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("training.py", "--steps", "40"), options=DECLARED, **OFTEN)
    assert run.exit_code(100) == 0
    assert run.stdout == "training from step 0\n"
