"""What an Xid means for a verdict: the cause of a failure that it is, and what is to be told of it.

In: an Xid's number, as the kernel's log names it. Out: a Cause, and facts of a verdict. Pure; nothing fails. The catalogue itself is
health/nvidia/xids.py. The kernel rows in signatures/gpu.toml name the codes; a test holds that each belongs to exactly one row and to its
cause.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from health.nvidia.xids import Part, lookup_text
from supervisor.core.model import Cause

if TYPE_CHECKING:
    from collections.abc import Mapping

CAUSES: Mapping[Part, Cause] = MappingProxyType(
    {Part.MEMORY: Cause.GPU_ECC, Part.BUS: Cause.GPU_LOST, Part.LINK: Cause.NVLINK, Part.OTHER: Cause.GPU_XID_OTHER}
)


def read(event: str) -> tuple[Cause, str] | None:
    """Return the cause that "xid 79" is, and whether it is hardware (yes, no, unknown); None of what names no Xid of the catalogue."""
    kind, _, code = event.partition(" ")
    entry = lookup_text(code.partition(" ")[0]) if kind == "xid" else None
    return (CAUSES[entry.part], entry.hardware) if entry is not None else None


def explained(code: str) -> dict[str, str]:
    """Return what is to be known of an Xid as facts of a verdict, {} of what is no number that the catalogue lists."""
    entry = lookup_text(code)
    if entry is None:
        return {}
    return {"xid_meaning": f"{entry.name}: {entry.meaning}", "xid_action": entry.action.value, "xid_same_gpu": entry.retry.value}
