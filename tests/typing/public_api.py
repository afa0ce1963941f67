"""What a type checker sees of the public API. `make lint` runs mypy over this file; nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from checkpointing import (
    CheckpointingError,
    Mirror,
    Verdict,
    apply,
    find,
    latest,
    load_latest,
    newest,
    save,
    state,
    verify,
)
from checkpointing.candidates import SelectionOptions
from checkpointing.discover import Listing
from checkpointing.model import Candidate, Verification
from checkpointing.select import Selection
from checkpointing.training.load import Loaded
from supervisor import worker

if TYPE_CHECKING:
    import torch


def checkpoints() -> None:
    """Read checkpoints."""
    assert_type(verify("a.pt"), Verification)
    assert_type(verify("a.pt").verdict, Verdict)
    listing = find("ckpt/*.pt")
    assert_type(listing, Listing)
    assert_type(find(["a", "b"], "/data").candidates, tuple[Candidate, ...])
    assert_type(newest(listing), Selection)
    assert_type(newest(listing, SelectionOptions(avoid=["a.pt"], suspect=True)).n_found, int)
    assert_type(latest("ckpt").chosen, Verification | None)


def training(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save and resume."""
    assert_type(state(model, optimizer, ema={}), dict[str, Any])
    loaded = load_latest("ckpt", into=state(model, rng=False))
    assert_type(loaded, Loaded | None)
    if loaded is not None:
        apply(loaded.state, model, optimizer)
    assert_type(save(state(model), "ckpt", step=1, keep=3), str)
    assert_type(worker.should_save(), bool)


def mirrored() -> str:
    """Copy, list and restore."""
    mirror = Mirror("s3://bucket/prefix")
    try:
        assert_type(mirror.push("a.pt", job="llama"), str)
    except CheckpointingError as error:
        return assert_type(error.hint, str)
    restored = mirror.restore("llama", to="ckpt")
    return "" if restored is None else restored.path
