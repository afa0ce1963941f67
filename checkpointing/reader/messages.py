"""The lines of JSON between the reader process and the program that runs it: one value for each, used at both ends.

The process reads commands on stdin, one per line; the first must be `configure`. It writes events to stdout, one per line.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from checkpointing.io import typed
from checkpointing.mirror.source import HeldFile
from checkpointing.model import Verification


class ReaderCommand(msgspec.Struct, frozen=True, tag_field="cmd", omit_defaults=True):
    """The orders to the process."""


class ReaderEvent(msgspec.Struct, frozen=True, tag_field="ev"):
    """The reports of the process."""


# commands


class Configure(ReaderCommand, frozen=True, tag="configure"):
    """The job and the mirrors that the process works for, and its limits."""

    job: str
    mirrors: tuple[str, ...] = ()  # URLs; none: nothing is uploaded
    workers: int = 4  # uploads at once for each mirror
    read_mib_s: float = 0.0  # cap in MiB/s; 0: none
    bandwidth_mib_s: float = 0.0  # cap of the uploads in MiB/s; 0: none
    most_waiting: int = 3  # checkpoints that may wait for a mirror
    keep: int = 0  # of retention.rules.RetentionPolicy, at the mirror; 0: all stay
    keep_every: int | None = None  # as `keep`
    s3: dict[str, Any] = {}  # fields of backends.S3Options


class CopyPlan(msgspec.Struct, frozen=True):
    """Where the pass puts a copy."""

    target: str  # must not exist; its directory must
    n_bytes: int  # the copy's size, about
    saves_left: int  # how many saves of that size the disk must still have room for
    may_link: bool = False  # a hard link is a copy of a file


class ReadCheckpoint(ReaderCommand, frozen=True, tag="read"):
    """Read the checkpoint at `path` once."""

    id: int
    path: str
    own: bool = False  # see checkpointing.verification.verify
    with_part: bool = False  # an incomplete one is examined as a part of a checkpoint of several nodes
    copy: CopyPlan | None = None  # None: no copy
    # in the mirrors, if it is sent to them while it is read, else ""; the next read ends that, unless SendCheckpoint came before
    key: str = ""


class CancelRead(ReaderCommand, frozen=True, tag="cancel"):
    """End that read: nobody waits for its answer."""

    id: int


class JobBusy(ReaderCommand, frozen=True, tag="busy"):
    """Whether the job saves or loads now: then reading pauses."""

    is_busy: bool


class LiftLimits(ReaderCommand, frozen=True, tag="lift"):
    """Read as fast as the disk gives from now on, and wait for nobody: the training is over."""


class SendCheckpoint(ReaderCommand, frozen=True, tag="mirror"):
    """Upload the checkpoint at `path`. While it waits, this is its row in the catalogue too."""

    id: str  # its keys.nonce_of
    path: str
    manifest: str  # its document
    held: tuple[HeldFile, ...]  # where its files are read, in the order of the manifest
    at: float  # when it was saved, wall time in seconds: of several that wait the newest save goes first
    n_bytes: int
    done: tuple[str, ...] = ()  # the mirrors that have all of it
    begun: tuple[str, ...] = ()  # the mirrors that have some of it


class FinishUploads(ReaderCommand, frozen=True, tag="finish"):
    """End when every upload is done or was tried once more and failed, or when the time is up. The rest waits for the next process."""

    deadline_s: float


AnyCommand = ReadCheckpoint | CancelRead | JobBusy | LiftLimits | SendCheckpoint | FinishUploads

# events; `left`, `left_bytes`: checkpoints that wait to be uploaded and their size, `mirror`: its URL, `id`: keys.nonce_of


class Ready(ReaderEvent, frozen=True, tag="ready"):
    """The first event. mirrors: those that can be used."""

    mirrors: tuple[str, ...]


class PartRead(msgspec.Struct, frozen=True):
    """A part of a checkpoint of several nodes: its document, and what verification.VerifiedPart says of it."""

    manifest: str
    absent: tuple[tuple[str, int | None], ...]
    leads: bool


class CheckpointRead(ReaderEvent, frozen=True, tag="read"):
    """The answer to ReadCheckpoint."""

    id: int
    verification: Verification | None = None  # None: reading failed in a way that no format foresees, see `failure`
    manifest: str = ""  # the document of a verified checkpoint; "": not verified, or changed meanwhile
    part: PartRead | None = None  # see ReadCheckpoint.with_part
    copied: str = ""  # how the copy was made (reflink, link, copy); "": there is none
    copy_problem: str = ""  # why there is no copy
    failure: str = ""  # the error that reading ended with


class UploadProgress(ReaderEvent, frozen=True, tag="progress"):
    """At most one per second for each mirror, while bytes are sent."""

    id: str
    mirror: str
    sent: int
    bytes: int


class CheckpointUploaded(ReaderEvent, frozen=True, tag="uploaded"):
    """A checkpoint is in the mirror, with its manifest. sent < bytes: the upload was resumed. The other mirrors may still wait for it.

    key: "" where this is one node's part of a checkpoint, and parts of other nodes are not there yet.
    """

    path: str
    step: int | None
    id: str
    mirror: str
    key: str
    bytes: int
    sent: int
    seconds: float
    left: int
    left_bytes: int


class PartsJoined(ReaderEvent, frozen=True, tag="joined"):
    """A checkpoint is whole in the mirror: it has the joint manifest. This node sent its part, of `path`, before others did."""

    mirror: str
    key: str
    path: str


class MirrorAlert(ReaderEvent, frozen=True, tag="alert"):
    """A trouble begins. `what` names it.

    Retried: away, damaged, expired, clock, denied, disk (the checkpoints'), internal (a program error), tidy (the removal of old
    copies and uploads from the mirror). Not retried: changed, dropped, refused. Of the program that runs it: stalled (nothing moves),
    process (it cannot be started).
    """

    what: str
    mirror: str
    message: str
    hint: str
    path: str = ""
    id: str = ""


class MirrorRecovered(ReaderEvent, frozen=True, tag="recovered"):
    """A trouble is over."""

    mirror: str
    what: str


class CopyPruned(ReaderEvent, frozen=True, tag="pruned"):
    """A checkpoint was removed from the mirror."""

    mirror: str
    key: str
    step: int | None


class UploadSwept(ReaderEvent, frozen=True, tag="swept"):
    """An old unfinished upload of this job was removed; with a policy also old parts of a checkpoint that was never whole."""

    mirror: str
    key: str


class ReaderDied(ReaderEvent, frozen=True, tag="died"):
    """The reader process died, and is started again after `wait_s`: from its parent. last_line: the last one of its stderr."""

    code: int
    wait_s: float
    last_line: str


MirrorEvent = Ready | UploadProgress | CheckpointUploaded | PartsJoined | MirrorAlert | MirrorRecovered | CopyPruned | UploadSwept
AnyEvent = MirrorEvent | CheckpointRead | ReaderDied


def encode(message: msgspec.Struct) -> str:
    """Return a message as a line. The standard library's encoder takes paths that are not UTF-8; that of msgspec refuses them."""
    return json.dumps(msgspec.to_builtins(message)) + "\n"


def configuration_of(line: str) -> Configure:
    """Return the configuration that is the first line. Raises ValueError for anything else."""
    return typed.converted(json.loads(line), Configure)


def command_of(line: str) -> AnyCommand:
    """Return the command of a line. Raises ValueError for anything else (msgspec.ValidationError is one)."""
    return typed.converted(json.loads(line), AnyCommand)  # type: ignore[no-any-return]


def event_of(line: str) -> AnyEvent:
    """Return the event of a line. Raises ValueError for anything else."""
    return typed.converted(json.loads(line), AnyEvent)  # type: ignore[no-any-return]
