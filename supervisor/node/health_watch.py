"""Watches this node's health for one job: before each attempt, while it runs, and after a failure.

Probes run in processes that can be killed (health/probing/runner.py). One that hangs costs its own readings, is reported as a finding, and
is not asked again before an attempt until it answers. A check may take seconds, so none runs on the loop's thread.

Without an NVIDIA GPU only the space on the disks is watched to which declared checkpoints go, and the size of /dev/shm at the start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health import registry
from health.checks.gpu import gpus
from health.judge import FAILED_ITSELF, judge
from health.model import HOST, Ask, Readings, Result
from health.nvidia.xid_history import Memory
from health.probes import system_files
from health.probes.gpu import pci
from health.probing.runner import OUTCOME, Runner, asked
from supervisor.config.health import thresholds
from supervisor.config.intervals import SAMPLE_S
from supervisor.core.model import Evidence, Finding
from supervisor.core.values import Struct, replace
from supervisor.guardian import ownership
from supervisor.launch import rendezvous_ports
from supervisor.node import gpu_changes, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from health.model import CheckResult
    from supervisor.job.job import Job
    from supervisor.observe.log_watch import Signatures

#: The deadline of the check before an attempt; its answer is awaited a little longer (Policy.health_deadline_s).
DEADLINE_S: Final = 8.0
#: The deadline of the check after the ranks are gone: the verdict waits for it.
AFTER_S: Final = 0.9
#: How long the verdict waits for a sample that is under way.
_TURN_S: Final = 0.3
#: And how long an attempt does.
_START_TURN_S: Final = 2.0
_CLOSING_S: Final = 0.5
#: The probes that show a GPU's end.
AFTER: Final = ("nvml",)
DISKS: Final = ("disk",)
#: Judged before an attempt only: while it runs its own ranks hold the memory, and in a container they have other pids for NVML.
NOT_SAMPLED: Final = frozenset({"gpu_memory"})
#: The start warns of it, also where no probe is read.
_OF_THE_START: Final = frozenset({"env_slurm"})
MOST: Final = 40
MOST_CHARACTERS: Final = 300
NVML: Final = "libnvidia-ml.so.1"
_MARKS: Final = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
#: How a probe ends that will give no more readings.
_ENDED: Final = frozenset({"answered", "failed"})
_SEVERITY: Final = {Result.OK: 0, Result.DEGRADED: 1, Result.FAILED: 2}


class NodeHealth(Struct, frozen=True):
    """This node before an attempt. problem: why nothing, or not everything, could be read."""

    readings: Readings
    findings: tuple[Finding, ...]
    problem: str = ""


class HealthWatch:
    """Reads this node's health for one job. `on_change` gets the findings that became better or worse, in a thread."""

    def __init__(self, job: Job, signatures: Signatures, on_change: Callable[[tuple[Finding, ...]], None]) -> None:
        self._job, self._signatures, self._on_change = job, signatures, on_change
        settings = job.settings
        self.has_gpus = settings.health.enabled and has_gpus(job.environ)
        self._limits = thresholds(settings)
        self._checks = {name: check for name, check in registry.checks().items() if name not in _OF_THE_START}
        self._sampled = {name: check for name, check in self._checks.items() if name not in NOT_SAMPLED}
        self._rendezvous = rendezvous_ports.of(job.command, job.environ)
        self._is_of_several_nodes = rendezvous_ports.is_of_several_nodes(job.command, job.environ)
        known = registry.fast() if self.has_gpus else DISKS
        self.probes = tuple(name for name in known if name in registry.PROBES and (name not in DISKS or settings.checkpoints.paths))
        self.enabled = settings.health.enabled and bool(self.probes)
        self._runner = Runner(job.environ, start=ownership.started)
        self._turn = threading.Lock()  # of the runner
        self._hung: set[str] = set()
        self._failures: set[str] = set()  # checks whose own failure was reported
        self._baseline: Readings | None = None
        self._based: set[str] = set()  # the probes whose readings are in it
        self._before: Readings | None = None  # of this attempt
        self._last: Readings | None = None
        self._results: dict[str, Result] = {}  # by check; replaced, never changed
        self._reported: dict[tuple[str, str, str], int] = {}
        self._memory = Memory()
        self._xids: list[gpu_changes.DriverXid] = []
        self._stop: threading.Event | None = None

    def before(self, paths: Sequence[str], need_bytes: int, *, alone: bool = True) -> NodeHealth:
        """Read all that may hold an attempt back. Takes DEADLINE_S at most, and the start of a process. alone: no rank of the job runs."""
        wanted = tuple(name for name in self.probes if name not in self._hung)
        with self._turns(_START_TURN_S) as is_our_turn:
            if not is_our_turn:
                return NodeHealth(Readings(), (), "an earlier check of this node hangs")
            ask = dataclasses.replace(
                self._ask(DEADLINE_S, paths, need_bytes),
                hosts=self._rendezvous.hosts,
                ports=self._rendezvous.ports,
                options={"names": {"several_nodes": self._is_of_several_nodes}},
            )
            now = self._runner.sweep(wanted, ask)
            skipped = ", ".join(sorted(self._hung))
            self._note_hung(now)
            results = judge(now, self._baseline, self._limits, self._checks if alone else self._sampled)
            self._note_results(results)
            self._begin_from(now)
            self._last = now if now.of("gpu.identity") else None
            self._before = self._last if _in_full(now) else None
            ill = [check_result for check_result in results if check_result.result in {Result.DEGRADED, Result.FAILED}]
            findings = tuple(self._named(finding_of(result)) for result in ill[:MOST])
            self._reported = {finding.about: _SEVERITY[Result(finding.result)] for finding in findings}
        problems = [f"not read, because it hung before: {skipped}"] if skipped else []
        return NodeHealth(now, findings, "; ".join([*problems, *self._failed(results)]))

    def _failed(self, results: Iterable[CheckResult]) -> list[str]:
        """Return which checks failed themselves: each once."""
        failed = {
            f"check {check_result.check}": check_result.reason for check_result in results if check_result.reason.startswith(FAILED_ITSELF)
        }
        new = {name: why for name, why in failed.items() if name not in self._failures}
        self._failures |= new.keys()
        return [f"{name}: {why}" for name, why in new.items()]

    def _begin_from(self, now: Readings) -> None:
        """Keep what each probe read when it first answered: what moves is judged against it."""
        late = {name for name in asked(now) if now.table(OUTCOME, f"probe:{name}").get("state") not in _ENDED}
        new = asked(now) - late - self._based
        if self._baseline is None:
            self._baseline = Readings(reading for reading in now if reading.probe not in late)
        elif new:
            self._baseline += Readings(reading for reading in now if reading.probe in new)
        self._based |= new

    def _note_hung(self, now: Readings) -> None:
        for reading in now.of(OUTCOME):
            name, state = reading.subject.removeprefix("probe:"), now.table(OUTCOME, reading.subject).get("state")
            if state == "hung":
                self._hung.add(name)
            elif state == "answered":
                self._hung.discard(name)

    def _named(self, finding: Finding) -> Finding:
        """Return a finding on a GPU that the driver cannot name any more by the name that it had when the job started."""
        if not finding.subject.startswith("gpu:#") or self._baseline is None:
            return finding
        at = finding.subject.removeprefix("gpu:#")
        uuids = (
            reading.subject
            for reading in self._baseline.of("gpu.identity")
            if isinstance(reading.value, dict) and str(reading.value.get("index")) == at
        )
        return replace(finding, subject=next(uuids, finding.subject))

    def shared_memory(self) -> CheckResult | None:
        """Return the fault of /dev/shm, None without one. It is memory: this never hangs, and needs no process of its own."""
        reading = system_files.room("host", HOST, "host.shm", system_files.SHM)
        results = registry.checks()["host_shm"](Readings((reading,)), None, self._limits)
        return next((check_result for check_result in results if check_result.result in {Result.DEGRADED, Result.FAILED}), None)

    def begin(self) -> None:
        """An attempt begins: sample from now on."""
        self._end_sampling()
        self._xids = []
        if not self.has_gpus:
            return
        stop = self._stop = threading.Event()
        try:
            threading.Thread(target=self._sample_until, args=(stop, SAMPLE_S), name="health", daemon=True).start()
        except RuntimeError:  # no thread can be started: nothing is seen meanwhile
            self._stop = None

    def close(self) -> None:
        """End what runs. A prober that is stuck ends with us: its requests come to an end."""
        self._end_sampling()
        with self._turns(_CLOSING_S) as is_our_turn:
            if is_our_turn:
                self._runner.close()

    def _end_sampling(self) -> None:
        if self._stop is not None:
            self._stop.set()
        self._stop = None

    def after(self, ranks: Mapping[str, int]) -> tuple[Evidence, ...]:
        """Return what the GPUs show of the end of this attempt. ranks: by UUID of the GPU, as far as they are known."""
        if not self.has_gpus:
            return ()
        now, problem = self._last_reading()
        overdue = (Evidence("observer", "overdue", f"nvml: {problem}"),) if problem else ()
        catalogue, _ = self._signatures()
        xids = gpu_changes.xid_facts(tuple(self._xids), self._memory, now, ranks, catalogue)
        return (*gpu_changes.changed(now, self._before, ranks), *xids, *overdue)

    def uncorrected(self, uuid: str) -> int | None:
        """Return how many uncorrectable errors a GPU has counted since its last reset, None where nobody knows."""
        return None if self._last is None else self._last.count("gpu.ecc_uncorrected_volatile", f"gpu:{uuid}")

    def _note_results(self, results: Iterable[CheckResult]) -> None:
        """Keep the worst result of each check; the worst comes first."""
        results_by_check: dict[str, Result] = {}
        for check_result in results:
            results_by_check.setdefault(check_result.check, check_result.result)
        self._results = {**self._results, **results_by_check}

    def last_results(self) -> Mapping[str, Result]:
        """Return the worst result of each check when it was last made. From any thread."""
        return self._results

    def last_readings(self) -> Readings:
        """Return the newest readings of the GPUs. From any thread."""
        return self._last or Readings()

    def _last_reading(self) -> tuple[Readings, str]:
        """Return the newest readings of the GPUs, and why some of them are older, "" where none is."""
        with self._turns(_TURN_S) as is_our_turn:
            if not is_our_turn:
                return self._last or Readings(), "a sample is under way and does not end; the one before it is used"
            now = self._runner.sample(AFTER, self._ask(AFTER_S))
            self._note_sample(now)
        if now.table(OUTCOME, "probe:nvml").get("state") != "answered":
            return _over(self._last, now), "no answer in time; the missing readings are of the last sample"
        return now, ""

    def _sample_until(self, stop: threading.Event, every_s: float) -> None:
        while not stop.is_set():
            changes: tuple[Finding, ...] = ()
            with self._turns(every_s) as is_our_turn, contextlib.suppress(OSError):  # no descriptor is free: one may be at the next
                if is_our_turn and not stop.is_set():
                    changes = self._sample()
            if changes and not stop.is_set():
                self._on_change(changes)
            stop.wait(every_s)

    def _sample(self) -> tuple[Finding, ...]:
        now = self._runner.sample(registry.sampled(), self._ask(DEADLINE_S))
        self._note_sample(now)
        self._note_hung(now)
        results = judge(now, self._baseline, self._limits, self._sampled)
        self._note_results(results)
        changes = self._changes(results)
        self._begin_from(now)
        return changes

    def _note_sample(self, now: Readings) -> None:
        """Remember what a sample saw."""
        new = tuple(gpu_changes.new_xids(now))
        gpu_changes.remember(new, self._memory)
        self._xids += new
        if now.of("gpu.identity"):
            in_full = _in_full(now)
            self._before = self._before or (now if in_full else None)
            self._last = now if in_full else _over(self._last, now)

    def _changes(self, results: Sequence[CheckResult]) -> tuple[Finding, ...]:
        """Return the results that differ from those reported last. UNKNOWN is not a change: the last state may still hold."""
        now: dict[tuple[str, str, str], Finding] = {}
        for check_result in results:  # worst first, and the worst of a check's several words on one thing counts
            if check_result.result in _SEVERITY:
                finding = self._named(finding_of(check_result))
                now.setdefault(finding.about, finding)
        new = [
            check_result for about, check_result in now.items() if _SEVERITY[Result(check_result.result)] != self._reported.get(about, 0)
        ]
        self._reported |= {finding.about: _SEVERITY[Result(finding.result)] for finding in new[:MOST]}
        return tuple(new[:MOST])  # the others next time

    def _ask(self, deadline_s: float, paths: Sequence[str] = (), need_bytes: int = 0) -> Ask:
        return Ask(deadline_s=deadline_s, paths=tuple(paths), environ=self._job.environ, cookie=self._job.cookie, need_bytes=need_bytes)

    @contextlib.contextmanager
    def _turns(self, wait_s: float) -> Iterator[bool]:
        """Lend the runner to one caller at a time; False if it is not free in time."""
        is_our_turn = self._turn.acquire(timeout=wait_s)
        try:
            yield is_our_turn
        finally:
            if is_our_turn:
                self._turn.release()


