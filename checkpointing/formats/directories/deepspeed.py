"""One step of a DeepSpeed training: `global_stepN/` with the states of the model and, under ZeRO, one optimizer shard for each rank.

Names (deepspeed/runtime/engine.py, _get_ckpt_name, _get_zero_ckpt_name, _get_expert_ckpt_name):

    mp_rank_MM_model_states.pt                       one for each model-parallel rank (stages 0 to 2)
    zero_pp_rank_D_mp_rank_MM_model_states.pt        one for each pair of ranks (stage 3)
    [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt one for each pair of ranks (ZeRO)
    layer_LL-model_MM-model_states.pt                one for each layer and model-parallel rank (pipeline)
    layer_L_expert_E_mp_rank_MM_model_states.pt, expp_rank_E_mp_rank_MM_optim_states.pt     experts

The model's states give the numbers of files: `dp_world_size`, `mp_world_size`. ZeRO was on if `param_shapes` is not None. The file `latest`
beside the directory is a pointer that DeepSpeed writes last; `checkpointing.formats.pointer_files` reads it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from checkpointing.formats import Examination, PartExamination, combine
from checkpointing.formats.directories import rank_shards
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from checkpointing.formats.pickles.facts import PickleScan
    from checkpointing.io.tree import Tree

_MODEL: Final = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_MODEL3: Final = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER: Final = re.compile(r"(bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_OTHER: Final = re.compile(
    r"layer_\d+-model_\d+-model_states\.pt|layer_\d+_expert_\d+_mp_rank_\d+_model_states\.pt|expp_rank_\d+_mp_rank_\d+_optim_states\.pt"
)
_STEP: Final = re.compile(r"global_step(\d{1,18})")
_MOST_RANKS: Final = 100_000


def claims(tree: Tree) -> bool:
    """Claim a directory with at least one file named as DeepSpeed does, and an empty one named as its steps are."""
    top = tree.top()
    return any(_is_own_file(name) for name in top) or (_STEP.fullmatch(tree.name) is not None and not top)


def examine(tree: Tree, *, bulk: bool) -> Examination:
    """Examine every shard, and compare them with one another and with the numbers of ranks. Raises OSError, Interrupted."""
    own_files = _own_files(tree)
    scans = {name: rank_shards.scan_of(tree, name) for name in own_files}
    return _combined(tree, scans, _ranks(own_files, scans), bulk=bulk)


def examine_part(tree: Tree) -> PartExamination | None:
    """Examine the shards that are here. The model's states show which ranks there were."""
    own_files = _own_files(tree)
    scans = {name: rank_shards.scan_of(tree, name) for name in own_files}
    wanted, beyond, _ = _wanted(own_files, scans)
    absent = tuple((name, None) for name in wanted if name not in own_files)
    if not own_files or beyond or not absent:
        return None
    examination = _combined(tree, scans, [], bulk=True)
    leads = examination.verdict is Verdict.VERIFIED and any(rank_shards.integer_outermost(scan, "dp_world_size") for scan in scans.values())
    return PartExamination(examination, absent, leads)


def _own_files(tree: Tree) -> list[str]:
    return sorted(name for name in tree.top() if _is_own_file(name))


def _combined(tree: Tree, scans: dict[str, PickleScan | None], ranks: list[Examination], *, bulk: bool) -> Examination:
    """Examine each file by itself, and compare them. `ranks`: the findings about the numbers of ranks."""
    parts = rank_shards.examine_each(tree, scans, bulk=bulk)
    model = {name: scan for name, scan in scans.items() if name.endswith("_model_states.pt")}
    optimizer = {name: scan for name, scan in scans.items() if name.endswith("_optim_states.pt")}
    steps = {name: rank_shards.integer_outermost(scan, "global_steps") for name, scan in model.items()}
    place, mixed = rank_shards.common_step(steps, tree.name, _STEP)
    checks = rank_shards.without_none((mixed, rank_shards.mixed_facts(optimizer)))
    return combine([*parts, *ranks, *checks], place, files=tuple(scans))


def _is_own_file(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_MODEL, _MODEL3, _OPTIMIZER, _OTHER))


def _ranks(own_files: list[str], scans: dict[str, PickleScan | None]) -> list[Examination]:
    """Compare the ranks that there are files of with the ranks that there were."""
    wanted, beyond, dp_size = _wanted(own_files, scans)
    if not wanted:
        return rank_shards.without_none([rank_shards.left_over(own_files[-1:], "no training has so many ranks")])
    return rank_shards.without_none(
        [rank_shards.missing(wanted, set(own_files)), rank_shards.left_over(beyond, f"there were {dp_size} data-parallel ranks")]
    )


def _wanted(own_files: list[str], scans: dict[str, PickleScan | None]) -> tuple[list[str], list[str], int]:
    """Return the files that there must be, those of ranks beyond, and the number of data-parallel ranks; no file for too many ranks."""
    states = [scan for name, scan in scans.items() if scan is not None and (_MODEL.fullmatch(name) or _MODEL3.fullmatch(name))]
    saved_dp = next((size for scan in states if (size := rank_shards.integer_outermost(scan, "dp_world_size"))), None)
    saved_mp = next((size for scan in states if (size := rank_shards.integer_outermost(scan, "mp_world_size"))), None)
    zero = any("param_shapes" in scan.keys and "param_shapes" not in scan.nones for scan in states)
    pairs = {(int(match[2]), int(match[3])): name for name in own_files if (match := _OPTIMIZER.fullmatch(name))}
    pairs3 = {(int(match[1]), int(match[2])): name for name in own_files if (match := _MODEL3.fullmatch(name))}
    singles = {int(match[1]): name for name in own_files if (match := _MODEL.fullmatch(name))}
    seen_mp = 1 + max((*singles, *(mp for _, mp in (*pairs, *pairs3))), default=0)
    seen_dp = 1 + max((dp for dp, _ in (*pairs, *pairs3)), default=0)
    mp_size, dp_size = max(saved_mp or 1, seen_mp), saved_dp or seen_dp
    if mp_size * max(dp_size, seen_dp) > _MOST_RANKS:
        return [], [], dp_size
    prefix = next((form for form in ("bf16_", "fp16_") if any(name.startswith(form) for name in pairs.values())), "")
    every = [(dp, mp) for mp in range(mp_size) for dp in range(dp_size)]
    wanted = [f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt" for dp, mp in every] if pairs3 else []
    if not pairs3:
        wanted = [f"mp_rank_{mp:02d}_model_states.pt" for mp in range(mp_size)]
    if zero or pairs:
        wanted += [f"{prefix}zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt" for dp, mp in every]
    beyond = [name for group in (pairs, pairs3) for (dp, _), name in sorted(group.items()) if dp >= dp_size]
    return wanted, beyond, dp_size
