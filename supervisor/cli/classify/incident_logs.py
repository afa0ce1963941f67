"""The logs that `supervise classify` is given: which files are one incident, and the evidence in them.

A file is an incident of its own. A directory whose files have the names of our attempts' (`rank-3.err`, `rank-3.out`, their rotated parts,
`agent.err`) is one incident of all of them. Any other directory means the plain files in it and below. Memory is bounded, whatever the
files hold.
"""

from __future__ import annotations

import contextlib
import os
import stat
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.classify.engine import classify
from supervisor.classify.judgement.verdicts import NOT_EARNED
from supervisor.classify.logs.bounded_sample import BoundedSample
from supervisor.cli import stdio
from supervisor.cli.classify import reading
from supervisor.cli.classify.reading import Texture
from supervisor.cli.classify.rendering import Part
from supervisor.cli.classify.sampling import FloodReader
from supervisor.cli.jobs import log_files
from supervisor.core.model import Cause, Evidence, FailureVerdict
from supervisor.core.values import Struct, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.scanner import Scanner
    from supervisor.cli.classify.rules import LogNumbers

STDIN = "-"
#: The name of the fact: this log is not text.
_NOT_TEXT = "not_text"
#: Facts about how far training went: lines of one stream say nothing of another stream's.
_PROGRESS = frozenset({"progress", "recent_progress", "last_progress"})
#: Seconds between two lines of a file if only the time of its last line is known: nearly none, but in order.
_LINE_S = 1e-6
#: Places in the files of one incident of which the evidence is kept, in all and of one kind and rank at each end.
MOST_PLACES = 8192
MOST_PLACES_OF_A_KIND = 32
#: So many files whose times follow their names were copied: that ranks died in this order by chance is less likely.
FEWEST_COPIED = 4


class Stream(Struct, frozen=True):
    """One stream of an incident: its files, the oldest first, and the rank that wrote it, None where the name does not say."""

    files: tuple[Path, ...]
    rank: int | None = None


class Log(Struct, frozen=True):
    """One incident: it gets one answer."""

    path: str
    streams: tuple[Stream, ...]


class _Fed(Struct, frozen=True):
    """How much of a file was read, its newlines if they were counted, and when it was last changed (0: it is not a plain file)."""

    size: int
    newlines: int
    changed_at: float


def logs_at(place: str) -> Iterator[Log]:
    """Yield the incidents at a path, or of standard input for -."""
    path = Path(place)
    if place == STDIN or not path.is_dir():
        yield Log(place, (Stream((path,), log_files.rank_of(path)),))
        return
    seen: set[tuple[int, int]] = set()
    left_out = 0
    for directory, below, names in os.walk(path, onerror=_cannot_look):
        below.sort()
        inside = Path(directory)
        streams = tuple(Stream(tuple(parts), log_files.rank_of(current)) for current, parts in log_files.streams(inside, None))
        rank_files = {file for stream in streams for file in stream.files} if any(stream.rank is not None for stream in streams) else set()
        if rank_files:
            yield Log(str(inside), streams)
        for file in sorted(inside / name for name in names):
            if file in rank_files or not _is_new(file, seen):
                continue
            if _is_packed(file):
                left_out += 1
            else:
                yield Log(str(file), (Stream((file,)),))
    if left_out:
        stdio.say(f"left out of {place} packed files and programs: {left_out} files")


def size_of(log: Log) -> int | None:
    """Return how many bytes a log has; None if that is not known, as of standard input."""
    files = [file for stream in log.streams for file in stream.files]
    try:
        return sum(file.stat().st_size for file in files) or None
    except OSError:
        return None


def read(
    log: Log,
    catalogue: Catalogue,
    scan: Scanner,
    progress: Callable[[int], None] = lambda _n_bytes: None,
    numbers: LogNumbers | None = None,
) -> tuple[tuple[Evidence, ...], tuple[Part, ...]]:
    """Return the evidence in a log, its lines counted through all its files, and where each file begins. `progress` gets the bytes read.

    Raises OSError, and SuperviseError where it is not text as it is. There is no evidence at all where not a byte was read: that is
    no log of a healthy job.
    """
    parts: list[Part] = []
    kept: BoundedSample[tuple[Evidence, ...]] = BoundedSample(MOST_PLACES, first=MOST_PLACES_OF_A_KIND, last=MOST_PLACES_OF_A_KIND)
    before = size = 0
    texture = Texture()
    several = len(log.streams) > 1
    timeless = several and _were_copied(log.streams)
    for stream in log.streams:
        reader = FloodReader(catalogue, scan, rank=stream.rank)
        newlines, changed_at = 0, 0.0
        if numbers is not None:
            numbers.begin(stream.rank)
        for file in stream.files:
            parts.append(Part(file.name, before + newlines + 1))
            fed = _feed(reader, file, texture, progress, numbers, counting=file is not stream.files[-1])
            newlines, changed_at, size = newlines + fed.newlines, fed.changed_at, size + fed.size
        evidence_of_stream = reader.finish()
        if not several:
            return _with_texture(evidence_of_stream, texture) if size else (), tuple(parts)
        lines = max(fact.line for fact in evidence_of_stream)
        evidence_of_stream = _of_many(evidence_of_stream, before, 0.0 if timeless else changed_at)
        before += lines
        # a claim, its exception and its traceback stay together, or not at all
        for (_, rank), facts in groupby(evidence_of_stream, key=lambda fact: (fact.line, fact.rank)):
            of_place = tuple(facts)
            kept.add(" ".join(fact.name for fact in of_place), rank, of_place)
    evidence = tuple(sorted((fact for of_place in kept for fact in of_place), key=lambda fact: fact.line))
    return _with_texture(evidence, texture) if size else (), tuple(parts)


