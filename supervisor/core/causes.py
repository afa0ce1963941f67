"""What is known of each cause, one row for each: its meaning, what proves it, which steps answer it, and what a person does about it. Pure.

A new cause is a member of `Cause` (core/model.py), a row here, a signature with its sample, and a story (tests/scenarios/stories).
docs/reference/causes.md and the ladders of docs/explanation/recovery.md are written from this table.
"""

from __future__ import annotations

from enum import StrEnum
from string import Formatter
from types import MappingProxyType
from typing import TYPE_CHECKING

from supervisor.core.model import Cause
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping


class Family(StrEnum):
    """Causes that share one budget of restarts (core/budget.py)."""

    INFRASTRUCTURE = "infrastructure"
    MEMORY = "memory"
    NATIVE = "native"
    KILLED = "killed"
    PROGRAM = "program"


class Hint(Struct, frozen=True):
    """One thing that a person can do.

    text: an imperative in lower case, with `{name}` for a fact of the verdict. when: names of conditions (classify/remedies.py), all of
    which must hold.
    """

    text: str
    when: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The facts that it names."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.text) if name)


class CauseRow(Struct, frozen=True):
    """All that is known of a cause before it happens."""

    #: A sentence: `supervise classify` and the card print it.
    meaning: str
    #: The evidence that a verdict of this cause rests on.
    proof: str
    #: The steps that answer it, in order: the first that has a plan is taken, and the last always has one. A step that changes the next
    #: attempt stands before `same_place`, which stops: a change that is left is better than a stop. But a GPU is blamed for a crash only
    #: at different places.
    ladder: tuple[str, ...]
    #: For each line of the advice its alternatives. The first whose conditions hold and with known facts is given; a line may give none.
    hints: tuple[tuple[Hint, ...], ...]
    family: Family = Family.PROGRAM
    #: Whether a rank that fails of it breaks the collectives of its peers: their errors are then a consequence ("@breaks_collectives" in
    #: a signature's consequence_of).
    breaks_collectives: bool = True


def _line(*alternatives: Hint | str) -> tuple[Hint, ...]:
    return tuple(Hint(alternative) if isinstance(alternative, str) else alternative for alternative in alternatives)


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

