"""Whether what a killed writer left beside checkpoints may be removed: proven for this node, by age alone for any other.

A lock that is free proves that its writer is dead only where the file system carries locks between nodes. BeeGFS, Lustre with localflock,
NFS with local_lock and most FUSE file systems do not: there a writer of another node holds a lock that nobody here sees. So each
temporary name carries its node (`tag`), and what another node left goes only when nothing in it was written for a day. Ages are by
the file system's own clock (`now_s`): the clocks of two machines differ.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import stat
from typing import Final

YOUNG_S: Final = 10.0  # between making and locking it a place looks abandoned
OTHERS_S: Final = 86400.0
TAG_DIGITS: Final = 8


@functools.cache
def tag() -> str:
    """Return eight hexadecimal digits for this node since it was started: for the kernel, which all its containers' locks share."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # noqa: PTH123 -- strings throughout the package
            boot = file.read().strip()
    except OSError:
        boot = os.fsencode(os.uname().nodename)
    return hashlib.sha256(boot).hexdigest()[:TAG_DIGITS]


def now_s(directory: str) -> float:
    """Return the time by the clock of the file system that holds a directory. Raises OSError where nothing can be made there."""
    try:
        fd = os.open(directory, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:  # NFS and FUSE know no files without a name
        probe = f"{directory}/.supervise-now-{tag()}{secrets.token_hex(6)}"
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(probe)  # noqa: PTH108 -- as above
    try:
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)


def is_old(path: str, node: str, now: float) -> bool:
    """Return whether it is old enough to be looked at further. `node`: the tag in its name, "" where there is none. Raises OSError."""
    return now - _last_written(path) >= (YOUNG_S if node == tag() else OTHERS_S)


def _last_written(path: str) -> float:
    """Return the newest modification: a directory's own time does not change once its files are created."""
    st = os.lstat(path)
    newest = st.st_mtime
    if stat.S_ISDIR(st.st_mode):
        for base, directories, files in os.walk(path):
            for name in (*directories, *files):
                newest = max(newest, os.lstat(f"{base}/{name}").st_mtime)
    return newest
