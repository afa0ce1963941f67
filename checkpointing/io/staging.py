"""Writes files and directories beside their place, and gives them their name only when they are whole and durable.

The temporary name is `.NAME.tmp-<8 hex digits of the node><12 random>`; listings of checkpoints skip hidden names. The writer holds a lock
on it, and the lock dies with the writer: so `sweep` knows the leftovers of a killed writer of this node. Those of another node go by their
age (leftovers.py). A directory that is replaced may be called `.NAME.old-…` for a moment. If its writer is killed in that moment,
`bring_back` gives it its name back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable, leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<node>[0-9a-f]{8})?[0-9a-f]{12}", re.DOTALL)
_NAME_BYTES: Final = 255  # of a name, on every file system of Linux


@dataclass(frozen=True, slots=True)
class Staged:
    """A temporary file or directory, and an open descriptor of it, which holds the lock."""

    path: str
    final: str
    fd: int


def write(path: str, content: bytes | Iterable[bytes], mode: int = 0o600, *, is_durable: bool = True) -> None:
    """Replace a small file, or make it, all at once. Raises OSError. It takes no lock: some network file systems let a lock call hang.

    Unless it `is_durable`, the disk is not waited for, and a power cut may lose the file.
    """
    with _temporary_file(path, mode) as place:
        for piece in (content,) if isinstance(content, bytes) else content:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(place.fd, rest) :]
        if is_durable:
            put(place)
        else:
            os.rename(place.path, path)  # noqa: PTH104 -- paths are plain strings throughout the package


@contextlib.contextmanager
def new_file(final: str, mode: int = 0o666) -> Iterator[Staged]:
    """Make an empty file beside `final`; it is removed at the end unless `put` was called. `mode` is subject to the umask."""
    with _temporary_file(final, mode) as place:
        _hold(place.fd)
        yield place


@contextlib.contextmanager
def new_directory(final: str, mode: int = 0o777) -> Iterator[Staged]:
    """Make an empty directory beside `final`; it is removed with its content at the end unless `put` was called."""
    path = temporary_for(final)
    os.mkdir(path, mode)  # noqa: PTH102 -- as above
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _hold(fd)
        yield Staged(path, final, fd)
    finally:
        if os.path.isdir(path):  # noqa: PTH112 -- as above
            shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def temporary_for(final: str, kind: str = "tmp") -> str:
    """Return an unused hidden name beside `final`. A long name is cut, but not for "old": `bring_back` needs it whole."""
    directory, name = os.path.split(final)
    end = f".{kind}-{leftovers.tag()}{secrets.token_hex(6)}"
    raw, room = os.fsencode(name), _NAME_BYTES - len(".") - len(end)
    if len(raw) > room and kind != "old":
        name = raw[:room].decode(errors="ignore")
    return os.path.join(directory, f".{name}{end}")  # noqa: PTH118 -- as above


def is_temporary(name: str) -> bool:
    """Whether the name is one that this module gives, of a leftover or of a file in writing."""
    return _LEFTOVER.fullmatch(name) is not None


def put(place: Staged, *, is_replacing: bool = True) -> None:
    """Make a staged file or directory durable and give it its name. Raises FileExistsError for a taken name, unless it may replace.

    A directory that replaces another changes places with it. Where the file system cannot do that (NFS), the old one is moved aside first.
    After a kill between the two renames neither has the name, until `bring_back`.
    """
    durable.sync(place.fd)
    parent = os.path.dirname(place.final) or "."  # noqa: PTH120 -- as above
    aside = ""
    if not os.path.samestat(os.fstat(place.fd), os.lstat(place.path)):
        raise OSError(errno.ESTALE, "another process replaced the temporary file or directory", place.path)
    if not is_replacing:
        durable.rename_exclusive(place.path, place.final)
    elif not os.path.isdir(place.path) or not os.path.lexists(place.final):  # noqa: PTH112 -- as above
        os.rename(place.path, place.final)  # noqa: PTH104 -- as above
    elif durable.exchange(place.path, place.final):
        aside = place.path
    else:
        aside = _replace_in_two_steps(place)
    durable.sync_directory(parent)
    if aside:
        with contextlib.suppress(OSError):  # the new one is there; a later save sweeps the old one
            remove(aside)


def bring_back(directory: str) -> list[str]:
    """Return a directory its name back if its writer was killed after moving it aside; return the paths. Never raises."""
    back = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)):  # noqa: PTH208 -- as above
            match = _LEFTOVER.fullmatch(name)
            final = os.path.join(directory, match["name"]) if match else ""  # noqa: PTH118 -- as above
            if match and match["kind"] == "old" and not os.path.lexists(final):
                with contextlib.suppress(OSError):
                    durable.rename_exclusive(os.path.join(directory, name), final)  # noqa: PTH118 -- as above
                    durable.sync_directory(directory)
                    back.append(final)
    return back


def remove(path: str, *, is_hidden: bool = False) -> None:
    """Remove a file or a directory. A directory gets a temporary name first, so that nobody finds half of it. Raises OSError.

    `is_hidden`: nobody looks for its present name.
    """
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 -- as above
        match = _LEFTOVER.fullmatch(os.path.basename(path))  # noqa: PTH119 -- as above
        hidden = path if is_hidden or (match and match["kind"] == "tmp") else temporary_for(path)
        if hidden != path:
            os.rename(path, hidden)  # noqa: PTH104 -- as above
        shutil.rmtree(hidden)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 -- as above


def sweep(directory: str) -> list[str]:
    """Remove what killed writers left in `directory`, and return the paths. Never raises. Without proof of the kill a leftover stays."""
    gone = []
    bring_back(directory)
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        matches = [(entry, match) for entry in entries if (match := _LEFTOVER.fullmatch(entry.name)) and not entry.is_symlink()]
        now = leftovers.now_s(directory) if matches else 0.0
        for entry, match in matches:
            with contextlib.suppress(OSError):
                if match["kind"] == "old" and not os.path.lexists(os.path.join(directory, match["name"])):  # noqa: PTH118 -- as above
                    continue  # the only copy: its writer is between its two renames, or was killed there
                if leftovers.is_old(entry.path, match["node"] or "", now) and _is_unlocked(entry):
                    remove(entry.path)
                    gone.append(entry.path)
    return gone


@contextlib.contextmanager
def _temporary_file(final: str, mode: int) -> Iterator[Staged]:
    path = temporary_for(final)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield Staged(path, final, fd)
    finally:
        with contextlib.suppress(OSError):  # it has its name by now
            os.unlink(path)  # noqa: PTH108 -- as above
        os.close(fd)


def _replace_in_two_steps(place: Staged) -> str:
    """Return a directory the name of another one, and return the other one's new path."""
    while True:
        aside = temporary_for(place.final, "old")
        os.rename(place.final, aside)  # noqa: PTH104 -- as above
        try:
            os.rename(place.path, place.final)  # noqa: PTH104 -- as above
        except OSError as error:
            with contextlib.suppress(OSError):
                durable.rename_exclusive(aside, place.final)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # those: another process brought the old one back just now
                raise
        else:
            return aside


def _is_unlocked(entry: os.DirEntry[str]) -> bool:
    """Return whether no process holds the lock; False where there are no locks. Raises BlockingIOError where one does."""
    # NFS locks a file only for those who may write it
    access = os.O_RDONLY if entry.is_dir(follow_symlinks=False) else os.O_RDWR
    fd = os.open(entry.path, access | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return durable.lock(fd)
    finally:
        os.close(fd)


def _hold(fd: int) -> None:
    """Lock a new file or directory. Where there are no locks, nobody can prove it abandoned, and it stays."""
    with contextlib.suppress(OSError):
        durable.lock(fd)
