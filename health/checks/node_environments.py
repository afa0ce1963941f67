"""Compares the environments of several nodes of one job: the differences, their effect, and whether the job can work so.

The node check (health/nodecheck) brings readings of nodes together; so does a supervised job, before its ranks start. `MUST_AGREE` says of
a variable what a difference does, and how that is known. A variable that is not in it may differ: an interface, a device, a log level.
MASTER_ADDR and MASTER_PORT are not compared: nodes that have met have found each other, and torchrun gives each rank its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from health.model import HOST, CheckResult, Reading, Readings, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from health.model import Json
    from health.thresholds import Thresholds


class Weight(IntEnum):
    """The effect of a difference on the job."""

    NOTE = 0  # nodes may differ so
    MATTERS = 1  # the training may fail, hang, slow down or compute differently
    CANNOT_WORK = 2  # it will fail or hang


class MustAgree(NamedTuple):
    """A variable that must be the same on all nodes. effect: of a difference. source: how that is known."""

    name: str
    effect: str
    source: str


_PLAN: Final = "the ranks plan their collectives differently, and fail with sizes that do not fit, or hang"
#: A maintainer: "a version or configuration mismatch between two ranks", "environment variables set on one rank but not the other".
_NCCL_SOURCE: Final = "https://github.com/NVIDIA/nccl/issues/1328 (2024-06)"
_TRANSPORT: Final = "one side waits on a transport that the other does not use"
_NUMBERS: Final = "the ranks compute with different precision or order, so their numbers differ"
_WATCHDOG: Final = "the ranks give up a collective at different times, and the others report a lost peer"
_WATCHDOG_SOURCE: Final = "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, read 2026-11"
MUST_AGREE: Final = (
    MustAgree("NCCL_ALGO", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_PROTO", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_BUFFSIZE", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_NTHREADS", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_MIN_NCHANNELS", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_MAX_NCHANNELS", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_MIN_CTAS", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_MAX_CTAS", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_COLLNET_ENABLE", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_NVLS_ENABLE", _PLAN, _NCCL_SOURCE),
    MustAgree("NCCL_NET", _TRANSPORT, _NCCL_SOURCE),
    MustAgree("NCCL_NET_PLUGIN", _TRANSPORT, _NCCL_SOURCE),
    MustAgree("NCCL_IB_DISABLE", _TRANSPORT, _NCCL_SOURCE),
    MustAgree("NCCL_CUMEM_ENABLE", _TRANSPORT, _NCCL_SOURCE),
    MustAgree("GLOO_DEVICE_TRANSPORT", "TLS and plain TCP do not connect", "torch/csrc/distributed/c10d/GlooDeviceFactory.cpp"),
    MustAgree(
        "TORCH_DISTRIBUTED_DEBUG",
        "with DETAIL, init_process_group waits for keys that a rank without it never writes",
        "measured with torch 2.13 and gloo: `DistStoreError: wait timeout …, keys: …/pg_wrapper`",
    ),
    MustAgree("TORCH_NCCL_BLOCKING_WAIT", _WATCHDOG, _WATCHDOG_SOURCE),
    MustAgree("TORCH_NCCL_ASYNC_ERROR_HANDLING", _WATCHDOG, _WATCHDOG_SOURCE),
    MustAgree("TORCH_NCCL_ENABLE_MONITORING", _WATCHDOG, _WATCHDOG_SOURCE),
    MustAgree("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", _WATCHDOG, _WATCHDOG_SOURCE),
    MustAgree("NVIDIA_TF32_OVERRIDE", _NUMBERS, "cuBLAS' documentation, NVIDIA_TF32_OVERRIDE"),
    MustAgree("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", _NUMBERS, "torch's notes on CUDA semantics"),
    MustAgree("CUBLAS_WORKSPACE_CONFIG", _NUMBERS, "cuBLAS' documentation, results reproducibility"),
)
_ROWS: Final = {row.name: row for row in MUST_AGREE}
#: Ranks of different versions of these fail in each other's collectives, or hang.
_STRICT_VERSIONS: Final = ("torch", "cuda", "nccl", "hip")
#: Versions that decide nothing that ranks share.
_OWN_VERSIONS: Final = ("kernel", "torch_git")
#: Variables that are meant to differ.
_NODE_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_NODE: Final = "node:"
_COMPARED: Final = ("env.versions", "env.variables", "env.code", "env.script")
#: Clocks that surely differ by less are not reported, in seconds.
CLOCK_S: Final = 2.0
_VERSIONS: Final = "ranks of different versions may fail in each other's collectives"
_NCCL_REFUSES: Final = "NCCL refuses ranks of another version (`Mismatched NCCL version detected`, src/init.cc)"


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """One thing that is not the same on all nodes. values: by node, "unset" for none. effect: its effect, "" where that is not known."""

    what: str
    values: Mapping[str, str]
    weight: Weight
    effect: str = ""
    strict: bool = False

    def __str__(self) -> str:
        """Return it in a sentence: each value, and the nodes that have it, the rarest first."""
        counts = Counter(self.values.values())
        groups = [
            f"{value} on {_listed([node for node, own in self.values.items() if own == value])}"
            for value in sorted(counts, key=lambda value: (counts[value], value))
        ]
        return f"{self.what} differs: {'; '.join(groups)}" + (f" ({self.effect})" if self.effect else "")


def _listed(nodes: list[str]) -> str:
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""  # noqa: PLR2004 -- a line's worth
    return ", ".join(nodes[:3]) + more


def merge_nodes(nodes: Mapping[str, Readings]) -> Readings:
    """Return the environments of nodes as readings of one sweep, each with the subject `node:NAME`."""
    merged: list[Reading] = []
    for node, readings in nodes.items():
        for name in _COMPARED:
            reading = readings.one(name)
            if reading is not None:
                merged.append(Reading(reading.probe, f"{_NODE}{node}", name, reading.value, reading.problem, reading.t))
        mtus: dict[str, Json] = {
            reading.subject.removeprefix("nic:"): row.get("mtu")
            for reading in readings.of("nic.state")
            if (row := readings.table("nic.state", reading.subject)).get("carrier") is True and row.get("virtual") is False
        }
        merged.append(Reading("ethernet", f"{_NODE}{node}", "env.mtus", mtus))
    return Readings(merged)


@check(
    "env_nodes",
    subject="host",
    needs=("environment",),
    reads="the same of several nodes: [`--nodes`](node-check.md) brings them together",
    degraded="versions, variables, code, MTU differ: who differs is named",
    failed="torch, CUDA or NCCL differ",
)
def env_nodes(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Is the environment the same on all nodes? It shows which versions, variables, code or MTU differ, and on which nodes.

    The node check puts the readings of several nodes together with `merge_nodes`. Readings of one node alone are SKIPPED.
    """
    nodes = _nodes(now)
    if len(nodes) < 2:  # noqa: PLR2004 -- to be alike takes two
        yield CheckResult("env_nodes", HOST, Result.SKIPPED, "readings of one node only")
        return
    results = [_result(difference) for difference in differences(now)]
    yield from results or [CheckResult("env_nodes", HOST, Result.OK, f"{len(nodes)} nodes have the same environment")]


