"""Is the environment the same on all nodes? Versions, variables, code, and MTU; what differs is shown, and who differs.

It judges readings of several nodes, which whoever has them (the node check) puts together with `gathered`: each node's own become those of
subject `node:NAME`. From one node alone it says nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from health.model import HOST, CheckResult, Reading, Readings, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from health.model import Json
    from health.thresholds import Thresholds

NAME = "env_nodes"
NEEDS = ("environment",)
#: What must be alike, and what is worth a word only. Ranks of different versions of these fail in each other's collectives, or hang.
_STRICT = ("torch", "cuda", "nccl", "hip")
#: Variables that are meant to differ.
_OWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_SUBJECT = "node:"


def gathered(nodes: Mapping[str, Readings]) -> Readings:
    """Return the environments of nodes as readings of one sweep, to be added to a node's own."""
    made: list[Reading] = []
    for node, readings in nodes.items():
        for name in ("env.versions", "env.variables", "env.code"):
            one = readings.one(name)
            if one is not None:
                made.append(Reading(one.probe, f"{_SUBJECT}{node}", name, one.value, one.problem, one.t))
        mtus: dict[str, Json] = {
            one.subject.removeprefix("nic:"): row.get("mtu")
            for one in readings.of("nic.state")
            if (row := readings.table("nic.state", one.subject)).get("carrier") is True and row.get("virtual") is False
        }
        made.append(Reading("ethernet", f"{_SUBJECT}{node}", "env.mtus", mtus))
    return Readings(made)


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge what differs, one result for each."""
    nodes = tuple(one.subject for one in now.of("env.versions") if one.subject.startswith(_SUBJECT))
    if len(nodes) < 2:  # noqa: PLR2004 -- to be alike takes two
        yield CheckResult(NAME, HOST, Result.SKIPPED, "readings of one node only")
        return
    found = [*_tables(now, nodes), *_code(now, nodes)]
    yield from found or [CheckResult(NAME, HOST, Result.OK, f"{len(nodes)} nodes have the same environment")]


def _tables(now: Readings, nodes: tuple[str, ...]) -> Iterator[CheckResult]:
    for name, what in (("env.versions", "version of "), ("env.variables", ""), ("env.mtus", "MTU of ")):
        tables = {node: now.table(name, node) for node in nodes if now.one(name, node) is not None and not now.problem(name, node)}
        for key in sorted({key for table in tables.values() for key in table}):
            values = {node: "unset" if key not in table else str(table[key]) for node, table in tables.items()}
            if name == "env.mtus":  # a node need not have every port of the others
                values = {node: value for node, value in values.items() if value != "unset"}
            if key in _OWN or len(set(values.values())) < 2:  # noqa: PLR2004 -- two differ
                continue
            result = Result.FAILED if name == "env.versions" and key in _STRICT else Result.DEGRADED
            yield _differs(f"{what}{key}", values, result)


def _code(now: Readings, nodes: tuple[str, ...]) -> Iterator[CheckResult]:
    heads: dict[str, str] = {}
    for node in nodes:
        row = now.table("env.code", node)
        if row:
            heads[node] = f"{str(row.get('head'))[:12]}{' changed ' + str(row['changed']) if row.get('changed') else ''}"
    if len(set(heads.values())) > 1:
        yield _differs("the code's revision", heads, Result.DEGRADED)


def _differs(what: str, values: dict[str, str], result: Result) -> CheckResult:
    counts = Counter(values.values())
    usual = max(counts, key=lambda value: (counts[value], value))
    others = {node.removeprefix(_SUBJECT): value for node, value in values.items() if value != usual}
    told = ", ".join(f"{node}: {value}" for node, value in list(others.items())[:8])
    more = f" and {len(others) - 8} more" if len(others) > 8 else ""  # noqa: PLR2004 -- a line's worth
    why = f"{what} is not the same on all nodes: {told}{more}; {counts[usual]} of {len(values)} have {usual}"
    evidence = tuple(f"{node.removeprefix(_SUBJECT)}: {value}" for node, value in values.items())
    return CheckResult(NAME, HOST, result, why, evidence, Repair.CONFIGURE, "supervise doctor --json on each node")
