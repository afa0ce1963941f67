"""What each program calls at its steps: it logs them, and puts in the faults that PROGRAM_FAULT names.

`events` gets a line for each event: "step RANK STEP PID", "held FAULT PID", "final STEP"; `final.json` holds the final weights.

PROGRAM_FAULT holds words of the form fault:at[:rank]. A rank that is held waits until it is ended or a file such as `go-hold-25` is
there, and is held once. What comes from outside (a kill, a torn file) is done by the test meanwhile, at the same moment of each run.

    hold:25:1     rank 1 waits after it made step 25           save:20      rank 0 waits in the middle of its save of step 20
    oom:4         a micro-batch above 4 does not fit           import:0     the script imports a package that is not there
    value:0       a ValueError before training                 sample:60    sample 60 cannot be read, ever
    nan:25        the loss is NaN from step 25 on, once        raise:25     the program finds that its loss is NaN at step 25, once
    worker:60     the process that reads sample 60 waits

PROGRAM_STEPS makes the training longer than 40 steps, as a measurement needs it; it saves after each quarter, as it does with 40, or after
every PROGRAM_EVERY steps. With PROGRAM_PRINTS rank 0 prints its loss once in each step.

Standard library only: a program without torch uses it too.
"""

from __future__ import annotations

import importlib
import json
import os
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path.cwd()
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.20 GiB is free. Including"
    " non-PyTorch memory, this process has 22.40 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and"
    " 8.94 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
    "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
#: fault, at, rank (-1: any)
FAULTS = [[*word.split(":"), "-1"][:3] for word in os.environ.get("PROGRAM_FAULT", "").split()]
STEPS = int(os.environ.get("PROGRAM_STEPS", "40"))
EVERY = int(os.environ.get("PROGRAM_EVERY", STEPS // 4))
#: A step takes at least so long: two saves must not share the clock tick of their files.
PACE_S = 0.1 / EVERY
#: A test that failed must not leave a rank for ever.
LONGEST_HOLD_S = 300.0
PRINTS = bool(os.environ.get("PROGRAM_PRINTS"))
printed = 0  # the last step whose loss was


def _rank() -> int:
    return int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("LOCAL_RANK", "0"))))


def _log(*words: object) -> None:
    with (HERE / "events").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def _has(fault: str, at: int) -> bool:
    return any(name == fault and int(number) == at and int(rank) in {-1, _rank()} for name, number, rank in FAULTS)


def _once(fault: str, at: int) -> bool:
    """Return whether the fault is ordered here and did not happen before."""
    if not _has(fault, at):
        return False
    try:
        (HERE / f"done-{fault}-{at}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _hold(fault: str, at: int) -> None:
    _log("held", f"{fault}:{at}", os.getpid())
    until = time.monotonic() + LONGEST_HOLD_S
    while not (HERE / f"go-{fault}-{at}").exists() and time.monotonic() < until:
        time.sleep(0.01)


def start() -> None:
    """Fail as a program does before it trains."""
    if _has("import", 0):
        importlib.import_module("flash_attn_turbo")
    if _has("value", 0):
        raise ValueError("n_embd 48 is not divisible by n_head 5")


def batch(samples: int, *, host: bool = False) -> None:
    """Raise what torch, or numpy (`host`), raises for a micro-batch of more samples than fit."""
    if any(name == "oom" and samples > int(fits) for name, fits, _ in FAULTS):
        if host:
            raise MemoryError("Unable to allocate 23.7 GiB for an array with shape (8, 397295616) and data type float64")
        import torch  # noqa: PLC0415  a program without torch has no such error

        raise torch.OutOfMemoryError(OUT_OF_MEMORY)


def sample(number: int) -> None:
    """Fail where a certain sample is read."""
    if _has("sample", number):
        raise ValueError(f"sample {number}: invalid literal for a token: b'\\xff'")
    if _once("worker", number):
        _hold("worker", number)


def loss(value: Any, step: int) -> Any:  # noqa: ANN401  a tensor, or a number
    """Return the loss of step `step`, which is NaN where that is the fault."""
    global printed  # noqa: PLW0603  the program's own state
    if PRINTS and _rank() == 0 and step > printed:
        printed = step
        print(f"step {step} loss {float(value):.6f}", flush=True)  # noqa: T201  as a training does
    if _once("raise", step):
        raise FloatingPointError(f"loss is nan at step {step}, stopping training")
    if any(name == "nan" and step >= int(at) for name, at, _ in FAULTS) and (_once("nan", step) or (HERE / "nan-began").exists()):
        (HERE / "nan-began").touch()
        return value * float("nan")
    return value


def step(count: int) -> None:
    """Log a step that was made; wait where that is ordered."""
    time.sleep(PACE_S)
    _log("step", _rank(), count, os.getpid())
    if _once("hold", count):
        _hold("hold", count)


def save(of_step: int) -> None:
    """Have rank 0's next save wait in its middle, where that is ordered. Call it before the save."""
    if _rank() == 0 and _once("save", of_step):
        _hold_in_numpy(of_step)
        try:
            import torch.serialization as torch_files  # noqa: PLC0415  as above
        except ImportError:
            return
        _hold_in_torch(torch_files, of_step)


def _hold_in_torch(torch_files: Any, of_step: int) -> None:  # noqa: ANN401  a module
    """Wait at the second record of a file that torch writes."""
    write = torch_files._save  # noqa: SLF001  between the file's creation and its end there is no other place

    def held(content: Any, file: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401  torch's own
        return write(content, _Held(file, of_step), *rest, **named)

    torch_files._save = held  # noqa: SLF001  as above


class _Held:
    """A file of torch's that waits at its second record."""

    def __init__(self, file: Any, of_step: int) -> None:  # noqa: ANN401  torch's own
        self._file, self._step, self._records = file, of_step, 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as above
        return getattr(self._file, name)

    def write_record(self, *words: Any) -> None:  # noqa: ANN401  as above
        """Write it; wait before the second."""
        self._records += 1
        if self._records == 2:
            _hold("save", self._step)
        self._file.write_record(*words)


def _hold_in_numpy(of_step: int) -> None:
    """Wait where a zip's directory is due: numpy writes its files with this class."""
    close = zipfile.ZipFile.close

    def held(file: zipfile.ZipFile) -> None:
        if file.mode == "w" and file.fp is not None:
            file.fp.flush()
            _hold("save", of_step)
        close(file)

    zipfile.ZipFile.close = held  # type: ignore[method-assign]


def final(count: int, weights: Iterable[float]) -> None:
    """Log the end, and what came out."""
    if _rank() == 0:
        (HERE / "final.json").write_text(json.dumps({"step": count, "weights": list(weights)}))
        _log("final", count)
