"""Joins what several nodes recorded of one save to the manifest of one checkpoint.

If each node has a directory of its own, no node sees a whole checkpoint: the shards of its ranks lie there, and those of the others do not.
Each node then records a *part*: a manifest of the files that it has, all verified, with the names of those that are missing. Parts become
one checkpoint only if they are of one save, if one of them shows which files there must be, and if each file that is missing in any of
them is in another, with the size that was expected. So nothing is joined of a save that one node did not end, and never files of two saves.

The result depends on the parts alone: every node that joins them makes the same document.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.manifest.documents import File, Manifest

_DCP: Final = ("dcp", "fsdp")
_SHARD: Final = ".distcp"


class PartsDiffer(Exception):  # noqa: N818 -- a fact about the parts
    """The parts are of different saves, or contradict each other: they will never be one checkpoint."""


def join(parts: Iterable[Manifest]) -> tuple[Manifest | None, str]:
    """Return the manifest of the checkpoint that parts make up; None, and the missing parts, if they do not. Raises PartsDiffer."""
    ordered = sorted(parts, key=lambda part: -1 if part.part is None else part.part.node)
    leaders = [part for part in ordered if part.part is not None and part.part.leads]
    if not leaders:
        return None, "the part that shows which files there must be is missing"
    leader = leaders[0]
    _compare(leader, ordered)
    files = _files(leader, ordered)
    for manifest in ordered:
        for path, n_bytes in () if manifest.part is None else manifest.part.absent:
            file = files.get(path)
            if file is None:
                return None, f"{path} is in no part"
            if n_bytes is not None and file.n_bytes != n_bytes:
                raise PartsDiffer(f"{path} has {file.n_bytes} bytes, and {n_bytes} were expected")
    joint = replace(
        leader,
        files=tuple(files[path] for path in sorted(files)),
        step=next((part.step for part in ordered if part.step is not None), None),
        saved_unix_ns=max(part.saved_unix_ns for part in ordered),
        made_unix_s=max(part.made_unix_s for part in ordered),
        non_finite=tuple(dict.fromkeys(row for manifest in ordered for row in manifest.non_finite)),
        part=None,
        places=tuple(dict.fromkeys((part.host, part.path) for part in ordered)),
    )
    return joint, ""


def _compare(leader: Manifest, parts: list[Manifest]) -> None:
    for part in parts:
        if (part.save, part.name, part.layout, part.part_bytes) != (leader.save, leader.name, leader.layout, leader.part_bytes):
            raise PartsDiffer(f"{leader.host} and {part.host} recorded different saves")
    steps = sorted({part.step for part in parts if part.step is not None})
    if len(steps) > 1:
        raise PartsDiffer(f"the parts are of steps {steps[0]} and {steps[1]}")


def _files(leader: Manifest, parts: list[Manifest]) -> dict[str, File]:
    """Return the files of all parts by path. Shards of DCP that its metadata does not name were left by another save."""
    named = {file.path for file in leader.files} | {path for path, _ in leader.part.absent} if leader.part is not None else set()
    files: dict[str, File] = {}
    for part in parts:
        for file in part.files:
            if leader.layout in _DCP and file.path.endswith(_SHARD) and file.path not in named:
                continue
            known = files.setdefault(file.path, file)
            if (known.n_bytes, known.crc64nvme) != (file.n_bytes, file.crc64nvme):
                raise PartsDiffer(f"two nodes have different files {file.path}")
    return files
