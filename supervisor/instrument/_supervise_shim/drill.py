"""Does inside a rank what `supervise drill` orders: a fault (out of memory, gradients that are NaN), or a record (resume_record.py).

`supervise drill` writes the order into `drill` in the job's directory: kind, step, rank (None: every rank). The fault comes after that
step, before the optimizer's next, and `drill-struck-<rank>` records when. Out of memory strikes every attempt until the batch differs from
the first time, as a real one would; NaN strikes once in the run.
"""

from __future__ import annotations

import os
import sys
from time import time

from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter
    from .resume_record import ResumeRecord

#: As torch's allocator words it.
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is free. "
    "Including non-PyTorch memory, this process has 77.99 GiB memory in use. Of the allocated memory 76.50 GiB is allocated "
    "by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. (a drill: nothing was allocated)"
)


class DrillFault:
    """The fault of this process. `order` is the content of the file."""

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter, job_dir: str, order: dict[str, Any]) -> None:
        self._identity = identity
        self._beat = beat
        self._job_dir = job_dir
        self._order = order
        self._over = order.get("kind") not in ("oom", "nan")

    def before_step(self, optimizer: Any, _args: object, _kwargs: object) -> None:  # noqa: ANN401 - torch's
        """Strike, if this is the step: torch's global optimizer pre-step hook. The only code of ours that may raise in a training."""
        if self._over or not self._due():
            return
        self._over = True
        if self._order["kind"] == "nan":
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.detach().fill_(float("nan"))
            return
        raise sys.modules["torch"].OutOfMemoryError(MESSAGE)

    @quiet
    def _due(self) -> bool:
        """Return whether the fault comes at the next step; if so, record it."""
        beat, who, order = self._beat, self._identity, self._order
        made = beat.steps if beat.step is None else beat.step
        if made < order["step"] or not who.enabled or order["rank"] not in (None, who.rank):
            return False
        path = os.path.join(self._job_dir, f"drill-struck-{who.rank}")  # noqa: PTH118 - pathlib costs 5 ms of start-up
        batch = os.environ.get("SUPERVISE_JOB_BATCH_SIZE")
        import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

        if os.path.exists(path):  # noqa: PTH110 - see above
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - see above
                again = order["kind"] == "oom" and bool(json.load(file)["batch"] == batch)
            self._over = not again
            return again
        with open(path + ".half", "w", encoding="ascii") as file:  # noqa: PTH123 - see above
            json.dump({"t": time(), "step": made, "batch": batch}, file)
        os.rename(path + ".half", path)  # noqa: PTH104 - see above
        return True


@quiet
def ordered(identity: ProcessIdentity, beat: HeartbeatWriter) -> DrillFault | ResumeRecord | None:
    """Return the fault or the record that was ordered for this job; None if there is no order."""
    job_dir = os.environ["SUPERVISE_JOB_DIR"]
    path = os.path.join(job_dir, "drill")  # noqa: PTH118 - see above
    if not os.access(path, os.R_OK):
        return None
    import json  # noqa: PLC0415 - not at every start

    with open(path, encoding="ascii") as file:  # noqa: PTH123 - see above
        order = json.load(file)
    if order.get("kind") == "resume":
        from .resume_record import ResumeRecord  # noqa: PLC0415 - not at every start

        return ResumeRecord(identity, beat, order)
    return DrillFault(identity, beat, job_dir, order)
