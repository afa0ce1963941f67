"""Removes the user's own older checkpoints, only if a person asked for it (`checkpoints.keep`).

A checkpoint goes only if all of these hold: the policy does not keep it; it is unchanged since it was verified; this job wrote each file
of it in this run; no rank uses it, no upload needs it, no link leads to it; and the one verified just before stays. Each removal is
written down and synced in `pruned.jsonl`, then made by a rename to a hidden name. A file that was rewritten meanwhile is renamed back. The
next call completes a removal that a kill cut short. Nothing is raised: each one that stays has its reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import durable
from checkpointing.manifest.documents import Manifest
from checkpointing.model import Identity, Verdict
from checkpointing.ordering import HERE, Order
from checkpointing.retention import ownership, rules
from checkpointing.verification import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FILE_NAME: Final = "pruned.jsonl"
_HIDDEN: Final = ".supervise-pruned-"


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
    held = [
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
    gone = [one.name for one in rules.may_go(held, policy)]
    verified = {one.name for one in held if one.verdict is Verdict.VERIFIED}
    if proven in gone or proven not in verified:
        return ()  # none of those that stay was just verified
    by_path = {row.manifest.path: row for row in rows}
    return tuple((by_path[path], _why_not(by_path[path])) for path in gone)


def _why_not(row: PruneRow) -> str:
    made = row.manifest
    if row.leads:
        return f"{row.leads} leads to it"
    try:
        if not made.is_tree and os.lstat(made.path).st_nlink > 1:
            return "it has a second name"
    except OSError as error:
        return f"it could not be read: {error.strerror}"
    return ownership.not_written(made.path, made.identity, row.seen)


class Pruner:
    """Carries out a plan, and completes removals that were cut short."""

    def __init__(self, directory: str) -> None:
        """Use the journal in `directory`, which need not exist yet."""
        self._directory = directory
        self._file = f"{directory}/{FILE_NAME}"

    def prune(
        self,
        rows: Sequence[PruneRow],
        policy: rules.RetentionPolicy,
        proven: str,
        order: Order = Order(),  # noqa: B008 -- a frozen value
        goes_on: Callable[[], bool] = lambda: True,
    ) -> tuple[Pruned, ...]:
        """Remove what a policy does not keep, each only if it `goes_on`. `proven`: the path of the one that was just read in full."""
        self.finish()
        planned = takewhile(lambda _: goes_on(), plan(rows, policy, proven, order))
        return tuple(_outcome(row, why or self._remove(row.manifest)) for row, why in planned)

    def finish(self) -> None:
        """Remove the files that were renamed before a kill, and not yet removed."""
        open_rows: dict[str, dict[str, Any]] = {}
        for row in self._rows():
            if row["phase"] == "intent":
                open_rows[row["hidden"]] = row
            else:
                open_rows.pop(row["hidden"], None)
        for hidden, row in open_rows.items():
            with contextlib.suppress(OSError, TypeError):
                if identity_of(hidden) == Identity(*row["identity"]):
                    _destroy(hidden)
                if not os.path.lexists(hidden):
                    self._note({**row, "phase": "done"})

    def _remove(self, made: Manifest) -> str:
        """Remove one; "" or why it is still there."""
        directory, name = os.path.split(made.path.rstrip("/"))
        hidden = f"{directory}/.{name[:150]}{_HIDDEN}{made.id}"
        was = made.identity
        row = {
            "version": 1,
            "path": made.path,
            "hidden": hidden,
            "step": made.step,
            "bytes": made.n_bytes,
            "id": made.id,
            "identity": [was.dev, was.ino, was.size, was.mtime_ns],
            "t": time.time(),
        }
        try:
            self._note({**row, "phase": "intent"})
            durable.rename_exclusive(made.path, hidden)
            if identity_of(hidden) != was:  # written anew between the look and the rename: it is theirs
                durable.rename_exclusive(hidden, made.path)
                self._note({**row, "phase": "kept"})
                return "it was written meanwhile"
            _destroy(hidden)
            durable.sync_directory(directory)
            self._note({**row, "phase": "done"})
        except OSError as error:
            return f"it could not be removed: {error.strerror or error}"
        return ""

    def _note(self, row: dict[str, Any]) -> None:
        durable.make_directory(self._directory)
        durable.append(self._file, json.dumps(row).encode("ascii"))

    def _rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        with contextlib.suppress(OSError):
            for line in durable.read(self._file).splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    row = json.loads(line)
                    if {"hidden", "identity", "phase"} <= row.keys():
                        found.append(row)
        return found


def _outcome(row: PruneRow, reason: str) -> Pruned:
    return Pruned(row.manifest.path, row.manifest.step, row.manifest.n_bytes, reason)


def _destroy(hidden: str) -> None:
    if os.path.isdir(hidden) and not os.path.islink(hidden):  # noqa: PTH112, PTH114 -- as above
        shutil.rmtree(hidden)
    else:
        os.unlink(hidden)  # noqa: PTH108 -- as above
