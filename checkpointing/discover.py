"""Finds the files and directories that may be checkpoints, what they are now, and the step that their names give.

`find` goes by patterns, `find_in` through one directory; `checkpoints_in` also shows what a resume does not take.

A directory that a format claims is one candidate, and its files are not. Where a pattern matches several files in such a directory
(`step-*/*.pt`), the directory is meant. Of any other directory that matches, the checkpoints directly in it are candidates, and the files
named like one. No file of a checkpoint is read. `problems` names what could not be listed: "could not look" differs from "nothing there".
A pattern whose directory does not exist matches nothing: so a job begins. The listing skips hidden and temporary names and resolves
symbolic links. A file with several names (hard links, latest.pt -> step_100.pt) is one candidate. FIFOs, sockets and devices are never
candidates.

Python's glob follows links to directories in `**` and hides errors, so this walks by itself.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from checkpointing import step_names
from checkpointing.formats import TORCH_SUFFIXES, tree_format_of
from checkpointing.formats.directories import file_set
from checkpointing.io.tree import Tree
from checkpointing.model import Candidate, Identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from checkpointing.io.listing_cache import ListingCache

_MOST_ENTRIES: Final = 200_000  # a pattern like /**/*.pt would walk a data set
_MAGIC: Final = frozenset("*?[")
_SUFFIXES: Final = frozenset((*file_set.MEMBER_SUFFIXES, ".distcp"))
_MOST_LEVELS_UP: Final = 3  # from a file in a checkpoint's directory to that directory
_LEVELS: Final = 3  # a run's directory, one for each of its parts, the checkpoints


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of a search for checkpoints."""

    #: Without repetition, sorted by path.
    candidates: tuple[Candidate, ...]
    #: The unread paths, as (path, reason).
    problems: tuple[tuple[str, str], ...] = ()
    #: Each pattern that matched something and no candidate, with the first path that it matched.
    without: tuple[tuple[str, str], ...] = ()


