"""Reads the layout of a zip file strictly: every structure must be where the others say it is.

Python's zipfile reads as much as it can: it accepts bytes before and after the archive and never compares the local headers with the
directory. A torn checkpoint is exactly a file in which these disagree. Layout and names: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5.

    [local header | name | extra | data | (data descriptor)]*  directory  (zip64 end record  zip64 locator)  end record (comment)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from checkpointing.io.reader import Short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.io.reader import FileReader

LOCAL_MAGIC: Final = b"PK\x03\x04"
_END_MAGIC: Final = b"PK\x05\x06"
_DESCRIPTOR_MAGIC: Final = b"PK\x07\x08"
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCATOR: Final = struct.Struct("<4sLQL")
_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_MAX_COMMENT: Final = 0xFFFF
_SCAN_BYTES: Final = 1 << 20
_MAX_DIRECTORY_BYTES: Final = 64 << 20  # about half a million records
_ATTRIBUTE_DIRECTORY: Final = 0x10
_FLAG_ENCRYPTED: Final = 0x1
_FLAG_DESCRIPTOR: Final = 0x8
_ZIP64_EXTRA: Final = 0x0001
_FULL16: Final = 0xFFFF
_FULL32: Final = 0xFFFFFFFF
STORED: Final = 0
DEFLATED: Final = 8


class ZipDamaged(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The file is a zip whose parts contradict each other; the text says which."""


