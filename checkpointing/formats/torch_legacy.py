"""torch.save's format before torch 1.6, and with `_use_new_zipfile_serialization=False` since: pickles and storages in a row.

Such a file has no checksum and no end mark, so nothing proves its numbers. But its layout gives its length to the byte, and the whole
layout is compared. Layout (torch/serialization.py, _legacy_save; UntypedStorage._write_file):

    pickle of the magic number | pickle of 1001 | pickle of {"protocol_version", "little_endian", "type_sizes"} | pickle of the object
    pickle of the list of storage keys | for each key: count of elements, int64 | the elements

The object's pickle is read opcode by opcode, never unpickled. So is the list's, which may hold only texts.
"""

from __future__ import annotations

import pickletools
import struct
from typing import TYPE_CHECKING, Final

from checkpointing.formats import Examination, numerics, torch_pickle, zero_pages
from checkpointing.formats.pickles import scanner
from checkpointing.io.reader import Short
from checkpointing.model import Verdict, listed

if TYPE_CHECKING:
    from checkpointing.formats.pickles.facts import PickleScan, Storage
    from checkpointing.io.reader import FileReader
    from checkpointing.model import NonFinite

LEVEL: Final = "layout"
_MAGIC: Final = (
    b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # torch.serialization.MAGIC_NUMBER as LONG1, and STOP; a protocol and a frame may precede
)
_MAGIC_WITHIN: Final = 2 + 9 + len(_MAGIC)
_WINDOWS: Final = (1 << 18, 4 << 20, 40 << 20)  # a pickle's length is not known before it is read
_KEY_OPCODES: Final = frozenset(("PROTO", "FRAME", "EMPTY_LIST", "BINPUT", "LONG_BINPUT", "MEMOIZE", "MARK", "APPENDS", "APPEND", "STOP"))
_TEXT_OPCODES: Final = frozenset(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "STRING"))
_COUNT: Final = struct.Struct("<q")


