"""Strikes a rank with the fault that `supervise drill` orders: out of memory, or gradients that are NaN.

The order is the file `drill` in the job's directory: kind, step, rank (None: every rank). The fault comes after that step, before the
optimizer's next, and `drill-struck-<rank>` records when. Out of memory strikes every attempt until the batch differs from the first time,
as a real one would; NaN strikes once in the run. The order of a soak says that more orders follow (`_supervise_soak.py`). It runs in the
interpreter of the job: Python 3.8 syntax, standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from time import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any

    from supervisor.instrument._supervise_shim import Instrumentation

OPTIMIZERS = "torch.optim.optimizer"
#: As torch's allocator words it.
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is free. "
    "Including non-PyTorch memory, this process has 77.99 GiB memory in use. Of the allocated memory 76.50 GiB is allocated "
    "by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. (a drill: nothing was allocated)"
)


def prepare(instrument: Instrumentation) -> None:
    """Have the fault come before the optimizer's step that is due. Raises OSError and ValueError if there is no order."""
    job_dir = os.environ["SUPERVISE_JOB_DIR"]
    with open(os.path.join(job_dir, "drill"), encoding="ascii") as file:  # noqa: PTH118, PTH123 - pathlib costs 5 ms of start-up
        order = json.load(file)
    if order["kind"] == "soak":
        hooks = __import__("_supervise_soak").SoakFaults(instrument, job_dir).hooks()
    else:
        fault = DrillFault(instrument, job_dir, order)
        hooks = {OPTIMIZERS: lambda module: module.register_optimizer_step_pre_hook(fault.before_step)}
    for name in [name for name in hooks if name in sys.modules]:  # a standby has imported it
        hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, ImportHooks(hooks))


class ImportHooks:
    """A finder for sys.meta_path that finds nothing itself, but hooks modules of torch right after they were imported."""

    def __init__(self, hooks: dict[str, Callable[[Any], None]]) -> None:
        self._hooks = hooks

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return what the other finders find, with a loader that hooks the module."""
        hook = self._hooks.pop(name, None)
        spec = find_spec(name) if hook is not None else None
        if hook is None or spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:  # noqa: ANN401 - torch's
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader alone
        return spec


class DrillFault:
    """The fault of this process. `order` is the content of the file."""

    def __init__(self, instrument: Instrumentation, job_dir: str, order: dict[str, Any]) -> None:
        self._identity, self._beat = instrument._identity, instrument._beat  # noqa: SLF001 - the rank's number and its count of steps
        self._job_dir = job_dir
        self._order = order
        self._over = False

    def before_step(self, optimizer: Any, _args: object, _kwargs: object) -> None:  # noqa: ANN401 - torch's
        """Strike, if this is the step: torch's global optimizer pre-step hook. The only code of supervise that raises in a training."""
        if self._over or not self._is_due():
            return
        self._over = True
        if self._order["kind"] == "nan":
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.detach().fill_(float("nan"))
            return
        raise sys.modules["torch"].OutOfMemoryError(MESSAGE)

    def _is_due(self) -> bool:
        """Return whether the fault comes at the next step; if so, record it."""
        beat, identity, order = self._beat, self._identity, self._order
        step = beat.steps if beat.step is None else beat.step
        if step < order["step"] or not identity.enabled or order["rank"] not in (None, identity.rank):
            return False
        path = os.path.join(self._job_dir, f"drill-struck-{identity.rank}")  # noqa: PTH118 - as above
        batch = os.environ.get("SUPERVISE_JOB_BATCH_SIZE")
        if os.path.exists(path):  # noqa: PTH110 - as above
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - as above
                is_due_again = order["kind"] == "oom" and bool(json.load(file)["batch"] == batch)
            self._over = not is_due_again
            return is_due_again
        with open(path + ".half", "w", encoding="ascii") as file:  # noqa: PTH123 - as above
            json.dump({"t": time(), "step": step, "batch": batch}, file)
        os.rename(path + ".half", path)  # noqa: PTH104 - as above
        return True