_ROWS: dict[Cause, CauseRow] = {
    Cause.CUDA_OOM: CauseRow(
        meaning="The GPU ran out of memory",
        proof=(
            "torch's OutOfMemoryError in every wording since 0.4, cudaErrorMemoryAllocation, NCCL's or cuBLAS's own failure to allocate"
        ),
        family=Family.MEMORY,
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
            _line(
                Hint("end process {other_pids}, which holds much of the GPU's memory", ("others_hold",)),
                Hint("end the other processes that hold the GPU's memory", ("others_hold",)),
            ),
            _line(
                Hint("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, because much is reserved in pieces too small", ("in_pieces",))
            ),
            _line(Hint("leave NCCL room beside torch's own memory: torch.cuda.set_per_process_memory_fraction(0.9)", ("of_nccl",))),
            _line("halve the micro-batch and double the gradient accumulation"),
        ),
    ),
    Cause.HOST_OOM: CauseRow(
        meaning="The machine or the cgroup ran out of main memory",
        proof=(
            "the kernel's OOM record, a cgroup's oom_kill count when a process was killed, Slurm's oom-kill, std::bad_alloc, "
            "MemoryError, torch's DefaultCPUAllocator"
        ),
        family=Family.MEMORY,
        ladder=_HOST_MEMORY,
        hints=(
            _line(
                Hint(
                    "have the save need less: it held the state a second time. Save shard by shard "
                    "(torch.distributed.checkpoint) or one rank after the other, and make no whole copy in memory first",
                    ("in_save",),
                )
            ),
            _line("raise the memory limit of {cgroup}", "raise the memory limit, or hold less in memory"),
            _line(
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
        ladder=_HOST_MEMORY,
        hints=(
            _line("give the container more (docker --shm-size, an emptyDir with medium Memory)"),
            _line(Hint("use fewer DataLoader workers", ("loader",))),
        ),
    ),
    Cause.NCCL_TIMEOUT: CauseRow(
        meaning="A collective did not finish in time, and no other evidence says why: a rank did not reach it, or is far behind",
        proof="NCCL's watchdog: 'ran for N milliseconds before timing out', with collective and sequence number",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        ladder=_COLLECTIVES,
        hints=(
            _line(
                Hint("make all ranks call the same collectives in the same order", ("mismatch",)),
                "look at what rank {hang_ranks} did, at {hang_code}",
                "find the missing rank: it has no timeout, or a lower sequence number; look at what it did (stack, data, I/O)",
            ),
        ),
    ),
    Cause.NCCL_NETWORK: CauseRow(
        meaning="The network between GPUs failed: InfiniBand, RoCE or sockets",
        proof="NCCL's remote error and system error, ibv_* failures, 'Got completion with error', a peer that closed its connection",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        ladder=_NETWORK,
        hints=(
            _line(
                Hint(
                    "check the port or host that the evidence names (ibstat, link counters, cabling), and NCCL_IB_HCA", ("over_infiniband",)
                ),
                "check the host that the evidence names, its interfaces, and NCCL_SOCKET_IFNAME",
            ),
            _line(Hint("restart the server of the other end: it keeps the communicator of a trainer that is gone", ("with_a_server",))),
        ),
    ),
    Cause.NCCL_INIT: CauseRow(
        meaning="NCCL could not start: versions, devices or plugins do not match",
        proof=(
            "invalid usage, 'Duplicate GPU detected', no CUDA device, versions that differ between nodes, a missing requested "
            "network plugin"
        ),
        ladder=(*SUSPECTS, *_ENVIRONMENT[len(GUARDS) :]),
        hints=(
            _line(
                "give each rank a GPU of its own, and make driver, CUDA, NCCL and torch equal on all nodes; NCCL_DEBUG=INFO shows the rest"
            ),
            _line(Hint("restart the server of the other end: it keeps the communicator of a trainer that is gone", ("with_a_server",))),
        ),
    ),
    Cause.GLOO_ERROR: CauseRow(
        meaning="A gloo connection broke, and no failed peer is known",
        proof="gloo's 'Connection closed by peer', 'connectFullMesh failed', 'Timed out waiting'",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        ladder=_GLOO,
        hints=(
            _line(
                Hint("look for the missing peer on the other nodes; name the interface with GLOO_SOCKET_IFNAME", ("several_nodes",)),
                "look at what rank {hang_ranks} did, at {hang_code}",
                "look for the rank that did not come: the one without a time-out of its own",
            ),
        ),
    ),
    Cause.RENDEZVOUS: CauseRow(
        meaning="The ranks, or their nodes, did not reach each other",
        proof=(
            "errors of torch's rendezvous and TCPStore, of init_process_group, of etcd; an address in use; a coordinator that does "
            "not answer"
        ),
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        ladder=(*SUSPECTS, "interface", "start_tries", "wait_for_network", LAST),
        hints=(
            _line(
                "check that MASTER_ADDR and MASTER_PORT are reachable from all nodes and free, and that all nodes start within the "
                "time allowed"
            ),
        ),
    ),
    Cause.NODE_LOST: CauseRow(
        meaning="A node of the job was lost, or left",
        proof="the coordinator: the node's supervise ended, it was silent for 60 s, or it could not be reached and no other made steps",
        family=Family.INFRASTRUCTURE,
        breaks_collectives=False,
        ladder=(*GUARDS, LAST),
        hints=(_line("look at that node (power, kernel log, `supervise why` there), and start the same command there again"),),
    ),
    Cause.GPU_ECC: CauseRow(
        meaning="The GPU's memory had an uncorrectable error, or so many errors that parts of it were taken out of use",
        proof=(
            "Xid 48, 64, 94, 95, 140 and 172 (not corrected), 63, 92, 160, 161 and 171 (recorded) in the kernel's log, "
            "'uncorrectable ECC error encountered', NVML's counts of uncorrectable errors, of rows and of pages that moved "
            "during the attempt"
        ),
        family=Family.INFRASTRUCTURE,
        ladder=_GPU,
        hints=(
            _line("reset GPU {gpu} before it is used again", "find the GPU (`supervise doctor`, the kernel's log), and reset it"),
            _line("replace it where rows can no longer be remapped (nvidia-smi -q -d ROW_REMAPPER)"),
        ),
    ),
    Cause.GPU_LOST: CauseRow(
        meaning="The GPU no longer answers",
        proof="Xid 79, 'GPU has fallen off the bus', 'GPU is lost' from nvidia-smi or NVML, a GPU that NVML does not list any more",
        family=Family.INFRASTRUCTURE,
        ladder=_GPU,
        hints=(
            _line(
                "reboot the node of GPU {gpu}; if it happens again, check power, temperature and seating, and have it replaced",
                "reboot the node; if it happens again, check power, temperature and seating of its GPUs",
            ),
        ),
    ),
    Cause.GPU_XID_OTHER: CauseRow(
        meaning="The driver reported another error of the GPU",
        proof="an Xid in the kernel's log or from NVML that is no consequence (43 and 45 are); a recovery that the driver asks for",
        family=Family.INFRASTRUCTURE,
        ladder=_GPU,
        hints=(
            _line(
                "read what Xid {xid} means in the evidence: some are faults of the program, some of the hardware",
                "read the evidence: some errors are faults of the program, some of the hardware",
            ),
            _line("drain the node if it comes back on GPU {gpu}", "drain the node if it comes back on one GPU"),
        ),
    ),
    Cause.NVLINK: CauseRow(
        meaning="A link between GPUs, or the fabric that joins them, failed",
        proof=(
            "Xid 74, 144 to 150 and 155, SXid records of the NVSwitch driver, 'uncorrectable NVLink error', the fabric "
            "manager's errors, a link that NVML saw go down"
        ),
        family=Family.INFRASTRUCTURE,
        ladder=_GPU,
        hints=(
            _line(
                "reset the GPUs of the fabric together, or reboot; check nvidia-fabricmanager and nvidia-smi nvlink -e; replace "
                "what comes back"
            ),
        ),
    ),
    Cause.GPU_DRIVER: CauseRow(
        meaning="Driver and CUDA do not match, or no driver is loaded",
        proof=("'driver version is insufficient', version mismatch, no devices, 'no kernel image is available', Failed to initialize NVML"),
        ladder=_ENVIRONMENT,
        hints=(
            _line(
                "use another node, or install a driver that the CUDA version of torch needs; after an upgrade reload the module or "
                "reboot; check that the container sees the GPUs"
            ),
        ),
    ),
    Cause.DEVICE_ORDINAL: CauseRow(
        meaning="A rank asked for a GPU that it does not see",
        proof="'invalid device ordinal' of CUDA or HIP, 'Invalid device id' of torch; a list of GPUs that names one which is not there",
        ladder=(*SUSPECTS, "environment_at_fault", LAST),
        hints=(
            _line(
                "start as many ranks on a node as GPUs are visible there: compare --nproc-per-node (num_processes of accelerate, slots of "
                "DeepSpeed) with CUDA_VISIBLE_DEVICES and `nvidia-smi -L`"
            ),
            _line("have the script take the GPU of LOCAL_RANK, which counts on each node from 0, and not of RANK"),
        ),
    ),
    Cause.CUDA_ILLEGAL_ACCESS: CauseRow(
        meaning="A CUDA kernel accessed memory outside its allocation, or an assertion in it failed",
        proof=(
            "'an illegal memory access was encountered', 'device-side assert triggered', misaligned address, unspecified launch failure"
        ),
        family=Family.NATIVE,
        ladder=_NATIVE,
        hints=(
            _line("look for an index out of range in the data (labels, token ids); run once with CUDA_LAUNCH_BLOCKING=1"),
            _line("suspect GPU {gpu} if it stays on that one"),
        ),
    ),
    Cause.CHECKPOINT_CORRUPT: CauseRow(
        meaning="A checkpoint is torn, truncated or altered",
        proof=("torch.load's errors about the zip archive or the pickle, safetensors' header and length errors, a checksum that differs"),
        ladder=(*SUSPECTS, "raced", "step_back", "same_place", LAST),
        hints=(
            _line("resume from a checkpoint older than {path}", "resume from an older one"),
            _line("write checkpoints to a temporary name, fsync, then rename"),
        ),
    ),
    Cause.CHECKPOINT_MISMATCH: CauseRow(
        meaning="A checkpoint is whole, but belongs to another model, optimizer or number of ranks",
        proof=(
            "load_state_dict's missing or unexpected keys and size mismatches, parameter groups that differ, a sharded "
            "checkpoint of another layout, a loader that names another number of ranks"
        ),
        ladder=("foreign_checkpoint", "mend_pointer", *_PROGRAM),
        hints=(
            _line(
                Hint("start as many ranks as saved it: {saved}, and not {current}; or convert it", ("other_ranks",)),
                Hint("start as many ranks as saved it, or convert it", ("other_ranks",)),
                "resume from a checkpoint of this configuration, or convert it; strict=False hides the difference",
            ),
        ),
    ),
    Cause.CHECKPOINT_LEFTOVER: CauseRow(
        meaning=(
            "What an earlier attempt left of a save is in the way or was loaded, or the script looks for a file that supervise set aside"
        ),
        proof=(
            "an exception that names a path in a checkpoint location, or comes of a save, and what lies there: the rest of a "
            "save, or nothing"
        ),
        ladder=(*GUARDS, "clear_way", LAST),
        hints=(
            _line("run {remedy}, which moves it out of the script's sight", "move what is in the way out of the script's sight"),
            _line("let the script write to a temporary name and rename it"),
        ),
    ),
    Cause.CHECKPOINT_POINTER: CauseRow(
        meaning=("A link, or the file that names the latest checkpoint, leads to itself, to nothing, or to a checkpoint that is not whole"),
        proof="an exception while a checkpoint was loaded, and the pointer on the way to it, as it is on the disk",
        ladder=(*GUARDS, "mend_pointer", LAST),
        hints=(
            _line("run {remedy}, which lets it lead to the newest whole checkpoint", "let it lead to the newest whole checkpoint"),
            _line("move it only once a save is on the disk"),
        ),
    ),
    Cause.CACHE_CORRUPT: CauseRow(
        meaning="A file of a library's cache is damaged: half-written, or of another version",
        proof=(
            "an error of a reader (library, JSON, pickle, zip, Arrow) whose path lies in a cache (torch_extensions, "
            "torchinductor, Triton, Numba, Hugging Face, __pycache__, ~/.cache), or that came through the function that reads "
            "one"
        ),
        ladder=(*GUARDS, "damaged_cache", LAST),
        hints=(
            _line(
                "delete {path}, which {cache_writer} wrote and left half-written; it is made anew",
                "delete {path}; it is made anew",
                "delete the damaged file below ${cache_variable}, or all of that cache; it is made anew",
                "delete the damaged file in the cache of {cache}; it is made anew",
                "delete the damaged file of the cache; it is made anew",
            ),
        ),
    ),
    Cause.DISK_FULL: CauseRow(
        meaning="A file system, or a quota, is full",
        proof="No space left on device, Disk quota exceeded (ENOSPC, EDQUOT), torch's file writer with 'unexpected pos'",
        family=Family.INFRASTRUCTURE,
        ladder=(*GUARDS, "own_leftovers", *_STORAGE),
        hints=(
            _line("delete what killed saves of this job left there: {leftovers}"),
            _line(
                "make room on the file system of {path}", "make room on the full file system: df -h and df -i name it, and quota -s a quota"
            ),
            _line(Hint("look at the largest files that this job wrote there: {job_files}", ("no_leftovers",))),
        ),
    ),
    Cause.IO_ERROR: CauseRow(
        meaning="A file system reported an I/O error",
        proof=(
            "Input/output error, Stale file handle, Read-only file system, Transport endpoint is not connected, the kernel's "
            "I/O errors, a process of the job that KILL does not end"
        ),
        family=Family.INFRASTRUCTURE,
        ladder=(*GUARDS, "damaged_cache", *_STORAGE),
        hints=(
            _line(
                "give each node a {cache_variable} of its own, on a local disk: another machine replaced the file in the shared one",
                Hint("look at what process {pid} waits for: neither KILL nor its disk answers", ("unkilled",)),
                "check the mount and the device of {path} on the node (dmesg, smartctl, the server's state)",
                "check the mount and the device on the node (dmesg, smartctl, the server's state)",
            ),
        ),
    ),
    Cause.STORAGE_REMOTE: CauseRow(
        meaning="A service that holds data, models or checkpoints did not answer, or refused",
        proof="errors of S3, GCS and HTTP clients, of the Hugging Face hub, of DNS; time-outs, throttling, expired credentials",
        family=Family.INFRASTRUCTURE,
        ladder=(*GUARDS, "own_service", *_STORAGE),
        hints=(
            _line(
                Hint("look at {peer}, a service of the job's own: restart it where it answers with errors, or not at all", ("own_service",))
            ),
            _line(
                Hint(
                    "renew the credentials, which {peer} refused",
                    ("refused", "remote"),
                ),
                Hint(
                    "renew the credentials",
                    ("refused", "remote"),
                ),
            ),
            _line(Hint("try again later, when {peer} answers", ("remote",)), Hint("try again later", ("remote",))),
            _line(
                Hint(
                    "keep a local copy (HF_HUB_OFFLINE=1)",
                    ("hub", "remote"),
                )
            ),
        ),
    ),
    Cause.DATALOADER_WORKER: CauseRow(
        meaning="A DataLoader worker died or did not answer",
        proof="'DataLoader worker (pid N) is killed by signal', 'exited unexpectedly', its time-out; too many open files",
        family=Family.MEMORY,
        ladder=_HOST_MEMORY,
        hints=(_line("look at the signal: KILL is memory, BUS is /dev/shm, SEGV is a library; num_workers=0 shows the real exception"),),
    ),
    Cause.DATA_ERROR: CauseRow(
        meaning="The program could not read the data",
        proof="exceptions from within DataLoader's fetch and collate, of decoders and parsers: images, JSON, Parquet, UTF-8, tokens",
        ladder=(*SUSPECTS, "batches_left_out", *_READS[len(SUSPECTS) :]),
        hints=(_line("look at {path}; skip or repair it", "look at the sample or file in the message; skip or repair it"),),
    ),
    Cause.DDP_UNSYNCED: CauseRow(
        meaning="The ranks differ: in collectives, shapes or parameters",
        proof=(
            "DDP's 'Expected to have finished reduction', 'verify_params', mismatched collectives or sizes, a barrier that "
            "some ranks never reach"
        ),
        ladder=_UNSYNCED,
        hints=(
            _line(
                Hint("use them in the loss, or pass find_unused_parameters=True to DistributedDataParallel", ("unused",)),
                Hint("use the parameter once in a forward pass; checkpoint activations with use_reentrant=False", ("twice",)),
                Hint(
                    "make all ranks call the same collectives in the same order: none for one rank alone, equally many batches",
                    ("collectives",),
                ),
                "find where the ranks diverge: a branch on rank or data, unused parameters (find_unused_parameters=True), a "
                "shorter last batch",
            ),
        ),
    ),
    Cause.NAN_LOSS: CauseRow(
        meaning="The loss or the gradients are NaN or infinite",
        proof="a check that stopped the program: loss is NaN, anomaly mode, the loss scale at its minimum",
        ladder=(*SUSPECTS, "batches_left_out", "step_back", "skip_window", "exhausted", "same_place", LAST),
        hints=(
            _line(
                "go back to an earlier checkpoint; lower the learning rate, clip gradients, look at the batch of that step; bf16 "
                "instead of fp16"
            ),
        ),
    ),
    Cause.HANG_NO_ERROR: CauseRow(
        meaning="The job stood still, and no error was raised",
        proof=(
            "two looks at all ranks that show the same ([hangs](hangs.md)); a watchdog's or a person's stop after silence: "
            "stack dumps, heartbeat monitors, 'no progress'"
        ),
        family=Family.KILLED,
        breaks_collectives=False,
        ladder=_HANG,
        hints=(
            _line(
                Hint("make all ranks call the same collectives in the same order", ("mismatch",)),
                "look at what rank {hang_ranks} did, at {hang_code}",
                "compare the stacks of all ranks at that time",
            ),
        ),
    ),
    Cause.EXIT_STUCK: CauseRow(
        meaning="The training was over, and a rank did not leave",
        proof=(
            "two looks at all ranks behind the last step that the script or its Trainer named, or behind the end of their scripts, and "
            "for 10 minutes no byte, no CPU time and no open checkpoint; it is ended by --on-hang restart alone"
        ),
        family=Family.KILLED,
        breaks_collectives=False,
        ladder=("training_over",),
        hints=(_line("look at what rank {hang_ranks} does at its exit, at {hang_code}", "look at what the ranks do at their exit"),),
    ),
    Cause.EXIT_ABORT: CauseRow(
        meaning="The training was over, and a rank died in its teardown",
        proof=(
            "an abort, a crash or an error of a destructor or of destroy_process_group after the last step that was named, of which a "
            "verified checkpoint exists, or after the end of the script"
        ),
        family=Family.NATIVE,
        breaks_collectives=False,
        ladder=("training_over",),
        hints=(_line("call destroy_process_group() and close loggers and writers before the script ends; nothing is to be trained again"),),
    ),
    Cause.USER_CODE: CauseRow(
        meaning="The training program itself failed",
        proof="an exception that no other cause explains, or an exit code that the program chose",
        ladder=(*SUSPECTS, "raced", "start_again", *_OWN_CODE[len(SUSPECTS) :]),
        hints=(
            _line(
                Hint("see where it leaves with 0 (sys.exit, a return, a handler of TERM), and why the others do not", ("left_early",)),
                "look at {peer}, which refused or ended the connection; else correct the program",
                "correct the program, at {file}:{line}",
                "correct the program",
            ),
        ),
    ),
    Cause.DEPENDENCY: CauseRow(
        meaning="A library is missing, or libraries do not match each other",
        proof=(
            "a module that is not installed, undefined symbols, GLIBC or ABI versions, a shared library that is missing, torch "
            "without CUDA, versions that a package refuses, 'Illegal instruction' in the output: built for another processor"
        ),
        ladder=_READS,
        hints=(_line("run {install}", "install what provides {module}, or correct the import", "install versions that fit each other"),),
    ),
    Cause.PREEMPTED: CauseRow(
        meaning="A scheduler, the machine or its administrator ended the job from outside",
        proof="Slurm's cancel, preemption and time limit, a spot notice, torchrun's or Lightning's message about a TERM",
        family=Family.INFRASTRUCTURE,
        ladder=("requeue",),
        hints=(_line("start it again: it resumes from its newest checkpoint; ask for more time if a limit ended it"),),
    ),
    Cause.INTERRUPTED: CauseRow(
        meaning="A person stopped the job with Ctrl-C",
        proof="KeyboardInterrupt as the last exception, SIGINT, torchrun's or DeepSpeed's message about an INT",
        family=Family.KILLED,
        breaks_collectives=False,
        ladder=("interrupted",),
        hints=(_line("start it again where it should go on: nothing failed"),),
    ),
    Cause.SEGFAULT: CauseRow(
        meaning="Native code accessed invalid memory",
        proof="SIGSEGV or SIGBUS, 'Segmentation fault', faulthandler's stacks",
        family=Family.NATIVE,
        ladder=_NATIVE,
        hints=(_line("look at the innermost frames of faulthandler's stack (python -X faulthandler): change the library there"),),
    ),
    Cause.UNKNOWN_NATIVE_ABORT: CauseRow(
        meaning="Native code aborted without a known reason",
        proof="SIGABRT, SIGILL or SIGFPE, 'terminate called', a failed assertion in C++, glibc's 'double free'",
        family=Family.NATIVE,
        breaks_collectives=False,
        ladder=_NATIVE,
        hints=(_line("read the lines before the abort; a core dump or gdb names the library"),),
    ),
    Cause.KILLED_UNKNOWN: CauseRow(
        meaning="A process was killed, and no evidence shows by whom",
        proof="SIGKILL (or another signal) without a record of the kernel, the cgroup or a scheduler; an INT to one rank of several",
        family=Family.KILLED,
        breaks_collectives=False,
        ladder=(*GUARDS, LAST),
        hints=(
            _line(
                "look at the kernel's log of that node and time (journalctl -k): lack of memory is the usual reason; then ask who "
                "may kill there"
            ),
            _line(Hint("look at what the save needs: it may hold the state a second time", ("in_save",))),
        ),
    ),
    Cause.UNKNOWN: CauseRow(
        meaning="Something failed, and no evidence shows convincingly why",
        proof="a launcher's footer alone, an exit code 1 without a traceback, no evidence",
        breaks_collectives=False,
        ladder=_OWN_CODE,
        hints=(_line("look at the other ranks' and nodes' logs from before the first failure; classify all of them together"),),
    ),
    Cause.NONE: CauseRow(
        meaning="No sign of a failure",
        proof="a log with none of the evidence above",
        family=Family.KILLED,
        breaks_collectives=False,
        ladder=(*GUARDS, LAST),
        hints=(_line("do nothing; if the job did fail, the evidence is in another log"),),
    ),
}
CAUSE_TABLE: Mapping[Cause, CauseRow] = MappingProxyType(_ROWS)
