"""One pass over a checkpoint: its structure, its numbers and its digests, from one read of each byte."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from checkpointing.io.reader import UNLIMITED, BackgroundThrottle, Interrupted
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check, digest, documents
from checkpointing.manifest.documents import About
from checkpointing.model import Verdict
from checkpointing.reader.copy_sink import CopySink
from checkpointing.reader.messages import CheckpointRead, PartRead, ReadCheckpoint
from checkpointing.verification import identity_of, verify, verify_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.model import Verification
    from checkpointing.reader.part_buffer import PartSink
    from checkpointing.reader.uploads import Uploads


class CheckpointReader(Protocol):
    """A reader of checkpoints: this process (OnePass), or another one."""

    def read(self, order: ReadCheckpoint, stopped: threading.Event) -> CheckpointRead:
        """Read a checkpoint once. Raises Interrupted once `stopped` is set."""

    def lift(self) -> None:
        """Read as fast as the disk gives from now on, and wait for nobody."""


class OnePass:
    """Reads checkpoints one after another, each byte once, as fast as the disk gives below a cap."""

    def __init__(
        self,
        job: str = "",
        cap_bytes_per_s: float = UNLIMITED,
        is_busy: Callable[[], bool] = lambda: False,
        uploads: Uploads | None = None,
    ) -> None:
        """`job`: its name, for the manifests. `is_busy`: whether the job saves or loads now. `uploads`: what sends parts meanwhile."""
        self._job, self._uploads = job, uploads
        self._stopped = threading.Event()  # of the read under way
        self._throttle = BackgroundThrottle(cap_bytes_per_s, is_busy=is_busy, wait=self._wait)

    def lift(self) -> None:
        """Read as fast as the disk gives from now on, and wait for nobody."""
        self._throttle.lift()

    def read(self, order: ReadCheckpoint, stopped: threading.Event) -> CheckpointRead:
        """Read a checkpoint once. Raises Interrupted once `stopped` is set."""
        self._stopped = stopped
        reading = ReadOptions(self._throttle, drop_cache=True, interrupted=stopped.is_set)
        sink = self._begun(order, reading)
        if sink is None or self._uploads is None:
            return read_once(order, self._job, reading)
        answer: CheckpointRead | None = CheckpointRead(order.id, failure="it was not read to the end")
        try:
            answer = read_once(order, self._job, reading, sink.take)
        except Interrupted:
            answer = None
            raise
        finally:
            sink.close()
            self._uploads.passed(order, answer)
        return answer

    def _begun(self, order: ReadCheckpoint, reading: ReadOptions) -> PartSink | None:
        """Begin to send a checkpoint while it is read; None if it is not to be sent, or its structure is not sound."""
        if self._uploads is None or not order.key:
            return None
        if verify(order.path, bulk=False, reading=reading, own=order.own).verdict is not Verdict.VERIFIED:
            return None
        return self._uploads.begun(order)

    def _wait(self, seconds: float) -> bool:
        return self._stopped.wait(seconds)


def read_once(
    order: ReadCheckpoint, job: str, reading: ReadOptions, *also: Callable[[str, memoryview, digest.Hasher], None]
) -> CheckpointRead:
    """Read a checkpoint of a job once. `also` gets the bytes of its files as well. Raises Interrupted."""
    copy = None if order.copy is None else CopySink(order.path, order.copy)
    # the verifier gets the bytes, and the hashers, the copy and the uploads get the same
    takers = also if copy is None else (copy.take, *also)
    reading = replace(reading, follower=digest.Hashers(*takers).follower)
    try:
        verification = verify(order.path, reading=reading, own=order.own)
        if reading.interrupted():
            raise Interrupted
        if verification.verdict is Verdict.INCOMPLETE and order.with_part:
            return CheckpointRead(order.id, verification, part=part_of(order, job, reading))
        answer = digested(verification, job, reading, order.id)
        if copy is None or not answer.manifest:
            return answer
        copied = copy.finish(documents.decode(answer.manifest.encode("ascii")))
        if copied and identity_of(order.path) != verification.identity:  # a copy that shares blocks is as the original is
            return CheckpointRead(order.id, verification)
        return msgspec.structs.replace(answer, copied=copied, copy_problem=copy.problem)
    finally:
        if copy is not None:
            copy.close()


def digested(verification: Verification, job: str, reading: ReadOptions, number: int = 0) -> CheckpointRead:
    """Return a verdict with the digests of a verified checkpoint; without them if it changed meanwhile. Raises Interrupted.

    What `reading` was followed in is not read again.
    """
    is_verified = verification.verdict is Verdict.VERIFIED
    return CheckpointRead(number, verification, _document(verification, job, reading) if is_verified else "")


def part_of(order: ReadCheckpoint, job: str, reading: ReadOptions) -> PartRead | None:
    """Read the part of a checkpoint of several nodes; None if it is not a part, or changed meanwhile. Raises Interrupted."""
    part = verify_part(order.path, reading, own=order.own)
    if part is None:
        return None
    document = _document(part.present, job, reading)
    return PartRead(document, part.absent, part.leads) if document else None


def _document(verification: Verification, job: str, reading: ReadOptions) -> str:
    """Return the manifest of a verified checkpoint; "" if it changed meanwhile, or can no longer be read. Raises Interrupted."""
    try:
        return documents.encode(check.build(verification, About(job), reading=reading)).decode("ascii")
    except (check.CheckpointChanged, OSError):
        return ""
