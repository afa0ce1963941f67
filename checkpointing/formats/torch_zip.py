"""torch.save's format since torch 1.6: a zip with `<name>/data.pkl` for the objects and `<name>/data/<key>` for each storage.

The file itself can prove its structure alone, and all of it is checked: the zip directory against every local header, every record's
CRC, the members that torch.load needs, and a record that is long enough for each storage that data.pkl refers to. data.pkl is read opcode
by opcode, never unpickled. If it would call what pickles/policy.py refuses, the file is DANGEROUS, whatever else is right or wrong with it.
Measured on 141 files: the CRCs alone miss bytes before and after the zip, a missing and a shortened
record.

`torch.serialization.set_crc32_options(False)` stores a CRC of zero in every record: then nothing can be proven, and nothing is wrong.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.formats import EDGE_BYTES, NOWHERE, TORCH_SUFFIXES, Examination, numerics, torch_pickle, zip_layout
from checkpointing.formats.pickles import facts, scanner
from checkpointing.formats.pickles.facts import PickleScan
from checkpointing.io.reader import CHUNK_BYTES, Short
from checkpointing.model import Verdict, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.formats.pickles.facts import Storage
    from checkpointing.formats.zip_layout import ZipRecord
    from checkpointing.io.reader import FileReader
    from checkpointing.model import NonFinite

LEVEL: Final = "structure"
_COUNTS: Final = {
    "torch FloatStorage": struct.Struct("<f"),
    "torch LongStorage": struct.Struct("<q"),
    "torch DoubleStorage": struct.Struct("<d"),
}
_MEMBER_SUFFIXES: Final = tuple(suffix.encode() for suffix in TORCH_SUFFIXES)
#: Records that torch.save writes before the objects, and at the end of the file.
_BESIDE_OBJECTS: Final = frozenset(
    (b"version", b"byteorder", b".format_version", b".storage_alignment", b".data/version", b".data/serialization_id")
)
_MAX_PICKLE_BYTES: Final = 128 << 20  # arrays within; how many objects is bounded apart


def claims(head: bytes, tail: bytes, suffix: str) -> bool:  # noqa: ARG001 -- the interface of every format
    """Claim what begins as a zip, if only by its first bytes, and what ends as one: something may have been put in front of it."""
    begins = head[:4]
    return bool(begins) and (zip_layout.LOCAL_MAGIC.startswith(begins) or zip_layout.ends_as_zip(tail))


def examine(source: FileReader, suffix: str, *, bulk: bool) -> Examination:
    """Check the structure, and with `bulk` every record's CRC. Raises OSError and Interrupted."""
    try:
        records = {record.name: record for record in zip_layout.read_records(source)}
        return _examine(source, records, suffix, bulk=bulk)
    except zip_layout.NotZip:
        verdict, reason = Verdict.BAD, f"torn: {source.size} bytes, and no zip directory at its end"
    except zip_layout.ZipDamaged as error:
        verdict, reason = Verdict.BAD, str(error)
    except zip_layout.Unsupported as error:
        verdict, reason = Verdict.UNVERIFIABLE, str(error)
    except Short:
        verdict, reason = Verdict.BAD, "the file became shorter than its zip directory says"
    if suffix in TORCH_SUFFIXES or _begins_as_torch(source):
        return Examination(verdict, reason)
    return Examination(Verdict.FOREIGN, "a damaged zip that is neither named nor begun like a checkpoint")


def scan_of(source: FileReader) -> PickleScan | None:
    """Scan data.pkl of a sound file; None where it cannot be had. Raises OSError and Interrupted."""
    try:
        records = {record.name: record for record in zip_layout.read_records(source)}
        pickled = next((record for name, record in records.items() if name.endswith(b"/data.pkl") and name.count(b"/") == 1), None)
        if pickled is None:
            return None
        scan = _read_objects(source, pickled, has_crcs=any(record.crc for record in records.values()))[0]
        return None if scan is None else replace(scan, facts=(*scan.facts, *_counted(source, records, pickled, scan)))
    except (zip_layout.NotZip, zip_layout.ZipDamaged, zip_layout.Unsupported, Short):
        return None


def _counted(
    source: FileReader, records: dict[bytes, ZipRecord], pickled: ZipRecord, scan: PickleScan
) -> Iterator[tuple[str, frozenset[int]]]:
    """Return the largest of the optimizer's counts of steps: a parameter that is trained now and then counts fewer. Raises Short."""
    kinds = {storage.key: storage.kind for storage in scan.storages}
    counts: list[float] = []
    for number in scan.counts:
        layout = _COUNTS.get(kinds.get(number.key, ""))
        record = records.get(pickled.name.removesuffix(b"data.pkl") + b"data/" + number.key.encode("utf-8", "replace"))
        if layout is not None and record is not None and record.method == zip_layout.STORED:
            at = number.offset * layout.size
            if at + layout.size <= record.size_bytes:
                counts += layout.unpack(source.read(record.data + at, layout.size))
    whole = [int(count) for count in counts if math.isfinite(count)]
    if whole:
        yield facts.COUNTED, frozenset((max(whole),))


