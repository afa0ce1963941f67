"""The meaning of changes of a GPU's state, as NVML reports them: rows for evidence of source `nvml`.

A row is one kind of change between the start of an attempt and its end. NVML's counts and answers are certain; that the change ended the
attempt is not. So a row that only reports that something happened gives way to one that names it. The kernel's rows (signatures/gpu.toml)
claim Xids that NVML reported. node/gpu_changes.py makes the evidence; docs/reference/causes.md lists the proofs of each cause.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.core.model import Cause, Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "nvml"
_MORE_EXACT = ("gpu_ecc", "gpu_lost", "nvlink")

#: By name of the evidence.
CLAIMS: Mapping[str, Claim] = MappingProxyType(
    {
        # NVML_ERROR_GPU_IS_LOST (15), or 999 from the look-up of the GPU; or NVML no longer lists it
        "lost": Claim(Cause.GPU_LOST, 0.98),
        # NVML_ERROR_RESET_REQUIRED (16): after what, it does not say
        "reset_required": Claim(Cause.GPU_XID_OTHER, 0.92, consequence_of=_MORE_EXACT),
        # NVML's errors 9 (not loaded) and 18 (another version than its library)
        "driver_gone": Claim(Cause.GPU_DRIVER, 0.95),
        "ecc_uncorrected": Claim(Cause.GPU_ECC, 0.97),
        "sram_exceeded": Claim(Cause.GPU_ECC, 0.95),
        "row_remap_failed": Claim(Cause.GPU_ECC, 0.96),
        # a row is remapped for many corrected errors too, which end no process
        "row_remap_pending": Claim(Cause.GPU_ECC, 0.85, consequence_of=("gpu_lost",)),
        "page_retirement_pending": Claim(Cause.GPU_ECC, 0.85, consequence_of=("gpu_lost",)),
        "nvlink_down": Claim(Cause.NVLINK, 0.92, consequence_of=("gpu_lost",)),
        "nvlink_recovered": Claim(Cause.NVLINK, 0.7, transient=True, consequence_of=("gpu_lost", "gpu_ecc")),
        # field 230: the driver asks for a repair that it did not ask for when the attempt began
        "recovery_action": Claim(Cause.GPU_XID_OTHER, 0.91, consequence_of=(*_MORE_EXACT, "cuda_illegal_access")),
    }
)
#: The weight of an Xid that a program or the hardware can cause, if it repeats within a day on this GPU and on no other.
REPEATED = 0.93
