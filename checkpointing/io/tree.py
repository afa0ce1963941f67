"""Lists a directory that may be a checkpoint, once, and opens its files with FileReader.

Nothing outside the directory is ever read. A link that leads out, a link that leads in a circle, a FIFO and a device are listed as what
they are. The listing is bounded in entries and depth: `truncated` says that it was cut, `problems` names directories below that could not
be listed. One tree belongs to one thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from checkpointing.io.reader import FileReader, Follower, Throttle, kind_of, never
from checkpointing.model import Identity

MOST_ENTRIES: Final = 100_000  # a run of some thousand ranks has as many shards; a data set has more
MOST_LEVELS: Final = 6
_MOST_SMALL_BYTES: Final = 64 << 20  # an index of a million tensors


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One name of a tree. `st` is the file's, behind a link that stays within; `what` is "" for a regular file, else its kind."""

    name: str
    st: os.stat_result
    what: str = ""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.st.st_size


def no_follower(_path: str) -> None:
    """Answer that nobody follows the reads of a file."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read: never faster than `throttle`, the page cache given back where `drop_cache`, no further once `interrupted` says so.

    follower: returns what follows the bulk reads of a file, by its path; None for nobody.
    """

    throttle: Throttle | None = None
    drop_cache: bool = False
    interrupted: Callable[[], bool] = never
    follower: Callable[[str], Follower | None] = no_follower

    def open(self, path: str) -> FileReader:
        """Open a file to be read in this way. Raises NotRegular, OSError."""
        return FileReader(
            path, throttle=self.throttle, drop_cache=self.drop_cache, interrupted=self.interrupted, follower=self.follower(path)
        )


