"""The work of each rank's GPU, and each rank's place in its process group, as evidence of a hang. Pure.

How busy a GPU is proves nothing: a kernel of NCCL that waits shows 100 %. Its power, and how much of the time its memory is read or
written, do show it: a GPU that waits draws a fraction of its limit and leaves its memory alone. It is shown to people, and decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from health.model import Readings
    from supervisor.observe.hangs.look import Look, RankLook

#: Older readings are of another time than the hang.
FRESH_S = 90.0


def named(look: Look, readings: Readings, gpu_of: Mapping[int, str], now: float) -> Look:
    """Return the look with what the GPU of each rank does. gpu_of: UUIDs by rank; now: in Unix seconds, as the readings are."""
    return replace(look, ranks=tuple(replace(rank, device=_device(readings, gpu_of.get(rank.rank, ""), now)) for rank in look.ranks))


def _device(readings: Readings, uuid: str, now: float) -> str:
    subject = f"gpu:{uuid}"
    identity = readings.one("gpu.identity", subject)
    if not uuid or identity is None or not isinstance(identity.value, dict) or now - identity.t > FRESH_S:
        return ""
    drawn, limit = (readings.number(name, subject) for name in ("gpu.power_mw", "gpu.power_limit_mw"))
    memory = readings.number("gpu.memory_busy_percent", subject)
    parts = [f"GPU {identity.value.get('index', '?')}"]
    if drawn is not None:
        parts.append(f"draws {drawn / 1e3:.0f}" + (f" of {limit / 1e3:.0f} W" if limit else " W"))
    if memory is not None:
        parts.append(f"its memory busy {memory:.0f} % of the time")
    return ", ".join(parts)


def place(rank: RankLook) -> str:
    """Return the collective under way in a rank, else its last one; "" where its recorder shows none."""
    groups = rank.collectives.groups
    pending = next((group.pending for group in groups if group.pending is not None), None)
    if pending is not None:
        return f"in {pending.text}"
    last = max((collective for group in groups for collective in group.last[-1:]), key=lambda last: last.sequence, default=None)
    return f"last over: {last.text}" if last is not None else ""
