"""Turns one record of the kernel's log into evidence, and bounds how many facts of each kind are kept.

The rank is named where the record names a process of this job; a record of other processes is not a claim. Of each kind the first and the
last facts are kept, so that a storm of one kind takes no room from another.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from health.nvidia import xids
from supervisor.classify.logs.match import claims
from supervisor.core.model import Cause, Evidence
from supervisor.core.values import Struct, replace
from supervisor.observe.processes.job_processes import ProcessOwner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.observe.log_watch import Signatures
    from supervisor.observe.processes.job_processes import JobProcesses

NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
#: Facts of each kind that are kept, from the beginning and from the end. There are some fifty kinds.
KEPT_FIRST = 16
KEPT_LAST = 16

#: A GPU's address. That of an NVSwitch (SXid) is not one, and a switch is shared by all GPUs.
_PCI = re.compile(r"(?<!SXid \()\bPCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")
_PID = re.compile(
    r"\bpid[=:]\s?'?(\d+)|\bKill(?:ed)? process (\d+)|^(?:traps: )?\S.{0,15}?\[(\d+)\]:? (?:segfault|general protection|trap )"
)


class KernelRecord(Struct, frozen=True):
    """One record of the kernel's log. `t`: the job's clock. `sure`: that it is the kernel's own word is certain."""

    text: str
    t: float
    sure: bool = True


class BoundedFacts:
    """The first and the last facts of each kind. Not for several threads at once."""

    def __init__(self) -> None:
        self._count = 0
        self._first: dict[str, list[tuple[int, Evidence]]] = {}
        self._last: dict[str, deque[tuple[int, Evidence]]] = {}

    def add(self, fact: Evidence) -> None:
        """Take a fact, of a storm in the place of an earlier one."""
        self._count += 1
        first = self._first.setdefault(fact.name, [])
        if len(first) < KEPT_FIRST:
            first.append((self._count, fact))
        else:
            self._last.setdefault(fact.name, deque(maxlen=KEPT_LAST)).append((self._count, fact))

    def facts(self) -> tuple[Evidence, ...]:
        """Return the kept facts in the order in which they came, and how many were dropped."""
        kept = sorted((n for row in (*self._first.values(), *self._last.values()) for n in row), key=lambda numbered: numbered[0])
        more = self._count - len(kept)
        dropped = (Evidence("kernel", "more", f"{more} more records like these"),) if more else ()
        return (*(fact for _, fact in kept), *dropped)


def evidence(record: KernelRecord, signatures: Signatures, processes: JobProcesses) -> Sequence[Evidence]:
    """Return the claims of a record that the kernel's rows show, or that it names other processes."""
    catalogue, scanner = signatures()
    if not scanner.hits(record.text.encode()):
        return ()
    facts = claims(Evidence("kernel", "record", record.text, t=record.t, free_text=not record.sure), catalogue)
    kept = []
    for fact in facts:
        whose, rank = _whose(fact, processes)
        oom = fact.claim is not None and fact.claim.cause is Cause.HOST_OOM
        if whose is ProcessOwner.OTHER:
            kept.append(replace(fact, name="of_others", claim=None, fields=()))
        elif (
            oom and whose is ProcessOwner.UNKNOWN
        ):  # any process was killed: the cgroup's count of kills (oom_kills.py) shows whether it was of this job
            kept.append(replace(fact, name="nearby", claim=None, fields=()))
        else:
            kept.append(replace(fact, rank=rank))
    return kept


def _whose(fact: Evidence, processes: JobProcesses) -> tuple[ProcessOwner, int | None]:
    """Return whose a record is: the process's for an error of its own, for a GPU's error the owner of the GPU."""
    match, pci = _PID.search(fact.text), _PCI.search(fact.text)
    if match is not None:
        whose, rank = processes.whose(int(next(group for group in match.groups() if group)))
        if whose is ProcessOwner.JOB or (whose is ProcessOwner.OTHER and (pci is None or _is_of_a_process(fact))):
            return whose, rank
    cgroup = processes.owner_by_cgroup(fact.text)
    if cgroup is not ProcessOwner.UNKNOWN:
        return cgroup, None
    return (_whose_gpu(pci[1]) if pci is not None else ProcessOwner.UNKNOWN), None


def _is_of_a_process(fact: Evidence) -> bool:
    """Whether an Xid concerns the named process alone. The driver names any process for a failure of the GPU, a monitor too."""
    known = xids.lookup_text(next((value for name, value in fact.fields if name == "xid"), ""))
    return known is not None and known.concerns_process


def _whose_gpu(pci: str) -> ProcessOwner:
    """Return whether a GPU can be of this job: a container sees its own only."""
    try:
        seen = [path.name for path in Path(NVIDIA_GPUS).iterdir()]
    except OSError:
        return ProcessOwner.UNKNOWN
    wanted = pci.lower()[-10:]
    return ProcessOwner.UNKNOWN if not seen or any(wanted in name.lower() for name in seen) else ProcessOwner.OTHER
