"""What a type checker sees of the public API. `make lint` runs mypy over this file; nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

from checkpointing import (
    Candidate,
    CheckpointingError,
    Listing,
    Loaded,
    Mirror,
    Selection,
    Verdict,
    Verification,
    find,
    latest,
    load_latest,
    newest,
    save,
    verify,
)
from supervisor import worker


def checkpoints() -> None:
    """Read checkpoints."""
    assert_type(verify("a.pt"), Verification)
    assert_type(verify("a.pt").verdict, Verdict)
    listing = find("ckpt/*.pt")
    assert_type(listing, Listing)
    assert_type(find(["a", "b"], "/data").candidates, tuple[Candidate, ...])
    assert_type(newest(listing), Selection)
    assert_type(latest("ckpt").chosen, Verification | None)


def training(state: dict[str, Any]) -> None:
    """Save and resume."""
    assert_type(load_latest("ckpt"), Loaded | None)
    assert_type(save(state, "ckpt", step=1, keep=3), str)
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
