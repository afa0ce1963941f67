"""A directory of accelerate's save_state: weights, optimizers, schedulers, random states, under FSDP with sharded states in directories.

Names (accelerate/checkpointing.py and utils/constants.py, 1.15): model.safetensors or shards with an index, pytorch_model_fsdp_N/ and
optimizer_N/ (DCP), optimizer.bin, scheduler.bin, sampler.bin, scaler.pt, custom_checkpoint_N.pkl, and random_states_<rank>.pkl, which every
rank writes last.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.formats import NOWHERE, Examination, combine, examine_member, nested
from checkpointing.formats.directories import dcp, weights
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
    """Look at every file, and at whether weights and random states are there. Raises OSError and Interrupted."""
    sharded = sorted(name for name in tree.directories if _SHARDED.fullmatch(name))
    parts = weights.examine(tree, bulk=bulk)
    if not parts and not any(name.startswith("pytorch_model_fsdp") for name in tree.top()):
        parts.append(Examination(Verdict.INCOMPLETE, "the model's weights are missing"))
    for name in sharded:
        part = dcp.examine(tree.sub(name), bulk=bulk)
        parts.append(nested(name, part))
    for name in sorted(name for name in tree.entries if _FILES.fullmatch(name)):
        examination = examine_member(tree, name, bulk=bulk)
        foreign = examination.verdict is Verdict.FOREIGN
        parts.append(replace(examination, verdict=Verdict.BAD if foreign else examination.verdict, place=NOWHERE, format=""))
    parts += [Examination(Verdict.INCOMPLETE, f"{name} is a directory") for name in sorted(tree.directories) if _FILES.fullmatch(name)]
    if "scheduler.bin" in tree.top() and not any(name.startswith("optimizer") for name in tree.top()):
        parts.append(Examination(Verdict.INCOMPLETE, "optimizer.bin is missing"))
    return combine([*parts, *_random_states(tree)], format="fsdp" if any(_MODEL.fullmatch(name) for name in tree.top()) else "")


def _random_states(tree: Tree) -> Iterator[Examination]:
    """Return which rank's random states are missing. Each node may have those of its own ranks alone, so they may begin anywhere."""
    ranks = sorted(int(match[1]) for name in tree.top() if (match := _RANDOM.fullmatch(name)))
    if not ranks:
        yield Examination(Verdict.INCOMPLETE, "random_states_0.pkl is missing: it is written last")
    elif len(ranks) != ranks[-1] - ranks[0] + 1:
        absent = next(rank for rank in range(ranks[0], ranks[-1]) if rank not in ranks)
        yield Examination(Verdict.INCOMPLETE, f"random_states_{absent}.pkl is missing")
