"""Counts how often the kernel killed for lack of memory in our control group and those above it.

Our own group's count is about us, and a count above it may be about a neighbour (health/probes/control_groups.py). A count has no times,
so it is read repeatedly while an attempt runs: this separates a kill that training survived from one that ended it (reconcile.py).
`OomKillCounter` may be used by several threads.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from health.probes import control_groups
from supervisor.core.model import Evidence
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from health.probes.control_groups import ControlGroup

    Counts = Mapping[ControlGroup, "GroupCounts"]

#: Between two reads of the loop's tick: each is a file or two of the kernel's own memory.
READ_EVERY_S = 1.0
#: How many changes are kept, the last ones: training survived the earlier ones.
MOST_KEPT = 32


class GroupCounts(Struct, frozen=True):
    """The counts of one group. `limit_hits`: how often memory ran short."""

    oom_kills: int
    limit_hits: int


class OomKillCounter:
    """The counts from now on, until an attempt has ended."""

    def __init__(self) -> None:
        self._first = self._last = read(control_groups.read("memory"))
        self._found: deque[Evidence] = deque(maxlen=MOST_KEPT)
        self._read_at = 0.0
        self._lock = threading.Lock()

    def update(self, t: float, *, now: bool = False) -> None:
        """Read the counts again, at `t`; only where the last read is some time ago, unless it must be `now`."""
        with self._lock:
            if not now and 0.0 <= t - self._read_at < READ_EVERY_S:
                return
            self._read_at = t
            counts = read(self._last)
            self._found += killed(self._last, counts, t)
            self._last = {**self._last, **counts}

    def finish(self, t: float) -> tuple[Evidence, ...]:
        """Return the counts as evidence."""
        self.update(t, now=True)
        with self._lock:
            return (*self._found, *short(self._first, self._last))


def read(groups: Iterable[ControlGroup]) -> dict[ControlGroup, GroupCounts]:
    """Return the counts of those groups that have any."""
    return {group: GroupCounts(*counts) for group in groups if (counts := group.memory_events()) is not None}


def killed(before: Counts, after: Counts, t: float) -> tuple[Evidence, ...]:
    """Return the kills that have been counted since, for groups that were there both times; `t` is the time of the later reading."""
    facts = []
    for group, now in after.items():
        group_counts = before.get(group)
        kills = now.oom_kills - group_counts.oom_kills if group_counts is not None else 0
        if group_counts is None or kills <= 0:
            continue
        text = f"the kernel killed {kills} process{'' if kills == 1 else 'es'} of {group.directory} for want of memory"
        fields = (("cgroup", str(group.directory)), ("kills", str(kills)), ("limit_hits", str(now.limit_hits - group_counts.limit_hits)))
        facts.append(Evidence("cgroup", "oom_kill" if group.own else "oom_kill_above", text, t=t, fields=fields))
    return tuple(facts)


def short(before: Counts, after: Counts) -> tuple[Evidence, ...]:
    """Return where memory of our own ran short in between, and nobody was killed for it."""
    facts = []
    for group, now in after.items():
        group_counts = before.get(group)
        if group_counts is not None and group.own and now.oom_kills == group_counts.oom_kills and now.limit_hits > group_counts.limit_hits:
            hits = now.limit_hits - group_counts.limit_hits
            fields = (("cgroup", str(group.directory)), ("kills", "0"), ("limit_hits", str(hits)))
            facts.append(Evidence("cgroup", "limit_hit", f"memory ran short {hits} times in {group.directory}", fields=fields))
    return tuple(facts)
