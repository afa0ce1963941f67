"""A directory as a mirror: a local disk, NFS, Lustre.

An upload in parts is one file beside its target, `<name>.part-<id>`. Parts are written at their positions, and `<name>.part-<id>.log` gets
a line for each after its bytes were synced. The synced file is renamed to its target. A kill at any byte leaves such a pair, or the log
alone: `list(unfinished=True)` finds both. The id is 16 hexadecimal digits: any other name with `.part-` in it is an object's own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable
from checkpointing.io.reader import CHUNK_BYTES
from checkpointing.manifest import digest
from checkpointing.mirror.backends import (
    BackendError,
    NotFound,
    PermissionDenied,
    Stored,
    StoredPart,
    TransferDamaged,
    Unavailable,
    Upload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkpointing.mirror.backends import Body

_PART: Final = ".part-"
_LOG: Final = ".log"
_NAME_BYTES: Final = 255  # of a name, on every file system of Linux
_UNFINISHED: Final = re.compile(r"(?P<name>.+)\.part-(?P<id>[0-9a-f]{16})(?P<log>\.log)?")
_LASTING: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR}


class FileBackend:
    """Copies under a directory."""

    def __init__(self, root: str) -> None:
        self._root = os.path.normpath(root)

    @property
    def url(self) -> str:
        """The directory."""
        return self._root

    def put(self, key: str, body: Body) -> Stored:
        """Write beside, sync, and rename into place."""
        target = self._path(key)
        self._check_mounted()
        with _translated("write", target):
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 -- strings throughout the package
            beside = _beside(target, secrets.token_hex(8))
            try:
                with open(beside, "xb", buffering=0) as file:  # noqa: PTH123
                    _write(file.fileno(), 0, body, target)
                    os.fsync(file.fileno())
                os.replace(beside, target)  # noqa: PTH105
                durable.sync_directory(os.path.dirname(target))  # noqa: PTH120
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(beside)  # noqa: PTH108
        return self.stat(key)

    def begin(self, key: str, upload_id: str = "") -> Upload:
        """Make the two files, or read the log of an upload."""
        target = self._path(key)
        self._check_mounted()
        with _translated("open an upload", target):
            if upload_id:
                return Upload(key, upload_id, _arrived(_beside(target, upload_id), target))
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
            upload_id = secrets.token_hex(8)
            beside = _beside(target, upload_id)
            for name in (beside, f"{beside}{_LOG}"):
                with open(name, "xb"):  # noqa: PTH123
                    pass
            durable.sync_directory(os.path.dirname(target))  # noqa: PTH120
        return Upload(key, upload_id)

    def put_part(self, upload: Upload, number: int, body: Body) -> StoredPart:
        """Write the part at its position, sync it, and log it."""
        target = self._path(upload.key)
        beside = _beside(target, upload.id)
        part = StoredPart(number, body.n_bytes, digest.to_hex(body.crc64nvme), body.crc64nvme)
        with _translated("write a part", beside):
            fd = os.open(beside, os.O_WRONLY | os.O_CLOEXEC)
            try:
                _write(fd, body.offset, body, target)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            line = json.dumps({"part": number, "bytes": body.n_bytes, "offset": body.offset, "crc64nvme": part.token}) + "\n"
            log = os.open(f"{beside}{_LOG}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                # the first newline ends a torn line; an empty line is skipped
                os.write(log, ("\n" + line).encode("ascii"))
                os.fdatasync(log)
            finally:
                os.close(log)
        return part

    def complete(self, upload: Upload, parts: Sequence[StoredPart], crc64nvme: int) -> Stored:
        """Cut to length and rename into place."""
        target = self._path(upload.key)
        beside = _beside(target, upload.id)
        there = {part.number: part.token for part in self.begin(upload.key, upload.id).parts}
        if any(there.get(part.number) != part.token for part in parts):
            message = f"cannot complete: {target}: a part is missing"
            raise TransferDamaged(message, hint="it is uploaded again")
        size = sum(part.n_bytes for part in parts)
        with _translated("complete", beside):
            fd = os.open(beside, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, size)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(beside, target)  # noqa: PTH105
            durable.sync_directory(os.path.dirname(target))  # noqa: PTH120
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{beside}{_LOG}")  # noqa: PTH108
        return Stored(upload.key, size, crc64nvme=crc64nvme)

    def stat(self, key: str) -> Stored:
        """Stat the file."""
        with _translated("stat", self._path(key)):
            st = os.stat(self._path(key))  # noqa: PTH116
        return Stored(key, st.st_size, at=st.st_mtime)

    def read(self, key: str, offset: int, n_bytes: int) -> Iterator[bytes]:
        """Read a range."""
        path = self._path(key)
        with _translated("read", path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while n_bytes:
                    piece = os.pread(fd, min(CHUNK_BYTES, n_bytes), offset)
                    if not piece:
                        message = f"cannot read: {path}: it ends early"
                        raise TransferDamaged(message, hint="the copy is torn: another one is tried")
                    yield piece
                    offset += len(piece)
                    n_bytes -= len(piece)
            finally:
                os.close(fd)

    def list(self, prefix: str, *, unfinished: bool = False, shallow: bool = False) -> Iterator[Stored]:
        """Walk the directories below."""
        self._check_mounted()  # an unmounted mirror must not look empty
        with _translated("list", self._root):
            top = os.path.dirname(self._path(prefix + "x"))  # noqa: PTH120
            for directory, names, files in os.walk(top, onerror=_unless_missing):
                if shallow:
                    keys = (f"{os.path.relpath(os.path.join(directory, name), self._root)}/" for name in sorted(names))  # noqa: PTH118
                    yield from (Stored(key) for key in keys if key.startswith(prefix))
                    names.clear()
                there = set(files)
                for name in sorted(files):
                    path = os.path.join(directory, name)  # noqa: PTH118
                    beside = _UNFINISHED.fullmatch(name)
                    if beside and beside["log"] and name.removesuffix(_LOG) in there:
                        continue
                    key = os.path.relpath(os.path.join(directory, beside["name"]) if beside else path, self._root)  # noqa: PTH118
                    if not key.startswith(prefix) or bool(beside) is not unfinished:
                        continue
                    try:
                        st = os.lstat(path)
                    except FileNotFoundError:
                        continue
                    yield Stored(key, st.st_size, upload_id=beside["id"] if beside else "", at=st.st_mtime)

    def remove(self, key: str, upload_id: str = "") -> None:
        """Unlink, and remove the directories that became empty."""
        target = self._path(key)
        beside = _beside(target, upload_id)
        names = (beside, f"{beside}{_LOG}") if upload_id else (target,)
        with _translated("remove", target):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)  # noqa: PTH108
            directory = os.path.dirname(target)  # noqa: PTH120
            with contextlib.suppress(OSError):  # not empty, or gone
                while len(directory) > len(self._root):
                    os.rmdir(directory)  # noqa: PTH106
                    directory = os.path.dirname(directory)  # noqa: PTH120

    def _check_mounted(self) -> None:
        """Raise PermissionDenied without the root. It is never made: an unmounted mirror would fill the disk below it."""
        if not os.path.isdir(self._root):  # noqa: PTH112
            message = f"cannot mirror: {self._root}: no such directory: is it mounted?"
            raise PermissionDenied(message, hint="make the directory, or mount the file system that it is on")

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if ".." in parts or key.startswith("/"):
            message = f"cannot use a key: {key!r}: it leads out of {self._root}"
            raise BackendError(message, hint="report this: a key is made by us")
        return os.path.join(self._root, *parts)  # noqa: PTH118


def _beside(target: str, upload_id: str) -> str:
    """Return the path of an upload. The end of a name that would be too long is left out: such an upload is begun anew after a kill."""
    directory, name = os.path.split(target)
    end = f"{_PART}{upload_id}"
    kept = os.fsdecode(os.fsencode(name)[: _NAME_BYTES - len(end) - len(_LOG)])
    return os.path.join(directory, f"{kept}{end}")  # noqa: PTH118 -- strings throughout the package


def _write(fd: int, offset: int, body: Body, target: str) -> None:
    crc = 0
    end = offset + body.n_bytes
    for piece in body.pieces():
        crc = digest.of_bytes(piece, crc)
        at = 0
        while at < len(piece):
            at += os.pwrite(fd, piece[at:], offset + at)
        offset += len(piece)
    if offset != end or crc != body.crc64nvme:
        message = f"cannot write: {target}: the checksums differ"
        raise TransferDamaged(message, hint="the source changed while it was copied")


def _arrived(beside: str, target: str) -> tuple[StoredPart, ...]:
    """Return the parts that the log and the file have. If pages of a part were lost, the restore finds that by the checksum."""
    try:
        size = os.stat(beside).st_size  # noqa: PTH116
        with open(f"{beside}{_LOG}", "rb") as log:  # noqa: PTH123
            lines = log.read().splitlines()
    except FileNotFoundError:
        message = f"no such upload: {target}"
        raise NotFound(message, hint="it is uploaded again") from None
    parts: dict[int, StoredPart] = {}
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            crc = digest.from_hex(row["crc64nvme"])
            if row["offset"] + row["bytes"] <= size:
                parts[row["part"]] = StoredPart(row["part"], row["bytes"], row["crc64nvme"], crc)
    return tuple(parts[number] for number in sorted(parts))


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextlib.contextmanager
def _translated(operation: str, path: str) -> Iterator[None]:
    """Turn an OSError into a BackendError."""
    try:
        yield
    except FileNotFoundError as error:
        message = f"cannot {operation}: {path}: {error.strerror}"
        raise NotFound(message, hint="check the mirror's address") from error
    except OSError as error:
        message = f"cannot {operation}: {path}: {error.strerror or error}"
        if error.errno in _LASTING:
            raise PermissionDenied(message, hint="check the directory's permission and space; it is tried again") from error
        raise Unavailable(message, hint="it is tried again") from error
