"""A file that is named like a checkpoint and is of no known format: BAD if it is empty or begins with zeros, else UNVERIFIABLE.

A file whose blocks were allocated and never written reads as zeros after a crash. `.bin` is a name that everybody uses, so among files of
that name only the empty and the zeroed ones count as checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.formats import EDGE_BYTES, TORCH_SUFFIXES, Examination
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from checkpointing.io.reader import FileReader

_PROTOCOL: Final = b"\x80"


def claims(head: bytes, tail: bytes, suffix: str) -> bool:  # noqa: ARG001 -- the interface of every format
    """Claim what is named like a checkpoint."""
    return suffix in TORCH_SUFFIXES or (suffix in (".bin", ".safetensors") and not any(head))


def examine(source: FileReader, suffix: str, *, bulk: bool) -> Examination:  # noqa: ARG001 -- the interface of every format; there is nothing to read in bulk
    """Return what it is and that nothing can prove it. Raises OSError and Interrupted."""
    head = source.read(0, min(EDGE_BYTES, source.size))
    if not head:
        return Examination(Verdict.BAD, "torn: the file is empty")
    if head == _PROTOCOL:
        return Examination(Verdict.BAD, "torn: one byte, with which a pickle begins")
    if not any(head):
        return Examination(Verdict.BAD, "torn: it begins with zeros, so its data never reached the disk")
    return Examination(Verdict.UNVERIFIABLE, "a file of no known format: it holds nothing to check it against")
