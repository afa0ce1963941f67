"""torch's elastic agent with a gate before each attempt: it starts ranks only on a `Go`, and reports how each attempt ended.

Between the gates torch does its own work: rendezvous, the ranks' environment, logs. Each override states its reason;
docs/explanation/elastic-agent.md has them all. An exception of torch (a failed rendezvous, a missing executable) ends this process, and the
supervisor starts another. Overrides take whatever torch passes (`*args, **kwargs`): arguments came and went between 2.6 and 2.15.
"""

from __future__ import annotations

import functools
import socket
import time
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as processes

from supervisor.agent import ranks as outcomes
from supervisor.agent.messages import RendezvousCompleted
from supervisor.agent.placeholders import filled_command
from supervisor.agent.rendezvous import AttemptCancelled, MetNode, RoundRendezvous, meet_at_once
from supervisor.agent.signals import nothing
from supervisor.agent.spawn import AttemptEnvironment, RankHandler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.agent.attempt_controller import AttemptController
    from supervisor.agent.messages import Go, ScriptArgs
    from supervisor.agent.spawn import OutputChannel

WAKE_S = 0.001  # torch sleeps this long between two polls; the wait itself is in `_monitor_workers`, which a death ends at once
STANDBY_POLL_S = 0.25  # an order for standbys waits at most so long