def _with_texture(evidence: tuple[Evidence, ...], texture: Texture) -> tuple[Evidence, ...]:
    """Return the evidence, with the facts of bytes that are not text."""
    return (*evidence, Evidence("log", _NOT_TEXT, texture.problem)) if texture.problem else evidence


def verdict_on(evidence: tuple[Evidence, ...]) -> FailureVerdict:
    """Return the verdict. Of an empty log, and of one that is not text, it is not that nothing failed."""
    if not evidence:
        return replace(classify(()), summary="the log is empty")
    verdict = classify(tuple(fact for fact in evidence if fact.name != _NOT_TEXT))
    illegible = next((fact for fact in evidence if fact.name == _NOT_TEXT), None)
    if illegible is None or (verdict.cause is not Cause.NONE and verdict.fingerprint != NOT_EARNED):
        return verdict
    return replace(classify(()), summary=illegible.text, fingerprint="unknown:not-text", because=(illegible,))


def _feed(  # noqa: PLR0913 (all that takes a block)
    reader: FloodReader, file: Path, texture: Texture, progress: Callable[[int], None], numbers: LogNumbers | None, *, counting: bool
) -> _Fed:
    """Read a file to its end. Raises OSError, and SuperviseError where it is not text as it is."""
    newlines = size = 0
    with reading.opened(None if str(file) == STDIN else file) as fd:
        status = os.fstat(fd)
        for block in reading.blocks(fd, str(file)):
            size += len(block)
            newlines += block.count(b"\n") if counting else 0
            texture.take(block)
            progress(len(block))
            reader.feed(block)
            if numbers is not None:
                numbers.feed(block)
    return _Fed(size, newlines, status.st_mtime if stat.S_ISREG(status.st_mode) else 0.0)


def _of_many(evidence: tuple[Evidence, ...], before: int, changed_at: float) -> tuple[Evidence, ...]:
    """Return the evidence of one stream of several, fit to stand beside that of the others: lines are counted on from `before`.

    Errors that the stream itself survived are left out, for after this its progress says nothing. Times are those of its
    file's last change (0: not known): a rank that died first wrote its last line first.
    """
    survived = max((fact.line for fact in evidence if fact.name == "progress"), default=0)
    last = max(fact.line for fact in evidence)
    timed = changed_at > 0
    return tuple(
        replace(fact, line=fact.line + before if fact.line else 0, t=changed_at - (last - fact.line) * _LINE_S if fact.t and timed else 0.0)
        for fact in evidence
        if fact.name not in _PROGRESS and not (fact.source == "log" and fact.name != "read" and fact.line < survived)
    )


def _were_copied(streams: Sequence[Stream]) -> bool:
    """Whether the times of the files are those of their copying, which goes by name, and say nothing of who wrote last."""
    times: list[float] = []
    for file in sorted(stream.files[-1] for stream in streams):
        with contextlib.suppress(OSError):  # the attempt to read it reports the reason
            times.append(file.stat().st_mtime)
    return len(times) >= FEWEST_COPIED and times == sorted(times)


def _is_new(file: Path, seen: set[tuple[int, int]]) -> bool:
    """Whether it is a plain file that was not come across under another name (`latest.log`); a pipe would be waited for without end."""
    try:
        status = file.stat()
    except OSError:
        return True  # the attempt to read it reports the reason
    name = (status.st_dev, status.st_ino)
    if not stat.S_ISREG(status.st_mode) or name in seen:
        return False
    seen.add(name)
    return True


def _is_packed(file: Path) -> bool:
    try:
        with file.open("rb", buffering=0) as source:
            return source.read(max(map(len, reading.PACKED))).startswith(reading.PACKED)
    except OSError:
        return False


def _cannot_look(error: OSError) -> None:
    stdio.say(f"error: cannot read {error.filename}: {error.strerror}")
