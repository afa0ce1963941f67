"""The nouns of checkpointing: what a candidate is, and what can be said about it.

Pure values; nothing here reads a file. A checkpoint is a file or a directory. A verdict is about one *identity* of it (device, inode,
size, modification time; for a directory those of all its files): what is rewritten is another, and what was said about the old one no
longer counts. UNKNOWN and UNVERIFIABLE are never BAD: the
first says that we could not look, the second that there is nothing to check against.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable


class CheckpointingError(Exception):
    """Trouble of our own: "what failed: subject: cause", and a hint that names what to do. A bad checkpoint is data, never this."""

    def __init__(self, message: str, *, hint: str) -> None:
        """Keep the two apart, so that a caller can print them its own way."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class Verdict(StrEnum):
    """What one look at a checkpoint found."""

    VERIFIED = "verified"  # whole, as far as `Verification.level` says
    BAD = "bad"  # torn or damaged: it must not be resumed from
    INCOMPLETE = "incomplete"  # a file that must be there is missing, or it is what a save left that did not end
    DANGEROUS = "dangerous"  # its pickle would call what no checkpoint needs: reading it would run somebody's code
    WRITING = "writing"  # it changed while it was read
    UNVERIFIABLE = "unverifiable"  # it may be whole, but there is nothing in it that would prove it
    UNKNOWN = "unknown"  # it could not be read: permission, I/O error, out of time
    FOREIGN = "foreign"  # not a checkpoint


@dataclass(frozen=True, slots=True)
class Identity:
    """Which content of a path is meant. `mtime_ns` is nanoseconds of wall time, the file system's; for a directory see `of_tree`."""

    dev: int
    ino: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, st: os.stat_result) -> Identity:
        """Take the identity out of a stat result."""
        return cls(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)

    @classmethod
    def of_tree(cls, directory: os.stat_result, members: Iterable[tuple[str, os.stat_result]]) -> Identity:
        """Take the identity of a directory out of its own stat result and those of its files, as (relative path, stat result).

        `size` is the sum of theirs, and `mtime_ns` no time but 63 bits of a hash of each one's path, inode, size and modification time:
        it changes when any of them does, and says nothing about which is newer.
        """
        rows = sorted((name, st.st_ino, st.st_size, st.st_mtime_ns) for name, st in members)
        digest = hashlib.blake2b("\0".join(map(repr, rows)).encode("ascii", "backslashreplace"), digest_size=8).digest()
        return cls(directory.st_dev, directory.st_ino, sum(row[2] for row in rows), int.from_bytes(digest, "big") >> 1)


@dataclass(frozen=True, slots=True, order=True)
class Lineage:
    """Which attempt of which run wrote a checkpoint; the default, for what nobody knows, comes before all others.

    `began`: when the run began, in seconds since the epoch, and after everything that was known of earlier runs (checkpointing/lineage.py).
    """

    began: int = 0
    run: str = ""
    attempt: int = 0


UNKNOWN_LINEAGE = Lineage()


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A step read out of a file name. `sure`: beside the number stands "step" or "iteration", and no epoch whose step it might be."""

    step: int
    sure: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file or directory that a pattern matched: its real path (symbolic links resolved), what it is now, and the step of its name.

    `mtime_ns` is the newest modification in it, nanoseconds of wall time: a directory's identity does not tell that.
    """

    path: str
    identity: Identity
    named: NamedStep | None
    mtime_ns: int = 0
    is_directory: bool = False


#: What a training keeps beside its weights, by any part of a tensor's name ("optimizer.state.0.exp_avg", "best_loss").
_BESIDE_WEIGHTS: Final = re.compile(r"optim|sched|scaler|loss|metric|rng|grad|exp_avg|momentum|monitor", re.IGNORECASE)
#: More tensors than these are not listed one by one; weights are listed first.
MOST_NON_FINITE: Final = 256
MOST_NAME: Final = 160  # characters of a tensor's name


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A tensor that holds NaN or Inf: its name in the checkpoint, which of the two, and the first element of that kind.

    This is a note about what a training computed. It never says that the file is damaged. `was_finite`: an earlier save of the same run
    held finite numbers there, the last one at `finite_step` (None if that save has no step).
    """

    tensor: str
    what: str
    element: int
    was_finite: bool = False
    finite_step: int | None = None

    @property
    def is_weight(self) -> bool:
        """Whether the name leaves the tensor among the model's own: nothing in it speaks of an optimizer, a scheduler or a metric."""
        return _BESIDE_WEIGHTS.search(self.tensor) is None

    def __str__(self) -> str:
        """Name tensor and first element, as a person reads it."""
        return f"{self.tensor} is not finite: {self.what} at element {self.element}"


def listed(found: Iterable[NonFinite]) -> tuple[NonFinite, ...]:
    """Return at most MOST_NON_FINITE of them in their order, the weights first."""
    return tuple(sorted(found, key=lambda one: not one.is_weight)[:MOST_NON_FINITE])


def nan_weights(found: Iterable[NonFinite]) -> frozenset[str]:
    """Return the names of the weights that hold NaN."""
    return frozenset(one.tensor for one in found if one.is_weight and one.what == "NaN")


def note_of(found: Iterable[NonFinite]) -> str:
    """Return in one line which tensors hold NaN or Inf; "" for none."""
    rows = tuple(found)
    more = f" and {len(rows) - 1} more tensors are not finite" if len(rows) > 2 else f", {rows[1]}" if len(rows) > 1 else ""  # noqa: PLR2004 -- two fit
    return f"{rows[0]}{more}" if rows else ""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found about one identity of one path.

    `step` is None where neither content nor name says which of the whole run it is; `within` is (epoch, step) where they tell no more than
    that. `level` says for VERIFIED what was checked, and is "" otherwise: "directory" (metadata alone), "layout" (everything that can be
    checked in a format without checksums), "structure" (every checksum as well). `reason` says why, in one line, for every verdict but
    VERIFIED, and what is worth a note there; `reasons` are all of them, it first. `format` is a row's name in `checkpointing.formats`,
    "" where none claimed it. `files` are the members of a directory, as paths relative to it; () for a file. `content_step` is the step in
    the content alone, if it seems to count the whole run. `non_finite` are tensors that hold NaN or Inf, which is a note
    among the reasons and never a verdict; None where the numbers were not looked at.
    """

    path: str
    identity: Identity
    verdict: Verdict
    reason: str = ""
    step: int | None = None
    level: str = ""
    within: tuple[int, int] | None = None
    format: str = ""
    files: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    content_step: int | None = None
    non_finite: tuple[NonFinite, ...] | None = None
