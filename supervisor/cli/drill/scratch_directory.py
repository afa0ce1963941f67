"""The scratch directory of a drill: a command can train in it without touching the original working directory.

    <state_dir>/.drill-XXXXXXXX/     0700, removed at the end
        work/      the working directory: its directories are made anew, each file is a link to the original
        tmp/       TMPDIR; by a short link in the node's own where sockets would have too long a path there
        state/     the state directory of the drill's own job; it is kept where the drill failed

A checkpoint that is known (declared, or discovered in an earlier run) is left out, so the training begins from scratch. A link is safe:
what the drill runs may not write where it leads (confinement.py). A link into shared memory, which stays writable, is refused. Sockets,
FIFOs and devices are left out, too.

The drill and its `supervise` hold a lock on the directory. The next drill removes each directory that nobody holds: what a killed or a
failed drill left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from checkpointing.io import durable
from supervisor.cli.drill import confinement
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.identity import DRILL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from checkpointing.model import Candidate

#: So many links are made. A directory with more entries than are left is one link.
MOST_ENTRIES: Final = 20_000
#: Paths that stay writable beside the scratch directory: devices and shared memory, the process's own /proc, and caches.
_SYSTEM: Final = ("/dev", "/proc")
#: A longer TMPDIR has no room for the sockets below it that a loader's workers need: of 107 bytes their names take 32.
_LONGEST_TMPDIR: Final = 75
#: The one of these that may hold a user's checkpoints.
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  not of the drill: the user names it
_CACHES: Final = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR")
_CACHES_AT_HOME: Final = ("~/.cache", "~/.triton", "~/.nv")


class ScratchDirectory(Struct, frozen=True):
    """One scratch directory. writable: further directories that the command may write. lock: the open root (-1: not locked).

    short: a link to its TMPDIR, None where the path of that is short enough.
    """

    root: Path
    writable: tuple[str, ...] = ()
    lock: int = -1
    short: Path | None = None

    @property
    def work(self) -> Path:
        """The working directory of the drill."""
        return self.root / "work"

    @property
    def state(self) -> Path:
        """The state directory of the drill's job."""
        return self.root / "state"

    def enter(self) -> None:
        """Make `work` this process's working directory, for good, and let it write nowhere else. Raises SuperviseError."""
        temporary = str(self.short or self.root / "tmp")
        # unbuffered: a rank that is killed has printed the losses of its steps
        os.environ.update({"PWD": str(self.work), "TMPDIR": temporary, "PYTHONUNBUFFERED": "1"})
        tempfile.tempdir = None
        os.chdir(self.work)
        if confinement.version():  # else it was permitted (`make`)
            confinement.confine((str(self.root), *writable_places(), *self.writable))

    def remove_work(self) -> None:
        """Remove what the command wrote. Links are removed, and never what they lead to."""
        for directory in (self.work, self.root / "tmp"):
            shutil.rmtree(directory, ignore_errors=True)
        if self.short is not None:
            self.short.unlink(missing_ok=True)

    def remove(self, *, keep_state: bool) -> None:
        """Remove it. keep_state: the journal and the logs stay."""
        self.remove_work()
        if not keep_state:
            shutil.rmtree(self.root, ignore_errors=True)
        if self.lock >= 0:
            os.close(self.lock)


def writable_places() -> tuple[str, ...]:
    """Return the directories outside the scratch directory that a command may write: /dev, /proc and caches."""
    caches = tuple(os.environ[name] for name in _CACHES if os.environ.get(name))
    return (*_SYSTEM, *caches, *(os.path.expanduser(path) for path in _CACHES_AT_HOME))  # noqa: PTH111  text


def writable_above(path: str) -> str:
    """Return the one of these directories in which a path lies, "" if it lies in none."""
    real = Path(os.path.realpath(path))
    return next((place for place in writable_places() if real.is_relative_to(os.path.realpath(place))), "")


