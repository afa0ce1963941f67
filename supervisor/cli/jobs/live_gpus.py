"""Reads a job's GPUs from NVML now. It is asked in a process of its own: a driver that hangs must not hang the command."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from supervisor.core.numeric import median
from supervisor.core.values import replace
from supervisor.view.status import GpuStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from health.model import Readings
    from health.probing.runner import Runner
    from supervisor.core.model import Gpu

#: A person waits; without an answer a page has the GPUs without it.
_DEADLINE_S = 2.0
#: A GPU that is this busy works; below this share of the others' clock it is slow.
_WORKS_PERCENT, _SLOW_CLOCK = 50, 0.9


class LiveGpus(AbstractContextManager["LiveGpus"]):
    """Asks NVML in one process that lasts from one page to the next."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._runner: Runner | None = None
        self._asking: threading.Thread | None = None
        self._readings: Readings | None = None

    def ask(self) -> None:
        """Begin to ask, unless the answer is still awaited."""
        if self._asking is not None and self._asking.is_alive():
            return
        self._readings = None
        self._asking = threading.Thread(target=self._ask, name="nvml", daemon=True)
        self._asking.start()

    def _ask(self) -> None:
        from health.model import Ask  # noqa: PLC0415  for a job with GPUs
        from health.probing.runner import Runner  # noqa: PLC0415  as above

        self._runner = self._runner or Runner()
        self._readings = self._runner.sample(("nvml",), Ask(deadline_s=_DEADLINE_S))

    def statuses(self, gpus: tuple[Gpu, ...]) -> tuple[GpuStatus, ...]:
        """Return the GPUs of a job, with what NVML answered in time."""
        if self._asking is not None:
            self._asking.join(_DEADLINE_S)
        readings = self._readings
        return with_slow([_with(status_of(gpu), readings) for gpu in gpus])

    def __exit__(self, *_exc: object) -> None:
        """End the process."""
        if self._runner is not None and not (self._asking is not None and self._asking.is_alive()):
            self._runner.close()


def status_of(gpu: Gpu) -> GpuStatus:
    """Return what the journal has of a GPU."""
    return GpuStatus(gpu.index, gpu.uuid, gpu.quarantined or None)


def _with(gpu: GpuStatus, readings: Readings | None) -> GpuStatus:
    if readings is None:
        return gpu
    subject = f"gpu:{gpu.uuid}"
    power_mw = readings.number("gpu.power_mw", subject)
    memory, temperature_c = readings.table("gpu.memory", subject), readings.number("gpu.temperature_c", subject)
    total, used = memory.get("total"), memory.get("used")
    return replace(
        gpu,
        memory_bytes=total if isinstance(total, int) else None,
        memory_used_bytes=used if isinstance(used, int) else None,
        temperature_c=temperature_c,
        busy_percent=readings.number("gpu.busy_percent", subject),
        power_w=None if power_mw is None else round(power_mw / 1000, 1),
        clock_mhz=readings.number("gpu.clock_sm_mhz", subject),
    )


def with_slow(gpus: Sequence[GpuStatus]) -> tuple[GpuStatus, ...]:
    """Mark each GPU that works at a clock far below the median of the others that work: it is throttled, or too hot."""
    clocks = {gpu.uuid: gpu.clock_mhz for gpu in gpus if gpu.clock_mhz is not None and (gpu.busy_percent or 0) >= _WORKS_PERCENT}
    others = {uuid: [clock for other, clock in clocks.items() if other != uuid] for uuid in clocks}
    slow = {uuid for uuid, clock in clocks.items() if others[uuid] and clock < _SLOW_CLOCK * median(others[uuid])}
    return tuple(replace(gpu, slow=gpu.uuid in slow) for gpu in gpus)
