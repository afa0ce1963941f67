"""Checks of the links between GPUs, and of their links to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks.gpu import gpus
from health.model import HOST, CheckResult, Repair, Result, check, delta, elapsed_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

_RECOVERIES = ("recovery", "recovery_5", "recovery_failed")
_LINK_ERRORS = ("replay", "crc", "crc_flit", "crc_data", "receive")
#: If so many other GPUs all have NVLink, bridges between some GPUs do not explain why one has none.
_SIBLINGS = 3


@check(
    "gpu_nvlink",
    subject="gpu",
    needs=("nvml",),
    reads="state and counters of each link",
    degraded="a link came back; more than 10 replays or CRC errors a minute; no link is up, and all siblings have some up",
    failed="a link that was up is down, or a sibling has more links up (all down: no bridge)",
)
def gpu_nvlink(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Are all NVLinks up, and do they carry data without errors? The changes since the job's start count."""
    most = max((_links_up(now.rows("gpu.nvlinks", subject)) for subject in gpus.subjects(now)), default=0)
    for subject in gpus.subjects(now):
        if now.rows("gpu.nvlinks", subject) and gpus.answers(now, subject):
            yield _nvlinks((now, before), limits, subject, most)


def _nvlinks(sweeps: tuple[Readings, Readings | None], limits: Thresholds, subject: str, most: int) -> CheckResult:
    """Judge one GPU's links. most: the largest number of links that are up on a GPU."""
    now, before = sweeps
    links = now.rows("gpu.nvlinks", subject)
    gpu, look = gpus.GpuReport("gpu_nvlink", now, subject), (f"nvidia-smi nvlink -s -e -i {gpus.address(now, subject)}",)
    down = [str(link.get("link")) for link in links if not link.get("active")]
    old = {link.get("link"): link for link in before.rows("gpu.nvlinks", subject)} if before is not None else {}
    lost = [number for number in down if any(str(at) == number and link.get("active") for at, link in old.items())]
    evidence = [f"up: {len(links) - len(down)} of {len(links)}"]
    if lost or 0 < _links_up(links) < most:
        why = f"NVLink {', '.join(lost or down)} is down{' since the job started' if lost else ', other GPUs have more'}"
        return gpu.failed(why, tuple(evidence), Repair.RESET_GPU, gpus.reset_command(now, subject), look)
    reading, first = now.one("gpu.nvlinks", subject), before.one("gpu.nvlinks", subject) if before is not None else None
    minutes = max(1.0, (reading.t - first.t) / 60) if reading is not None and first is not None else 1.0
    recovered, erring = [], []
    for link in links:
        old_link = old.get(link.get("link"))
        if old_link is None:
            continue
        again, errors = (sum(_growth(link, old_link, name) for name in names) for names in (_RECOVERIES, _LINK_ERRORS))
        if again >= limits.nvlink_recovery_delta:
            recovered.append(f"link {link.get('link')} went down and came back {again} times")
        if errors / minutes > limits.nvlink_errors_per_minute:
            erring.append(f"link {link.get('link')}: {errors} replays or CRC errors in {minutes:.1f} min")
    if recovered or erring:
        why = f"errors on NVLink: {'; '.join(recovered + erring)}"
        return gpu.degraded(why, (*evidence, *recovered, *erring), Repair.RESET_GPU, gpus.reset_command(now, subject), look)
    if not _links_up(links):
        others = [_links_up(now.rows("gpu.nvlinks", other)) for other in gpus.subjects(now) if other != subject]
        if len(others) >= _SIBLINGS and all(others):
            why = "none of its NVLinks is up, and all other GPUs have some up"
            return gpu.degraded(why, tuple(evidence), Repair.RESET_GPU, gpus.reset_command(now, subject), look)
        return gpu.ok("no NVLink is in use: it has no bridge or switch", tuple(evidence))
    if down:
        return gpu.ok(
            f"{_links_up(links)} of {len(links)} NVLinks are in use, as on its siblings",
            tuple(evidence),
        )
    return gpu.ok(f"{len(links)} NVLinks are up", tuple(evidence))


def _links_up(links: list[dict[str, Json]]) -> int:
    return sum(1 for link in links if link.get("active"))


def _growth(link: dict[str, Json], old_link: dict[str, Json], name: str) -> int:
    new, old = link.get(name), old_link.get(name)
    if not isinstance(new, int) or not isinstance(old, int):
        return 0
    return new - old if new >= old else new


