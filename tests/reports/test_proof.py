"""A checkpoint is accused only on proof: what fails after its load, or on two alike, leaves all of them in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reports.conftest import DECLARED, OFTEN, torchrun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


def begun(run: Supervised) -> list[str]:
    """Return where the attempts of a run began, as rank 0 printed it."""
    return [line.removeprefix("training from step ") for line in run.stdout.splitlines() if line.startswith("training from step ")]


# --- what fails after the load: crash_after_load.py


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "begins"),
    [("segfault", ["0", "40", "40", "20"]), ("forward", ["0", "40"]), ("base", ["0", "40", "40"])],
)
def test_a_crash_after_the_load_accuses_no_checkpoint_and_once_mended_the_next_run_goes_on_from_the_newest(
    supervise: Callable[..., Supervised], tmp_path: Path, how: str, begins: list[str]
) -> None:
    command = torchrun("crash_after_load.py", "--how", how, "--steps", "60")
    run = supervise(*command, options=DECLARED, **OFTEN)
    assert run.exit_code(150) in {1, 65}
    assert begun(run) == begins
    assert (tmp_path / "ckpt" / "step-40.pt").exists()
    assert "out of use" not in run.stderr
    (tmp_path / "mended").touch()
    mended = supervise(*command, options=DECLARED, **OFTEN)
    assert mended.exit_code(100) == 0
    assert begun(mended) == ["40"]
    assert "out of use" not in mended.stderr
