"""The facts of this node that the printed files are made of: GPUs, processors, memory, interfaces, InfiniBand and RoCE ports.

An unread fact is absent: a file then has no line that would need it. The probes of `supervise doctor` read GPUs, processors and
memory under a deadline, in processes of their own.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import Ask
from health.probes import infiniband, nics, system_files
from health.probing.runner import OUTCOME, Runner
from supervisor.cli import stdio
from supervisor.cli.progress import progress
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct, replace
from supervisor.node.visible_gpus import from_nvml, in_container, node_gpus, precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from health.model import Json, Readings

_PROBES: Final = ("nvml", "cpu", "cgroup", "host")
_ROOT: Final = Path("/")


class NodeFacts(Struct, frozen=True):
    """The facts of this node.

    gpus: those that a job sees which this shell starts; 0 where none is there, or where their number is not known: no_gpus then says why.
    gpu_name: of them all, joined where they differ. precision: bf16, fp16 or fp32, "" where unknown. nvlinks: that are up on each GPU; None
    where that is not known or differs. numa_nodes: of the GPUs, in order. cores: that this process may use. memory_bytes: of the node or
    of its control group; shm_bytes: of /dev/shm; None where unknown.
    """

    node: str
    gpus: int = 0
    no_gpus: str = ""
    gpu_name: str = ""
    precision: str = ""
    nvlinks: int | None = None
    numa_nodes: tuple[int, ...] = ()
    cores: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    nics: tuple[nics.Nic, ...] = ()
    ports: tuple[infiniband.Port, ...] = ()

    @property
    def ranks(self) -> int:
        """Return how many ranks a job should have here: one for each GPU, else one."""
        return self.gpus or 1

    def title(self) -> str:
        """Return what the node is, in a line: its name and its GPUs."""
        return f"{self.node}: {f'{self.gpus} {self.gpu_name}' if self.gpus else self.no_gpus}"

    def loaders(self) -> list[str]:
        """Return sentences on the loader workers of each rank: how many the processors carry, and in how much memory."""
        lines = []
        if self.cores is not None:
            ranks = f"{self.ranks} ranks" if self.ranks > 1 else "1 rank"
            workers = max(0, self.cores // self.ranks - 1)
            lines.append(f"Loaders: {self.cores} processors for {ranks}: DataLoader(num_workers={workers}) at most, beside the rank.")
        sizes = {"memory": self.memory_bytes, "shared memory, in which workers hand batches over": self.shm_bytes}
        known = [f"{bytes_text(size / self.ranks)} of {name}" for name, size in sizes.items() if size is not None]
        if known:
            lines.append(f"For each rank: {', '.join(known)}.")
        return lines


def node_facts(
    environ: Mapping[str, str],
    show: Callable[[str], None] = lambda _text: None,
    *,
    root: Path = _ROOT,
    addresses: Mapping[str, Sequence[str]] | None = None,
) -> NodeFacts:
    """Return the facts. environ: of the future job. show: gets the awaited work. root: holds /sys and /proc. addresses: by interface."""
    with closing(Runner(environ, awaited=lambda names: show(f"waiting for {', '.join(names)}" if names else ""))) as runner:
        now = runner.sweep(_PROBES, Ask(root=str(root)))
    show("reading interfaces and ports")
    try:
        interfaces = nics.nics(root, addresses)
    except OSError:
        interfaces = ()
    try:
        ports = infiniband.ports(root)
    except OSError:
        ports = ()
    return replace(
        _gpu_facts(now, environ, root),
        cores=_cores(now),
        memory_bytes=_least(now.table("host.memory").get("total"), now.table("cgroup.memory").get("limit")),
        shm_bytes=_least(now.table("host.shm").get("total")),
        nics=interfaces,
        ports=ports,
    )


def _gpu_facts(now: Readings, environ: Mapping[str, str], root: Path) -> NodeFacts:
    """Return the node with its GPUs alone."""
    node = platform.node()
    # GPUs of several kinds have no known order, but all the same a number
    here = () if "CUDA_VISIBLE_DEVICES" in environ else in_container(node_gpus(now), environ)
    uuids = [gpu.uuid for gpu in from_nvml(now, environ) or here]
    chosen = [f"gpu:{uuid}" for uuid in uuids]
    tables = [now.table("gpu.identity", subject) for subject in chosen]
    if any(_is_split(now, subject) for subject in chosen):
        return NodeFacts(node, no_gpus="MIG splits its GPUs, and a rank gets one part: how many ranks it carries is not known")
    if not chosen:
        words = str(now.table("nvml.init").get("words") or "")
        state = now.table(OUTCOME, "probe:nvml").get("state")
        why = f" ({words})" if words else "" if state == "answered" else f" (NVML: {state})"
        return NodeFacts(node, no_gpus=f"no GPU is visible here{why}")
    links = {sum(bool(link.get("active")) for link in now.rows("gpu.nvlinks", subject)) for subject in chosen}
    devices = (root / "sys/bus/pci/devices" / str(table.get("pci")) / "numa_node" for table in tables)
    numa_nodes = {number for device in devices if (number := system_files.whole(device)) is not None and number >= 0}
    return NodeFacts(
        node,
        gpus=len(chosen),
        gpu_name=" and ".join(dict.fromkeys(str(table.get("name")) for table in tables)),
        precision=precision(now, uuids),
        nvlinks=links.pop() if len(links) == 1 else None,
        numa_nodes=tuple(sorted(numa_nodes)),
    )


def _is_split(now: Readings, subject: str) -> bool:
    modes = now.value("gpu.mig_mode", subject)
    return isinstance(modes, list) and modes[:1] == [1]


def _cores(now: Readings) -> int | None:
    """Return the processors that a process here may use at once, None where that is not known."""
    usable, quota = now.table("cpu.count").get("usable"), now.table("cgroup.cpu").get("quota")
    return _least(usable, max(1, int(quota)) if isinstance(quota, int | float) else None)


def _least(*values: Json) -> int | None:
    return min((value for value in values if isinstance(value, int)), default=None)


def print_for_this_node(lines: Callable[[NodeFacts], Iterable[str]]) -> int:
    """Print the file that is made of this node's facts; a status line names the present read. Returns 0."""
    with progress() as bar:
        facts = node_facts(os.environ, bar.begin)
    stdio.write(sys.stdout, "\n".join(lines(facts)))
    return 0
