"""The variables that make NCCL and torch write down what the collectives do, for an attempt that is traced.

Variables that the user set stay as they are; with the user's own NCCL_DEBUG its log stays where the user looks for it. A directory that
cannot be written costs the traces alone.

Names: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_DEBUG_FILE with %h and %p) and torch's
ProcessGroupNCCL.hpp and FlightRecorder.hpp (2.6 to 2.13: the recorder's size was TORCH_NCCL_TRACE_BUFFER_SIZE, then TORCH_FR_BUFFER_SIZE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Collectives that the recorder keeps for each rank: some 100 bytes of memory each.
ENTRIES: Final = "2000"


def variables(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return what to set for a traced attempt whose output goes to `directory`."""
    log = {} if environ.get("NCCL_DEBUG") else {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{directory}/nccl-%h-%p.log"}
    recorder = {
        "TORCH_FR_BUFFER_SIZE": ENTRIES,
        "TORCH_NCCL_TRACE_BUFFER_SIZE": ENTRIES,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{directory}/flight-rank-",
        "TORCH_FR_DUMP_TEMP_FILE": f"{directory}/flight-rank-",
    }
    return {name: value for name, value in (log | recorder).items() if name not in environ}
