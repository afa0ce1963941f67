"""NVML, through nvidia-ml-py: every GPU, its recovery action first.

Reads the driver's library. Yields, of `host`: `nvml.init` (code 0, or the error's code and words), `nvml.driver`, `nvml.count`,
`gpu.pairs`; of each `gpu:UUID` (`gpu:#INDEX` where the driver cannot even say which it is): `gpu.identity`, `gpu.recovery_action`,
`gpu.errors` (calls whose error is a verdict on the GPU), the rows of nvml_calls.py, `gpu.nvlinks`, `gpu.fabric`, `gpu.sram`,
`gpu.processes`, `gpu.events`.

Each call that the GPU or the driver does not know costs its own reading only (`not_supported`): MIG, GeForce and old drivers answer what
they can. A call may hang for ever; the readings before it are out by then. The session is the state: an open library, handles, what
does not change, and who hears events (nvml_events.py). It opens the library anew after an error that a reset of a GPU or driver would
explain, once for the same errors in a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from health.model import GONE, HOST, NOT_SUPPORTED, PERMISSION, Json, Reading
from health.probes.gpu import memory_holders
from health.probes.gpu.nvml_calls import FIELDS, LINK_COUNTERS, LINK_FIELDS, MOST_LINKS, RECOVERY_ACTION, ROWS, NvmlCall
from health.probes.gpu.nvml_events import Events

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from health.model import Ask

NAME: Final = "nvml"
_OK, _UNINITIALIZED, _INVALID, _UNSUPPORTED, _NO_PERMISSION, _NO_FUNCTION = 0, 1, 2, 3, 4, 13
_NO_POWER, _IRQ = 8, 11
_NOT_LOADED, _INFOROM, _LOST, _RESET, _MISMATCH, _OLD_STRUCT, _UNKNOWN = 9, 14, 15, 16, 18, 25, 999
#: Errors of the GPU or the driver, not of the call.
_VERDICTS: Final = frozenset({_NO_POWER, _IRQ, _NOT_LOADED, _INFOROM, _LOST, _RESET, _MISMATCH, _UNKNOWN})
_LOOKED_UP: Final = frozenset({"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"})
#: After these the library's handles may be of a driver that is no more.
_ANEW: Final = frozenset({_UNINITIALIZED, _NOT_LOADED, _LOST, _RESET, _MISMATCH, _UNKNOWN})
_PROBLEMS: Final = {_INVALID: NOT_SUPPORTED, _UNSUPPORTED: NOT_SUPPORTED, _NO_FUNCTION: NOT_SUPPORTED, _OLD_STRUCT: NOT_SUPPORTED,
                    _NO_PERMISSION: PERMISSION, _LOST: GONE}  # fmt: skip
#: After which the library is opened anew for errors that it was opened anew for already: opening it takes time, and events are missed.
_ANEW_S: Final = 300.0
_P2P_READ, _P2P_NVLINK = 0, 2
_FIELD_TYPES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of a session of its own."""
    opened = session()
    try:
        yield from opened.read(ask)
    finally:
        opened.close()


def session() -> NvmlSession:
    """Return a session that is not open yet: the first read opens it."""
    return NvmlSession()


