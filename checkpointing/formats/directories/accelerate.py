"""A directory of accelerate's save_state: weights, optimizers, schedulers, random states, under FSDP with sharded states in directories.

Names (accelerate/checkpointing.py and utils/constants.py, 1.15): model.safetensors or shards with an index, pytorch_model_fsdp_N/ and
optimizer_N/ (DCP), optimizer.bin, scheduler.bin, sampler.bin, scaler.pt, custom_checkpoint_N.pkl, and random_states_<rank>.pkl, which every
rank writes last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from checkpointing.formats import Examination, combine
from checkpointing.formats.directories import members, weights
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.io.tree import Tree

_RANDOM: Final = re.compile(r"random_states_(\d+)\.pkl")
_SHARDED: Final = re.compile(r"(pytorch_model_fsdp|optimizer)_\d+")
_MODEL: Final = re.compile(r"pytorch_model_fsdp_\d+")
_FILES: Final = re.compile(
    r"(optimizer|scheduler|sampler|dl_state_dict|pytorch_model_fsdp)(_\d+)?\.bin|scaler\.pt|(custom_checkpoint|random_states)_\d+\.pkl"
)


def claims(tree: Tree) -> bool:
    """Claim what has a rank's random states in it, or optimizer and weights under accelerate's names."""
    top = tree.top()
    if any(_RANDOM.fullmatch(name) or _MODEL.fullmatch(name) for name in top):
        return True
    return "optimizer.bin" in top and bool(weights.singles(tree) or weights.indexes(tree) or weights.shards(tree))


def examine(tree: Tree, *, bulk: bool) -> Examination:
    """Examine every file, and whether weights and random states are there. Raises OSError and Interrupted."""
    parts = weights.examine(tree, bulk=bulk)
    if not parts and not any(name.startswith("pytorch_model_fsdp") for name in tree.top()):
        parts.append(members.NO_WEIGHTS)
    parts += [*members.examine_sharded(tree, _SHARDED, bulk=bulk), *members.examine_beside(tree, _FILES, bulk=bulk)]
    if "scheduler.bin" in tree.top() and not any(name.startswith("optimizer") for name in tree.top()):
        parts.append(Examination(Verdict.INCOMPLETE, "optimizer.bin is missing"))
    return combine([*parts, *_random_states(tree)], format="fsdp" if any(_MODEL.fullmatch(name) for name in tree.top()) else "")


def _random_states(tree: Tree) -> Iterator[Examination]:
    """Return which rank's random states are missing. Each node may have those of its own ranks alone, so they may begin anywhere."""
    ranks = {int(match[1]) for name in tree.top() if (match := _RANDOM.fullmatch(name))}
    if not ranks:
        yield Examination(Verdict.INCOMPLETE, "random_states_0.pkl is missing: it is written last")
    elif (absent := members.first_gap(ranks)) is not None:
        yield Examination(Verdict.INCOMPLETE, f"random_states_{absent}.pkl is missing")
