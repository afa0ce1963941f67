"""Records a profile when it is asked for: the stacks of the training thread, 30 times a second, and a trace of torch's profiler.

The question is a file `profile-NAME.ask`, named in the FIFO (background.py): `{"steps": 5, "seconds": null, "torch": PATH}`. The answer is
`profile-NAME.json`: at once `{"state": "recording"}`, or why not, and the record at the end. A recording ends by itself, and where
the question is gone: nobody waits for the answer any more. torch's profiler records the thread that starts it: it begins and ends in the
hook at the end of a step.
"""

from __future__ import annotations

import os
import sys
from time import monotonic_ns

from . import recorder
from .step_parts import OWN, kind_of, uses_cuda

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter

PAUSE_S = 0.033
#: A recording of steps ends after so long; one of torch's profiler, which keeps every operator, at the first step after so long.
LONGEST_S, LONGEST_TORCH_S = 120.0, 10.0
MOST_FRAMES, MOST_STACKS, MOST_OPERATORS = 200, 20_000, 15
OTHER = "(more stacks than are kept)"


class Profiles:
    """The recordings of one process, one at a time."""

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter) -> None:
        self._identity = identity
        self._beat = beat
        self._recording: Recording | None = None

    def begin(self, name: str) -> None:
        """Begin what a request asks for."""
        import json  # noqa: PLC0415 - torch has it by now

        path = os.path.join(self._identity.directory, f"profile-{os.path.basename(name)}")  # noqa: PTH118,PTH119 - pathlib costs 5 ms of start-up
        if self._recording is not None:
            recorder.write(path + ".json", json.dumps({"state": "busy"}).encode())
            return
        with open(path + ".ask", encoding="utf-8") as file:  # noqa: PTH123 - as above
            request = json.load(file)
        self._recording = Recording(self._beat, path, request)
        recorder.write(path + ".json", json.dumps({"state": "recording"}).encode())

    def sample(self, now: int) -> float:
        """Take a sample where one is due, and end the recordings that are over; return the seconds until the next."""
        recording = self._recording
        if recording is None:
            return 1.0
        if recording.is_over(now):
            self._recording = None
            if recording.is_wanted:
                recording.write(now)
            return 1.0
        return recording.sample(now)


class Recording:
    """One recording: its stacks, and torch's profiler where the request names it."""

    def __init__(self, beat: HeartbeatWriter, path: str, request: dict[str, Any]) -> None:
        self._beat, self._path = beat, path
        self._began_ns, self._began_steps = monotonic_ns(), beat.steps
        self._steps: int | None = request.get("steps")
        self._longest_s = LONGEST_S if self._steps else float(request["seconds"])
        self._stacks: dict[tuple[tuple[CodeType, int], ...], int] = {}
        self._count = self._lost = 0
        self._due_ns = 0
        self._trace = TorchTrace(beat, request["torch"], self._steps, self._longest_s) if request.get("torch") else None

    @property
    def is_wanted(self) -> bool:
        """Whether the question is still there: who asked removes it."""
        return os.path.exists(self._path + ".ask")  # noqa: PTH110 - as above

    def is_over(self, now: int) -> bool:
        """Return whether the recording is complete, its time is over, or nobody wants it; a trace that runs ends first."""
        if not self.is_wanted and (self._trace is None or self._trace.drop()):
            return True
        if now - self._began_ns >= self._longest_s * 1e9 and (self._trace is None or not self._trace.is_running or self._steps):
            return True
        if self._trace is not None:
            return self._trace.is_over
        return self._steps is not None and self._beat.steps - self._began_steps >= self._steps

    def sample(self, now: int) -> float:
        """Take a sample if one is due, and return the seconds until the next."""
        if now < self._due_ns:
            return (self._due_ns - now) / 1e9
        frame = sys._current_frames().get(self._beat.main_thread)  # noqa: SLF001 - there is no other way
        rows: list[tuple[CodeType, int]] = []
        while frame is not None and len(rows) < MOST_FRAMES:
            if kind_of(frame.f_code.co_filename) != OWN:
                rows.append((frame.f_code, frame.f_lineno or 0))
            frame = frame.f_back
        stack = tuple(rows)
        if stack in self._stacks or len(self._stacks) < MOST_STACKS:
            self._stacks[stack] = self._stacks.get(stack, 0) + 1
        else:
            self._lost += 1
        self._count += 1
        pause_s = PAUSE_S * (2 + 2 * (self._count * 0.6180339887 % 1.0)) / 3
        self._due_ns = now + int(pause_s * 1e9)
        return pause_s

    def write(self, now: int) -> None:
        """Write the answer. The stacks are written as text, the outermost function first."""
        import json  # noqa: PLC0415 - torch has it by now

        stacks: dict[str, int] = {}
        for stack, count in self._stacks.items():
            text = ";".join(_plain(f"{code.co_name} ({_short(code.co_filename)}:{line})") for code, line in reversed(stack))
            stacks[text] = stacks.get(text, 0) + count
        if self._lost:
            stacks[OTHER] = self._lost
        answer = {
            "state": "over",
            "took_s": (now - self._began_ns) / 1e9,
            "steps": self._beat.steps - self._began_steps,
            "samples": self._count,
            "stacks": stacks,
            "cuda": uses_cuda(),
            "trace": None if self._trace is None else self._trace.result(),
        }
        recorder.write(self._path + ".json", json.dumps(answer).encode())


