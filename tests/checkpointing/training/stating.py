"""One rank of a gloo group that takes and applies the state of a training: stating.py FUNCTION PLACE, with the variables of torchrun.

Each rank writes the result of the function below to PLACE/rank-<n>.json.
"""

# ruff: noqa: ANN401 -- parts of a state are anything
from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler

from checkpointing import CheckpointingError, apply, load_latest, save, state
from checkpointing.training import ranks

if TYPE_CHECKING:
    from collections.abc import Callable


class Block(nn.Module):
    """A layer whose own child is called `module`, which is no wrapper's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.module = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x and what the layer makes of it."""
        return x + torch.tanh(self.module(x))


class Wrapper(nn.Module):
    """A wrapper that holds its module in an attribute of a given name, as those of FSDP1 and fairscale do."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Do what the inner module does."""
        y: torch.Tensor = getattr(self, self.name)(x)
        return y


def bare(seed: int) -> nn.Sequential:
    """Return a model with a buffer, and a layer that never gets a gradient."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), Block(7), nn.BatchNorm1d(7), Block(7), nn.Dropout(0.2), nn.Linear(7, 1))
    model[5].register_parameter("unused", nn.Parameter(torch.randn(3)))
    return model


def activations(model: nn.Sequential) -> nn.Sequential:
    """Wrap the blocks for activation checkpointing."""
    for number in (1, 3):
        model[number] = checkpoint_wrapper(model[number])
    return model


def compiled(model: nn.Module) -> Any:
    """Compile by the backend that needs no C++ compiler."""
    return torch.compile(model, backend="eager")


def sharded(model: nn.Sequential, *, inner: Callable[[nn.Module], Any] = lambda block: block) -> nn.Module:
    """Shard by FSDP2, the blocks apart; `inner` wraps each of these first."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for number in (1, 3):
        model[number] = fully_shard(inner(model[number]), mesh=mesh)
    return fully_shard(model, mesh=mesh)


def ddp(model: nn.Module) -> nn.Module:
    """Wrap for DDP, which is to bear the layer without a gradient."""
    return DistributedDataParallel(model, find_unused_parameters=True)


WRAPPINGS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "bare": lambda model: model,
    "ddp": ddp,
    "fsdp2": sharded,
    "compiled": compiled,
    "activations": activations,
    "ddp of compiled": lambda model: ddp(compiled(model)),
    "compiled ddp of activations": lambda model: compiled(ddp(activations(model))),
    "fsdp2 of compiled activations": lambda model: sharded(activations(model), inner=compiled),
    "fairscale": lambda model: Wrapper("_fpw_module", model),
    "fsdp1 of fairscale": lambda model: Wrapper("_fsdp_wrapped_module", Wrapper("_fpw_module", model)),
    "data parallel": nn.DataParallel,
}

#: What takes longest to compile; of its three wrappers each is in another, too.
DEAR = frozenset({"compiled ddp of activations"})


