"""A file that is named like a checkpoint and has no known format: BAD if empty, zeroed or a lone pickle byte, else UNVERIFIABLE.

A file whose blocks were allocated and never written reads as zeros after a crash. Other programs use the suffix `.bin` too, so only an
empty or zeroed `.bin` file is treated as a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.formats import EDGE_BYTES, TORCH_SUFFIXES, Examination
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from checkpointing.io.reader import FileReader

_LONE_PROTO_BYTE: Final = b"\x80"


def claims(head: bytes, tail: bytes, suffix: str) -> bool:  # noqa: ARG001 -- the interface of every format
    """Claim a file that is named like a checkpoint."""
    return suffix in TORCH_SUFFIXES or (suffix in (".bin", ".safetensors") and not any(head))


def examine(source: FileReader, suffix: str, *, bulk: bool) -> Examination:  # noqa: ARG001 -- the interface of every format; there is nothing to read in bulk
    """Return BAD if empty or zeroed, else UNVERIFIABLE. Raises OSError and Interrupted."""
    head = source.read(0, min(EDGE_BYTES, source.size))
    if not head:
        return Examination(Verdict.BAD, "torn: the file is empty")
    if head == _LONE_PROTO_BYTE:
        return Examination(Verdict.BAD, "torn: it holds the first byte of a pickle and nothing else")
    if not any(head):
        return Examination(Verdict.BAD, "torn: it begins with zeros, so its data never reached the disk")
    return Examination(Verdict.UNVERIFIABLE, "a file of no known format: it holds nothing to check it against")