_REGISTERED, _NO_FABRIC = 3, 0
_FABRIC_STATES = {1: "not started", 2: "in progress"}
_FABRIC_SUMMARIES = {2: "unhealthy", 3: "of limited capacity"}
#: Fields of the health mask: shift, width, the value that is bad, words.
_HEALTH_MASK = (
    (0, 0x3, 1, "less bandwidth"),
    (2, 0x3, 1, "a route is being recovered"),
    (4, 0x3, 1, "a route is unhealthy"),
    (6, 0x3, 1, "access timed out"),
)
_CONFIGURATION = (8, 0xF)


@check(
    "gpu_fabric",
    subject="host",
    needs=("nvml",),
    reads="fabric state, health mask, fabric manager",
    degraded="unhealthy, less bandwidth, configured wrongly",
    failed="not registered; NVSwitches and no manager",
)
def gpu_fabric(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Is the fabric of NVSwitches ready? Until the fabric manager has set it up, CUDA does not start (error 802)."""
    ready = 0
    for subject in gpus.subjects(now):
        fabric_row = now.table("gpu.fabric", subject)
        state, summary, mask = (_int(fabric_row.get(name)) for name in ("state", "summary", "mask"))
        if state == _NO_FABRIC:
            continue  # this driver reports no NVSwitch
        gpu = gpus.GpuReport("gpu_fabric", now, subject)
        evidence = (f"state {state}, status {fabric_row.get('status')}, health {summary}, mask {mask:#x}",)
        look = (f"nvidia-smi -q -i {gpus.address(now, subject)} | grep -A5 Fabric", "systemctl status nvidia-fabricmanager")
        if state != _REGISTERED or _int(fabric_row.get("status")):
            why = f"registration with the fabric is {_FABRIC_STATES.get(state, 'not done')}: CUDA does not start before it is done"
            yield gpu.failed(why, evidence, Repair.RESTART_DRIVER, look=look)
            continue
        ready += 1
        wrong = [words for shift, width, bad, words in _HEALTH_MASK if (mask >> shift) & width == bad]
        if (mask >> _CONFIGURATION[0]) & _CONFIGURATION[1] > 1:
            wrong.append("it is configured wrongly")
        if summary in _FABRIC_SUMMARIES or wrong:
            why = f"its fabric is {_FABRIC_SUMMARIES.get(summary, 'impaired')}{': ' if wrong else ''}{', '.join(wrong)}"
            yield gpu.degraded(why, evidence, Repair.DRAIN, look=look)
        else:
            yield gpu.ok("part of the fabric", evidence)
    manager = now.table("fabric.manager")
    if not manager.get("switches") or ready:
        return  # GPUs that are registered prove a manager, also one that this container does not see
    if not manager.get("running"):
        why = f"{manager.get('switches')} NVSwitches are here, and no fabric manager runs"
        yield CheckResult("gpu_fabric", HOST, Result.FAILED, why, (), Repair.RESTART_DRIVER, "systemctl start nvidia-fabricmanager")


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


_LEVELS = {0: "one board", 10: "one switch", 20: "switches", 30: "one host bridge", 40: "one NUMA node", 50: "across sockets"}
_FEWEST_GPUS = 4
_PAIR_LINKS = {"nvlink": "NVLink", "read": "peer-to-peer"}


@check(
    "gpu_pairs",
    subject="host",
    needs=("nvml",),
    reads="P2P and NVLink of each pair",
    degraded="a pair lacks NVLink or peer-to-peer, and more pairs have it; one GPU alone is far from all others",
)
def gpu_pairs(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """How do two GPUs reach each other? A pair without a link that other pairs have, and a GPU that is further away, are named."""
    pairs = now.rows("gpu.pairs")
    if not pairs:
        return
    named: list[str] = []
    for key, word in _PAIR_LINKS.items():
        known = [row for row in pairs if key in row]
        able = [row for row in known if row[key] == 0]
        if able and len(able) < len(known):
            names = [_pair_name(now, row) for row in known if row[key] != 0]
            if len(names) <= len(able):  # else the node is wired so: bridges between pairs
                named += [
                    f"{name}: no {word} (status {row[key]})" for name, row in zip(names, [r for r in known if r[key] != 0], strict=True)
                ]
    named += _isolated(now, pairs)
    evidence = tuple(f"{count} pairs: {_LEVELS.get(level, level)}" for level, count in _count_levels(pairs).items())
    if named:
        why = f"{'; '.join(named)}; of {len(pairs)} pairs"
        yield CheckResult(
            "gpu_pairs",
            HOST,
            Result.DEGRADED,
            why,
            (*named, *evidence),
            Repair.CONFIGURE,
            look=("nvidia-smi topo -m", "nvidia-smi topo -p2p n"),
        )
    else:
        yield CheckResult("gpu_pairs", HOST, Result.OK, f"{len(pairs)} pairs of GPUs are all alike or as the node is wired", evidence)


def _isolated(now: Readings, pairs: list[dict[str, Json]]) -> list[str]:
    """Name the one GPU that is further from its nearest sibling than every other GPU: a riser, a slot, or a switch that was not found.

    With an odd number of GPUs the wiring leaves one alone. With two GPUs there is nothing to compare.
    """
    nearest: dict[str, int] = {}
    for row in pairs:
        level = row.get("level")
        for key in ("a", "b"):
            if isinstance(level, int):
                nearest[str(row.get(key))] = min(level, nearest.get(str(row.get(key)), level))
    *others, last = sorted(nearest, key=lambda gpu: nearest[gpu]) or [""]
    if len(nearest) < _FEWEST_GPUS or len(nearest) % 2 or nearest[others[-1]] >= nearest[last]:
        return []
    usual = _LEVELS.get(nearest[others[-1]], nearest[others[-1]])
    return [
        f"{gpus.label(now, last)}: no sibling nearer than {_LEVELS.get(nearest[last], nearest[last])}, and all others have one ({usual})"
    ]


def _pair_name(now: Readings, row: dict[str, Json]) -> str:
    return " and ".join(gpus.label(now, str(row.get(key))) for key in ("a", "b"))


def _count_levels(pairs: list[dict[str, Json]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for row in pairs:
        level = row.get("level")
        if isinstance(level, int):
            counts[level] = counts.get(level, 0) + 1
    return dict(sorted(counts.items()))


@check(
    "gpu_pcie",
    subject="gpu",
    needs=("nvml",),
    reads="width, generation, load",
    degraded="fewer lanes than it can have; slower under load",
)
def gpu_pcie(now: Readings, _before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Is a GPU's PCIe link as wide and as fast as it can be? An idle link is slowed down, so its speed is judged under load only."""
    for subject in gpus.subjects(now):
        width, width_max, gen, gen_max = (
            now.count(name, subject) for name in ("gpu.pcie_width", "gpu.pcie_width_max", "gpu.pcie_gen", "gpu.pcie_gen_max")
        )
        if not width or not width_max:
            continue  # the GPU has no PCIe link, or is lost
        gpu = gpus.GpuReport("gpu_pcie", now, subject)
        evidence = (f"width x{width} of x{width_max}, generation {gen} of {gen_max}",)
        address = gpus.address(now, subject)
        look = (f"nvidia-smi -q -i {address} | grep -A12 'GPU Link Info'", f"lspci -vv -s {address}")
        busy = now.number("gpu.busy_percent", subject) or 0
        if width < width_max:
            why = f"its PCIe link has {width} lanes of {width_max}: a slot, riser or cable with bad contact"
            yield gpu.degraded(why, evidence, Repair.REPLACE, look=look)
        elif gen and gen_max and gen < gen_max and busy >= limits.load_percent:
            why = f"its PCIe link runs at generation {gen} of {gen_max} under load"
            yield gpu.degraded(why, (*evidence, f"busy {busy:.0f} %"), Repair.RESET_GPU, gpus.reset_command(now, subject), look)
        else:
            yield gpu.ok(f"PCIe x{width}", evidence)


@check(
    "gpu_replays",
    subject="gpu",
    needs=("nvml",),
    reads="PCIe replay counter",
    degraded="more than 8 a minute",
)
def gpu_replays(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """How often does a GPU's PCIe link have to send again? A rate, from the counter's growth since the job's start."""
    for subject in gpus.subjects(now):
        grown, seconds = delta(now, before, "gpu.pcie_replays", subject), elapsed_s(now, before, "gpu.pcie_replays", subject)
        if grown is None or seconds is None:
            continue  # no baseline
        rate, gpu = grown / max(1.0, seconds / 60), gpus.GpuReport("gpu_replays", now, subject)
        evidence = (f"{grown:.0f} replays in {seconds:.0f} s",)
        if rate > limits.pcie_replays_per_minute:
            why = f"{rate:.0f} PCIe replays a minute: the link's signal is bad"
            look = (f"lspci -vv -s {gpus.address(now, subject)} | grep -i -e LnkSta -e DevSta", "dmesg -T | grep -i aer")
            yield gpu.degraded(why, evidence, Repair.REPLACE, look=look)
        else:
            yield gpu.ok("PCIe replays are few", evidence)