class _Refused(Exception):  # noqa: N818 -- an answer, not a program error
    """NVML's error, by its code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.problem = _PROBLEMS.get(code) or words or f"NVML error {code}"


class _Gpu:
    """One GPU of a session."""

    __slots__ = ("errors", "fields", "handle", "index", "links", "pci", "refused", "static", "subject")

    def __init__(self, index: int, handle: Any, uuid: str, pci: str) -> None:  # noqa: ANN401 -- ctypes' own
        self.index, self.handle, self.pci = index, handle, pci
        self.subject = f"gpu:{uuid}" if uuid else f"gpu:#{index}"
        self.static: dict[str, Reading] = {}
        self.errors: list[Json] = []
        self.refused = ""  # why there is no handle
        self.links: int | None = None
        #: link counters that the driver knows; None before the first answer
        self.fields: tuple[int, ...] | None = None


class NvmlSession:
    """An open library."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: list[_Gpu] = []
        self._names: dict[int, tuple[str, str]] = {}
        self._pairs: Json = None
        self._stale = False
        self._events = Events()
        self._opened_for: tuple[frozenset[tuple[int, Json]] | None, float] = (None, 0.0)

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the readings, received events first: no other process has them, and the driver's calls may hang."""
        arrived: dict[str, list[Json]] = {}
        yield from self._events.drain(arrived)
        if self._nvml is not None and (self._counted() != len(self._gpus) or self._is_to_be_opened_anew()):
            self.close()
        if self._nvml is None:
            opened = yield from self._open()
            if not opened:
                return
        else:
            yield Reading(NAME, HOST, "nvml.init", {"code": _OK, "words": ""})
        if ask.lasting:
            self._events.listen(self._nvml, self._gpus)
        yield self._reading(HOST, "nvml.driver", self._nvml.nvmlSystemGetDriverVersion)
        yield self._reading(HOST, "nvml.count", self._nvml.nvmlDeviceGetCount)
        for gpu in self._gpus:
            yield from self._identity(gpu)
        alive = [gpu for gpu in self._gpus if gpu.handle is not None]
        for gpu in alive:  # of all GPUs before anything else of one
            yield from self._recovery_action(gpu)
        for gpu in alive:
            yield from self._gpu(gpu, ask)
        if self._pairs is None:
            self._pairs = self._read_pairs(alive)
        yield Reading(NAME, HOST, "gpu.pairs", self._pairs)
        yield from self._events.drain(arrived)

    def close(self) -> None:
        """Close the library."""
        self._events.end()
        if self._nvml is not None:
            with contextlib.suppress(Exception):  # a driver that is gone cannot be shut down
                self._nvml.nvmlShutdown()
        self._nvml, self._gpus, self._pairs, self._stale = None, [], None, False

    def _is_to_be_opened_anew(self) -> bool:
        """Tell whether errors ask for it that it was not opened for a moment ago; where not, forget those that a call will repeat."""
        if not self._stale:
            return False
        codes = frozenset((gpu.index, row["code"]) for gpu in self._gpus for row in gpu.errors if isinstance(row, dict))
        known, since = self._opened_for
        if codes != known or time.monotonic() - since >= _ANEW_S:
            self._opened_for = (codes, time.monotonic())
            return True
        self._stale = False
        for gpu in (gpu for gpu in self._gpus if gpu.handle is not None):
            rows = [row for row in gpu.errors if isinstance(row, dict)]
            gpu.errors = [row for row in rows if row["code"] not in _ANEW or row["call"] in _LOOKED_UP]
        return False

    def _open(self) -> Generator[Reading, None, bool]:
        """Open the library. Returns whether it is open."""
        try:
            nvml: Any = import_module("pynvml")
        except ImportError as error:
            yield Reading(NAME, HOST, "nvml.init", problem=f"nvidia-ml-py cannot be imported: {error}")
            return False
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            yield Reading(NAME, HOST, "nvml.init", {"code": int(error.value), "words": str(error)})
            return False
        self._nvml = nvml
        yield Reading(NAME, HOST, "nvml.init", {"code": _OK, "words": ""})
        with contextlib.suppress(_Refused):
            for index in range(self._ask(nvml.nvmlDeviceGetCount)):
                self._gpus.append(self._found(index))
        return True

    def _counted(self) -> int:
        """Return how many GPUs the driver has now; another number than before closes the session."""
        try:
            return int(self._ask(self._nvml.nvmlDeviceGetCount))
        except _Refused:
            return -1

    def _found(self, index: int) -> _Gpu:
        """Return a GPU; one that the driver cannot name keeps the name that it had before."""
        nvml = self._nvml
        handle, refused = None, None
        uuid, pci = self._names.get(index, ("", ""))
        try:
            handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
            uuid = self._ask(nvml.nvmlDeviceGetUUID, handle)
            pci = _address(self._ask(nvml.nvmlDeviceGetPciInfo, handle))
        except _Refused as error:
            refused = error
        gpu = _Gpu(index, handle, uuid, pci)
        self._names[index] = (uuid, pci)
        if refused is not None:
            gpu.refused = "" if handle is not None else str(refused)
            self._note(gpu, "nvmlDeviceGetHandleByIndex" if handle is None else "nvmlDeviceGetUUID", refused)
        return gpu

    def _identity(self, gpu: _Gpu) -> Iterator[Reading]:
        if "gpu.name" not in gpu.static and gpu.handle is not None:
            gpu.static["gpu.name"] = self._reading(gpu.subject, "gpu.name", self._nvml.nvmlDeviceGetName, gpu.handle)
        name = gpu.static["gpu.name"].value if "gpu.name" in gpu.static else ""
        identity: dict[str, Json] = {"index": gpu.index, "pci": gpu.pci, "name": name}
        yield Reading(NAME, gpu.subject, "gpu.identity", identity | ({"refused": gpu.refused} if gpu.refused else {}))
        yield Reading(NAME, gpu.subject, "gpu.errors", list(gpu.errors))

    def _recovery_action(self, gpu: _Gpu) -> Iterator[Reading]:
        try:
            value, problem = self._fields(gpu, [RECOVERY_ACTION])[0]
        except _Refused as error:
            value, problem = None, error.problem
            yield from self._verdict(gpu, "nvmlDeviceGetFieldValues", error)
        yield Reading(NAME, gpu.subject, "gpu.recovery_action", value, problem)

    def _gpu(self, gpu: _Gpu, ask: Ask) -> Iterator[Reading]:
        """Yield all else of one GPU, up to the call that reports it lost."""
        for row in ROWS:
            if row.name in gpu.static:
                yield gpu.static[row.name]
                continue
            reading, refused = self._row(gpu, row)
            yield reading
            if refused is not None:
                yield from self._verdict(gpu, row.functions[0], refused)
                if refused.code == _LOST:
                    return  # each further call may take long to fail the same way
            if row.static and (refused is None or refused.code not in _ANEW):
                gpu.static[row.name] = reading
        for name, call in (("gpu.fields", self._read_fields), ("gpu.nvlinks", self._read_links),
                           ("gpu.fabric", self._read_fabric), ("gpu.sram", self._read_sram)):  # fmt: skip
            try:
                yield from call(gpu)
            except _Refused as error:
                yield Reading(NAME, gpu.subject, name, problem=error.problem)
                yield from self._verdict(gpu, name, error)
        try:
            # by its version: the name without one raises an error that is not an NVMLError where the driver is older
            running = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses_v3, gpu.handle)
            held = [(int(process.pid), int(process.usedGpuMemory or 0)) for process in running]
            yield Reading(NAME, gpu.subject, "gpu.processes", memory_holders.described(held, ask))
        except _Refused as error:
            yield Reading(NAME, gpu.subject, "gpu.processes", problem=error.problem)

    def _row(self, gpu: _Gpu, row: NvmlCall) -> tuple[Reading, _Refused | None]:
        refused: _Refused | None = None
        for function in row.functions:
            try:
                answer = self._ask(getattr(self._nvml, function), gpu.handle, *row.arguments)
            except _Refused as error:
                refused = error
                if error.code != _NO_FUNCTION:
                    break
            else:
                return Reading(NAME, gpu.subject, row.name, answer if row.shape is None else row.shape(answer)), None
        return Reading(NAME, gpu.subject, row.name, problem=refused.problem if refused is not None else NOT_SUPPORTED), refused

    def _read_fields(self, gpu: _Gpu) -> Iterator[Reading]:
        for name, (value, problem) in zip(FIELDS.values(), self._fields(gpu, list(FIELDS)), strict=True):
            yield Reading(NAME, gpu.subject, name, value, problem)

    def _read_links(self, gpu: _Gpu) -> Iterator[Reading]:
        """Yield a table for each NVLink: active, and its error counters."""
        nvml = self._nvml
        links: list[dict[str, Json]] = []
        for link in range(MOST_LINKS if gpu.links is None else gpu.links):
            try:
                links.append({"link": link, "active": bool(self._ask(nvml.nvmlDeviceGetNvLinkState, gpu.handle, link))})
            except _Refused as error:
                if error.code not in (_INVALID, _UNSUPPORTED, _NO_FUNCTION):
                    raise
                break
        gpu.links = len(links)
        if links:
            self._count_errors(gpu, links)
        yield Reading(NAME, gpu.subject, "gpu.nvlinks", [*links], "" if links else NOT_SUPPORTED)

    def _count_errors(self, gpu: _Gpu, links: list[dict[str, Json]]) -> None:
        fields = tuple(LINK_FIELDS) if gpu.fields is None else gpu.fields
        answers = self._fields(gpu, [(field, link) for link in range(len(links)) for field in fields])
        for at, (value, problem) in enumerate(answers):
            if not problem:
                links[at // len(fields)][LINK_FIELDS[fields[at % len(fields)]]] = value
        if gpu.fields is None:
            known = {at % len(fields) for at, (_, problem) in enumerate(answers) if not problem}
            gpu.fields = tuple(field for at, field in enumerate(fields) if at in known)
        if not gpu.fields:
            for table in links:
                for counter, name in LINK_COUNTERS.items():
                    with contextlib.suppress(_Refused):
                        table[name] = self._ask(self._nvml.nvmlDeviceGetNvLinkErrorCounter, gpu.handle, table["link"], counter)

    def _read_fabric(self, gpu: _Gpu) -> Iterator[Reading]:
        """Yield the fabric's state, in the newest form that the driver knows."""
        nvml = self._nvml
        info = nvml.c_nvmlGpuFabricInfo_v3_t()
        try:
            self._ask(nvml.nvmlDeviceGetGpuFabricInfoV, gpu.handle, ctypes.byref(info))
        except _Refused as error:
            if error.code not in (_OLD_STRUCT, _INVALID):
                raise
            info = nvml.c_nvmlGpuFabricInfo_v2_t()
            self._ask(nvml.nvmlDeviceGetGpuFabricInfoV, gpu.handle, ctypes.byref(info))
        table: dict[str, Json] = {"state": int(info.state), "status": int(info.status), "mask": int(info.healthMask)}
        table["summary"] = int(getattr(info, "healthSummary", 0))
        yield Reading(NAME, gpu.subject, "gpu.fabric", table)

    def _read_sram(self, gpu: _Gpu) -> Iterator[Reading]:
        nvml = self._nvml
        status = nvml.c_nvmlEccSramErrorStatus_v1_t()
        self._ask(nvml.nvmlDeviceGetSramEccErrorStatus, gpu.handle, ctypes.byref(status))
        table: dict[str, Json] = {
            "uncorrected_volatile": int(status.volatileUncParity + status.volatileUncSecDed),
            "uncorrected_aggregate": int(status.aggregateUncParity + status.aggregateUncSecDed),
            "threshold_exceeded": bool(status.bThresholdExceeded),
        }
        yield Reading(NAME, gpu.subject, "gpu.sram", table)

    def _read_pairs(self, gpus: list[_Gpu]) -> Json:
        """Return for each pair how near its GPUs are (20: one switch, 50: across sockets), and whether they reach each other."""
        rows: list[Json] = []
        for at, gpu in enumerate(gpus):
            for other in gpus[at + 1 :]:
                row: dict[str, Json] = {"a": gpu.subject, "b": other.subject}
                for key, function, more in (("level", "nvmlDeviceGetTopologyCommonAncestor", ()),
                                            ("read", "nvmlDeviceGetP2PStatus", (_P2P_READ,)),
                                            ("nvlink", "nvmlDeviceGetP2PStatus", (_P2P_NVLINK,))):  # fmt: skip
                    with contextlib.suppress(_Refused):
                        row[key] = int(self._ask(getattr(self._nvml, function), gpu.handle, other.handle, *more))
                rows.append(row)
        return rows

    def _fields(self, gpu: _Gpu, fields: list[Any]) -> list[tuple[Json, str]]:
        """Return value and problem of each field. Raises _Refused where the call itself fails."""
        if not fields:
            return []
        answers: list[tuple[Json, str]] = []
        for value in self._ask(self._nvml.nvmlDeviceGetFieldValues, gpu.handle, fields):
            if value.nvmlReturn == _OK and 0 <= value.valueType < len(_FIELD_TYPES):
                answers.append((getattr(value.value, _FIELD_TYPES[value.valueType]), ""))
            else:
                answers.append((None, _PROBLEMS.get(value.nvmlReturn) or f"NVML error {value.nvmlReturn}"))
        return answers

    def _reading(self, subject: str, name: str, call: Callable[..., Any], *arguments: Any) -> Reading:  # noqa: ANN401 -- ctypes' own
        try:
            return Reading(NAME, subject, name, self._ask(call, *arguments))
        except _Refused as error:
            return Reading(NAME, subject, name, problem=error.problem)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 -- ctypes' own
        """Call NVML. Raises _Refused."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            code = int(error.value)
            self._stale = self._stale or code in _ANEW
            raise _Refused(code, str(error)) from error

    def _note(self, gpu: _Gpu, call: str, refused: _Refused) -> bool:
        """Write a verdict down. Returns whether it is one, and new."""
        codes = {row["code"] for row in gpu.errors if isinstance(row, dict)}
        if refused.code not in _VERDICTS or refused.code in codes:
            return False
        gpu.errors.append({"code": refused.code, "call": call, "words": str(refused)})
        return True

    def _verdict(self, gpu: _Gpu, call: str, refused: _Refused) -> Iterator[Reading]:
        if self._note(gpu, call, refused):
            yield Reading(NAME, gpu.subject, "gpu.errors", list(gpu.errors))


def _address(info: Any) -> str:  # noqa: ANN401 -- ctypes' own
    """Return a PCI address in sysfs's form (0000:3b:00.0)."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
