"""Are all NVLinks up, and do they carry data without errors? Judged by what moved since the job's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from health.checks import gpus
from health.model import CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Json, Readings
    from health.thresholds import Thresholds

NAME = "gpu_nvlink"
NEEDS = ("nvml",)


_RECOVERIES = ("recovery", "recovery_5", "recovery_failed")
_ERRORS = ("replay", "crc", "crc_flit", "crc_data", "receive")
#: From so many on, all of which have NVLink, one without is no matter of bridges between some.
_SIBLINGS = 3


def check(now: Readings, before: Readings | None, limits: Thresholds) -> Iterable[CheckResult]:
    """Judge each GPU's links. All of a GPU's links down is a GPU without a bridge or switch; some down is a fault."""
    most = max((_up(now.rows("gpu.nvlinks", subject)) for subject in gpus.all_of(now)), default=0)
    for subject in gpus.all_of(now):
        if now.rows("gpu.nvlinks", subject) and gpus.answers(now, subject):
            yield _judged((now, before), limits, subject, most)


def _judged(sweeps: tuple[Readings, Readings | None], limits: Thresholds, subject: str, most: int) -> CheckResult:
    """Judge one GPU's links. most: how many the best of its siblings has up."""
    now, before = sweeps
    links = now.rows("gpu.nvlinks", subject)
    who, look = gpus.called(now, subject), f"nvidia-smi nvlink -s -e -i {gpus.address(now, subject)}"
    down = [str(link.get("link")) for link in links if not link.get("active")]
    old = {link.get("link"): link for link in before.rows("gpu.nvlinks", subject)} if before is not None else {}
    lost = [number for number in down if any(str(at) == number and link.get("active") for at, link in old.items())]
    evidence = [f"up: {len(links) - len(down)} of {len(links)}"]
    if lost or 0 < _up(links) < most:
        why = f"{who}: NVLink {', '.join(lost or down)} is down{' since the job started' if lost else ', other GPUs have more'}"
        return CheckResult(NAME, subject, Result.FAILED, why, tuple(evidence), Repair.RESET_GPU, look)
    reading, first = now.one("gpu.nvlinks", subject), before.one("gpu.nvlinks", subject) if before is not None else None
    minutes = max(1.0, (reading.t - first.t) / 60) if reading is not None and first is not None else 1.0
    recovered, erring = [], []
    for link in links:
        was = old.get(link.get("link"))
        if was is None:
            continue
        again, errors = (sum(_grown(link, was, name) for name in names) for names in (_RECOVERIES, _ERRORS))
        if again >= limits.nvlink_recovery_delta:
            recovered.append(f"link {link.get('link')} went down and came back {again} times")
        if errors / minutes > limits.nvlink_errors_per_minute:
            erring.append(f"link {link.get('link')}: {errors} replays or CRC errors in {minutes:.1f} min")
    if recovered or erring:
        why = f"{who}: errors on NVLink: {'; '.join(recovered + erring)}"
        return CheckResult(NAME, subject, Result.DEGRADED, why, (*evidence, *recovered, *erring), Repair.RESET_GPU, look)
    if not _up(links):
        others = [_up(now.rows("gpu.nvlinks", other)) for other in gpus.all_of(now) if other != subject]
        if len(others) >= _SIBLINGS and all(others):
            why = f"{who}: none of its NVLinks is up, those of all other GPUs are"
            return CheckResult(NAME, subject, Result.DEGRADED, why, tuple(evidence), Repair.RESET_GPU, look)
        return CheckResult(NAME, subject, Result.OK, f"{who}: no NVLink is in use: it has no bridge or switch", tuple(evidence))
    if down:
        return CheckResult(
            NAME, subject, Result.OK, f"{who}: {_up(links)} of {len(links)} NVLinks are in use, as on its siblings", tuple(evidence)
        )
    return CheckResult(NAME, subject, Result.OK, f"{who}: {len(links)} NVLinks are up", tuple(evidence))


def _up(links: list[dict[str, Json]]) -> int:
    return sum(1 for link in links if link.get("active"))


def _grown(link: dict[str, Json], was: dict[str, Json], name: str) -> int:
    new, old = link.get(name), was.get(name)
    if not isinstance(new, int) or not isinstance(old, int):
        return 0
    return new - old if new >= old else new
