"""Restores the newest checkpoint of a job from its mirrors, as a process: `python -P -m supervisor.checkpoints.mirror.restore_process`.

The libraries for S3 are large, and the supervisor must stay small. The process reads one RestoreOrder on stdin, as JSON. It writes one
line of JSON for each RestoreEvent; the last one has the RestoreAnswer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any

import msgspec

from checkpointing.io import typed
from checkpointing.reader.messages import encode
from supervisor.checkpoints.discovery import record
from supervisor.checkpoints.mirror.restore_permission import refusal
from supervisor.checkpoints.mirror.uploads import mirrors, s3_options
from supervisor.core.units import bytes_text
from supervisor.guardian import ownership
from supervisor.launch.environment import job_environment
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from checkpointing.mirror.listing import MirroredCheckpoint
    from supervisor.job.job import Job

#: The kind of an answer where a save of several nodes is not whole in the mirror.
PARTS_MISSING = "parts_missing"
_REPORT_EVERY_S = 5.0
_READ_TIMEOUT_S = (
    20.0  # so that a connection that was lost is tried anew before the mirror is given up (checkpointing.mirror.stall.STALL_S)
)


class RestoreOrder(msgspec.Struct, frozen=True):
    """The order to restore: the newest checkpoint of `job`, or of `instead` if it has none, and where it may be written.

    `cwd`, `command`, `declared` and `discovered` are what restore_permission judges by.
    """

    mirrors: tuple[str, ...]
    job: str
    instead: str  # another job; "": none
    cwd: str
    command: tuple[str, ...]
    declared: tuple[str, ...]
    discovered: tuple[str, ...]
    s3: dict[str, Any]  # fields of checkpointing.mirror.backends.S3Options
    save: str = ""  # if given, the checkpoint of this save of several nodes and no other (Manifest.save)
    is_listing: bool = False  # restore nothing; send a MirrorManifest of each checkpoint of the job whose path exists here


class RestoredBytes(msgspec.Struct, frozen=True, tag_field="ev", tag="progress"):
    """How many bytes are restored."""

    done: int
    total: int


class RestoreLine(msgspec.Struct, frozen=True, tag_field="ev", tag="line"):
    """A line for people."""

    text: str


class RestoreAnswer(msgspec.Struct, frozen=True, tag_field="ev", tag="answer"):
    """The answer to a restore."""

    # restored, nothing, or why not: other_job, unreachable, parts_missing, in_the_way (another file has the name), elsewhere (the path
    # is not permitted), no_space, failed
    kind: str
    path: str = ""
    step: int | None = None
    mirror: str = ""
    bytes: int = 0
    message: str = ""
    hint: str = ""
    passed_over: tuple[tuple[str, str], ...] = ()
    began: int = 0  # when the run began that saved it
    manifest: str = ""  # as text; "": the file is another whole checkpoint that had the name


class MirrorManifest(msgspec.Struct, frozen=True, tag_field="ev", tag="manifest"):
    """A checkpoint that a mirror holds. mirror: its URL; manifest: as text."""

    mirror: str
    key: str
    manifest: str


RestoreEvent = RestoredBytes | RestoreLine | RestoreAnswer | MirrorManifest


def restore(job: Job, say: Callable[[str], None], save: str = "") -> RestoreAnswer:
    """Restore the newest verified checkpoint of this job, or else of the one that checkpoints.restore_from names; or the one of a `save`.

    `say` gets a line of progress now and then.
    """
    return _ask(job, _order(job, save=save), say)


def list_manifests(job: Job, took: Callable[[MirrorManifest], None], say: Callable[[str], None]) -> None:
    """Pass on each checkpoint of this job in its mirrors whose path exists here. `say` gets lines of progress, and why it failed."""
    answer = _ask(job, _order(job, is_listing=True), say, took)
    if answer.kind != "nothing":
        trouble = "the catalogue of checkpoints is new, and what the mirrors hold of those here could not be listed"
        say(f"{trouble}: {answer.message}; they are read anew, and ordered by their steps")


def _order(job: Job, *, save: str = "", is_listing: bool = False) -> RestoreOrder:
    checkpoints = job.settings.checkpoints
    return RestoreOrder(
        mirrors=tuple(mirrors(job.settings)),
        job=job.name,
        instead=checkpoints.restore_from,
        cwd=str(job.cwd),
        command=tuple(job.command),
        declared=tuple(checkpoints.paths),
        discovered=tuple(location.pattern for location in record.read_locations(job.state / "checkpoints") if location.saved),
        s3=s3_options(job.settings),
        save=save,
        is_listing=is_listing,
    )


def _ask(
    job: Job, order: RestoreOrder, say: Callable[[str], None], took: Callable[[MirrorManifest], None] = lambda _row: None
) -> RestoreAnswer:
    argv = [sys.executable, "-P", "-m", "supervisor.checkpoints.mirror.restore_process"]
    try:
        with (
            os.fdopen(os.memfd_create("stderr"), "w+b") as errors,
            ownership.started(
                lambda: subprocess.Popen(  # noqa: S603 (our own program)
                    argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=job_environment(job.environ), text=True
                )
            ) as process,
        ):
            assert process.stdin is not None  # noqa: S101 (says it to the type checker)
            assert process.stdout is not None  # noqa: S101 (as above)
            with contextlib.suppress(BrokenPipeError):  # it ended before it read: its exit code is reported below
                process.stdin.write(encode(order))
                process.stdin.close()
            answer: RestoreAnswer | None = None
            reported = time.monotonic()
            for line in process.stdout:
                event: RestoreEvent = typed.converted(json.loads(line), RestoreEvent)
                if isinstance(event, RestoreLine):
                    say(clean(event.text))
                elif isinstance(event, MirrorManifest):
                    took(event)
                elif isinstance(event, RestoreAnswer):
                    answer = event
                elif time.monotonic() - reported > _REPORT_EVERY_S:
                    reported = time.monotonic()
                    say(f"restoring from the mirror: {bytes_text(event.done)} of {bytes_text(event.total)}")
            return answer or RestoreAnswer("failed", message=_unanswered(process.wait(), errors))
    except (OSError, ValueError) as error:
        return RestoreAnswer("failed", message=f"cannot restore: {error}")


def _unanswered(code: int, errors: IO[bytes]) -> str:
    """Return how a process ended that gave no answer, with the last line of its stderr."""
    errors.seek(0)
    lines = errors.read().decode("utf-8", "backslashreplace").strip().splitlines()
    return f"the process that restores ended with {code}" + (f": {clean(lines[-1])}" if lines else "")


def _present(mirrored: Iterable[MirroredCheckpoint]) -> Iterator[MirrorManifest]:
    """Yield those whose path exists here."""
    from checkpointing.manifest import documents  # noqa: PLC0415 (only in the process that needs it)

    for checkpoint in mirrored:
        if os.path.lexists(checkpoint.manifest.path):
            yield MirrorManifest(checkpoint.backend.url, checkpoint.location.key, documents.encode(checkpoint.manifest).decode("ascii"))


def main() -> int:
    """Restore as the order on stdin says."""
    from checkpointing.manifest import documents  # noqa: PLC0415 (as above)
    from checkpointing.mirror import restore as restoring  # noqa: PLC0415 (only in the process that needs it)
    from checkpointing.mirror.backends import S3Options  # noqa: PLC0415 (as above)
    from checkpointing.mirror.backends.opening import open_backend  # noqa: PLC0415 (as above)
    from checkpointing.mirror.stall import RestoreProgress  # noqa: PLC0415 (as above)
    from checkpointing.model import CheckpointingError  # noqa: PLC0415 (as above)

    writing = threading.Lock()

    def send(event: RestoreEvent) -> None:
        with writing:  # the thread that downloads reports its progress
            sys.stdout.write(encode(event))
            sys.stdout.flush()

    kinds = {
        restoring.OtherJob: "other_job",
        restoring.Unreachable: "unreachable",
        restoring.PartsMissing: PARTS_MISSING,
        restoring.PathOccupied: "in_the_way",
        restoring.PathNotPermitted: "elsewhere",
        restoring.NoSpace: "no_space",
    }
    order = typed.converted(json.load(sys.stdin), RestoreOrder)
    try:
        options = S3Options(**order.s3, read_timeout_s=_READ_TIMEOUT_S)
        backends = [open_backend(url, options) for url in order.mirrors]
        progress = RestoreProgress(lambda text: send(RestoreLine(text)), lambda done, total: send(RestoredBytes(done, total)))

        def may_not(path: str) -> tuple[str, str] | None:
            return refusal(path, order.cwd, order.declared, order.discovered, order.command)

        done: restoring.Restored | None = None
        if order.is_listing:
            for row in _present(restoring.available(backends, order.job, progress, names_others=False)[0]):
                send(row)
        elif order.save:
            done = restoring.of_save(backends, order.job, order.save, refusal=may_not, progress=progress)
        else:
            done = restoring.newest_of(backends, order.job, order.instead, refusal=may_not, progress=progress)
    except CheckpointingError as error:
        send(RestoreAnswer(kinds.get(type(error), "failed"), message=error.message, hint=error.hint))
        return 1
    except OSError as error:
        hint = "see whether the disk has space and may be written"
        send(RestoreAnswer("failed", message=f"cannot restore: {error}", hint=hint))
        return 1
    if done is None:
        send(RestoreAnswer("nothing"))
    else:
        send(
            RestoreAnswer(
                "restored",
                done.path,
                done.manifest.step,
                done.url,
                done.fetched_bytes,
                passed_over=done.passed_over,
                began=max(done.manifest.about.began or 0, done.manifest.saved_ns // 10**9),
                manifest=documents.encode(done.manifest).decode("ascii") if done.is_proven else "",
            )
        )
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread may still wait for an answer from a mirror that has none
