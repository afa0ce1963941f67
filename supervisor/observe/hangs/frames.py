"""Reads the stacks that faulthandler and py-spy write, and finds the line of the user's in them. Pure.

faulthandler names no threads before Python 3.14 and lists the first thread last. So the main thread is the last of a dump, which also
holds in a process that was forked.
"""

from __future__ import annotations

import json
import re
from typing import Any

from supervisor.core.values import Struct

#: The most frames of a thread that are kept: the innermost. faulthandler itself writes 100.
MOST_FRAMES = 100

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):$")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)$')
#: The form with letters and digits is that of the code that torch's compiler writes: `/tmp/torchinductor_me/2k/c2k….py`. The last two are
#: supervise, in which a rank waits for others or has its own thread, where they lie outside of site-packages (`pip install --target`).
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|^<frozen |/_supervise_shim/|/([a-z2-7]{2})/c\1[a-z2-7]{20,}\.py$"
    r"|/supervisor/(?:worker|agent/\w+)\.py$|/checkpointing/training/\w+\.py$"
)
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+/(?!site-packages/|dist-packages/)|^<frozen ")
_ROOT = re.compile(r"/lib(?:64)?/python3\.\d+/(?:(?:site|dist)-packages/)?|/(?:site|dist)-packages/")
#: Our own frames, which are in a thread of the shim or around a function that a hook wraps.
_SHIM = "/_supervise_shim/"


class StackFrame(Struct, frozen=True):
    """One Python frame. line: 0 where it is unknown."""

    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        """Whether it is in the standard library, in an installed package, in code that torch wrote, or in this project."""
        return _LIBRARY.search(self.file) is not None

    @property
    def is_standard(self) -> bool:
        """Whether it is in the standard library."""
        return _STANDARD.search(self.file) is not None

    @property
    def module(self) -> str:
        """The path within its package's directory (`torch/distributed/distributed_c10d.py`), the whole path elsewhere."""
        return _ROOT.split(self.file)[-1]

    @property
    def place(self) -> str:
        """File and line, without the directory: `train.py:61`."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


class ThreadStack(Struct, frozen=True):
    """The stack of one thread, the innermost frame first. thread: how its source names it."""

    thread: str
    frames: tuple[StackFrame, ...]

    @property
    def innermost(self) -> StackFrame | None:
        """The innermost frame, None for a thread that runs no Python."""
        return self.frames[0] if self.frames else None

    @property
    def user_frame(self) -> StackFrame | None:
        """The innermost frame of the user's own code, None without."""
        return next((frame for frame in self.frames if not frame.is_library), None)

    def find(self, module: str, *functions: str) -> StackFrame | None:
        """Return the innermost frame of a file whose path in its package begins with `module`, in one of `functions` if any is given."""
        return next(
            (frame for frame in self.frames if frame.module.startswith(module) and (not functions or frame.function in functions)), None
        )


def parse(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of a dump of faulthandler, the main thread first, without the shim's own; none where the text is not a dump."""
    threads: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            threads.append((thread[2] or thread[1], []))
        elif threads and (frame := _FRAME.match(line)) and len(threads[-1][1]) < MOST_FRAMES:
            threads[-1][1].append(StackFrame(frame[1], int(frame[2]) if frame[2].isdigit() else 0, frame[3]))
    return _cleaned(ThreadStack(name, tuple(frames)) for name, frames in reversed(threads))


def parse_py_spy(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of `py-spy dump --json`, the main thread first; none where the text is something else."""
    try:
        threads: list[dict[str, Any]] = json.loads(text)
        threads.sort(key=lambda thread: thread.get("os_thread_id") != thread.get("pid"))
        return _cleaned(
            ThreadStack(
                str(thread.get("thread_name") or thread.get("thread_id")),
                tuple(
                    StackFrame(str(row["filename"]), int(row.get("line") or 0), str(row["name"])) for row in thread["frames"][:MOST_FRAMES]
                ),
            )
            for thread in threads
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _cleaned(threads: Any) -> tuple[ThreadStack, ...]:  # noqa: ANN401 - an iterable of either of the two above
    """Return the threads without the shim's own, and without its frames in the others."""
    kept = []
    for thread in threads:
        frames = tuple(frame for frame in thread.frames if _SHIM not in frame.file)
        if frames or not thread.frames:
            kept.append(ThreadStack(thread.thread, frames))
    return tuple(kept)
