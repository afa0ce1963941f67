"""Reads a file only if nobody but the caller and root could have written it.

That holds for the file and for each directory above it: a user who may write one of them could rename the file.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from supervisor.errors import SuperviseError

#: No file that is written by hand is larger.
LIMIT_BYTES = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_trusted(path: Path, subject: str = "configuration") -> str | None:
    """Return the text of `path`, None if it does not exist. Raises SuperviseError (78) if it is not to be trusted or not readable.

    what: the word for it in an error.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100  lexical: Path.resolve would skip the directories that hold symbolic links
    try:
        # not blocking: a FIFO would wait for its writer for ever
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise SuperviseError(
                f"cannot read {subject}: {path}: it is a link to {path.readlink()}, which does not exist",
                hint=f"Restore what {path} leads to, or remove the link.",
            ) from None
        return None
    except OSError as error:
        if isinstance(error, PermissionError) and not os.path.lexists(path):
            return None  # the directory cannot be searched, as with another user's HOME
        raise SuperviseError(f"cannot read {subject}: {path}: {error.strerror}", hint=f"Make {path} readable, or remove it.") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a plain file"
        raise SuperviseError(f"cannot read {subject}: {path}: it is {kind}", hint=f"Replace {path} by a file, or remove it.")
    with os.fdopen(fd, "rb") as file:
        _require_ours(path, path, status, subject)
        for directory in _directories(path):
            _require_ours(path, directory, os.lstat(directory), subject)
        content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise SuperviseError(f"cannot read {subject}: {path}: it is larger than 1 MiB", hint=f"Shorten {path}, or remove it.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SuperviseError(f"cannot read {subject}: {path}: it is not UTF-8 text", hint=f"Save {path} as UTF-8.") from error


def _directories(path: Path) -> list[Path]:
    """Return every directory that a lookup of `path` goes through: as written, and as it is once symbolic links are followed."""
    return list(dict.fromkeys([*path.parents, *path.resolve().parents]))


def _require_ours(file: Path, path: Path, status: os.stat_result, subject: str) -> None:
    other = "with --config" if subject == "configuration" else f"of {subject}"
    quoted = shlex.quote(str(path))
    hint = f"Run `chown {os.geteuid()} {quoted}` and `chmod go-w {quoted}`, or name another file {other}."
    if status.st_uid not in _trusted_uids():
        raise SuperviseError(f"{subject} refused: {file}: {path} belongs to uid {status.st_uid}", hint=hint)
    if stat.S_ISLNK(status.st_mode):  # its mode means nothing, and its target is checked by itself
        return
    sticky_directory = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & _OTHERS_WRITE and not sticky_directory:
        mode = stat.S_IMODE(status.st_mode)
        raise SuperviseError(f"{subject} refused: {file}: others may write {path} (mode {mode:04o})", hint=hint)


def _trusted_uids() -> frozenset[int]:
    """Return root, the caller and, in a user namespace that does not know root, the uid that means all unknown ones.

    In a rootless container (Apptainer, `unshare -U`) "/" and "/home" belong to that overflow uid; without it no file could be trusted.
    """
    uids = {0, os.geteuid()}
    try:
        spans = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()]
        if not any(int(outside) == 0 for _, outside, _ in spans):
            uids.add(int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass  # no /proc, no namespaces to think of
    return frozenset(uids)
