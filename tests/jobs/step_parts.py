"""A training by gloo whose rank 1 is slow in one way: none, loader, workers, peer, save, disk, still. It ends once `end` is there.

    step_parts.py WAY

A step takes some 10 ms, a slow one 150 ms more. `disk`: the loader waits for a disk; the kernel's answer for the thread is replaced, since
no disk here is slow for long. `still`: its loader stands still after some steps, for ever.
"""

import io
import pathlib
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

WAY = sys.argv[1]
SLOW_S = 0.15
STILL_FROM = 20


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Samples without an end, read as slowly as WAY says."""

    def __len__(self) -> int:
        """Return more than are read."""
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        """Read one."""
        if IS_SLOW and WAY in {"loader", "workers", "disk"}:
            time.sleep(SLOW_S)
        if IS_SLOW and WAY == "still" and index >= STILL_FROM:
            time.sleep(1e6)
        return torch.randn(32)


class Model(torch.nn.Module):
    """One layer, and a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, batch: torch.Tensor) -> Any:  # noqa: ANN401 - a tensor, to which torch gives no type
        """Take a while."""
        time.sleep(0.005 + SLOW_S * (IS_SLOW and WAY == "peer"))
        return self.layer(batch)


class SlowFile(io.BytesIO):
    """A file that takes its data slowly."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes of any kind
        """Take them."""
        time.sleep(SLOW_S / 20)
        return super().write(data)


torch.set_num_threads(1)
dist.init_process_group("gloo")
IS_SLOW = dist.get_rank() == 1
model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if WAY == "disk" and IS_SLOW:
    import _supervise_shim.step_parts as parts  # type: ignore[import-not-found]  # of the instrumented rank

    kernel, main = parts.thread_state, threading.get_ident()
    parts.thread_state = lambda: "D" if sys._current_frames()[main].f_code.co_name == "__getitem__" else kernel()  # noqa: SLF001

for batch in DataLoader(Samples(), batch_size=1, num_workers=int(WAY == "workers")):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if WAY == "save" and IS_SLOW:
        torch.save(model.state_dict(), SlowFile())
    if pathlib.Path("end").exists():
        break
