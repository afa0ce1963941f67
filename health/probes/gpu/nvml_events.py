"""The events that the driver sends by itself, Xids and their kin, received in a thread.

Yields `gpu.events` of each GPU that has some, each event once: a list of tables (kind, data, t of its arrival, pci). Where the driver has
no events, or goes, none is received.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from health.model import Json, Reading
from health.probes.gpu.nvml_calls import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: A thread that waits holds up the closing of the library.
_WAIT_MS: Final = 200
_JOIN_S: Final = 2.0
_MOST: Final = 1000


class NvmlGpu(Protocol):
    """The facts of a GPU. handle: None where the driver refuses one."""

    handle: Any
    subject: str
    pci: str


class Events:
    """The events that arrived and are not delivered yet."""

    def __init__(self) -> None:
        self.pending: deque[tuple[str, dict[str, Json]]] = deque(maxlen=_MOST)
        self._running: tuple[threading.Event, threading.Thread, Any, Any] | None = None

    def listen(self, nvml: Any, gpus: Iterable[NvmlGpu]) -> None:  # noqa: ANN401 -- pynvml, which has no types
        """Hear events from now on; nothing where that is done already."""
        if self._running is not None and self._running[1].is_alive():
            return
        self.end()
        stop, listed = threading.Event(), [gpu for gpu in gpus if gpu.handle is not None]
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for gpu in listed:
            with contextlib.suppress(nvml.NVMLError):
                known = nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle)
                nvml.nvmlDeviceRegisterEvents(gpu.handle, known & sum(EVENTS), events)
        by_handle = {ctypes.cast(gpu.handle, ctypes.c_void_p).value: gpu for gpu in listed}

        def receive() -> None:
            while not stop.is_set():
                try:
                    event = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
                except nvml.NVMLError_Timeout:
                    continue
                except nvml.NVMLError:
                    return  # the driver is gone: the next read sees that for itself
                gpu = by_handle.get(ctypes.cast(event.device, ctypes.c_void_p).value)
                kind = EVENTS.get(int(event.eventType), f"{event.eventType:#x}")
                if gpu is not None:
                    self.pending.append((gpu.subject, {"kind": kind, "data": int(event.eventData), "t": time.time(), "pci": gpu.pci}))

        thread = threading.Thread(target=receive, name="nvml-events", daemon=True)
        self._running = (stop, thread, nvml, events)
        thread.start()

    def end(self) -> None:
        """Hear no more, while the library is still open."""
        if self._running is None:
            return
        stop, thread, nvml, events = self._running
        self._running = None
        stop.set()
        thread.join(_JOIN_S)  # it waits in the library
        if not thread.is_alive():
            with contextlib.suppress(Exception):  # of a driver that is gone
                nvml.nvmlEventSetFree(events)

    def drain(self, by_gpu: dict[str, list[Json]]) -> Iterator[Reading]:
        """Yield the events of each GPU that has new ones, those of this read that are in `by_gpu` included."""
        new: set[str] = set()
        while self.pending:
            subject, event = self.pending.popleft()
            by_gpu.setdefault(subject, []).append(event)
            new.add(subject)
        for subject in sorted(new):
            yield Reading("nvml", subject, "gpu.events", [*by_gpu[subject]])