def _begins_as_torch(source: FileReader) -> bool:
    """Return whether the first record is torch's: torch.save writes data.pkl first."""
    head = source.read(0, min(EDGE_BYTES, source.size))
    return head.startswith(zip_layout.LOCAL_MAGIC) and zip_layout.first_name(head).endswith(b"/data.pkl")


def _examine(source: FileReader, records: dict[bytes, ZipRecord], suffix: str, *, bulk: bool) -> Examination:
    prefix = next(iter(records), b"").partition(b"/")[0]
    if members := _members(source, records):
        return _examine_members(source, records, members, bulk=bulk)
    if other := _without_objects(records, prefix, suffix):
        return other
    pickled = records.get(prefix + b"/data.pkl")
    if pickled is None:
        zip_layout.damaged("record data.pkl is missing")
    if prefix + b"/version" not in records and prefix + b"/.data/version" not in records:
        zip_layout.damaged("record version is missing")
    # a CRC of zero everywhere is how torch writes "no CRC"; one record of zero among others is a damaged one
    has_crcs = any(record.crc for record in records.values())
    scan, unread = _read_objects(source, pickled, has_crcs=has_crcs)
    if scan is None:
        return Examination(Verdict.UNVERIFIABLE, unread)
    place, framework = torch_pickle.place(scan), torch_pickle.framework(scan)
    if refused := torch_pickle.refusal(scan.dangers):
        return replace(refused, place=place, format=framework)
    try:
        proven = _prove(source, records, prefix, scan, has_crcs=has_crcs, bulk=bulk)
        return replace(proven, place=place, format=framework, unlisted=scan.unlisted)
    except zip_layout.ZipDamaged as error:
        return Examination(Verdict.BAD, str(error), place, format=framework)


def _members(source: FileReader, records: dict[bytes, ZipRecord]) -> dict[bytes, FileReader]:
    """Return the files of torch.save that an archive holds as they are (stable-baselines3); nothing for a file of torch.save itself."""
    if any(name.endswith(b"/data.pkl") for name in records):
        return {}
    named = (
        record
        for name, record in records.items()
        if b"/" not in name and name.endswith(_MEMBER_SUFFIXES) and record.method == zip_layout.STORED
    )
    parts = {zip_record.name: source.window(zip_record.data, zip_record.packed_bytes) for zip_record in named}
    return {name: member for name, member in parts.items() if _begins_as_torch(member)}


def _examine_members(source: FileReader, records: dict[bytes, ZipRecord], members: dict[bytes, FileReader], *, bulk: bool) -> Examination:
    """Examine each member as the file that it is, and with `bulk` the other records' CRCs. The worst decides."""
    examinations = {name: examine(member, TORCH_SUFFIXES[0], bulk=bulk) for name, member in members.items()}
    try:
        for record in records.values() if bulk else ():
            if record.name not in members:
                _check_record(source, record, None, has_crcs=True)
    except zip_layout.ZipDamaged as error:
        return Examination(Verdict.BAD, str(error))
    for verdict in (Verdict.BAD, Verdict.DANGEROUS, Verdict.UNVERIFIABLE, Verdict.FOREIGN):
        for name, member in examinations.items():
            if member.verdict is verdict:
                return replace(member, reason=f"{zip_layout.show(name)}: {member.reason}", place=NOWHERE)
    non_finite = tuple(tensor for examination in examinations.values() for tensor in examination.non_finite)
    unlisted = tuple(dict.fromkeys(name for examination in examinations.values() for name in examination.unlisted))
    return Examination(Verdict.VERIFIED, level=LEVEL if bulk else "directory", non_finite=non_finite, unlisted=unlisted)


def _prove(  # noqa: PLR0913 -- the file, its content, and the parts to look at
    source: FileReader, records: dict[bytes, ZipRecord], prefix: bytes, scan: PickleScan, *, has_crcs: bool, bulk: bool
) -> Examination:
    """Check what data.pkl refers to, and with `bulk` every record. Raises Damaged."""
    storages = _check_storages(scan, records, prefix)
    without = Examination(Verdict.UNVERIFIABLE, "it was saved without CRCs: nothing in it proves its records whole")
    if not bulk:
        return Examination(Verdict.VERIFIED, torch_pickle.note(scan), level="directory") if has_crcs else without
    non_finite = []
    for record in records.values():
        storage = storages.get(record.name)
        if has_crcs or (storage is not None and numerics.kind_of(storage.kind) is not None):
            non_finite.append(_check_record(source, record, storage, has_crcs=has_crcs))
    whole = Examination(Verdict.VERIFIED, torch_pickle.note(scan), level=LEVEL) if has_crcs else without
    return replace(whole, non_finite=listed(entry for entry in non_finite if entry is not None))


