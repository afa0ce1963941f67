"""Makes the parts that an executor works with: guardians, sessions, selections. Only this file knows which class does what."""

from __future__ import annotations

import contextlib
import functools
import importlib
import shutil
import threading
import time
from typing import TYPE_CHECKING

from checkpointing.discover import allocated_bytes
from checkpointing.model import CheckpointingError
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.config import loss_rules, signatures
from supervisor.config.health import directories
from supervisor.core.model import Gpu, Launcher
from supervisor.core.values import replace
from supervisor.guardian import ownership, process_tree
from supervisor.guardian.libc import return_free_memory
from supervisor.job import identity
from supervisor.knobs import python_command, torchrun
from supervisor.launch.early_agent import agent_argv
from supervisor.launch.guardian_client import GuardianClient
from supervisor.launch.plain_session import PlainSession
from supervisor.node import gpu_quarantine, visible_gpus
from supervisor.node.gpu_quarantine import GpuQuarantine, QuarantinedGpu
from supervisor.observe import anchor_scanner
from supervisor.run.job_nodes import JobNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from health.model import Readings
    from supervisor.checkpoints.recording.reports import CheckpointReport
    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.scanner import Scanner
    from supervisor.classify.losses.rules import LossRule
    from supervisor.core.actions import Quarantine
    from supervisor.guardian.ownership import LeftProcess
    from supervisor.job.job import Job
    from supervisor.launch.early_agent import EarlyAgent
    from supervisor.launch.guardian_client import OnEvent
    from supervisor.launch.session import Session, SessionContext
    from supervisor.run.job_nodes import AttemptOrders
    from supervisor.run.loop import Loop

SWEEP_GRACE_S = 1.0
PROCESSES = "processes.jsonl"


