"""Gives one file or directory one verdict.

`verify` always returns: damage and read errors become the verdict and its reason. If the file's identity changes during the
read, the verdict is WRITING, whatever else was found. A name that saves use for unfinished files makes it INCOMPLETE, however whole it
looks.
"""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import dataclass, replace
from typing import Final

from checkpointing import markers, step_names
from checkpointing.formats import Examination, examine_file, examine_part, tree_format_of
from checkpointing.io.reader import Interrupted, NotRegular, Short
from checkpointing.io.tree import ReadOptions, Tree
from checkpointing.model import Identity, Verdict, Verification, note_of

_MOST_CACHED: Final = 4096
_LASTING: Final = (Verdict.VERIFIED, Verdict.BAD, Verdict.INCOMPLETE, Verdict.DANGEROUS, Verdict.UNVERIFIABLE, Verdict.FOREIGN)
_NOWHERE: Final = Identity(0, 0, 0, 0)
NOT_TO_THE_END: Final = "not read to the end: nobody waits for it any more"
_INDEX: Final = (".safetensors.index.json", ".bin.index.json")
_CHANGED: Final = "it changed while it was read"


def verify(
    path: str | os.PathLike[str],
    *,
    bulk: bool = True,
    reading: ReadOptions = ReadOptions(),  # noqa: B008 -- a frozen value
    own: bool = False,
) -> Verification:
    """Return whether a file or directory is a whole checkpoint, and which step it holds.

    Raises nothing about the checkpoint: damage is BAD, an unreadable one UNKNOWN, each with its `reason`. No pickle is executed. What its
    framework marks as unfinished (markers.py) is WRITING, and is not read: the mark is not a part of its identity.

    bulk: False reads directory and metadata only, milliseconds at any size; VERIFIED then has the level "directory": enough for the step,
    not to resume from. reading: how; once it is interrupted, the verdict is UNKNOWN. own: this job is known to have written it. Then calls
    that are not on the list of known names (formats/pickles/policy.py) are a note; in any other file they are DANGEROUS.

        verify("ckpt/step-00000100.pt").verdict is Verdict.VERIFIED
    """
    path = os.fspath(path)
    marked = markers.unfinished(path)
    examination = _verify(path, reading, bulk=bulk and not marked, own=own)
    if not marked or examination.verdict not in (Verdict.VERIFIED, Verdict.UNVERIFIABLE, Verdict.INCOMPLETE):
        return examination
    reasons = tuple(dict.fromkeys(why for why in (marked, *examination.reasons) if why))
    return replace(examination, verdict=Verdict.WRITING, level="", reason=marked, reasons=reasons)


def _verify(path: str, reading: ReadOptions, *, bulk: bool, own: bool) -> Verification:  # noqa: PLR0911 -- each is another answer
    try:
        source = reading.open(path)
    except NotRegular as error:
        if error.what == "a directory":
            return _verify_tree(path, reading, bulk=bulk, own=own)
        return _without_content(path, identity_of(path), Verdict.FOREIGN, f"{error.what}, and no format that is known here")
    except OSError as error:
        return _without_content(path, identity_of(path), Verdict.UNKNOWN, _why(error))
    if path.endswith(_INDEX):  # an index names the files next to it
        source.close()
        below = _verify_tree(os.path.dirname(path) or ".", reading, bulk=bulk, own=own)  # noqa: PTH120 -- strings throughout the package
        return replace(below, path=path, identity=Identity.of(source.stat_opened))
    with source:
        identity = Identity.of(source.stat_opened)
        try:
            examination = examine_file(source, path, bulk=bulk)
            now = Identity.of(source.stat_now())
        except Interrupted:
            return _without_content(path, identity, Verdict.UNKNOWN, NOT_TO_THE_END)
        except OSError as error:
            return _without_content(path, identity, Verdict.UNKNOWN, _why(error))
    if now != identity or identity_of(path) != identity:
        return _without_content(path, identity, Verdict.WRITING, _CHANGED, examination.format)
    return _conclude(path, identity, examination, own=own)


def _verify_tree(path: str, reading: ReadOptions, *, bulk: bool, own: bool) -> Verification:  # noqa: PLR0911 -- each is another answer
    identity: Identity | None = None
    try:
        tree = Tree(path, reading)
        identity = tree.identity
        claimant = tree_format_of(tree)
        if claimant is None:
            return _without_content(path, identity, Verdict.UNVERIFIABLE, "a directory, and no format that is known here")
        examination = claimant[1].examine(tree, bulk=bulk)
        examination = replace(examination, format=examination.format or claimant[0], files=examination.files or tree.files)
        now = Tree(path).identity
    except Interrupted:
        return _without_content(path, identity, Verdict.UNKNOWN, NOT_TO_THE_END)
    except Short:
        return _without_content(path, identity, Verdict.WRITING, _CHANGED)
    except OSError as error:
        return _without_content(path, identity, Verdict.UNKNOWN, _why(error))
    if now != identity:
        return _without_content(path, identity, Verdict.WRITING, _CHANGED, examination.format)
    if examination.verdict is Verdict.VERIFIED and (tree.truncated or tree.problems):
        why = "; ".join(f"{name}: {problem}" for name, problem in tree.problems[:3]) or "it has more names than are read"
        return _without_content(path, identity, Verdict.UNKNOWN, f"not all of it could be listed: {why}", examination.format)
    return _conclude(path, identity, examination, own=own)


