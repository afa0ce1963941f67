"""Checks this node and its GPUs before an attempt and while it runs, lists the GPUs once, and takes those that fail out of use.

Work that waits for a driver or a disk runs in a worker thread, except `list_gpus`, which runs before the loop. If a check breaks, the
attempt begins all the same.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from supervisor.core import actions as act
from supervisor.core.events import GpusListed, HealthChanged, HealthChecked
from supervisor.core.model import Launcher as LauncherKind
from supervisor.core.values import replace
from supervisor.job.identity import state_root
from supervisor.launch import launchers
from supervisor.node import rank_places
from supervisor.node.health_watch import HealthWatch, NodeHealth, shown
from supervisor.node.node_environment import NodeEnvironment

if TYPE_CHECKING:
    from supervisor.core.model import Finding, Gpu, RankInfo
    from supervisor.job.job import Job
    from supervisor.report.reporter import Reporter
    from supervisor.run.factory import JobFactory
    from supervisor.run.loop import Loop
    from supervisor.run.threads import Threads


class NodeRequests:
    """Checks one node for one job, lists its GPUs and takes bad ones out of use.

    Public methods are called on the loop's thread or while no loop runs; `ranks_on_gpus` also by the thread that collects evidence.
    """

    def __init__(self, job: Job, loop: Loop, reporter: Reporter, factory: JobFactory, threads: Threads) -> None:
        self._job = job
        self._loop = loop
        self._reporter = reporter
        self._factory = factory
        self._threads = threads
        self.health = HealthWatch(job, factory.signatures, lambda findings: loop.post(HealthChanged(loop.clock.now(), findings)))
        self.environment = NodeEnvironment(job, factory.torchrun.interpreter if factory.torchrun is not None else None)
        self._gpus_listed = False
        self._ledger_writes: list[threading.Event] = []  # one for each write to the ledger, set when it is done
        self._of_this_run: dict[str, str] = {}  # GPUs that the ledger could not record, with the reason why they are out of use
        self._unwritten: queue.SimpleQueue[act.PrintMessage] = queue.SimpleQueue()  # writes that failed; printed on the loop's thread

    def check(self, action: act.CheckHealth) -> None:
        """Check this node. If the check fails, its findings are empty. If it hangs, the core's timer continues without it."""

        def check_node() -> tuple[tuple[Finding, ...], str]:
            node = self.health.before(*self._factory.health_paths(), alone=action.awaited)
            ranks = () if self._gpus_listed else self._rank_places(node)  # once: if a GPU fails later, the command is not at fault
            return (*ranks, *shown(node.findings, self._job.environ, self._gpu_uuids(node))), node.problem

        def work() -> None:
            try:
                findings, problem = check_node()
            except Exception as error:  # noqa: BLE001 (a bug in a check must not hold a job back)
                findings, problem = (), f"this node could not be checked: {type(error).__name__}: {error}"
            if problem:
                self._loop.call_soon(lambda: self._warn(f"health: {problem}"))
            now, late = self._loop.clock.now(), self._loop.state.attempt.number != action.attempt  # the attempt began without it
            self._loop.post(
                HealthChanged(now, findings) if late else HealthChecked(now, action.attempt, findings, self._factory.command_nproc)
            )

        self._threads.start("health-check", work)

    def _rank_places(self, node: NodeHealth) -> tuple[Finding, ...]:
        """Warn if the ranks of the command do not fit the GPUs, and return the findings that prevent an attempt.

        There are none for a run that continues with fewer ranks than its command names.
        """
        if not self.health.has_gpus or self._loop.state.run.nproc:
            return ()
        job = self._job
        ranks = launchers.planned_ranks(job.command, job.environ, job.cwd)
        places = rank_places.findings(ranks, job.environ, node.readings, os.sched_getaffinity(0))
        for place in places:
            if not place.blocks:
                self._loop.call_soon(lambda text=place.reason: self._warn(text))  # type: ignore[misc]  # (a bound loop variable)
        return tuple(place for place in places if place.blocks)

    def _gpu_uuids(self, node: NodeHealth) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs that the job sees.

        The first call also lists the GPUs and ends the quarantine of those that recovered.
        """
        if not self.health.has_gpus:
            return ()
        if not self._gpus_listed:  # once: a GPU that is lost later would move the numbers of the others
            self._gpus_listed = True
            with contextlib.suppress(OSError):  # a ledger that cannot be read: list_gpus already warned
                for entry in self._factory.release(node.readings):
                    self._loop.call_soon(lambda entry=entry: self._reporter.released(entry))  # type: ignore[misc] # (a bound loop variable)
                gpus = self._factory.gpus_of(node.readings) or self._factory.gpus()
                if gpus:
                    self._loop.post(GpusListed(self._loop.clock.now(), gpus))
                    return tuple(gpu.uuid for gpu in gpus)
        return tuple(gpu.uuid for gpu in self._loop.state.gpus)

    def read_environment(self) -> None:
        """Read the environment of this node, where other nodes may compare it with theirs."""
        if self._job.settings.health.enabled and self._factory.has_several_nodes:
            self._threads.start("environment", self.environment.read, awaited=False)

    def ask_slurm(self) -> None:
        """In a Slurm job, report what the controller and the batch script show. Nothing waits for the answer."""
        from supervisor.launch import slurm_batch  # noqa: PLC0415  for jobs of Slurm only

        def work() -> None:
            for level, text in slurm_batch.reports(self._job.environ, self._job.name, state_root(self._job.state)):
                message = act.PrintMessage(level, text)
                self._loop.call_soon(lambda message=message: self._reporter.print_message(message))  # type: ignore[misc] # (a bound loop variable)

        if slurm_batch.is_first(self._job.environ):
            self._threads.start("slurm", work, awaited=False)

    def list_gpus(self) -> None:
        """List the GPUs. If a GPU is quarantined, list them before the first attempt; else (nearly always) while it starts."""
        try:
            held = self._factory.held_gpus()
        except OSError as error:
            self._warn(f"the ledger of GPUs cannot be read, so no GPU is left out: {self._factory.ledger.path}: {error}")
            held = ()
        if self.health.has_gpus:
            return  # the check before the first attempt lists them
        if not held:
            self._threads.start("gpus", self._list, awaited=False)
            return
        with contextlib.suppress(OSError):
            gpus = self._factory.gpus()
            self._loop.post(GpusListed(self._loop.clock.now(), gpus))
            if not gpus:
                names = ", ".join(entry.name for entry in held)
                self._warn(f"the quarantined GPUs {names} will be used all the same: the GPUs of this node cannot be listed")

    def _list(self) -> None:
        with contextlib.suppress(OSError):  # the ledger, which could be read a moment ago
            gpus = self._factory.gpus()
            if gpus:
                self._loop.post(GpusListed(self._loop.clock.now(), gpus))

    def gpus_by_ledger(self) -> tuple[Gpu, ...]:
        """Return this node's GPUs, as the ledger shows them now; empty if it cannot be read. Called in the thread that collects evidence.

        A GPU that was reset since then and is well returns to use, as at a start. A GPU that the ledger could not record stays out of use.
        """
        if not all(written.is_set() for written in self._ledger_writes):
            return ()
        try:
            if self.health.has_gpus:
                for entry in self._factory.release(self.health.last_readings()):
                    self._loop.call_soon(lambda entry=entry: self._reporter.released(entry))  # type: ignore[misc] # (a bound loop variable)
            gpus = self._factory.known_gpus()
        except OSError:
            return ()
        return tuple(replace(gpu, quarantined=gpu.quarantined or self._of_this_run.get(gpu.uuid, "")) for gpu in gpus)

    def examine_shared_memory(self) -> None:
        """Print the fault of /dev/shm. With GPUs the check before each attempt reports it."""
        if self.health.has_gpus or not self._job.settings.health.enabled:
            return
        if check_result := self.health.shared_memory():
            self._warn(f"health: {check_result.reason}; the job continues ({check_result.command})")

    def _warn(self, text: str) -> None:
        self._reporter.print_message(act.PrintMessage("warning", text))

    def quarantine(self, action: act.Quarantine) -> None:
        """Take a GPU out of use, also for later restarts and requeues. GpusListed is the answer."""
        self._reporter.quarantined(action)
        written = threading.Event()
        self._ledger_writes.append(written)

        def work() -> None:
            try:
                errors = self.health.uncorrected(action.gpu.uuid)
                gpus = self._factory.quarantine(action, -1 if errors is None else errors)
                if gpus:  # an empty list means that the GPUs could not be listed: the core then keeps the list it has
                    self._loop.post(GpusListed(self._loop.clock.now(), gpus))
            except OSError as error:
                self._of_this_run[action.gpu.uuid] = action.reason
                name = action.gpu.uuid or action.gpu.pci
                text = f"GPU {name} is out of use for this run only: {self._factory.ledger.path} could not be written: {error}"
                self._unwritten.put(act.PrintMessage("warning", text))
                self._loop.call_soon(self._print_unwritten)
            finally:
                written.set()

        self._threads.start("ledger", work, awaited=False)

    def wait_written(self, deadline_s: float) -> bool:
        """Wait until the ledger is written. False if the disk does not answer within the deadline."""
        until = time.monotonic() + deadline_s
        all_written = all(written.wait(max(0.0, until - time.monotonic())) for written in self._ledger_writes)
        self._print_unwritten()  # the loop may have ended before it printed them
        return all_written

    def _print_unwritten(self) -> None:
        while not self._unwritten.empty():
            self._reporter.print_message(self._unwritten.get())

    def ranks_on_gpus(self, ranks: tuple[RankInfo, ...]) -> dict[str, int]:
        """Return, for each GPU's UUID, the rank that uses it. Empty unless the launcher is elastic and each rank has a GPU of its own."""
        state = self._loop.state
        visible = [gpu.uuid for gpu in state.gpus if not state.attempt.visible_gpus or gpu.uuid in state.attempt.visible_gpus]
        if state.run.policy.launcher is not LauncherKind.ELASTIC or len(ranks) > len(visible):
            return {}
        return {visible[rank.local_rank]: rank.rank for rank in ranks if rank.local_rank < len(visible)}
