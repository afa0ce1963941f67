"""Finds the files that an exception is about: the largest files that this job wrote on a full one, the damaged file of a cache.

Both are searched only where an exception speaks of a full disk, or of a cache. The walk goes through the directories where the job saves
and where its write failed, at most MOST_ENTRIES of them and until a deadline. Whatever this run's attempts changed there is the job's. It
is a leftover if an earlier attempt wrote it and either its name says that it is unfinished, or a save of that name is renamed when it ends.
"""

from __future__ import annotations

import getpass
import json
import os
import tempfile
import time
from typing import TYPE_CHECKING

from checkpointing import markers
from supervisor.classify import caches
from supervisor.classify.exceptions import UNCAUGHT
from supervisor.core.model import Cause, Evidence
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct
from supervisor.observe.ranks import save_logs
from supervisor.observe.ranks.path_patterns import pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

MOST_ENTRIES = 20_000
WALK_S = 0.8
#: Files that a card names, and bytes below which a file fills no disk.
MOST_NAMED, LEAST_BYTES = 3, 64 << 10
#: The largest small file of a cache that is read to see whether it is whole.
MOST_READ = 1 << 20
#: By the clock of a file server a file may be older than the run that wrote it.
CLOCKS_S = 1.0


class Begun(Struct, frozen=True):
    """When an attempt of this run began, in wall seconds."""

    attempt: int
    t: float


class SeenFile(Struct, frozen=True):
    """A file, or a directory with all that is in it, that this run wrote. attempt: the one that changed it last."""

    path: str
    size: int
    attempt: int
    is_leftover: bool


def staging_patterns(directory: Path) -> frozenset[str]:
    """Return the patterns of names that the saves of an attempt had until they were renamed."""
    renamed = (row for row in save_logs.of_attempt(directory) if row.get("what") == "renamed" and row.get("was"))
    return frozenset(pattern_of(str(row["was"])) for row in renamed)


def saved_directories(directory: Path) -> frozenset[str]:
    """Return the directories into which the ranks of an attempt saved, each with the one above it: a save may have one of its own."""
    saved = {os.path.dirname(row["path"]) for row in save_logs.of_attempt(directory)}  # noqa: PTH120 (a name)
    return frozenset(saved | {os.path.dirname(place) for place in saved})  # noqa: PTH120 (a name)


def on_full_disk(
    facts: Iterable[Evidence], places: Iterable[str], begun: Sequence[Begun], cwd: str, staging: frozenset[str] = frozenset()
) -> tuple[Evidence, ...]:
    """Return the largest files that this run wrote on the disk that the facts call full; nothing where none does. May take WALK_S.

    cwd: of the job. staging: patterns of names that its saves have until they are renamed.
    """
    full = [fact for fact in facts if fact.claim is not None and fact.claim.cause is Cause.DISK_FULL]
    if not full or not begun:
        return ()
    named = [path for fact in full for name, path in fact.fields if name == "path" and os.path.isabs(path)]  # noqa: PTH117 (a name)
    roots = [*(os.path.dirname(path) for path in named), *places]  # noqa: PTH120 (a name)
    files = sorted(_written(_existing(roots), begun, os.path.realpath(cwd), staging), key=lambda file: -file.size)
    if not files:
        return ()
    leftovers = [file for file in files if file.is_leftover]
    place = os.path.dirname(files[0].path)  # noqa: PTH120 (a name)
    info = os.statvfs(place)
    fields = {
        "path": place,
        "job_files": _listed(files),
        "leftovers": _listed(leftovers),
        "leftover_bytes": str(sum(file.size for file in leftovers)),
        "largest_bytes": str(files[0].size),
        "disk_bytes": str(info.f_blocks * info.f_frsize),
    }
    text = f"this job wrote {_listed(files)}"
    return (Evidence("host", "job_files", text, rank=full[0].rank, fields=tuple((name, value) for name, value in fields.items() if value)),)


def _existing(paths: Iterable[str]) -> list[str]:
    """Return the directories that are there, or the nearest ones above them, without those that lie in another one of them."""
    places: list[str] = []
    for path in paths:
        place = os.path.realpath(path)
        while not os.path.isdir(place) and os.path.dirname(place) != place:  # noqa: PTH112, PTH120 (as above)
            place = os.path.dirname(place)  # noqa: PTH120 (as above)
        if place not in {"/", os.path.expanduser("~"), tempfile.gettempdir()}:  # noqa: PTH111 (what a walk would not get through)
            places.append(place)
    return [
        candidate
        for candidate in dict.fromkeys(places)
        if not any(candidate != other and f"{candidate}/".startswith(f"{other}/") for other in places)
    ]


