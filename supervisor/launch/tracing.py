"""The variables that make NCCL and torch write down what the collectives do, for an attempt that is traced.

An attempt is traced after a collective timed out, and where the user asks for it (job.trace). NCCL's log has its set-up and its warnings,
not each collective: the flight recorder has the last of those. torch's own log goes to the rank's stderr, as all that it prints.

Variables that the user set stay as they are; with the user's own NCCL_DEBUG its log stays where the user looks for it. A directory that
cannot be written costs the traces alone.

Names: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_DEBUG_FILE with %h and %p) and torch's
ProcessGroupNCCL.hpp and FlightRecorder.hpp (2.6 to 2.13).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Collectives that the recorder keeps for each rank: some 100 bytes of memory each.
ENTRIES: Final = "2000"
#: The variable of their number. torch 2.8 renamed it (pytorch/pytorch#152563), and warns of the old name since.
SIZE, OLD_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
RENAMED = (2, 8)
#: Subsystems of NCCL's log: devices and connections, but not the lines that it writes for each collective (COLL).
SUBSYSTEMS: Final = "INIT,BOOTSTRAP,ENV,NET"


def variables(environ: Mapping[str, str], directory: str, torch: str = "") -> dict[str, str]:
    """Return what to set for a traced attempt whose output goes to `directory`. torch: the version that the ranks run, "" unknown."""
    version = re.match(r"(\d+)\.(\d+)", torch)
    names = [SIZE] if version and (int(version[1]), int(version[2])) >= RENAMED else [SIZE, OLD_SIZE]
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": f"{directory}/nccl-%h-%p.log"}
    log = {} if environ.get("NCCL_DEBUG") else log
    recorder = {
        **dict.fromkeys([] if SIZE in environ or OLD_SIZE in environ else names, ENTRIES),
        "TORCH_DISTRIBUTED_DEBUG": "INFO",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{directory}/flight-rank-",
        "TORCH_FR_DUMP_TEMP_FILE": f"{directory}/flight-rank-",
    }
    return {name: value for name, value in (log | recorder).items() if name not in environ}