def _without_objects(records: dict[bytes, ZipRecord], prefix: bytes, suffix: str) -> Examination | None:
    """Return what a zip without objects is: no checkpoint, or the rest of a failed torch.save. None if it has objects, or lost them.

    torch.save that raises closes its file all the same: that is a whole zip of its own records without the objects, or of nothing.
    """
    is_named_so = suffix in (*TORCH_SUFFIXES, ".bin")
    if all(name.startswith(prefix + b"/") and name[len(prefix) + 1 :] in _BESIDE_OBJECTS for name in records) and (records or is_named_so):
        return Examination(Verdict.BAD, "torn: a save that failed before its first object left a zip without data.pkl")
    if prefix + b"/constants.pkl" in records:
        return Examination(Verdict.FOREIGN, "a TorchScript export: not a checkpoint")
    if prefix + b"/data.pkl" in records or (prefix + b"/version" in records and prefix + b"/data/0" in records):
        return None
    return Examination(Verdict.FOREIGN, "a zip file without data.pkl: not a checkpoint")


def _read_objects(source: FileReader, pickled: ZipRecord, *, has_crcs: bool) -> tuple[PickleScan | None, str]:
    """Scan data.pkl; None and the reason where it is longer than we are willing to read. Raises Damaged."""
    if pickled.size_bytes > _MAX_PICKLE_BYTES:
        return None, f"data.pkl has {pickled.size_bytes} bytes: too many to check whether it would run code"
    if has_crcs:
        _check_record(source, pickled, None, has_crcs=True)
    try:
        scan = scanner.scan(b"".join(bytes(piece) for piece in _unpacked(source, pickled)))
    except scanner.NotAPickle as error:
        if error.dangers:
            return PickleScan((), None, (), dangers=error.dangers), ""
        zip_layout.damaged(f"data.pkl is not a whole pickle: {error}")
    except scanner.TooLong as error:
        if error.dangers:
            return PickleScan((), None, (), dangers=error.dangers), ""
        return None, "data.pkl has too many objects to check whether it would run code"
    return scan, ""


def _check_storages(scan: PickleScan, records: dict[bytes, ZipRecord], prefix: bytes) -> dict[bytes, Storage]:
    """Return the storage that each record holds. Raises Damaged where one is missing or short."""
    storages: dict[bytes, Storage] = {}
    for storage in scan.storages:
        name = prefix + b"/data/" + storage.key.encode()
        record = records.get(name)
        if record is None:
            zip_layout.damaged(f"record data/{storage.key} is missing")
        wanted = storage.count * torch_pickle.item_bytes(storage.kind)
        if record.size_bytes < wanted:
            zip_layout.damaged(f"record data/{storage.key} has {record.size_bytes} of {wanted} bytes")
        storages[name] = storage
    return storages


def _check_record(source: FileReader, record: ZipRecord, storage: Storage | None, *, has_crcs: bool) -> NonFinite | None:
    """Read a record once: compare its CRC, and return the values that are not finite if it holds floating numbers. Raises Damaged."""
    kind = None if storage is None else numerics.kind_of(storage.kind)
    numbers = None if kind is None else numerics.NumericsScan(kind)
    begin, length = (0, 0) if storage is None else torch_pickle.span(storage)
    crc = at = 0
    for piece in _unpacked(source, record):
        if has_crcs:
            crc = zlib.crc32(piece, crc)
        if numbers is not None:
            numbers.feed(piece[max(0, begin - at) : max(0, begin + length - at)])
        at += len(piece)
    if has_crcs and crc != record.crc:
        zip_layout.damaged(f"record {zip_layout.show(record.name)}: its CRC is {crc:08x} where {record.crc:08x} was saved")
    return numbers.found(torch_pickle.name_of(storage)) if numbers is not None and storage is not None else None


def _unpacked(source: FileReader, record: ZipRecord) -> Iterator[memoryview | bytes]:
    """Yield a record's bytes as saved, in pieces of at most CHUNK_BYTES. Files of torch's own are never compressed; repacked ones are."""
    name = zip_layout.show(record.name)
    if record.method == zip_layout.STORED:
        if record.packed_bytes != record.size_bytes:
            zip_layout.damaged(f"the two sizes of record {name} disagree")
        yield from source.bulk(record.data, record.packed_bytes)
        return
    if record.method != zip_layout.DEFLATED:
        zip_layout.unsupported(f"record {name} is compressed by method {record.method}")
    inflater, total = zlib.decompressobj(-zlib.MAX_WBITS), 0
    try:
        for packed in source.bulk(record.data, record.packed_bytes):
            rest: memoryview | bytes = packed
            while len(rest) and total <= record.size_bytes:
                piece = inflater.decompress(rest, CHUNK_BYTES)
                rest, total = inflater.unconsumed_tail, total + len(piece)
                yield piece
    except zlib.error as error:
        zip_layout.damaged(f"record {name} does not decompress: {error}")
    if not inflater.eof or total != record.size_bytes:
        zip_layout.damaged(f"record {name} does not decompress to its {record.size_bytes} bytes")
