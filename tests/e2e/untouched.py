"""The proof of ownership: what a run did to files outside its state directory is in the record of what was set aside, and can be undone.

It takes a listing of files that the job does not write any more. It fails if a file is elsewhere, is another or holds anything else,
except for the renames that the record has, and if `supervise checkpoints undo` does not reverse those.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.retention.aside import AsideRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.supervised import Supervised

#: (path, inode, sha256), sorted
Listing = list[tuple[str, int, str]]


def listing(*places: Path, without: Iterable[Path] = ()) -> Listing:
    """Return every file at or below the places, but for those at or below `without`."""
    files: set[Path] = set()
    for place in places:
        files |= {Path(directory, name) for directory, _, names in os.walk(place) for name in names} if place.is_dir() else {place}
    kept = [file for file in files if file.is_file() and not any(file.is_relative_to(folder) for folder in without)]
    return sorted((str(file), file.stat().st_ino, hashlib.sha256(file.read_bytes()).hexdigest()) for file in kept)


def moved(run: Supervised) -> list[tuple[str, str]]:
    """Return what the record of what was set aside says was moved and not moved back, as (from, to)."""
    changes = [change for file in run.state.glob("*/nodes/*/checkpoints") for change in AsideRecord(CheckpointCatalogue(file)).standing()]
    return [(change.path, change.to) for change in changes]


def renamed(rows: Listing, names: Iterable[tuple[str, str]]) -> Listing:
    """Return the listing as it is after the renames, of files and of directories."""
    for old, new in names:
        rows = [(new + path[len(old) :] if f"{path}/".startswith(f"{old}/") else path, inode, digest) for path, inode, digest in rows]
    return sorted(rows)


def assert_untouched(run: Supervised, before: Listing) -> None:
    """Compare what is there now, after the run's end, with `before`: nothing is missing or changed but for the recorded renames.

    Then the renames are undone. Where the job wrote a moved checkpoint anew, that one is taken out of the way first, as a person would.
    """
    own, renames = [run.state, run.place / "stdout", run.place / "stderr"], moved(run)
    places = sorted({run.place, *(Path(to).parent for _, to in renames)})
    after = listing(*places, without=own)
    missing = set(renamed(before, renames)) - set(after)
    assert not missing, f"moved, changed or replaced without a word in the record: {missing}"
    for path, _ in renames:
        if os.path.lexists(path):
            Path(path).rename(f"{path}.since")
    between = listing(*places, without=own)
    undone = run.ask_again("checkpoints", "undo")
    assert undone.returncode == 0, undone.stdout + undone.stderr
    assert listing(*places, without=own) == renamed(between, [(to, path) for path, to in reversed(renames)])
    assert moved(run) == []
