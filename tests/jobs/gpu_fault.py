"""A training in which the rank on one GPU dies as a process does whose GPU fails: it is aborted, without a message.

The GPU's own state is the fake NVML's ($FAKE_NVML_STATE): a rank reads it before each step, and where its GPU has counted an
uncorrectable memory error it aborts, as CUDA's runtime makes torch do. Which GPU a rank has, it knows from CUDA_VISIBLE_DEVICES.

$UNTIL_ERROR: it trains beyond its last step until a GPU has counted an error. A test that counts one may be slow.

`--accum` is of one rank; with `--gloo` the ranks step together, and with `--model-parallel N` those of one replica too, as a framework with
tensor parallelism does: it refuses a world that N does not divide, and its global batch is that of the replicas. `log` has a line per step
and rank:
rank, step, micro-batch, accumulation, global batch, UUID of the GPU, attempt.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

from job_parts import append

from supervisor import worker


def uuid_of(local_rank: int) -> str:
    """Return the UUID of the GPU that a rank uses: of the fake's GPUs, or of those that it is shown."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown.split(",")[local_rank] if shown else f"GPU-00000000-0000-4000-8000-{local_rank:012d}"


def counts() -> dict[str, int]:
    """Return how many errors each GPU has counted, by the GPU's number."""
    rows = (line.split(" ", 1) for line in Path(os.environ["FAKE_NVML_STATE"]).read_text().splitlines())
    return {name.partition(".")[0]: int(value) for name, value in rows if name.endswith(".ecc_unc_vol")}


def errors_of(uuid: str) -> int:
    """Return how many errors the GPU has counted."""
    return counts().get(str(int(uuid.rpartition("-")[2])), 0)


class Alone:
    """What a training over gloo has of its other ranks, without them."""

    def __init__(self) -> None:
        """Take torchrun's word for it."""
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    @property
    def replicas(self) -> int:
        """Return among how many the global batch is divided."""
        return self.world

    def summed(self, value: int) -> int:
        """Return the sum of the ranks' values, which are equal."""
        return value * self.world

    def end(self) -> None:
        """Leave."""


class Together(Alone):
    """The other ranks, over gloo."""

    def __init__(self) -> None:
        """Meet them."""
        import torch  # noqa: PLC0415  needed by this class alone

        super().__init__()
        self._torch: Any = torch
        torch.distributed.init_process_group("gloo")

    def summed(self, value: int) -> int:
        """Return the sum over the ranks."""
        summed = self._torch.tensor(value)
        self._torch.distributed.all_reduce(summed)
        return int(summed)

    def end(self) -> None:
        """Leave."""
        self._torch.distributed.destroy_process_group()


class Replicas(Together):
    """The other ranks, `size` of which hold one copy of the model together: a group of those, and one of all that hold the same part."""

    def __init__(self, size: int) -> None:
        """Meet them. Raises AssertionError for a part of a replica."""
        super().__init__()
        assert self.world % size == 0, f"world size {self.world} is not divisible by model parallel size {size}"
        self._size = size
        parts = [list(range(part, self.world, size)) for part in range(size)]
        wholes = [list(range(first, first + size)) for first in range(0, self.world, size)]
        self._replica, _ = self._torch.distributed.new_subgroups_by_enumeration(wholes, backend="gloo")
        self._data, _ = self._torch.distributed.new_subgroups_by_enumeration(parts, backend="gloo")

    @property
    def replicas(self) -> int:
        """Return among how many the global batch is divided."""
        return self.world // self._size

    def summed(self, value: int) -> int:
        """Return the sum over the replicas, after all ranks of this one have met."""
        here, summed = self._torch.tensor(1), self._torch.tensor(value)
        self._torch.distributed.all_reduce(here, group=self._replica)
        assert int(here) == self._size
        self._torch.distributed.all_reduce(summed, group=self._data)
        return int(summed)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--immune", action="store_true", help="errors end nothing")
    parser.add_argument("--gloo", action="store_true", help="exchange something in each step")
    parser.add_argument("--model-parallel", type=int, default=0, metavar="N", help="N ranks hold one copy of the model together")
    args = parser.parse_args()
    peers = Replicas(args.model_parallel) if args.model_parallel else Together() if args.gloo else Alone()
    uuid, attempt = uuid_of(int(os.environ["LOCAL_RANK"])), os.environ.get("SUPERVISE_JOB_ATTEMPT", "0")
    before = errors_of(uuid)
    for step in itertools.count(1):
        is_faulty = errors_of(uuid) > before and not args.immune  # then it aborts, however late it sees that
        if step > args.steps and not is_faulty and (any(counts().values()) or "UNTIL_ERROR" not in os.environ):
            break
        time.sleep(args.step_ms / 1e3)
        if errors_of(uuid) > before and not args.immune:
            os.abort()
        batch = peers.summed(args.batch_size * args.accum)
        assert batch == peers.replicas * args.batch_size * args.accum
        worker.heartbeat(step)
        append(Path("log"), peers.rank, step, args.batch_size, args.accum, batch, uuid, attempt)
    peers.end()


if __name__ == "__main__":
    main()
