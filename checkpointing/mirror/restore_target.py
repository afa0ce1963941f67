"""The files beside the target of a restore: the download, its lock, and the framework's pointer.

A download is `.<name>.restore-<id>` beside its target, locked by `.<name>.restore-<id>.lock`: two nodes of one shared disk take turns, and
the second takes what the first restored. On a file system without locks nobody waits, and nothing is swept. The lock's file holds the
node's tag: what another node left is swept after a day (checkpointing/io/leftovers.py). Functions raise OSError if the disk fails.

A restored file has a mark: the microseconds of its modification time follow from the content. So another node knows without reading that
a restore wrote it, and that nobody changed it since. Where a file system keeps no microseconds, it is read.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable, leftovers, staging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checkpointing.manifest.documents import File, Manifest

_LOCK: Final = ".lock"
_MOMENTS, _MOMENT_S = 5, 0.02  # until who has taken a lock has written who that is
_LOOK_S: Final = 0.5
#: So long a restored file is taken by its mark. Later it may have rotted, which only its bytes tell.
_JUST_S: Final = 3600.0
_MOST_NAME: Final = 200
_BESIDE: Final = re.compile(r"(\..+\.restore-[0-9a-f]{16})(\.lock)?")
_MEGATRON: Final = re.compile(r"iter_(\d{7,18})|(release)")


def partial_path(target: str, manifest: Manifest) -> str:
    """Return the path of the download."""
    directory, name = os.path.split(target)
    return f"{directory}/.{name}.restore-{manifest.id}"


def place(path: str, file: File, manifest: Manifest) -> str:
    """Return where a file of the checkpoint is that has this path."""
    return f"{path}/{file.path}" if manifest.is_tree else path


@contextlib.contextmanager
def download_lock(
    path: str,
    waiting: Callable[[str], None] = lambda _holder: None,
    on_disk: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Iterator[None]:
    """Hold the lock of a download. While another process has it, `waiting` is called now and then with that process's name.

    on_disk: entered while the disk is used.
    """
    while True:
        try:
            with on_disk():
                fd = _locked(path)
            break
        except BlockingIOError:
            with on_disk():
                holder = _holder(path)
            waiting(holder)
            time.sleep(_LOOK_S)
    try:
        yield
    finally:
        _unlocked(path, fd)


def finish(partial: str, manifest: Manifest, progressed: Callable[[], None]) -> None:
    """Mark and sync a download of which each byte was compared."""
    parent = os.path.dirname(partial)  # noqa: PTH120 -- strings throughout the package
    directories = {parent}
    mark_ns = (int(leftovers.now_s(parent)) - 1) * 10**9 + _mark_ns(manifest)
    for file in manifest.files:
        path = place(partial, file, manifest)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.utime(fd, ns=(mark_ns, mark_ns))
            os.fsync(fd)
        finally:
            os.close(fd)
        progressed()
        directory = os.path.dirname(path)  # noqa: PTH120 -- as above
        while len(directory) >= len(partial):
            directories.add(directory)
            directory = os.path.dirname(directory)  # noqa: PTH120 -- as above
    for directory in directories:
        durable.sync_directory(directory)


def just_restored(target: str, manifest: Manifest) -> frozenset[File]:
    """Return the files that a restore wrote a short while ago, and nobody since: by their size and `finish`'s mark."""
    marked: dict[File, float] = {}
    for file in manifest.files:
        with contextlib.suppress(OSError):
            st = os.lstat(place(target, file, manifest))
            if stat.S_ISREG(st.st_mode) and st.st_size == file.n_bytes and st.st_mtime_ns % 10**9 == _mark_ns(manifest):
                marked[file] = st.st_mtime
    with contextlib.suppress(OSError):
        now = leftovers.now_s(os.path.dirname(target)) if marked else 0.0  # noqa: PTH120 -- as above
        return frozenset(file for file, at in marked.items() if now - at < _JUST_S)
    return frozenset()


def _mark_ns(manifest: Manifest) -> int:
    """Return the microseconds, in nanoseconds, at which all restored files of one content were last modified."""
    return int(manifest.id, 16) % 10**6 * 1000


