"""Instrumented ranks that are forks of a process which has imported torch: the hooks find its modules there, as those of a standby do.

For tests in which neither the start of a rank nor its import of torch is the subject.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING

from tests.support import forks, preloaded
from tests.support.forks import Fork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


#: Packages that give names of these modules as their own: torch.save is torch.serialization.save.
TAKEN = {
    "torch.serialization": "torch",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.distributed.checkpoint.state_dict_saver": "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict_loader": "torch.distributed.checkpoint",
}


def start(*words: str, environ: Mapping[str, str], cwd: Path, descriptors: Sequence[int]) -> Fork:
    """Start what `python WORDS` would be in that environment."""
    return Fork(f"{__name__}:be_rank", *words, imports=preloaded.TORCH, environ=environ, cwd=cwd, descriptors=descriptors)


def be_rank(*words: str) -> int:
    """Be it: with the modules on PYTHONPATH, and begun by the sitecustomize there, as site.py does that."""
    unhooked = {name: dict(vars(sys.modules[name])) for name in TAKEN}
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    for name, package in TAKEN.items():  # a rank's packages take the names after the hooks are set
        module, theirs = vars(sys.modules[name]), vars(sys.modules[package])
        theirs |= {word: module[word] for word, value in unhooked[name].items() if theirs.get(word) is value is not module[word]}
    return forks.run_program(*words)
