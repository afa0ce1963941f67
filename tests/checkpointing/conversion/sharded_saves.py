"""Run on two ranks: saves one model in each way that FSDP scripts use. Argument: the directory."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard


def model() -> torch.nn.Module:
    """A model whose rows the ranks do not divide."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 7))
    layers.register_buffer("running", torch.arange(3.0))
    return layers


def main(place: Path) -> None:
    """Save in each way."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for way in ("fsdp1_sharded", "fsdp1_local", "dtensor", "replicated"):
        (place / way).mkdir(exist_ok=True)
    if rank == 0:
        torch.save(model().state_dict(), place / "full.pt")
    torch.save(model().state_dict(), place / "replicated" / f"model_rank{rank}.pt")
    first = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    for kind, way in ((StateDictType.SHARDED_STATE_DICT, "fsdp1_sharded"), (StateDictType.LOCAL_STATE_DICT, "fsdp1_local")):
        with FullyShardedDataParallel.state_dict_type(first, kind):
            state = first.state_dict()
            torch.save(state, place / way / f"model_rank{rank}.pt")
            if way == "fsdp1_sharded":
                dcp.save(state, checkpoint_id=place / "fsdp1_dcp")
    second = fully_shard(model(), mesh=init_device_mesh("cpu", (2,)))
    torch.save(second.state_dict(), place / "dtensor" / f"model_rank{rank}.pt")
    dcp.save(second.state_dict(), checkpoint_id=place / "fsdp2_dcp")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
