"""A checkpoint of torch.distributed.checkpoint as two nodes with directories of their own have it: each with a shard."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed.checkpoint as dcp

if TYPE_CHECKING:
    from pathlib import Path

#: The names of each node's files.
Files = tuple[tuple[str, ...], ...]
#: What the nodes have: node 0 also the metadata, which rank 0 writes last.
FILES: Files = ((".metadata", "__0_0.distcp"), ("__0_1.distcp",))


def save_whole(directory: Path, step: int = 40, seed: int = 1, *, is_nan: bool = False) -> Path:
    """Save two shards with one process; both have tensors and other items."""
    generator = torch.Generator().manual_seed(seed)
    factor = float("nan") if is_nan else 1.0
    model = {f"w{n}": factor * torch.randn(50, 20, generator=generator) for n in range(4)}
    state = {"model": model, "step": step, "epoch": 1, "note": "text"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=dcp.FileSystemWriter(str(directory), thread_count=2))
    assert sorted(path.name for path in directory.iterdir()) == sorted(name for files in FILES for name in files)
    return directory


def split(whole: Path, *nodes: Path, files: Files = FILES) -> tuple[Path, ...]:
    """Copy to each node's directory what that node has; return the checkpoints there."""
    paths = tuple(directory / whole.name for directory in nodes)
    for directory, names in zip(paths, files, strict=True):
        directory.mkdir(parents=True)
        for name in names:
            shutil.copyfile(whole / name, directory / name)
    return paths
