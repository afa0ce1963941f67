"""The reports of the background work on a job's checkpoints to the run, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from supervisor.core.checkpoint_model import UnusedCheckpoints
from supervisor.core.model import CheckpointRef


class CheckpointTrouble(StrEnum):
    """A matter that a person should look at while the job trains. The value is the alert's kind."""

    DISK_FILLING = "disk_filling"
    NOT_FINITE = "not_finite"
    NO_COPY = "no_copy"


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """A checkpoint that may be of this job was verified for the first time.

    attempt: the one of this run that saved it, 0 where none did.
    """

    ref: CheckpointRef
    attempt: int


@dataclass(frozen=True, slots=True)
class CheckpointAlert:
    """Something about the checkpoints needs a person; or no longer does (`is_over`)."""

    trouble: CheckpointTrouble
    text: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointCopied:
    """A copy, at `place`, is held of the newest checkpoint of a location that an attempt did not visibly load."""

    unused: UnusedCheckpoints
    place: str


@dataclass(frozen=True, slots=True)
class CheckpointPruned:
    """`checkpoints.keep` does not keep a checkpoint. reason: why it stays all the same, "" where it was removed."""

    path: str
    step: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class WatcherFailed:
    """The watcher failed by itself, and continues."""

    text: str


@dataclass(frozen=True, slots=True)
class SavesShared:
    """Two ranks of this node (their numbers on it) saved to one file at one moment of the training."""

    path: str
    ranks: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReadReported:
    """A line for people about a long read before an attempt."""

    level: str  # as in PrintMessage
    text: str


@dataclass(frozen=True, slots=True)
class ReadMoved:
    """Bytes come from the disk that a selection reads."""


@dataclass(frozen=True, slots=True)
class SaveGone:
    """The newest save of this run was removed, and none is newer; or one stays again (`is_over`)."""

    path: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class SavesMissed:
    """Ranks saved checkpoints, and the declared patterns find none of them."""

    path: str  # the first of them
    patterns: tuple[str, ...]
    instead: str  # what to declare, "" if no pattern would find it


@dataclass(frozen=True, slots=True)
class SavesCounted:
    """How many saves of this run the mirrors hold, in one text; it changed."""

    text: str


ReadReport = ReadReported | ReadMoved
SavesReport = SaveGone | SavesShared | SavesMissed | SavesCounted
CheckpointReport = CheckpointFound | CheckpointAlert | CheckpointCopied | CheckpointPruned | ReadReport | SavesReport | WatcherFailed
