"""Runs the rounds of torch's dynamic rendezvous by what the supervisors know: which nodes are lost, and which return.

torch drops a node 15 s after its last sign of life, and waits 30 s for more nodes than the minimum. So the first agent that leaves a round
empties it, and nobody waits there for a dead node; and a round is complete when as many nodes of the last attempt are there as the decision
says come back, with those that asked to join (docs/explanation/many-nodes.md#nodes-that-come-and-go).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from supervisor.agent import selfcheck

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from torch.distributed.elastic.rendezvous.api import RendezvousHandler

_log = logging.getLogger(__name__)
MISSING_S = 5.0  # nodes that are missing for this long are reported
YEARS = timedelta(days=36_500)  # more than any clock is wrong


class RoundListener(Protocol):
    """The caller that has this node meet the others, as a rendezvous sees it (attempt_controller.py).

    over_for_all: no node of the job continues.
    """

    over_for_all: bool

    def cancelled(self) -> bool:
        """Whether the attempt is not wanted any more."""
        ...

    def nodes_waiting(self, count: int) -> None:
        """So many nodes ask to join."""
        ...

    def nodes_missing(self, count: int, within_s: float) -> None:
        """This node waits in the round, and so many others are missing; torch alone would end the wait after `within_s`."""
        ...


class MissingNodes:
    """Reports how many nodes are missing at a rendezvous, once that has lasted: those of a job never come at one moment."""

    def __init__(self, listener: RoundListener) -> None:
        """Report to `listener`."""
        self._listener = listener
        self._since_t: float | None = None
        self._reported = 0

    def begin(self) -> None:
        """A meeting begins: it gets a report of the missing nodes, whatever the last meeting got."""
        self._since_t, self._reported = None, 0

    def counted(self, count: int, within_s: float) -> None:
        """So many are missing now, 0 or less: none. torch alone would wait `within_s` for them."""
        now, count = time.monotonic(), max(count, 0)
        self._since_t = (self._since_t or now) if count else None
        if count != self._reported and (self._since_t is None or now - self._since_t >= MISSING_S):
            self._reported = count
            self._listener.nodes_missing(count, within_s)


class RoundOps:
    """Runs the steps of torch's dynamic rendezvous, with what the supervisors know and torch does not.

    torch drops a dead node 15 s after its last sign of life, and lets fewer nodes than the greatest number begin 30 s after the least
    number has come. But an attempt ends on all of its nodes together. So who leaves a complete round empties it: nobody waits for a node or
    an agent that is dead. And a round is complete when all are there that are `returning` from the last one (0: not known) and that are
    `joining`: a node that nobody knew of may come before one that returns, and does not take its place. A node that waits while the others
    train waits without end, and so does one that waits for the least number of nodes, until the supervisor ends it: torch's `join_timeout`
    counts from the end of that. Where a copy of the model has the ranks of several nodes, they take part in groups of so many
    (`node_group`), and those that make up no whole group wait for the next round as spares. Signs of life and the 30 s count by the clock
    of the node that looks: torch compares the clocks of two nodes, and where they differ its nodes drop each other, or do not wait for one
    that is about to come.
    """

    def __init__(self, executor: Any, missing: MissingNodes) -> None:  # noqa: ANN401  torch's _RendezvousOpExecutor
        """Take what runs the steps so far."""
        self._executor = executor
        self._missing = missing
        self._waited_t = 0.0
        self._seen: dict[Any, tuple[datetime, float]] = {}  # the newest sign of life of each node, and when it was new here
        self._last_call: tuple[datetime | None, float] = None, 0.0  # the one that torch's state holds, and when it was new here
        self._last: frozenset[Any] = frozenset()  # the nodes of the last round that this one took part in
        self.returning = 0
        self.joining = 0
        self.least_nodes = 0  # more than torch's least number where fewer nodes are known not to start
        self.node_group = 1
        self._own_settings: Any = None  # torch's, before its numbers of nodes were made whole groups

    @classmethod
    def of(cls, handler: RendezvousHandler, missing: MissingNodes) -> RoundOps | None:
        """Put itself in between; None where torch's handler is another, or has another form (selfcheck.py): then torch's rules hold."""
        executor, holder = getattr(handler, "_op_executor", None), getattr(handler, "_state_holder", None)
        if executor is None or holder is None:
            return None
        if misfits := selfcheck.missing(selfcheck.ROUNDS):
            _log.warning("supervise: torch's dynamic rendezvous has another form, and its own rules hold: %s", "; ".join(misfits))
            return None
        vars(handler)["_op_executor"] = ops = cls(executor, missing)
        vars(holder)["_sanitize"] = functools.partial(ops._drop_dead, holder, holder._sanitize)  # noqa: SLF001
        return ops

    def _drop_dead(self, holder: Any, drop: Callable[[], None]) -> None:  # noqa: ANN401  torch's _BackendRendezvousStateHolder
        """Have torch drop the nodes whose sign of life has not changed for long, by this node's clock alone."""
        beats, now = holder.state.last_heartbeats, time.monotonic()
        known = self._seen
        self._seen = {node: known[node] if node in known and known[node][0] == beat else (beat, now) for node, beat in beats.items()}
        settings = holder._settings  # noqa: SLF001
        lasts = settings.keep_alive_interval * settings.keep_alive_max_attempt
        for node, (beat, t) in self._seen.items():
            beats[node] = beat + YEARS if timedelta(seconds=now - t) <= lasts else beat - YEARS
        drop()
        beats.update({node: self._seen[node][0] for node in beats})

    def run(self, state_handler: Callable[..., Any], deadline: float, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """See torch."""
        if self.node_group > 1:
            self._count_in_groups()
        wrapper = {"_RendezvousExitOp": self._leaving, "_RendezvousJoinOp": self._joining}.get(type(state_handler).__name__)
        self._executor.run(state_handler if wrapper is None else functools.partial(wrapper, state_handler), deadline, *args, **kwargs)

    def _count_in_groups(self) -> None:
        """Have torch complete a round with whole groups of nodes: no fewer than its least number, no more than its greatest."""
        executor, group = vars(self._executor), self.node_group
        self._own_settings = own = self._own_settings or executor["_settings"]
        least, most = own.min_nodes + -own.min_nodes % group, own.max_nodes - own.max_nodes % group
        if least <= most:  # else the supervisor has refused the layout
            executor["_settings"] = dataclasses.replace(own, min_nodes=least, max_nodes=most)

    def _without_surplus(self, action: Any, context: Any) -> Any:  # noqa: ANN401  torch's _Action and _RendezvousContext
        """Have the nodes beyond whole groups wait for the next round if this step completes one: first those of no last round."""
        state = context.state
        surplus = len(state.participants) % self.node_group
        if action is dynamic_rendezvous._Action.MARK_RENDEZVOUS_COMPLETE and surplus:  # noqa: SLF001
            for node in sorted(sorted(state.participants), key=self._last.__contains__)[:surplus]:
                del state.participants[node]
                state.wait_list.add(node)
        return action

    @staticmethod
    def _leaving(step: Callable[..., Any], context: Any, deadline: float) -> Any:  # noqa: ANN401  torch's _RendezvousContext and _Action
        state = context.state
        if state.complete and context.node in state.participants:
            for other in set(state.participants) - {context.node}:
                del state.participants[other]
                state.last_heartbeats.pop(other, None)
        return step(context, deadline)

    def _joining(self, step: Callable[..., Any], context: Any, deadline: float) -> Any:  # noqa: ANN401  as above
        return self._without_surplus(self._join(step, context, deadline), context)

    def _join(self, step: Callable[..., Any], context: Any, deadline: float) -> Any:  # noqa: ANN401  as above
        state, settings = context.state, context.settings
        is_in = context.node in state.participants
        least = max(settings.min_nodes, self.least_nodes)
        missing = least - len(state.participants) if is_in and not state.complete and not state.closed else 0
        self._missing.counted(missing, settings.timeout.join.total_seconds())
        if is_in and state.complete:
            self._last = frozenset(state.participants)
        if (state.complete and not is_in) or missing > 0:
            self._waited_t = time.monotonic()
        elif is_in and self.returning and not state.closed and self._are_all_in(state, settings):
            return step(context, deadline) if state.complete else dynamic_rendezvous._Action.MARK_RENDEZVOUS_COMPLETE  # noqa: SLF001
        deadline = max(deadline, self._waited_t + settings.timeout.join.total_seconds())
        return self._with_last_call(step, context, deadline, waits=missing > 0)

    def _are_all_in(self, state: Any, settings: Any) -> bool:  # noqa: ANN401  torch's
        """Whether all take part that are expected, and those that asked to join after the last count of them.

        For a new agent, which has no last round, any node counts: where it comes in place of one that ended, it completes the round. Nodes
        that lack others for a whole group wait for a spare that is there.
        """
        count, returned = len(state.participants), len(self._last.intersection(state.participants))
        expected = max(min(self.returning + self.joining, settings.max_nodes), settings.min_nodes)
        is_back = returned >= min(self.returning, len(self._last))
        to_come = state.wait_list or (count % self.node_group and getattr(state, "redundancy_list", ()))  # not in every torch
        return is_back and count >= expected and (count >= settings.max_nodes or not to_come)

    def _with_last_call(self, step: Callable[..., Any], context: Any, deadline: float, *, waits: bool) -> Any:  # noqa: ANN401  as above
        """Take a step to which the last call is over when it has lasted long enough by this node's clock alone.

        waits: nodes are missing, so it is not.
        """
        state = context.state
        last_call = state.deadline  # by the clock of the node that wrote it
        if last_call is None:
            return step(context, deadline)
        if last_call != self._last_call[0]:
            self._last_call = last_call, time.monotonic()
        is_over = not waits and time.monotonic() - self._last_call[1] > context.settings.timeout.last_call.total_seconds()
        state.deadline = last_call - YEARS if is_over else last_call + YEARS
        try:
            return step(context, deadline)
        finally:
            state.deadline = last_call
