"""Decides whether a file of the user's may be moved or replaced. It is the only such rule. In doubt it answers no.

All of these must hold: this job wrote every file of the checkpoint in this run; each file still has the device, inode, size and
modification time that were noted then; no rank is alive, which might be writing; the verdict is bad or incomplete, and of the present
content. A checkpoint that is unverifiable, unreadable or dangerous stays where it is.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from checkpointing.io.tree import Tree
from checkpointing.model import Identity, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkpointing.model import Verification

OURS_TO_MOVE: Final = (Verdict.BAD, Verdict.INCOMPLETE)
A_RANK_LIVES: Final = "a rank is alive, and may be writing it"


def why_not(verification: Verification, seen: Mapping[str, Identity], *, ranks_alive: bool) -> str:
    """Return why a checkpoint must not be moved or replaced; "" if it may be.

    `seen`: by path, the identity of each file that this job wrote in this run, noted when its writing was seen; for a directory those of
    the files in it. `ranks_alive`: on any node that reaches the file. This reads the identities again; between
    here and the rename only the ranks would write there.
    """
    if ranks_alive:
        return A_RANK_LIVES
    if verification.verdict not in OURS_TO_MOVE:
        return f"its verdict is {verification.verdict.value}: only a bad or incomplete one is moved"
    return not_written(verification.path, verification.identity, seen)


def not_written(path: str, identity: Identity, seen: Mapping[str, Identity]) -> str:
    """Return why a checkpoint is not what this job was seen to write; "" if it still has `identity` and each file is the job's."""
    try:
        now, members = _look(path)
    except OSError as error:
        return f"it could not be read: {error.strerror or error}"
    if isinstance(members, str):
        return members
    return "it was written since its judgement" if now != identity else _strange(members, seen)


def _strange(members: Mapping[str, Identity], seen: Mapping[str, Identity]) -> str:
    """Return why a file in its present state is not this job's; "" if all are."""
    for path, identity in members.items():
        noted = seen.get(path)
        if noted is None:
            return f"it is not known as written by this job in this run: {path}"
        if noted != identity:
            return f"it changed since this job was seen to write it: {path}"
    return ""


def _look(path: str) -> tuple[Identity, dict[str, Identity] | str]:
    """Return the identity of a checkpoint and of each file in it, or why that is not its whole content. Raises OSError."""
    st = os.lstat(path)
    if stat.S_ISREG(st.st_mode):
        return Identity.of(st), {path: Identity.of(st)}
    if not stat.S_ISDIR(st.st_mode):
        return Identity.of(st), "it is neither a file nor a directory"
    tree = Tree(path)
    if tree.truncated or tree.problems:
        return tree.identity, "not all that is in it could be listed"
    strange = next((name for name, entry in tree.entries.items() if entry.what), None)
    if strange is not None:
        return tree.identity, f"it holds what no job saves: {strange} is {tree.entries[strange].what}"
    return tree.identity, {f"{path.rstrip('/')}/{name}": Identity.of(entry.st) for name, entry in tree.entries.items()}
