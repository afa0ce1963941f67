"""The file in shared memory that a snapshot lives in: its layout, its name, and the room for it.

Pure layout and small questions to the system; no torch. Written by checkpointing/training/snapshot.py in the trainer, read by
checkpointing/training/snapshot_writer.py in whatever process outlives it. All numbers little-endian, offsets in bytes from the beginning
of the file.

    name     /dev/shm/checkpointing-<uid>-<first 16 hex digits of sha256(real path of the target directory)>-<pid>-<8 hex digits>
    0        magic "CKPTSNAP" · u32 version · u32 length of the JSON · u32 its CRC-32 · JSON of `Layout`
    slots[i] u64 valid · u64 seq · i64 step · f64 wall time in s · u64 bytes of meta · u32 records · u32 CRC-32 of seq…records and meta
             at +64: u64 crcs_seq: the seq that the table of CRCs belongs to
             at +crcs: u32 per record, the CRC-32 of its bytes
             at +meta: JSON [[name, offset in data, bytes], …] · NUL · data.pkl, as torch.save would write it
             at +data: the bytes of the records

A slot is good where `valid` == `seq` != 0 and its CRC holds. Its writer sets `valid` to 0 first and to `seq` last; the other slot is not
touched meanwhile, so one of the two is good from the end of the first snapshot on. The CRCs of the bulk come later, from another thread of
the trainer: where `crcs_seq` == `seq` they must hold too. This guards against the death of a process at any instruction, not against that
of the machine. The owner holds a POSIX lock on the file for as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io.birth_time import birth_time_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

SHM: Final = "/dev/shm"  # noqa: S108 -- the place of shared memory: files of mode 0600, and only our own are read
MAGIC: Final = b"CKPTSNAP"
VERSION: Final = 1
_NO_VERSION: Final = 100  # a number that large is damage
PAGE: Final = 4096
ALIGN: Final = 64  # as torch aligns the records of its own files
CRCS_SEQ_AT: Final = 64
_PREFIX: Final = "checkpointing"
_HEAD: Final = struct.Struct("<8sLLL")
_VALID: Final = struct.Struct("<Q")
_SLOT: Final = struct.Struct("<QqdQL")
_CRC: Final = struct.Struct("<L")


class OtherVersion(ValueError):  # noqa: N818 -- a fact about the segment, not an error of ours
    """It is a segment that another version of this package made."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is. `directory` is the target; `place` its inode and time of birth (ns; 0 unknown): another one of that name is not.

    An inode alone is given again at once to the next directory, and a device has another number after it was mounted anew.
    """

    directory: str
    place: tuple[int, int]
    slots: tuple[int, int]
    crcs: int
    meta: int
    data: int
    data_bytes: int
    size: int

    @classmethod
    def of(cls, directory: str, records: int, meta_bytes: int, data_bytes: int) -> Layout:
        """Lay out two slots for as many records and bytes."""
        meta = up(PAGE + 4 * records, PAGE)
        data = up(meta + meta_bytes, PAGE)
        slot = up(data + data_bytes, PAGE)
        return cls(directory, _place(directory), (PAGE * 2, PAGE * 2 + slot), PAGE, meta, data, data_bytes, PAGE * 2 + 2 * slot)

    def is_target(self) -> bool:
        """Return whether the directory is there. Raises OSError where that cannot be known: a file system that does not answer."""
        try:
            return _place(self.directory) == self.place
        except (FileNotFoundError, NotADirectoryError):
            return False

    def encode(self) -> bytes:
        """Return the head of the file."""
        text = json.dumps(asdict(self)).encode()
        return _HEAD.pack(MAGIC, VERSION, len(text), zlib.crc32(text)) + text

    @classmethod
    def decode(cls, raw: bytes) -> Layout:
        """Read the head of the file. Raises ValueError, which says what is wrong with it; OtherVersion where nothing is."""
        if len(raw) < _HEAD.size:
            raise ValueError("it is shorter than its head")
        magic, version, length, crc = _HEAD.unpack_from(raw)
        text = raw[_HEAD.size : _HEAD.size + length]
        if magic == MAGIC and version != VERSION and 0 < version < _NO_VERSION:
            raise OtherVersion(f"it is a snapshot of version {version}, which this one ({VERSION}) does not read")
        if magic != MAGIC or version != VERSION or zlib.crc32(text) != crc:
            raise ValueError("its head is not that of a snapshot of this version")
        row = json.loads(text)
        row["place"], row["slots"] = tuple(row["place"]), tuple(row["slots"])
        return cls(**row)


@dataclass(frozen=True, slots=True)
class Slot:
    """What a good slot holds. `records` are (name, offset from the slot's data, bytes); `crcs` None where the bulk has none yet."""

    index: int
    seq: int
    step: int
    t: float
    pickled: bytes
    records: tuple[tuple[str, int, int], ...]
    crcs: tuple[int, ...] | None


def up(number: int, to: int) -> int:
    """Round up to a multiple."""
    return -(-number // to) * to


def seq_of(view: memoryview, at: int) -> int:
    """Return the number of the snapshot that the slot at `at` holds; 0 while it is being written."""
    number: int = _VALID.unpack_from(view, at)[0]
    return number


def invalidate(view: memoryview, at: int) -> None:
    """Mark the slot at `at` as being written."""
    _VALID.pack_into(view, at, 0)


def complete(view: memoryview, at: int, layout: Layout, seq: int, step: int, t: float, records: int, meta: bytes) -> None:  # noqa: PLR0913, PLR0917 -- the fields of the slot
    """Write everything but the data of a slot, `valid` last."""
    view[at + layout.meta : at + layout.meta + len(meta)] = meta
    fields = _SLOT.pack(seq, step, t, len(meta), records)
    view[at + 8 : at + 8 + len(fields)] = fields
    _CRC.pack_into(view, at + 8 + len(fields), zlib.crc32(meta, zlib.crc32(fields)))
    _VALID.pack_into(view, at, seq)


def set_crcs(view: memoryview, at: int, layout: Layout, seq: int, crcs: list[int]) -> None:
    """Write the CRCs of a slot's records, the number that makes them count last."""
    struct.pack_into(f"<{len(crcs)}L", view, at + layout.crcs, *crcs)
    _VALID.pack_into(view, at + CRCS_SEQ_AT, seq)


def read_slot(view: memoryview, layout: Layout, index: int) -> Slot | None:
    """Read the description of a slot; None if the slot is not good."""
    at = layout.slots[index]
    (valid,) = _VALID.unpack_from(view, at)
    seq, step, t, meta_bytes, count = _SLOT.unpack_from(view, at + 8)
    (crc,) = _CRC.unpack_from(view, at + 8 + _SLOT.size)
    if not valid or valid != seq or meta_bytes > layout.data - layout.meta:
        return None
    meta = bytes(view[at + layout.meta : at + layout.meta + meta_bytes])
    if zlib.crc32(meta, zlib.crc32(bytes(view[at + 8 : at + 8 + _SLOT.size]))) != crc:
        return None
    table, _, pickled = meta.partition(b"\0")
    records = tuple((str(name), int(offset), int(size)) for name, offset, size in json.loads(table))
    (crcs_seq,) = _VALID.unpack_from(view, at + CRCS_SEQ_AT)
    crcs = struct.unpack_from(f"<{count}L", view, at + layout.crcs) if crcs_seq == seq else None
    return Slot(index, seq, step, t, pickled, records, crcs)


def encode_meta(records: list[tuple[str, int, int]], pickled: bytes) -> bytes:
    """Return a slot's meta: what it holds, and the pickle."""
    return json.dumps(records).encode() + b"\0" + pickled


# names and owners


def new_path(directory: str, shm: str = SHM) -> str:
    """Return the path of a new segment of this process for a target directory."""
    return f"{shm}/{_stem(directory)}-{os.getpid()}-{secrets.token_hex(4)}"


def find(directory: str | None, shm: str = SHM) -> Iterator[str]:
    """Return the paths of segments for this directory, or for any, that belong to this user and not to this process."""
    stem = _stem(directory) if directory is not None else f"{_PREFIX}-{os.geteuid()}"
    with contextlib.suppress(OSError), os.scandir(shm) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            with contextlib.suppress(FileNotFoundError):  # its owner ended, or somebody rescued it
                # opening one of our own, and closing it, would give up its lock
                if entry.name.startswith(f"{stem}-") and entry.is_file(follow_symlinks=False) and not _is_own(entry.path):
                    yield entry.path


def lock(fd: int) -> bool:
    """Take the owner's lock; False where its owner, or another rescuer, lives. A POSIX lock: a forked child does not hold it."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _place(directory: str) -> tuple[int, int]:
    return os.stat(directory).st_ino, birth_time_ns(directory) or 0  # noqa: PTH116 -- paths are plain strings throughout the package


def _is_own(path: str) -> bool:
    """Return whether it is this process's: its number alone does not tell, for in each container they begin at 1."""
    if not path.rpartition("-")[0].endswith(f"-{os.getpid()}"):
        return False
    st = os.stat(path)  # noqa: PTH116 -- as above
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 -- as above
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), st):
                return True
    return False


def _stem(directory: str) -> str:
    real = os.path.realpath(directory)  # -- as above
    return f"{_PREFIX}-{os.geteuid()}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:16]}"


# room
