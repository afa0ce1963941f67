"""Builds the manifest of a checkpoint, and checks a checkpoint against a manifest.

Both read every file once, in order, through FileReader: the caller chooses throttle and page cache. Building may raise
CheckpointChanged, Interrupted and OSError. Checking raises nothing: if it cannot read, the verdict is UNKNOWN.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io.reader import FileReader, Interrupted, NotRegular, Short
from checkpointing.io.tree import ReadOptions, Tree
from checkpointing.manifest import digest
from checkpointing.manifest.documents import About, File, Manifest
from checkpointing.model import Identity, Verdict, Verification, note_of
from checkpointing.verification import NOT_TO_THE_END, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

LEVEL: Final = "digest"
_MIB: Final = 1 << 20
_MOST_REASONS: Final = 20
_NOWHERE: Final = Identity(0, 0, 0, 0)


class CheckpointChanged(Exception):  # noqa: N818 -- a fact about the checkpoint, not a program error
    """The checkpoint changed after it was verified, or while it was read."""


def build(  # noqa: PLR0913 -- the files, the known facts, and how to read
    verification: Verification,
    about: About = About(),  # noqa: B008 -- a frozen value
    *,
    reading: ReadOptions = ReadOptions(),  # noqa: B008 -- a frozen value
    sha256: bool = False,
    part_bytes: int = digest.PART_BYTES,
    now: Callable[[], float] = time.time,
) -> Manifest:
    """Return the manifest of a verified checkpoint. Raises CheckpointChanged, Interrupted, OSError.

    If `reading` is that of its verification, and digest.Hashers followed it, only what the verification did not read is read.
    """
    tree = _tree(verification.path, reading)
    name = verification.path.rstrip("/").rpartition("/")[2]
    if (tree.identity if tree is not None else identity_of(verification.path)) != verification.identity:
        raise CheckpointChanged("it changed since it was verified")
    names = sorted(verification.files or tree.files) if tree is not None else [name]
    files: list[File] = []
    try:
        for member in names:
            with _open(verification.path, tree, member, reading) as source:
                hasher = source.follower if isinstance(source.follower, digest.Hasher) else None
                read = digest.of_source(source, hasher, part_bytes=part_bytes, sha256=sha256)
            files.append(File(member, read.n_bytes, read.crc64nvme, read.parts, read.sha256))
    except (Short, NotRegular, KeyError):
        raise CheckpointChanged("it changed while it was read") from None
    if not files or identity_of(verification.path) != verification.identity:
        raise CheckpointChanged("it changed while it was read")
    return Manifest(
        name=name,
        is_tree=tree is not None,
        layout=verification.format,
        files=tuple(files),
        path=verification.path,
        identity=verification.identity,
        host=os.uname().nodename,
        step=verification.step,
        within=verification.within,
        epoch=verification.epoch,
        content_step=verification.content_step,
        about=about,
        made_unix_s=int(now()),
        saved_unix_ns=max(tree.newest_mtime_ns if tree is not None else verification.identity.mtime_ns, 0),
        part_bytes=part_bytes,
        non_finite=verification.non_finite or (),
    )


@dataclass(frozen=True, slots=True)
class _Fault:
    verdict: Verdict
    reason: str


def check(
    path: str,
    manifest: Manifest,
    *,
    only: Collection[str] | None = None,
    reading: ReadOptions = ReadOptions(),  # noqa: B008 -- a frozen value
) -> Verification:
    """Compare the checkpoint at `path` with a manifest made here or elsewhere. VERIFIED: every byte is the one recorded.

    `only`: relative paths to read, those of the shards that this node loads. The sizes of all files are compared.
    """
    identity = _NOWHERE
    try:
        tree = _tree(path, reading)
        identity = (tree.identity if tree is not None else identity_of(path)) or _NOWHERE
        faults = list(_faults(path, tree, manifest, only, reading))
        changed = identity_of(path) != identity
    except Interrupted:
        return _answer(path, identity, manifest, [_Fault(Verdict.UNKNOWN, NOT_TO_THE_END)])
    except OSError as error:
        return _answer(path, identity, manifest, [_Fault(Verdict.UNKNOWN, f"it could not be read: {error.strerror or error}")])
    return _answer(path, identity, manifest, [_Fault(Verdict.WRITING, "it changed while it was read")] if changed else faults)


def _faults(path: str, tree: Tree | None, manifest: Manifest, only: Collection[str] | None, reading: ReadOptions) -> Iterator[_Fault]:
    """Compare sizes first: they cost nothing, and show most torn files."""
    if manifest.is_tree != (tree is not None):
        yield _Fault(Verdict.BAD, "expected a directory, found a file" if manifest.is_tree else "expected a file, found a directory")
        return
    sound: list[File] = []
    for file in manifest.files:
        fault = _size_fault(path, tree, file)
        if fault is None:
            sound.append(file)
        else:
            yield fault
    if len(sound) < len(manifest.files):
        return
    for file in sound:
        if only is None or file.path in only:
            yield from _content_faults(path, tree, file, manifest.part_bytes, reading)


def _size_fault(path: str, tree: Tree | None, file: File) -> _Fault | None:
    if tree is None:
        size: int | None = os.stat(path).st_size  # noqa: PTH116 -- paths are plain strings throughout the package
    else:
        entry = tree.file(file.path)
        size = None if entry is None else entry.size
    if size is None:
        return _Fault(Verdict.INCOMPLETE, f"{file.path} is missing")
    if size != file.n_bytes:
        return _Fault(Verdict.BAD, f"{file.path} has {size} bytes and was recorded with {file.n_bytes}")
    return None


def _content_faults(path: str, tree: Tree | None, file: File, part_bytes: int, reading: ReadOptions) -> Iterator[_Fault]:
    try:
        with _open(path, tree, file.path, reading) as source:
            read = digest.of_source(source, part_bytes=part_bytes, sha256=bool(file.sha256))
    except (Short, NotRegular, KeyError):
        yield _Fault(Verdict.WRITING, f"{file.path} changed while it was read")
        return
    differing = [number for number, (is_now, recorded) in enumerate(zip(read.parts, file.parts, strict=False)) if is_now != recorded]
    if differing:
        first, end = differing[0] * part_bytes, min((differing[0] + 1) * part_bytes, file.n_bytes)
        where = f"first between {first / _MIB:.6g} and {end / _MIB:.6g} MiB; {len(differing)} of {len(file.parts)} parts"
        yield _Fault(Verdict.BAD, f"{file.path} is not as recorded: {where}")
    elif read.n_bytes != file.n_bytes or (file.sha256 and read.sha256 != file.sha256):
        yield _Fault(Verdict.BAD, f"{file.path} is not as recorded: its {'SHA-256' if file.sha256 else 'size'} differs")


def _answer(path: str, identity: Identity, manifest: Manifest, faults: list[_Fault]) -> Verification:
    reasons = tuple(fault.reason for fault in faults[:_MOST_REASONS])
    present = {fault.verdict for fault in faults}
    order = (Verdict.UNKNOWN, Verdict.WRITING, Verdict.BAD, Verdict.INCOMPLETE)
    verdict = next((verdict for verdict in order if verdict in present), Verdict.VERIFIED)
    first = next((fault.reason for fault in faults if fault.verdict is verdict), "") or note_of(manifest.non_finite)
    return Verification(
        path,
        identity,
        verdict,
        first,
        manifest.step,
        LEVEL if verdict is Verdict.VERIFIED else "",
        manifest.within,
        manifest.layout,
        tuple(file.path for file in manifest.files) if manifest.is_tree else (),
        tuple(dict.fromkeys((first, *reasons))) if first else (),
        content_step=manifest.content_step,
        non_finite=manifest.non_finite,
        epoch=manifest.epoch,
    )


def _tree(path: str, reading: ReadOptions) -> Tree | None:
    """List a directory; None for a file. Raises OSError."""
    return Tree(path, reading) if os.path.isdir(path) else None  # noqa: PTH112 -- as above


def _open(path: str, tree: Tree | None, member: str, reading: ReadOptions) -> FileReader:
    if tree is not None:
        return tree.open(member)
    return reading.open(path)
