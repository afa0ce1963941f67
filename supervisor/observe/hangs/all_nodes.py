"""One hang over all nodes of a job: the looks of all of them are judged as those of one node are. Pure; for the coordinator alone.

A node whose ranks stand still asks for a look, and all nodes take one. The look is judged by judge.py with diagnosis.py, as if all
ranks were on one node: the ranks are still as long as those of the node that showed the last sign of life, and the limit is the longest of
any node's. A node that did not answer is named, and is one of which nothing is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.events import HangCleared, HangConfirmed
from supervisor.core.values import Struct, replace
from supervisor.observe.hangs import diagnosis, node_look
from supervisor.observe.hangs.judge import CONFIRM_S, HangJudge
from supervisor.observe.hangs.node_look import NodeLook
from supervisor.observe.hangs.rank_progress import RankProgress
from supervisor.observe.hangs.watch import LOOK_LOST_S, PAUSE_S
from supervisor.observe.ranks.heartbeats import SAMPLE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.core.events import HangSuspected
    from supervisor.core.model import Hang
    from supervisor.observe.hangs.diagnosis import ComparedRank
    from supervisor.observe.hangs.threshold import Limit


class AllLooks(Struct, frozen=True):
    """A look at all nodes. nodes: the parts that came, by node as people are shown it; silent: the other nodes, each with the reason."""

    number: int
    nodes: tuple[tuple[str, NodeLook], ...]
    silent: tuple[tuple[str, str], ...] = ()

    @property
    def ranks(self) -> tuple[ComparedRank, ...]:
        """All ranks that were looked at."""
        return tuple(rank for _, look in self.nodes for rank in look.ranks)

    def life(self, *, but_pauses: bool) -> str:
        """Return a sign of life since the look before; "" without one. but_pauses: a pause of supervise is not a sign."""
        for node, look in self.nodes:
            if look.has_lived and (look.life or not but_pauses):
                return f"{look.life or 'its supervise was stopped for a while'} (node {node})"
        return ""

    @property
    def limit(self) -> Limit:
        """How long the ranks may show no sign of life: the others wait for the rank that may longest."""
        return max((look.limit for _, look in self.nodes), key=lambda limit: limit.seconds)

    @property
    def has_trained(self) -> bool:
        """Whether a rank made a step."""
        return any(look.has_trained for _, look in self.nodes)


def all_looks(number: int, looks: Sequence[tuple[str, str]], missing: Sequence[tuple[str, str]]) -> AllLooks:
    """Return a look at all nodes, of the texts that came. missing: the nodes of which none came, each with the reason."""
    nodes, silent = [], [(node, f"did not answer ({reason})" if reason else "did not answer") for node, reason in missing]
    for node, text in looks:
        try:
            look = node_look.read(text)
        except ValueError as error:
            silent.append((node, f"gave a look that cannot be read ({error})"))
            continue
        if look.problem and not look.life:
            silent.append((node, look.problem))
        else:
            nodes.append((node, replace(look, ranks=tuple(replace(rank, node=node) for rank in look.ranks))))
    return AllLooks(number, tuple(nodes), tuple(silent))


class AllNodesWatch:
    """Judges the looks at all nodes of one attempt after the other. Its methods are called one at a time.

    ask: asks all nodes for a look. tell: tells all nodes of a hang, or why there is none (any more).
    """

    def __init__(self, ask: Callable[[], None], tell: Callable[[Hang | str], None]) -> None:
        self._ask, self._tell = ask, tell
        self._judge = HangJudge[AllLooks](self._post, self)
        self.watch(0)

    def watch(self, attempt: int) -> None:
        """Begin with a new attempt."""
        self._judge.watch(attempt)
        self._due_t: float | None = None  # the next look, where none is suspected: the longest limit of any node is over then
        self._asked_t: float | None = None
        self._looked_t = 0.0
        self._ticked_t: float | None = None

    def tick(self, t: float) -> None:
        """Ask for the look that is due. About once a second."""
        gap_s = t - self._ticked_t if self._ticked_t is not None else 0.0
        self._ticked_t = t
        suspicion = self._judge.suspicion
        due_t = self._due_t if suspicion is None else suspicion.due_t
        if due_t is None or gap_s > PAUSE_S or t < due_t or (self._asked_t is not None and t - self._asked_t < LOOK_LOST_S):
            return
        self._asked_t = t
        self._ask()

    def take(self, t: float, looked_t: float, look: AllLooks) -> None:
        """Take a look that came. looked_t: the time of its request."""
        is_due = self._asked_t is not None or looked_t - self._looked_t >= CONFIRM_S
        self._looked_t = looked_t
        self._asked_t, self._due_t = None, None
        still = [node.still_s for _, node in look.nodes if node.still_s is not None]
        if not still:
            return  # no rank has a heartbeat
        judge, suspicion = self._judge, self._judge.suspicion
        if suspicion is None:
            judge.since_t = max(judge.since_t, looked_t - min(still))
            if looked_t <= judge.since_t + look.limit.seconds * judge.patience:
                self._look_later(look)
                return
            judge.suspect(t, look.limit)
        elif life := look.life(but_pauses=bool(suspicion.confirmed)):
            judge.clear(t, life)
            judge.since_t, judge.patience = looked_t - min(still), 1.0
            self._look_later(look)
            return
        elif suspicion.look is not None and not (is_due and _follows(look, suspicion.look)):
            suspicion.look, suspicion.look_t, suspicion.due_t = look, looked_t, t + suspicion.delay_s  # it is compared with the next one
            return
        judge.take(t, looked_t, look, has_trained=look.has_trained, is_whole=not look.silent)
        if judge.suspicion is None:
            self._look_later(look)

    def _look_later(self, look: AllLooks) -> None:
        """Look again when the limit is over for all nodes, if it is over for one."""
        if any(node.still_s is not None and node.still_s > node.limit.seconds for _, node in look.nodes):
            self._due_t = self._judge.since_t + look.limit.seconds * self._judge.patience + SAMPLE_S

    def compare(self, _first: AllLooks, second: AllLooks) -> RankProgress:
        """Return what moved from one look to the next: each node compared its own."""
        return RankProgress(tuple(row for _, look in second.nodes for row in look.moved))

    def hang(self, _first: AllLooks, second: AllLooks, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
        """Return what two looks agree on."""
        return diagnosis.hang_of(second.ranks, still_s=still_s, limit_s=limit_s, calibrated=calibrated, silent=second.silent)

    def _post(self, event: HangSuspected | HangConfirmed | HangCleared) -> None:
        if isinstance(event, HangConfirmed):
            self._tell(event.hang)
        elif isinstance(event, HangCleared):
            self._tell(event.text)


def _follows(second: AllLooks, first: AllLooks) -> bool:
    """Return whether each node compared its part with that of the look before."""
    return all(look.previous == first.number for _, look in second.nodes if look.ranks)
