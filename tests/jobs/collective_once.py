"""A rank whose first attempt ends as torch's watchdog ends one, and which then says what it was told to write down."""

from __future__ import annotations

import os
import sys

if os.environ["SUPERVISE_JOB_ATTEMPT"] == "1":
    sys.stderr.write(
        "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 milliseconds"
        " before timing out.\n"
    )
    sys.stderr.flush()
    os.abort()
sys.stdout.write(" ".join(os.environ[name] for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "TORCH_FR_BUFFER_SIZE")) + "\n")
