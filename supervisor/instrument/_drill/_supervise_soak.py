"""Strikes the ranks with the faults that `supervise drill soak` orders one after the other.

The file `drill-order` in the job's directory holds the present order: number, kind, rank (None: any), bytes (for memory: at most). It is
read before each step of an optimizer, batch of a loader and save of torch; `drill-struck-<number>` records that a rank took it, and when.
Each order is taken once. `drill-seen-step`, `drill-seen-loader` and `drill-seen-save` show which of the three there are in this script. It
runs in the interpreter of the job: Python 3.8 syntax, standard library only.

    oom     torch.OutOfMemoryError before a step              loader  the next batch comes after LOADER_S seconds
    memory  memory is taken until the kernel kills this rank  torn    SIGKILL within a save, before its file is whole
                                                              disk    ENOSPC in a save, half of which is written
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time

from _supervise_drill import MESSAGE, OPTIMIZERS  # type: ignore[import-not-found]  # beside this file, in the ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from supervisor.instrument._supervise_shim import Instrumentation

LOADER_S = 8.0
_CHUNK_BYTES = 16 << 20


class SoakFaults:
    """The faults of this process."""

    def __init__(self, instrument: Instrumentation, job_dir: str) -> None:
        self._identity, self._beat = instrument._identity, instrument._beat  # noqa: SLF001 - the rank's number and its count of steps
        self._job_dir = job_dir
        self._seen: set[str] = set()
        self._full: OSError | None = None  # what a save got in place of room
        self._stamp: tuple[int, int] | None = None
        self._order: dict[str, Any] | None = None

    def hooks(self) -> dict[str, Callable[[Any], None]]:
        """Return which module of torch is hooked how."""
        return {OPTIMIZERS: self._hook_steps, "torch.utils.data.dataloader": self._hook_loader, "torch.serialization": self._hook_saves}

    def _hook_steps(self, module: Any) -> None:  # noqa: ANN401 - torch's
        module.register_optimizer_step_pre_hook(self._before_step)

    def _hook_loader(self, module: Any) -> None:  # noqa: ANN401 - torch's
        """Hook the batches of each loader, with worker processes or without."""
        inner = module._BaseDataLoaderIter.__next__  # noqa: SLF001 - torch's, since 1.2

        def next_batch(iterator: Any) -> Any:  # noqa: ANN401 - the script's
            if self._is_due("loader", ("loader",)):
                time.sleep(LOADER_S)
            return inner(iterator)

        module._BaseDataLoaderIter.__next__ = next_batch  # noqa: SLF001 - as above

    def _hook_saves(self, module: Any) -> None:  # noqa: ANN401 - torch's
        """Hook what writes the records of one file, between its opening and its end: DCP and Lightning save through it, too."""
        inner = getattr(module, "_save", None)
        if inner is None:
            return

        def save(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch has it
            inner(*args, **kwargs)
            if self._is_due("save", ("torn",)):  # the directory of the archive is missing still
                os.kill(os.getpid(), signal.SIGKILL)
            if self._is_due("save", ("disk",)):
                self._full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise self._full

        module._save = save  # noqa: SLF001 - torch's, since 1.6
        for name in ("_open_zipfile_writer_file", "_open_zipfile_writer_buffer"):
            opener = getattr(module, name, None)
            if opener is not None:
                self._hook_close(opener)

    def _hook_close(self, opener: Any) -> None:  # noqa: ANN401 - a class of torch's
        """Leave of a file what a full disk leaves: its first half. torch writes the end of an archive also where the save has failed."""
        inner = opener.__exit__

        def close(writer: Any, kind: Any, error: Any, trace: Any) -> Any:  # noqa: ANN401 - as Python has it
            result = inner(writer, kind, error, trace)
            if error is not None and error is self._full:
                target = getattr(writer, "name", None) or getattr(writer, "buffer", None)
                try:
                    place = target if isinstance(target, str) else target.fileno()  # type: ignore[union-attr]  # a buffer in memory has none
                    os.truncate(place, os.stat(place).st_size // 2)  # noqa: PTH116 - pathlib costs 5 ms of start-up
                except (AttributeError, OSError):  # io.UnsupportedOperation is one
                    pass
            return result

        opener.__exit__ = close

    def _before_step(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        if not self._is_due("step", ("oom", "memory")):
            return
        if self._order is not None and self._order["kind"] == "memory":
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs 5 ms of start-up
                file.write("1000")  # this process, and no other of the group
            taken: list[bytes] = []
            while len(taken) * _CHUNK_BYTES < self._order["bytes"]:
                taken.append(b"\1" * _CHUNK_BYTES)
            taken.clear()
        raise sys.modules["torch"].OutOfMemoryError(MESSAGE)

    def _is_due(self, place: str, kinds: tuple[str, ...]) -> bool:
        """Return whether this process takes the present order here; if so, record it."""
        beat, identity = self._beat, self._identity
        if not identity.enabled or not beat.steps:
            return False
        if place not in self._seen:
            self._seen.add(place)
            self._touch("drill-seen-" + place, b"")
        order = self._present_order()
        if order is None or order["kind"] not in kinds or order["rank"] not in (None, identity.rank):
            return False
        step = beat.steps if beat.step is None else beat.step
        row = {"t": time.time(), "step": step, "rank": identity.rank}
        return self._touch("drill-struck-{}".format(order["number"]), json.dumps(row).encode())

    def _present_order(self) -> dict[str, Any] | None:
        path = os.path.join(self._job_dir, "drill-order")  # noqa: PTH118 - as above
        try:
            status = os.stat(path)  # noqa: PTH116 - as above
            stamp = status.st_ino, status.st_mtime_ns
            if stamp != self._stamp:
                with open(path, encoding="ascii") as file:  # noqa: PTH123 - as above
                    self._stamp, self._order = stamp, json.load(file)
        except OSError:
            self._order = None
        return self._order

    def _touch(self, name: str, content: bytes) -> bool:
        """Make a file; False if there is one already."""
        try:
            fd = os.open(os.path.join(self._job_dir, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # noqa: PTH118 - as above
        except OSError:
            return False
        try:
            os.write(fd, content)
        finally:
            os.close(fd)
        return True
