"""Removes the user's own older checkpoints, only if a person asked for it (`checkpoints.keep`).

A checkpoint goes only if all of these hold: the policy does not keep it; it is unchanged since it was verified; this job wrote each file
of it in this run; no rank uses it, no upload needs it, no link leads to it; and the one verified just before stays.

Each removal is first a row of the catalogue, then a rename into `.supervise-aside` (checkpointing/retention/aside.py), under a name that
holds the identity that was verified. A file of another identity was rewritten meanwhile and is renamed back, one of that identity is
removed; by the next call if a kill comes between. Nothing is raised: each one that stays has its reason.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable, staging
from checkpointing.io.row_file import RowTable
from checkpointing.manifest.documents import Manifest
from checkpointing.model import Identity, Verdict
from checkpointing.ordering import HERE, Order
from checkpointing.retention import aside, ownership, rules
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from checkpointing.catalogue import CheckpointCatalogue

_MOST_ROWS: Final = 4096  # of removed checkpoints: the oldest rows go
_NAME: Final = re.compile(r"pruned-(\d+)-(\d+)-(\d+)")  # inode, size and modification time of the verified one


@dataclass(frozen=True, slots=True)
class PruneRow:
    """One checkpoint: its manifest, and the files that this job was seen to write. `leads`: a link to it, "" if there is none."""

    manifest: Manifest
    seen: Mapping[str, Identity]
    in_use: bool = False
    uploading: bool = False
    is_rejected: bool = False
    leads: str = ""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A checkpoint that the policy does not keep. `reason`: why it stays; "" if it was removed, or would be."""

    path: str
    step: int | None
    n_bytes: int
    reason: str = ""

    @classmethod
    def of(cls, row: PruneRow, reason: str) -> Pruned:
        """Return the outcome of one."""
        return cls(row.manifest.path, row.manifest.step, row.manifest.n_bytes, reason)


@dataclass(frozen=True, slots=True)
class PrunedRow:
    """The catalogue's row of a removed one. `reason`: the rule; `t`: wall time in seconds."""

    path: str
    identity: Identity
    step: int | None
    n_bytes: int
    reason: str
    t: float


#: By path: a checkpoint that `checkpoints.keep` removed: `identity`, `step`, `n_bytes`, by which rule (`reason`) and when (`t`); the last
#: 4,096 of them.
PRUNED: Final = RowTable("pruned", PrunedRow, lambda row: row.path)


def plan(rows: Sequence[PruneRow], policy: rules.RetentionPolicy, proven: str, order: Order = Order()) -> tuple[tuple[PruneRow, str], ...]:  # noqa: B008 -- a frozen value
    """Return those that the policy does not keep, oldest first, each with the reason why it stays, "" if it may go. Changes nothing."""
    items = [
        rules.RetainedItem(
            row.manifest.path,
            order.of_manifest(row.manifest, HERE, row.manifest.path),
            Verdict.VERIFIED if not row.is_rejected and identity_of(row.manifest.path) == row.manifest.identity else Verdict.UNKNOWN,
            row.manifest.n_bytes,
            row.in_use,
            row.uploading,
            is_finite=not row.manifest.has_lost_weights,
        )
        for row in rows
    ]
    gone = [item.name for item in rules.may_go(items, policy)]
    verified = {item.name for item in items if item.verdict is Verdict.VERIFIED}
    if proven in gone or proven not in verified:
        return ()  # none of those that stay was just verified
    by_path = {row.manifest.path: row for row in rows}
    return tuple((by_path[path], _why_not(by_path[path])) for path in gone)


def _why_not(row: PruneRow) -> str:
    manifest = row.manifest
    if row.leads:
        return f"{row.leads} leads to it"
    try:
        if not manifest.is_tree and os.lstat(manifest.path).st_nlink > 1:
            return "it has a second name"
    except OSError as error:
        return f"it could not be read: {error.strerror}"
    return ownership.not_written(manifest.path, manifest.identity, row.seen)


