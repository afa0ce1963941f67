"""The coordinator's records (coordinator.py): of the job, of each node, and of the looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from supervisor.cluster.messages import Meet
from supervisor.cluster.model import ClusterRules, CoordinatorMemory
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from supervisor.cluster.model import SharedAttempt


class NodeRecord(Struct, frozen=True):
    """The coordinator's record of a node that joined.

    heard_t: when its last message came. closed_t: since when its connection is closed, None: it is open. beat_t, standing, stepped_s,
    step_s: of its last beat.
    """

    heard_t: float
    closed_t: float | None = None
    beat_t: float = 0.0
    standing: str = ""
    stepped_s: float | None = None
    step_s: float | None = None


class LookRound(Struct, frozen=True):
    """Round `number` of looks, begun at `t`. is_wanted: another is to follow."""

    number: int = 0
    t: float = float("-inf")
    is_open: bool = False
    is_wanted: bool = False


class CoordinatorState(Struct, frozen=True):
    """All that the coordinator knows.

    began_t: since when no rank lives here that an earlier coordinator let start, or this one began. forgot: a node may know a newer
    attempt. nodes: those that joined this start of it. posts: of the newest attempt, by kind and index, and node. absences: why a member
    takes no part any more (`lost: …`, `left: …`), by node. gone_nodes: whose guardian says so. meetings: by token, who takes part. ended_t:
    when the end was noted. is_judged: the core has the reports.
    """

    host: str
    rules: ClusterRules
    t: float
    began_t: float
    memory: CoordinatorMemory
    forgot: bool
    nodes: Mapping[str, NodeRecord]
    posts: Mapping[tuple[str, int], Mapping[str, str]]
    absences: Mapping[str, str]
    meetings: Mapping[str, Mapping[str, Meet]]
    gone_nodes: frozenset[str] = frozenset()
    ended_t: float = 0.0
    is_judged: bool = False
    looks: LookRound = LookRound()

    @property
    def open_attempt(self) -> SharedAttempt | None:
        """The newest attempt, as long as nothing is decided about it."""
        return self.memory.attempt if self.memory.decision is None else None

    @property
    def running_attempt(self) -> SharedAttempt | None:
        """The newest attempt, as long as it has no end."""
        return self.open_attempt if self.memory.end is None else None

    def live(self, attempt: SharedAttempt) -> tuple[str, ...]:
        """Return the members that are neither lost nor have quit."""
        return tuple(node for node in attempt.members if node not in self.absences)

    def posted(self, kind: str, index: int = 0) -> Mapping[str, str]:
        """Return the posts of a kind, by node."""
        return self.posts.get((kind, index), {})