class TorchTrace:
    """torch's profiler over a few steps: begun, and ended, by the training thread at the end of a step."""

    def __init__(self, beat: HeartbeatWriter, path: str, steps: int | None, longest_s: float) -> None:
        self._beat, self._path, self._steps = beat, path, steps
        self._longest_s = min(longest_s, LONGEST_TORCH_S)
        self._profiler: Any = None
        self._began_ns = self._began_steps = self._recorded = 0
        self._error = ""
        self.is_running = self.is_over = self._is_dropped = False
        beat.call_at_steps(self._at_step)

    def _at_step(self) -> None:
        try:
            if self._profiler is None:
                self.is_running = True  # before it is asked whether the trace was dropped: `drop` does it the other way round
                if self._is_dropped:
                    self.is_running = False
                else:
                    self._begin()
            elif self._beat.steps - self._began_steps >= (self._steps or sys.maxsize) or self._lasted_s() >= self._longest_s:
                self._beat.call_at_steps(None)
                self._recorded = self._beat.steps - self._began_steps
                self.is_running = False
                self._profiler.stop()
                self.is_over = True
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the user's
            self._beat.call_at_steps(None)
            self._error = f"{type(error).__name__}: {error}"
            self.is_running, self.is_over = False, True

    def _begin(self) -> None:
        # torch has one profiler at a time: a second one fails, or (2.13) takes the first one's events without a word
        if getattr(sys.modules["torch"].autograd, "_profiler_enabled", bool)():
            raise RuntimeError("the script runs torch's profiler itself, and torch has one at a time: its own trace has these steps")
        profiler = sys.modules["torch.profiler"]
        kinds = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if uses_cuda() else [])]
        self._profiler = profiler.profile(activities=kinds)
        self._profiler.start()
        self._began_ns, self._began_steps = monotonic_ns(), self._beat.steps

    def drop(self) -> bool:
        """Begin no trace any more; what runs ends with the next step. Return whether nothing runs."""
        self._is_dropped, self._longest_s = True, 0.0
        if not self.is_running:
            self._beat.call_at_steps(None)
        return not self.is_running

    def _lasted_s(self) -> float:
        return (monotonic_ns() - self._began_ns) / 1e9

    def result(self) -> dict[str, Any]:
        """Write the trace, and return the steps in it, its hottest operators, and what went wrong, "" for nothing."""
        if not self.is_over:
            self.drop()
            return {"steps": 0, "operators": [], "error": "no step ended"}
        operators: list[tuple[str, int, float, float]] = []
        if not self._error:
            try:
                _export(self._profiler, self._path)
                operators = _operators(self._profiler.key_averages())
            except Exception as error:  # noqa: BLE001 - a full disk, and whatever else
                self._error = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        return {"steps": self._recorded, "operators": operators, "error": self._error}


def _export(profiler: Any, path: str) -> None:  # noqa: ANN401 - torch is not imported here
    """Write the trace, over nothing. Raises OSError: torch itself only prints that it could not write, and replaces an existing file."""
    with open(path, "xb"):  # noqa: PTH123 - as above
        pass
    profiler.export_chrome_trace(path)
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        end = file.read().rstrip()
    if not end.endswith(b"}") or b"]" not in end:
        for name in (path, path + ".tmp"):
            if os.path.exists(name):  # noqa: PTH110 - as above
                os.truncate(name, 0)  # torch leaves it open
                os.unlink(name)  # noqa: PTH108 - as above
        raise OSError(28, "the trace was cut off when it was written: the disk is full")


def _operators(averages: Any) -> list[tuple[str, int, float, float]]:  # noqa: ANN401 - torch is not imported here
    """Return the operators that took longest: name, calls, and the microseconds of their own on the CPU and on the GPU."""
    rows = []
    for row in averages:
        device_us = getattr(row, "self_device_time_total", None)  # older torch has another name for it
        device_us = getattr(row, "self_cuda_time_total", 0.0) if device_us is None else device_us
        rows.append((str(row.key), int(row.count), float(row.self_cpu_time_total), float(device_us or 0.0)))
    is_gpu = any(row[3] for row in rows)
    return sorted(rows, key=lambda row: -(row[3] if is_gpu else row[2]))[:MOST_OPERATORS]


def _plain(name: str) -> str:
    """Return a name as a line of stacks holds it: a semicolon is between two names, and a script may compile code of any name."""
    return "".join(char if char.isprintable() else "?" for char in name.replace(";", ","))


def _short(file: str) -> str:
    """Return the path of a module below the place that it is imported from."""
    roots = [path for path in sys.path if path and file.startswith(path + os.sep)]
    return file[len(max(roots, key=len)) + 1 :] if roots else file
