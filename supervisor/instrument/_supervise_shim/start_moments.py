"""Notes when this process came how far on its way to its first training step, and writes that once, at that step.

`start-<local rank>.json` has CLOCK_MONOTONIC ns. A moment that did not come is missing; after the first step nothing is noted any more.

    hello        it was instrumented
    imported     the last search for a module before the script made its process group, loaded a checkpoint or trained
    grouped      its first process group was made
    loading      its first load began
    loaded       its last load ended
    first_step   its first training step ended
"""

from __future__ import annotations

import os
from time import monotonic_ns

from . import layout
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class StartMoments:
    """The moments of one process. Everything but `on_import` is called from the training thread."""

    __slots__ = ("_file", "_imports", "_moments")

    def __init__(self, file: Callable[[], str | None]) -> None:
        """Take what returns the path of the file; None: this process is not a rank."""
        self._file = file
        now = monotonic_ns()
        self._moments = {"hello": now, "imported": now}
        self._imports = True  # the script has done nothing but import so far

    @property
    def imported_ns(self) -> int:
        """When the last import began, of those before anything else was seen to run."""
        return self._moments["imported"]

    def on_import(self) -> None:
        """Note that a module is searched for: called at each import that is not a repetition, so it is cheap and cannot fail."""
        if self._imports:
            self._moments["imported"] = monotonic_ns()

    @quiet
    def on_phase_begin(self, phase: int) -> None:
        """Note that a phase begins."""
        self._imports = False
        if phase == layout.LOAD:
            self._moments.setdefault("loading", monotonic_ns())

    @quiet
    def on_phase_end(self, phase: int) -> None:
        """Note that a phase ended."""
        if phase == layout.INIT:
            self._moments.setdefault("grouped", monotonic_ns())
        elif phase == layout.LOAD:
            self._moments["loaded"] = monotonic_ns()

    @quiet
    def on_first_step(self, now: int) -> None:
        """Write the file: the first training step ended."""
        self._imports = False
        path = self._file()
        if path is None:
            return
        import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps({**self._moments, "first_step": now}).encode())
        finally:
            os.close(fd)
