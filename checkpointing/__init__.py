"""Checkpoints as files: find them, verify them, choose the newest whole one, save, load, and copy to a mirror.

Usable without the supervisor (docs/reference/library-checkpointing.md). Reading never executes a pickle. No other program's file is
written, moved or removed, unless the caller asks for it.

Every name is imported when it is first used, so `import checkpointing` costs nothing. Only `save`, `load_latest`, `state`, `apply` and the
shuffling of `UnevenSampler` need torch. The types of what they take and return stand with them: `checkpointing.model.Verification`,
`checkpointing.discover.Listing`, `checkpointing.select.Selection`, `checkpointing.candidates.SelectionOptions`,
`checkpointing.training.load.Loaded`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from checkpointing.discover import find
    from checkpointing.examine import latest
    from checkpointing.mirror.client import Mirror
    from checkpointing.model import CheckpointingError, Verdict
    from checkpointing.select import newest
    from checkpointing.training.load import load_latest
    from checkpointing.training.sampler import UnevenSampler
    from checkpointing.training.save import save
    from checkpointing.training.state import apply, state
    from checkpointing.verification import verify

__all__ = [
    "CheckpointingError",
    "Mirror",
    "UnevenSampler",
    "Verdict",
    "apply",
    "find",
    "latest",
    "load_latest",
    "newest",
    "save",
    "state",
    "verify",
]

_MODULES: Final = {
    "CheckpointingError": "model",
    "Mirror": "mirror.client",
    "UnevenSampler": "training.sampler",
    "Verdict": "model",
    "apply": "training.state",
    "find": "discover",
    "latest": "examine",
    "load_latest": "training.load",
    "newest": "select",
    "save": "training.save",
    "state": "training.state",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- the interface of a module
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        public = getattr(importlib.import_module(f"checkpointing.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"checkpointing.{name} needs torch, which is not installed here: pip install torch", name="torch"
        ) from error
    globals()[name] = public
    return public


def __dir__() -> list[str]:
    """List the public names also before they are imported."""
    return sorted({*globals(), *__all__})
