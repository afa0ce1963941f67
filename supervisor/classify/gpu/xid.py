"""The meaning of an Xid for a verdict: its cause, and facts for the report.

The table is health/nvidia/xids.py. The rows of signatures/gpu.toml choose Xids by their part and effect there.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from health.nvidia.xids import GpuPart, lookup_text
from supervisor.core.model import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

CAUSES: Mapping[GpuPart, Cause] = MappingProxyType(
    {GpuPart.MEMORY: Cause.GPU_ECC, GpuPart.BUS: Cause.GPU_LOST, GpuPart.LINK: Cause.NVLINK, GpuPart.OTHER: Cause.GPU_XID_OTHER}
)


def read(event: str) -> tuple[Cause, str] | None:
    """Return the cause of "xid 79", and whether it is hardware (yes, no, unknown); None for an Xid that the table does not list."""
    kind, _, code = event.partition(" ")
    entry = lookup_text(code.partition(" ")[0]) if kind == "xid" else None
    return (CAUSES[entry.part], entry.hardware) if entry is not None else None


def explained(code: str) -> dict[str, str]:
    """Return the facts of a verdict about an Xid, {} for a number that the table does not list."""
    entry = lookup_text(code)
    if entry is None:
        return {}
    return {"xid_meaning": f"{entry.name}: {entry.meaning}", "xid_action": entry.action.value, "xid_same_gpu": entry.retry.value}