def _written(roots: Sequence[str], begun: Sequence[Begun], cwd: str, staging: frozenset[str]) -> list[SeenFile]:
    """Return what this run wrote below the directories: files of a root by themselves, else the directory with all that is in it."""
    last = begun[-1].attempt
    files: dict[str, SeenFile] = {}
    seen: set[tuple[int, int]] = set()
    for root in roots:
        for path, info in _files(root):
            attempt = _attempt_of(info.st_mtime, begun)
            if attempt is None or info.st_uid != os.geteuid() or (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            above = os.path.dirname(path)  # noqa: PTH120 (a name)
            name = path if above == root else above
            inside = path.removeprefix(f"{cwd}/" if path.startswith(f"{cwd}/") else f"{root}/")
            is_left = attempt < last and (markers.may_be_unfinished(inside) or pattern_of(path) in staging)
            known = files.get(name)
            files[name] = SeenFile(
                name,
                info.st_blocks * 512 + (known.size if known else 0),
                max(attempt, known.attempt if known else 0),
                is_leftover=is_left and (known is None or known.is_leftover),
            )
    return [file for file in files.values() if file.size >= LEAST_BYTES]


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files below a directory on its file system, as far as they can be seen in time."""
    until, left = time.monotonic() + WALK_S, MOST_ENTRIES
    open_directories = [root]
    try:
        device = os.stat(root).st_dev  # noqa: PTH116 (a name)
    except OSError:
        return
    while open_directories:
        try:
            entries = os.scandir(open_directories.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                left -= 1
                if left < 0 or time.monotonic() > until:
                    return
                try:
                    if entry.is_dir(follow_symlinks=False):
                        open_directories.append(entry.path)
                    elif entry.is_file(follow_symlinks=False) and (info := entry.stat(follow_symlinks=False)).st_dev == device:
                        yield entry.path, info
                except OSError:
                    continue


def _attempt_of(mtime: float, begun: Sequence[Begun]) -> int | None:
    """Return the attempt in which a file was changed, None if that was before this run."""
    first = begun[0].attempt if begun and mtime >= begun[0].t - CLOCKS_S else None
    return next((row.attempt for row in reversed(begun) if mtime >= row.t), first)


def _listed(files: Sequence[SeenFile]) -> str:
    more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
    return ", ".join(f"{file.path} ({bytes_text(file.size)})" for file in files[:MOST_NAMED]) + more


def of_caches(facts: Sequence[Evidence], environ: Mapping[str, str], begun: Sequence[Begun]) -> tuple[Evidence, ...]:
    """Return, of each exception about a damaged file of a cache, the file and the attempt of this run that wrote it, as far as known."""
    files = []
    for fact in caches.claimed(facts, {name for _, name in UNCAUGHT}):
        known = dict(fact.fields)
        if caches.CACHE not in known or fact.claim is None or fact.claim.cause is not Cause.CACHE_CORRUPT:
            continue
        path = known.get(caches.PATH) or _damaged_file(known[caches.CACHE], environ)
        if not path:
            continue
        try:
            written_in = _attempt_of(os.stat(path).st_mtime, begun)  # noqa: PTH116 (a name)
        except OSError:
            continue
        is_earlier = written_in is not None and bool(begun) and written_in < begun[-1].attempt
        writer = (("cache_writer", f"attempt {written_in} of this run"),) if is_earlier else ()
        text = f"the damaged file is {path}"
        files.append(Evidence("host", "cache_file", text, rank=fact.rank, fields=((caches.PATH, path), *writer)))
    return tuple(dict.fromkeys(files))


def _damaged_file(name: str, environ: Mapping[str, str]) -> str:
    """Return the newest small file of a cache that is not a whole JSON, "" if there is none."""
    cache = next(cache for cache in caches.CACHES if cache.name == name)
    given = environ.get(cache.variable) or cache.default
    if not given or not cache.files:
        return ""
    user = environ.get("USER") or environ.get("LOGNAME") or getpass.getuser()
    place = given.replace("{tmp}", environ.get("TMPDIR") or "/tmp").replace("{user}", user)  # noqa: S108 (where torch puts it)
    place = os.path.join(environ.get("HOME", "/"), place[2:]) if place.startswith("~/") else place  # noqa: PTH118 (a name)
    small = [(info.st_mtime, path) for path, info in _files(place) if path.endswith(cache.files) and info.st_size <= MOST_READ]
    return next((path for _, path in sorted(small, reverse=True) if not _is_json(path)), "")


def _is_json(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (a name)
            json.loads(file.read(MOST_READ))
    except OSError:
        return True  # of another kind: no damage can be shown
    except (ValueError, RecursionError):
        return False
    return True
