"""The recovery that the driver asks for: the numbers of NVML's field 230, which an Xid 154 announces too.

Data, in our words: nvmlDeviceGpuRecoveryAction_t (nvml.h of CUDA 13). A number that is not listed is newer than this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from health.model import Repair

if TYPE_CHECKING:
    from collections.abc import Mapping

NONE: Final = 0


@dataclass(frozen=True, slots=True)
class Recovery:
    """One action. words: the text after "the driver asks for". now: the GPU cannot be used before it."""

    words: str
    repair: Repair
    now: bool = False


ACTIONS: Final[Mapping[int, Recovery]] = MappingProxyType(
    {
        1: Recovery("a reset of the GPU", Repair.RESET_GPU, now=True),
        2: Recovery("a reboot of the node", Repair.REBOOT, now=True),
        3: Recovery("an end of all traffic between GPUs: drain its peers", Repair.DRAIN),
        4: Recovery("a reset once the job is over: until then it works with reduced capacity", Repair.RESET_GPU),
        5: Recovery("a recovery of the IMEX domain", Repair.RESTART_DRIVER),
        6: Recovery("a reset of the bus", Repair.REBOOT, now=True),
        7: Recovery("a reboot of the whole system", Repair.REBOOT, now=True),
    }
)


def asked(action: int) -> Recovery:
    """Return an action, also one that is not listed."""
    return ACTIONS.get(action, Recovery(f"an action that we do not know ({action})", Repair.DRAIN))