class JobFactory:
    """Makes parts for one job. `ignored` are the signals that were ignored when we were started.

    `report` gets the findings about checkpoints, from worker threads. `early`: an agent and a guardian that run already.
    """

    def __init__(
        self,
        job: Job,
        ignored: Collection[int],
        report: Callable[[CheckpointReport], None],
        early: EarlyAgent | None = None,
    ) -> None:
        self._job = job
        self._ignored = ignored
        self._recorded: set[tuple[int, int]] = set()
        self._signatures: tuple[Catalogue, Scanner] | None = None
        self._scanner: anchor_scanner.UpgradingScanner | None = None
        self._reading = threading.Lock()
        self._early = early
        self._orphans = ownership.Orphans(job.cookie) if early is None else early.orphans
        self._gpus: tuple[Gpu, ...] = ()
        self.ledger = GpuQuarantine(identity.state_root(job.state), job.node)
        self.torchrun = torchrun.recognise(job.command, path=job.environ.get("PATH"))
        self.checkpoints = JobCheckpoints(job, report, several_nodes=self.has_several_nodes)

    @property
    def launcher(self) -> Launcher:
        """How the ranks are run."""
        return torchrun.launcher(self.torchrun)

    @property
    def standby_refusal(self) -> str:
        """Return why the command's ranks can have no standbys, "" where they may."""
        if not self._job.settings.instrument.enabled:
            return "the instrumentation is off (--set instrument.enabled=false)"
        if self.torchrun is None and python_command.shim_mode(self._job.command) != "rank":
            return "the command starts its ranks by itself"
        return ""

    def world_size(self, nproc: int | None) -> int | None:
        """Return the ranks of an attempt that has `nproc` of them here (None: as in the command); None: unknown.

        With several nodes it is unknown: another one may have left a GPU out.
        """
        per_node, nodes = torchrun.size(self.torchrun, self._job.environ)
        return (nproc or per_node or None) if nodes == 1 else None

    @property
    def has_early_guardian(self) -> bool:
        """Whether a guardian runs already, and nobody listens to it yet."""
        return self._early is not None

    def start_guardian(self, on_event: OnEvent, on_died: Callable[[], None]) -> GuardianClient:
        """Return the guardian that runs already, or start one. A start waits for its hello, so it belongs in a worker thread."""
        early, self._early = self._early, None
        guardian = early.listen(on_event, on_died) if early is not None else GuardianClient.start(on_event, on_died, ignored=self._ignored)
        itself = process_tree.read(guardian.pid)
        self._orphans.seen([itself] if itself else [])
        return guardian

    def signatures(self) -> tuple[Catalogue, Scanner]:
        """Return all signatures, and the scanner for their anchors. The first call makes them: about 0.1 s, 3 MiB. From any thread."""
        with self._reading:
            if self._signatures is None:
                catalogue, _ = signatures.configured(self._job.settings)
                self._scanner = anchor_scanner.made_apart(catalogue.anchors)
                self._signatures = catalogue, self._scanner
                return_free_memory()  # the rows are read from text that is larger than they are
            return self._signatures

    def loss_rules(self) -> tuple[LossRule, ...]:
        """Return the loss rules in use."""
        return loss_rules.configured(self._job.settings)

    def close(self) -> None:
        """End the scanner if it is still being made."""
        if self._scanner is not None:
            self._scanner.close()

    def record_descendants(self, root: int) -> list[process_tree.ProcessStat]:
        """Record the process tree below `root`, the guardian, for the sweep of the next start, and return it. Raises OSError.

        The record is in memory: it must outlive us, not the machine. The guardian itself has no cookie, and ends by itself.
        """
        processes = process_tree.snapshot()
        ownership.collect_zombies(processes)
        descendants = process_tree.below(root, processes)
        self._orphans.seen(descendants)
        for process in descendants:
            name = (process.pid, process.start_ticks)
            if name not in self._recorded:
                self._recorded.add(name)
                self._record([process.pid], "process")
        return descendants

    @functools.cached_property
    def _agent_argv(self) -> list[str] | None:
        return agent_argv(self._job.settings, self.torchrun)

    def read_for_session(self) -> None:
        """Read what `session` needs: its code, and where our output goes. In a worker thread."""
        if self._agent_argv is not None:
            importlib.import_module("supervisor.launch.elastic_session")

    def session(self, context: SessionContext) -> Session:
        """Make the session that the command asks for."""
        command = self.torchrun
        if command is None:
            return PlainSession(context, lambda argv, _nproc: argv, self._shim(python_command.shim_mode(self._job.command)))
        argv = self._agent_argv
        if argv is None:
            return self.stock_session(context)
        from supervisor.launch.elastic_session import ElasticSession  # noqa: PLC0415 (its messages cost a plain command's start a tenth)

        script_args = torchrun.script_arguments(command)
        return ElasticSession(context, argv, shim=self._shim("launcher"), script_args=script_args, early=self._early)

    def stock_session(self, context: SessionContext) -> Session:
        """Make the session that runs stock torchrun, which we restart."""
        command = self.torchrun

        def shape(argv: Sequence[str], nproc: int | None) -> Sequence[str]:
            if command is None:
                return argv
            changed = replace(command, args=tuple(argv[len(command.head) :]))  # an attempt changes only the words after the script
            return torchrun.stock_argv(changed, nproc)

        return PlainSession(context, shape, self._shim("launcher"))

    def end_orphans(self) -> tuple[LeftProcess, ...]:
        """End the job's processes that became this process's children when the guardian died."""
        return self._orphans.end(SWEEP_GRACE_S)

    def end_predecessors(self) -> tuple[LeftProcess, ...]:
        """End the processes that provably belong to an earlier supervisor of this job; return those that are left, or may be."""
        file = self._job.scratch / PROCESSES
        left = ownership.end_recorded(ownership.read_records(str(file)), identity.boot_id()).left
        file.unlink(missing_ok=True)
        self._record((process.pid for process in left if process.unkilled), ownership.UNKILLED)
        return left

    def remove_scratch(self, unkilled: Iterable[int]) -> None:
        """Remove the files of the running job, except the record of processes that KILL did not end: the next start waits for them."""
        pids = tuple(unkilled)
        shutil.rmtree(self._job.scratch, ignore_errors=True)
        if pids:
            with contextlib.suppress(OSError):
                self._job.scratch.mkdir(mode=0o700, exist_ok=True)
                self._record(pids, ownership.UNKILLED)

    def _record(self, pids: Iterable[int], role: str) -> None:
        for pid in pids:
            ownership.record_process(str(self._job.scratch / PROCESSES), pid, identity.boot_id(), self._job.cookie, role)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that the job can see, with the ledger's entry on each. Raises OSError.

        It asks the driver: not on the loop's thread.
        """
        seen = visible_gpus.visible_gpus(self._job.environ)
        self._gpus = tuple(Gpu(gpu.index, gpu.uuid, gpu.pci) for gpu in seen)
        return self._with_ledger()

    def gpus_of(self, now: Readings) -> tuple[Gpu, ...]:
        """Return the same GPUs, as NVML lists them. Raises OSError."""
        self._gpus = tuple(Gpu(gpu.index, gpu.uuid, gpu.pci) for gpu in visible_gpus.from_nvml(now, self._job.environ))
        return self._with_ledger()

    def known_gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs as they were last listed, with the ledger's entry on each as it is now. Raises OSError."""
        return self._with_ledger()

    def release(self, now: Readings) -> tuple[QuarantinedGpu, ...]:
        """Put GPUs back into use that were reset since and are well (gpu_quarantine.is_well_again). Raises OSError."""
        boot = identity.this_process().boot_id
        well = [entry for entry in self.held_gpus() if gpu_quarantine.is_well_again(entry, now, boot)]
        return tuple(freed for entry in well for freed in self.ledger.clear(entry.uuid, time.time(), "health"))

    def health_paths(self) -> tuple[tuple[str, ...], int]:
        """Return the directories to which checkpoints are written, and how large the newest is that is there. Reads directories.

        A larger one may be the model from which the training began.
        """
        paths = directories(self._job.settings.checkpoints.paths, str(self._job.cwd))
        with contextlib.suppress(CheckpointingError, OSError):
            newest = self.checkpoints.records.order.order().newest_candidates(self.checkpoints.listing().candidates)
            return paths, allocated_bytes(newest[0]) if newest else 0
        return paths, 0

    @property
    def command_nproc(self) -> int:
        """The number of ranks on a node, as the command says it; 0: unknown."""
        return torchrun.size(self.torchrun, self._job.environ)[0]

    def most_nodes(self) -> int:
        """Return the largest number of nodes of an attempt, as the command says it; 0: unknown.

        The state begins with this number and holds it from then on, because torch corrects it (LauncherStarted).
        """
        return torchrun.most_nodes(self.torchrun, self._job.environ)

    def least_nodes(self) -> int:
        """Return the smallest number of nodes with which an attempt may begin; 0: unknown. torch may correct it, too."""
        return torchrun.least_nodes(self.torchrun, self._job.environ)

    @property
    def has_several_nodes(self) -> bool:
        """Whether ranks on other nodes may write checkpoints. True also if the command leaves that open, until the run's end.

        Files are judged by this before the first attempt, when the state cannot know better; a wrong True changes no file.
        """
        return self.torchrun is not None and self.most_nodes() != 1

    def nodes(self, loop: Loop, orders: AttemptOrders, warn: Callable[[str], None]) -> JobNodes:
        """Make this node's part in a job of several nodes."""
        return JobNodes(self._job, torchrun.rendezvous_id(self.torchrun, self._job.environ), loop, orders, warn)

    def quarantine(self, action: Quarantine, errors: int = -1) -> tuple[Gpu, ...]:
        """Record a GPU as out of use; return all GPUs seen at the start, empty if they could not be listed. Raises OSError.

        errors: the uncorrectable errors that the GPU has counted since its last reset, -1 if that is not known.

        The driver is not asked again: it may not know a lost GPU any more.
        """
        gpu, job = action.gpu, self._job
        boot = identity.this_process().boot_id
        self.ledger.quarantine(
            QuarantinedGpu(gpu.uuid, gpu.pci, action.reason, action.evidence, time.time(), job.name, job.run_id, boot, errors)
        )
        return self._with_ledger()

    def held_gpus(self) -> tuple[QuarantinedGpu, ...]:
        """Return what the ledger keeps out of use. Raises OSError."""
        return self.ledger.held(time.time())

    def _with_ledger(self) -> tuple[Gpu, ...]:
        held = self.held_gpus()
        return tuple(replace(gpu, quarantined=gpu_quarantine.why(held, gpu.uuid, gpu.pci)) for gpu in self._gpus)

    def clear_scratch(self, *, keep_attempts: bool) -> None:
        """Remove what a killed supervisor left: its save request, and (unless kept) the attempts' heartbeats and load logs."""
        for name in ("save-now", "wants-save"):
            (self._job.scratch / name).unlink(missing_ok=True)
        for directory in () if keep_attempts else self._job.scratch.glob("attempt-[0-9]*"):
            shutil.rmtree(directory, ignore_errors=True)

    def _shim(self, mode: str) -> str:
        return mode if self._job.settings.instrument.enabled else "off"
