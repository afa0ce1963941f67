"""Recognises which framework trains in this process, by the modules and classes that the frames of the training belong to.

The frames are those above the first optimizer step, or those of an uncaught exception (out of memory mostly comes before the first step).
The result is the names of rows of docs/guides/programs.md, the framework's own values of the knobs, and whether a batch norm was made. It
is written to `program-<local rank>.json`. Nothing of a frame is kept, nothing is imported, and nothing of the user's is called but a
framework's own plain attributes.

A new framework is a row of FRAMES: the module that its frames are of, and the function that reads its values.
"""
# ruff: noqa: ANN401 - a frame's locals and a framework's objects are anything

from __future__ import annotations

import os
import sys

from . import layout
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType, TracebackType
    from typing import Any

    from .claim import ProcessIdentity

MOST_FRAMES = 200
MOST_NAMES = 1000  # of one frame's variables that are searched for an Accelerator
MOST_NORMS = 1024


class ProgramFindings:
    """The programs and their values. `programs`: the outermost first, a Trainer before the Accelerator whose values it sets."""

    __slots__ = ("programs", "total", "values")

    def __init__(self) -> None:
        self.programs: list[str] = []
        self.values: dict[str, str] = {}
        self.total: int | None = None

    def add(self, program: str, total: Any = None, **values: Any) -> None:
        """Add a program; a value is kept where it is a number or a short word, and where no frame further out gave it.

        total: the step with which its training ends; less than 1: it does not know.
        """
        if program not in self.programs:
            self.programs.append(program)
        if self.total is None and type(total) is int and total > 0:
            self.total = total
        for knob, value in values.items():
            if isinstance(value, (int, float, str)) and not isinstance(value, bool) and len(str(value)) <= 64:  # noqa: PLR2004 - a word
                self.values.setdefault(knob, str(value))


def _hf_trainer(seen: ProgramFindings, frame: FrameType) -> None:
    trainer: Any = frame.f_locals.get("self")
    if not _is_a(trainer, "transformers.trainer", "Trainer"):
        return
    args = trainer.args
    seen.add(
        "hf_trainer",
        total=_get(_get(trainer, "state"), "max_steps"),
        batch_size=_get(args, "per_device_train_batch_size"),
        grad_accum=_get(args, "gradient_accumulation_steps"),
        num_workers=_get(args, "dataloader_num_workers"),
    )


def _lightning(seen: ProgramFindings, frame: FrameType) -> None:
    trainer: Any = frame.f_locals.get("self")
    if type(trainer).__name__ != "Trainer" or not hasattr(type(trainer), "fit"):
        return
    loader = quiet(lambda: trainer.train_dataloader)()
    seen.add(
        "lightning",
        total=_get(trainer, "max_steps"),
        batch_size=_get(loader, "batch_size"),
        grad_accum=_get(trainer, "accumulate_grad_batches"),
        num_workers=_get(loader, "num_workers"),
    )


def _torchtitan(seen: ProgramFindings, frame: FrameType) -> None:
    trainer = frame.f_locals.get("self")
    config = _get(_get(trainer, "job_config"), "training")
    batch = _get(config, "local_batch_size")
    seen.add("torchtitan", total=_get(config, "steps"), batch_size=_get(config, "batch_size") if batch is None else batch)


