"""Which rungs answer which cause, in order: the table (docs/explanation/recovery.md is written from it).

The first rung that has a plan wins. A rung that changes what the next attempt runs with stands before `same_place`, which stops: a rung
that is left wins over the stop. But a GPU is blamed for a crash only at different places. The last rung of every ladder always has a plan.
"""

from __future__ import annotations

from supervisor.core.model import Cause

#: Before everything else, in every ladder but those of a machine that is being taken away and of a person's Ctrl-C.
GUARDS = ("within_cap", "recurring")
#: The same, where a change of supervise's own may have led to the failure.
SUSPECTS = (*GUARDS, "own_change")
LAST = "restart_within_budget"

_PROGRAM = (*SUSPECTS, "own_code_before_first_step", "same_place", LAST)
#: Of a program that imports or reads something: what is not there now may be there later.
_READS = (*SUSPECTS, "raced", "start_again", "own_code_before_first_step", "same_place", LAST)
#: Of an end that may show nothing but an exit code.
_OWN_CODE = (*SUSPECTS, "own_code_before_first_step", "same_place", "own_code_at_once", LAST)
_UNSYNCED = (*SUSPECTS, "name_unsynced", "unsynced", "own_code_before_first_step", "same_place", LAST)
_HOST_MEMORY = (*SUSPECTS, "halve_workers", "exhausted", "same_place", LAST)
_TRANSPORTS = ("p2p_disable", "ib_disable", "shm_disable")
_NETWORK = (*SUSPECTS, "interface", *_TRANSPORTS, "start_tries", "trace_collectives", "wait_for_network", LAST)
_COLLECTIVES = (
    *SUSPECTS,
    "left_file",
    "longer_timeout",
    "interface",
    "same_gpu_hangs",
    *_TRANSPORTS,
    "start_tries",
    "trace_collectives",
    "same_place",
    LAST,
)
_GLOO = (*SUSPECTS, "left_file", "longer_timeout", "interface", "start_tries", "trace_collectives", "wait_for_network", LAST)
_HANG = (*SUSPECTS, "left_file", "longer_timeout", "step_back", "same_gpu_hangs", *_TRANSPORTS, "trace_collectives", "same_place", LAST)
_ENVIRONMENT = (*GUARDS, "environment_at_fault", LAST)
_GPU = (*GUARDS, "exclude_gpu", "same_gpu_twice", LAST)
_NATIVE = (*SUSPECTS, "step_back", "same_place", "same_gpu_twice", LAST)
_STORAGE = ("start_tries", "wait_for_storage")

LADDERS: dict[Cause, tuple[str, ...]] = {
    Cause.CUDA_OOM: (
        *SUSPECTS,
        "memory_held_by_others",
        "expandable_segments",
        "halve_batch",
        "memory_knobs",
        "exhausted",
        "same_place",
        LAST,
    ),
    Cause.HOST_OOM: _HOST_MEMORY,
    Cause.SHM_EXHAUSTED: _HOST_MEMORY,
    Cause.DATALOADER_WORKER: _HOST_MEMORY,
    Cause.NCCL_TIMEOUT: _COLLECTIVES,
    Cause.HANG_NO_ERROR: _HANG,
    Cause.NCCL_NETWORK: _NETWORK,
    Cause.GLOO_ERROR: _GLOO,
    Cause.RENDEZVOUS: (*SUSPECTS, "interface", "start_tries", "wait_for_network", LAST),
    Cause.NCCL_INIT: (*SUSPECTS, *_ENVIRONMENT[len(GUARDS) :]),
    Cause.GPU_DRIVER: _ENVIRONMENT,
    Cause.GPU_ECC: _GPU,
    Cause.GPU_LOST: _GPU,
    Cause.GPU_XID_OTHER: _GPU,
    Cause.NVLINK: _GPU,
    Cause.CUDA_ILLEGAL_ACCESS: _NATIVE,
    Cause.SEGFAULT: _NATIVE,
    Cause.UNKNOWN_NATIVE_ABORT: _NATIVE,
    Cause.CHECKPOINT_CORRUPT: (*SUSPECTS, "raced", "step_back", "same_place", LAST),
    Cause.CACHE_CORRUPT: (*GUARDS, "damaged_cache", LAST),
    Cause.DISK_FULL: (*GUARDS, "own_leftovers", *_STORAGE),
    Cause.IO_ERROR: (*GUARDS, "damaged_cache", *_STORAGE),
    Cause.STORAGE_REMOTE: (*GUARDS, "own_service", *_STORAGE),
    Cause.NAN_LOSS: (*SUSPECTS, "step_back", "skip_window", "exhausted", "same_place", LAST),
    Cause.USER_CODE: (*SUSPECTS, "raced", "start_again", *_OWN_CODE[len(SUSPECTS) :]),
    Cause.DEPENDENCY: _READS,
    Cause.DATA_ERROR: _READS,
    Cause.DDP_UNSYNCED: _UNSYNCED,
    Cause.CHECKPOINT_MISMATCH: ("foreign_checkpoint", "mend_pointer", *_PROGRAM),
    Cause.CHECKPOINT_LEFTOVER: (*GUARDS, "clear_way", LAST),
    Cause.CHECKPOINT_POINTER: (*GUARDS, "mend_pointer", LAST),
    Cause.UNKNOWN: _OWN_CODE,
    Cause.PREEMPTED: ("requeue",),
    Cause.INTERRUPTED: ("interrupted",),
    Cause.NODE_LOST: (*GUARDS, LAST),
    Cause.KILLED_UNKNOWN: (*GUARDS, LAST),
    Cause.NONE: (*GUARDS, LAST),
}