class Tree:
    """The content of a directory. `entries` holds files and all else that is not a directory, `directories` those, by relative path."""

    def __init__(self, path: str, reading: ReadOptions | None = None, *, levels: int = MOST_LEVELS) -> None:
        """List `path`, no deeper than `levels` directories (1: its own names alone, 0: nothing yet). Raises OSError."""
        self.path = path
        self.name = os.path.abspath(path).rpartition("/")[2]  # noqa: PTH100 -- strings throughout the package
        self.stat = os.stat(path)  # noqa: PTH116 -- strings throughout the package
        self.entries: dict[str, TreeEntry] = {}
        self.directories: dict[str, os.stat_result] = {}
        self.problems: list[tuple[str, str]] = []
        self.truncated = False
        self._reading = reading or ReadOptions()
        self._real = os.path.realpath(path)
        self._list(levels)

    @classmethod
    def names_of(cls, path: str) -> Tree:
        """List the names directly in `path` and no more: enough for a format's `claims`, and no stat of each file. Raises OSError."""
        tree = cls(path, levels=0)
        with os.scandir(path) as listed:
            for entry in listed:
                if len(tree.entries) + len(tree.directories) >= MOST_ENTRIES:
                    tree.truncated = True
                    break
                if entry.is_dir(follow_symlinks=False):
                    tree.directories[entry.name] = tree.stat
                else:
                    tree.entries[entry.name] = TreeEntry(entry.name, tree.stat, "not read")
        return tree

    @property
    def identity(self) -> Identity:
        """The identity of the tree, as it was listed."""
        return Identity.of_tree(self.stat, ((entry.name, entry.st) for entry in self.entries.values() if not entry.what))

    @property
    def newest_mtime_ns(self) -> int:
        """When the youngest file was modified, nanoseconds of wall time; the directory itself where it has none."""
        return max((entry.st.st_mtime_ns for entry in self.entries.values() if not entry.what), default=self.stat.st_mtime_ns)

    @property
    def files(self) -> tuple[str, ...]:
        """The relative paths of all regular files, sorted."""
        return tuple(sorted(entry.name for entry in self.entries.values() if not entry.what))

    def top(self) -> frozenset[str]:
        """The names directly below, of files and directories alike."""
        return frozenset(name for name in (*self.entries, *self.directories) if "/" not in name)

    def file(self, name: str) -> TreeEntry | None:
        """Return the entry of a regular file; None where there is none, or something else is there."""
        entry = self.entries.get(name)
        return entry if entry is not None and not entry.what else None

    def open(self, name: str) -> FileReader:
        """Open a regular file of the tree. Raises NotRegular, OSError; KeyError for a name that is not listed as one."""
        entry = self.entries[name]
        if entry.what:
            raise KeyError(name)
        # the real path: a link in the middle that was turned elsewhere since the listing would show as another inode, which `verify` sees
        return self._reading.open(self.real_path(name))

    def real_path(self, name: str) -> str:
        """Return the path at which a file of the tree is opened."""
        return f"{self._real}/{name}"

    @property
    def interrupted(self) -> Callable[[], bool]:
        """The event that ends the reading."""
        return self._reading.interrupted

    def read_small(self, name: str, limit: int = _MOST_SMALL_BYTES) -> bytes:
        """Read a whole file of at most `limit` bytes; a longer one is cut there. Raises Short, Interrupted, OSError."""
        with self.open(name) as source:
            return source.read(0, min(source.size, limit))

    def sub(self, name: str) -> Tree:
        """Return a directory of this tree as a tree of its own, without listing it again."""
        start = name + "/"
        listed = {path.removeprefix(start): entry for path, entry in self.entries.items() if path.startswith(start)}
        entries = {short: TreeEntry(short, entry.st, entry.what) for short, entry in listed.items()}
        directories = {path.removeprefix(start): st for path, st in self.directories.items() if path.startswith(start)}
        return self._below(name, entries, directories)

    def split(self) -> tuple[dict[str, Tree], dict[str, TreeEntry]]:
        """Return the directories directly in this tree, each as a tree of its own, and the entries directly in it. In one pass."""
        entries: dict[str, dict[str, TreeEntry]] = {name: {} for name in self.directories if "/" not in name}
        directories: dict[str, dict[str, os.stat_result]] = {name: {} for name in entries}
        own: dict[str, TreeEntry] = {}
        for path, entry in self.entries.items():
            top, slash, short = path.partition("/")
            if slash:
                entries[top][short] = TreeEntry(short, entry.st, entry.what)
            else:
                own[path] = entry
        for path, st in self.directories.items():
            top, slash, short = path.partition("/")
            if slash:
                directories[top][short] = st
        return {name: self._below(name, entries[name], directories[name]) for name in entries}, own

    def _below(self, name: str, entries: dict[str, TreeEntry], directories: dict[str, os.stat_result]) -> Tree:
        below = object.__new__(Tree)
        below.path, below.name = f"{self.path.rstrip('/')}/{name}", name.rpartition("/")[2]
        below.stat, below.entries, below.directories = self.directories[name], entries, directories
        start = name + "/"
        below.problems = [(path.removeprefix(start), why) for path, why in self.problems if path.startswith(start)]
        below.truncated = self.truncated
        below._reading, below._real = self._reading, f"{self._real}/{name}"
        return below

    def _list(self, levels: int) -> None:
        waiting: list[tuple[str, int]] = [("", 1)] if levels else []
        while waiting:
            prefix, level = waiting.pop()
            try:
                with os.scandir(os.path.join(self.path, prefix)) as listed:  # noqa: PTH118 -- strings throughout the package
                    names = sorted(entry.name for entry in listed)
            except OSError as error:
                if not prefix:
                    raise
                self.problems.append((prefix, error.strerror or str(error)))
                continue
            for name in names:
                if len(self.entries) + len(self.directories) >= MOST_ENTRIES:
                    self.truncated = True
                    return
                short = f"{prefix}/{name}" if prefix else name
                if self._add(short) and level < levels:
                    waiting.append((short, level + 1))
                elif short in self.directories and level == MOST_LEVELS:
                    self.truncated = True

    def _add(self, name: str) -> bool:
        """Note what `name` is; True for a directory to go down into. Links to directories are not gone down into."""
        path = os.path.join(self.path, name)  # noqa: PTH118 -- strings throughout the package
        try:
            st = os.lstat(path)
            if stat.S_ISLNK(st.st_mode):
                self._add_link(name, path, st)
                return False
        except FileNotFoundError:  # removed meanwhile
            return False
        except OSError as error:
            self.problems.append((name, error.strerror or str(error)))
            return False
        if stat.S_ISDIR(st.st_mode):
            self.directories[name] = st
            return True
        self.entries[name] = TreeEntry(name, st, "" if stat.S_ISREG(st.st_mode) else kind_of(st.st_mode))
        return False

    def _add_link(self, name: str, path: str, st: os.stat_result) -> None:
        real = os.path.realpath(path)
        within = real.startswith(self._real + "/")
        try:
            behind = os.stat(real) if within else None  # noqa: PTH116 -- strings throughout the package
        except OSError:
            self.entries[name] = TreeEntry(name, st, "a link that leads nowhere")
            return
        if behind is None:
            self.entries[name] = TreeEntry(name, st, "a link that leads out of the directory")
        elif stat.S_ISREG(behind.st_mode):
            self.entries[name] = TreeEntry(name, behind)
        else:
            self.entries[name] = TreeEntry(name, st, f"a link to {kind_of(behind.st_mode)}")
