"""The probes, and the modules of checks. Both tables are literal, so that they can be read and searched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from health.model import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from health.model import Ask, Reading


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One probe. deadline_s: after which it hangs. fast: part of the reads before an attempt. sampled: read while a job runs."""

    module: str
    deadline_s: float = 5.0
    fast: bool = True
    sampled: bool = False


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

#: Modules of health/checks, in the order in which docs/guides/health.md lists their checks.
CHECK_MODULES: Final = (
    "probes",
    "kernel_log",
    "gpu.presence",
    "gpu.memory",
    "gpu.links",
    "gpu.speed",
    "gpu.configuration",
    "host.resources",
    "host.system",
    "storage",
    "network.infiniband",
    "network.gids",
    "network.ethernet",
    "network.peers",
    "environment",
    "node_environments",
)


class ProbeSession(Protocol):
    """A probe that keeps something open between two reads."""

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the present readings."""

    def close(self) -> None:
        """Close it."""


class Probe(Protocol):
    """A probe's module. It may have `session() -> ProbeSession` too."""

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the readings."""


@cache
def checks() -> Mapping[str, Check]:
    """Return every check by its name. Imports all modules that hold checks."""
    modules = [import_module(f"health.checks.{name}") for name in CHECK_MODULES]
    rows = [value for module in modules for value in vars(module).values() if isinstance(value, Check)]
    return MappingProxyType({row.name: row for row in rows})


def fast() -> tuple[str, ...]:
    """Return the probes that are read before an attempt."""
    return tuple(name for name, row in PROBES.items() if row.fast)


def sampled() -> tuple[str, ...]:
    """Return the probes that are read while a job runs."""
    return tuple(name for name, row in PROBES.items() if row.sampled)
