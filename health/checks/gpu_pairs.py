"""How do two GPUs reach each other? A pair that is further apart than its siblings, or cannot, is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "gpu_pairs"
NEEDS = ("nvml",)


_LEVELS = {0: "one board", 10: "one switch", 20: "switches", 30: "one host bridge", 40: "one NUMA node", 50: "across sockets"}
_FEWEST = 4
_WORDS = {"nvlink": "NVLink", "read": "peer-to-peer"}


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge every pair against the others."""
    pairs = now.rows("gpu.pairs")
    if not pairs:
        return
    named: list[str] = []
    for key, word in _WORDS.items():
        known = [row for row in pairs if key in row]
        able = [row for row in known if row[key] == 0]
        if able and len(able) < len(known):
            names = [_names(now, row) for row in known if row[key] != 0]
            if len(names) <= len(able):  # else it is how the node is wired: bridges between pairs
                named += [
                    f"{name}: no {word} (status {row[key]})" for name, row in zip(names, [r for r in known if r[key] != 0], strict=True)
                ]
    named += _alone(now, pairs)
    evidence = tuple(f"{count} pairs: {_LEVELS.get(level, level)}" for level, count in _levels(pairs).items())
    if named:
        why = f"{'; '.join(named)}; of {len(pairs)} pairs"
        yield CheckResult(
            NAME, HOST, Result.DEGRADED, why, (*named, *evidence), Repair.CONFIGURE, "nvidia-smi topo -m; nvidia-smi topo -p2p n"
        )
    else:
        yield CheckResult(NAME, HOST, Result.OK, f"{len(pairs)} pairs of GPUs are all alike or as the node is wired", evidence)


def _alone(now: Readings, pairs: list[dict[str, Json]]) -> list[str]:
    """Name the one GPU that is further from its nearest sibling than every other: a riser, a slot, or a switch that was not found.

    Of an odd number one is alone by the wiring, and of two no one can tell.
    """
    nearest: dict[str, int] = {}
    for row in pairs:
        level = row.get("level")
        for key in ("a", "b"):
            if isinstance(level, int):
                nearest[str(row.get(key))] = min(level, nearest.get(str(row.get(key)), level))
    *others, last = sorted(nearest, key=lambda gpu: nearest[gpu]) or [""]
    if len(nearest) < _FEWEST or len(nearest) % 2 or nearest[others[-1]] >= nearest[last]:
        return []
    theirs = _LEVELS.get(nearest[others[-1]], nearest[others[-1]])
    return [
        f"{gpus.called(now, last)}: no sibling nearer than {_LEVELS.get(nearest[last], nearest[last])}, and all others have one ({theirs})"
    ]


def _names(now: Readings, row: dict[str, Json]) -> str:
    return " and ".join(gpus.called(now, str(row.get(key))) for key in ("a", "b"))


def _levels(pairs: list[dict[str, Json]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in pairs:
        level = row.get("level")
        if isinstance(level, int):
            found[level] = found.get(level, 0) + 1
    return dict(sorted(found.items()))
