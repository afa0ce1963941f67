"""What is named like a checkpoint and is of no format that is known here.

In: the first bytes. Out: BAD where the file is empty or all zeros at its beginning (a file whose blocks were allocated and never written
reads so after a crash), UNVERIFIABLE otherwise. `.bin` is a name that everybody uses, so of these only the empty and the zeroed are meant.
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
    """Say what it is and that nothing can prove it. Raises OSError and Interrupted."""
    head = source.read(0, min(EDGE_BYTES, source.size))
    if not head:
        return Examination(Verdict.BAD, "torn: the file is empty")
    if head == _PROTOCOL:
        return Examination(Verdict.BAD, "torn: one byte, with which a pickle begins")
    if not any(head):
        return Examination(Verdict.BAD, "torn: it begins with zeros, so its data never reached the disk")
    return Examination(Verdict.UNVERIFIABLE, "a file of no known format: it holds nothing to check it against")
