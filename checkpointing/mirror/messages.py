"""The lines of JSON between the mirror's process and the program that runs it: one TypedDict for each, used at both ends.

The process reads commands on stdin, one per line; the first must be `configure`. It writes events to stdout, one per line.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

# commands


class MirrorConfiguration(TypedDict):
    """What to upload for, and where to. s3: fields of backends.S3Options; keep, keep_every: of retention.rules.RetentionPolicy."""

    cmd: Literal["configure"]
    spool: str
    mirrors: list[str]
    job: str
    workers: NotRequired[int]
    bandwidth_mib_s: NotRequired[float | None]
    spool_entries: NotRequired[int]
    keep: NotRequired[int | None]
    keep_every: NotRequired[int | None]
    s3: NotRequired[dict[str, Any]]


class MirrorCheckpoint(TypedDict):
    """Upload the checkpoint at `path`. manifest: its document."""

    cmd: Literal["mirror"]
    path: str
    step: int | None
    manifest: str


class RetryUploads(TypedDict):
    """End the pause: credentials or network were repaired."""

    cmd: Literal["retry"]


class FinishUploads(TypedDict):
    """End when every worker is idle, or when the time is up."""

    cmd: Literal["finish"]
    deadline_s: float


class StopUploads(TypedDict):
    """End now; the rest stays in the spool."""

    cmd: Literal["stop"]


MirrorCommand = MirrorConfiguration | MirrorCheckpoint | RetryUploads | FinishUploads | StopUploads

# events; `left`, `left_bytes`: entries in the spool and their size, `mirror`: its URL, `id`: of the checkpoint's manifest


class MirrorReady(TypedDict):
    """The first event. left: entries that were in the spool already."""

    ev: Literal["ready"]
    mirrors: list[str]
    left: int
    left_bytes: int


class CheckpointSpooled(TypedDict):
    """The queue entry is on disk. pin: how the files are held: reflink, link, or path (not held)."""

    ev: Literal["spooled"]
    path: str
    step: int | None
    id: str
    pin: str
    left: int
    left_bytes: int


class UploadProgress(TypedDict):
    """At most one per second for each mirror, while bytes are sent."""

    ev: Literal["progress"]
    id: str
    mirror: str
    sent: int
    bytes: int


class CheckpointUploaded(TypedDict):
    """A checkpoint is in the mirror, with its manifest. sent < bytes: the upload was resumed. The other mirrors may still wait for it.

    key: "" where this is one node's part of a checkpoint, and parts of other nodes are not there yet.
    """

    ev: Literal["uploaded"]
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


class PartsJoined(TypedDict):
    """A checkpoint is whole in the mirror: it has the joint manifest. This node sent its part before others did."""

    ev: Literal["joined"]
    mirror: str
    key: str


class MirrorAlert(TypedDict):
    """A trouble begins. `what` names it.

    Retried: away, damaged, expired, clock, denied, disk (the checkpoints' or the spool's), tidy (the removal of old copies and uploads
    from the mirror). Not retried: changed, dropped, refused. held: another process has the spool, and this one exits with 75. Of the
    program that runs it: stalled (nothing moves), process (it cannot be started).
    """

    ev: Literal["alert"]
    what: str
    mirror: str
    message: str
    hint: str
    path: NotRequired[str]
    id: NotRequired[str]
    left: NotRequired[int]


class MirrorRecovered(TypedDict):
    """That trouble is over."""

    ev: Literal["recovered"]
    mirror: str
    what: str


class CopyPruned(TypedDict):
    """A checkpoint was removed from the mirror."""

    ev: Literal["pruned"]
    mirror: str
    key: str
    step: int | None


class UploadSwept(TypedDict):
    """An old unfinished upload of this job was removed; with a policy also old parts of a checkpoint that was never whole."""

    ev: Literal["swept"]
    mirror: str
    key: str


class MirrorIdle(TypedDict):
    """Every worker is idle: nothing is left to send, or they pause after a failure."""

    ev: Literal["idle"]
    left: int
    left_bytes: int


class MirrorStopped(TypedDict):
    """The last event."""

    ev: Literal["stopped"]
    left: int
    left_bytes: int


class MirrorDied(TypedDict):
    """Of the program that runs it: the process died, and is started again after `wait_s`. last_line: of its stderr."""

    ev: Literal["died"]
    code: int
    wait_s: float
    last_line: str


MirrorEvent = (
    MirrorReady
    | CheckpointSpooled
    | UploadProgress
    | CheckpointUploaded
    | PartsJoined
    | MirrorAlert
    | MirrorRecovered
    | CopyPruned
    | UploadSwept
    | MirrorIdle
    | MirrorStopped
    | MirrorDied
)

#: The form of each event that the process writes, by its name on the wire.
EVENTS: dict[str, type[MirrorEvent]] = {
    "ready": MirrorReady,
    "spooled": CheckpointSpooled,
    "progress": UploadProgress,
    "uploaded": CheckpointUploaded,
    "joined": PartsJoined,
    "alert": MirrorAlert,
    "recovered": MirrorRecovered,
    "pruned": CopyPruned,
    "swept": UploadSwept,
    "idle": MirrorIdle,
    "stopped": MirrorStopped,
}
