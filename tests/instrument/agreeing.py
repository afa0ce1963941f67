"""One rank of a gloo group that agrees with the others on bad batches: agreeing.py FUNCTION PLACE [NUMBER], with the variables of torchrun.

Each rank writes the result of the function below to PLACE/rank-<n>.json.
"""

from __future__ import annotations

import json
import os
import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from supervisor import worker
from tests.jobs.light import light_sgd

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 12
GOOD = True
IN_FORWARD = ("exception", "oom", "nan")


class Faulty(nn.Module):
    """A small model whose forward pass fails in the middle where `fault` says so."""

    def __init__(self, *, buffers: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
        self.norm: nn.Module = nn.BatchNorm1d(4) if buffers else nn.Identity()
        self.fault = ""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        hidden = self.norm(self.first(batch))
        if self.fault == "exception":
            raise ValueError("shapes do not match")
        if self.fault == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        loss: torch.Tensor = self.last(hidden).square().mean()
        return loss * float("nan") if self.fault == "nan" else loss


def batch_of(seed: int, step: int, rank: int, fault: str) -> torch.Tensor:
    """Return the batch of a rank at a step."""
    if fault == "batch":
        raise OSError("a sample that cannot be decoded")
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed * 10_000 + step * 100 + rank))


def trained(
    seed: int, bad: dict[int, tuple[int, str]], *, agrees: bool = True, checks_batch: bool = False, skipped: frozenset[int] = frozenset()
) -> tuple[list[float], int]:
    """Train; `bad` has the rank and the kind of the fault of a step. Return the weights, and how many optimizer steps were made."""
    rank = dist.get_rank()
    torch.manual_seed(seed)
    module = Faulty(buffers=checks_batch)
    model = DistributedDataParallel(module)
    optimizer = light_sgd(torch, model.parameters())
    steps = 0
    for step in range(STEPS):
        if step in skipped:
            continue
        bad_rank, kind = bad.get(step, (-1, ""))
        module.fault = kind if rank == bad_rank else ""
        loss, reason = torch.tensor(0.0), ""
        try:
            batch = batch_of(seed, step, rank, module.fault)
        except OSError as error:
            reason = f"{type(error).__name__}: {error}"
        if checks_batch and not worker.agree(not reason, reason):  # the forward pass communicates: no rank may leave it out alone
            continue
        try:
            loss = model(batch)
            reason = "" if loss.isfinite() else "the loss is not finite"
        except (ValueError, torch.OutOfMemoryError) as error:
            reason = f"{type(error).__name__}: {error}"
        if reason and not agrees:
            continue  # a script that knows nothing of the others
        if agrees and not worker.agree(not reason, reason):
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return [float(value) for parameter in model.parameters() for value in parameter.flatten()], steps


def _faults(seed: int, kinds: tuple[str, ...]) -> dict[int, tuple[int, str]]:
    chance = random.Random(seed)  # noqa: S311  no secret
    steps = chance.sample(range(STEPS), chance.randint(1, 3))
    return {step: (chance.randrange(dist.get_world_size()), chance.choice(kinds)) for step in steps}


def seeds(_place: Path) -> dict[str, Any]:
    """Train with faults at random, and without those steps: return the seeds in which steps or weights differ."""
    different = []
    for seed in range(int(sys.argv[3])):
        checks_batch = seed % 2 == 1
        bad = _faults(seed, (*IN_FORWARD, "batch") if checks_batch else IN_FORWARD)
        weights, steps = trained(seed, bad, checks_batch=checks_batch)
        expected, all_steps = trained(seed, {}, checks_batch=checks_batch, skipped=frozenset(bad))
        if steps != all_steps or not torch.allclose(torch.tensor(weights), torch.tensor(expected)):
            different.append(seed)
    return {"different": different}


def without(_place: Path) -> dict[str, Any]:
    """Train with one bad batch on rank 1 and no agreement: the others wait in the all-reduce of a backward pass that never comes."""
    trained(1, {STEPS - 1: (1, "exception")}, agrees=False)
    dist.barrier()
    return {}


def messages(_place: Path) -> dict[str, Any]:
    """Count the collectives of 100 steps, and their bytes."""
    sizes: list[int] = []
    inner = dist.distributed_c10d.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        sizes.append(tensor.numel() * tensor.element_size())
        return inner(tensor, *args, **kwargs)

    dist.distributed_c10d.all_reduce = counting
    answers = [worker.agree(GOOD) for _ in range(100)]
    return {"all": all(answers), "count": len(sizes), "bytes": sorted(set(sizes))}


def elsewhere(_place: Path) -> dict[str, Any]:
    """Agree where new tensors are on another device by default, on a good and on a bad batch."""
    torch.set_default_device("meta")  # as a script sets "cuda"
    answers = [worker.agree(GOOD), worker.agree(dist.get_rank() != 1, "the loss is nan")]
    torch.set_default_device(None)
    return {"answers": answers}


def budget(_place: Path) -> dict[str, Any]:
    """Leave out batches until there are too many."""
    rank, answers, error = dist.get_rank(), 0, ""
    try:
        for step in range(40):
            answers += not worker.agree(rank != 1 or step % 5 != 0, "the loss is nan")
    except worker.TooManyBatchesLeftOut as raised:
        error = str(raised)
    return {"left_out": answers, "error": error}


def _waits_for_the_end(place: Path) -> None:
    """Stand here until the others have given up."""
    while len(list(place.glob("gave-up-*"))) < dist.get_world_size() - 1:
        dist.distributed_c10d._get_default_store().wait(["gave-up"], timedelta(seconds=60))  # noqa: SLF001


def _gave_up(place: Path, call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001  the test sees it
        text = f"{type(error).__name__}: {error}"
    else:
        text = ""
    (place / f"gave-up-{dist.get_rank()}").touch()
    dist.distributed_c10d._get_default_store().set("gave-up", "1")  # noqa: SLF001
    return text


def absent(place: Path) -> dict[str, Any]:
    """Have the last rank leave the loop in which the others agree."""
    worker.agree(GOOD)
    if dist.get_rank() == dist.get_world_size() - 1:
        _waits_for_the_end(place)
        return {"error": ""}
    return {"error": _gave_up(place, lambda: worker.agree(GOOD))}


def barriers(place: Path) -> dict[str, Any]:
    """Meet twice under one name; then the last rank does not come."""
    worker.barrier("data")
    worker.barrier("data")
    if dist.get_rank() == dist.get_world_size() - 1:
        _waits_for_the_end(place)
        return {"error": ""}
    return {"error": _gave_up(place, lambda: worker.barrier("evaluation", timeout_s=0.5))}


def main() -> None:
    """Do it, and write down what was seen."""
    name, place = sys.argv[1], Path(sys.argv[2])
    timeouts = [float(text) for text in os.environ.get("GROUP_TIMEOUT_S", "60").split(",")]  # of each rank; the last is that of the rest
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeouts[min(int(os.environ["RANK"]), len(timeouts) - 1)]))
    seen = globals()[name](place)
    (place / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    if name in {"seeds", "messages", "elsewhere", "budget"}:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
