"""When a job is back from a fault of a soak, and which faults can be put into it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from checkpointing.command_line.progress import ProgressBar
from supervisor.cli.drill.drilled_job import DrilledJob
from supervisor.cli.drill.soak.faults import Faults, Strike
from supervisor.cli.drill.soak.schedule import SoakFault
from supervisor.config.settings import Settings
from supervisor.core.model import Phase
from supervisor.core.values import replace
from supervisor.instrument._supervise_shim.layout import start_ticks_of
from supervisor.observe.ranks.heartbeats import RankHeartbeat

if TYPE_CHECKING:
    from pathlib import Path


def beat(rank: int = 0, steps: int = 30) -> RankHeartbeat:
    """Return the heartbeat of a rank that lives: this process."""
    ticks = start_ticks_of(os.getpid())
    assert ticks is not None
    return RankHeartbeat(
        local_rank=rank, rank=rank, pid=os.getpid(), start_ticks=ticks, hello_ns=0, phase=Phase.TRAIN, phase_since_ns=0, steps=steps,
        last_step_ns=None, step=None, step_source=None, torch_loaded=True, backward_seen=True, save_asked=False,
    )  # fmt: skip


def earlier(rank: int) -> RankHeartbeat:
    """Return what a rank of the attempt before left: another process."""
    return replace(beat(rank), start_ticks=1)


def test_a_job_is_back_when_each_rank_is_a_new_process_that_made_a_step() -> None:
    strike = Strike(SoakFault.RANK, 0.0, 1, {0: earlier(0), 1: earlier(1)})
    assert strike.is_over([beat(0, 1), beat(1, 1)])
    assert not strike.is_over([beat(0, 1), beat(1, 0)])
    assert not strike.is_over([beat(0, 1)])
    assert not strike.is_over([beat(0, 1), earlier(1)])  # the slot of a rank that has died stays readable


@pytest.mark.parametrize("kind", [SoakFault.RANK, SoakFault.AGENT, SoakFault.SUPERVISOR, SoakFault.STOP, SoakFault.TORN])
def test_ranks_that_still_make_steps_after_what_ends_them_are_not_back(kind: SoakFault) -> None:
    assert not Strike(kind, 0.0, 0, {0: beat(0, 30)}).is_over([beat(0, 99)])


def test_a_late_batch_is_over_when_each_rank_is_two_steps_on() -> None:
    strike = Strike(SoakFault.LOADER, 0.0, 0, {0: beat(0, 30), 1: beat(1, 30)})
    assert not strike.is_over([beat(0, 31), beat(1, 32)])
    assert strike.is_over([beat(0, 32), beat(1, 32)])


def test_only_observed_behaviour_of_the_ranks_can_be_disturbed(tmp_path: Path) -> None:
    faults = Faults(DrilledJob(Settings(), ["true"], tmp_path, tmp_path, lambda: None, ProgressBar(wanted=False)), None)
    everything = set(SoakFault) - {SoakFault.AGENT}  # what started this process is none of a job's
    anywhere = {SoakFault.RANK, SoakFault.SUPERVISOR}
    assert faults.possible(everything, [beat(0, 5)]) == anywhere
    assert faults.possible(everything, [beat(0, 30)]) == anywhere | {SoakFault.STOP}
    (tmp_path / "drill-seen-save").touch()
    assert faults.possible(everything, [beat(0, 5)]) == anywhere | {SoakFault.TORN, SoakFault.DISK}
    assert faults.possible({SoakFault.DISK}, [beat(0, 5)]) == {SoakFault.DISK}