def _in_full(now: Readings) -> bool:
    return now.table(OUTCOME, "probe:nvml").get("state") == "answered" and gpus.all_named(now)


def _over(old: Readings | None, new: Readings) -> Readings:
    """Return the newest of each reading."""
    newest = {(reading.name, reading.subject): reading for reading in (*(old or ()), *new)}
    return Readings(newest.values())


def has_gpus(environ: Mapping[str, str]) -> bool:
    """Return whether there is anything of NVIDIA's to watch: a driver, its library where the job would find it, a GPU on the bus."""
    if any(os.path.exists(mark) for mark in _MARKS):  # noqa: PTH110 -- plain strings of the system
        return True
    if any(Path(place, NVML).exists() for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place):
        return True
    try:
        return any(True for _ in pci.gpus(Path("/sys/bus/pci/devices")))
    except OSError:
        return False


def finding_of(result: CheckResult) -> Finding:
    """Return a result as the core gets it."""
    # half of a command is another command
    command = result.command if 0 < len(result.command) <= MOST_CHARACTERS else result.repair.words
    reason = result.reason[:MOST_CHARACTERS]
    return Finding(result.check, result.subject, result.result.value, reason, command, result.blocks, result.event)


def shown(findings: Sequence[Finding], environ: Mapping[str, str], visible: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings; those hold nothing back that are of GPUs which this job does not use. visible: UUIDs of those that it sees."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    hides_all = visible_gpus.hides_all(environ)

    def is_of_job(candidate: Finding) -> bool:
        if not candidate.check.startswith("gpu_"):
            return True
        if hides_all:
            return False
        return chosen is None or candidate.check == "gpu_driver" or candidate.gpu in visible

    return tuple(finding if is_of_job(finding) else replace(finding, blocks=False) for finding in findings)
