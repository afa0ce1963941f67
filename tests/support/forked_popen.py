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
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        theirs = [read_in, write_out]
        self.stdin = os.fdopen(write_in, "w", encoding="utf-8")
        self.stdout = os.fdopen(read_out, encoding="utf-8", errors="backslashreplace")
        self.stderr: IO[str] | None = None
        if isinstance(stderr, int):
            read_err, write_err = os.pipe()
            theirs.append(write_err)
            self.stderr = os.fdopen(read_err, encoding="utf-8", errors="backslashreplace")
        errors = theirs[2] if isinstance(stderr, int) else stderr.fileno()
        try:
            super().__init__(
                forks.PROGRAM, *words[2:], imports=IMPORTS, environ=env, cwd=Path.cwd(), descriptors=(read_in, write_out, errors)
            )
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def __enter__(self) -> Self:
        """Give it, as Popen does."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close what is open, and await its end."""
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()