class _Walk:
    """One walk: collects problems, and gives up after `_MOST_ENTRIES`.

    `named` says that a directory was reached by its own name, not by a wildcard: that one it is a problem not to be allowed to list.
    A file that a wildcard merely passes (lost+found in a mount's root) does not concern the job.
    """

    def __init__(self, cache: ListingCache | None) -> None:
        self.problems: list[tuple[str, str]] = []
        self._left = _MOST_ENTRIES
        self._cache = cache

    def matches(self, base: str, segments: tuple[str, ...], inode: int = 0, *, named: bool = True) -> Iterator[tuple[str, int]]:
        """Yield the paths below `base` that the pattern's segments match, with the inode that has the name."""
        if not segments:
            yield base, inode
            return
        first, rest = segments[0], segments[1:]
        if first == "**":
            for directory in self._tree(base, named=named):
                yield from self.matches(directory, rest or ("*",), named=named and directory == base)
        elif not _MAGIC & set(first):
            path = os.path.join(base, first)  # noqa: PTH118 -- strings as the script gets them
            known_inode = self._inode(path, named=named)
            if known_inode is not None:
                yield from self.matches(path, rest, known_inode, named=named)
        else:
            for entry in self._entries(base, named=named):
                if fnmatch.fnmatchcase(entry.name, first) and (first.startswith(".") or not entry.name.startswith(".")):
                    yield from self.matches(entry.path, rest, entry.inode(), named=False)

    def candidates(self, path: str, inode: int) -> Iterable[Candidate]:
        """Return what a matched path is."""
        if self._cache is None:
            return _candidates(path, self.problems)
        return self._cache.candidates(path, inode, lambda: tuple(_candidates(path, self.problems)))

    def of_sets(self, matched: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the matches, with a directory that a format claims in the place of the files in it.

        Only if the pattern matches several files in at least one such directory: `step-*/model.pt` means the file.
        """
        claimed: dict[str, str] = {}  # directory → the directory above it, or itself, that a format claims
        is_claimed: dict[str, bool] = {}
        within: dict[str, list[tuple[str, int]]] = {}
        rest: list[tuple[str, int]] = []
        parted = {path.rpartition("/")[0] for path, _ in matched if file_set.is_optimizer(path.rpartition("/")[2])}
        for path, inode in matched:
            parent = path.rpartition("/")[0]
            if parent not in claimed:
                claimed[parent] = self._claimed(parent, is_claimed, has_parts=parent in parted)
            (within.setdefault(claimed[parent], []) if claimed[parent] else rest).append((path, inode))
        if all(len(rows) < 2 for rows in within.values()):  # noqa: PLR2004 -- several
            return matched
        return [*rest, *((directory, 0) for directory in within)]

    def _claimed(self, directory: str, known: dict[str, bool], *, has_parts: bool) -> str:
        """Return the outermost of a directory and some above it that a format claims; "" if none does.

        Only a directory with the name of a save is asked, and the first if it `has_parts`. known: the answers so far.
        """
        outermost = ""
        for _ in range(_MOST_LEVELS_UP):
            if directory in ("", "/"):
                break
            if directory not in known:
                known[directory] = (has_parts or step_names.names_save(directory)) and self._is_claimed(directory)
            if known[directory]:
                outermost = directory
            has_parts = False
            directory = directory.rpartition("/")[0]
        return outermost

    def _is_claimed(self, directory: str) -> bool:
        def read() -> tuple[Candidate, ...]:
            with contextlib.suppress(OSError):
                if tree_format_of(Tree.names_of(directory)) is not None:
                    return (_tree(directory),)
            return ()

        if step_names.is_temporary(directory) or step_names.is_set_aside(directory):
            return False
        return bool(read() if self._cache is None else self._cache.candidates(f"{directory}/", 0, read))

    def _tree(self, base: str, *, named: bool) -> Iterator[str]:
        """Yield `base` and every directory below it, hidden ones and links aside."""
        waiting = [base]
        while waiting:
            directory = waiting.pop()
            yield directory
            for entry in self._entries(directory, named=named and directory == base):
                try:
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                except OSError as error:
                    self._note(entry.path, error, named=False)

    def _inode(self, path: str, *, named: bool) -> int | None:
        try:
            return os.lstat(path).st_ino
        except OSError as error:
            self._note(path, error, named=named)
            return None

    def _entries(self, directory: str, *, named: bool) -> list[os.DirEntry[str]]:
        if self._left <= 0:
            return []
        try:
            listed = _scan(directory) if self._cache is None else self._cache.entries(directory, _scan)
        except OSError as error:
            self._note(directory, error, named=named)
            return []
        self._left -= len(listed)
        if self._left <= 0:
            self.problems.append((directory, f"more than {_MOST_ENTRIES} entries to look at: use a narrower pattern"))
        return listed

    def _note(self, path: str, error: OSError, *, named: bool) -> None:
        harmless = isinstance(error, (FileNotFoundError, NotADirectoryError)) or (isinstance(error, PermissionError) and not named)
        if not harmless:
            self.problems.append((path, f"it could not be read: {error.strerror}"))


def _scan(directory: str) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return list(entries)


def find(patterns: str | Iterable[str], cwd: str | None = None, cache: ListingCache | None = None, *, declared: bool = False) -> Listing:
    """List the candidates that glob patterns match, sorted by path; no file of a checkpoint is read.

    Raises nothing: unlisted directories are in `problems`. `**` matches any directories, none included, and does not follow links to
    directories. A pattern whose directory does not exist matches nothing.

    cwd: what patterns are relative to; None is the working directory. cache: a path that has not changed for long is not read at each
    listing. declared: all that has a suffix of the patterns is a checkpoint, also of a format that is not known.
    """
    walk, cwd = _Walk(cache), os.getcwd() if cwd is None else cwd  # noqa: PTH109 -- strings as the script gets them
    rows: list[tuple[str, Candidate]] = []
    nothing: list[tuple[str, str]] = []
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        expanded = os.path.expanduser(pattern)  # noqa: PTH111 -- strings as the script gets them
        is_declared = declared and step_names.suffix_of(expanded) not in ("", *TORCH_SUFFIXES)
        # the working directory is not a pattern, whatever characters it holds
        matched = list(walk.matches("/" if expanded.startswith("/") else cwd, _segments(expanded)))
        has_candidate = False
        for path, inode in walk.of_sets(matched) if _MAGIC & set(expanded.rpartition("/")[2]) else matched:
            for known in walk.candidates(path, inode):
                has_candidate = True
                rows.append((path, replace(known, is_declared=True) if is_declared and not known.is_directory else known))
        example = next((path for path, _ in matched if not has_candidate and _holds_something(path)), None)
        nothing += [] if example is None else [(pattern, example)]
    return Listing(_each_once(rows), tuple(dict.fromkeys(walk.problems)), tuple(nothing))


def find_in(path: str) -> Listing:
    """List the candidates of a resume at one path, whatever its name is: itself, or those in it."""
    problems: list[tuple[str, str]] = []
    is_directory = os.path.isdir(path)  # noqa: PTH112 -- strings as the script gets them
    candidates = list(_directory(path, problems, _LEVELS) if is_directory else _candidates(path, problems))
    return Listing(_each_once([(candidate.path, candidate) for candidate in candidates]), tuple(problems))


def allocated_bytes(candidate: Candidate) -> int:
    """Return how many bytes a checkpoint takes on its disk: the size of a torn one may be that of the whole. Raises OSError."""
    size = candidate.identity.size
    return size if candidate.is_directory else min(size, os.stat(candidate.path).st_blocks * 512)  # noqa: PTH116 -- as above


def checkpoints_in(path: str) -> list[str]:
    """Return the paths of the checkpoints at `path`, those in it or itself, with what saves that did not end left there."""
    paths: list[str] = []
    with contextlib.suppress(OSError):
        paths.extend(_below(path, _LEVELS, leftovers=True))
    return paths or [path]


def _each_once(rows: list[tuple[str, Candidate]]) -> tuple[Candidate, ...]:
    """Return each checkpoint once, sorted by path, without those inside another one. `rows`: the matched path, and its kind."""
    best: dict[tuple[int, int], tuple[tuple[bool, bool, str], Candidate]] = {}
    for path, candidate in rows:
        # of a file's several names the one that says a step is the most useful, and the same one wins each time
        preference = (candidate.named is None, candidate.path != path, candidate.path)
        key = (candidate.identity.dev, candidate.identity.ino)
        if key not in best or preference < best[key][0]:
            best[key] = (preference, candidate)
    return tuple(_without_members(sorted((candidate for _, candidate in best.values()), key=lambda candidate: candidate.path)))


def _segments(pattern: str) -> tuple[str, ...]:
    """Split a pattern at its slashes; `**` twice in a row would visit every directory twice."""
    segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
    return tuple(segment for segment, before in zip(segments, [None, *segments], strict=False) if not segment == before == "**")


def _without_members(candidates: list[Candidate]) -> Iterator[Candidate]:
    """Leave out what lies in a directory that is a candidate itself; they come sorted by path, so the directory comes first."""
    inside = "\0"
    for candidate in sorted(candidates, key=lambda candidate: candidate.path + "/"):
        if not candidate.path.startswith(inside):
            yield candidate
            inside = candidate.path + "/" if candidate.is_directory else inside


def _candidates(path: str, problems: list[tuple[str, str]]) -> Iterator[Candidate]:
    """Yield what a matched path is: itself, or the checkpoints directly in a directory that is not a checkpoint."""
    name = path.rpartition("/")[2]
    if name.startswith(".") or step_names.is_temporary(name) or step_names.is_set_aside(path):
        return
    if not _encodable(path):
        problems.append((os.fsencode(path).decode("utf-8", "backslashreplace"), "its name is not UTF-8"))
        return
    try:
        # only a link of its own is resolved: a link above it is how the user names the place
        real = os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 -- strings as the script gets them
        st = os.stat(real)  # noqa: PTH116 -- as above
    except FileNotFoundError:  # a dangling link, or removed meanwhile
        return
    except OSError as error:
        problems.append((path, f"it could not be read: {error.strerror}"))
        return
    if stat.S_ISREG(st.st_mode):
        yield Candidate(real, Identity.of(st), step_names.step_in(real), st.st_mtime_ns)
    elif stat.S_ISDIR(st.st_mode):
        yield from _directory(real, problems, 1)


def _directory(path: str, problems: list[tuple[str, str]], levels: int) -> Iterator[Candidate]:
    """Yield a directory that some format claims as one candidate, else the checkpoints in it."""
    inside = path
    try:
        for inside in list(_below(path, levels)):
            if os.path.islink(inside) or not os.path.isdir(inside) or not _encodable(inside):  # noqa: PTH112, PTH114 -- strings as the script gets them
                yield from _candidates(inside, problems)
                continue
            with contextlib.suppress(PermissionError, FileNotFoundError, NotADirectoryError):
                yield _tree(inside)
    except (PermissionError, FileNotFoundError, NotADirectoryError):  # what a wildcard passes, see _Walk
        return
    except OSError as error:
        problems.append((inside, f"it could not be read: {error.strerror}"))


def _below(path: str, levels: int, *, leftovers: bool = False) -> Iterator[str]:
    """Yield the checkpoints at a directory: itself if a format claims it, else its single files, and those in the directories in it.

    `levels`: so many directories below each other are gone down into. `leftovers`: of saves that did not end too, and every file that is
    named like a checkpoint. Raises OSError where the directory cannot be listed; what cannot be below it is passed over.
    """
    tree = Tree.names_of(path)
    if tree_format_of(tree) is not None:
        yield path
        return
    if levels == 0:
        return
    base = path.rstrip("/")
    yield from (f"{base}/{name}" for name in (_files_named_like_checkpoints(base, tree) if leftovers else file_set.single_files(tree)))
    for name in sorted(tree.directories):
        child = f"{base}/{name}"
        if step_names.is_temporary(name) or (leftovers and _is_empty_step(child)):
            yield from (child,) if leftovers else ()
        elif not name.startswith("."):
            with contextlib.suppress(OSError):
                yield from _below(child, levels - 1, leftovers=leftovers)


def is_named_like_checkpoint(name: str) -> bool:
    """Return whether a file is named like a checkpoint, or like the rest of one."""
    if step_names.is_temporary(name):
        return any(suffix in name for suffix in _SUFFIXES)
    return step_names.suffix_of(name) in _SUFFIXES


def _files_named_like_checkpoints(base: str, tree: Tree) -> Iterator[str]:
    """Yield the files named like a checkpoint. If a file has several names, one that is not a link: that may have the step."""
    seen: set[tuple[int, int]] = set()
    names = [name for name in tree.entries if not name.startswith(".") and is_named_like_checkpoint(name)]
    for name in sorted(names, key=lambda name: (os.path.islink(f"{base}/{name}"), name)):  # noqa: PTH114 -- strings as the script gets them
        try:
            st = os.stat(f"{base}/{name}")  # noqa: PTH116 -- as above
        except OSError:  # a link that leads nowhere is a row of its own
            yield name
            continue
        if (st.st_dev, st.st_ino) not in seen:
            seen.add((st.st_dev, st.st_ino))
            yield name


def _is_empty_step(path: str) -> bool:
    """Return whether a directory that is named as a step's holds nothing. Raises OSError."""
    return step_names.step_in(f"{path}/x") is not None and not os.listdir(path)  # noqa: PTH208 -- as above


def _holds_something(path: str) -> bool:
    """Return whether a path is more than an empty directory or the rest of a save that did not end."""
    if step_names.is_temporary(path) or step_names.is_set_aside(path) or path.rpartition("/")[2].startswith("."):
        return False
    try:
        with os.scandir(path) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _tree(path: str) -> Candidate:
    """Return a directory that a format claims as a candidate. Raises OSError."""
    tree = Tree(path)
    return Candidate(path, tree.identity, step_names.step_in(path), tree.newest_mtime_ns, is_directory=True)


def _encodable(path: str) -> bool:
    """Return whether a path can stand in a journal and in JSON."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