def make(  # noqa: PLR0913  where, of what, and what may be written
    parent: Path,
    original: Path,
    checkpoints: Iterable[Candidate],
    writable: tuple[str, ...] = (),
    excluded: tuple[Path, ...] = (),
    *,
    may_escape: bool = False,
) -> ScratchDirectory:
    """Make the scratch directory below `parent`, with links to the working directory's files, but not to `checkpoints` and `excluded`.

    may_escape: also where the kernel cannot keep the command within it. Raises SuperviseError (64) where it cannot, or a link leads into
    shared memory, (78) where the directory cannot be made.
    """
    if not confinement.version() and not may_escape:
        raise SuperviseError(
            "a drill needs Landlock (Linux 5.13 or later), which keeps the command from your checkpoints",
            hint="Run it on such a kernel; or copy your directory, and add --yes to the drill in the copy.",
            exit_code=ExitCode.USAGE,
        )
    _sweep(parent)
    try:
        with contextlib.ExitStack() as undo:
            root = Path(tempfile.mkdtemp(prefix=DRILL_PREFIX, dir=parent))
            undo.callback(shutil.rmtree, root, ignore_errors=True)
            short = _short_link(root / "tmp")
            if short is not None:
                undo.callback(short.unlink)
            scratch = ScratchDirectory(root, writable, lock=_locked(root), short=short)
            for directory in (scratch.work, scratch.state, root / "tmp"):
                directory.mkdir(mode=0o700)
            link_files(original, scratch.work, checkpoints, excluded={root, *excluded})
            undo.pop_all()
    except OSError as error:
        raise SuperviseError(
            f"no scratch directory: {error.filename or parent}: {error.strerror}",
            hint="Name a directory with room, and that you may write, with --scratch-dir.",
        ) from error
    return scratch


def link_files(original: Path, target: Path, checkpoints: Iterable[Candidate], excluded: Collection[Path]) -> None:
    """Make a directory's tree anew in the empty directory `target`, with links to its files, but not to `checkpoints` and `excluded`.

    Raises OSError, and SuperviseError (64) if a link leads into shared memory.
    """
    known = list(checkpoints)
    left_out = {_inode(str(path)) for path in (*(checkpoint.path for checkpoint in known), *excluded)}  # under each of its names
    above = {str(parent) for checkpoint in known for parent in Path(checkpoint.path).parents}
    waiting = deque([(str(original), str(target))])
    entries_left = MOST_ENTRIES
    while waiting:
        source, directory = waiting.popleft()
        for entry in _entries(source):
            place = os.path.join(directory, entry.name)  # noqa: PTH118  strings, for there may be many
            try:
                real = entry.stat()
            except OSError:  # a link that leads nowhere, or is not to be read
                continue
            is_plain = stat.S_ISREG(real.st_mode) or stat.S_ISDIR(real.st_mode)
            if not is_plain or entry.name == "__pycache__" or (real.st_dev, real.st_ino) in left_out:
                continue
            entries_left -= 1
            if entry.is_dir(follow_symlinks=False) and (entry.path in above or _has_at_most(entries_left, entry.path)):
                os.mkdir(place, 0o700)  # noqa: PTH102  as above
                waiting.append((entry.path, place))
            else:
                _link(entry.path, place)


def _link(path: str, place: str) -> None:
    target = os.path.realpath(path)
    if Path(target).is_relative_to(SHARED_MEMORY):
        raise SuperviseError(
            f"{path} leads to {target}, where the drill cannot keep the command from writing",
            hint="Remove that link for the drill.",
            exit_code=ExitCode.USAGE,
        )
    os.symlink(target, place)  # noqa: PTH211  strings throughout


def _short_link(temporary: Path) -> Path | None:
    """Return a new link to a directory whose path is too long for a TMPDIR. Raises OSError."""
    if len(os.fsencode(temporary)) <= _LONGEST_TMPDIR:
        return None
    place = Path(tempfile.mkdtemp(prefix=DRILL_PREFIX))
    place.rmdir()  # its name is nobody else's
    place.symlink_to(temporary)
    return place


def _locked(root: Path) -> int:
    """Return an open descriptor that holds the lock; it holds none where the file system has no locks. Raises OSError."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    durable.lock(fd)
    return fd


def _sweep(parent: Path) -> None:
    """Remove what earlier drills left, if their locks prove that none of them runs; and links whose directory is gone."""
    for link in Path(tempfile.gettempdir()).glob(f"{DRILL_PREFIX}*"):
        with contextlib.suppress(OSError):
            if link.is_symlink() and not link.exists() and link.lstat().st_uid == os.geteuid():
                link.unlink()
    for left in parent.glob(f"{DRILL_PREFIX}*"):
        with contextlib.suppress(OSError):  # BlockingIOError: it runs
            fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if durable.lock(fd):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(fd)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  as above
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _has_at_most(entries: int, directory: str) -> bool:
    """Return whether a directory can be read and has at most so many entries."""
    try:
        return len(os.listdir(directory)) <= entries  # noqa: PTH208  as above
    except OSError:
        return False