def _megatron(seen: ProgramFindings, _frame: FrameType) -> None:
    args = _get(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS")
    seen.add("megatron", total=_get(args, "train_iters"), batch_size=_get(args, "micro_batch_size"), num_workers=_get(args, "num_workers"))


def _deepspeed(seen: ProgramFindings, frame: FrameType) -> None:
    engine = frame.f_locals.get("self")
    if not _is_a(engine, "deepspeed.runtime.engine", "DeepSpeedEngine"):
        return
    config = _get(engine, "_config")
    seen.add(
        "deepspeed",
        batch_size=_get(config, "train_micro_batch_size_per_gpu"),
        grad_accum=_get(config, "gradient_accumulation_steps"),
    )


def _accelerate(seen: ProgramFindings, frame: FrameType) -> None:
    inner = frame.f_locals.get("self")
    state = _get(inner, "gradient_state")  # of an Accelerator and of an AcceleratedOptimizer
    if state is not None:
        seen.add("accelerate", grad_accum=_get(state, "num_steps"))


#: Module of a frame (a package where it ends with a dot) -> who reads it.
FRAMES: tuple[tuple[str, Callable[[ProgramFindings, FrameType], None]], ...] = (
    ("transformers.trainer", _hf_trainer),
    ("lightning.pytorch.trainer.trainer", _lightning),
    ("pytorch_lightning.trainer.trainer", _lightning),
    ("torchtitan.", _torchtitan),
    ("megatron.training.", _megatron),
    ("deepspeed.runtime.engine", _deepspeed),
    ("accelerate.optimizer", _accelerate),
    ("accelerate.accelerator", _accelerate),
)
#: A package that none of these names begins with need not be compared with every row.
PACKAGES = frozenset(name.partition(".")[0] for name, _ in FRAMES)


class ProgramRecognition:
    """Holds weak references to the batch norms, and whether the file names something."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._norms: list[Any] = []
        self._recognised = False

    def watch_norms(self, module: Any) -> None:
        """Note every batch norm that is made (torch.nn.modules.batchnorm; SyncBatchNorm and the lazy ones are of the same base)."""
        from weakref import ref  # noqa: PLC0415 - not at every start; torch has it by now

        base, norms = module._BatchNorm, self._norms  # noqa: SLF001 - torch's own name for what they share
        inner = base.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that place
            inner(self, *args, **kwargs)
            if len(norms) < MOST_NORMS:
                norms.append(ref(self))

        __init__.__wrapped__ = inner  # type: ignore[attr-defined]
        __init__.__doc__ = inner.__doc__
        base.__init__ = __init__

    @quiet
    def at_first_step(self) -> int | None:
        """Read the frames that led to a rank's optimizer step, and write the file. Return the step with which the training ends."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only way to the frames
        if not self._identity.claimed:
            return None
        seen = self._look(_upwards(frame))
        self._write(self._file(seen))
        return seen.total

    @quiet
    def at_exception(self, trace: TracebackType | None) -> None:
        """Read the frames that the exception came through, and write the file unless the first step recognised something."""
        if not self._recognised:
            self._write(self._file(self._look(_inwards(trace))))

    def _look(self, frames: Iterable[FrameType]) -> ProgramFindings:
        seen = ProgramFindings()
        for frame in frames:
            quiet(_one)(seen, frame)
        return seen

    def _file(self, seen: ProgramFindings) -> dict[str, Any]:
        norms = [norm for norm in (norm() for norm in self._norms) if norm is not None]
        # In eval mode a norm uses its running statistics, unless it keeps no running statistics at all.
        depends = any(norm.training or norm.running_mean is None for norm in norms)
        return {"programs": seen.programs, "values": seen.values, "batchnorm": bool(depends)}

    def _write(self, findings: dict[str, Any]) -> None:
        process_identity = self._identity
        if not process_identity.enabled:
            return
        self._recognised = bool(findings["programs"])
        import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

        owner = process_identity.local_rank if process_identity.claimed else f"{layout.UNCLAIMED}-{process_identity.pid}"
        path = os.path.join(process_identity.directory, f"program-{owner}.json")  # noqa: PTH118 - pathlib costs 5 ms of start-up
        fd = os.open(path + ".half", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123 - see above
            json.dump({"v": 1, "pid": process_identity.pid, **findings}, file)
        os.rename(path + ".half", path)  # noqa: PTH104 - see above


def _one(seen: ProgramFindings, frame: FrameType) -> None:
    """Read one frame by the name of its module; a framework that is run with `python -m` is `__main__` with a spec."""
    name = frame.f_globals.get("__name__")
    if name == "__main__":
        _script(seen, frame)
        name = _get(frame.f_globals.get("__spec__"), "name")
    if not isinstance(name, str) or name.partition(".")[0] not in PACKAGES:
        return
    for module, read in FRAMES:
        if name == module or (module.endswith(".") and name.startswith(module)):
            read(seen, frame)


def _script(seen: ProgramFindings, frame: FrameType) -> None:
    """Find what a script holds that drives the loop itself: an Accelerator, or nanoGPT's configuration."""
    accelerator = _get(sys.modules.get("accelerate.accelerator"), "Accelerator")
    if accelerator is not None:
        variables = [*frame.f_locals.values(), *frame.f_globals.values()]
        own_accelerator = next((value for value in variables[:MOST_NAMES] if issubclass(type(value), accelerator)), None)
        if own_accelerator is not None:
            seen.add("accelerate", grad_accum=_get(own_accelerator, "gradient_accumulation_steps"))
    known = frame.f_globals
    if isinstance(known.get("config_keys"), list) and "batch_size" in known and "gradient_accumulation_steps" in known:
        folder = os.path.dirname(os.path.abspath(str(known.get("__file__"))))  # noqa: PTH100, PTH120 - pathlib costs 5 ms of start-up
        if os.path.exists(os.path.join(folder, "configurator.py")):  # noqa: PTH110, PTH118 - see above
            world = known.get("ddp_world_size", 1)  # by which the script has divided what its command line says
            seen.add("nanogpt", batch_size=known["batch_size"], grad_accum=known["gradient_accumulation_steps"] * world)


def _is_a(value: Any, module: str, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__ == module for kind in type(value).__mro__)


def _get(owner: Any, name: str) -> Any:
    """Return an attribute, or None: a framework's property may raise anything."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - see above
        return None


def _upwards(frame: FrameType | None) -> list[FrameType]:
    """Return the frames from the outermost to this one; of a deep stack only the inner ones."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < MOST_FRAMES:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _inwards(trace: TracebackType | None) -> list[FrameType]:
    """Return the frames of a traceback, the outermost first; of a deep one only the outer ones, where the framework is."""
    frames: list[FrameType] = []
    while trace is not None and len(frames) < MOST_FRAMES:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames
