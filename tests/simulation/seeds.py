"""A seed and its jobs: the history, how often each step was reached, and the first broken law.

A seed alone replays its jobs: nothing else is remembered. An exception of the core counts as broken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.machine import decide
from supervisor.core.model import Cause
from supervisor.strategies import LADDERS
from tests.simulation.engine import Play
from tests.simulation.invariants import Broken
from tests.simulation.jobs import drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.simulation.engine import Decide
    from tests.simulation.world import Job

SEEDS = 200
#: What stands or dies behind the end of a training (tests/core/test_ending.py) strikes no training here.
CAUSES = tuple(cause for cause in Cause if not CAUSE_TABLE[cause].after_training)
#: Causes that have one job of each seed behind the others, whose draws stay as they are: rare rows are met by few of them.
LATER = (Cause.DEVICE_ORDINAL,)
_SHARED = tuple(cause for cause in CAUSES if cause not in LATER)
_OF_SHARED = 20
JOBS = _OF_SHARED + len(LATER)
#: Steps that answer what no job of the simulator does: it fails of nothing that a plan changed but its ranks, races for no path, fills no
#: disk by what it left, and has no caches, servers, names, links or locks, and no other training's checkpoints. The stories
#: (tests/scenarios) play each of them.
_OF_STORIES = (
    "own_change",
    "raced",
    "left_file",
    "own_leftovers",
    "own_service",
    "damaged_cache",
    "foreign_checkpoint",
    "clear_way",
    "mend_pointer",
    "wait_for_name",
)
IN_SOME_JOB = {(Cause.CHECKPOINT_CORRUPT, "raced"), (Cause.CHECKPOINT_MISMATCH, "own_change")}
OF_STORIES = {(cause, ladder_step) for cause in Cause for ladder_step in _OF_STORIES} - IN_SOME_JOB
ROWS = tuple(
    (cause, ladder_step)
    for cause, ladder in LADDERS.items()
    for ladder_step in ladder
    if cause in CAUSES and (cause, ladder_step) not in OF_STORIES
)


@dataclass(slots=True)
class Outcome:
    """What came of a seed. broken: what did not hold, in which job; "" for nothing. codes: exit codes. jobs: those that reached a row.

    events: given to the core; folded: given to it again, from a journal, when a supervisor took over.
    """

    seed: int
    events: int = 0
    folded: int = 0
    broken: str = ""
    reached: Counter[tuple[Cause, str]] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    jobs: dict[tuple[Cause, str], list[int]] = field(default_factory=dict)


def played(seed: int, judge: Decide = decide, report: Callable[[str], None] | None = None) -> Outcome:
    """Play the jobs of a seed until all are over or something is broken."""
    outcome = Outcome(seed)
    for number in range(JOBS):
        play, broken = play_job(seed, number, judge)
        outcome.events += play.events
        outcome.folded += play.folded
        outcome.reached.update(play.watch.reached)
        for row in play.watch.reached:
            outcome.jobs.setdefault(row, []).append(number)
        ended = broken or str(play.watch.finished)
        if report is not None:
            report(f"seed {seed} job {number} {play.job.theme}: {play.events} events, {play.watch.attempt} attempts: {ended}")
        if broken:
            outcome.broken = f"job {number} ({play.job.theme}), attempt {play.watch.attempt}, t={play.t:.1f}: {broken}"
            break
        outcome.codes[play.watch.finished or 0] += 1
    return outcome


def job_of(seed: int, number: int) -> tuple[Job, Random]:
    """Return a job of a seed, and the generator that its world continues with."""
    rng = Random(seed * 1009 + number)  # noqa: S311 (worlds, not secrets)
    of_later = number - _OF_SHARED
    cause = LATER[of_later] if of_later >= 0 else _SHARED[(seed * _OF_SHARED + number) % len(_SHARED)]
    return drawn(rng, cause), rng


def play_job(seed: int, number: int, judge: Decide = decide) -> tuple[Play, str]:
    """Play one job of a seed; return it as it ended, and what was broken."""
    play = Play(*job_of(seed, number), judge)
    try:
        play.run()
    except Broken as error:
        return play, str(error)
    except Exception as error:  # noqa: BLE001 (whatever the core raises is what is looked for)
        return play, f"{type(error).__name__}: {error}"
    return play, ""


def reached(outcomes: Iterable[Outcome]) -> Counter[tuple[Cause, str]]:
    """Return how often each (cause, step) answered, over these."""
    total: Counter[tuple[Cause, str]] = Counter()
    for outcome in outcomes:
        total.update(outcome.reached)
    return total
