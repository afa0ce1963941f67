"""Makes checkpoints on disk of what trainers left in shared memory, whether or not the trainer lives.

    python -P -m checkpointing.training.snapshot_writer [--discard] [DIRECTORY]        what dead trainers left for a directory, or for any

It needs no torch and unpickles nothing: the pickle in the segment is torch's own, and is copied into a file as torch.save writes it. A
segment goes once its content is durable on disk. What is wrong with a segment is data (`Rescued.problem`), never an exception.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from checkpointing.io import durable, staging
from checkpointing.io.birth_time import birth_time_ns
from checkpointing.model import CheckpointingError, Verdict
from checkpointing.training import snapshot_layout
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkpointing.training.snapshot_layout import Layout, Slot

KEEP: Final = 2
_NAME: Final = re.compile(r"step-(\d{8,18})\.snapshot\.pt")
_TO_DROP: Final = "drop it by: python -P -m checkpointing.training.snapshot_writer --discard DIRECTORY"
_PIECE_BYTES: Final = 4 << 20
_PADDING: Final = 0x4246  # torch's own mark of a padding field, "FB"
_LOCAL_BYTES: Final = 30
_ZIP64_EXTRA_BYTES: Final = 20
_ZIP64_FROM: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Rescued:
    """What became of one segment: the file that was made of it ("" where none was) and its step, or what stood against it.

    `stays`: it is left in memory, for whoever can use it.
    """

    segment: str
    path: str = ""
    step: int | None = None
    problem: str = ""
    stays: bool = False


class _Stale(Exception):  # noqa: N818 -- a fact about the slot, not an error of ours
    """The slot was replaced, or its content does not match its CRCs."""


def rescue(directory: str | None = None, *, keep: int = KEEP, shm: str = snapshot_layout.SHM) -> list[Rescued]:
    """Write what dead trainers left for `directory` (None: for any) to disk, and free the memory. Segments of living ones are left alone.

    Where a directory is gone, or another has its name, its snapshots are dropped: nobody waits for them. Those of a directory that is not
    mounted stay, and those that another version of this package made. Never raises.
    """
    return [found for path in snapshot_layout.find(directory, shm) if (found := _rescue(path, keep)) is not None]


def discard(directory: str, *, shm: str = snapshot_layout.SHM) -> list[str]:
    """Free what dead trainers left for `directory` without writing it: the training ended as it should. Gives the segments' paths."""
    gone = []
    for path in snapshot_layout.find(directory, shm):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_uid == os.geteuid() and snapshot_layout.lock(fd):
                    os.unlink(path)  # noqa: PTH108 -- paths are plain strings throughout the package
                    gone.append(path)
            finally:
                os.close(fd)
    return gone