class _Torn(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The file's parts contradict each other, or it ends early."""


class _Unread(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """A pickle is longer than we read, or a storage has an unknown type."""


def claims(head: bytes, tail: bytes, suffix: str) -> bool:  # noqa: ARG001 -- the interface of every format
    """Claim a file that begins with the magic number, in any of pickle's binary protocols."""
    return _MAGIC in head[:_MAGIC_WITHIN]


def examine(source: FileReader, suffix: str, *, bulk: bool) -> Examination:  # noqa: ARG001, PLR0911 -- the interface of every format; each is another answer
    """Compare the layout with the file's length, and with `bulk` look for NaN and infinity. Raises OSError, Interrupted."""
    at, scans = 0, []
    try:
        for _ in range(4):
            pickle_scan = _scan_at(source, at)
            scans.append(pickle_scan)
            at += pickle_scan.end
        keys, at = _keys_at(source, at)
        storages = _lay_out(source, keys, scans[3], at)
    except scanner.NotAPickle as error:
        dangers = (*(danger for pickle_scan in scans for danger in pickle_scan.dangers), *error.dangers)
        return torch_pickle.refusal(dangers) or Examination(Verdict.BAD, f"torn: one of its pickles is not whole: {error}")
    except _Torn as error:
        return torch_pickle.refusal(scans[3].dangers) or Examination(Verdict.BAD, str(error), torch_pickle.place(scans[3]))
    except _Unread:
        return Examination(Verdict.UNVERIFIABLE, "its pickle is too long to be read")
    except Short:
        return Examination(Verdict.BAD, "the file became shorter while it was read")
    if refused := torch_pickle.refusal(danger for pickle_scan in scans for danger in pickle_scan.dangers):
        return refused
    place = torch_pickle.place(scans[3])
    unwritten, non_finite = _numbers(source, scans[3], storages) if bulk else ("", ())
    if unwritten:
        return Examination(Verdict.BAD, unwritten, place)
    unlisted = tuple(call for pickle_scan in scans for call in pickle_scan.unlisted)
    level = LEVEL if bulk else "directory"
    return Examination(Verdict.VERIFIED, torch_pickle.note(scans[3]), place, level, non_finite=non_finite, unlisted=unlisted)


def _scan_at(source: FileReader, at: int) -> PickleScan:
    """Scan the pickle at an offset. Raises NotAPickle where there is no pickle even with all later bytes."""
    for window in _WINDOWS:
        length = min(window, source.size - at)
        try:
            return scanner.scan(source.read(at, length))
        except scanner.NotAPickle:
            if at + length >= source.size:
                raise
        except scanner.TooLong as error:
            if error.dangers:
                raise scanner.NotAPickle("too long", error.dangers) from None
            raise _Unread from None
    raise _Unread


def _keys_at(source: FileReader, at: int) -> tuple[list[str], int]:
    """Return the list of storage keys at an offset, and the offset after it."""
    for window in _WINDOWS:
        data = source.read(at, min(window, source.size - at))
        try:
            return _keys_in(data, at)
        except ValueError as error:
            if at + len(data) >= source.size:
                raise _Torn(f"torn: its list of storages is not whole: {error}") from None
    raise _Unread


def _keys_in(data: bytes, at: int) -> tuple[list[str], int]:
    keys: list[str] = []
    for opcode, arg, position in pickletools.genops(data):
        if opcode.name in _TEXT_OPCODES:
            keys.append(str(arg))
        elif opcode.name not in _KEY_OPCODES:
            raise _Torn(f"its list of storages holds {opcode.name}, which torch never writes")
        if opcode.name == "STOP":
            return keys, at + (position or 0) + 1
    raise _Torn("torn: its list of storages has no end")


def _lay_out(source: FileReader, keys: list[str], scan: PickleScan, at: int) -> dict[str, tuple[int, int]]:
    """Return offset and bytes of each storage, all of them compared with what the object's pickle says. Raises _Torn."""
    referred = {storage.key: storage for storage in scan.storages}
    if set(keys) != set(referred) or len(keys) != len(referred):
        raise _Torn(f"its list names {len(keys)} storages where its objects refer to {len(referred)}")
    places: dict[str, tuple[int, int]] = {}
    for number, key in enumerate(keys):
        storage = referred[key]
        if at + _COUNT.size > source.size:
            raise _Torn(f"torn: the file ends before storage {number} of {len(keys)}")
        (count,) = _COUNT.unpack(source.read(at, _COUNT.size))
        if count != storage.count:
            raise _Torn(f"storage {number} of {len(keys)} has {count} elements where {storage.count} were saved")
        size = count * torch_pickle.item_bytes(storage.kind)
        if not size and count:
            raise _Unread
        at += _COUNT.size
        if at + size > source.size:
            raise _Torn(f"torn: the file ends within storage {number} of {len(keys)}")
        places[key] = (at, size)
        at += size
    if at != source.size:
        raise _Torn(f"{source.size - at} bytes after its last storage")
    return places


def _numbers(source: FileReader, scan: PickleScan, storages: dict[str, tuple[int, int]]) -> tuple[str, tuple[NonFinite, ...]]:
    """Read every storage once. Return the first that was never written, "" for none, and those whose numbers are not finite."""
    non_finite: list[NonFinite] = []
    by_key = {storage.key: storage for storage in scan.storages}
    ordered = [(at, size, by_key[key]) for key, (at, size) in storages.items()]
    unwritten = zero_pages.ZeroPageScan([_span(number, *row) for number, row in enumerate(ordered)], source.size, source.read)
    for at, size, storage in ordered:
        kind = numerics.kind_of(storage.kind)
        numbers = None if kind is None else numerics.NumericsScan(kind)
        begin, length = torch_pickle.span(storage)
        seen = 0
        for piece in source.bulk(at, size):
            unwritten.feed(piece)
            if numbers is not None:
                numbers.feed(piece[max(0, begin - seen) : max(0, begin + length - seen)])
            seen += len(piece)
        if numbers is not None and (entry := numbers.found(torch_pickle.name_of(storage))) is not None:
            non_finite.append(entry)
        if at + size < source.size:
            unwritten.feed(b"".join(map(bytes, source.bulk(at + size, _COUNT.size))))
    return unwritten.problem(), listed(non_finite)


def _span(number: int, at: int, size: int, storage: Storage) -> zero_pages.Span:
    item = torch_pickle.item_bytes(storage.kind) or 1
    # memory that no tensor uses may hold zeros anywhere
    floating = numerics.kind_of(storage.kind) is not None and (storage.begin, storage.end) == (0, storage.count)
    return zero_pages.Span(f"storage {number}", at, at + size, item, (storage.row or storage.count) * item or item, floating)
