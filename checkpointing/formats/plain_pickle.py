"""A plain pickle in a file with torch's suffix (.pt, .bin): what `pickle.dump` writes, and what an attacker plants.

It is read opcode by opcode, never unpickled. DANGEROUS where it would run code, BAD where it is cut off, else UNVERIFIABLE: a pickle
holds no checksum and does not say how long the file should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.formats import TORCH_SUFFIXES, Examination, torch_pickle, unrecognised
from checkpointing.formats.pickles import scanner
from checkpointing.io.reader import Short
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from checkpointing.io.reader import FileReader

_SUFFIXES: Final = frozenset((*TORCH_SUFFIXES, ".bin"))
_PROTOCOLS: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_TEXT: Final = b"c(]}lidISVNLF"  # what a pickle of the protocols 0 and 1 begins with
_MOST_BYTES: Final = 64 << 20


def claims(head: bytes, tail: bytes, suffix: str) -> bool:  # noqa: ARG001 -- the interface of every format
    """Claim a file with the name of a checkpoint that begins as a pickle does.

    A text pickle (protocol 0 or 1) is recognised by its first letter alone.
    """
    return suffix in _SUFFIXES and (head.startswith(_PROTOCOLS) or head[:1] in [bytes((code,)) for code in _TEXT])


def examine(source: FileReader, suffix: str, *, bulk: bool) -> Examination:
    """Read its opcodes. Raises OSError and Interrupted."""
    try:
        data = source.read(0, min(source.size, _MOST_BYTES))
    except Short:
        return Examination(Verdict.BAD, "the file became shorter while it was read")
    try:
        scan = scanner.scan(data)
    except scanner.TooLong as error:
        return torch_pickle.refusal(error.dangers) or Examination(Verdict.UNVERIFIABLE, "a plain pickle that is too long to be read")
    except scanner.NotAPickle as error:
        if refused := torch_pickle.refusal(error.dangers):
            return refused
        if not data.startswith(_PROTOCOLS):
            return unrecognised.examine(source, suffix, bulk=bulk)
        read_all = len(data) == source.size  # else our limit cut it, not the writer
        return Examination(Verdict.BAD, f"torn: a plain pickle that is not whole: {error}") if read_all else _nothing_proves()
    following = list(scanner.inner(data[scan.end :], 1))  # the pickles after the first
    refused = torch_pickle.refusal(danger for pickle_scan in following for danger in pickle_scan.dangers)
    unlisted = tuple(call for pickle_scan in (scan, *following) for call in pickle_scan.unlisted)
    return (
        torch_pickle.refusal(scan.dangers)
        or refused
        or Examination(Verdict.UNVERIFIABLE, _nothing_proves().reason, torch_pickle.place(scan), unlisted=unlisted)
    )


def _nothing_proves() -> Examination:
    return Examination(Verdict.UNVERIFIABLE, "a plain pickle: it holds nothing to check it against")
