"""Checkpoints as files: find them, say which step they hold, prove that they are whole, choose the newest that is.

Usable without the supervisor. Three calls make the package: `catalog.find` (glob patterns to candidates), `verify.verify` (one file
to a verdict) and `select.newest` (the newest good one, and what was wrong with the others). No pickle is ever executed, no file that
is not ours is ever written, moved or removed, and no module here imports torch to read torch's format.

For training scripts there are `save`, `load_latest` and `Snapshotter` (docs/training-scripts.md). Their modules import
torch, so they are fetched when they are first asked for: `import checkpointing` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from checkpointing.training.load import Loaded, load_latest
    from checkpointing.training.save import save
    from checkpointing.training.snapshot import Snapshotter

__all__ = ["Loaded", "Snapshotter", "load_latest", "save"]

_HOMES: Final = {
    "Loaded": "checkpointing.training.load",
    "Snapshotter": "checkpointing.training.snapshot",
    "load_latest": "checkpointing.training.load",
    "save": "checkpointing.training.save",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- the interface of a module
    """Fetch a name for training scripts."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"checkpointing.{name} needs torch, which is not installed here: pip install torch", name="torch"
        ) from error
    globals()[name] = found
    return found
