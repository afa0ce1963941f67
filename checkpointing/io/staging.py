"""New files and directories that appear under their name only when they are whole.

In: the final path. Out: a temporary place beside it, `.NAME.tmp-<8 hex digits of the node><12 of its own>`, held by a lock for as long as
its writer lives; `put` makes it durable and renames it. OSError as the file system says; the temporary place is taken back then. What a
killed writer of this node left is known by its lock, which died with it, and swept by the next save into the same directory; what one of
another node left, by its age (checkpointing/io/leftovers.py). Hidden names are passed over by `catalog.find`: what
was moved to `.NAME.old-…` by a writer that was killed before the new one had the name is brought back. Nothing is kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable, leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEFTOVER: Final = re.compile(r"\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<node>[0-9a-f]{8})?[0-9a-f]{12}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Staged:
    """A temporary place, and an open descriptor of it that holds the lock."""

    path: str
    final: str
    fd: int


@contextlib.contextmanager
def new_file(final: str, mode: int = 0o666) -> Iterator[Staged]:
    """Make an empty file beside `final`; removed again where it was not put in place. `mode` is subject to the umask."""
    path = temporary_for(final)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        _hold(fd)
        yield Staged(path, final, fd)
    finally:
        with contextlib.suppress(FileNotFoundError):  # it has its name by now
            os.unlink(path)  # noqa: PTH108 -- paths are plain strings throughout the package
        os.close(fd)


@contextlib.contextmanager
def held_directory(path: str, final: str) -> Iterator[Staged]:
    """Make the directory `path`, a `temporary_for(final)`; removed again with all in it where it was not put in place."""
    os.mkdir(path)  # noqa: PTH102 -- as above
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _hold(fd)
        yield Staged(path, final, fd)
    finally:
        if os.path.isdir(path):  # noqa: PTH112 -- as above
            shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def temporary_for(final: str, kind: str = "tmp") -> str:
    """Give a name beside `final` that nobody else has."""
    directory, name = os.path.split(final)
    return os.path.join(directory, f".{name}.{kind}-{leftovers.tag()}{secrets.token_hex(6)}")  # noqa: PTH118 -- as above


def put(place: Staged) -> None:
    """Make the place durable and give it its name, in place of whatever has it.

    A directory that replaces one changes places with it. Where the file system cannot do that (NFS), the old one is moved aside first:
    killed between the two, neither stands until `bring_back`.
    """
    os.fsync(place.fd)
    parent = os.path.dirname(place.final) or "."  # noqa: PTH120 -- as above
    aside = ""
    if not os.path.samestat(os.fstat(place.fd), os.lstat(place.path)):
        raise OSError(errno.ESTALE, "its temporary place was replaced by somebody else's", place.path)
    if not os.path.isdir(place.path) or not os.path.lexists(place.final):  # noqa: PTH112 -- as above
        os.rename(place.path, place.final)  # noqa: PTH104 -- as above
    elif durable.exchange(place.path, place.final):
        aside = place.path
    else:
        aside = _replace_in_two_steps(place)
    durable.sync_directory(parent)
    if aside:
        with contextlib.suppress(OSError):  # the new one stands; the old one is swept by a later save
            remove(aside)


def _replace_in_two_steps(place: Staged) -> str:
    """Give a directory the name of another one, and return where that is now."""
    while True:
        aside = temporary_for(place.final, "old")
        os.rename(place.final, aside)  # noqa: PTH104 -- as above
        try:
            os.rename(place.path, place.final)  # noqa: PTH104 -- as above
        except OSError as error:
            with contextlib.suppress(OSError):
                durable.rename_exclusive(aside, place.final)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # those: somebody brought the old one back just now
                raise
        else:
            return aside


def bring_back(directory: str) -> list[str]:
    """Give directories their name back that a writer had moved aside when it was killed, and return their paths. Never raises."""
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


def remove(path: str) -> None:
    """Remove a file, or a directory with all in it: that one under a hidden name, for whoever looks must not find half of it. OSError."""
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 -- as above
        match = _LEFTOVER.fullmatch(os.path.basename(path))  # noqa: PTH119 -- as above
        hidden = path if match and match["kind"] == "tmp" else temporary_for(path)
        if hidden != path:
            os.rename(path, hidden)  # noqa: PTH104 -- as above
        shutil.rmtree(hidden, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 -- as above


def sweep(directory: str) -> list[str]:
    """Remove what killed writers left in `directory`, and give the paths. What cannot be proven abandoned stays. Never raises."""
    gone = []
    bring_back(directory)
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        found = [(entry, match) for entry in entries if (match := _LEFTOVER.fullmatch(entry.name)) and not entry.is_symlink()]
        now = leftovers.now_s(directory) if found else 0.0
        for entry, match in found:
            with contextlib.suppress(OSError):
                if match["kind"] == "old" and not os.path.lexists(os.path.join(directory, match["name"])):  # noqa: PTH118 -- as above
                    continue  # its writer is between its two renames, or was killed there: it is the only one, and is brought back
                if leftovers.is_old(entry.path, match["node"] or "", now) and _is_unlocked(entry):
                    remove(entry.path)
                    gone.append(entry.path)
    return gone


def _is_unlocked(entry: os.DirEntry[str]) -> bool:
    # NFS locks a file only for those who may write it
    access = os.O_RDONLY if entry.is_dir(follow_symlinks=False) else os.O_RDWR
    fd = os.open(entry.path, access | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: somebody holds it, or locks are not to be had here
    finally:
        os.close(fd)
    return True


def _hold(fd: int) -> None:
    """Lock it for its sweepers. Where the file system has no locks nobody can prove it abandoned either, so it just stays."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
