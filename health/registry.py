"""Which probes and checks there are.

Each table is literal, so that it can be read and searched. A package adds its own by an entry point in the group `supervise.probes` or
`supervise.checks`, NAME = "MODULE"; it is imported only if the caller lists it, because installing a package is no consent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from health.model import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from health.model import Ask, Reading

PROBE_GROUP: Final = "supervise.probes"
CHECK_GROUP: Final = "supervise.checks"


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One probe. deadline_s: after which it hangs. fast: part of what is read before an attempt. sampled: read while a job runs."""

    module: str
    deadline_s: float = 5.0
    fast: bool = True
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class Plugged:
    """Probes and checks of packages, MODULE by name: those that the caller lists."""

    probes: Mapping[str, str]
    checks: Mapping[str, str]


NOTHING_PLUGGED: Final = Plugged({}, {})


PROBES: Final[Mapping[str, ProbeRow]] = {
    "nvml": ProbeRow("health.probes.gpu.nvml", deadline_s=8.0, sampled=True),
    "pci": ProbeRow("health.probes.gpu.pci", sampled=True),
    "driver": ProbeRow("health.probes.gpu.driver"),
    "kernel_log": ProbeRow("health.probes.kernel_log", sampled=True),
    "host": ProbeRow("health.probes.host.memory_limits", sampled=True),
    "clock": ProbeRow("health.probes.host.clock"),
    "processes": ProbeRow("health.probes.host.processes", sampled=True),
    "cpu": ProbeRow("health.probes.host.cpu", sampled=True),
    "cgroup": ProbeRow("health.probes.host.cgroup", sampled=True),
    "disk": ProbeRow("health.probes.storage.disk", deadline_s=8.0),
    "nvme": ProbeRow("health.probes.storage.nvme", sampled=True),
    "infiniband": ProbeRow("health.probes.network.infiniband", sampled=True),
    "ethernet": ProbeRow("health.probes.network.ethernet", sampled=True),
    "names": ProbeRow("health.probes.network.names", deadline_s=8.0),
    "reach": ProbeRow("health.probes.network.reach", deadline_s=8.0),
    "ports": ProbeRow("health.probes.network.ports"),
    "environment": ProbeRow("health.probes.environment"),
}

CHECKS: Final[Mapping[str, str]] = {
    "probes": "health.checks.probes",
    "kernel_log": "health.checks.kernel_log",
    "gpu_driver": "health.checks.gpu.presence",
    "gpu_errors": "health.checks.gpu.presence",
    "gpu_recovery": "health.checks.gpu.presence",
    "gpu_count": "health.checks.gpu.presence",
    "gpu_events": "health.checks.gpu.presence",
    "gpu_ecc": "health.checks.gpu.memory",
    "gpu_sram": "health.checks.gpu.memory",
    "gpu_remap": "health.checks.gpu.memory",
    "gpu_retired": "health.checks.gpu.memory",
    "gpu_nvlink": "health.checks.gpu.links",
    "gpu_fabric": "health.checks.gpu.links",
    "gpu_pairs": "health.checks.gpu.links",
    "gpu_pcie": "health.checks.gpu.links",
    "gpu_replays": "health.checks.gpu.links",
    "gpu_temperature": "health.checks.gpu.speed",
    "gpu_throttle": "health.checks.gpu.speed",
    "gpu_clocks": "health.checks.gpu.speed",
    "gpu_power": "health.checks.gpu.speed",
    "gpu_persistence": "health.checks.gpu.configuration",
    "gpu_mig": "health.checks.gpu.configuration",
    "gpu_vbios": "health.checks.gpu.configuration",
    "gpu_memory": "health.checks.gpu.memory",
    "host_memory": "health.checks.host.resources",
    "host_shm": "health.checks.host.resources",
    "host_limits": "health.checks.host.resources",
    "host_clock": "health.checks.host.system",
    "host_processes": "health.checks.host.system",
    "host_cpu": "health.checks.host.system",
    "host_cgroup": "health.checks.host.resources",
    "host_core": "health.checks.host.system",
    "disk_paths": "health.checks.storage",
    "disk_space": "health.checks.storage",
    "disk_writes": "health.checks.storage",
    "disk_nvme": "health.checks.storage",
    "net_infiniband": "health.checks.network.infiniband",
    "net_counters": "health.checks.network.infiniband",
    "net_ethernet": "health.checks.network.ethernet",
    "net_mtu": "health.checks.network.ethernet",
    "net_names": "health.checks.network.peers",
    "net_reach": "health.checks.network.peers",
    "net_ports": "health.checks.network.peers",
    "net_interfaces": "health.checks.network.ethernet",
    "env_versions": "health.checks.environment",
    "env_variables": "health.checks.environment",
    "env_slurm": "health.checks.environment",
    "env_code": "health.checks.environment",
    "env_nodes": "health.checks.node_environments",
}


class NoCheckError(Exception):
    """A module that a package offers as a check has no check in it."""


class ProbeSession(Protocol):
    """A probe that keeps something open between two reads."""

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield what is read now."""

    def close(self) -> None:
        """Close it."""


class Probe(Protocol):
    """A probe's module. It may have `session() -> ProbeSession` too."""

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield what is read."""


def probe(name: str, plugged: Mapping[str, str] | None = None) -> Probe:
    """Return a probe's module. plugged: MODULE by name of those that the caller lists. Raises KeyError, ImportError."""
    row = PROBES.get(name)
    return cast("Probe", import_module(row.module if row is not None else (plugged or {})[name]))


def checks(plugged: Mapping[str, str] | None = None) -> dict[str, Check]:
    """Return every check by name, those of packages that the caller lists behind ours. Raises ImportError, NoCheckError."""
    return {name: check_in(import_module(module), name) for name, module in {**CHECKS, **(plugged or {})}.items()}


def check_in(module: ModuleType, name: str) -> Check:
    """Return a check of a module: a row of its table CHECKS, else its NEEDS and check(). Raises NoCheckError if it has neither."""
    family = getattr(module, "CHECKS", {})
    if name in family:
        return cast("Check", family[name])
    if not hasattr(module, "NEEDS") or not hasattr(module, "check"):
        raise NoCheckError(f"{name}: its module has no NEEDS, or no check()")
    return Check(module.NEEDS, module.check)


def plugged(listed: Iterable[str]) -> Plugged:
    """Return what packages offer under the names in `listed`. Raises LookupError naming what nobody offers, or one that is ours."""
    names = dict.fromkeys(listed)
    if not names:
        return NOTHING_PLUGGED
    from importlib.metadata import entry_points  # noqa: PLC0415  reads the metadata of all that is installed: only where it is wanted

    probes, checks_ = (
        {point.name: point.module for point in entry_points(group=group) if point.name in names} for group in (PROBE_GROUP, CHECK_GROUP)
    )
    for name in names:
        if name in PROBES or name in CHECKS:
            raise LookupError(f"{name!r} is one of ours")
        if name not in probes and name not in checks_:
            raise LookupError(f"no package offers a check or probe {name!r}")
    return Plugged(probes, checks_)


def fast() -> tuple[str, ...]:
    """Return the probes that are read before an attempt."""
    return tuple(name for name, row in PROBES.items() if row.fast)


def sampled() -> tuple[str, ...]:
    """Return the probes that are read while a job runs."""
    return tuple(name for name, row in PROBES.items() if row.sampled)