def build(wrapping: str, seed: int, kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a wrapped model and an optimizer of named parameters in two groups."""
    model = WRAPPINGS[wrapping](bare(seed))
    named = list(model.named_parameters())
    groups = [{"params": named[:3], "lr": 0.02}, {"params": named[3:], "lr": 0.01}]
    return model, kind(groups)  # type: ignore[arg-type]  # the stubs know no named groups


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Train on batches that the generator gives, and return the loss of each step."""
    seen = []
    for _ in range(steps):
        loss = model(torch.randn(8, 5)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(float(loss.detach()))
    return seen


def whole(value: Any) -> Any:
    """Return a state without shards."""
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def keys(taken: Any, prefix: str = "") -> list[str]:
    """Return the names of all values in a state."""
    if isinstance(taken, dict):
        return sorted(key for name, value in taken.items() for key in keys(value, f"{prefix}{name}/"))
    if isinstance(taken, list) and taken and isinstance(taken[0], dict):
        return sorted(key for number, value in enumerate(taken) for key in keys(value, f"{prefix}{number}/"))
    return [prefix + (":" + ",".join(taken) if prefix.endswith("params/") else "")]


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Return where two states without shards differ."""
    if isinstance(left, dict):
        if left.keys() != right.keys():
            return [f"{path}: {sorted(left.keys() ^ right.keys())}"]
        return [text for name in left for text in differences(left[name], right[name], f"{path}/{name}")]
    if isinstance(left, list) and len(left) == len(right):
        return [text for number, pair in enumerate(zip(left, right, strict=True)) for text in differences(*pair, f"{path}/{number}")]
    equal = torch.allclose(left, right, rtol=1e-4, atol=1e-6) if isinstance(left, torch.Tensor) else left == right
    return [] if equal else [path]


def wrappings(_place: Path) -> dict[str, Any]:
    """Take the state from each wrapping and apply it to the next, or to all; every rank has the same batches, so that all train alike."""
    wrong, all_keys = [], {}
    names = [name for name in WRAPPINGS if "all" in sys.argv or name not in DEAR]
    for number, source in enumerate(names):
        model, optimizer = build(source, 1)
        losses(model, optimizer, 3)
        taken = state(model, optimizer)
        all_keys[source] = keys(taken)
        expected = copy.deepcopy(whole(taken))
        seen = {}
        for target in names if "all" in sys.argv else [names[(number + 1) % len(names)]]:
            other, its_optimizer = build(target, 2)
            apply(taken, other, its_optimizer)
            now = whole(state(other, its_optimizer))
            wrong += [f"{source} to {target}: {text}" for text in differences(expected, now)]
            seen[target] = losses(other, its_optimizer, 5)
        apply(taken, model)  # the weights are its own; the generators as they were
        reference = losses(model, optimizer, 5)
        wrong += [
            f"{source} to {target}: losses {values} for {reference}"
            for target, values in seen.items()
            if not torch.allclose(torch.tensor(values), torch.tensor(reference), rtol=1e-3)
        ]
    return {"wrong": wrong, "keys": all_keys}


def other_optimizers(_place: Path) -> dict[str, Any]:
    """Apply the state of optimizers that keep none, or one value, for a parameter."""
    wrong = []
    for kind in (torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad):
        model, optimizer = build("bare", 1, kind)
        losses(model, optimizer, 3)
        taken = state(model, optimizer)
        expected = copy.deepcopy(taken)
        other, its_optimizer = build("fsdp2", 2, kind)
        apply(taken, other, its_optimizer)
        wrong += differences(expected, whole(state(other, its_optimizer)))
        losses(other, its_optimizer, 1)
        wrong += differences(expected, taken)  # the one that trains on shares nothing with the state
    return {"wrong": wrong}


def killed(place: Path) -> dict[str, Any]:
    """Train with FSDP2 and save each step, until rank 1 is killed in the middle of its part of the third."""
    model, optimizer = build("fsdp2", 1)
    for step in (1, 2, 3):
        losses(model, optimizer, 1)
        if step == 3 and dist.get_rank() == 1:
            os.fsync = lambda _descriptor: os.kill(os.getpid(), signal.SIGKILL)
        save({**state(model, optimizer), "step": step}, place / "ckpt", step=step, sharded=True)
    return {}


def resumed(place: Path) -> dict[str, Any]:
    """Load what was left into another wrapping, maybe on another number of ranks, and train on; compare with a training of its own."""
    reference, its_optimizer = build("bare", 1)
    losses(reference, its_optimizer, 2)
    expected = state(reference, its_optimizer, rng=False)
    model, optimizer = build(sys.argv[3], 2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        generator = torch.get_rng_state()
        checkpoint = load_latest(place / "ckpt", into={**state(model, optimizer), "step": 0})
        assert checkpoint is not None
        apply(checkpoint.state, model, optimizer)
    seen = {
        "step": checkpoint.state["step"],
        "wrong": differences(expected, whole(state(model, optimizer, rng=False))),
        "fresh": torch.equal(generator, torch.get_rng_state()),
        "warned": [str(warning.message) for warning in warned if "generators" in str(warning.message) or "rng" in str(warning.message)],
    }
    now = torch.get_rng_state()
    mine = losses(model, optimizer, 5)
    torch.set_rng_state(now)
    seen["close"] = torch.allclose(torch.tensor(mine), torch.tensor(losses(reference, its_optimizer, 5)), rtol=1e-3)
    return seen


def whole_file(place: Path) -> dict[str, Any]:
    """Save shards without sharded=True: refused, as the file would hold those of rank 0."""
    model, optimizer = build("fsdp2", 1)
    try:
        save(state(model, optimizer), place / "ckpt", step=1)
    except CheckpointingError as error:
        return {"error": f"{error.message} | {error.hint}"}
    return {}


def own_parts(place: Path) -> dict[str, Any]:
    """Give each rank random generators and a data position of its own, save, continue, load; then load as other ranks would."""
    rank = dist.get_rank()
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002 -- the state that libraries draw from
    torch.manual_seed(rank)
    model = ddp(bare(1))
    torch.manual_seed(rank)
    loader = Position(rank * 10)
    save(state(model, loader=loader), place / "whole", step=1)
    save(state(model, loader=loader), place / "shards", step=1, sharded=True)
    drawn = numbers()
    seen: dict[str, Any] = {"positions": []}
    for name in ("whole", "shards"):
        loader = Position(-1)
        checkpoint = load_latest(place / name, into=state(model, loader=loader))
        assert checkpoint is not None
        apply(checkpoint.state, model, loader=loader)
        seen["positions"].append(loader.at)
        seen[name] = numbers() == drawn
    # of three ranks: the generators stay, the position too
    before = torch.get_rng_state()
    text, position = checkpoint.state["rng"], checkpoint.state["loader"]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        apply({**checkpoint.state, "rng": [*text, text[0]], "loader": [*position, position[0]]}, model, loader=loader)
    seen["warned"] = [str(warning.message) for warning in warned]
    seen["fresh"] = torch.equal(before, torch.get_rng_state())
    # an epoch is that of all ranks, however many they are
    sampler = DistributedSampler(range(8))  # type: ignore[arg-type]  # a range has a length and items
    data = DataLoader(range(8), sampler=sampler)  # type: ignore[arg-type]  # as above
    sampler.set_epoch(4)
    epochs = state(model, loader=data, rng=False)
    sampler.set_epoch(0)
    apply({**epochs, "loader": epochs["loader"] * 2}, model, loader=data, rng=False)
    seen["epoch"] = sampler.epoch
    return seen


class Position:
    """A loader as torchdata has one."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {"at": self.at}

    def load_state_dict(self, taken: dict[str, Any]) -> None:
        """Go there."""
        self.at = taken["at"]


def numbers() -> list[float]:
    """Draw from every generator."""
    return [random.random(), float(np.random.random()), float(torch.rand(()))]  # noqa: NPY002, S311 -- as above


def averages(place: Path) -> dict[str, Any]:
    """Take an average that rank 0 alone has, in a call that rank 0 alone makes; then through a sharded checkpoint."""
    rank = dist.get_rank()
    model = ddp(bare(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model.module) if rank == 0 else None
    tensors = {key: value.clone() for key, value in model.state_dict().items()}
    seen: dict[str, Any] = {}
    if average is not None:
        losses(model.module, optimizer, 2)
        average.update_parameters(model.module)
        alone = state(model, ema=average, rng=False)
        seen["alone"] = sorted(alone["ema"].keys() - {"n_averaged"}) == sorted(alone["model"])
        other = AveragedModel(bare(2))
        apply(alone, model, ema=other, rng=False)
        seen["equal"] = differences(average.state_dict(), other.state_dict())
    by_names = state(model, ema=tensors, rng=False)
    seen["names"] = sorted(by_names["ema"]) == sorted(by_names["model"])
    zeros = {key: torch.zeros_like(value) for key, value in tensors.items()}
    apply(by_names, model, ema=zeros, rng=False)
    seen["tensors"] = differences(tensors, zeros)
    save(state(model, ema=average), place / "ckpt", step=1, sharded=True)
    other = AveragedModel(bare(3)) if rank == 0 else None
    checkpoint = load_latest(place / "ckpt", into=state(model, ema=other))
    assert checkpoint is not None
    apply(checkpoint.state, model, ema=other)
    seen["loaded"] = [] if average is None or other is None else differences(average.state_dict(), other.state_dict())
    return seen


def refusals(_place: Path) -> dict[str, Any]:
    """Apply what does not fit: nothing is changed, and the error names it."""
    model, optimizer = build("fsdp2", 1)
    taken = state(model, optimizer)
    before = copy.deepcopy(whole(taken))
    seen = {}

    def refused(name: str, given: dict[str, Any], **more: Any) -> None:
        try:
            apply(given, model, optimizer, **more)
        except CheckpointingError as error:
            seen[name] = f"{error.message} | {error.hint}"

    weights = taken["model"]
    some = {key: value for key, value in weights.items() if "bias" not in key}
    refused("names", {**taken, "model": {**some, "b": 1, "a": 1}})
    refused("shapes", {**taken, "model": {**weights, "0.weight": torch.ones(7, 6)}})
    groups = taken["optimizer"]["param_groups"]
    refused("optimizer", {**taken, "optimizer": {**taken["optimizer"], "param_groups": groups[:1]}})
    together = [{**groups[0], "params": [name for group in groups for name in group["params"]]}]
    refused("groups", {**taken, "optimizer": {**taken["optimizer"], "param_groups": together}})
    values = {**taken["optimizer"]["state"], "0.weight": {"exp_avg": torch.ones(2)}}
    refused("moments", {**taken, "optimizer": {**taken["optimizer"], "state": values}})
    refused("absent", taken, ema=copy.deepcopy(weights))
    refused("on_one_rank", {**taken, "ema": weights}, ema={"strange": torch.ones(1)} if dist.get_rank() == 1 else None)
    with_loader = {**taken, "loader": state(model, loader=Position(1), rng=False)["loader"]}
    refused("loader_kind", with_loader, loader=DataLoader(range(8)))
    refused("generators", {**taken, "rng": ["AAAA"] * dist.get_world_size()})
    seen["changed"] = differences(before, whole(state(model, optimizer)))
    early = torch.optim.SGD(bare(1).parameters(), lr=1.0)
    try:
        state(model, early)
    except CheckpointingError as error:
        seen["early"] = f"{error.message} | {error.hint}"
    try:
        state(model, loader=[1, 2])
    except CheckpointingError as error:
        seen["no_loader"] = error.message
    return seen


def _caught(call: Callable[[], object]) -> dict[str, Any]:
    """Return the error and the warnings of a call, and how long it took."""
    began, text = time.monotonic(), ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:  # noqa: BLE001 -- the test sees it
            text = f"{type(error).__name__}: {error}"
    return {"error": text, "warned": [str(warning.message) for warning in warned], "s": time.monotonic() - began}


def _stands_here(place: Path) -> None:
    """Stand at this line until the others have given up."""
    while not (place / "gave-up").exists():
        time.sleep(0.05)


def absent_rank(place: Path) -> dict[str, Any]:
    """Take the state on all ranks but the last, which does something else that is in no call: nothing is proven."""
    model = bare(1)
    state(model)
    ranks.PATIENCE_S = 0.5
    if dist.get_rank() == dist.get_world_size() - 1:
        _stands_here(place)
        return {}
    seen = _caught(lambda: state(model))
    (place / "gave-up").touch()
    return seen


def late_rank(_place: Path) -> dict[str, Any]:
    """Come late on the last rank: the others warn, and all continue."""
    model = bare(1)
    state(model)
    ranks.PATIENCE_S = 0.5
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(2.5)
    return _caught(lambda: state(model))


def rank_elsewhere(place: Path) -> dict[str, Any]:
    """Take the state on rank 0 alone, as scripts do that save there: the others wait in a barrier."""
    model = bare(1)
    state(model)
    ranks.PATIENCE_S = 0.5
    if dist.get_rank() == 0:
        seen = _caught(lambda: state(model))
        (place / "gave-up").touch()
        return seen
    return {} if (place / "gave-up").exists() else _caught(dist.barrier)


def rank_in_a_group(place: Path) -> dict[str, Any]:
    """Take the state on rank 0, while rank 1 waits in a group with rank 2 alone, which waits for all: of rank 1 nothing is proven."""
    group = dist.new_group([1, 2], timeout=timedelta(seconds=60))
    model = bare(1)
    state(model)
    ranks.PATIENCE_S = 0.5
    if dist.get_rank() == 0:
        seen = _caught(lambda: state(model))
        (place / "gave-up").touch()
        return seen
    if dist.get_rank() == 2:
        _caught(dist.barrier)
        _stands_here(place)
    return _caught(lambda: dist.all_reduce(torch.ones(1), group=group))


def rank_gone(_place: Path) -> dict[str, Any]:
    """Have the last rank be killed before the others call."""
    model = bare(1)
    state(model)
    ranks.PATIENCE_S = 0.5
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _caught(lambda: state(model))


def whole_group(place: Path) -> dict[str, Any]:
    """Do one after the other what no rank dies of: a group takes half a second to meet."""
    functions = (other_optimizers, own_parts, averages, refusals, whole_file)
    return {function.__name__: function(place / function.__name__) for function in functions}


def main() -> None:
    """Do it, and write down what was seen."""
    name, place = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "60"))))
    seen = globals()[name](place)
    (place / f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    if name not in {"absent_rank", "rank_gone", "rank_elsewhere", "rank_in_a_group"}:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
