"""Names the holders of a full GPU's memory: the process that ran out, other processes of its job, or foreign processes.

The fields come from the message that `cuda_oom.torch` matched, the job's pids from other evidence. Uncertain numbers are left out. A wrong
owner misleads the recovery: it does nothing although a smaller batch would help, or it shrinks a job that is not the cause.

torch asks NVML for all processes on the GPU and prints each (c10/cuda/CUDACachingAllocator.cpp, reportProcessMemoryInfo, torch 2.1 on):
"this process" for its own pid, else "Process N". In a pid namespace, as in most containers, NVML gives the host's pids, so torch does not
recognise its own process. Then it is the entry that holds at least as much as torch has reserved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.classify.logs.rows import FIELD_TYPES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: The types of the fields that `holders` adds.
KINDS = {"process_in_use": "bytes", "own_pids": "str", "own_bytes": "bytes", "other_pids": "str", "other_bytes": "bytes"}
_HOLDER = expression(r"(?:Process (?P<pid>\d+)|this process) has (?P<amount>[\d.]+ \w+) memory in use")
#: NVML's "not available" is the largest integer, which torch prints as an amount.
_ABSURD = 1 << 56
#: Amounts are printed with two decimals.
_ROUNDING = 0.99


def holders(fields: Mapping[str, str], own: Collection[str]) -> dict[str, str]:
    """Return who holds how much, {} if the message lists no process.

    own_pids, own_bytes: other processes of the same job. other_pids, other_bytes: foreign processes, 0 bytes if there are none; without
    other_pids, their pids are unknown. process_in_use: the process itself, if only the list has its amount.
    """
    listed = [(match["pid"], _bytes(match["amount"])) for match in _HOLDER.finditer(fields.get("processes", ""))]
    if not listed or any(amount >= _ABSURD for _, amount in listed):
        return {}
    if all(pid is not None for pid, _ in listed):
        return _by_amount([amount for _, amount in listed], fields)
    of_job = [(pid, amount) for pid, amount in listed if pid is not None and pid in own]
    others = [(pid, amount) for pid, amount in listed if pid is not None and pid not in own]
    fields_of_holders = {"other_bytes": str(sum(amount for _, amount in others))}
    if others:
        fields_of_holders["other_pids"] = " ".join(pid for pid, _ in others)
    if of_job:
        fields_of_holders |= {"own_pids": " ".join(pid for pid, _ in of_job), "own_bytes": str(sum(amount for _, amount in of_job))}
    return fields_of_holders


def _by_amount(amounts: list[int], fields: Mapping[str, str]) -> dict[str, str]:
    """Find the process itself by the amount that torch holds, because the pids are of another namespace."""
    held = _bytes(fields.get("allocated", "")) + _bytes(fields.get("reserved_unallocated", ""))
    if held >= _ABSURD:
        return {}
    itself = min((amount for amount in amounts if amount >= held * _ROUNDING), default=None)
    if itself is None:  # it is not in the list
        return {"other_bytes": str(sum(amounts))}
    return {"process_in_use": str(itself), "other_bytes": str(sum(amounts) - itself)}


def _bytes(text: str) -> int:
    """Return an amount of memory; more than any GPU has for any other text, which a user's row may extract."""
    try:
        return int(FIELD_TYPES["bytes"](text))
    except (ValueError, OverflowError):
        return _ABSURD
