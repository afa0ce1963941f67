"""The processes in which the supervisor reads, sends and restores checkpoints, as forks of one that has imported what they need.

For tests in which their start is not the subject: each would import for 0.3 CPU seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Self

from supervisor.checkpoints.mirror import restore_process
from supervisor.checkpoints.recording import reader_link
from tests.support import forks
from tests.support.forks import Fork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

IMPORTS = ("tests.checkpointing.mirror.warm:warm",)


def use_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both modules start forks, but where the test has another path of modules."""
    subprocesses = SimpleNamespace(Popen=_started, PIPE=subprocess.PIPE)
    for module in (reader_link, restore_process):
        monkeypatch.setattr(module, "subprocess", subprocesses)


def _started(words: Sequence[str], *, env: Mapping[str, str], **how: Any) -> ForkedPopen | subprocess.Popen[str]:  # noqa: ANN401 -- as Popen's
    if env.get("PYTHONPATH") not in {os.environ.get("PYTHONPATH"), str(forks.ROOT)}:
        return subprocess.Popen(words, env=env, **how)  # noqa: S603  ours
    return ForkedPopen(words, env=env, stderr=how["stderr"])


class ForkedPopen(Fork):
    """Such a process: its stdin and stdout are pipes of text."""

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], stderr: int | IO[bytes]) -> None:
        """words: `python -P -m MODULE`. stderr: a file, or subprocess.PIPE."""
        assert words[:3] == [sys.executable, "-P", "-m"], words
        file = () if isinstance(stderr, int) else (stderr.fileno(),)
        with forks.pipes(2 if file else 3) as (theirs, (write, *outputs)):
            self.stdin = os.fdopen(write, "w", encoding="utf-8")
            self.stdout, *rest = (os.fdopen(end, encoding="utf-8", errors="backslashreplace") for end in outputs)
            self.stderr: IO[str] | None = rest[0] if rest else None
            super().__init__(forks.PROGRAM, *words[2:], imports=IMPORTS, environ=env, cwd=Path.cwd(), descriptors=(*theirs, *file))

    def __enter__(self) -> Self:
        """Give it, as Popen does."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close what is open, and await its end."""
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()