class GatedAgent(LocalElasticAgent):
    """torch's agent with a gate in front of each attempt. Made by `install`, in place of torch's class."""

    def __init__(self, spec: Any, *args: Any, controller: AttemptController, output: OutputChannel, nodes: int, **kwargs: Any) -> None:  # noqa: ANN401
        """Take torch's arguments, whatever its version passes, and the agent's own by keyword."""
        self._controller = controller
        self._output = output
        self._nodes = nodes
        self._interval_s = spec.monitor_interval
        self._own_args = tuple(str(arg) for arg in spec.args)
        self._own_nproc = spec.local_world_size
        self._own_max_restarts = spec.max_restarts
        self._rounds = RoundRendezvous(spec.rdzv_handler, controller, nodes=nodes, master_addr=spec.master_addr or "")
        self._environment: AttemptEnvironment | None = None
        spec.rdzv_handler = self._rounds
        spec.monitor_interval = WAKE_S
        super().__init__(spec, *args, **kwargs)

    def _rendezvous(self, worker_group: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """The gate: every way to new ranks, the first start and membership changes too, leads through here."""
        while True:
            go = self._controller.wait_for_go()
            self._prepare(worker_group, go)
            self._rounds.returning, self._rounds.least_nodes, self._rounds.node_group = go.returning, go.least_nodes, go.node_group
            try:
                super()._rendezvous(worker_group, *args, **kwargs)
                self._met(worker_group, go.attempt)
                if self._nodes > 1 and self._rounds.store is not None:
                    address = getattr(worker_group.spec, "local_addr", None) or socket.getfqdn()
                    ranks = worker_group.workers[0].world_size
                    index, count = worker_group.group_rank, worker_group.group_world_size
                    node = MetNode(index, count, address, world_size=ranks)
                    self._prepare(worker_group, self._controller.agree(self._rounds.store, self._rounds.handover.token, node))
            except AttemptCancelled:  # stopped while the nodes gathered, or agreed
                continue
            break

    def _met(self, worker_group: Any, attempt: int) -> None:  # noqa: ANN401
        """The nodes are gathered: no rank of any of them lives, and none starts before all agree on what to resume from."""
        handover = self._rounds.handover
        worker_group.master_port = handover.port
        rendezvous = RendezvousCompleted(
            attempt,
            round=handover.round,
            group_rank=worker_group.group_rank,
            world_size=worker_group.workers[0].world_size,
            master_addr=worker_group.master_addr,
            master_port=worker_group.master_port,
        )
        self._controller.met(rendezvous)

    def _prepare(self, worker_group: Any, go: Go) -> None:  # noqa: ANN401
        """The variables of one attempt. TORCHELASTIC_RESTART_COUNT becomes attempt - 1, so no attempt directory is used twice.

        Of several nodes this comes twice: before they meet, and when they have agreed on the number, and on what the ranks are given.
        """
        spec = worker_group.spec
        before = go.attempt - 1
        spec.max_restarts = max(self._own_max_restarts, before)
        self._remaining_restarts = spec.max_restarts - before
        spec.local_world_size = self._own_nproc if go.nproc is None else go.nproc
        spec.args = (*filled_command(script_args_set(self._own_args, go.script_args), go.replace), *go.args)
        controller = self._controller
        self._environment = AttemptEnvironment(go.attempt, go.env, go.unset, self._nodes == 1, controller.ranks.add, controller.standbys)

    def _start_workers(self, worker_group: Any, *args: Any, **kwargs: Any) -> dict[int, Any]:  # noqa: ANN401
        """Start the ranks unless the attempt was stopped meanwhile; no signal of torch's choosing may kill this process."""
        attempt = self._attempt
        if not self._controller.ranks.may_spawn(attempt):
            return {}
        try:
            ids: dict[int, Any] = super()._start_workers(worker_group, *args, **kwargs)
        except BaseException:
            self._controller.ranks.abort(attempt)
            raise
        self._controller.ignore_signals()
        self._controller.ranks.all_spawned(worker_group.workers[0].world_size)
        self._controller.standbys.began(attempt)
        return ids

    @property
    def _attempt(self) -> int:
        return self._environment.attempt if self._environment else 0

    def spawn(self, **asked: Any) -> RankHandler:  # noqa: ANN401
        """Start one rank, in place of torch's `get_subprocess_handler`."""
        if self._environment is None:
            msg = "a rank was asked for before any attempt"
            raise RuntimeError(msg)
        self._controller.ignore_signals()  # torch has just set its own handlers, HUP's too; the ranks inherit the ignored signals
        return RankHandler(self._output, self._environment, **asked)

    def _monitor_workers(self, worker_group: Any, *args: Any, **kwargs: Any) -> RunResult:  # noqa: ANN401
        """Wait for the attempt's end.

        torch is asked only after a success: on failure it would wait 30 s for the ranks by itself, and die of a half-written error file.
        """
        outcome = self._await_outcome()
        if outcome is None:
            return RunResult(state=WorkerState.HEALTHY)
        if outcome == outcomes.ALL_EXITED_0:
            outcome = self._settle()
        if outcome == outcomes.SUCCEEDED:
            self._controller.over_for_all = True
            result: RunResult = super()._monitor_workers(worker_group, *args, **kwargs)
            return result
        self._remaining_restarts = max(1, self._remaining_restarts)  # torch would return at 0; whether to continue is decided at the gate
        return RunResult(state=WorkerState.FAILED)

    def _await_outcome(self) -> str | None:
        """Wait for the attempt's end, at most torch's interval; meanwhile standbys are prepared: only this thread may start a process."""
        standbys, until = self._controller.standbys, time.monotonic() + self._interval_s
        while True:
            standbys.tick(self._attempt)
            left_s = until - time.monotonic()
            outcome = self._controller.ranks.wait(self._attempt, max(0.0, min(STANDBY_POLL_S, left_s)))
            if outcome is not None or left_s <= STANDBY_POLL_S:
                return outcome

    def _settle(self) -> str:
        """Report success; of several nodes once every node's ranks have ended well. In place of torch's exit barrier, which nothing ends.

        An agent without supervisor waits until its guardian ends it: that asked its ranks to save, and a script may exit 0 after that.
        """
        attempt = self._attempt
        return self._controller.await_success(attempt) if self._nodes > 1 else self._controller.ranks.settle(attempt)

    def _exit_barrier(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Nothing: `_settle` came before, where a stop can end the wait."""

    def _stop_workers(self, worker_group: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """The ranks are dead already, by the watcher's hand; torch reaps them and closes its logs."""
        self._controller.end_ranks(self._attempt)
        super()._stop_workers(worker_group, *args, **kwargs)
        self._rounds.drop_attempt_store()

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Also the end of a failed rendezvous or spawn, where ranks may live: torch's own closing would wait 30 s for each."""
        self._controller.end_ranks(self._attempt)
        if self._controller.ranks.alive() == 0:
            super()._shutdown(*args, **kwargs)


def script_args_set(own: Sequence[str], wanted: ScriptArgs | None) -> Sequence[str]:
    """Return torchrun's arguments of a rank with the script's own replaced. Raises ValueError if they do not end with `before`."""
    if wanted is None:
        return own
    head = len(own) - len(wanted.before)
    if head < 0 or tuple(own[head:]) != wanted.before:
        msg = f"the script's arguments cannot be changed: torchrun reads them as {list(own)}, and not as {list(wanted.before)}"
        raise ValueError(msg)
    return [*own[:head], *wanted.after]


def install(launcher: Any, controller: AttemptController, output: OutputChannel, nodes: int) -> None:  # noqa: ANN401  torch.distributed.launcher.api, the module
    """Put our agent in place of torch's, and our spawning in place of its own."""

    @functools.wraps(LocalElasticAgent)
    def make(*args: Any, **kwargs: Any) -> GatedAgent:  # noqa: ANN401
        agent = GatedAgent(*args, controller=controller, output=output, nodes=nodes, **kwargs)
        vars(processes)["get_subprocess_handler"] = agent.spawn
        return agent

    launcher.LocalElasticAgent = make
    if nodes == 1:
        meet_at_once()
    # torch's handler raises in the main thread whatever it is doing; its name is looked up when torch registers it
    vars(processes)["_terminate_process_handler"] = nothing