class NotZip(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The file neither begins nor ends as a zip."""


class Unsupported(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The zip uses a feature that we cannot check: encryption, several disks, a directory larger than any checkpoint's."""


def damaged(reason: str) -> NoReturn:
    """Raise ZipDamaged."""
    raise ZipDamaged(reason)


def unsupported(reason: str) -> NoReturn:
    """Raise Unsupported."""
    raise Unsupported(reason)


@dataclass(frozen=True, slots=True)
class ZipRecord:
    """One member. `offset`: offset of its local header; `data`: offset of its content; sizes in bytes."""

    name: bytes
    method: int
    flags: int
    crc: int
    packed_bytes: int
    size_bytes: int
    offset: int
    data: int = -1


@dataclass(frozen=True, slots=True)
class _End:
    """The directory's number of records, offset and size in bytes."""

    count: int
    offset: int
    size: int


def read_records(source: FileReader) -> tuple[ZipRecord, ...]:
    """Return every record in the order of the file, all headers compared. Raises ZipDamaged, NotZip, Unsupported, Interrupted, OSError."""
    try:
        end = _find_end(source)
        records = sorted(_read_directory(source, end), key=lambda record: record.offset)
        if not records:
            return ()
        if records[0].offset != 0:
            damaged(f"{records[0].offset} bytes before the first record")
        limits = [record.offset for record in records[1:]] + [end.offset]
        return tuple(_check_local(source, record, limit) for record, limit in zip(records, limits, strict=True))
    except Short:
        damaged("the file ends before its zip directory says")


def length_at(source: FileReader, offset: int) -> int | None:
    """Return the length of the zip that begins at `offset` of a longer file, None if it has no end. Other zips may follow it.

    The end record is found by its magic. It is the right one if the directory that it names lies right before it, counted from `offset`.
    A record whose content merely looks like an end record names another place. Raises Interrupted, OSError, Short.
    """
    at, kept = offset, b""
    while at < source.size:
        chunk = source.read(at, min(_SCAN_BYTES, source.size - at))
        window, begin = kept + chunk, at - len(kept)
        hit = window.find(_END_MAGIC)
        while hit >= 0 and begin + hit + _END.size <= begin + len(window):
            end = begin + hit
            if _is_end(source, offset, end, window[hit : hit + _END.size]):
                return int(end + _END.size + _END.unpack_from(window, hit)[7] - offset)
            hit = window.find(_END_MAGIC, hit + 1)
        at, kept = at + len(chunk), window[-(_END.size - 1) :]
    return None


def _is_end(source: FileReader, offset: int, end: int, record: bytes) -> bool:
    """Return whether the end record at `end` is that of the zip at `offset`."""
    *_, n_bytes, directory, _ = _END.unpack(record)
    locator = end - _LOCATOR.size
    if locator >= offset:
        magic, _, end64, _ = _LOCATOR.unpack(source.read(locator, _LOCATOR.size))
        if magic == _LOCATOR_MAGIC:
            return bool(end64 + _END64.size == locator - offset)
    return bool(directory + n_bytes == end - offset)


def ends_as_zip(tail: bytes) -> bool:
    """Return whether the last bytes of a file are a zip's end record without a comment, or with a short one."""
    at = tail.rfind(_END_MAGIC)
    return at >= 0 and at + _END.size <= len(tail) and at + _END.size + _END.unpack_from(tail, at)[7] == len(tail)


def first_name(head: bytes) -> bytes:
    """Return the name in the local header at the beginning of `head`, cut off where `head` ends."""
    length = int.from_bytes(head[26:28], "little")
    return head[_LOCAL.size : _LOCAL.size + length]


def _find_end(source: FileReader) -> _End:
    head = source.read(0, min(4, source.size))
    tail_bytes = min(source.size, _END.size + _MAX_COMMENT)
    tail_at = source.size - tail_bytes
    tail = source.read(tail_at, tail_bytes)
    # nothing follows the end record but its own comment
    at = tail.rfind(_END_MAGIC)
    while at >= 0:
        if at + _END.size <= len(tail):
            fields = _END.unpack_from(tail, at)
            if at + _END.size + fields[7] == len(tail):
                return _resolve_end(source, tail_at + at, fields)
        at = tail.rfind(_END_MAGIC, 0, at)
    at = tail.rfind(_END_MAGIC)
    if head != LOCAL_MAGIC:
        raise NotZip
    if at >= 0 and at + _END.size < len(tail):
        damaged(f"{len(tail) - at - _END.size} bytes after the end of the zip")
    damaged("torn: it begins as a zip and has no zip directory at its end")


def _resolve_end(source: FileReader, at: int, fields: tuple[int, ...]) -> _End:
    _, disk, directory_disk, count_here, count, size, offset, _ = fields
    if disk not in (0, _FULL16) or directory_disk not in (0, _FULL16):
        unsupported("a split zip")
    if count_here != count:
        damaged("the end record contradicts itself about the number of records")
    # if the directory ends exactly at the end record, there is no zip64 end record
    end = _End(count, offset, size) if offset + size == at else _resolve_end64(source, at, (count, size, offset))
    if end.size > _MAX_DIRECTORY_BYTES:
        unsupported(f"its zip directory has {end.size} bytes")
    return end


def _resolve_end64(source: FileReader, at: int, small: tuple[int, int, int]) -> _End:
    """Read the locator and the zip64 end record before the end record at `at`; `small`: its count, size and offset."""
    locator_at = at - _LOCATOR.size
    magic, end_disk, end64_at, disks = _LOCATOR.unpack(source.read(locator_at, _LOCATOR.size)) if locator_at >= 0 else (b"", 0, 0, 0)
    if magic != _LOCATOR_MAGIC:
        damaged(f"the zip directory is not where the end record says ({at - small[1] - small[2]} bytes off)")
    if end_disk or disks != 1:
        unsupported("a split zip")
    if end64_at + _END64.size > locator_at:
        damaged("the zip64 end record is not where its locator says")
    magic, length, _, _, disk, directory_disk, count_here, count, size, offset = _END64.unpack(source.read(end64_at, _END64.size))
    if magic != b"PK\x06\x06" or end64_at + 12 + length != locator_at:
        damaged("the zip64 end record is not where its locator says")
    if disk or directory_disk or count_here != count:
        unsupported("a split zip")
    for name, narrow, wide, full in zip(
        ("count", "size", "offset"), small, (count, size, offset), (_FULL16, _FULL32, _FULL32), strict=True
    ):
        if narrow not in (full, wide):
            damaged(f"the two end records disagree about the directory's {name}")
    if offset + size != end64_at:
        damaged(f"the zip directory is not where the end record says ({end64_at - offset - size} bytes off)")
    return _End(count, offset, size)


def _read_directory(source: FileReader, end: _End) -> list[ZipRecord]:
    raw = source.read(end.offset, end.size)
    records: list[ZipRecord] = []
    names: set[bytes] = set()
    at = 0
    while at < len(raw):
        if len(raw) - at < _CENTRAL.size:
            damaged("the zip directory ends within an entry")
        fields = _CENTRAL.unpack_from(raw, at)
        name_len, extra_len, comment_len = fields[10:13]
        name_at = at + _CENTRAL.size
        at = name_at + name_len + extra_len + comment_len
        if fields[0] != b"PK\x01\x02" or at > len(raw):
            damaged(f"entry {len(records)} of the zip directory is damaged")
        name = raw[name_at : name_at + name_len]
        if name in names:
            damaged(f"two records are named {show(name)}")
        names.add(name)
        records.append(_entry(name, fields, raw[name_at + name_len : name_at + name_len + extra_len]))
    if len(records) != end.count:
        damaged(f"the zip directory has {len(records)} entries where the end record says {end.count}")
    return records


def _entry(name: bytes, fields: tuple[int, ...], extra: bytes) -> ZipRecord:
    flags, method, crc = fields[3], fields[4], fields[7]
    packed, size, offset = fields[8], fields[9], fields[16]
    if flags & _FLAG_ENCRYPTED:
        unsupported(f"record {show(name)} is encrypted")
    if fields[13] not in (0, _FULL16):
        unsupported(f"record {show(name)} is in another part of a split zip")
    if fields[15] & _ATTRIBUTE_DIRECTORY and size:
        # torch's reader (miniz) then extracts nothing and returns uninitialised memory: seen with torch 2.13
        damaged(f"record {show(name)} is marked as a directory")
    # the 64-bit values have this order; a value is present only if its 32-bit field is full (APPNOTE 4.5.3)
    wanted = [size == _FULL32, packed == _FULL32, offset == _FULL32]
    if any(wanted):
        wide = _zip64_values(name, extra, sum(wanted))
        size, packed, offset = (next(wide) if full else narrow for full, narrow in zip(wanted, (size, packed, offset), strict=True))
    return ZipRecord(name, method, flags, crc, packed, size, offset)


def _zip64_values(name: bytes, extra: bytes, count: int) -> Iterator[int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == _ZIP64_EXTRA and length >= 8 * count and at + 4 + 8 * count <= len(extra):
            return iter(struct.unpack_from(f"<{count}Q", extra, at + 4))
        at += 4 + length
    damaged(f"record {show(name)} lacks its 64-bit sizes")


def _check_local(source: FileReader, record: ZipRecord, limit: int) -> ZipRecord:
    """Compare a record's local header and data descriptor with the directory; the record must end at `limit` or before."""
    name = show(record.name)
    if record.offset + _LOCAL.size + len(record.name) > limit:
        damaged(f"record {name} reaches into what follows it")
    raw = source.read(record.offset, _LOCAL.size + len(record.name))
    magic, _, flags, method, _, _, crc, packed, size, name_len, extra_len = _LOCAL.unpack_from(raw)
    if magic != LOCAL_MAGIC or raw[_LOCAL.size :] != record.name or name_len != len(record.name):
        damaged(f"record {name} is not where the zip directory says")
    if (flags, method) != (record.flags, record.method):
        damaged(f"the two headers of record {name} disagree")
    data = record.offset + _LOCAL.size + name_len + extra_len
    end = data + record.packed_bytes
    if end > limit:
        damaged(f"record {name} reaches into what follows it")
    if flags & _FLAG_DESCRIPTOR:
        _check_descriptor(source, record, end, limit)
    elif crc != record.crc or packed not in (record.packed_bytes, _FULL32) or size not in (record.size_bytes, _FULL32):
        damaged(f"the two headers of record {name} disagree")
    return ZipRecord(record.name, method, flags, record.crc, record.packed_bytes, record.size_bytes, record.offset, data)


def _check_descriptor(source: FileReader, record: ZipRecord, at: int, limit: int) -> None:
    """Compare the sizes that follow the data. Four layouts are in use: with and without a magic, sizes of 4 or 8 bytes."""
    raw = source.read(at, min(24, limit - at))
    for width in "LQ":
        try:
            body = struct.pack(f"<L2{width}", record.crc, record.packed_bytes, record.size_bytes)
        except struct.error:  # sizes beyond 4 GiB fit the wide layout only
            continue
        if raw.startswith((_DESCRIPTOR_MAGIC + body, body)):
            return
    damaged(f"the data descriptor of record {show(record.name)} disagrees with the zip directory")


def show(name: bytes) -> str:
    """Make a record's name printable: at most 80 characters, control characters escaped."""
    return name.decode("utf-8", "backslashreplace").encode("unicode_escape").decode("ascii")[:80]
