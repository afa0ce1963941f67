"""Has a running rank record a profile, and takes its answer (`_supervise_shim/profiles.py`)."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from checkpointing.io import staging
from supervisor.core.values import Struct
from supervisor.instrument._supervise_shim.layout import start_ticks_of
from supervisor.instrument._supervise_shim.profiles import LONGEST_S, LONGEST_TORCH_S
from supervisor.observe.ranks import questions

if TYPE_CHECKING:
    from pathlib import Path

#: A rank answers at once, unless C code holds its GIL.
ANSWER_S = 5.0
#: After its recording it writes the file: torch needs long for the trace of many operators.
WRITE_S = 120.0
MOST_BYTES = 256 * 1024 * 1024


class TraceAnswer(Struct, frozen=True):
    """The record of torch's profiler. operators: name, calls, and microseconds of its own on the CPU and on the GPU, the longest first."""

    steps: int
    operators: tuple[tuple[str, int, float, float], ...]
    error: str = ""


class ProfileAnswer(Struct, frozen=True):
    """The record of a rank. stacks: how often each was seen, as `outermost;...;innermost`. cuda: whether it has initialised CUDA."""

    took_s: float
    steps: int
    samples: int
    stacks: dict[str, int]
    cuda: bool
    trace: TraceAnswer | None = None


class RankProfile:
    """The recording of one rank, from `begin` until `answer` is there or `failure` says why it will not be. t: seconds that only grow."""

    def __init__(self, directory: Path, rank: int, process: tuple[int, int], request: dict[str, Any]) -> None:
        """Take the attempt's directory, the pid and the start ticks of the rank, and the request."""
        self._directory, self._process, self._request = directory, process, request
        self._path = directory / f"profile-{os.urandom(8).hex()}"
        self._begun_t = 0.0
        self.rank, self.failure, self.is_recording = rank, "", False
        self.answer: ProfileAnswer | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return bool(self.failure) or self.answer is not None

    def begin(self, t: float) -> None:
        """Ask the rank."""
        self._begun_t = t
        try:
            staging.write(str(self._path.with_suffix(".ask")), json.dumps(self._request).encode(), is_durable=False)
            questions.ask(self._directory, self._process[0], f"profile:{self._path.name.removeprefix('profile-')}")
        except questions.NotAskedError as error:
            self.failure = f"it {error}"
        except OSError as error:
            self.failure = f"it cannot be asked: {self._directory}: {error.strerror}"

    def look(self, t: float) -> None:
        """See whether the rank has answered."""
        if self.is_over:
            return
        read: dict[str, Any] = {}
        with contextlib.suppress(OSError), self._path.with_suffix(".json").open("rb") as file:
            read = json.loads(file.read(MOST_BYTES))
        self.is_recording = self.is_recording or read.get("state") == "recording"
        if read.get("state") == "busy":
            self.failure = "another profile of it is being recorded: ask again when that is over"
        elif read.get("state") == "over":
            trace = read["trace"]
            operators = tuple((str(name), int(calls), cpu, gpu) for name, calls, cpu, gpu in (trace or {}).get("operators", ()))
            known = None if trace is None else TraceAnswer(trace["steps"], operators, trace["error"])
            self.answer = ProfileAnswer(read["took_s"], read["steps"], read["samples"], read["stacks"], read["cuda"], known)
        elif start_ticks_of(self._process[0]) != self._process[1]:
            self.failure = "its process is gone"
        elif not self.is_recording and t - self._begun_t > ANSWER_S:
            self.failure = (
                f"it did not answer within {ANSWER_S:g} s: C code holds its GIL, or it is stopped; `supervise status --stacks` shows it"
            )
        elif t - self._begun_t > self.longest_s + WRITE_S:
            self.failure = "it did not end its recording: `supervise status --stacks` shows its stack"

    @property
    def longest_s(self) -> float:
        """Seconds after which a recording ends by itself."""
        recorded_s = LONGEST_S if self._request["steps"] else float(self._request["seconds"])
        return max(recorded_s, LONGEST_TORCH_S) if self._request["torch"] else recorded_s

    def close(self) -> None:
        """Remove the question and the answer."""
        for suffix in (".ask", ".json"):
            with contextlib.suppress(OSError):
                self._path.with_suffix(suffix).unlink()
