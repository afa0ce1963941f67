"""The facts of a run in this process, beside the journal: the metrics are made from both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from health.model import Readings, Result
from supervisor.core.model import RankMemory
from supervisor.core.state import JobState

#: How old a reading may be that is shown, at least.
FRESH_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class MirrorFacts:
    """How the mirrors do. backlog: verified checkpoints that are not in all of them; backlog_bytes: of those that their process holds."""

    backlog: int
    backlog_bytes: int
    behind_s: float
    failing: bool


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """The facts in this process at `now` (Unix seconds). mirror: None where there is none.

    checks: the worst result of each check when it was last made. readings: the newest of the GPUs. fresh_s: older ones are not shown.
    memory: of each rank of this node.
    """

    now: float
    job: str
    run_id: str
    node: str
    version: str
    state: JobState
    last_progress_t: float | None = None
    mirror: MirrorFacts | None = None
    checks: Mapping[str, Result] = field(default_factory=lambda: MappingProxyType({}))
    readings: Readings = field(default_factory=Readings)
    fresh_s: float = FRESH_S
    memory: tuple[RankMemory, ...] = ()
