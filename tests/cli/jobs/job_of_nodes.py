"""A job of several nodes that share a state directory: each has a real journal, and their failures are decided for real."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import CheckpointRef, Evidence, Phase, Policy, RankExit, RankInfo
from supervisor.core.state import NodeReport
from supervisor.job import identity
from supervisor.journal.records import RunBegan, RunEnded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.recorded_job import RecordedJob


class JobOfNodes:
    """The nodes, each with one rank of its own number. One whose name is this host's is run by this very process."""

    def __init__(self, make_job: type[RecordedJob], root: Path, *hosts: str) -> None:
        self.hosts, self.make_job, self.root = hosts, make_job, root
        self.nodes: dict[str, Any] = {}
        self.met: tuple[str, ...] = ()
        self.t0 = time.time() + 10.0  # after the journals were opened, which is their first record
        for host in hosts:
            self.begin(host)

    def begin(self, host: str) -> None:
        """Begin a run on one node."""
        job = self.nodes[host] = self.make_job(self.root, node=host)
        job.T0 = self.t0
        pid, ticks = (os.getpid(), identity.this_process().start_ticks) if host == identity.node_name() else (1, 1)
        boot = identity.boot_id() if host == identity.node_name() else "another"
        job.journal.append(RunBegan(f"run of {host}", ("train.py",), "d", "0", pid, ticks, boot), t=job.T0, durable=True)
        job.feed(events.SupervisorStarted(job.T0, f"run of {host}", Policy(nodes=len(self.hosts), checkpoints_declared=True)))

    @property
    def here(self) -> list[tuple[int, Any]]:
        """The nodes of the newest attempt, each with its number."""
        return [(index, self.nodes[host]) for index, host in enumerate(self.met)]

    def meet(self, at: float, number: int, *hosts: str, chosen: int | None = None) -> None:
        """Meet for an attempt of this number, agree, and start the ranks."""
        self.met = hosts or self.hosts
        members = tuple(f"{host}/id" for host in self.met)
        for index, job in self.here:
            t = job.T0 + at
            for timer in [a for a in job.actions if isinstance(a, act.SetTimer) and a.name == "backoff"][-1:]:
                job.feed(events.TimerFired(t, timer.name, timer.token))
            ref = None if chosen is None else CheckpointRef(f"{chosen}.pt", chosen, "structure")
            job.feed(
                events.NodesGathered(t, job.state.attempt.number, index, len(members), number, members),
                events.CheckpointSelected(t, number, ref, 1 if ref else 0, agreement=number),
                events.AttemptStarted(t, number, (RankInfo(index, 0, 100 + index, 7),), len(members)),
            )

    def train(self, at: float, step: int, *, resumed: str | None = None) -> None:
        """Make a step."""
        for _, job in self.here:
            job.feed(events.ProgressObserved(job.T0 + at, job.state.attempt.number, step, 1, Phase.TRAIN, resumed, first_step=step))

    def fail(self, at: float, host: str, *, lost: bool = False) -> None:
        """Let the rank of this node be killed, or the node be lost; all nodes that are left act on one decision."""
        failed, number = self.met.index(host), self.nodes[host].state.attempt.number
        left = [(index, job) for index, job in self.here if not (lost and index == failed)]
        text = "silent for 60 s" if lost else f"rank {failed}: killed by signal 9"
        for index, job in left:
            t, is_own = job.T0 + at, index == failed
            ended = events.RankExited(t, number, RankExit(failed, 100 + failed, 10, signal=9))
            job.feed(ended if is_own else events.AttemptEndedByPeer(t, number, f"{host}/id", text))
            job.feed(events.AttemptEnded(t + 1, number, "failed"))
            facts = (Evidence("exit", "signal", "9", failed, t),) if is_own else (Evidence("exit", "ended_by_us", "15", index, t + 0.5),)
            beats = Evidence("heartbeat", "step", str(60 + index), index), Evidence("heartbeat", "phase", "train", index)
            job.feed(events.EvidenceCollected(t + 1, number, job.state.incidents, (*facts, *beats)))
        reports = tuple(NodeReport(f"{self.met[index]}/id", job.state.attempt) for index, job in left)
        missing = ((f"{host}/id", f"lost: {text}"),) if lost else ()
        coordinator = left[0][1]
        coordinator.feed(events.ReportsGathered(coordinator.T0 + at + 2, number, reports, missing, "failure", f"{host}/id", text))
        proposed = next(a for a in reversed(coordinator.actions) if isinstance(a, act.ProposeDecision))
        for _, job in left:
            job.feed(events.DecisionMade(job.T0 + at + 2, number, proposed.kind, proposed.decision))

    def end(self, at: float, code: int = 0) -> None:
        """End the job on all nodes of the newest attempt."""
        for _, job in self.here:
            job.feed(events.DecisionMade(job.T0 + at, job.state.attempt.number, "success"))
            job.feed(events.AttemptEnded(job.T0 + at, job.state.attempt.number, "succeeded"))
            job.journal.append(RunEnded(code), t=job.T0 + at, durable=True)
        self.close()

    def close(self) -> None:
        """Bring all to the disk."""
        for node in self.nodes.values():
            node.close()