def sweep(directory: str) -> tuple[str, ...]:
    """Remove the abandoned downloads in a directory; return their names."""
    with os.scandir(directory) as entries:
        left = sorted({match[1] for entry in entries if (match := _BESIDE.fullmatch(entry.name))})
    gone: list[str] = []
    now = 0.0
    for name in left:
        path = f"{directory}/{name}"
        with contextlib.suppress(OSError):  # locked by another process, or gone
            now = now or leftovers.now_s(directory)
            if not _may_go(path, now):
                continue
            fd = _locked(path)
            if fd is None:
                continue
            try:
                staging.remove(path, is_hidden=True)
                gone.append(name)
            finally:
                _unlocked(path, fd)
    return tuple(gone)


def _may_go(path: str, now: float) -> bool:
    """Return whether this node left it, or another one long ago. Raises OSError."""
    try:
        with open(path + _LOCK, encoding="ascii", errors="replace") as file:  # noqa: PTH123 -- as above
            if file.read(leftovers.TAG_DIGITS) == leftovers.tag():
                return True
    except FileNotFoundError:
        pass
    return leftovers.is_old(path if os.path.lexists(path) else path + _LOCK, "", now)


def missing(target: str, manifest: Manifest) -> Manifest:
    """Return a manifest with those of the files of which nothing is at the target."""
    if not manifest.is_tree:
        return manifest if not os.path.lexists(target) else replace(manifest, files=())
    return replace(manifest, files=tuple(file for file in manifest.files if not os.path.lexists(f"{target}/{file.path}")))


def is_empty(target: str) -> bool:
    """Return whether the target is a directory with nothing in it."""
    return os.path.isdir(target) and not os.listdir(target)  # noqa: PTH112, PTH208 -- as above


def move_missing_files(partial: str, target: str, manifest: Manifest) -> None:
    """Move the downloaded files into the directory that has the others. The last one makes it look whole. Raises FileExistsError."""
    for file in sorted(manifest.files, key=lambda file: (file.path.startswith("."), file.path)):
        place = f"{target}/{file.path}"
        durable.make_directory(os.path.dirname(place), 0o755)  # noqa: PTH120 -- strings throughout the package
        durable.rename_exclusive(f"{partial}/{file.path}", place)
        durable.sync_directory(os.path.dirname(place))  # noqa: PTH120 -- as above
    staging.remove(partial, is_hidden=True)


def write_latest_pointer(target: str, manifest: Manifest) -> None:
    """Write the pointer of DeepSpeed or Megatron to a restored checkpoint, unless there is one: their loaders need it."""
    directory, name = os.path.split(target)
    if manifest.layout == "deepspeed":
        pointer, text = "latest", name
    elif manifest.layout == "megatron" and (match := _MEGATRON.fullmatch(name)):
        pointer, text = "latest_checkpointed_iteration.txt", match[2] or str(int(match[1]))
    else:
        return
    if not os.path.lexists(f"{directory}/{pointer}"):
        staging.write(f"{directory}/{pointer}", text.encode(), 0o644)


def _holder(path: str) -> str:
    """Return the holder of a download's lock. A new holder needs a moment to write its name down."""
    for _ in range(_MOMENTS):
        with contextlib.suppress(OSError), open(path + _LOCK, encoding="ascii", errors="replace") as file:  # noqa: PTH123 -- as above
            if holder := file.read(_MOST_NAME)[leftovers.TAG_DIGITS :].strip():
                return holder
        time.sleep(_MOMENT_S)
    return "another process"


def _locked(path: str) -> int | None:
    """Take the lock of a download; None without locks. Raises BlockingIOError if another process has it."""
    while True:
        fd = os.open(path + _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not durable.lock(fd):
                os.unlink(path + _LOCK)  # noqa: PTH108 -- strings throughout the package
                os.close(fd)
                return None
            if durable.is_at(fd, path + _LOCK):
                os.ftruncate(fd, 0)
                os.write(fd, f"{leftovers.tag()} process {os.getpid()} on {os.uname().nodename}".encode("ascii", "replace"))
                return fd
        except OSError:
            os.close(fd)
            raise
        os.close(fd)  # its last holder removed it: another file has the name now


def _unlocked(path: str, fd: int | None) -> None:
    if fd is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + _LOCK)  # noqa: PTH108 -- as above
        os.close(fd)
