"""Causes in what a job reads and writes: checkpoints, caches, disks, remote stores, data. Pure."""

from __future__ import annotations

from supervisor.core.causes.row import GUARDS, LAST, PROGRAM, READS, SUSPECTS, CauseRow, Family, Hint, line
from supervisor.core.model import Cause

_STORAGE = ("start_tries", "wait_for_storage")

ROWS: dict[Cause, CauseRow] = {
    Cause.CHECKPOINT_CORRUPT: CauseRow(
        meaning="A checkpoint is torn, truncated or altered",
        proof=("torch.load's errors about the zip archive or the pickle, safetensors' header and length errors, a checksum that differs"),
        changes_job=True,
        may_be_of_cache=True,
        ladder=(*SUSPECTS, "raced", "step_back", "same_place", LAST),
        hints=(
            line("resume from a checkpoint older than {path}", "resume from an older checkpoint"),
            line("write checkpoints to a temporary name, fsync, then rename"),
        ),
    ),
    Cause.CHECKPOINT_MISMATCH: CauseRow(
        meaning="A checkpoint is whole, but belongs to another model, optimizer or number of ranks",
        proof=(
            "load_state_dict's missing or unexpected keys and size mismatches, parameter groups that differ, a sharded "
            "checkpoint of another layout, a loader that names another number of ranks"
        ),
        changes_job=True,
        ladder=("foreign_checkpoint", "mend_pointer", *SUSPECTS, *PROGRAM),
        hints=(
            line(
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
            line("run {remedy}, which moves it out of the script's sight", "move what lies in the way out of the script's sight"),
            line("let the script write to a temporary name and rename it"),
        ),
    ),
    Cause.CHECKPOINT_POINTER: CauseRow(
        meaning=("A link, or the file that names the latest checkpoint, leads to itself, to nothing, or to a checkpoint that is not whole"),
        proof="an exception while a checkpoint was loaded, and the pointer on the way to it, as it is on the disk",
        ladder=(*GUARDS, "mend_pointer", LAST),
        hints=(
            line("run {remedy}, which lets it lead to the newest whole checkpoint", "let it lead to the newest whole checkpoint"),
            line("move it only once a save is on the disk"),
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
            line(
                "delete {path}, which {cache_writer} wrote and left half-written; it is made anew",
                "delete {path}; it is made anew",
                "delete the damaged file below ${cache_variable}, or all of that cache; it is made anew",
                "delete the damaged file in the cache of {cache}; it is made anew",
                "delete the damaged file of the cache; it is made anew",
            ),
        ),
    ),
    Cause.DISK_FULL: CauseRow(
        meaning="The disk is full, or a quota on it",
        proof="No space left on device, Disk quota exceeded (ENOSPC, EDQUOT), torch's file writer with 'unexpected pos'",
        family=Family.INFRASTRUCTURE,
        changes_job=True,
        waits_for="space",
        of_saves=True,
        needs_person=True,
        ladder=(*GUARDS, "own_leftovers", *_STORAGE),
        hints=(
            line("delete what killed saves of this job left there: {leftovers}"),
            line(
                "make room on the file system of {path}", "make room on the full file system: df -h and df -i name it, and quota -s a quota"
            ),
            line(Hint("look at the largest files that this job wrote there: {job_files}", ("no_leftovers",))),
        ),
    ),
    Cause.IO_ERROR: CauseRow(
        meaning="A file system reported an I/O error",
        proof=(
            "Input/output error, Stale file handle, Read-only file system, Transport endpoint is not connected, the kernel's "
            "I/O errors, a process of the job that KILL does not end"
        ),
        family=Family.INFRASTRUCTURE,
        waits_for="the file system",
        of_saves=True,
        may_be_of_cache=True,
        ladder=(*GUARDS, "damaged_cache", *_STORAGE),
        hints=(
            line(
                "give each node a {cache_variable} of its own, on a local disk: another machine replaced the file in the shared one",
                Hint("look at what process {pid} waits for: neither KILL nor its disk answers", ("unkilled",)),
                "check the mount and the device of {path} on the node (dmesg, smartctl, the server's state)",
                "check the mount and the device on the node (dmesg, smartctl, the server's state)",
            ),
        ),
    ),
    Cause.STORAGE_REMOTE: CauseRow(
        meaning="A service that holds data, models or checkpoints did not answer, or refused",
        names="peer",
        proof="errors of S3, GCS and HTTP clients, of the Hugging Face hub, of DNS; time-outs, throttling, expired credentials",
        family=Family.INFRASTRUCTURE,
        waits_for="the remote store",
        of_saves=True,
        ladder=(*GUARDS, "own_service", "wait_for_name", *_STORAGE),
        hints=(
            line(
                Hint("look at {peer}, a service of the job's own: restart it where it answers with errors, or not at all", ("own_service",))
            ),
            line(
                Hint(
                    "renew the credentials, which {peer} refused",
                    ("refused", "remote"),
                ),
                Hint(
                    "renew the credentials",
                    ("refused", "remote"),
                ),
            ),
            line(Hint("try again later, when {peer} answers", ("remote",)), Hint("try again later", ("remote",))),
            line(
                Hint(
                    "keep a local copy (HF_HUB_OFFLINE=1)",
                    ("hub", "remote"),
                )
            ),
        ),
    ),
    Cause.DATA_ERROR: CauseRow(
        meaning="The program could not read the data",
        names="exception",
        proof="exceptions from within DataLoader's fetch and collate, of decoders and parsers: images, JSON, Parquet, UTF-8, tokens",
        of_reads=True,
        may_be_of_cache=True,
        ladder=(*SUSPECTS, "batches_left_out", *READS),
        hints=(
            line(
                "look at {path}; skip or repair it",
                "see which sample is read at {file}:{line}; skip or repair it",
                "look at the sample or file in the message; skip or repair it",
            ),
        ),
    ),
}
