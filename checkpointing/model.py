"""The values of checkpointing: candidates, their identity, and verdicts on them.

Pure values; nothing here reads a file. A checkpoint is a file or a directory. A verdict holds for one *identity* (device, inode, size,
modification time; for a directory those of all its files): a rewritten file has another identity and needs another verdict.

UNKNOWN and UNVERIFIABLE are never BAD. UNKNOWN: it could not be read. UNVERIFIABLE: there is nothing to check it against.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence


_KIB: Final = 1024


def first_names(names: Sequence[str], most: int = 4) -> str:
    """Return the first names for a line of text, each cut at 100 characters, and how many more there are."""
    more = len(names) - most
    return ", ".join(name[:100] for name in names[:most]) + (f" and {more} more" if more > 0 else "")


def size_text(n_bytes: float) -> str:
    """Return an amount of bytes for people: `12 bytes`, `1.5 KiB`, `181 MiB`, `16.1 GiB`."""
    size, units = float(n_bytes), ["PiB", "TiB", "GiB", "MiB", "KiB", "bytes"]
    while size >= _KIB and len(units) > 1:
        size /= _KIB
        units.pop()
    digits = int(units[-1] not in {"MiB", "KiB", "bytes"} or (size < 10 and not size.is_integer()))  # noqa: PLR2004 -- tenths of a small one
    return f"{size:.{digits}f} {units[-1]}"


def count_text(count: int, noun: str) -> str:
    """Return a number of things: 1 tensor, 2 tensors."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class CheckpointingError(Exception):
    """An error of this package: "what failed: subject: cause", and a hint that names what to do. A bad checkpoint is data, not an error."""

    def __init__(self, message: str, *, hint: str) -> None:
        """Keep the two apart, so that a caller can print them its own way."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class Verdict(StrEnum):
    """The result of one verification."""

    VERIFIED = "verified"  # whole; `Verification.level` is how far that was checked
    BAD = "bad"  # torn or damaged: it must not be resumed from
    INCOMPLETE = "incomplete"  # a file is missing, or an unfinished save left it
    DANGEROUS = "dangerous"  # its pickle calls what no checkpoint needs: loading it could run foreign code
    WRITING = "writing"  # it changed while it was read
    UNVERIFIABLE = "unverifiable"  # it may be whole, but its format has nothing to check
    UNKNOWN = "unknown"  # it could not be read: permission, I/O error, a disk that does not answer
    FOREIGN = "foreign"  # not a checkpoint


@dataclass(frozen=True, slots=True)
class Identity:
    """One content of a path. `mtime_ns` is nanoseconds of wall time, the file system's; for a directory see `of_tree`."""

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
        it changes when any of them does, and does not show which is newer.
        """
        rows = sorted((name, st.st_ino, st.st_size, st.st_mtime_ns) for name, st in members)
        digest = hashlib.blake2b("\0".join(map(repr, rows)).encode("ascii", "backslashreplace"), digest_size=8).digest()
        return cls(directory.st_dev, directory.st_ino, sum(row[2] for row in rows), int.from_bytes(digest, "big") >> 1)


def is_unchanged(identity: Identity, recorded: Identity) -> bool:
    """Return whether it is the same file or directory, unchanged. The number of a device is this machine's, since its last boot."""
    return replace(identity, dev=recorded.dev) == recorded


@dataclass(frozen=True, slots=True, order=True)
class Lineage:
    """The run and the attempt that wrote a checkpoint. The default means unknown, and comes before all others.

    `began`: when the run began, in seconds since the epoch; see checkpointing/lineage.py.
    """

    began: int = 0
    run: str = ""
    attempt: int = 0


UNKNOWN_LINEAGE = Lineage()


@dataclass(frozen=True, slots=True)
class NamedStep:
    """A step read out of a file name. `sure`: beside the number is "step" or "iteration", and no epoch whose step it might be."""

    step: int
    sure: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file or directory that may be a checkpoint, as it was listed: nothing in it was read."""

    #: The real path: symbolic links are resolved.
    path: str
    identity: Identity
    #: The step that its name gives, None without one.
    named: NamedStep | None
    #: The newest modification in it, nanoseconds of wall time: a directory's identity does not contain it.
    mtime_ns: int = 0
    is_directory: bool = False
    #: A declared pattern gives its suffix (`ckpt/*.npz`), so it is a checkpoint, even if its format is not known.
    is_declared: bool = False

    @property
    def written_ns(self) -> int:
        """When it was written last, nanoseconds of wall time."""
        return self.mtime_ns or self.identity.mtime_ns


#: Tensors that a training keeps beside its weights, by any part of a tensor's name ("optimizer.state.0.exp_avg", "best_loss").
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
        return is_weight(self.tensor)

    def __str__(self) -> str:
        """Name tensor and first element, as a person reads it."""
        return f"{self.tensor} is not finite: {self.what} at element {self.element}"


def is_weight(tensor: str) -> bool:
    """Return whether a tensor's name leaves it among the model's own, as `NonFinite.is_weight`."""
    return _BESIDE_WEIGHTS.search(tensor) is None


def listed(entries: Iterable[NonFinite]) -> tuple[NonFinite, ...]:
    """Return at most MOST_NON_FINITE of them in their order, the weights first."""
    return tuple(sorted(entries, key=lambda entry: not entry.is_weight)[:MOST_NON_FINITE])


def nan_weights(entries: Iterable[NonFinite]) -> frozenset[str]:
    """Return the names of the weights that hold NaN."""
    return frozenset(non_finite.tensor for non_finite in entries if non_finite.is_weight and non_finite.what == "NaN")


def note_of(entries: Iterable[NonFinite]) -> str:
    """Return in one line which tensors hold NaN or Inf; "" for none."""
    rows = tuple(entries)
    more = f" and {len(rows) - 1} more tensors are not finite" if len(rows) > 2 else f", {rows[1]}" if len(rows) > 1 else ""  # noqa: PLR2004 -- two fit
    return f"{rows[0]}{more}" if rows else ""


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on one identity of one path."""

    path: str
    identity: Identity
    verdict: Verdict
    #: Why, in one line; for VERIFIED a note or "".
    reason: str = ""
    #: The step, counted over the whole run; None if neither content nor name has it.
    step: int | None = None
    #: For VERIFIED the checked part, else "": "directory" (metadata alone), "layout" (all that a format without checksums allows),
    #: "structure" (every checksum as well); others: candidates.py.
    level: str = ""
    #: (epoch, step) if content and name have only that.
    within: tuple[int, int] | None = None
    #: A row's name in `checkpointing.formats`, "" if none claimed it.
    format: str = ""
    #: The members of a directory, as relative paths.
    files: tuple[str, ...] = ()
    #: All reasons, `reason` first.
    reasons: tuple[str, ...] = ()
    #: The step in the content alone, if it seems to count the whole run.
    content_step: int | None = None
    #: Tensors that hold NaN or Inf, a note and never a verdict; None if the numbers were not read.
    non_finite: tuple[NonFinite, ...] | None = None
    #: The epoch in the content, else in the name, if there is no step at all; it describes the checkpoint, and orders nothing.
    epoch: int | None = None
