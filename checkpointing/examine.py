"""Gives each checkpoint at a path a verdict for people: at a file, a checkpoint's directory, or a directory that holds several.

It needs no configuration and writes nothing. It shows more than a resume may take: a stale temporary file is a row of its own. A path that
cannot be read gets a verdict, not an exception.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.discover import checkpoints_in, find_in, is_named_like_checkpoint
from checkpointing.formats import pointer_files, tree_format_of
from checkpointing.io.reader import NotRegular
from checkpointing.io.tree import ReadOptions, Tree
from checkpointing.model import Identity, Verdict, Verification
from checkpointing.select import newest
from checkpointing.verification import identity_of, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checkpointing.select import Selection

_NOWHERE: Final = Identity(0, 0, 0, 0)
_PLAIN: Final = ReadOptions()
_WORDS: Final = {
    Verdict.VERIFIED: "good",
    Verdict.BAD: "bad",
    Verdict.INCOMPLETE: "incomplete",
    Verdict.WRITING: "incomplete",
    Verdict.DANGEROUS: "dangerous",
}


def word(verdict: Verdict) -> str:
    """Return a verdict's name on the command line: good, bad, incomplete, dangerous, unverifiable."""
    return _WORDS.get(verdict, "unverifiable")


def look(path: str, *, reading: ReadOptions = _PLAIN, started: Callable[[str], None] = lambda _path: None) -> Iterator[Verification]:
    """Yield a verification for each checkpoint at `path`, at least one. `started` gets each path before it is read."""
    paths, pointer = checkpoints_in(path), _pointer(path)
    # any script may write a file "latest"; only Megatron writes its own name
    others = [inner for inner in paths if inner != path]
    is_own = pointer is not None and (pointer.format == "megatron" or all(_format(inner) == pointer.format for inner in others))
    if is_own and pointer is not None and (pointer.problem or len(paths) == 1):
        # the framework's loader gets the root: if it holds one step, both are the same checkpoint
        yield _root(path, pointer, paths, reading, started)
        if len(paths) == 1:
            return
    for inner in paths:
        started(inner)
        yield judged(inner, reading)


def latest(directory: str | os.PathLike[str]) -> Selection:
    """Choose the checkpoint of a directory that a resume would take: the newest one that is verified whole (`chosen`), None without one.

    The order is that of `newest`; checkpoints up to three directories below count too. The others, each with a reason, are in the other
    fields. Nothing is recorded. Raises nothing: a directory that cannot be listed is in `unknown`.
    """
    return newest(find_in(os.path.abspath(directory)))  # noqa: PTH100 -- a link keeps its name


def judged(path: str, reading: ReadOptions = _PLAIN) -> Verification:
    """Verify a path for people."""
    return concluded(verify(path, reading=reading))


def concluded(verification: Verification) -> Verification:
    """Return the verdict for people: the rest of a save that had just begun is INCOMPLETE though no format knows it."""
    path = verification.path
    if verification.verdict not in (Verdict.FOREIGN, Verdict.UNVERIFIABLE) or (verification.format and not step_names.is_temporary(path)):
        return verification
    is_directory = os.path.isdir(path)  # noqa: PTH112 -- strings throughout the package
    if step_names.is_temporary(path) and (is_directory or is_named_like_checkpoint(path)):
        reason = "its name is that of a save that did not end"
    elif is_directory and not verification.files and _is_empty(path):
        reason = "the directory is empty"
    else:
        return verification
    return replace(verification, verdict=Verdict.INCOMPLETE, reason=reason, reasons=(reason, *verification.reasons))


def _is_empty(path: str) -> bool:
    try:
        return not os.listdir(path)  # noqa: PTH208 -- strings throughout the package
    except OSError:
        return False


def _format(path: str) -> str:
    try:
        claimant = tree_format_of(Tree(path, levels=1))
    except OSError:
        return ""
    return claimant[0] if claimant is not None else ""


def _pointer(path: str) -> pointer_files.Pointer | None:
    try:
        return pointer_files.read(path) if os.path.isdir(path) else None  # noqa: PTH112 -- strings throughout the package
    except (OSError, NotRegular):
        return None


def _root(
    path: str, pointer: pointer_files.Pointer, paths: list[str], reading: ReadOptions, started: Callable[[str], None]
) -> Verification:
    """Return the verdict on a root: that on its one step, joined with the pointer's problem."""
    verification = Verification(path, identity_of(path) or _NOWHERE, Verdict.VERIFIED, format=pointer.format)
    if len(paths) == 1 and paths[0] != path:
        started(paths[0])
        verification = replace(judged(paths[0], reading), path=path)
    if not pointer.problem:
        return verification
    verdict = (
        verification.verdict
        if verification.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE)
        else Verdict.INCOMPLETE
        if pointer.target
        else Verdict.BAD
    )
    reasons = (
        tuple(dict.fromkeys((*verification.reasons, pointer.problem)))
        if verification.verdict is verdict
        else (pointer.problem, *verification.reasons)
    )
    return replace(verification, verdict=verdict, reason=reasons[0], reasons=reasons, level="", format=pointer.format)