def differences(now: Readings) -> tuple[NodeDifference, ...]:
    """Return what differs between the nodes of merged readings."""
    nodes = _nodes(now)
    return (*_different_versions(now, nodes), *_different_variables(now, nodes), *_different_mtus(now, nodes), *_different_code(now, nodes))


def _nodes(now: Readings) -> tuple[str, ...]:
    return tuple(reading.subject for reading in now.of("env.versions") if reading.subject.startswith(_NODE))


def _values(now: Readings, nodes: tuple[str, ...], name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each key of a table that differs, with its value on each node."""
    tables = {node: now.table(name, node) for node in nodes if now.one(name, node) is not None and not now.problem(name, node)}
    for key in sorted({key for table in tables.values() for key in table}):
        values = {node.removeprefix(_NODE): "unset" if key not in table else str(table[key]) for node, table in tables.items()}
        if len(set(values.values())) > 1:
            yield key, values


def _different_versions(now: Readings, nodes: tuple[str, ...]) -> Iterator[NodeDifference]:
    for key, values in _values(now, nodes, "env.versions"):
        name, strict = f"version of {key}", key in _STRICT_VERSIONS
        if key == "nccl" and all(now.table("env.versions", node).get("driver") for node in nodes) and "unset" not in values.values():
            yield NodeDifference(name, values, Weight.CANNOT_WORK, _NCCL_REFUSES)
        elif strict:
            yield NodeDifference(name, values, Weight.MATTERS, _VERSIONS, strict=True)
        else:
            yield NodeDifference(name, values, Weight.NOTE if key in _OWN_VERSIONS else Weight.MATTERS)


def _different_variables(now: Readings, nodes: tuple[str, ...]) -> Iterator[NodeDifference]:
    for key, values in _values(now, nodes, "env.variables"):
        if key in _NODE_VARIABLES:
            continue
        row, weight = _ROWS.get(key), Weight.NOTE
        if row is not None:
            weight = Weight.MATTERS
            if key == "TORCH_DISTRIBUTED_DEBUG" and any(value.upper() == "DETAIL" for value in values.values()):
                weight = Weight.CANNOT_WORK
        yield NodeDifference(key, values, weight, row.effect if row is not None else "")


def _different_mtus(now: Readings, nodes: tuple[str, ...]) -> Iterator[NodeDifference]:
    for key, all_values in _values(now, nodes, "env.mtus"):
        values = {node: value for node, value in all_values.items() if value != "unset"}  # a node need not have every port of the others
        if len(set(values.values())) > 1:
            yield NodeDifference(f"MTU of {key}", values, Weight.MATTERS, "packets that are longer than the shortest may be lost")


def _different_code(now: Readings, nodes: tuple[str, ...]) -> Iterator[NodeDifference]:
    heads: dict[str, str] = {}
    scripts: dict[str, str] = {}
    for node in nodes:
        row, script = now.table("env.code", node), now.table("env.script", node)
        if row:
            changed = f" changed {row['changed']}" if row.get("changed") else ""
            heads[node.removeprefix(_NODE)] = f"{str(row.get('head'))[:12]}{changed}"
        if script:
            scripts[node.removeprefix(_NODE)] = f"sha256 {str(script.get('digest'))[:12]}"
            name = str(script.get("path")).rpartition("/")[2]
    if len(set(heads.values())) > 1:
        yield NodeDifference("the code's revision", heads, Weight.MATTERS, "the nodes run different programs")
    if len(set(scripts.values())) > 1:
        yield NodeDifference(f"the script {name}", scripts, Weight.MATTERS, "the nodes run different programs")


def clocks(offsets: Mapping[str, float]) -> tuple[NodeDifference, ...]:
    """Return the difference of the nodes' clocks, in seconds by which each is surely ahead (+) or behind (-) of the first node's."""
    if all(abs(offset_s) < CLOCK_S for offset_s in offsets.values()):
        return ()
    values = {node: f"{offset_s:+.0f} s" for node, offset_s in offsets.items()}
    return (NodeDifference("the clock", values, Weight.MATTERS, "which node failed first is judged by their clocks"),)


def _result(difference: NodeDifference) -> CheckResult:
    counts = Counter(difference.values.values())
    usual = max(counts, key=lambda value: (counts[value], value))
    others = {node: value for node, value in difference.values.items() if value != usual}
    shown = ", ".join(f"{node}: {value}" for node, value in list(others.items())[:8])
    more = f" and {len(others) - 8} more" if len(others) > 8 else ""  # noqa: PLR2004 -- a line's worth
    why = f"{difference.what} is not the same on all nodes: {shown}{more}; {counts[usual]} of {len(difference.values)} have {usual}"
    evidence = tuple(f"{node}: {value}" for node, value in difference.values.items())
    result = Result.FAILED if difference.strict or difference.weight is Weight.CANNOT_WORK else Result.DEGRADED
    return CheckResult("env_nodes", HOST, result, why, evidence, Repair.CONFIGURE, look=("supervise doctor --json",))
