"""How long a training stands still for a checkpoint: torch.save, DCP's async_save, and a snapshot, against copying the memory.

In: the size of the state in MiB and the number of rounds. Out: one JSON object on stdout: the medians in seconds, all samples, and the
snapshot's multiple of the copy. A round measures each once, in turn, so that a busy machine is busy for all; the first round warms up what
there is to warm and does not count. Between two, whatever goes on in the background is waited for, so that none pays for another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

from checkpointing import Snapshotter, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

TENSORS = 64
AIM = 1.5


def state_of(mib: int) -> dict[str, torch.Tensor]:
    """Return a state of `mib` MiB in TENSORS tensors, as a model and its optimizer have them."""
    count = mib * (1 << 20) // 4 // TENSORS
    return {f"layer-{number}": torch.full((count,), float(number)) for number in range(TENSORS)}


class Methods:
    """Each method saves the state once, and returns what must be waited for before the next."""

    def __init__(self, state: dict[str, torch.Tensor], place: Path) -> None:
        self._state, self._place, self._number = state, place, 0
        self._copy = {name: torch.empty_like(tensor).fill_(1) for name, tensor in state.items()}
        self._snapshotter = Snapshotter(place / "snapshots")

    def memcpy(self) -> None:
        """Copy to buffers that are there and warm: what no method can be faster than."""
        for name, tensor in self._state.items():
            self._copy[name].copy_(tensor)

    def torch_save(self) -> None:
        """torch.save as most scripts call it: not durable."""
        torch.save(self._state, self._place / "plain.pt")

    def durable_save(self) -> None:
        """checkpointing.save: synced and renamed."""
        save(self._state, self._place / "durable.pt")

    def dcp_async(self) -> Future[object]:
        """DCP's async_save with its thread."""
        self._number += 1
        found: Future[object] = async_save(
            self._state, checkpoint_id=self._place / f"dcp-{self._number}", async_checkpointer_type=AsyncCheckpointerType.THREAD
        )
        return found

    def snapshot(self) -> None:
        """Snapshotter.snapshot."""
        self._number += 1
        self._snapshotter.snapshot(self._state, step=self._number)

    def settle(self) -> None:
        """Wait for the CRCs in the background, and drop what was written."""
        self._snapshotter.settle()
        os.sync()

    def close(self) -> None:
        """Free the memory."""
        self._snapshotter.close()


def measure(mib: int, rounds: int, place: Path) -> dict[str, object]:
    """Run all rounds."""
    methods = Methods(state_of(mib), place)
    rows: dict[str, Callable[[], Future[object] | None]] = {
        "memcpy": methods.memcpy,
        "snapshot": methods.snapshot,
        "dcp_async_save": methods.dcp_async,
        "torch_save": methods.torch_save,
        "checkpointing_save": methods.durable_save,
    }
    wall: dict[str, list[float]] = {name: [] for name in rows}
    cpu: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds + 1):
        for name, method in rows.items():
            methods.settle()
            wall_0, cpu_0 = time.perf_counter(), time.thread_time()
            waited_for = method()
            wall[name].append(time.perf_counter() - wall_0)
            cpu[name].append(time.thread_time() - cpu_0)
            if waited_for is not None:
                waited_for.result()
    methods.close()
    median = {name: statistics.median(samples[1:]) for name, samples in wall.items()}
    ratio = median["snapshot"] / median["memcpy"]
    return {
        "mib": mib,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "stall_s": median,
        "cpu_s": {name: statistics.median(samples[1:]) for name, samples in cpu.items()},
        "first_s": {name: samples[0] for name, samples in wall.items()},
        "samples_s": {name: samples[1:] for name, samples in wall.items()},
        "snapshot_per_memcpy": ratio,
        "aim": AIM,
        "reached": ratio <= AIM,
    }


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="where checkpoints are written, and removed again")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined] # a lazy name
    with tempfile.TemporaryDirectory(dir=args.dir) as place:
        print(json.dumps(measure(args.mib, args.rounds, Path(place)), indent=1))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
