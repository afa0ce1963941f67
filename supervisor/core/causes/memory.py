"""Causes of memory that does not suffice, on the GPU and on the host. Pure."""

from __future__ import annotations

from supervisor.core.causes.row import LAST, SUSPECTS, CauseRow, Family, Hint, line
from supervisor.core.model import Cause

_HOST_MEMORY = (*SUSPECTS, "halve_workers", "exhausted", "same_place", LAST)

ROWS: dict[Cause, CauseRow] = {
    Cause.CUDA_OOM: CauseRow(
        meaning="The GPU ran out of memory",
        names="sizes",
        proof=(
            "torch's OutOfMemoryError in every wording since 0.4, cudaErrorMemoryAllocation, NCCL's or cuBLAS's own failure to allocate"
        ),
        family=Family.MEMORY,
        changes_job=True,
        ladder=(
            *SUSPECTS,
            "memory_held_by_others",
            "expandable_segments",
            "halve_batch",
            "memory_knobs",
            "exhausted",
            "same_place",
            LAST,
        ),
        hints=(
            line(
                Hint("end process {other_pids}, which holds much of the GPU's memory", ("others_hold",)),
                Hint("end the other processes that hold the GPU's memory", ("others_hold",)),
            ),
            line(
                Hint("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, because much is reserved in pieces too small", ("in_pieces",))
            ),
            line(
                Hint(
                    "let FSDP gather fewer layers at once: FullyShardedDataParallel(limit_all_gathers=True), which is its default",
                    ("unlimited_gathers",),
                )
            ),
            line(Hint("leave NCCL room beside torch's own memory: torch.cuda.set_per_process_memory_fraction(0.9)", ("of_nccl",))),
            line("halve the micro-batch and double the gradient accumulation"),
        ),
    ),
    Cause.HOST_OOM: CauseRow(
        meaning="The main memory ran out: that of the machine, or the limit of its cgroup",
        proof=(
            "the kernel's OOM record, a cgroup's oom_kill count when a process was killed, Slurm's oom-kill, std::bad_alloc, "
            "MemoryError, torch's DefaultCPUAllocator"
        ),
        family=Family.MEMORY,
        changes_job=True,
        ends_by_kill=True,
        may_pass=True,
        of_workers=True,
        ladder=_HOST_MEMORY,
        hints=(
            line(
                Hint(
                    "have the save need less: it held the state a second time. Save shard by shard "
                    "(torch.distributed.checkpoint) or one rank after the other, and make no whole copy in memory first",
                    ("in_save",),
                )
            ),
            line(
                "raise the memory limit of {cgroup}",
                "raise the memory limit of {oom_memcg}",
                "raise the memory limit, or hold less in memory",
            ),
            line(
                Hint(
                    "use fewer DataLoader workers, or a smaller prefetch",
                    ("loader", "not_in_save"),
                )
            ),
        ),
    ),
    Cause.SHM_EXHAUSTED: CauseRow(
        meaning="/dev/shm is full: ranks and DataLoader workers pass data through it",  # noqa: S108  a sentence
        proof=(
            "torch's 'unable to write to file </torch_…>', 'insufficient shared memory', No space left on device for a file in /dev/shm"
        ),
        family=Family.MEMORY,
        of_workers=True,
        ladder=_HOST_MEMORY,
        hints=(
            line("give the container more (docker --shm-size, an emptyDir with medium Memory)"),
            line(Hint("use fewer DataLoader workers", ("loader",))),
        ),
    ),
    Cause.DATALOADER_WORKER: CauseRow(
        meaning="A DataLoader worker died or did not answer",
        proof="'DataLoader worker (pid N) is killed by signal', 'exited unexpectedly', its time-out; too many open files",
        family=Family.MEMORY,
        of_workers=True,
        ladder=_HOST_MEMORY,
        hints=(line("look at the signal: KILL is memory, BUS is /dev/shm, SEGV is a library; num_workers=0 shows the real exception"),),
    ),
}