def persist(path: str, *, slot: int | None = None, seq: int | None = None, keep: int = KEEP) -> Rescued:
    """Write the newest good slot of a segment (or the one that is named, while it holds `seq`), also of a living trainer's.

    Raises OSError where the disk or the segment cannot be used; what the segment's content says is in the answer.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _persist(path, fd, slot, seq, keep)
    finally:
        os.close(fd)


def _rescue(path: str, keep: int) -> Rescued | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Rescued(path, problem=f"it could not be opened: {error.strerror}")
    try:
        # anybody may put files into shared memory: only this user's are taken for snapshots
        if os.fstat(fd).st_uid != os.geteuid() or not snapshot_layout.lock(fd) or not durable.is_at(fd, path):
            return None
        found = _persist(path, fd, None, None, keep)
    except OSError as error:  # a full disk: the memory stays, for another try
        return Rescued(path, problem=f"it could not be written to disk: {error.strerror}: {error.filename or 'there'}")
    else:
        if not found.stays:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 -- as above
        return found
    finally:
        os.close(fd)


def _persist(path: str, fd: int, slot: int | None, seq: int | None, keep: int) -> Rescued:
    if os.fstat(fd).st_size < 2 * snapshot_layout.PAGE:
        return Rescued(path, problem="no snapshot was ever made in it")
    with contextlib.closing(mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)) as memory, memoryview(memory) as view:
        layout = _usable(view, path)
        if isinstance(layout, Rescued):
            return layout
        problem = "neither of its slots is whole"
        for good in _good_slots(view, layout, slot, seq):
            final = f"{layout.directory}/step-{good.step:08d}.snapshot.pt"
            try:
                if not _is_on_disk(final, good):
                    _write(view, layout, good, final)
            except _Stale as error:
                problem = str(error)
                continue
            _prune(layout.directory, keep, good.step)
            return Rescued(path, final, good.step)
        return Rescued(path, problem=problem)


def _usable(view: memoryview, path: str) -> Layout | Rescued:
    """Return the layout of a segment, or why it cannot be used now."""
    try:
        layout = snapshot_layout.Layout.decode(bytes(view[: snapshot_layout.PAGE * 2]))
    except snapshot_layout.OtherVersion as error:
        return Rescued(path, problem=f"{error}: {_TO_DROP}", stays=True)
    except ValueError as error:
        return Rescued(path, problem=str(error))
    is_target = layout.is_target()
    if not is_target and not _was_taken_away(layout.directory, birth_time_ns(path)):
        return Rescued(path, problem=f"its directory is not mounted: {layout.directory}: mount it, or {_TO_DROP}", stays=True)
    if not is_target or layout.size > len(view):
        return Rescued(path, problem=f"its directory is gone: {layout.directory}")
    return layout


def _was_taken_away(directory: str, since_ns: int | None) -> bool:
    """Return whether a directory that is not there any more, or is another one, may have been removed since then (ns of wall time).

    Who removes it or gives its name to another changes the time of the directory above. Where that is older, nobody did: what was there
    was a file system that is not mounted now.
    """
    above = os.path.dirname(directory)  # noqa: PTH120 -- as above
    while not os.path.isdir(above):  # noqa: PTH112 -- as above
        above = os.path.dirname(above)  # noqa: PTH120 -- as above
    return since_ns is None or os.stat(above).st_mtime_ns >= since_ns  # noqa: PTH116 -- as above


def _is_on_disk(final: str, slot: Slot) -> bool:
    """Return whether a slot was written to `final` before: a whole one of this step may also be that of an earlier run that came as far."""
    try:
        is_later = os.stat(final).st_mtime >= slot.t  # noqa: PTH116 -- as above
    except OSError:
        return False
    return is_later and verify(final, own=True).verdict is Verdict.VERIFIED


def _good_slots(view: memoryview, layout: Layout, slot: int | None, seq: int | None) -> list[Slot]:
    """Return the good slots, the newest first."""
    found = [one for index in (0, 1) if slot in (None, index) and (one := snapshot_layout.read_slot(view, layout, index)) is not None]
    return sorted((one for one in found if seq in (None, one.seq)), key=lambda one: -one.seq)


def _write(view: memoryview, layout: Layout, slot: Slot, final: str) -> None:
    """Write a slot as torch.save would have. Raises _Stale where the slot is not what it says, OSError."""
    base = layout.slots[slot.index] + layout.data
    # buffered, for a raw file may take a part of what it is given, and zipfile does not ask
    with staging.new_file(final) as place, os.fdopen(os.dup(place.fd), "wb") as raw:
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
            _add(archive, raw, "data.pkl", memoryview(slot.pickled))
            for name, text in ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", sys.byteorder.encode())):
                _add(archive, raw, name, memoryview(text))
            for number, (name, offset, size) in enumerate(slot.records):
                with view[base + offset : base + offset + size] as piece:
                    crc = _add(archive, raw, name, piece)
                if slot.crcs is not None and slot.crcs[number] != crc:
                    raise _Stale(f"record {name} of step {slot.step} does not hold what was put there")
            _add(archive, raw, "version", memoryview(b"3\n"))
        now = snapshot_layout.read_slot(view, layout, slot.index)
        if now is None or now.seq != slot.seq:
            raise _Stale(f"step {slot.step} was replaced while it was written to disk")
        raw.flush()
        staging.put(place)


def _add(archive: zipfile.ZipFile, raw: BinaryIO, name: str, data: memoryview) -> int:
    """Add one record, its bytes aligned as torch aligns them, and give its CRC-32."""
    info = zipfile.ZipInfo(f"archive/{name}")
    big = len(data) >= _ZIP64_FROM
    at = raw.tell() + _LOCAL_BYTES + len(info.filename) + 4 + (_ZIP64_EXTRA_BYTES if big else 0)
    padding = -at % snapshot_layout.ALIGN
    info.extra = _PADDING.to_bytes(2, "little") + padding.to_bytes(2, "little") + bytes(padding)
    info.file_size = len(data)
    with archive.open(info, "w", force_zip64=big) as record:
        for start in range(0, len(data), _PIECE_BYTES):
            with data[start : start + _PIECE_BYTES] as piece:
                record.write(piece)
    return info.CRC


def _prune(directory: str, keep: int, step: int) -> None:
    """Remove, of the snapshots in `directory` up to `step`, all but the `keep` newest: they are ours."""
    with contextlib.suppress(OSError):
        steps = sorted((int(match[1]), name) for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))  # noqa: PTH208 -- as above
        for _, name in [row for row in steps if row[0] <= step][:-keep]:
            os.unlink(f"{directory}/{name}")  # noqa: PTH108 -- as above
        durable.sync_directory(directory)


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; 0 for done, 1 for a segment that could not be made a checkpoint of, 64 for a wrong command."""
    words = list(arguments)
    if words[:1] == ["--segment"] and len(words) == 6:  # noqa: PLR2004 -- how a trainer starts this: PATH SLOT SEQ NICE KEEP
        return _persist_live(*words[1:])
    dropping = "--discard" in words
    words = [word for word in words if word != "--discard"]
    if len(words) > 1 or (dropping and not words) or any(word.startswith("-") for word in words):
        sys.stderr.write(f"{__doc__}\n")
        return 64
    if dropping:
        sys.stdout.writelines(f"freed {path}\n" for path in discard(words[0]))
        return 0
    found = rescue(words[0] if words else None)
    sys.stdout.writelines(f"{one.path or one.segment}{f': {one.problem}' if one.problem else ''}\n" for one in found)
    return int(any(one.problem for one in found))


def _persist_live(path: str, slot: str, seq: str, nice: str, keep: str) -> int:
    with contextlib.suppress(OSError):
        os.nice(int(nice))
    try:
        found = persist(path, slot=int(slot), seq=int(seq), keep=int(keep))
    except (OSError, CheckpointingError) as error:
        found = Rescued(path, problem=str(error))
    if found.problem:
        sys.stderr.write(f"snapshot was not written to disk: {found.problem}\n")
    return int(bool(found.problem))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