@dataclass(frozen=True, slots=True)
class VerifiedPart:
    """A part of a checkpoint that lies on the disks of several nodes: the part here is whole. absent, leads: as in PartExamination.

    `present` is about the files that are here. It never says that there is a whole checkpoint at the path.
    """

    present: Verification
    absent: tuple[tuple[str, int | None], ...]
    leads: bool


def verify_part(path: str, reading: ReadOptions, *, own: bool = False) -> VerifiedPart | None:
    """Return the part of a checkpoint that a directory holds; None if it is whole, damaged or marked as unfinished, or cannot be read.

    Raises Interrupted.
    """
    if markers.unfinished(path):
        return None
    try:
        tree = Tree(path, reading)
        part = examine_part(tree)
        if part is None or tree.truncated or tree.problems or Tree(path).identity != tree.identity:
            return None
    except (OSError, Short):
        return None
    verification = _conclude(path, tree.identity, replace(part.present, files=part.present.files or tree.files), own=own)
    return VerifiedPart(verification, part.absent, part.leads) if verification.verdict is Verdict.VERIFIED else None


def identity_of(path: str) -> Identity | None:
    """Return the identity of a file or directory as it is now; None where it cannot be read."""
    try:
        st = os.stat(path)  # noqa: PTH116 -- a string in, nothing to join
        return Tree(path).identity if stat.S_ISDIR(st.st_mode) else Identity.of(st)
    except OSError:
        return None


def _conclude(path: str, identity: Identity, examination: Examination, *, own: bool) -> Verification:
    if examination.unlisted and not own and examination.verdict is not Verdict.DANGEROUS:
        named = ", ".join(examination.unlisted[:3])
        why = f"loading it would call {named}, which is not on the list of safe calls, and the file is not known as this job's"
        examination = replace(
            examination,
            verdict=Verdict.DANGEROUS,
            reason=why,
            level="",
            also=tuple(reason for reason in (examination.reason, *examination.also) if reason),
        )
    step, within, reason = _agree(path, examination)
    reasons = tuple(dict.fromkeys(why for why in (reason, *examination.also, note_of(examination.non_finite)) if why))
    verdict, level = examination.verdict, examination.level
    if step_names.is_temporary(path) and verdict is not Verdict.DANGEROUS and verdict is not Verdict.FOREIGN:
        verdict, level, reasons = Verdict.INCOMPLETE, "", ("its name is that of a save that did not end", *reasons)
    place = examination.place
    content_step = place.step if place.sure or (place.epoch is None and not place.loose) else None
    numbers = None if level in ("", "directory") else examination.non_finite
    first = next(iter(reasons), "")
    epoch = (step_names.epoch_in(path) if place.epoch is None else place.epoch) if step is None and within is None else None
    return Verification(
        path, identity, verdict, first, step, level, within, examination.format, examination.files, reasons, content_step, numbers, epoch
    )


def _without_content(path: str, identity: Identity | None, verdict: Verdict, reason: str, format_name: str = "") -> Verification:
    """Return a verdict that needs no content; the step is the name's."""
    return Verification(path, identity or _NOWHERE, verdict, reason, _named(path), format=format_name, reasons=(reason,))


def _agree(path: str, examination: Examination) -> tuple[int | None, tuple[int, int] | None, str]:
    """Return the step, else (epoch, step within it), and the reason; a disagreement of content and name is worth a note there.

    Content wins over the name, which can be an epoch, an index, or a copy's; but a name that is sure wins over a key that counts the
    whole run in one script and the epoch in the next (`{"epoch": 2, "step": 100}`).
    """
    named, place = step_names.step_in(path), examination.place
    if place.step is None:
        return (None if named is None else named.step), None, examination.reason
    if not place.sure and place.epoch is not None and not (named is not None and named.sure):
        return None, (place.epoch, place.step), examination.reason
    step = named.step if named is not None and named.sure and not place.sure else place.step
    if named is None or named.step == place.step or examination.reason:
        return step, None, examination.reason
    name = f"step {named.step}, its content {place.step}" if named.sure else f"{named.step}, its content step {place.step}"
    return step, None, f"its name says {name}"


def _named(path: str) -> int | None:
    named = step_names.step_in(path)
    return None if named is None else named.step


def _why(error: OSError) -> str:
    return f"it could not be read: {error.strerror or error}"


class Cache:
    """The verdicts by path and identity, the newest `_MOST_CACHED`. Thread-safe.

    It keeps only verdicts that hold as long as the identity: no WRITING, no UNKNOWN. A reading without `bulk` never replaces a full one.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = threading.Lock()
        self._found: dict[tuple[str, Identity], Verification] = {}

    def put(self, verification: Verification) -> None:
        """Keep a verdict that holds as long as the identity."""
        key = (verification.path, verification.identity)
        with self._lock:
            known = self._found.get(key)
            if verification.verdict not in _LASTING or (known is not None and known.level and verification.level == "directory"):
                return
            self._found[key] = verification
            while len(self._found) > _MOST_CACHED:
                del self._found[next(iter(self._found))]

    def get(self, path: str, identity: Identity) -> Verification | None:
        """Return the verdict on this identity of this path."""
        with self._lock:
            return self._found.get((path, identity))
