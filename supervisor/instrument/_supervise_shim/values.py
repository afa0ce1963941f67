"""Writes what the main thread's functions hold of paths and processes, on a signal: a rank that polls shows no path to the kernel.

The handler is Python's, so it runs in the main thread, between two of its instructions, once that thread is back from C: a rank that sleeps
in a loop answers at once, one in a collective much later or never. Nothing is asked of a file system, and no function of the user's is
called.
"""

from __future__ import annotations

import os
from _signal import getsignal, siginterrupt, signal  # type: ignore[import-not-found]  # built in; `signal` costs 3 ms of every start

from . import layout
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable  # noqa: UP035 - 3.8

#: So many frames are written, from the innermost on; of each so many names; so long a text.
_MOST_FRAMES, _MOST_NAMES, _MOST_CHARS = 12, 200, 512
#: In the name of a file without a directory, what shows that processes wait for it, or for its end.
_WORDS = ("lock", "lck", "pid", "done", "ready", "flag", "baton", "wait", "sync")


class HeldValues:
    """The handler of one process. write: takes a line for the process's stacks file."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._pid = os.getpid()

    @quiet
    def catch(self) -> None:
        """Take the signal, if nobody has it. A system call that it meets is started again."""
        if getsignal(layout.VALUES_SIGNAL) in (0, None):
            signal(layout.VALUES_SIGNAL, self._tell)
            siginterrupt(layout.VALUES_SIGNAL, False)  # noqa: FBT003 - the C function's own

    def _tell(self, _signum: int, frame: FrameType | None) -> None:
        quiet(self._write_frames)(frame)

    def _write_frames(self, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        rows = []  # type: list[tuple[str, int, str, dict[str, tuple[str, Any]]]]
        while frame is not None and len(rows) < _MOST_FRAMES:
            code = frame.f_code
            rows.append((code.co_filename, frame.f_lineno, code.co_name, _values(frame)))
            frame = frame.f_back
        self._write(b"values " + ascii(rows).encode("ascii") + b"\n")


def _values(frame: FrameType) -> dict[str, tuple[str, Any]]:
    """Return what the names that a function uses hold: `name`, and `name.attribute` of its objects."""
    code, shown_by_name = frame.f_code, {}
    names = (code.co_varnames + code.co_cellvars + code.co_freevars + code.co_names)[:_MOST_NAMES]
    attributes = set(code.co_names)
    local, shared = frame.f_locals, frame.f_globals
    for name in names:
        value = local.get(name, shared.get(name))
        shown = _shown(value)
        if shown is not None:
            shown_by_name[name] = shown
            continue
        held = _attributes(value)
        for attribute in attributes & held.keys() if held else ():
            shown = _shown(held[attribute])
            if shown is not None:
                shown_by_name[f"{name}.{attribute}"] = shown
    return shown_by_name


def _attributes(value: object) -> dict[str, Any]:
    """Return the attributes that an object itself holds; none of a module or a class."""
    if isinstance(value, type) or type(value).__name__ == "module":
        return {}
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _shown(value: object) -> tuple[str, Any] | None:
    """Return a path as ("path", text), a process as ("process", pid); None for all else: it is nobody's business."""
    kind = type(value)
    if kind is str:
        is_path = "/" in value and "://" not in value and "\n" not in value  # type: ignore[operator]
        is_named = any(word in value.lower() for word in _WORDS) and value.isprintable()  # type: ignore[attr-defined]
        return ("path", value) if 0 < len(value) <= _MOST_CHARS and (is_path or is_named) else None  # type: ignore[arg-type]
    if kind.__module__.startswith("pathlib"):
        return "path", str(value)
    if kind.__module__ == "_io":
        name = getattr(value, "name", None)
        return ("path", name) if type(name) is str and len(name) <= _MOST_CHARS else None
    if kind.__module__ == "subprocess" or kind.__module__.startswith("multiprocessing."):
        held = _attributes(value)
        pid = held.get("pid") or _attributes(held.get("_popen")).get("pid")
        return ("process", pid) if type(pid) is int else None
    return None
