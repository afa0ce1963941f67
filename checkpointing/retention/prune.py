"""Removes the user's own older checkpoints, only if a person asked for it (`checkpoints.keep`).

A checkpoint goes only if all of these hold: the policy does not keep it; it is unchanged since it was verified; this job wrote each file
of it in this run; no rank uses it, no upload needs it, no link leads to it; and the one verified just before stays.

A removal begins with a rename into `.supervise-aside` (checkpointing/retention/aside.py), under a name that holds the identity that was
verified. That name is the record: a file of another identity was rewritten meanwhile and is renamed back; one of that identity is removed,
by the next call if a kill comes between. Nothing is raised: each one that stays has its reason.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable, staging
from checkpointing.manifest.documents import Manifest
from checkpointing.model import Identity, Verdict
from checkpointing.ordering import HERE, Order
from checkpointing.retention import aside, ownership, rules
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_NAME: Final = re.compile(r"pruned-(\d+)-(\d+)-(\d+)")  # inode, size and modification time: what was verified


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
    """One that the policy does not keep. `reason`: why it stays; "" if it was removed, or would be."""

    path: str
    step: int | None
    n_bytes: int
    reason: str = ""


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


def prune(
    rows: Sequence[PruneRow],
    policy: rules.RetentionPolicy,
    proven: str,
    order: Order = Order(),  # noqa: B008 -- a frozen value
    goes_on: Callable[[], bool] = lambda: True,
) -> tuple[Pruned, ...]:
    """Remove what a policy does not keep, each only if it `goes_on`. `proven`: the path of the one that was just read in full."""
    finish(row.manifest.path for row in rows)
    planned = takewhile(lambda _: goes_on(), plan(rows, policy, proven, order))
    return tuple(_outcome(row, why or _remove(row.manifest)) for row, why in planned)


def finish(paths: Iterable[str]) -> None:
    """Complete the removals that a kill cut short, for checkpoints that lie where these paths do."""
    listed = {os.path.dirname(path): path for path in paths}  # noqa: PTH120 -- paths are plain strings throughout the package
    for directory in {place.path for path in listed.values() for place in aside.places(path)}:
        staging.sweep(directory)
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):  # noqa: PTH208 -- as above
                hidden = f"{directory}/{name}"
                if _NAME.fullmatch(name) and name == _name(identity_of(hidden)):
                    with contextlib.suppress(OSError):
                        _destroy(hidden)


def _remove(manifest: Manifest) -> str:
    """Remove a checkpoint; return "" or why it is still there."""
    for place, is_last in aside.in_turn(aside.places(manifest.path)):
        try:
            aside.make_place(place.path)
            return _remove_by(f"{place.path}/{_name(manifest.identity)}", manifest)
        except OSError as error:
            if is_last or error.errno not in aside.ELSEWHERE:
                return f"it could not be removed: {error.strerror or error}"
    return "there is no place from which it could be removed"


def _remove_by(hidden: str, manifest: Manifest) -> str:
    durable.rename_exclusive(manifest.path, hidden)
    is_gone = not os.path.lexists(hidden)  # another supervisor took it for one that a kill left
    if not is_gone and identity_of(hidden) != manifest.identity:  # the script wrote it between the look and the rename
        durable.rename_exclusive(hidden, manifest.path)
        return "it was written meanwhile"
    _destroy(hidden)
    durable.sync_directory(os.path.dirname(manifest.path.rstrip("/")))  # noqa: PTH120 -- as above
    return ""


def _name(identity: Identity | None) -> str:
    return "" if identity is None else f"pruned-{identity.ino}-{identity.size}-{identity.mtime_ns}"


def _destroy(hidden: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another supervisor, which completes what was cut short, was faster
        staging.remove(hidden)


def _outcome(row: PruneRow, reason: str) -> Pruned:
    return Pruned(row.manifest.path, row.manifest.step, row.manifest.n_bytes, reason)
