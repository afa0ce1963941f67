"""The lock files that killed builds of this run left behind: the next build waits until they are gone (torch.utils.cpp_extension).

Only a lock whose presence is the lock stays behind. A file that is locked by flock (torch's compiler, the Hugging Face hub) is free once
its process is gone, and Triton replaces files without one. So one kind of place is searched: where torch, and DeepSpeed with it, builds
extensions. A lock elsewhere is named once ranks are seen to wait for it (observe/hangs/polled.py). Nothing is removed.
"""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Evidence
from supervisor.core.shell import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from supervisor.observe.host.job_files import Begun

#: Name of the fact, whose text is for people; its field `path` is the file.
NAME = "left_lock"
#: So many locks become facts; so many directories of builds are searched.
MOST, MOST_DIRECTORIES = 3, 1_000


def evidence(environ: Mapping[str, str], begun: Sequence[Begun]) -> tuple[Evidence, ...]:
    """Return a fact for each lock of a build that an attempt of this run left. No rank is alive; begun: all attempts, in wall seconds."""
    if not begun:
        return ()
    from supervisor.observe.hangs import awaited  # noqa: PLC0415  not for the pages that only know the name
    from supervisor.observe.host.job_files import CLOCKS_S  # noqa: PLC0415  as above

    now = time.time()
    over = {row.attempt: row.t for row in begun}
    surroundings = awaited.Surroundings({**over, max(over) + 1: now})
    facts: list[Evidence] = []
    for path, changed_t in _locks(environ):
        if changed_t < begun[0].t - CLOCKS_S:
            continue  # whose it is, nobody here knows
        lock = surroundings.file(str(path))
        if lock.is_left and len(facts) < MOST:
            text = f"a build was killed, and each later one waits for {lock.text}"
            facts.append(Evidence("host", NAME, text, t=now, fields=(("path", str(path)),)))
    return tuple(facts)


def remedy(facts: Sequence[Evidence]) -> str:
    """Return the command that removes the locks, "" without one."""
    paths = [value for fact in facts for name, value in fact.fields if name == "path"]
    return f"rm {' '.join(map(quoted, paths))}" if paths else ""


def _locks(environ: Mapping[str, str]) -> Iterator[tuple[Path, float]]:
    """Yield each lock of a build, with the time of its last change."""
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '/')}/.cache"
    root = Path(environ.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions").absolute()  # a person removes it from elsewhere
    left = MOST_DIRECTORIES
    for pattern in ("*/lock", "*/*/lock"):  # below the version of Python where torch itself chose the directory
        for path in root.glob(pattern):
            left -= 1
            if left < 0:
                return
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_mtime
