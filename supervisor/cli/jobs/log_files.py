"""The files with the output of an attempt's ranks: which there are, and how they are printed and followed.

Bytes go through untouched. Where several ranks are shown, a line with the file's name stands before each. Following looks for growth a few
times a second, through rotations, and ends when the job does.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.2
#: While nothing grows, the number of polls between two checks for the end of the job.
_END_POLLS = 10
_CHUNK_BYTES = 1 << 16
_NAME = re.compile(r"(?P<who>rank-(?P<rank>\d+)|agent)\.(?P<stream>out|err|log)(?:\.(?P<part>\d+))?")


@dataclass(slots=True)
class _Followed:
    """One growing file: its current part, and how far it was shown."""

    path: Path
    fd: int
    inode: int


def show(  # noqa: PLR0913 (where, what, and how)
    directory: Path, job: str, attempt: int, rank: int | None, *, follow: bool, goes_on: Callable[[], bool], run: str = ""
) -> int:
    """Write the files to stdout, those of an earlier `run` where one is named. `goes_on` tells whether more can come.

    Returns 0; raises SuperviseError (64).
    """
    place = _of_run(directory, run) / f"{attempt:04d}"
    found = streams(place, rank)
    if not found and rank is not None and streams(place, None):
        sys.stderr.write(f"supervise: rank {rank} wrote nothing in attempt {attempt}\n")
    elif not found and not (follow and goes_on()):
        there = ", ".join(map(str, attempts(directory, run)))
        hint = f"Attempts with output: {there}; name one with --attempt." if there else "Nothing was captured."
        older = [] if run else [name for name in earlier_runs(directory) if attempt in attempts(directory, name)]
        if older:
            hint += f" Attempt {attempt} of an earlier run: --run {', or '.join(older)}."
        whose = "" if rank is None else f", rank {rank}"
        raise SuperviseError(f"no output: job {job}: attempt {attempt}{whose}", hint=hint, exit_code=ExitCode.USAGE)
    try:
        _show(place, rank, found, follow=follow, goes_on=goes_on)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has read enough
    return 0


def earlier_runs(directory: Path) -> list[str]:
    """Return the earlier runs whose output is kept, the newest first: a run's name begins with its time."""
    return sorted((p.name for p in (directory / "runs").glob("*") if p.is_dir()), reverse=True)


def attempts(directory: Path, run: str = "") -> list[int]:
    """Return the attempts with output, of the job's last run or of an earlier one."""
    return sorted(int(p.name) for p in _of_run(directory, run).glob("[0-9]*") if p.name.isdecimal())


def _of_run(directory: Path, run: str) -> Path:
    return directory / "runs" / run if run else directory / "attempts"


def streams(place: Path, rank: int | None) -> list[tuple[Path, list[Path]]]:
    """Return each stream's current file and all its parts, the oldest first; of one rank, or of all."""
    parts: dict[Path, list[tuple[int, Path]]] = {}
    for path in place.glob("*"):
        named = _NAME.fullmatch(path.name)
        if named is None or (rank is not None and named["rank"] != str(rank)):
            continue
        current = place / f"{named['who']}.{named['stream']}"
        parts.setdefault(current, []).append((int(named["part"] or 0), path))
    return [(current, [path for _, path in sorted(parts[current], reverse=True)]) for current in sorted(parts, key=_order)]


def rank_of(path: Path) -> int | None:
    """Return the rank whose output a file has by its name; None for the agent's, and for any other."""
    named = _NAME.fullmatch(path.name)
    return int(named["rank"]) if named and named["rank"] else None


def _order(path: Path) -> tuple[int, str]:
    named = _NAME.fullmatch(path.name)
    # what a rank says in order comes before what it says of its end
    return (int(named["rank"]) if named and named["rank"] else -1, "err" if path.suffix == ".err" else "")


def _show(place: Path, rank: int | None, found: list[tuple[Path, list[Path]]], *, follow: bool, goes_on: Callable[[], bool]) -> None:
    followed: dict[Path, _Followed] = {}
    try:
        for current, parts in found:
            _title(current, several=len(found) > 1)
            for path in parts:
                with contextlib.suppress(FileNotFoundError):
                    one = _open(path, current)
                    _copy(one.fd)
                    if path == current and follow:
                        followed[current] = one
                    else:
                        os.close(one.fd)
        if follow:
            _follow(place, rank, followed, goes_on)
    finally:
        for one in followed.values():
            os.close(one.fd)


def _follow(place: Path, rank: int | None, followed: dict[Path, _Followed], goes_on: Callable[[], bool]) -> None:
    never = threading.Event()
    quiet, last = 0, None
    over = False
    while True:
        grown = False
        for current, parts in streams(place, rank):
            one = followed.get(current)
            before = 0 if one is None else 1
            if one is None and parts:
                one = followed[current] = _open(parts[0], current)
            if one is None:
                continue
            last, copied = _more(one, parts, last, several=len(followed) > 1)
            grown = grown or copied or not before
        if over and not grown:
            return
        quiet = 0 if grown else quiet + 1
        if quiet >= _END_POLLS:
            quiet, over = 0, not goes_on()
        never.wait(POLL_S)


def _more(one: _Followed, parts: list[Path], last: Path | None, *, several: bool) -> tuple[Path | None, bool]:
    """Copy what a stream has grown by, through a rotation too."""
    copied = False
    while os.lseek(one.fd, 0, os.SEEK_CUR) < os.fstat(one.fd).st_size or _rotated(one):
        if last != one.path:
            _title(one.path, several=several)
            last = one.path
        _copy(one.fd)
        copied = True
        if not _rotated(one):
            break
        newer = _after(one, parts)
        os.close(one.fd)
        one.fd, one.inode = newer.fd, newer.inode
    return last, copied


def _rotated(one: _Followed) -> bool:
    try:
        return one.path.stat().st_ino != one.inode
    except FileNotFoundError:
        return False


def _after(one: _Followed, parts: list[Path]) -> _Followed:
    """Return the part that was begun after this one."""
    inodes = []
    for path in parts:
        with contextlib.suppress(FileNotFoundError):
            inodes.append((path.stat().st_ino, path))
    at = next((i for i, (inode, _) in enumerate(inodes) if inode == one.inode), None)
    path = inodes[at + 1][1] if at is not None and at + 1 < len(inodes) else one.path
    return _open(path, one.path)


def _open(path: Path, current: Path) -> _Followed:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    return _Followed(current, fd, os.fstat(fd).st_ino)


def _copy(fd: int) -> None:
    out = sys.stdout.buffer
    while data := os.read(fd, _CHUNK_BYTES):
        out.write(data)
    out.flush()


def _title(path: Path, *, several: bool) -> None:
    if several:
        sys.stdout.buffer.write(f"==> {path.parent.name}/{path.name} <==\n".encode())