def prune(  # noqa: PLR0913 -- what there is, what stays, and where it is recorded
    rows: Sequence[PruneRow],
    policy: rules.RetentionPolicy,
    proven: str,
    catalogue: CheckpointCatalogue,
    order: Order = Order(),  # noqa: B008 -- a frozen value
    *,
    goes_on: Callable[[], bool] = lambda: True,
) -> tuple[Pruned, ...]:
    """Remove what a policy does not keep, each only if it `goes_on`. `proven`: the path of the one that was just read in full."""
    finish((row.manifest.path for row in rows), catalogue)
    planned = takewhile(lambda _: goes_on(), plan(rows, policy, proven, order))
    done = tuple(Pruned.of(row, why or _recorded(row.manifest, catalogue, str(policy))) for row, why in planned)
    if done:
        pruned = sorted(catalogue.each(PRUNED), key=lambda row: row.t)
        catalogue.remove(PRUNED, *(row.path for row in pruned[:-_MOST_ROWS]))
    return done


def _recorded(manifest: Manifest, catalogue: CheckpointCatalogue, reason: str) -> str:
    """Record that a checkpoint goes, then remove it; return "" or why it is still there."""
    row = PrunedRow(manifest.path, manifest.identity, manifest.step, manifest.n_bytes, reason, time.time())
    why = "" if catalogue.put(PRUNED, row) else f"that it goes could not be recorded: {catalogue.not_written}"
    why = why or _remove(manifest)
    if why:
        catalogue.remove(PRUNED, manifest.path)
    return why


def finish(paths: Iterable[str], catalogue: CheckpointCatalogue) -> None:
    """Complete the removals that a kill cut short, for checkpoints that lie where these paths do.

    A file that the script wrote between our look and our rename goes back to its place, if that is free.
    """
    listed = {os.path.dirname(path): path for path in paths}  # noqa: PTH120 -- paths are plain strings throughout the package
    for directory in {place.path for path in listed.values() for place in aside.places(path)}:
        staging.sweep(directory)
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):  # noqa: PTH208 -- as above
                hidden = f"{directory}/{name}"
                with contextlib.suppress(OSError):
                    if _NAME.fullmatch(name) and name == _name(identity_of(hidden)):
                        _destroy(hidden)
                    elif _NAME.fullmatch(name):
                        _give_back(hidden, catalogue)


def _remove(manifest: Manifest) -> str:
    """Remove a checkpoint; return "" or why it is still there."""
    try:
        return aside.at_place(manifest.path, lambda place: _remove_by(f"{place.path}/{_name(manifest.identity)}", manifest))
    except OSError as error:
        return f"it could not be removed: {error.strerror or error}"


def _remove_by(hidden: str, manifest: Manifest) -> str:
    durable.rename_exclusive(manifest.path, hidden)
    is_gone = not os.path.lexists(hidden)  # another supervisor took it for one that a kill left
    if not is_gone and identity_of(hidden) != manifest.identity:  # the script wrote it between the look and the rename
        durable.rename_exclusive(hidden, manifest.path)
        return "it was written meanwhile"
    _destroy(hidden)
    durable.sync_directory(os.path.dirname(manifest.path.rstrip("/")))  # noqa: PTH120 -- as above
    return ""


def _give_back(hidden: str, catalogue: CheckpointCatalogue) -> None:
    """Rename a directory written meanwhile back to its place in the catalogue. Raises OSError."""
    home = next((row.path for row in catalogue.each(PRUNED) if hidden.endswith(f"/{_name(row.identity)}")), None)
    if home is not None:
        durable.rename_exclusive(hidden, home)
        catalogue.remove(PRUNED, home)


def _name(identity: Identity | None) -> str:
    return "" if identity is None else f"pruned-{identity.ino}-{identity.size}-{identity.mtime_ns}"


def _destroy(hidden: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another supervisor, which completes a removal that was cut short, was faster
        staging.remove(hidden)
