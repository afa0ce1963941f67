"""A run with injected faults: each state that it reports as impossible stays impossible."""
# ruff: noqa: SLF001  a soak's run with faults, without its quiet run

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from checkpointing.command_line.progress import ProgressBar
from supervisor.cli.drill.scratch_job import ScratchPlace
from supervisor.cli.drill.soak.run import SoakOrder, _Soak
from supervisor.cli.drill.soak.schedule import SoakFault
from supervisor.config.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.cli.drill.drilled_job import Decision


class Job:
    """It trains until the time is over, and lives on."""

    status = None

    def order(self, _order: object) -> None:
        """Take an order of the soak."""

    def has_ended(self) -> bool:
        """Return that it lives."""
        return False

    def decisions(self) -> list[Decision]:
        """Return none."""
        return []

    def wait(self, look: Callable[[], tuple[object] | None], every_s: float) -> tuple[object]:
        """Look until there is an answer."""
        while (answer := look()) is None:
            time.sleep(every_s / 10)
        return answer


class Faults:
    """A rank can be stopped, and a save torn, only after the last fault that had room."""

    def __init__(self) -> None:
        self.asked = 0

    def possible(self, kinds: set[SoakFault], _beats: object) -> set[SoakFault]:
        """Return which of these could be put in now."""
        self.asked += 1
        return kinds & {SoakFault.STOP, SoakFault.TORN} if self.asked > 2 else set()


def test_a_fault_possible_too_late_is_reported_as_not_drawn() -> None:
    soak = _Soak(
        Settings(), ["true"], SoakOrder(hours=2e-4, rate=1e6, seed=1, place=ScratchPlace("", ())), "job", ProgressBar(wanted=False)
    )
    soak._closed |= set(SoakFault) - {SoakFault.STOP}  # which needs longer than these hours have
    soak._job = Job()
    soak._observed = SimpleNamespace(
        start=lambda: None,
        look=lambda: None,
        all_train=lambda: True,
        beats=list,
        beginning=lambda: 0,
        has_losses=False,
        new_steps_s=0.0,
        top=0,
    )
    soak._run_with_faults(Faults())
    soak._sum_up()
    assert "not drawn" in soak.report.left_out[SoakFault.STOP]
    assert "not drawn" in soak.report.left_out[SoakFault.TORN]
    assert "no batch was seen" in soak.report.left_out[SoakFault.LOADER]
